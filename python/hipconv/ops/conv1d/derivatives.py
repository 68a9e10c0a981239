"""The derivatives of ``torch.ops.hipconv.causal_conv1d_fn`` and ``causal_conv1d_bwd``, in both directions and of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import library
from ..transforms import SingleLevelFunction, apply, on_autograd_key, primals, wants_derivative
from . import operators  # noqa: F401  they are defined there

# Let C(x, s; w) be the convolution without bias and activation, s being the initial states: linear in (x, s), and in w. Its
# derivatives are C of tangents, and `causal_conv1d_bwd` without an activation, which is linear in dout, and in (x, s) or in w;
# the derivatives of that are C and itself once more. So the formulas below, which call the operators, can be differentiated as
# often as anyone likes. In them 16-bit tensors are widened to float32: a sum of terms is rounded once.


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


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None, initial_states: Tensor | None,
    dfinal_states: Tensor | None, wants_initial: bool, use_silu: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The derivatives with respect to x, weight, bias and initial_states, by the operator, which can be differentiated."""
    dx, dweight, dbias, dinitial_states = torch.ops.hipconv.causal_conv1d_bwd.default(
        x, weight, bias, dout, seq_idx, initial_states, dfinal_states, wants_initial, use_silu
    )
    return dx, dweight, None if bias is None else dbias, dinitial_states if wants_initial else None


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
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        dfinal_states = dfinal_states if ctx.return_final_states else None
        wants_initial = ctx.needs_input_grad[5]
        dx, dweight, dbias, dinitial_states = gradients(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states, wants_initial, ctx.use_silu
        )
        return None, dx, dweight, dbias, None, dinitial_states, None, None

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
        gdinitial = (
            None if initial_states is None else gdinitial if ctx.gives_dinitial_states else torch.zeros_like(initial_states)
        )
        of_inputs, gdfinal = _convolve(gdx, weight, gdbias if ctx.has_bias else None, seq_idx, gdinitial, ctx.has_dfinal)
        of_weight = _convolve(x, gdweight, None, seq_idx, initial_states)[0]
        gx, gweight, _, ginitial = _convolve_bwd(
            gdx, gdweight, None, dout, seq_idx, gdinitial, None, initial_states is not None
        )
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
    below,
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


on_autograd_key(library, "causal_conv1d_fn", _fn_on_autograd)
on_autograd_key(library, "causal_conv1d_bwd", _bwd_on_autograd)
