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

from . import conv2d_calls, conv2d_geometry, conv2d_router, targets
from .conv2d_activations import ACTIVATIONS, ROUNDED_FIRST, gradient
from .conv2d_calls import Request
from .conv2d_geometry import Options
from .torch_ops import _library, _refuse_gradients, kernels_for, stream

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? residual, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, "
    "str padding_mode='zeros', str activation='none', ScalarType? out_dtype=None, str algorithm='auto', "
    f"SymInt workspace_limit={conv2d_router.WORKSPACE_LIMIT}"
)
_library.define(f"conv2d({_ARGUMENTS}) -> Tensor")
_library.define(f"conv2d_out(Tensor(a!) out, {_ARGUMENTS}) -> ()")


def _options(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str, activation: str):
    """Of an operator's arguments: what `conv2d_geometry.options` makes of the public function's, checked there again."""
    if len(stride) != 2 or len(padding) != 4 or len(dilation) != 2:
        raise ValueError(f"stride, padding, dilation: got {stride}, {padding}, {dilation}, expected 2, 4 and 2 integers")
    return conv2d_geometry.options((1, 1), tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode, activation)


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
            request = Request(out_dtype, algorithm, os.environ.get(conv2d_router.VARIABLE), workspace_limit)
            if len(_calls) >= 4096:
                _calls.clear()
            call = _calls[alike] = conv2d_calls.prepared(*inputs, out, o, request)[1].call
        if out is None:
            result = kernels.conv2d_directly(*inputs, call, stream(x))
            if result is not None:
                return result
        elif kernels.conv2d_out_directly(out, *inputs, call, stream(x)):
            return out
    geometry = (o.stride, o.padding, o.dilation, o.groups)
    choices = {"out_dtype": out_dtype, "algorithm": algorithm, "workspace_limit": workspace_limit}
    if out is None:
        return torch.ops.hipconv.conv2d.default(*inputs, *geometry, padding_mode=o.padding_mode, activation=o.activation, **choices)
    torch.ops.hipconv.conv2d_out.default(out, *inputs, *geometry, padding_mode=o.padding_mode, activation=o.activation, **choices)
    return out


# ---- forward -----------------------------------------------------------------------------------------------------------------------


@torch.library.impl(_library, "conv2d", "CompositeExplicitAutograd")
def _conv2d(
    x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None,
    algorithm="auto", workspace_limit=conv2d_router.WORKSPACE_LIMIT,
):  # fmt: skip
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    with torch.no_grad():
        return new_tensor(x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit)


@torch.library.impl(_library, "conv2d_out", "CompositeExplicitAutograd")
def _conv2d_out(
    out, x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None,
    algorithm="auto", workspace_limit=conv2d_router.WORKSPACE_LIMIT,
):  # fmt: skip
    if torch.is_grad_enabled():
        _refuse_gradients({"out": out, "x": x, "weight": weight, "bias": bias, "residual": residual})
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    into(out, x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit)


def new_tensor(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, out_dtype: torch.dtype | None, algorithm: str,
    workspace_limit: int,
) -> Tensor:  # fmt: skip
    """The result; no gradient is recorded."""
    conv2d_geometry.check_places(x, weight=weight, bias=bias, residual=residual)
    request = Request(out_dtype, algorithm, os.environ.get(conv2d_router.VARIABLE), workspace_limit)
    if not on_cpu(x):
        module, prepared = conv2d_calls.prepared(x, weight, bias, residual, None, o, request)
        return module.conv2d(x, weight, bias, residual, prepared.call, stream(x))
    shape = conv2d_geometry.check(x, weight, bias, residual, None, out_dtype, o)
    conv2d_router.requested(algorithm, request.variable, [conv2d_router.CPU_METHOD])
    empty = conv2d_geometry.new_result(x, weight, shape, out_dtype)
    if 0 in shape:
        return empty
    result = _by_torch(x, weight, bias, residual, o, empty.dtype)
    return result if result.stride() == empty.stride() else empty.copy_(result)


def into(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, out_dtype: torch.dtype | None,
    algorithm: str, workspace_limit: int,
) -> None:  # fmt: skip
    """The result into `out`."""
    conv2d_geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    request = Request(out_dtype, algorithm, os.environ.get(conv2d_router.VARIABLE), workspace_limit)
    if not on_cpu(x):
        module, prepared = conv2d_calls.prepared(x, weight, bias, residual, out, o, request)
        module.conv2d_out(out, x, weight, bias, residual, prepared.call, stream(x))
        return
    shape = conv2d_geometry.check(x, weight, bias, residual, out, out_dtype, o)
    conv2d_router.requested(algorithm, request.variable, [conv2d_router.CPU_METHOD])
    if 0 not in shape:
        out.copy_(_by_torch(x, weight, bias, residual, o, out.dtype))


def on_cpu(x: Tensor) -> bool:
    """Whether torch computes it, not the kernels."""
    return x.device.type == "cpu" and targets.of(x.device).backend == "cpu"


def _fake(
    x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None, out=None, **_
):  # fmt: skip
    o = _options(stride, padding, dilation, groups, padding_mode, activation)
    conv2d_geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    shape = conv2d_geometry.check(x, weight, bias, residual, out, out_dtype, o)
    return conv2d_geometry.new_result(x, weight, shape, out_dtype)


def _fake_out(out, *arguments, **options):
    _fake(*arguments, out=out, **options)


torch.library.register_fake("hipconv::conv2d", _fake, lib=_library)
torch.library.register_fake("hipconv::conv2d_out", _fake_out, lib=_library)


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


# ---- autograd ----------------------------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: dict[str, Any], output: Tensor) -> None:
    x, weight, bias, residual, *geometry = inputs
    stride, padding, dilation, groups = geometry
    ctx.options = _options(stride, padding, dilation, groups, keyword_only_inputs["padding_mode"], keyword_only_inputs["activation"])
    ctx.choices = {name: keyword_only_inputs[name] for name in ("algorithm", "workspace_limit")}
    ctx.save_for_backward(x, weight, bias, residual, output)


def _gradients(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, residual, out = ctx.saved_tensors
    o: Options = ctx.options
    wants_x, wants_weight, wants_bias, wants_residual = ctx.needs_input_grad[:4]

    def preactivation() -> Tensor:
        return torch.ops.hipconv.conv2d(x, weight, bias, residual, *o[:4], padding_mode=o.padding_mode, out_dtype=dout.dtype, **ctx.choices)

    dsum = gradient(o.activation, dout, out, preactivation)
    dx = dweight = None
    if wants_x or wants_weight:
        padded, padding = _padded(x, o)
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            dsum.to(x.dtype), padded, weight, None, o.stride, padding, o.dilation, False, (0, 0), o.groups, (wants_x, wants_weight, False)
        )
        if dx is not None and padded is not x:
            dx = _unpadded(dx, x, o)
    dbias = dsum.sum((0, 2, 3), dtype=bias.dtype) if wants_bias else None
    return dx, dweight, dbias, dsum.to(residual.dtype) if wants_residual else None, None, None, None, None


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


torch.library.register_autograd("hipconv::conv2d", _gradients, setup_context=_keep, lib=_library)
