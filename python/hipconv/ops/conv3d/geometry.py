"""The arguments of a conv3d mean this: strides, padding, cached frames and shapes as plain integers, checked before anything
runs.

Nothing here looks at a tensor's memory. Integers may be symbolic (torch.SymInt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...arguments import describe, parse_activation
from ..conv2d.activations import ACTIVATIONS
from ..conv2d.geometry import (
    PADDING_MODES,
    check_dtypes,
    check_groups,
    check_out_dtype,
    check_padding,
    group_count,
    integers,
    listed,
    windows,
)

TIME_PADDINGS = (None, "zeros", "first", "edges")

Ints = int | Sequence[int]
Padding = str | Ints


def is_causal(time_padding: str | None) -> bool:
    """Tell whether a result's frame sees no later one: the frames that this takes stand before the first one."""
    return time_padding in ("zeros", "first")


class Options(NamedTuple):
    """All of a conv3d but its tensors."""

    stride: tuple[int, int, int]
    padding: tuple[int, int, int, int, int, int]  # front, back, top, bottom, left, right
    dilation: tuple[int, int, int]
    groups: int
    time_padding: str | None
    padding_mode: str
    activation: str

    @property
    def time_mode(self) -> str:
        """The padding mode of frames: what stands before the first one and behind the last."""
        return {None: self.padding_mode, "zeros": "zeros", "first": "replicate", "edges": "replicate"}[self.time_padding]

    @property
    def is_causal(self) -> bool:
        return is_causal(self.time_padding)

    def history(self, taps: int) -> int:
        """Count the frames before the first one that filters of so many frames see: those that a cache holds."""
        return (taps - 1) * self.dilation[0]

    def front(self, taps: int, cached: int) -> int:
        """Count the padded frames before the first one that there is."""
        return self.history(taps) - cached if self.is_causal else self.padding[0]


def options(
    kernel: tuple[int, int, int],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    time_padding: str | None,
    padding_mode: str,
    activation: str,
) -> Options:
    """Arguments as the public function takes them, for filters of `kernel` = (frames, height, width)."""
    parse_activation(activation, ACTIVATIONS)
    for name, value, known in (("padding_mode", padding_mode, PADDING_MODES), ("time_padding", time_padding, TIME_PADDINGS)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"{name}: got {describe(value)}, expected one of {listed(known)}")
        if value not in known:
            raise ValueError(f"{name}: got {describe(value)}, expected one of {listed(known)}")
    steps, dilations = _triple("stride", stride, 1), _triple("dilation", dilation, 1)
    count = group_count(groups)
    sides = _padding(padding, kernel, steps, dilations, time_padding)
    if is_causal(time_padding) and (sides[0] != 0 or sides[1] != 0):
        raise ValueError(
            f"padding: got {describe(padding)} with time_padding '{time_padding}', expected 0 for the frames, as (kernel "
            f"frames - 1) * dilation of them stand before the first one then: pass (0, height, width)"
        )
    return Options(steps, sides, dilations, count, time_padding, padding_mode, activation)


def _padding(
    padding: Padding,
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int],
    dilation: tuple[int, int, int],
    time_padding: str | None,
) -> tuple[int, int, int, int, int, int]:
    if isinstance(padding, str):
        if padding == "valid":
            return 0, 0, 0, 0, 0, 0
        if padding != "same":
            raise ValueError(f"padding: got {describe(padding)}, expected 'same', 'valid', an int, a triple or six integers")
        if stride != (1, 1, 1):
            raise ValueError(
                f"padding: got 'same' with stride {stride}, expected stride 1: the result has the size of x only then"
            )
        t, h, w = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        if is_causal(time_padding):
            t = 0
        return t // 2, t - t // 2, h // 2, h - h // 2, w // 2, w - w // 2
    if isinstance(padding, Sequence) and len(padding) == 6:
        front, back, top, bottom, left, right = integers("padding", padding, 0)
        return front, back, top, bottom, left, right
    t, h, w = _triple("padding", padding, 0)
    return t, t, h, h, w, w


def _triple(name: str, value: Padding, at_least: int) -> tuple[int, int, int]:
    """(frames, height, width)"""
    values = integers(name, value if isinstance(value, Sequence) and not isinstance(value, str) else (value,), at_least)
    if len(values) not in (1, 3):
        more = ", or (front, back, top, bottom, left, right)" if name == "padding" else ""
        raise ValueError(f"{name}: got {describe(value)}, expected an int or a triple (frames, height, width){more}")
    return values[0], values[len(values) // 2], values[-1]


# ---- shapes ------------------------------------------------------------------------------------------------------------------

Shape = tuple[int, int, int, int, int]


def kernel_size(weight: Sequence[int]) -> tuple[int, int, int]:
    """(frames, height, width) of filters of this shape."""
    if len(weight) != 5:
        raise ValueError(
            f"weight: got shape {tuple(weight)}, expected (out_channels, in_channels / groups, frames, height, width)"
        )
    return weight[2], weight[3], weight[4]


def out_shape(x: Sequence[int], weight: Sequence[int], cached: int, o: Options) -> Shape:
    """(batch, out_channels, frames, height, width) of the result, `cached` frames standing before x;
    ValueError where they do not fit.
    """
    kernel = kernel_size(weight)
    check_groups(x, weight, o.groups, "frames, height, width")
    frames, *image = x[2:]
    sides = ((o.front(kernel[0], cached), o.padding[1]), o.padding[2:4], o.padding[4:])
    if o.time_padding in ("first", "edges") and max(sides[0]) > 0 and cached + frames == 0:
        needed = "a frame, or a cache" if o.is_causal else "a frame"
        raise ValueError(
            f"x: got shape {tuple(x)}, expected at least {needed}, with time_padding '{o.time_padding}', which repeats it"
        )
    sizes = []
    for axis, size, taps, step, dilation, (before, after), mode in zip(
        ("frames", "height", "width"), (cached + frames, *image), kernel, o.stride, o.dilation, sides,
        (o.time_mode, o.padding_mode, o.padding_mode), strict=True,
    ):  # fmt: skip
        check_padding(axis, size, before, after, mode)
        if axis == "frames" and o.is_causal and frames == 0:
            sizes.append(0)  # no frame has come
            continue
        sizes.append(windows(x, axis, size + before + after, taps, step, dilation, "are"))
    return x[0], weight[0], sizes[0], sizes[1], sizes[2]


class Tensors(NamedTuple):
    """The tensors of a call, or their kinds (`conv2d.geometry.Kind`); None for those that it does not have."""

    x: Any
    weight: Any
    bias: Any
    residual: Any
    cache: Any
    out: Any = None
    cache_out: Any = None

    @property
    def cached(self) -> int:
        return 0 if self.cache is None else self.cache.shape[2]


def check(t: Tensors, out_dtype: torch.dtype | None, o: Options) -> Shape:
    """The shape of the result, after all dtypes and shapes have been found to fit."""
    x, weight = t.x, t.weight
    check_dtypes(x, weight, bias=t.bias, residual=t.residual, cache=t.cache, out=t.out, cache_out=t.cache_out)
    if len(x.shape) != 5:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected (batch, channels, frames, height, width), or without batch")
    history = o.history(kernel_size(weight.shape)[0])
    for name, tensor in (("cache", t.cache), ("cache_out", t.cache_out)):
        if tensor is None:
            continue
        if o.time_padding == "edges":
            raise ValueError(f"{name}: got a tensor with time_padding 'edges', expected None: x is a whole video there")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{name}: got dtype {tensor.dtype}, expected that of x, {x.dtype}")
        frames = "at most " if name == "cache" else ""
        expected = f"(batch, channels, {frames}{history} frames, height, width) for x of shape {tuple(x.shape)}"
        if len(tensor.shape) != 5 or (*tensor.shape[:2], *tensor.shape[3:]) != (*x.shape[:2], *x.shape[3:]):
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected}")
        if tensor.shape[2] > history or (name == "cache_out" and tensor.shape[2] != history):
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected}: (kernel frames - 1) * dilation")
    shape = out_shape(x.shape, weight.shape, t.cached, o)
    if t.bias is not None and tuple(t.bias.shape) != shape[1:2]:
        raise ValueError(f"bias: got shape {tuple(t.bias.shape)}, expected (out_channels,) = ({shape[1]},)")
    for name, tensor in (("residual", t.residual), ("out", t.out)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected that of the result, {shape}")
    check_out_dtype(out_dtype)
    if t.out is not None and out_dtype is not None and t.out.dtype != out_dtype:
        raise TypeError(f"out: got dtype {t.out.dtype}, expected out_dtype, {out_dtype}")
    return shape


# ---- layouts -----------------------------------------------------------------------------------------------------------------


def is_channels_last(x: Tensor, weight: Tensor) -> bool:
    """Tell whether channels are the denser axis of x: of weight where x has one channel or pixel,
    and not if that leaves it open too.
    """
    for tensor in (x, weight):
        _, channels, frames, height, width = tensor.shape
        if channels != 1 and (frames != 1 or height != 1 or width != 1):
            return tensor.stride(1) < tensor.stride(4 if width != 1 else 3 if height != 1 else 2)
    return False


def new_result(x: Tensor, weight: Tensor, shape: Shape, dtype: torch.dtype | None) -> Tensor:
    """An uninitialised result for these inputs: dense, in the layout of x."""
    layout = torch.channels_last_3d if is_channels_last(x, weight) else torch.contiguous_format
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=layout)
