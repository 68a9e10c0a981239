"""The torch operators of conv3d: ``torch.ops.hipconv.conv3d``, functional and differentiable, and ``conv3d_out``, which writes.

On a GPU (and with simt) they run the kernels; on the CPU torch's own convolution and the rest of the formula.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...arguments import wrong_output
from .. import filters
from ..conv2d.activations import ACTIVATIONS, ROUNDED_FIRST
from ..conv2d.geometry import check_places
from ..conv2d.operators import fast_on_cpu, on_cpu, right_on_cpu
from ..dispatch import fake, library, refuse_derivatives, stream
from ..transforms import cast_by_autocast, write_through_negation
from . import calls, geometry, padding, router
from .calls import request_of
from .geometry import Options, Tensors

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? cache, SymInt[] stride, SymInt[] padding, SymInt[] "
    "dilation, "
    "SymInt groups, *, str? time_padding=None, str padding_mode='zeros', str activation='none', ScalarType? out_dtype=None, "
    f"str algorithm='auto', SymInt workspace_limit={router.WORKSPACE_LIMIT}, str? float32_precision=None"
)
library.define(f"conv3d({_ARGUMENTS}) -> Tensor")
library.define(f"conv3d_out(Tensor(a!) out, Tensor(b!)? cache_out, {_ARGUMENTS}) -> ()")


def options_of(
    stride: Sequence[int],
    sides: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    time_padding: str | None,
    padding_mode: str,
    activation: str,
) -> Options:
    """Make of an operator's arguments what `geometry.options` makes of the public function's, checked there again."""
    if len(stride) != 3 or len(sides) != 6 or len(dilation) != 3:
        raise ValueError(f"stride, padding, dilation: got {stride}, {sides}, {dilation}, expected 3, 6 and 3 integers")
    return geometry.options(
        (1, 1, 1), tuple(stride), tuple(sides), tuple(dilation), groups, time_padding, padding_mode, activation
    )


# ---- forward -----------------------------------------------------------------------------------------------------------------


@torch.library.impl(library, "conv3d", "CompositeExplicitAutograd")
def _conv3d(
    x,
    weight,
    bias,
    residual,
    cache,
    stride,
    padding,
    dilation,
    groups,
    *,
    time_padding=None,
    padding_mode="zeros",
    activation="none",
    out_dtype=None,
    algorithm="auto",
    workspace_limit=router.WORKSPACE_LIMIT,
    float32_precision=None,
):
    o = options_of(stride, padding, dilation, groups, time_padding, padding_mode, activation)
    check_places(x, weight=weight, bias=bias, residual=residual, cache=cache)
    t = Tensors(x, weight, bias, residual, cache)
    request = request_of(x, out_dtype, algorithm, workspace_limit, float32_precision)
    with torch.no_grad():
        if not on_cpu(x):
            module, prepared = calls.prepared(t, o, request)
            out = geometry.new_result(x, weight, prepared.shape, out_dtype)
            packed = filters.packed(weight, prepared.packing)
            module.conv3d(out, None, x, weight, bias, residual, cache, prepared.call, stream(x), packed)
            return out
        shape = geometry.check(t, out_dtype, o)
        router.requested(algorithm, request.variable, [router.CPU_METHOD])
        empty = geometry.new_result(x, weight, shape, out_dtype)
        if 0 in shape:
            return empty
        result = _by_torch(t, o, empty.dtype)
        return result if result.stride() == empty.stride() else empty.copy_(result)


@torch.library.impl(library, "conv3d_out", "CompositeExplicitAutograd")
def _conv3d_out(
    out,
    cache_out,
    x,
    weight,
    bias,
    residual,
    cache,
    stride,
    padding,
    dilation,
    groups,
    *,
    time_padding=None,
    padding_mode="zeros",
    activation="none",
    out_dtype=None,
    algorithm="auto",
    workspace_limit=router.WORKSPACE_LIMIT,
    float32_precision=None,
):
    refuse_derivatives(out=out, cache_out=cache_out, x=x, weight=weight, bias=bias, residual=residual, cache=cache)
    o = options_of(stride, padding, dilation, groups, time_padding, padding_mode, activation)
    check_places(x, weight=weight, bias=bias, residual=residual, cache=cache, out=out, cache_out=cache_out)
    t = Tensors(x, weight, bias, residual, cache, out, cache_out)
    request = request_of(x, out_dtype, algorithm, workspace_limit, float32_precision)
    if not on_cpu(x):
        module, prepared = calls.prepared(t, o, request)
        packed = filters.packed(weight, prepared.packing)
        module.conv3d(out, cache_out, x, weight, bias, residual, cache, prepared.call, stream(x), packed)
        return
    shape = geometry.check(t, out_dtype, o)
    router.requested(algorithm, request.variable, [router.CPU_METHOD])
    for name, tensor in (("out", out), ("cache_out", cache_out)):  # torch may notice when it has written
        if wrong := wrong_output(name, tensor):
            raise wrong
    _refuse_overlaps(t)
    if 0 not in shape:
        out.copy_(_by_torch(t, o, out.dtype))
    if cache_out is not None:
        cache_out.copy_(_saved(t, o))


def _refuse_overlaps(t: Tensors) -> None:
    """By ranges of addresses: what the kernels' module decides exactly.
    torch's own results are made before `out` is written.
    """
    if t.cache_out is None:
        return
    for name, tensor in (("x", t.x), ("cache", t.cache), ("out", t.out), ("residual", t.residual), ("weight", t.weight)):
        if isinstance(tensor, Tensor) and isinstance(t.cache_out, Tensor) and _may_overlap(t.cache_out, tensor):
            raise ValueError(f"cache_out: shares memory with {name}, expected memory of its own: swap two caches between calls")


def _may_overlap(a: Tensor, b: Tensor) -> bool:
    def span(t: Tensor) -> tuple[int, int]:
        reach = [stride * (size - 1) for size, stride in zip(t.shape, t.stride(), strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return t.data_ptr() + low * t.element_size(), t.data_ptr() + (high + 1) * t.element_size()

    if torch.compiler.is_compiling() or a.numel() == 0 or b.numel() == 0:
        return False
    (first, end), (other_first, other_end) = span(a), span(b)
    return first < other_end and other_first < end


def _saved(t: Tensors, o: Options) -> Tensor:
    frames = padding.sequence(t.x, t.cache)
    taps = t.weight.shape[2]
    if frames.shape[2] == 0 and o.history(taps):  # nothing has come yet, so nothing can be repeated
        return frames.new_zeros(*frames.shape[:2], o.history(taps), *frames.shape[3:])
    return padding.last_frames(frames, o, taps)


def _fake(
    x,
    weight,
    bias,
    residual,
    cache,
    stride,
    padding,
    dilation,
    groups,
    *,
    time_padding=None,
    padding_mode="zeros",
    activation="none",
    out_dtype=None,
    out=None,
    cache_out=None,
    **_,
):
    o = options_of(stride, padding, dilation, groups, time_padding, padding_mode, activation)
    check_places(x, weight=weight, bias=bias, residual=residual, cache=cache, out=out, cache_out=cache_out)
    for size in weight.shape[2:]:
        int(size)  # where it is a symbol, this fixes it: inductor fails over results whose size has two of them
    shape = geometry.check(Tensors(x, weight, bias, residual, cache, out, cache_out), out_dtype, o)
    return geometry.new_result(x, weight, shape, out_dtype)


def _fake_out(out, cache_out, *arguments, **options):
    _fake(*arguments, out=out, cache_out=cache_out, **options)


fake("conv3d")(_fake)
fake("conv3d_out")(_fake_out)


# ---- by torch ----------------------------------------------------------------------------------------------------------------


def _by_torch(t: Tensors, o: Options, dtype: torch.dtype) -> Tensor:
    """Rounded once: in 16 bits only if nothing but an exact activation follows, and if the processor is fast at it."""
    x, weight, bias, residual, cache = (tensor for tensor in t[:5])
    exact = o.activation in ROUNDED_FIRST and residual is None and dtype == x.dtype and (bias is None or bias.dtype == dtype)
    columns = geometry.out_shape(x.shape, weight.shape, t.cached, o)[-1]
    if not (exact and fast_on_cpu(dtype) and right_on_cpu(dtype, columns, o.stride[-1])):
        x, weight, bias, cache = (None if tensor is None else tensor.float() for tensor in (x, weight, bias, cache))
    frames, rest = padding.padded(padding.sequence(x, cache), o, weight.shape[2], t.cached)
    result = torch.conv3d(frames, weight, bias, o.stride, rest, o.dilation, o.groups)
    if residual is not None:
        result = result.add_(residual)
    return ACTIVATIONS[o.activation](result).to(dtype)


# ---- autocast, lazy negation -------------------------------------------------------------------------------------------------

cast_by_autocast(library, "conv3d", ("x", "weight", "bias", "residual", "cache"))
cast_by_autocast(library, "conv3d_out", ("x", "weight", "bias", "residual", "cache"))
write_through_negation(library, "conv3d_out")
