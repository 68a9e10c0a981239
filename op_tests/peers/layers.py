"""Run the layers of mamba_ssm and flash-linear-attention, as they are, on hipconv.

    python op_tests/run_peer_layers.py                            # on a GPU; without one on the CPU, in about two minutes
    python op_tests/run_peer_layers.py --case mamba2,fla --dtype float32,bfloat16
    python op_tests/run_peer_layers.py --directory peer           # fetched into peer/ once; a machine without network reads it
    there

A case runs one of their modules, with the same parameters, on hipconv's functions and on the drop-in's references in plain
torch, and compares outputs, gradients, steps and states. Then it runs again with the operators counted: on hipconv, at least
those that the case names and no convolution of torch; on plain torch none of hipconv's.

The packages, einops, and Triton where it is missing, come into a temporary directory (packages.py). Stood in for is what they
compile or import besides and what has nothing to do with the convolution:

* selective_scan_cuda, the compiled scan of Mamba: a loop over tokens in torch, its backward by autograd;
* mamba_ssm's language model and huggingface_hub's mix-in, which save and load models: an empty class each;
* what Triton's autotuner chooses: the kernels of both packages (scans, norms, final states) run in one of their configurations;
* without a GPU, the GPU: Triton's interpreter runs these kernels, and torch.cuda.device and torch.cuda.get_device_properties,
  which these packages ask, say nothing of importance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import importlib
import importlib.util
import os
from pathlib import Path
import sys
import tempfile
import time
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from peers.packages import provide, sdist
from support.cli import Table, choice_of, flattened, list_of
from support.observe import Calls
from support.tensors import DTYPES
import hipconv

MAMBA, FLA, TRITON = "mamba-ssm==2.3.2.post1", "fla-core==0.6.0", "triton==3.9.0"
# Bounds are parts of the largest value, because a rounding moves what comes after it.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
Results = dict[str, Tensor]


# ---- what is stood in for ----------------------------------------------------------------------------------------------------


def scan(
    softplus: bool,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mamba's scan: (batch, dim, seqlen) before and after the gate z, and the state (batch, dim, dstate) that it ends in.

    u, delta, z: (batch, dim, seqlen); a: (dim, dstate); b, c: (batch, groups, dstate, seqlen); d, bias: (dim,).
    """
    dt = delta.float() if bias is None else delta.float() + bias.float()[:, None]
    dt = F.softplus(dt) if softplus else dt
    b, c = (each.float().repeat_interleave(u.shape[1] // each.shape[1], dim=1) for each in (b, c))
    state, outputs = u.new_zeros(*u.shape[:2], a.shape[1], dtype=torch.float32), []
    for t in range(u.shape[2]):
        state = torch.exp(dt[:, :, t, None] * a) * state + (dt * u.float())[:, :, t, None] * b[..., t]
        outputs.append((state * c[..., t]).sum(-1))
    y = torch.stack(outputs, dim=2) if d is None else torch.stack(outputs, dim=2) + d[:, None] * u.float()
    gated = y if z is None else y * F.silu(z.float())
    return y.to(u.dtype), gated.to(u.dtype), state


def scan_fwd(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d, z, bias, softplus: bool) -> tuple[Tensor, ...]:
    """selective_scan_cuda.fwd; states interleave with what its backward would need: (batch, dim, chunks, 2 * dstate)."""
    y, gated, state = scan(softplus, u, delta, a, b, c, d, z, bias)
    states = torch.stack([torch.zeros_like(state), state], dim=-1).flatten(-2)[:, :, None]
    return (y, states) if z is None else (y, states, gated)


def scan_bwd(
    u, delta, a, b, c, d, z, bias, dout, states, out, dz, softplus: bool, recompute: bool
) -> tuple[Tensor | None, ...]:
    """selective_scan_cuda.bwd; dz is written where it is given."""
    inputs: list[Any] = [each if each is None else each.detach().requires_grad_() for each in (u, delta, a, b, c, d, z, bias)]
    with torch.enable_grad():
        _, gated, _ = scan(softplus, *inputs)
        found = iter(torch.autograd.grad(gated, [each for each in inputs if each is not None], dout))
    du, ddelta, da, db, dc, dd, dz_, dbias = (None if each is None else next(found) for each in inputs)
    if dz is not None:
        dz_ = dz.copy_(dz_)
    rest = () if z is None else (dz_, gated.detach()) if recompute else (dz_,)
    return (du, ddelta, da, db, dc, dd, dbias, *rest)


def stand_in() -> None:
    """Put what is stood in for where the packages will import it."""

    def module(name: str, **contents: Any) -> None:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)

    module("selective_scan_cuda", fwd=scan_fwd, bwd=scan_bwd)
    module("mamba_ssm.models.mixer_seq_simple", MambaLMHeadModel=type("MambaLMHeadModel", (), {}))
    module("huggingface_hub", PyTorchModelHubMixin=type("PyTorchModelHubMixin", (), {}))


def take_one_configuration(number: int) -> None:
    """Take one for each of Triton's kernels, before the packages are imported: to find the fastest takes a GPU,
    and there minutes.
    """
    autotuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    construct = autotuner.__init__

    def with_one_configuration(self, fn, arg_names, configs, *args, **options):
        construct(self, fn, arg_names, [configs[number]], *args, **options)

    autotuner.__init__ = with_one_configuration


def stand_in_for_a_gpu() -> None:
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment, misc]
    properties: Any = SimpleNamespace(multi_processor_count=1)
    torch.cuda.get_device_properties = lambda *_: properties  # type: ignore[assignment]


# ---- the functions on plain torch --------------------------------------------------------------------------------------------


def plain_twins() -> dict[Callable, Callable]:
    """hipconv's functions that the packages import, and what takes their place."""
    interface, functions, varlen = (
        importlib.import_module(f"causal_conv1d.{name}")
        for name in ("causal_conv1d_interface", "cpp_functions", "causal_conv1d_varlen")
    )

    def fn(
        x,
        weight,
        bias=None,
        seq_idx=None,
        initial_states=None,
        return_final_states=False,
        final_states_out=None,
        activation=None,
    ):
        return interface.causal_conv1d_ref(
            x, weight, bias, initial_states, return_final_states, final_states_out, activation, seq_idx
        )

    def fwd(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
        return fn(x, weight, bias, seq_idx, initial_states, activation="silu" if silu_activation else None)

    def bwd(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, silu_activation):
        assert initial_states is None and dfinal_states is None, "no caller here has states"
        inputs = [each.detach().requires_grad_() for each in (x, weight, bias) if each is not None]
        with torch.enable_grad():
            out = fwd(*inputs, *[None] * (3 - len(inputs)), seq_idx, None, None, silu_activation)
        dx_, dweight, *dbias = torch.autograd.grad(out, inputs, dout)
        return dx_ if dx is None else dx.copy_(dx_), dweight, dbias[0] if dbias else None, None

    return {
        interface.causal_conv1d_fn: fn,
        interface.causal_conv1d_update: interface.causal_conv1d_update_ref,
        functions.causal_conv1d_fwd_function: fwd,
        functions.causal_conv1d_bwd_function: bwd,
        varlen.causal_conv1d_varlen_states: varlen.causal_conv1d_varlen_states_ref,
    }


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """The packages' modules with plain torch wherever they hold a function of hipconv's."""
    twins = plain_twins()
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if name.split(".")[0] in ("mamba_ssm", "fla")]:
            for name, value in list(vars(module).items()):
                if callable(value) and value in twins:
                    patch.setattr(module, name, twins[value])
        yield


# ---- cases -------------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A module, a way to use it, and the operators of hipconv that this takes."""

    module: Callable[[], torch.nn.Module]
    use: Callable[[Any, Tensor], Results]
    operators: tuple[str, ...]


def train(module: Any, x: Tensor, **options: Any) -> Results:
    """The output, and the gradients of the input and of each parameter."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    out = module(x, **options)
    out = out[0] if isinstance(out, tuple) else out
    (out.float().tanh() * torch.linspace(-1, 1, out.shape[-1], device=x.device)).mean().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    assert x.grad is not None
    return {"out": out.detach(), "x": x.grad} | gradients


def train_packed(module: Any, x: Tensor) -> Results:
    """Sequences of 4, 1 and the rest of the tokens in each row."""
    ids = torch.tensor([0] * 4 + [1] + [2] * (x.shape[1] - 5), dtype=torch.int32, device=x.device)
    return train(module, x, seq_idx=ids.expand(len(x), -1).contiguous())


def train_packed_fla(module: Any, x: Tensor) -> Results:
    return train(module, x.flatten(0, 1)[None], cu_seqlens=torch.tensor([0, 4, 5, x.shape[0] * x.shape[1]], device=x.device))


@torch.no_grad()
def decode(module: Any, x: Tensor, steps: int = 3, **prefill: Any) -> Results:
    """A prefill, then tokens one at a time; and the states."""
    cache = SimpleNamespace(seqlen_offset=0, key_value_memory_dict={})
    tokens = x.shape[1] - steps
    results = {"prefill": module(x[:, :tokens], inference_params=cache, **prefill)}
    for t in range(tokens, x.shape[1]):
        cache.seqlen_offset = t
        results[f"step {t}"] = module(x[:, t : t + 1], inference_params=cache)
    conv_state, ssm_state = cache.key_value_memory_dict[module.layer_idx]
    return results | {"conv_state": conv_state, "ssm_state": ssm_state}


@torch.no_grad()
def decode_packed(module: Any, x: Tensor) -> Results:
    """A prefill of sequences of 4, 1 and the rest of the tokens in one row, then a token of each of them."""
    row, cache = x[:1], SimpleNamespace(seqlen_offset=0, key_value_memory_dict={})
    starts = torch.tensor([0, 4, 5, x.shape[1]], dtype=torch.int32, device=x.device)
    ids = torch.repeat_interleave(torch.arange(3, dtype=torch.int32, device=x.device), starts.diff())[None]
    results = {"prefill": module(row, seq_idx=ids, cu_seqlens=starts, inference_params=cache)}
    cache.seqlen_offset = 1
    results["step"] = module(row[0, :3, None], inference_params=cache)
    conv_state, ssm_state = cache.key_value_memory_dict[module.layer_idx]
    return results | {"conv_state": conv_state, "ssm_state": ssm_state}


@torch.no_grad()
def decode_fla(module: Any, x: Tensor, steps: int = 3) -> Results:
    results = {}
    out, cache = module(x[:, :-steps], output_final_state=True)
    for t in range(x.shape[1] - steps, x.shape[1]):
        results[f"step {t}"], cache = module(x[:, t : t + 1], residual=x[:, t : t + 1], cache=cache, output_final_state=True)
    return results | {"prefill": out, "cache": cache}


def train_mixed_fla(module: Any, x: Tensor) -> Results:
    """FLA's own forward with hipconv's backward, which its function has and its module does not."""
    causal_conv1d = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = module.weight, module.bias

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return causal_conv1d(x, self.weight[:, 0], self.bias, activation="silu", backend="mix")

    return train(Mixed(), x)


def cases() -> dict[str, Case]:
    from fla.modules import ShortConvolution
    from mamba_ssm import Mamba, Mamba2

    def mamba(**options: Any) -> Callable[[], torch.nn.Module]:
        return lambda: Mamba(16, d_state=8, layer_idx=0, **options)

    def mamba2(**options: Any) -> Callable[[], torch.nn.Module]:
        return lambda: Mamba2(32, d_state=16, headdim=16, chunk_size=16, layer_idx=0, **options)

    def fla(**options: Any) -> Callable[[], torch.nn.Module]:
        return lambda: ShortConvolution(24, 4, bias=True, backend="cuda", **options)

    inner = ("causal_conv1d_states_fwd", "causal_conv1d_bwd_out")  # of an autograd function of their own
    function = ("causal_conv1d_fn", "causal_conv1d_bwd")
    prefill_and_steps = ("causal_conv1d_fn", "causal_conv1d_update")
    return {
        "mamba": Case(mamba(), train, inner),
        "mamba-unfused": Case(mamba(use_fast_path=False), train, function),
        "mamba-decode": Case(mamba(), decode, prefill_and_steps),
        "mamba2": Case(mamba2(ngroups=2, d_ssm=32), train, inner),
        "mamba2-packed": Case(mamba2(), train_packed, inner),
        "mamba2-unfused": Case(mamba2(use_mem_eff_path=False), train, function),
        "mamba2-decode": Case(mamba2(ngroups=2), decode, prefill_and_steps),
        "mamba2-varlen": Case(mamba2(), decode_packed, prefill_and_steps),
        "fla": Case(fla(), train, function),
        "fla-packed": Case(fla(activation=None), train_packed_fla, function),
        "fla-decode": Case(fla(), decode_fla, prefill_and_steps),
        "fla-mix": Case(fla(), train_mixed_fla, ("causal_conv1d_bwd_out",)),
    }


# ---- running -----------------------------------------------------------------------------------------------------------------


def error_of(found: Results, expected: Results) -> tuple[float, str]:
    """The largest error as a share of the largest value of a tensor, and of which;
    infinite where shapes differ or a value is NaN.
    """
    assert found.keys() == expected.keys()

    def of(name: str) -> float:
        a, b = found[name].float(), expected[name].float()
        if a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()) or not b.any():
            return float("inf")
        return ((a - b).abs().max() / b.abs().max()).item()

    return max((of(name), name) for name in expected)


def run(case: Case, device: torch.device, dtype: torch.dtype) -> tuple[float, str, Calls, list[str]]:
    """The largest error, where it is, the operators that hipconv's run took, and what is wrong."""
    torch.manual_seed(0)
    module: Any = case.module().to(device=device, dtype=dtype)
    width = module.d_model if hasattr(module, "d_model") else module.hidden_size
    x = torch.randn(2, 11, width, device=device, dtype=dtype)
    found = case.use(module, x)
    with Calls() as ours:
        case.use(module, x)
    with plain_torch(), Calls() as torch_s:
        expected = case.use(module, x)
    error, where = error_of(found, expected)
    lacking = [name for name in case.operators if not ours.count[f"hipconv::{name}"]]
    wrong = [f"{where} is off"] if error > BOUNDS[dtype] else []
    wrong += [f"hipconv::{name} was not called" for name in lacking]
    wrong += ["torch's convolution was called"] if ours.count["aten::convolution"] else []
    wrong += ["hipconv was called by plain torch"] if any(name.startswith("hipconv::") for name in torch_s.count) else []
    return error, where, ours, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=list_of(str), nargs="+", default=[[""]], help="those that begin with this; default all")
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[["float32"]], help="default float32")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here, help="default %(default)s")
    parser.add_argument(
        "--directory", type=Path, help="keep what is fetched here, and look here first (default: a temporary one)"
    )
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        sys.path.append(str(sdist(directory, MAMBA, skips_build="MAMBA_SKIP_CUDA_BUILD")))
        provide(directory, "einops", fla=FLA)
        if importlib.util.find_spec("triton") is None:
            provide(directory, triton=TRITON)
        os.environ["TRITON_F32_DEFAULT"] = "ieee"  # or products of f32 would be rounded to tf32
        torch.backends.cudnn.allow_tf32 = False
        if options.device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
            torch.set_num_threads(1)
            stand_in_for_a_gpu()
        take_one_configuration(0 if options.device == "cpu" else -1)  # the last is small enough for every card
        stand_in()
        hipconv.install_as_causal_conv1d()

        table = Table(
            [("case", 16), ("dtype", 8), ("largest error", 13), ("of", 12), ("operators of hipconv", 60), ("s", 5), ("", 4)]
        )
        failed = 0
        for name, case in cases().items():
            if not any(name.startswith(start) for start in flattened(options.case)):
                continue
            for dtype in flattened(options.dtype):
                started = time.perf_counter()
                error, where, ours, wrong = run(case, torch.device(options.device), DTYPES[dtype])
                called = ", ".join(
                    f"{count} {op.partition('::')[2]}" for op, count in ours.count.items() if op.startswith("hipconv::")
                )
                seconds = f"{time.perf_counter() - started:.0f}"
                table.row(name, dtype, f"{error:.1e}", where, called, seconds, "; ".join(wrong) or "ok")
                failed += bool(wrong)
    return 1 if failed else 0
