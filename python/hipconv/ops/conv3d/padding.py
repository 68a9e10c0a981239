"""The padding of a volume in plain torch, and its gradient: what CPU tensors, the reference and the backward pad with."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F

from .geometry import Options


def sides_of(o: Options, taps: int, cached: int) -> tuple[tuple[int, int, int, str], ...]:
    """(axis, before, after, mode) of frames, rows and columns, `cached` frames standing before x."""
    return (
        (2, o.front(taps, cached), o.padding[1], o.time_mode),
        (3, *o.padding[2:4], o.padding_mode),
        (4, *o.padding[4:], o.padding_mode),
    )


def sequence(x: Tensor, cache: Tensor | None) -> Tensor:
    """The frames of the cache, then those of x."""
    return x if cache is None or cache.shape[2] == 0 else torch.cat([cache, x], 2)


def padded(x: Tensor, o: Options, taps: int, cached: int) -> tuple[Tensor, tuple[int, int, int]]:
    """The sequence with the padding that a convolution cannot do by itself, and the rest of it."""
    rest = [0, 0, 0]
    for axis, before, after, mode in sides_of(o, taps, cached):
        if mode == "zeros" and before == after:
            rest[axis - 2] = before
        elif before or after:
            x = pad_axis(x, axis, before, after, mode)
    return x, (rest[0], rest[1], rest[2])


def pad_axis(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    if mode == "zeros":
        return F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [before, after])
    return x.index_select(axis, _indices(x.shape[axis], before, after, mode, x.device))


def unpadded(dpadded: Tensor, shape: torch.Size, o: Options, taps: int, cached: int) -> Tensor:
    """The gradient of the sequence, whose shape is given, from that of what `padded` made of it."""
    for axis, before, after, mode in reversed(sides_of(o, taps, cached)):
        size = shape[axis]
        if mode == "zeros" and before == after:
            continue
        if mode == "zeros":
            dpadded = dpadded.narrow(axis, before, size)
        elif before or after:
            zeros = dpadded.new_zeros([*dpadded.shape[:axis], size, *dpadded.shape[axis + 1 :]])
            dpadded = zeros.index_add(axis, _indices(size, before, after, mode, dpadded.device), dpadded)
    return dpadded


def _indices(size: int, before: int, after: int, mode: str, device: torch.device) -> Tensor:
    """The element of an axis that each element of the padded axis is."""
    at = torch.arange(-before, size + after, device=device)
    if mode == "replicate":
        return at.clamp(0, size - 1)
    if mode == "circular":
        return at % size
    at = at.abs()
    return torch.where(at >= size, 2 * (size - 1) - at, at)


def last_frames(x: Tensor, o: Options, taps: int) -> Tensor:
    """The last `o.history(taps)` frames of a sequence, with what stands before the first one of a causal convolution,
    else zeros.
    """
    count = o.history(taps)
    missing = count - x.shape[2]
    if missing > 0:
        return pad_axis(x, 2, missing, 0, o.time_mode if o.is_causal else "zeros")
    return x.narrow(2, x.shape[2] - count, count)
