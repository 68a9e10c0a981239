"""The differentiable operators: a causal conv1d of rows that continue from states or hold packed sequences, and its backward.

``torch.ops.hipconv.causal_conv1d_fn`` is functional and has its gradient registered; ``causal_conv1d_bwd`` and its form that writes into
a given dx are what it calls. Their implementations run where the tensors are; float64 is served on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import jit, targets
from .torch_ops import _library, _refuse_mixed_devices, kernels_for, stream

_INPUTS = "Tensor x, Tensor weight, Tensor? bias"
_STATES = "Tensor? seq_idx=None, Tensor? initial_states=None"

_library.define(
    f"causal_conv1d_fn({_INPUTS}=None, {_STATES}, bool return_final_states=False, bool use_silu=False) -> (Tensor out, Tensor final_states)"
)
_BACKWARD = f"{_INPUTS}, Tensor dout, {_STATES}, Tensor? dfinal_states=None, bool return_dinitial_states=False, bool use_silu=False"
_library.define(
    f"causal_conv1d_bwd({_BACKWARD}, *, str kernel_name='auto') -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_states)"
)
_library.define(
    f"causal_conv1d_bwd_out(Tensor(a!) dx, {_BACKWARD}, *, str kernel_name='auto') "
    "-> (Tensor dweight, Tensor dbias, Tensor dinitial_states)"
)
_library.define(
    f"causal_conv1d_states_fwd(Tensor(a!) out, Tensor(b!)? final_states_out, {_INPUTS}=None, {_STATES}, bool use_silu=False) -> ()"
)


# ---- forward -----------------------------------------------------------------------------------------------------------------------


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
    target = targets.of(x.device)

    def make_rows() -> None:
        """As if each were one sequence without a state."""
        jit.module("causal_conv1d", target).causal_conv1d_fwd(out, x, weight, bias, use_silu, "auto", stream(x))

    fast = None if x.dtype == torch.float64 else make_rows
    if seq_idx is None and initial_states is None and final_states is None and fast:
        fast()
    else:
        module = jit.module("causal_conv1d_states", target)
        module.causal_conv1d_states_fwd(out, final_states, x, weight, bias, seq_idx, initial_states, use_silu, fast, stream(x))


def _forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
    """`_forward` into new tensors, where autograd has no part."""
    if seq_idx is None and initial_states is None and not return_final_states and x.dtype != torch.float64:
        kernels = kernels_for("causal_conv1d", x)
        out = None if kernels is None else kernels.causal_conv1d_directly(x, weight, bias, use_silu, "auto")
        if out is not None:
            return out, None
    out = torch.empty_like(x)
    final_states = _new_states(x, weight) if return_final_states else None
    _forward(out, final_states, x, weight, bias, seq_idx, initial_states, use_silu)
    return out, final_states


def _new_states(x: Tensor, weight: Tensor) -> Tensor:
    """(batch, dim, width - 1), channels inside, as the peer lays them out."""
    return x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[1]).transpose(1, 2)


@torch.library.impl(_library, "causal_conv1d_fn", "CompositeExplicitAutograd")
def _causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    with torch.no_grad():
        out, final_states = _forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        return out, x.new_empty(0) if final_states is None else final_states


@torch.library.register_fake("hipconv::causal_conv1d_fn", lib=_library)
def _causal_conv1d_fn_fake(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    _refuse_mixed_devices(x, weight=weight, bias=bias, seq_idx=seq_idx, initial_states=initial_states)
    return torch.empty_like(x), _new_states(x, weight) if return_final_states else x.new_empty(0)


@torch.library.impl(_library, "causal_conv1d_states_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_states_fwd(out, final_states_out, x, weight, bias=None, seq_idx=None, initial_states=None, use_silu=False):
    with torch.no_grad():
        _forward(out, final_states_out, x, weight, bias, seq_idx, initial_states, use_silu)


@torch.library.register_fake("hipconv::causal_conv1d_states_fwd", lib=_library)
def _causal_conv1d_states_fwd_fake(out, final_states_out, x, weight, bias=None, seq_idx=None, initial_states=None, use_silu=False):
    _refuse_mixed_devices(x, out=out, weight=weight, bias=bias, final_states_out=final_states_out, initial_states=initial_states)


# ---- backward ----------------------------------------------------------------------------------------------------------------------


def _backward(dx, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel):
    module = jit.module("causal_conv1d_bwd", targets.of(x.device))
    with torch.no_grad():
        dx, dweight, dbias, dinitial_states = module.causal_conv1d_bwd(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, use_silu, kernel, stream(x)
        )
        nothing = x.new_empty(0)
        return dx, dweight, nothing if dbias is None else dbias, nothing.clone() if dinitial_states is None else dinitial_states


@torch.library.impl(_library, "causal_conv1d_bwd", "CompositeExplicitAutograd")
def _causal_conv1d_bwd(
    x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    return _backward(None, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel_name)


@torch.library.impl(_library, "causal_conv1d_bwd_out", "CompositeExplicitAutograd")
def _causal_conv1d_bwd_out(
    dx, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    return _backward(dx, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, use_silu, kernel_name)[1:]


def _gradients_of_parameters(x, weight, bias, dout, initial_states, dfinal_states, return_dinitial_states):
    _refuse_mixed_devices(x, weight=weight, bias=bias, dout=dout, initial_states=initial_states, dfinal_states=dfinal_states)
    nothing = x.new_empty(0)
    return (
        weight.new_empty(weight.shape),
        nothing if bias is None or bias.numel() == 0 else bias.new_empty(bias.shape),
        _new_states(x, weight) if return_dinitial_states and initial_states is not None else x.new_empty(0),
    )


@torch.library.register_fake("hipconv::causal_conv1d_bwd", lib=_library)
def _causal_conv1d_bwd_fake(
    x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    rest = _gradients_of_parameters(x, weight, bias, dout, initial_states, dfinal_states, return_dinitial_states)
    return torch.empty_like(x), *rest


@torch.library.register_fake("hipconv::causal_conv1d_bwd_out", lib=_library)
def _causal_conv1d_bwd_out_fake(
    dx, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    _refuse_mixed_devices(x, dx=dx)
    return _gradients_of_parameters(x, weight, bias, dout, initial_states, dfinal_states, return_dinitial_states)


# ---- autograd ----------------------------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, weight, bias, seq_idx, initial_states, ctx.return_final_states, ctx.use_silu = inputs
    ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)


def _gradients(ctx: Any, dout: Tensor, dfinal_states: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
    wants_initial = initial_states is not None and ctx.needs_input_grad[4]
    dx, dweight, dbias, dinitial_states = torch.ops.hipconv.causal_conv1d_bwd.default(
        x, weight, bias, dout, seq_idx, initial_states, dfinal_states if ctx.return_final_states else None, wants_initial, ctx.use_silu
    )
    return dx, dweight, None if bias is None else dbias, None, dinitial_states if wants_initial else None, None, None


def _refuse_double_backward(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise RuntimeError(
        "the gradient of hipconv's causal conv1d cannot be differentiated again: got a backward through it (create_graph=True, or a "
        "gradient penalty), expected first derivatives only. For second ones use torch.nn.functional.conv1d, or "
        "hipconv.reference_training.causal_conv1d."
    )


torch.library.register_autograd("hipconv::causal_conv1d_fn", _gradients, setup_context=_keep, lib=_library)
torch.library.register_autograd("hipconv::causal_conv1d_bwd", _refuse_double_backward, lib=_library)


class _CausalConv1d(torch.autograd.Function):
    """The same without torch's dispatcher, which takes longer to come here than all the rest of a call (40 us against 6)."""

    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.return_final_states, ctx.use_silu = return_final_states, use_silu
        return _forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)

    @staticmethod
    def backward(ctx, dout, dfinal_states):
        if torch.is_grad_enabled():  # with create_graph=True: what follows must find the operator that refuses
            return _gradients(ctx, dout, dfinal_states)
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        wants_initial = initial_states is not None and ctx.needs_input_grad[4]
        module = jit.module("causal_conv1d_bwd", targets.of(x.device))
        dx, dweight, dbias, dinitial_states = module.causal_conv1d_bwd(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states if ctx.return_final_states else None, None, wants_initial,
            ctx.use_silu, "auto", stream(x),
        )  # fmt: skip
        return dx, dweight, dbias, None, dinitial_states, None, None


def _nothing_looks_on(*tensors: Tensor | None) -> bool:
    """Whether these are plain tensors that no mode, transform, tracer or override watches."""
    for tensor in tensors:
        if tensor is not None and type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
    return not (
        is_dynamo_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or torch._C._len_torch_function_stack()
    )


def causal_conv1d_with_states(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    return_final_states: bool,
    use_silu: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output and, if asked for, the final states; a gradient is recorded where one is wanted."""
    if bias is not None and bias.numel() == 0:
        bias = None
    if not x.is_meta and _nothing_looks_on(x, weight, bias, seq_idx, initial_states):
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, initial_states))):
            return _forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        return _CausalConv1d.apply(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
    out, final_states = torch.ops.hipconv.causal_conv1d_fn.default(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
    return out, final_states if return_final_states else None
