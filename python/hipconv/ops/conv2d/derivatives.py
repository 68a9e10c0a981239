"""The derivatives of ``torch.ops.hipconv.conv2d``: torch's own convolution backward, what comes before and after it,
and `torch.vmap`.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import torch
from torch import Tensor

from ..dispatch import fake, library
from ..filters import recorded
from ..transforms import SingleLevelFunction, apply, fold, on_autograd_key, on_vmap, primals, wants_derivative, without_autocast
from .activations import gradient, read_by_gradient
from .geometry import Options
from .operators import options_of, with_padding


class _Conv2d(SingleLevelFunction):
    @staticmethod
    def forward(ctx, below, x, weight, bias, residual, geometry, choices):
        ctx.options = options_of(*geometry, choices["padding_mode"], choices["activation"])
        ctx.choices = {name: choices[name] for name in ("algorithm", "workspace_limit", "float32_precision")}
        with recorded():
            output = below(x, weight, bias, residual, *geometry, **choices)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (bias, residual)]
        ctx.save_for_backward(x, weight, *read_by_gradient(ctx.options.activation, bias, residual, output))
        ctx.save_for_forward(x, weight, bias, residual, output)
        return output

    @staticmethod
    def backward(ctx, dout):
        return None, *_gradients(ctx, dout, ctx.needs_input_grad[1:5]), None, None

    @staticmethod
    def jvp(ctx, _below, tx, tweight, tbias, tresidual, *_):
        """A convolution is linear in x, bias and residual, and in weight, bias and residual."""
        with primals(*ctx.saved_tensors) as (x, weight, bias, residual, out):
            tsum = tresidual
            for convolved, filters in ((tx, weight), (x, tweight)):
                if convolved is not None and filters is not None:
                    tsum = _sums(ctx, convolved, filters, tbias, tsum)
                    tbias = None
            if tbias is not None:
                tsum = tbias[:, None, None].float() + (0 if tsum is None else tsum)
            before = functools.partial(_sums, ctx, x, weight, bias, residual)
            return gradient(ctx.options.activation, tsum.expand(out.shape).to(torch.float32), out, before).to(out.dtype)


def _sums(
    ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Compute what the call sums up, of tensors in the place of its own; no autocast touches them."""
    o: Options = ctx.options
    with without_autocast():
        return torch.ops.hipconv.conv2d.default(
            x, weight, bias, residual, *o[:4], padding_mode=o.padding_mode, out_dtype=dtype, **ctx.choices
        )


def _gradients(ctx: Any, dout: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    saved = x, weight, *_ = ctx.saved_tensors  # once: torch.utils.checkpoint gives each of them out once
    o: Options = ctx.options
    bias_dtype, residual_dtype = ctx.dtypes
    wants_x, wants_weight, wants_bias, wants_residual = wanted
    dsum = gradient_of_sums(ctx, saved, dout)
    dx = dweight = None
    if wants_x or wants_weight:
        traced = type(dout) is not Tensor or torch._C._len_torch_dispatch_stack() > 0
        by = torch.ops.hipconv.conv2d_bwd.default if traced and not torch.is_grad_enabled() else convolution_backward
        dx, dweight = by(dsum, x, weight, *o[:4], o.padding_mode, wants_x, wants_weight)
    dbias = dsum.sum((0, 2, 3), dtype=bias_dtype) if wants_bias else None
    return (
        dx if wants_x else None,
        dweight if wants_weight else None,
        dbias,
        dsum.to(residual_dtype) if wants_residual else None,
    )


def gradient_of_sums(recorded: Any, saved: Sequence[Any], dout: Tensor) -> Tensor:
    """The gradient before the activation. `recorded` has the options and choices of a call, and `saved` are its x, weight, and
    what `read_by_gradient` says of its bias, residual and out.
    """
    x, weight, bias, residual, out = saved
    before = functools.partial(_sums, recorded, x, weight, bias, residual, dout.dtype)
    return gradient(recorded.options.activation, dout, out, before)


def convolution_backward(dsum, x, weight, stride, padding, dilation, groups, padding_mode, wants_x, wants_weight):
    """The gradients of x and weight, each None if it is not wanted: torch's own, differentiable."""
    o = options_of(stride, padding, dilation, groups, padding_mode, "none")
    padded, both_sides = with_padding(x, o)
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dsum.to(x.dtype),
        padded,
        weight,
        None,
        o.stride,
        both_sides,
        o.dilation,
        False,
        (0, 0),
        o.groups,
        (wants_x, wants_weight, False),
    )
    return dx if dx is None or padded is x else _unpadded(dx, x, o), dweight


# For graphs: inductor cannot work out the strides of padded images whose sizes are symbols.
library.define(
    "conv2d_bwd(Tensor dsum, Tensor x, Tensor weight, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, "
    "str padding_mode, bool wants_x, bool wants_weight) -> (Tensor dx, Tensor dweight)"
)


@torch.library.impl(library, "conv2d_bwd", "CompositeExplicitAutograd")
def _conv2d_bwd(dsum, x, weight, *options):
    with torch.no_grad():
        gradients = convolution_backward(dsum, x, weight, *options)
        empty = _conv2d_bwd_fake(dsum, x, weight, *options)
        return tuple(
            e if g is None else g if g.stride() == e.stride() else e.copy_(g) for g, e in zip(gradients, empty, strict=True)
        )


@fake("conv2d_bwd")
def _conv2d_bwd_fake(dsum, x, weight, stride, padding, dilation, groups, padding_mode, wants_x, wants_weight):
    return torch.empty_like(x) if wants_x else x.new_empty(0), torch.empty_like(weight) if wants_weight else x.new_empty(0)


def _unpadded(dpadded: Tensor, x: Tensor, o: Options) -> Tensor:
    """The gradient of x from that of x padded."""
    top, bottom, left, right = o.padding
    if o.padding_mode == "reflect":
        return torch.ops.aten.reflection_pad2d_backward(dpadded, x, (left, right, top, bottom))
    if o.padding_mode == "replicate":
        return torch.ops.aten.replication_pad2d_backward(dpadded, x, (left, right, top, bottom))
    for axis, before, after in ((2, top, bottom), (3, left, right)):
        size = x.shape[axis]
        inside = dpadded.narrow(axis, before, size)
        if o.padding_mode == "circular":
            inside = inside.clone()
            inside.narrow(axis, size - before, before).add_(dpadded.narrow(axis, 0, before))
            inside.narrow(axis, 0, after).add_(dpadded.narrow(axis, before + size, after))
        dpadded = inside
    return dpadded


def _on_autograd(below, x, weight, bias, residual, *geometry, **choices):
    if not wants_derivative(x, weight, bias, residual):
        return below(x, weight, bias, residual, *geometry, **choices)
    # The dispatcher leaves out what equals its default.
    return apply(_Conv2d, below, x, weight, bias, residual, geometry, {**_DEFAULTS, **choices})


_DEFAULTS = {a.name: a.default_value for a in torch.ops.hipconv.conv2d.default._schema.arguments if a.kwarg_only}
on_autograd_key(library, "conv2d", _on_autograd)


# ---- vmap --------------------------------------------------------------------------------------------------------------------


def _on_vmap(size, in_dims, x, weight, bias, residual, stride, padding, dilation, groups, **choices):
    same_filters = in_dims[1] is None and in_dims[2] is None
    if same_filters:
        folded = fold(x, in_dims[0], size, 0), weight, bias, fold(residual, in_dims[3], size, 0)
    else:  # one group, or set of groups, for each
        folded = tuple(
            fold(t, dim, size, into) for t, dim, into in zip((x, weight, bias, residual), in_dims, (1, 0, 0, 1), strict=False)
        )
        groups = groups * size
    result = torch.ops.hipconv.conv2d.default(*folded, stride, padding, dilation, groups, **choices)
    into = 0 if same_filters else 1
    return result.unflatten(into, (size, result.shape[into] // size)), into


on_vmap(library, "conv2d", _on_vmap)
