"""The derivatives of ``torch.ops.hipconv.conv3d``: torch's own convolution backward, what comes before and after it,
and `torch.vmap`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..conv2d.activations import gradient, read_by_gradient
from ..dispatch import library
from ..filters import recorded
from ..transforms import SingleLevelFunction, apply, fold, on_autograd_key, on_vmap, primals, wants_derivative, without_autocast
from .geometry import Options
from .operators import options_of
from .padding import padded, sequence, unpadded

_MODES = ("time_padding", "padding_mode", "activation")


class _Conv3d(SingleLevelFunction):
    @staticmethod
    def forward(ctx, below, x, weight, bias, residual, cache, geometry, choices):
        ctx.options = options_of(*geometry, *(choices[name] for name in _MODES))
        ctx.choices = {name: choices[name] for name in ("algorithm", "workspace_limit", "float32_precision")}
        with recorded():
            output = below(x, weight, bias, residual, cache, *geometry, **choices)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (bias, residual)]
        ctx.save_for_backward(x, weight, cache, *read_by_gradient(ctx.options.activation, bias, residual, output))
        ctx.save_for_forward(x, weight, bias, residual, cache, output)
        return output

    @staticmethod
    def backward(ctx, dout):
        x, weight, cache, bias, residual, out = ctx.saved_tensors
        o: Options = ctx.options
        bias_dtype, residual_dtype = ctx.dtypes
        wants_x, wants_weight, wants_bias, wants_residual, wants_cache = ctx.needs_input_grad[1:6]
        before = functools.partial(_sums, ctx, x, weight, bias, residual, cache, dout.dtype)
        dsum = gradient(o.activation, dout, out, before)
        dx = dweight = dcache = None
        if wants_x or wants_cache or wants_weight:
            dframes, dweight = _convolution_backward(dsum, x, weight, cache, o, wants_x or wants_cache, wants_weight)
            cached = 0 if cache is None else cache.shape[2]
            if dframes is not None:
                dx = dframes.narrow(2, cached, x.shape[2]) if wants_x else None
                dcache = dframes.narrow(2, 0, cached) if wants_cache else None
        dbias = dsum.sum((0, 2, 3, 4), dtype=bias_dtype) if wants_bias else None
        return None, dx, dweight, dbias, dsum.to(residual_dtype) if wants_residual else None, dcache, None, None

    @staticmethod
    def jvp(ctx, _below, tx, tweight, tbias, tresidual, tcache, *_):
        """A convolution is linear in x with its cache, bias and residual, and in weight, bias and residual."""
        with primals(*ctx.saved_tensors) as (x, weight, bias, residual, cache, out):
            tsum = tresidual
            ways = []
            if tx is not None or tcache is not None:
                frames = torch.zeros_like(x) if tx is None else tx
                ways.append((frames, weight, torch.zeros_like(cache) if tcache is None and cache is not None else tcache))
            if tweight is not None:
                ways.append((x, tweight, cache))
            for frames, filters, earlier in ways:
                tsum = _sums(ctx, frames, filters, tbias, tsum, earlier)
                tbias = None
            if tbias is not None:
                tsum = tbias[:, None, None, None].float() + (0 if tsum is None else tsum)
            before = functools.partial(_sums, ctx, x, weight, bias, residual, cache)
            return gradient(ctx.options.activation, tsum.expand(out.shape).to(torch.float32), out, before).to(out.dtype)


def _sums(
    ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, cache: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """Compute what the call sums up, of tensors in the place of its own; no autocast touches them."""
    o: Options = ctx.options
    with without_autocast():
        return torch.ops.hipconv.conv3d.default(
            x, weight, bias, residual, cache, *o[:4], time_padding=o.time_padding, padding_mode=o.padding_mode, out_dtype=dtype,
            **ctx.choices,
        )  # fmt: skip


def _convolution_backward(
    dsum: Tensor, x: Tensor, weight: Tensor, cache: Tensor | None, o: Options, wants_frames: bool, wants_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the sequence, cache and x, and of weight, each None if it is not wanted: torch's own, differentiable."""
    taps, cached = weight.shape[2], 0 if cache is None else cache.shape[2]
    frames = sequence(x, cache)
    volume, both_sides = padded(frames, o, taps, cached)
    dvolume, dweight, _ = torch.ops.aten.convolution_backward(
        dsum.to(x.dtype), volume, weight, None, o.stride, both_sides, o.dilation, False, (0, 0, 0), o.groups,
        (wants_frames, wants_weight, False),
    )  # fmt: skip
    return dvolume if dvolume is None else unpadded(dvolume, frames.shape, o, taps, cached), dweight


def _on_autograd(below, x, weight, bias, residual, cache, *geometry, **choices):
    if not wants_derivative(x, weight, bias, residual, cache):
        return below(x, weight, bias, residual, cache, *geometry, **choices)
    # The dispatcher leaves out what equals its default.
    return apply(_Conv3d, below, x, weight, bias, residual, cache, geometry, {**_DEFAULTS, **choices})


_DEFAULTS = {a.name: a.default_value for a in torch.ops.hipconv.conv3d.default._schema.arguments if a.kwarg_only}
on_autograd_key(library, "conv3d", _on_autograd)


# ---- vmap --------------------------------------------------------------------------------------------------------------------


def _on_vmap(size, in_dims, x, weight, bias, residual, cache, stride, padding, dilation, groups, **choices):
    same_filters = in_dims[1] is None and in_dims[2] is None
    into = 0 if same_filters else 1  # one group, or set of groups, for each
    folded = [fold(t, dim, size, into) for t, dim in ((x, in_dims[0]), (residual, in_dims[3]), (cache, in_dims[4]))]
    filters = (weight, bias) if same_filters else (fold(weight, in_dims[1], size, 0), fold(bias, in_dims[2], size, 0))
    groups = groups if same_filters else groups * size
    result = torch.ops.hipconv.conv3d.default(
        folded[0], *filters, folded[1], folded[2], stride, padding, dilation, groups, **choices
    )
    return result.unflatten(into, (size, result.shape[into] // size)), into


on_vmap(library, "conv3d", _on_vmap)
