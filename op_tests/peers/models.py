"""Time layers of transformers' Mamba, Mamba2 and Qwen3-Next on hipconv, on Dao-AILab's causal-conv1d and on plain torch.

    python op_tests/bench_models.py                               # on a GPU, layers of three models; without one tiny layers
    python op_tests/bench_models.py --layer mamba2 --use decode --configurations 4
    python op_tests/bench_models.py --directory peer              # fetched into peer/ once; a machine without network reads it
    there

A layer is what mixes tokens: projections, convolution, scan and norm. It trains on 4 sequences of 2048 tokens (forward and
backward), prefills a cache with one of 8192, and decodes a token for each of 128 rows. The same layer with the same weights
runs in each way, because the names of the convolution are bound anew in the modules that hold them, and results are compared:
output, gradients of the input and of each parameter, and steps after a prefill. Times are of graphs that take turns, so that
the host's time does not count; the convolution's own time is that of its kernels, by torch's profiler.

causal-conv1d and mamba_ssm come from PyPI as sources, of which torch's loader compiles for this card what bfloat16 needs;
flash-linear-attention's scan is in Triton. Triton's autotuner tries `--configurations` of each kernel, of which
there are too many for one sitting: what is not the convolution may take longer than it has to, in all ways alike. Tiny layers
run in float32 on transformers' own scans, and need no other package.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import importlib
import inspect
import json
import math
import os
from pathlib import Path
import sys
import tempfile
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from peers.layers import BOUNDS, FLA, MAMBA, Results, error_of, plain_twins
from peers.packages import provide, sdist
from peers.tests import SDIST
from support.cli import Table, choice_of, flattened, list_of
from support.timing import in_turn_us
import hipconv

WARM = 6  # tokens before the first step
COMPILED = [  # as the packages' own setup.py, but for one architecture
    "-O3",
    "--use_fast_math",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    *(f"-U__CUDA_NO_{kind}__" for kind in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS", "BFLOAT16_CONVERSIONS")),
    *(f"-U__CUDA_NO_BFLOAT162_{kind}__" for kind in ("OPERATORS", "CONVERSIONS")),
]

# By the folder of transformers/models: the kind of its configuration, and its sizes in the model named and in small.
LAYERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "mamba": (
        "mamba",
        "Mamba 2.8B",
        {"hidden_size": 2560, "state_size": 16},
        {"hidden_size": 16, "state_size": 8},
    ),
    "mamba2": (
        "mamba2",
        "Mamba2 2.7B",
        {"hidden_size": 2560, "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1, "chunk_size": 256},
        {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "qwen3_next": (
        "qwen3_next",
        "Qwen3-Next 80B",
        {"hidden_size": 2048, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
        | {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
        {"hidden_size": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
}  # fmt: skip
SHAPES = {"train": (4, 2048), "prefill": (1, 8192), "decode": (128, 1)}
SMALL = {"train": (2, 11), "prefill": (1, 11), "decode": (3, 1)}
CALLS = {"train": 2, "prefill": 4, "decode": 20}  # of a graph


# ---- ways --------------------------------------------------------------------------------------------------------------------


def compiled(name: str, sources: list[Path], directory: Path) -> ModuleType:
    """An extension module of another package, under its name.

    It is loaded lazily: what its binding names for types that were left out is found missing when it is called.
    """
    from torch.utils.cpp_extension import load

    os.environ["TORCH_CUDA_ARCH_LIST"] = "{}.{}".format(*torch.cuda.get_device_capability())
    folder = directory / "built" / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        sys.modules[name] = load(
            name,
            [str(file) for file in sources],
            extra_cflags=["-O3"],
            extra_cuda_cflags=COMPILED,
            extra_ldflags=["-Wl,-z,lazy"],
            build_directory=str(folder),
        )
    finally:
        sys.setdlopenflags(flags)
    return sys.modules[name]


def of_bfloat16(sources: Path, copy: Path) -> Path:
    """Copy sources without the template instances of other types, which take eight ninths of the compiler's time."""
    copy.mkdir(parents=True, exist_ok=True)
    for file in sources.iterdir():
        lines = file.read_text().splitlines(keepends=True)
        kept = (line for line in lines if not line.startswith("template void ") or "<at::BFloat16, at::BFloat16>" in line)
        (copy / file.name).write_text("".join(kept))
    return copy


def functions_of(modules: list[ModuleType]) -> dict[str, Callable]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("causal_conv1d_") and inspect.isroutine(value) and not name.endswith("_ref")
    }


def functions_here() -> dict[str, Callable]:
    """The functions that the package `causal_conv1d` of this moment gives to those that import it."""
    names = ("cpp_functions", "causal_conv1d_interface", "causal_conv1d_varlen")
    return functions_of([importlib.import_module(f"causal_conv1d.{name}") for name in names])


def ways(directory: Path | None) -> dict[str, dict[str, Callable]]:
    """The functions of each way by name; without a directory for packages, hipconv's and torch's alone."""
    found = {}
    if directory:
        folder = sdist(directory, SDIST, skips_build="CAUSAL_CONV1D_SKIP_CUDA_BUILD")
        sources = of_bfloat16(folder / "csrc", directory / "built" / "causal_conv1d_bfloat16")
        compiled("causal_conv1d_cuda", [sources / "causal_conv1d.cpp", *sorted(sources.glob("*.cu"))], directory)
        sys.path.insert(0, str(folder))
        found["causal-conv1d"] = functions_here()
        sys.path.remove(str(folder))
    hipconv.install_as_causal_conv1d()
    plain = {function.__name__: twin for function, twin in plain_twins().items()}
    return {"hipconv": functions_here(), **found, "torch": plain}


def provide_scans(directory: Path, with_mamba: bool) -> None:
    """Make mamba_ssm and flash-linear-attention importable; transformers looks for them when a model's module is imported."""
    folder = sdist(directory, MAMBA, skips_build="MAMBA_SKIP_CUDA_BUILD")
    sources = folder / "csrc" / "selective_scan"
    needed = ["selective_scan.cpp", "selective_scan_fwd_bf16.cu", "selective_scan_bwd_bf16_real.cu"]
    if with_mamba:
        compiled("selective_scan_cuda", [sources / name for name in needed], directory)
    else:
        sys.modules["selective_scan_cuda"] = ModuleType("selective_scan_cuda")
    sys.path.append(str(folder))
    provide(directory, "einops", fla=FLA)
    models: Any = ModuleType("mamba_ssm.models.mixer_seq_simple")  # whole models, which import more than is here
    models.MambaLMHeadModel = type("MambaLMHeadModel", (), {})
    sys.modules[models.__name__] = models
    for name in ("mamba_ssm", "fla"):  # transformers would go without one that does not import
        importlib.import_module(name)


def scans_that_train() -> dict[str, Callable]:
    """Qwen3-Next's scan in torch where flash-linear-attention refuses its backward, which Triton may make wrong on Hopper."""
    chunks = importlib.import_module("fla.ops.common.chunk_o")
    if not chunks.IS_NVIDIA_HOPPER or not chunks.TRITON_ABOVE_3_4_0 or chunks.TRITON_ABOVE_3_7_1:
        return {}
    name = "torch_chunk_gated_delta_rule"
    return {name: inspect.unwrap(vars(importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next"))[name])}


def try_few_configurations(count: int) -> None:
    """Let Triton's autotuner try `count` configurations of each kernel, from the one with the smallest tile, which fits every
    card, to the one with the largest; before the packages are imported.
    """
    autotuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    construct = autotuner.__init__

    def tile_of(config: Any) -> int:
        return config.num_stages * math.prod(size for size in config.kwargs.values() if isinstance(size, int))

    def with_few(self: Any, fn: Any, arg_names: Any, configs: Any, *args: Any, **options: Any) -> None:
        by_tile = sorted(configs or [], key=tile_of)
        last = len(by_tile) - 1
        chosen = sorted({round(number * last / max(1, count - 1)) for number in range(count)}) if by_tile else []
        construct(self, fn, arg_names, [by_tile[number] for number in chosen], *args, **options)

    autotuner.__init__ = with_few


@contextlib.contextmanager
def bound(functions: dict[str, Callable]) -> Iterator[None]:
    """transformers' modules and mamba_ssm's with these functions wherever they hold one of the name."""
    with pytest.MonkeyPatch.context() as patch:
        for place, module in list(sys.modules.items()):
            of_model = place.startswith("transformers.models.") and place.rpartition(".")[2].startswith("modeling_")
            if not of_model and place.partition(".")[0] != "mamba_ssm":
                continue
            for name in functions.keys() & vars(module).keys():
                patch.setattr(module, name, as_asked(functions[name]) if of_model else functions[name])
        yield


def as_asked(function: Callable) -> Callable:
    """As transformers calls it: with more than it takes."""
    taken = inspect.signature(function).parameters
    return lambda *arguments, **options: function(*arguments, **{name: options[name] for name in options.keys() & taken})


# ---- layers ------------------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    module: Any
    config: Any

    def cache(self) -> Any:
        import transformers

        return transformers.DynamicCache(config=self.config)


def layer_of(name: str, small: bool, device: torch.device, dtype: torch.dtype) -> Layer:
    """The layer that mixes tokens of a model of one layer."""
    import transformers

    kind, _, sizes, small_sizes = LAYERS[name]
    rest: dict[str, Any] = {"vocab_size": 16, "num_hidden_layers": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "qwen3_next":
        rest |= {"layer_types": ["linear_attention"], "mlp_only_layers": [0], "intermediate_size": 16}
    config = transformers.AutoConfig.for_model(kind, **rest, **(small_sizes if small else sizes))
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).to(device, dtype)
    return Layer(next(each for each in model.modules() if isinstance(getattr(each, "conv1d", None), torch.nn.Conv1d)), config)


def train(layer: Layer, x: Tensor, dout: Tensor) -> Results:
    layer.module.train()
    names, parameters = zip(*layer.module.named_parameters(), strict=True)
    x = x.detach().requires_grad_()
    out = layer.module(x)
    gradients = torch.autograd.grad(out, (x, *parameters), dout)
    return {"out": out.detach()} | dict(zip(("x", *names), gradients, strict=True))


@torch.no_grad()
def prefill(layer: Layer, x: Tensor) -> tuple[Tensor, Any]:
    layer.module.eval()
    cache = layer.cache()
    return layer.module(x, cache_params=cache), cache


@torch.no_grad()
def step(layer: Layer, x: Tensor, cache: Any) -> Tensor:
    return layer.module(x, cache_params=cache)


def results_of(use: str, layer: Layer, x: Tensor, dout: Tensor) -> Results:
    """The tensors that a use computes; a prefill with the next steps, which see its states."""
    if use == "train":
        return train(layer, x, dout)
    first, cache = prefill(layer, x if use == "prefill" else x.expand(-1, WARM, -1).contiguous())
    return {"prefill": first} | {f"step {number}": step(layer, x[:, :1] * (1 + number), cache).clone() for number in range(3)}


def call_of(use: str, layer: Layer, x: Tensor, dout: Tensor, functions: dict[str, Callable]) -> Callable[[], object]:
    """The call of a use that is timed."""
    with bound(functions):
        _, cache = prefill(layer, x[:, :1].expand(-1, WARM, -1).contiguous())
    plain = {
        "train": lambda: train(layer, x, dout),
        "prefill": lambda: prefill(layer, x),
        "decode": lambda: step(layer, x, cache),
    }[use]

    def call() -> object:
        with bound(functions):
            return plain()

    return call


def convolution_us(call: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of the convolution's kernels, which have conv1d in their names, and of all kernels of a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    own = [event.self_device_time_total for event in kernels if "conv1d" in event.key]
    return sum(own), sum(event.self_device_time_total for event in kernels)


# ---- running -----------------------------------------------------------------------------------------------------------------


def run(use: str, layer: Layer, x: Tensor, of_ways: dict[str, dict[str, Callable]]) -> dict[str, Any]:
    """Errors beside the last way but hipconv's own, microseconds, and on a GPU the convolution's."""
    dout = torch.randn_like(x)
    results = {}
    for way, functions in of_ways.items():
        with bound(functions):
            results[way] = results_of(use, layer, x, dout)
    errors = {way: error_of(results["hipconv"], results[way]) for way in of_ways if way != "hipconv"}
    calls = {way: call_of(use, layer, x, dout, functions) for way, functions in of_ways.items()}
    on_gpu = x.is_cuda
    count = CALLS[use] if on_gpu else 1
    times = in_turn_us([[call] * count for call in calls.values()], x.device, rounds=9 if on_gpu else 1)
    own = {way: convolution_us(call) for way, call in calls.items() if on_gpu and way != "torch"}
    return {"errors": errors, "us": dict(zip(calls, times, strict=True)), "convolution_us": own}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", type=list_of(choice_of(*LAYERS)), nargs="+", default=[list(LAYERS)])
    parser.add_argument("--use", type=list_of(choice_of(*SHAPES)), nargs="+", default=[list(SHAPES)])
    parser.add_argument("--small", action="store_true", help="tiny layers in float32, with no scan of other packages")
    parser.add_argument("--configurations", type=int, default=2, help="of each of Triton's kernels; here %(default)s")
    parser.add_argument(
        "--directory", type=Path, help="keep what is fetched here, and look here first (default: a temporary one)"
    )
    parser.add_argument("--json", type=Path, help="keep the numbers here")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small, layers = options.small or device.type == "cpu", flattened(options.layer)
    dtype = torch.float32 if small else torch.bfloat16
    torch.backends.cudnn.allow_tf32 = False

    with tempfile.TemporaryDirectory() as temporary:
        directory = None if small else (options.directory or Path(temporary)).resolve()
        if directory:
            try_few_configurations(options.configurations)
        of_ways = ways(directory)
        if directory:
            provide_scans(directory, "mamba" in layers)
        own_scans = scans_that_train() if directory and "qwen3_next" in layers else {}
        table = Table(
            [("layer", 15), ("use", 8), *((f"error to {way}", 8) for way in of_ways if way != "hipconv")]
            + [(f"{way} us", 8) for way in of_ways]
            + [(f"conv, {way} us", 8) for way in of_ways if way != "torch"]
            + [("share", 6), ("tokens/s", 9), ("", 4)]
        )
        kept, failed = [], 0
        for name in layers:
            layer = layer_of(name, small, device, dtype)
            for use in flattened(options.use):
                batch, tokens = (SMALL if small else SHAPES)[use]
                x = torch.randn(batch, tokens, layer.config.hidden_size, device=device, dtype=dtype)
                scans = own_scans if (name, use) == ("qwen3_next", "train") else {}
                found = run(use, layer, x, {way: functions | scans for way, functions in of_ways.items()})
                us, own = found["us"], found["convolution_us"]
                wrong = [f"{where} is off" for error, where in found["errors"].values() if not error <= BOUNDS[dtype]]
                failed += bool(wrong)
                table.row(
                    LAYERS[name][1],
                    use,
                    *(f"{error:.1e}" for error, _ in found["errors"].values()),
                    *(f"{us[way]:.1f}" for way in us),
                    *(f"{own[way][0]:.1f}" if own else "" for way in of_ways if way != "torch"),
                    f"{own['hipconv'][0] / own['hipconv'][1]:.1%}" if own else "",
                    f"{batch * tokens / us['hipconv'] * 1e6:.3g}",
                    "; ".join(wrong) or ("ok, its scan in torch" if scans else "ok"),
                )
                kept.append({"layer": name, "use": use, "shape": [batch, tokens], **found})
        if options.json:
            options.json.write_text(json.dumps(kept, indent=1))
    return 1 if failed else 0
