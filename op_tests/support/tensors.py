"""Types, layouts and memory of the tensors that tests make, and how far a result may be from its reference."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LAYOUTS = ("channel_first", "channel_last")
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)


def empty_as(layout: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised (batch, dim, seqlen) tensor: `channel_first` has seqlen innermost in memory, `channel_last` dim."""
    batch, dim, seqlen = shape
    if layout == "channel_first":
        return torch.empty(batch, dim, seqlen, dtype=dtype, device=device)
    return torch.empty(batch, seqlen, dim, dtype=dtype, device=device).transpose(1, 2)


_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python's mmap does not name on all versions


def untouched(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A view over memory of its own that is all zeros and takes a page only where it is touched."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def strided(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: torch.dtype, device: torch.device, fill: float
):
    """A view with these strides into a buffer full of `fill`, and the buffer."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    buffer = torch.full((offset + span + 37,), fill, dtype=dtype, device=device)
    return buffer.as_strided(shape, strides, offset), buffer


# ---- comparison --------------------------------------------------------------------------------------------------------------


def mismatch(out: Tensor, reference: Tensor, *, may_differ: float = 0.001) -> str | None:
    """None if `out` is `reference` (float64) up to rounding, else what is wrong.

    Every element within 2.5 eps (1 + |ref|) + 2e-6, eps being that of out's dtype; and of a 16-bit out all elements but a share
    of `may_differ` (all but one of a short one) equal to the reference rounded once, so that a second rounding cannot hide.
    """
    if out.shape != reference.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(reference.shape)}"
    error = (out.double() - reference).abs()
    bound = 2.5 * torch.finfo(out.dtype).eps * (1 + reference.abs()) + 2e-6
    outside = ~(error <= bound)  # NaN is outside
    if outside.any():
        where = tuple(int(i) for i in outside.nonzero()[0])
        return (
            f"{int(outside.sum())} of {out.numel()} elements are off, first at {where}: got {out[where].item():.6g}, "
            f"expected {reference[where].item():.6g}"
        )
    if out.dtype != torch.float32:
        differing = int((out != reference.to(out.dtype)).sum())
        if differing > max(1, out.numel() * may_differ):
            return f"{differing} of {out.numel()} elements are not the reference rounded once to {out.dtype}"
    return None


def mismatch_beside_infinities(out: Tensor, reference: Tensor) -> str | None:
    """`mismatch` where the reference is finite; where it is not, `out` is the same infinity, or NaN too."""
    finite = reference.isfinite()
    same = (out.double() == reference) | (out.isnan() & reference.isnan())
    if out.shape != reference.shape or not same[~finite].all():
        return f"{int((~finite & ~same).sum())} of {int((~finite).sum())} infinities and NaNs are not there"
    return mismatch(out[finite], reference[finite], may_differ=0.01)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN is the same as itself."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))
