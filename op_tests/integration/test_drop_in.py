"""hipconv in the place of Dao-AILab's causal-conv1d: names, signatures, semantics,
and taking its place in a running process.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from support import ROOT
from support.tensors import LAYOUTS, empty_as, mismatch
import hipconv
from hipconv import drop_in, reference_training
from hipconv.drop_in import causal_conv1d_cuda, causal_conv1d_interface, causal_conv1d_varlen, cpp_functions

fn: Any = drop_in.causal_conv1d_fn
update: Any = drop_in.causal_conv1d_update
interface: Any = causal_conv1d_interface
plain: Any = cpp_functions
varlen: Any = causal_conv1d_varlen
extension: Any = causal_conv1d_cuda

# From the original's 1.7.0; callers look these up by name.
SIGNATURES: dict[Any, str] = {
    causal_conv1d_interface.causal_conv1d_fn: (
        "x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, final_states_out=None, "
        "activation=None"
    ),
    causal_conv1d_interface.causal_conv1d_ref: (
        "x, weight, bias=None, initial_states=None, return_final_states=False, final_states_out=None, activation=None, "
        "seq_idx=None"
    ),
    causal_conv1d_interface.causal_conv1d_update: (
        "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None"
    ),
    causal_conv1d_interface.causal_conv1d_update_ref: "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None",
    cpp_functions.causal_conv1d_fwd_function: "x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation",
    cpp_functions.causal_conv1d_bwd_function: (
        "x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, silu_activation"
    ),
    cpp_functions.causal_conv1d_update_function: (
        "x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices"
    ),
    causal_conv1d_varlen.causal_conv1d_varlen_states: "x, cu_seqlens, state_len",
    causal_conv1d_varlen.causal_conv1d_varlen_states_ref: "x, cu_seqlens, state_len",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_signatures_are_the_originals(function) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters) == SIGNATURES[function]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def inputs(device: torch.device, layout: str = "channel_first", seqlen: int = 20, width: int = 4) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    x = empty_as(layout, (2, 8, seqlen), torch.float32, device).copy_(torch.randn(2, 8, seqlen))
    return x, torch.randn(8, width).to(device), torch.randn(8).to(device), torch.randn(2, 8, width - 1).to(device)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_plain_functions_are_what_autograd_calls(device: torch.device, layout: str) -> None:
    """As mamba_ssm's fused layers use them: dx goes into a slice of a wider gradient."""
    x, weight, bias, initial = inputs(device, layout)
    ids = torch.tensor([[0] * 9 + [1] * 11, [0] * 20], dtype=torch.int32, device=device)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias, initial)]
    out, final = fn(*leaves[:3], ids, leaves[3], True, activation="swish")
    dout, dfinal = torch.randn_like(out), torch.randn_like(final)
    expected = torch.autograd.grad([out, final], leaves, [dout, dfinal])

    state = torch.empty_like(final)
    assert torch.equal(plain.causal_conv1d_fwd_function(x, weight, bias, ids, initial, state, True), out)
    assert torch.equal(state, final)
    wide = torch.full((2, 20, 24), 42.0, device=device).transpose(1, 2)
    dx = wide[:, 8:16]
    found = plain.causal_conv1d_bwd_function(x, weight, bias, dout, ids, initial, dfinal, dx, True, True)
    assert found[0] is dx and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))
    assert (wide[:, :8] == 42).all() and (wide[:, 16:] == 42).all()
    found = plain.causal_conv1d_bwd_function(x, weight, None, dout, None, None, None, None, False, False)
    assert found[2:] == (None, None)


def test_the_extension_module_in_both_its_forms(device: torch.device) -> None:
    x, weight, bias, initial = inputs(device)
    out = extension.causal_conv1d_fwd(x, weight, bias, None, None, None, True)
    given = torch.empty_like(x)
    assert extension.causal_conv1d_fwd(x, weight, bias, None, None, given, None, True) is None
    assert torch.equal(given, out)
    dx, dweight, dbias, dinitial = extension.causal_conv1d_bwd(x, weight, bias, out, None, initial, None, None, True, True)
    into = [torch.zeros_like(t) for t in (dx, dweight, dbias, dinitial)]
    extension.causal_conv1d_bwd(x, weight, bias, out, None, initial, None, *into, True)
    assert all(map(torch.equal, into, (dx, dweight, dbias, dinitial)))
    states = [torch.zeros(2, 8, 4, device=device) for _ in range(2)]
    token = x[..., 0]
    out = extension.causal_conv1d_update(token, states[0], weight, bias, True, None, None)
    given = torch.empty_like(token)
    extension.causal_conv1d_update(token, states[1], weight, bias, given, True, None, None)
    assert torch.equal(given, out) and torch.equal(*states)


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("tokens", [None, 1, 3, 7])
def test_update_keeps_its_window_in_the_last_columns(device: torch.device, tokens: int | None, circular: bool) -> None:
    for state_len in (3, 5, 8):
        x, weight, bias, _ = inputs(device, seqlen=tokens or 1)
        x = x if tokens else x[..., 0]
        if circular and (tokens or 1) > state_len:
            continue
        pool = torch.randn(5, 8, state_len, device=device)
        slots = torch.tensor([3, -1], dtype=torch.int32, device=device)
        lengths = torch.tensor([2, 9], dtype=torch.int32, device=device) if circular else None
        expected_state = pool[[3, 0]].clone()
        expected = interface.causal_conv1d_update_ref(x, expected_state, weight, bias, "silu", lengths)
        before = pool.clone()
        out = update(x, pool, torch.nn.Parameter(weight), bias, "silu", lengths, slots)
        assert not out.requires_grad
        assert (wrong := mismatch(out[:1], expected[:1].double())) is None, wrong
        assert (out[1] == 0).all() and torch.equal(pool[3], expected_state[0])
        assert torch.equal(pool[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_varlen_states(device: torch.device) -> None:
    x = torch.randn(12, 6, device=device)
    starts = torch.tensor([0, 0, 1, 5, 12], dtype=torch.int32, device=device)
    for state_len in (1, 3, 9):
        states = varlen.causal_conv1d_varlen_states(x, starts, state_len)
        assert states.shape == (4, 6, state_len) and states.stride(1) == 1
        assert torch.equal(states, varlen.causal_conv1d_varlen_states_ref(x, starts, state_len))
        assert (states[0] == 0).all() and torch.equal(states[1, :, -1], x[0])
    assert varlen.causal_conv1d_varlen_states(x[:0], starts[:2], 3).shape == (1, 6, 3)


def test_references(device: torch.device) -> None:
    x, weight, bias, initial = inputs(device)
    out, final = interface.causal_conv1d_ref(x, weight, bias, initial, True, activation="silu")
    expected = reference_training.causal_conv1d(x, weight, bias, None, initial, True)
    assert torch.equal(out, expected[0].float()) and torch.equal(final, expected[1])


def test_errors_are_the_originals_kinds_too(device: torch.device) -> None:
    x, weight, bias, _ = inputs(device)
    for call in (lambda **o: fn(x, weight, **o), lambda **o: update(x, x, weight, **o)):
        with pytest.raises(NotImplementedError, match="activation: got 'gelu'"):
            call(activation="gelu")
    state = torch.zeros(2, 8, 3, device=device)
    bad: dict[str, dict[str, Any]] = {
        "seq_idx: got dtype": {"seq_idx": torch.zeros(2, 20, device=device)},
        "seq_idx: got shape": {"seq_idx": torch.zeros(2, 19, device=device, dtype=torch.int32)},
        "initial_states: got shape": {"initial_states": state[..., :2]},
        "final_states_out: got shape": {"return_final_states": True, "final_states_out": state[:1]},
        "final_states_out: got torch.float16": {"return_final_states": True, "final_states_out": state.half()},
        "bias: got shape": {"bias": bias[:3]},
    }
    for text, options in bad.items():
        with pytest.raises(RuntimeError, match=text):
            fn(x, weight, **options)
    with pytest.raises(RuntimeError, match="conv_state: got shape"):
        update(x, state[..., :1], weight)


def test_ids_on_another_device_are_refused() -> None:
    """torch comes to the operators' fakes when any tensor is on the meta device."""
    x, weight, _, _ = inputs(torch.device("cpu"))
    ids = torch.zeros(2, 20, dtype=torch.int32, device="meta")
    calls = (
        lambda: plain.causal_conv1d_fwd_function(x, weight, None, ids, None, None, True),
        lambda: plain.causal_conv1d_bwd_function(x, weight, None, x, ids, None, None, None, False, True),
        lambda: plain.causal_conv1d_bwd_function(x, weight, None, x, ids, None, None, x.clone(), False, True),
    )
    for call in calls:
        with pytest.raises(ValueError, match="seq_idx: got a tensor on meta, expected it on cpu"):
            call()


# ---- in a process of its own -------------------------------------------------------------------------------------------------

INSTALL = """
import importlib.metadata, importlib.util, sys, types, warnings
import hipconv

early = types.ModuleType("modeling_early")                 # imported before, without the package
early.causal_conv1d_fn = early.causal_conv1d_update = None
sys.modules["modeling_early"] = early
wrapping = types.ModuleType("modeling_wrapping")          # made its choice on import, behind a function of its own
wrapping.causal_conv1d_fn = wrapper = lambda *arguments: None
sys.modules["modeling_wrapping"] = wrapping
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert hipconv.install_as_causal_conv1d() == ["modeling_early"]
assert "modeling_early" in str(caught[0].message) and "modeling_wrapping" not in str(caught[0].message)
assert "modeling_wrapping" in str(caught[1].message) and wrapping.causal_conv1d_fn is wrapper and len(caught) == 2
assert early.causal_conv1d_fn is hipconv.causal_conv1d_fn

import causal_conv1d, causal_conv1d_cuda
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from causal_conv1d.cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function
assert causal_conv1d_fn is hipconv.causal_conv1d_fn
assert causal_conv1d.__version__ == importlib.metadata.version("causal-conv1d") == "1.7.0+hipconv"
assert importlib.util.find_spec("causal_conv1d") is not None and importlib.util.find_spec("causal_conv1d_cuda") is not None
with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert hipconv.install_as_causal_conv1d() == []         # again: nothing left to do
"""


def test_install_in_a_process_where_nothing_may_be_installed() -> None:
    done = subprocess.run([sys.executable, "-c", INSTALL], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr


def test_the_distribution_has_every_module() -> None:
    """compat/causal_conv1d on the path, as pip would put it there."""
    program = """
import causal_conv1d, causal_conv1d_cuda, hipconv
from causal_conv1d import causal_conv1d_interface, causal_conv1d_varlen, cpp_functions
assert causal_conv1d.__version__ == "1.7.0+hipconv"
assert causal_conv1d.causal_conv1d_fn is causal_conv1d_interface.causal_conv1d_fn is hipconv.causal_conv1d_fn
assert causal_conv1d.causal_conv1d_update is hipconv.causal_conv1d_update
assert cpp_functions.causal_conv1d_fwd_function.__module__ == "hipconv.drop_in.cpp_functions"
assert causal_conv1d_cuda.causal_conv1d_fwd and causal_conv1d_varlen.causal_conv1d_varlen_states
"""
    compat = ROOT / "compat" / "causal_conv1d"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=_environment(str(compat)))
    assert done.returncode == 0, done.stderr


def _environment(*more: str) -> dict[str, str]:
    paths = [str(Path(hipconv.__file__).parent.parent), *more]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
