"""The torch operators of conv2d: ``torch.ops.hipconv.conv2d``, functional and differentiable, and ``conv2d_out``, which writes.

On a GPU (and with simt) they run the kernels; on the CPU torch's own convolution, which oneDNN computes, and the rest of the formula.
Gradients are torch's own convolution backward's.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import os
from typing import Any

import torch
from torch import Tensor
import torch.nn.functional as F

from ...jit import targets
from ..dispatch import kernels_for, library, refuse_derivatives, refuse_derivatives_of_torch_func, stream
from ..transforms import (
    SingleLevelFunction,
    apply,
    cast_by_autocast,
    fold,
    on_autograd_key,
    on_vmap,
    primals,
    wants_derivative,
    without_autocast,
    write_through_negation,
)
from . import calls, geometry, router
from .activations import ACTIVATIONS, ROUNDED_FIRST, gradient
from .calls import Request
from .geometry import Options

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? residual, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, "
    "str padding_mode='zeros', str activation='none', ScalarType? out_dtype=None, str algorithm='auto', "
    f"SymInt workspace_limit={router.WORKSPACE_LIMIT}"
)
library.define(f"conv2d({_ARGUMENTS}) -> Tensor")
library.define(f"conv2d_out(Tensor(a!) out, {_ARGUMENTS}) -> ()")


def _options(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str, activation: str):
    """Of an operator's arguments: what `geometry.options` makes of the public function's, checked there again."""
    if len(stride) != 2 or len(padding) != 4 or len(dilation) != 2:
        raise ValueError(f"stride, padding, dilation: got {stride}, {padding}, {dilation}, expected 2, 4 and 2 integers")
    return geometry.options((1, 1), tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode, activation)


# ---- the way in -------------------------------------------------------------------------------------------------------------------


_calls: dict[tuple, Any] = {}  # prepared, by all that they depend on


def run(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None, o: Options,
    out_dtype: torch.dtype | None, algorithm: str, workspace_limit: int,
) -> Tensor:  # fmt: skip
    """What `hipconv.conv2d` does with images in batches: past the operator, where nothing looks on, or through it."""
    inputs = (x, weight, bias, residual)
    wants_gradient = torch.is_grad_enabled() and (
        x.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
        or (out is not None and out.requires_grad)
    )
    kernels = None if wants_gradient else kernels_for("conv2d", *inputs, out)
    if kernels is not None and (key := kernels.conv2d_key(*inputs, out)) is not None:
        alike = (kernels, key, o, out_dtype, algorithm, workspace_limit)
        call = _calls.get(alike)
        if call is None:
            request = Request(out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit)
            if len(_calls) >= 4096:
                _calls.clear()
            call = _calls[alike] = calls.prepared(*inputs, out, o, request)[1].call
        if out is None:
            return kernels.conv2d(*inputs, call, stream(x))
        kernels.conv2d_out(out, *inputs, call, stream(x))
        return out
    geometry = (o.stride, o.padding, o.dilation, o.groups)
    choices = {"out_dtype": out_dtype, "algorithm": algorithm, "workspace_limit": workspace_limit}
    if out is None:
        return torch.ops.hipconv.conv2d.default(*inputs, *geometry, padding_mode=o.padding_mode, activation=o.activation, **choices)
    refuse_derivatives_of_torch_func(out=out, x=x, weight=weight, bias=bias, residual=residual)
    torch.ops.hipconv.conv2d_out.default(out, *inputs, *geometry, padding_mode=o.padding_mode, activation=o.activation, **choices)
    return out


# ---- forward -----------------------------------------------------------------------------------------------------------------------


@torch.library.impl(library, "conv2d", "CompositeExplicitAutograd")
def _conv2d(
    x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None,
    algorithm="auto", workspace_limit=router.WORKSPACE_LIMIT,
):  # fmt: skip
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    with torch.no_grad():
        return new_tensor(x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit)


@torch.library.impl(library, "conv2d_out", "CompositeExplicitAutograd")
def _conv2d_out(
    out, x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None,
    algorithm="auto", workspace_limit=router.WORKSPACE_LIMIT,
):  # fmt: skip
    refuse_derivatives(out=out, x=x, weight=weight, bias=bias, residual=residual)
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    into(out, x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit)


def new_tensor(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, out_dtype: torch.dtype | None, algorithm: str,
    workspace_limit: int,
) -> Tensor:  # fmt: skip
    """The result; no gradient is recorded."""
    geometry.check_places(x, weight=weight, bias=bias, residual=residual)
    request = Request(out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit)
    if not on_cpu(x):
        module, prepared = calls.prepared(x, weight, bias, residual, None, o, request)
        return module.conv2d(x, weight, bias, residual, prepared.call, stream(x))
    shape = geometry.check(x, weight, bias, residual, None, out_dtype, o)
    router.requested(algorithm, request.variable, [router.CPU_METHOD])
    empty = geometry.new_result(x, weight, shape, out_dtype)
    if 0 in shape:
        return empty
    result = _by_torch(x, weight, bias, residual, o, empty.dtype)
    return result if result.stride() == empty.stride() else empty.copy_(result)


def into(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, out_dtype: torch.dtype | None,
    algorithm: str, workspace_limit: int,
) -> None:  # fmt: skip
    """The result into `out`."""
    geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    request = Request(out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit)
    if not on_cpu(x):
        module, prepared = calls.prepared(x, weight, bias, residual, out, o, request)
        module.conv2d_out(out, x, weight, bias, residual, prepared.call, stream(x))
        return
    shape = geometry.check(x, weight, bias, residual, out, out_dtype, o)
    router.requested(algorithm, request.variable, [router.CPU_METHOD])
    if 0 not in shape:
        out.copy_(_by_torch(x, weight, bias, residual, o, out.dtype))


def on_cpu(x: Tensor) -> bool:
    """Whether torch computes it, not the kernels."""
    return x.device.type == "cpu" and targets.of(x.device).backend == "cpu"


def _fake(
    x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None, out=None, **_
):  # fmt: skip
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    for size in weight.shape[2:]:
        int(size)  # where it is a symbol, this fixes it: inductor fails over results whose size has two of them
    shape = geometry.check(x, weight, bias, residual, out, out_dtype, o)
    return geometry.new_result(x, weight, shape, out_dtype)


def _fake_out(out, *arguments, **options):
    _fake(*arguments, out=out, **options)


torch.library.register_fake("hipconv::conv2d", _fake, lib=library)
torch.library.register_fake("hipconv::conv2d_out", _fake_out, lib=library)


# ---- by torch ----------------------------------------------------------------------------------------------------------------------


def _padded(x: Tensor, o: Options) -> tuple[Tensor, tuple[int, int]]:
    """x with the padding that a convolution cannot do by itself, and the rest of it."""
    top, bottom, left, right = o.padding
    if o.padding_mode == "zeros" and top == bottom and left == right:
        return x, (top, left)
    if not any(o.padding):
        return x, (0, 0)
    return F.pad(x, (left, right, top, bottom), mode="constant" if o.padding_mode == "zeros" else o.padding_mode), (0, 0)


@functools.cache
def _fast_on_cpu(dtype: torch.dtype) -> bool:
    """Whether oneDNN convolves in `dtype` here; torch's own loops, which take over where it does not, are many times slower than f32."""
    supports = {torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported, torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported}
    return dtype == torch.float32 or supports[dtype]()


def _by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, dtype: torch.dtype) -> Tensor:
    """Rounded once: in 16 bits only if nothing but an exact activation follows, and if the processor is fast at it."""
    exact = o.activation in ROUNDED_FIRST and residual is None and dtype == x.dtype and (bias is None or bias.dtype == dtype)
    if not (exact and _fast_on_cpu(dtype)):
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    x, padding = _padded(x, o)
    result = torch.conv2d(x, weight, bias, o.stride, padding, o.dilation, o.groups)
    if residual is not None:
        result = result.add_(residual)
    return ACTIVATIONS[o.activation](result).to(dtype)


# ---- derivatives -------------------------------------------------------------------------------------------------------------------


class _Conv2d(SingleLevelFunction):
    @staticmethod
    def forward(ctx, below, x, weight, bias, residual, geometry, choices):
        ctx.options = _options(*geometry, choices["padding_mode"], choices["activation"])
        ctx.choices = {name: choices[name] for name in ("algorithm", "workspace_limit")}
        output = below(x, weight, bias, residual, *geometry, **choices)
        ctx.save_for_backward(x, weight, bias, residual, output)
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


def _sums(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the call sums up, of tensors in the place of its own; no autocast touches them."""
    o: Options = ctx.options
    with without_autocast():
        return torch.ops.hipconv.conv2d.default(
            x, weight, bias, residual, *o[:4], padding_mode=o.padding_mode, out_dtype=dtype, **ctx.choices
        )


def _gradients(ctx: Any, dout: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    x, weight, bias, residual, out = ctx.saved_tensors
    o: Options = ctx.options
    wants_x, wants_weight, wants_bias, wants_residual = wanted
    dsum = gradient(o.activation, dout, out, functools.partial(_sums, ctx, x, weight, bias, residual, dout.dtype))
    dx = dweight = None
    if wants_x or wants_weight:
        traced = type(dout) is not Tensor or torch._C._len_torch_dispatch_stack() > 0
        by = torch.ops.hipconv.conv2d_bwd.default if traced and not torch.is_grad_enabled() else _convolution_backward
        dx, dweight = by(dsum, x, weight, *o[:4], o.padding_mode, wants_x, wants_weight)
    dbias = dsum.sum((0, 2, 3), dtype=bias.dtype) if wants_bias else None
    return dx if wants_x else None, dweight if wants_weight else None, dbias, dsum.to(residual.dtype) if wants_residual else None


def _convolution_backward(dsum, x, weight, stride, padding, dilation, groups, padding_mode, wants_x, wants_weight):
    """The gradients of x and weight, each None if it is not wanted: torch's own, differentiable."""
    o = _options(stride, padding, dilation, groups, padding_mode, "none")
    padded, both_sides = _padded(x, o)
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dsum.to(x.dtype), padded, weight, None, o.stride, both_sides, o.dilation, False, (0, 0), o.groups, (wants_x, wants_weight, False)
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
        gradients = _convolution_backward(dsum, x, weight, *options)
        empty = _conv2d_bwd_fake(dsum, x, weight, *options)
        return tuple(e if g is None else g if g.stride() == e.stride() else e.copy_(g) for g, e in zip(gradients, empty, strict=True))


@torch.library.register_fake("hipconv::conv2d_bwd", lib=library)
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


# ---- vmap, autocast, lazy negation -------------------------------------------------------------------------------------------------


def _on_vmap(size, in_dims, x, weight, bias, residual, stride, padding, dilation, groups, **choices):
    same_filters = in_dims[1] is None and in_dims[2] is None
    if same_filters:
        folded = fold(x, in_dims[0], size, 0), weight, bias, fold(residual, in_dims[3], size, 0)
    else:  # one group, or set of groups, for each
        folded = tuple(fold(t, dim, size, into) for t, dim, into in zip((x, weight, bias, residual), in_dims, (1, 0, 0, 1), strict=False))
        groups = groups * size
    result = torch.ops.hipconv.conv2d.default(*folded, stride, padding, dilation, groups, **choices)
    into = 0 if same_filters else 1
    return result.unflatten(into, (size, result.shape[into] // size)), into


on_vmap(library, "conv2d", _on_vmap)
cast_by_autocast(library, "conv2d", ("x", "weight", "bias", "residual"))
cast_by_autocast(library, "conv2d_out", ("x", "weight", "bias", "residual"))
write_through_negation(library, "conv2d_out")
