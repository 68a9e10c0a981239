"""The differentiable operators: a causal conv1d of rows that continue from states or hold packed sequences, and its backward.

``torch.ops.hipconv.causal_conv1d_fn`` is functional and has its gradient registered; ``causal_conv1d_bwd`` and its form that writes into
a given dx are what it calls. Their implementations run where the tensors are; float64 is served on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ... import jit
from ...jit import targets
from ..dispatch import _library, _refuse_mixed_devices, kernels_for, stream
from ..transforms import (
    SingleLevelFunction,
    apply,
    fold,
    on_autograd_key,
    on_vmap,
    one_by_one,
    primals,
    untouched_by_autocast,
    wants_derivative,
    write_through_negation,
)

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

for _operator in ("causal_conv1d_fn", "causal_conv1d_bwd", "causal_conv1d_bwd_out", "causal_conv1d_states_fwd"):
    untouched_by_autocast(_library, _operator)
    write_through_negation(_library, _operator)


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
    if seq_idx is None and initial_states is None and not return_final_states:
        out = _past_everything(x, weight, bias, use_silu)
        if out is not None:
            return out, None
    out = torch.empty_like(x)
    final_states = _new_states(x, weight) if return_final_states else None
    _forward(out, final_states, x, weight, bias, seq_idx, initial_states, use_silu)
    return out, final_states


def _past_everything(x: Tensor, weight: Tensor, bias: Tensor | None, use_silu: bool) -> Tensor | None:
    """Rows without states, straight from the kernel; None if somebody looks on, or it does not serve them."""
    kernels = None if x.dtype == torch.float64 else kernels_for("causal_conv1d", x)
    return None if kernels is None else kernels.causal_conv1d_directly(x, weight, bias, use_silu, "auto")


_question: Callable[..., bool] | None = None


def _nobody_looks_on(*tensors: Tensor | None) -> bool:
    """Whether torch's dispatcher has nothing to do for these, as any loaded module knows. Autograd is not asked."""
    global _question
    if is_dynamo_compiling():
        return False
    if _question is None:  # of the first call of a process
        kernels = None if tensors[0] is None else kernels_for("causal_conv1d", tensors[0])
        if kernels is None:
            return False
        _question = kernels.nothing_looks_on
    return _question(*tensors)


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
    states = {"final_states_out": final_states_out, "initial_states": initial_states}
    _refuse_mixed_devices(x, out=out, weight=weight, bias=bias, seq_idx=seq_idx, **states)


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


def _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states):
    states = {"initial_states": initial_states, "dfinal_states": dfinal_states}
    _refuse_mixed_devices(x, weight=weight, bias=bias, dout=dout, seq_idx=seq_idx, **states)
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
    rest = _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states)
    return torch.empty_like(x), *rest


@torch.library.register_fake("hipconv::causal_conv1d_bwd_out", lib=_library)
def _causal_conv1d_bwd_out_fake(
    dx, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    _refuse_mixed_devices(x, dx=dx)
    return _gradients_of_parameters(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states)


# ---- derivatives -------------------------------------------------------------------------------------------------------------------

# Let C(x, s; w) be the convolution without bias and activation, s being the initial states: linear in (x, s), and in w. Its derivatives
# are C of tangents, and `causal_conv1d_bwd` without an activation, which is linear in dout, and in (x, s) or in w; the derivatives of
# that are C and itself once more. So the formulas below, which call the operators, can be differentiated as often as anyone likes. In
# them 16-bit tensors are widened to float32: a sum of terms is rounded once.


def _wide(tensor: Tensor | None) -> Any:
    return tensor.float() if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _or_zeros(tensor: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tensor is None else tensor


def _convolve(x, weight, bias, seq_idx, initial_states, return_final_states=False):
    return torch.ops.hipconv.causal_conv1d_fn.default(
        _wide(x), _wide(weight), _wide(bias), seq_idx, _wide(initial_states), return_final_states, False
    )


def _convolve_bwd(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states):
    wide = (_wide(t) for t in (x, weight, bias, dout, seq_idx, initial_states, dfinal_states))
    return torch.ops.hipconv.causal_conv1d_bwd.default(*wide, return_dinitial_states, False)


def _silu_slope(x, weight, bias, seq_idx, initial_states):
    """The derivative of SiLU at what it was applied to."""
    before = _convolve(x, weight, bias, seq_idx, initial_states)[0]
    s = torch.sigmoid(before)
    return s * (1 + before * (1 - s))


def _gradients(ctx: Any, dout: Tensor, dfinal_states: Tensor | None, wants_initial: bool) -> tuple[Tensor | None, ...]:
    x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
    dx, dweight, dbias, dinitial_states = torch.ops.hipconv.causal_conv1d_bwd.default(
        x, weight, bias, dout, seq_idx, initial_states, dfinal_states if ctx.return_final_states else None, wants_initial, ctx.use_silu
    )
    return dx, dweight, None if bias is None else dbias, None, dinitial_states if wants_initial else None, None, None


class _Forward(SingleLevelFunction):
    """The derivatives of ``causal_conv1d_fn``."""

    @staticmethod
    def forward(ctx, below, x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
        ctx.return_final_states, ctx.use_silu = return_final_states, use_silu
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.save_for_forward(x, weight, bias, seq_idx, initial_states)
        out, final_states = below(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        if not return_final_states:
            ctx.mark_non_differentiable(final_states)
        return out, final_states

    @staticmethod
    def backward(ctx, dout, dfinal_states):
        return None, *_gradients(ctx, dout, dfinal_states, ctx.needs_input_grad[5])

    @staticmethod
    def jvp(ctx, _below, tx, tweight, tbias, _seq_idx, tinitial, *_):
        with primals(*ctx.saved_tensors) as (x, weight, bias, seq_idx, initial_states):
            wants_final = ctx.return_final_states and (tx is not None or tinitial is not None)
            before, tfinal = None, None
            if tx is not None or tinitial is not None:
                tinitial = None if initial_states is None else _or_zeros(tinitial, initial_states)
                before, tfinal = _convolve(_or_zeros(tx, x), weight, tbias, seq_idx, tinitial, wants_final)
                tbias = None
            if tweight is not None or tbias is not None:
                of_weight = _convolve(x, _or_zeros(tweight, weight), tbias, seq_idx, initial_states)[0]
                before = of_weight if before is None else before + of_weight
            if ctx.use_silu:
                before = before * _silu_slope(x, weight, bias, seq_idx, initial_states)
            return before.to(x.dtype), tfinal.to(x.dtype) if wants_final else None


class _Backward(SingleLevelFunction):
    """The derivatives of ``causal_conv1d_bwd`` without an activation."""

    @staticmethod
    def forward(ctx, below, x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states):
        ctx.has_bias, ctx.has_dfinal = bias is not None and bias.numel() > 0, dfinal_states is not None
        ctx.gives_dinitial_states = return_dinitial_states and initial_states is not None
        ctx.save_for_backward(x, weight, bias, dout, seq_idx, initial_states)
        ctx.save_for_forward(x, weight, bias, dout, seq_idx, initial_states)
        dx, dweight, dbias, dinitial_states = below(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, False
        )
        nothing = [*([] if ctx.has_bias else [dbias]), *([] if ctx.gives_dinitial_states else [dinitial_states])]
        ctx.mark_non_differentiable(*nothing)
        return dx, dweight, dbias, dinitial_states

    @staticmethod
    def backward(ctx, gdx, gdweight, gdbias, gdinitial):
        x, weight, _, dout, seq_idx, initial_states = ctx.saved_tensors
        gdinitial = None if initial_states is None else gdinitial if ctx.gives_dinitial_states else torch.zeros_like(initial_states)
        of_inputs, gdfinal = _convolve(gdx, weight, gdbias if ctx.has_bias else None, seq_idx, gdinitial, ctx.has_dfinal)
        of_weight = _convolve(x, gdweight, None, seq_idx, initial_states)[0]
        gx, gweight, _, ginitial = _convolve_bwd(gdx, gdweight, None, dout, seq_idx, gdinitial, None, initial_states is not None)
        return (
            None, gx.to(x.dtype), gweight.to(weight.dtype), None, (of_inputs + of_weight).to(dout.dtype), None,
            None if initial_states is None else ginitial.to(x.dtype), gdfinal.to(x.dtype) if ctx.has_dfinal else None, None,
        )  # fmt: skip

    @staticmethod
    def jvp(ctx, _below, tx, tweight, _tbias, tdout, _seq_idx, tinitial, tdfinal, _):
        with primals(*ctx.saved_tensors) as (x, weight, bias, dout, seq_idx, initial_states):
            terms = []
            if tx is not None or tweight is not None or tinitial is not None:
                tinitial = None if initial_states is None else _or_zeros(tinitial, initial_states)
                inputs = _or_zeros(tx, x), _or_zeros(tweight, weight), None
                terms.append(_convolve_bwd(*inputs, dout, seq_idx, tinitial, None, ctx.gives_dinitial_states))
            if tdout is not None or tdfinal is not None:
                grads = _or_zeros(tdout, dout), seq_idx, initial_states, tdfinal
                terms.append(_convolve_bwd(x, weight, bias, *grads, ctx.gives_dinitial_states))
            dtypes = x.dtype, weight.dtype, bias.dtype if ctx.has_bias else None, x.dtype if ctx.gives_dinitial_states else None
            tangents: list[Tensor | None] = []
            for dtype, *parts in zip(dtypes, *terms, strict=True):
                parts = [part for part in parts if part.dim() > 1 or part.numel()]  # an empty one stands for nothing
                tangents.append(None if dtype is None or not parts else sum(parts[1:], parts[0]).to(dtype))
            return tuple(tangents)


def _fn_on_autograd(below, x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    arguments = (x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
    return apply(_Forward, below, *arguments) if wants_derivative(x, weight, bias, initial_states) else below(*arguments)


def _bwd_on_autograd(
    below, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False, use_silu=False, *,
    kernel_name="auto",
):  # fmt: skip
    tensors = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)
    if not wants_derivative(x, weight, bias, dout, initial_states, dfinal_states):
        return below(*tensors, return_dinitial_states, use_silu, kernel_name=kernel_name)
    if kernel_name != "auto":
        raise ValueError(f"kernel_name: got '{kernel_name}' where a gradient is differentiated again, expected 'auto'")
    if not use_silu:
        return apply(_Backward, below, *tensors, return_dinitial_states)
    dbefore = _wide(dout) * _silu_slope(x, weight, bias, seq_idx, initial_states)
    dx, dweight, dbias, dinitial = _convolve_bwd(
        x, weight, bias, dbefore, seq_idx, initial_states, dfinal_states, return_dinitial_states
    )  # fmt: skip
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(x.dtype if bias is None else bias.dtype), dinitial.to(x.dtype)


on_autograd_key(_library, "causal_conv1d_fn", _fn_on_autograd)
on_autograd_key(_library, "causal_conv1d_bwd", _bwd_on_autograd)


# ---- vmap --------------------------------------------------------------------------------------------------------------------------


def _unfolded(tensor: Tensor, axis: int, size: int) -> tuple[Tensor, int | None]:
    """A result whose axis was folded, and where vmap finds its own; an empty one stands for nothing."""
    if tensor.dim() == 1 and tensor.numel() == 0:
        return tensor, None
    return tensor.unflatten(axis, (size, tensor.shape[axis] // size if size else 0)), axis


def _fn_on_vmap(size, in_dims, x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False):
    dims = (*in_dims, None, None, None)[:5]

    def call(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.ops.hipconv.causal_conv1d_fn.default(*tensors, return_final_states, use_silu)

    same_filters = dims[1] is None and dims[2] is None
    if not same_filters and dims[3] is not None:  # folded channels have one row of ids
        return one_by_one(call, size, dims, x, weight, bias, seq_idx, initial_states)
    into = 0 if same_filters else 1
    if not same_filters:
        weight, bias = fold(weight, dims[1], size, 0), fold(bias, dims[2], size, 0)
    ids = fold(seq_idx, dims[3], size, 0) if same_filters else seq_idx
    results = call(fold(x, dims[0], size, into), weight, bias, ids, fold(initial_states, dims[4], size, into))
    out, final_states = (_unfolded(result, into, size) for result in results)
    return (out[0], final_states[0]), (out[1], final_states[1])


def _bwd_on_vmap(
    size, in_dims, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False,
    use_silu=False, *, kernel_name="auto",
):  # fmt: skip
    dims = (*in_dims, None, None, None)[:7]
    tensors = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)

    def call(*tensors: Tensor | None) -> tuple[Tensor, ...]:
        return torch.ops.hipconv.causal_conv1d_bwd.default(*tensors, return_dinitial_states, use_silu, kernel_name=kernel_name)

    if dims[4] is not None:
        return one_by_one(call, size, dims, *tensors)
    axes = (1, 0, 0, 1, None, 1, 1)  # gradients of parameters are sums over the batch, and each one's own
    folded = [t if axis is None else fold(t, dim, size, axis) for t, dim, axis in zip(tensors, dims, axes, strict=True)]
    results = [_unfolded(result, axis, size) for result, axis in zip(call(*folded), (1, 0, 0, 1), strict=True)]
    return tuple(result for result, _ in results), tuple(dim for _, dim in results)


on_vmap(_library, "causal_conv1d_fn", _fn_on_vmap)
on_vmap(_library, "causal_conv1d_bwd", _bwd_on_vmap)


# ---- the way in --------------------------------------------------------------------------------------------------------------------


class _CausalConv1d(torch.autograd.Function):
    """The same without torch's dispatcher, which takes longer to come here than all the rest of a call (40 us against 6)."""

    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.return_final_states, ctx.use_silu = return_final_states, use_silu
        return _forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)

    @staticmethod
    def backward(ctx, dout, dfinal_states):
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        wants_initial = ctx.needs_input_grad[4]
        if torch.is_grad_enabled() or not _nobody_looks_on(dout, dfinal_states):
            return _gradients(ctx, dout, dfinal_states, wants_initial)  # with create_graph=True, or where somebody looks on
        module = jit.module("causal_conv1d_bwd", targets.of(x.device))
        dx, dweight, dbias, dinitial_states = module.causal_conv1d_bwd(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states if ctx.return_final_states else None, None, wants_initial,
            ctx.use_silu, "auto", stream(x),
        )  # fmt: skip
        return dx, dweight, dbias, None, dinitial_states, None, None


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
    tensors = (x, weight, bias, seq_idx, initial_states)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, initial_states)):
        if _nobody_looks_on(*tensors):
            return _CausalConv1d.apply(*tensors, return_final_states, use_silu)
    elif seq_idx is None and initial_states is None and not return_final_states:
        out = _past_everything(x, weight, bias, use_silu)
        if out is not None:
            return out, None
    elif _nobody_looks_on(*tensors):
        return _forward_new(*tensors, return_final_states, use_silu)
    out, final_states = torch.ops.hipconv.causal_conv1d_fn.default(*tensors, return_final_states, use_silu)
    return out, final_states if return_final_states else None
