"""The torch operators of the causal conv1d of rows: schemas, implementations, fakes.

``torch.ops.hipconv.causal_conv1d_fwd`` writes into a given tensor; ``causal_conv1d`` returns a new one. ``causal_conv1d_fn``,
of rows that continue from states or hold packed sequences, is functional and differentiable; ``causal_conv1d_bwd`` and its form
that writes into a given dx are what its gradient calls. They run where the tensors are; float64 is served on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ..dispatch import fake, kernels_for, library, refuse_derivatives, refuse_mixed_devices, stream
from ..fakes import check_inputs
from ..transforms import untouched_by_autocast, write_through_negation

# (`kernel_name`: inductor cannot lower an operator with an argument called `kernel`.)
library.define(
    "causal_conv1d_fwd(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str "
    "kernel_name='auto') -> ()"
)
library.define(
    "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str kernel_name='auto') -> Tensor"
)


def _check_fakes(x: Tensor, weight: Tensor, bias: Tensor | None, may_be_double: bool, **others: Tensor | None) -> None:
    refuse_mixed_devices(x, weight=weight, bias=bias, **others)
    check_inputs(x, (3,), "(batch, dim, seqlen)", 1, weight, bias, may_be_double)


@torch.library.impl(library, "causal_conv1d_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_fwd(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel_name: str = "auto"
):
    refuse_derivatives(out=out, x=x, weight=weight, bias=bias)
    module = jit.module("causal_conv1d", targets.of(x.device))
    module.causal_conv1d_fwd(out, x, weight, bias, use_silu, kernel_name, stream(x))


@fake("causal_conv1d_fwd")
def _causal_conv1d_fwd_fake(out, x, weight, bias=None, use_silu=False, *, kernel_name="auto"):
    _check_fakes(x, weight, bias, False, out=out)


@torch.library.impl(library, "causal_conv1d", "CompositeExplicitAutograd")
def _causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel_name: str = "auto"):
    module = jit.module("causal_conv1d", targets.of(x.device))
    return module.causal_conv1d(x, weight, bias, use_silu, kernel_name, stream(x))


@fake("causal_conv1d")
def _causal_conv1d_fake(x, weight, bias=None, use_silu=False, *, kernel_name="auto"):
    _check_fakes(x, weight, bias, False)
    return torch.empty_like(x)


# ---- rows with states: forward -----------------------------------------------------------------------------------------------

_INPUTS = "Tensor x, Tensor weight, Tensor? bias"
_STATES = "Tensor? seq_idx=None, Tensor? initial_states=None"

library.define(
    f"causal_conv1d_fn({_INPUTS}=None, {_STATES}, bool return_final_states=False, bool use_silu=False) -> (Tensor out, Tensor "
    f"final_states)"
)
_BACKWARD = (
    f"{_INPUTS}, Tensor dout, {_STATES}, Tensor? dfinal_states=None, bool return_dinitial_states=False, bool use_silu=False"
)
library.define(
    f"causal_conv1d_bwd({_BACKWARD}, *, str kernel_name='auto') -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor "
    f"dinitial_states)"
)
library.define(
    f"causal_conv1d_bwd_out(Tensor(a!) dx, {_BACKWARD}, *, str kernel_name='auto') "
    "-> (Tensor dweight, Tensor dbias, Tensor dinitial_states)"
)
library.define(
    f"causal_conv1d_states_fwd(Tensor(a!) out, Tensor(b!)? final_states_out, {_INPUTS}=None, {_STATES}, bool use_silu=False) "
    f"-> ()"
)


def _forward(
    out: Tensor,
    final_states: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    use_silu: bool,
) -> None:
    module = jit.module("causal_conv1d", targets.of(x.device))
    module.causal_conv1d_rows_fwd(out, final_states, x, weight, bias, seq_idx, initial_states, use_silu, stream(x))


def forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
    """`_forward` into new tensors, where autograd has no part."""
    if seq_idx is None and initial_states is None and not return_final_states:
        out = past_everything(x, weight, bias, use_silu)
        if out is not None:
            return out, None
    out = torch.empty_like(x)
    final_states = _new_states(x, weight) if return_final_states else None
    _forward(out, final_states, x, weight, bias, seq_idx, initial_states, use_silu)
    return out, final_states


def past_everything(
    x: Tensor, weight: Tensor, bias: Tensor | None, use_silu: bool, record: Callable[..., Tensor] | None = None
) -> Tensor | None:
    """Rows without states, straight from the kernel, or where a gradient is wanted, from `record`.
    None if somebody looks on, or neither serves them.
    """
    kernels = None if x.dtype == torch.float64 else kernels_for("causal_conv1d", x)
    return None if kernels is None else kernels.causal_conv1d_directly(x, weight, bias, use_silu, "auto", record)


def _new_states(x: Tensor, weight: Tensor) -> Tensor:
    """(batch, dim, width - 1), channels inside, as the peer lays them out."""
    return x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[1]).transpose(1, 2)


@torch.library.impl(library, "causal_conv1d_fn", "CompositeExplicitAutograd")
def _causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    with torch.no_grad():
        out, final_states = forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        return out, x.new_empty(0) if final_states is None else final_states


@fake("causal_conv1d_fn")
def _causal_conv1d_fn_fake(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    _check_fakes(x, weight, bias, True, seq_idx=seq_idx, initial_states=initial_states)
    return torch.empty_like(x), _new_states(x, weight) if return_final_states else x.new_empty(0)


@torch.library.impl(library, "causal_conv1d_states_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_states_fwd(out, final_states_out, x, weight, bias=None, seq_idx=None, initial_states=None, use_silu=False):
    with torch.no_grad():
        _forward(out, final_states_out, x, weight, bias, seq_idx, initial_states, use_silu)


@fake("causal_conv1d_states_fwd")
def _causal_conv1d_states_fwd_fake(
    out, final_states_out, x, weight, bias=None, seq_idx=None, initial_states=None, use_silu=False
):
    states = {"final_states_out": final_states_out, "initial_states": initial_states}
    _check_fakes(x, weight, bias, True, out=out, seq_idx=seq_idx, **states)


# ---- backward ----------------------------------------------------------------------------------------------------------------


def _backward(dx, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel):
    module = jit.module("causal_conv1d_bwd", targets.of(x.device))
    with torch.no_grad():
        dx, dweight, dbias, dinitial_states = module.causal_conv1d_bwd(
            x,
            weight,
            bias,
            dout,
            seq_idx,
            initial_states,
            dfinal_states,
            dx,
            return_dinitial_states,
            use_silu,
            kernel,
            stream(x),
        )
        nothing = x.new_empty(0)
        return dx, dweight, nothing if dbias is None else dbias, nothing.clone() if dinitial_states is None else dinitial_states


@torch.library.impl(library, "causal_conv1d_bwd", "CompositeExplicitAutograd")
def _causal_conv1d_bwd(
    x,
    weight,
    bias,
    dout,
    seq_idx=None,
    initial_states=None,
    dfinal_states=None,
    return_dinitial_states=False,
    use_silu=False,
    *,
    kernel_name="auto",
):
    return _backward(
        None, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel_name
    )


@torch.library.impl(library, "causal_conv1d_bwd_out", "CompositeExplicitAutograd")
def _causal_conv1d_bwd_out(
    dx,
    x,
    weight,
    bias,
    dout,
    seq_idx=None,
    initial_states=None,
    dfinal_states=None,
    return_dinitial_states=False,
    use_silu=False,
    *,
    kernel_name="auto",
):
    return _backward(
        dx, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel_name
    )[1:]


def _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states):
    states = {"initial_states": initial_states, "dfinal_states": dfinal_states}
    refuse_mixed_devices(x, weight=weight, bias=bias, dout=dout, seq_idx=seq_idx, **states)
    nothing = x.new_empty(0)
    return (
        weight.new_empty(weight.shape),
        nothing if bias is None or bias.numel() == 0 else bias.new_empty(bias.shape),
        _new_states(x, weight) if return_dinitial_states and initial_states is not None else x.new_empty(0),
    )


@fake("causal_conv1d_bwd")
def _causal_conv1d_bwd_fake(
    x,
    weight,
    bias,
    dout,
    seq_idx=None,
    initial_states=None,
    dfinal_states=None,
    return_dinitial_states=False,
    use_silu=False,
    *,
    kernel_name="auto",
):
    rest = _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states)
    return torch.empty_like(x), *rest


@fake("causal_conv1d_bwd_out")
def _causal_conv1d_bwd_out_fake(
    dx,
    x,
    weight,
    bias,
    dout,
    seq_idx=None,
    initial_states=None,
    dfinal_states=None,
    return_dinitial_states=False,
    use_silu=False,
    *,
    kernel_name="auto",
):
    refuse_mixed_devices(x, dx=dx)
    return _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states)


for _operator in (
    "causal_conv1d_fwd",
    "causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_bwd",
    "causal_conv1d_bwd_out",
    "causal_conv1d_states_fwd",
):
    untouched_by_autocast(library, _operator)
    write_through_negation(library, _operator)
