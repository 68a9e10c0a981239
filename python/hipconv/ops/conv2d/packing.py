"""Filters as an algorithm of conv2d reads them, made ahead of time: `hipconv.prepack_conv2d`."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ... import jit
from ...arguments import describe, require_dense, require_kinds, wrong_dtype
from ...jit import targets
from .. import filters
from ..filters import Packing
from . import router

PACKING = ("winograd_f4", "winograd_f2")
"""The algorithms whose packing depends on the filters alone, so that it can be made before a call is known."""


class PackedFilters:
    """The filters of a conv2d, as `hipconv.prepack_conv2d` makes them; `hipconv.conv2d` takes them in the place of its
    `weight`.

    Their values never change: what happens later to the tensor that they were made from does not reach them.
    """

    weight: Tensor
    """The filters as a tensor, (out_channels, in_channels / groups, height, width), dense in channels_last memory."""
    algorithms: tuple[str, ...]
    """The algorithms for which they are packed besides."""

    def __init__(self, weight: Tensor, algorithms: tuple[str, ...]) -> None:
        self.weight, self.algorithms = weight, algorithms

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def __repr__(self) -> str:
        more = "".join(f", {name}" for name in self.algorithms)
        return f"PackedFilters({tuple(self.shape)}, {self.dtype}, {self.device}, channels_last{more})"

    def __reduce__(self) -> Any:
        return prepack_conv2d, (self.weight, self.algorithms)

    def __deepcopy__(self, memo: dict) -> PackedFilters:
        return self  # they never change


def prepack_conv2d(weight: Tensor, algorithm: str | Sequence[str] = "auto") -> PackedFilters:
    """Filters in the order, and in the planes, in which conv2d reads them, so that calls need not make these.

    The planes of Winograd's algorithms take 8 (F(4,3)) or 3.6 times (F(2,3)) the memory of 16-bit filters.

    Args:
        weight: (out_channels, in_channels / groups, height, width), float32, float16 or bfloat16, any strides; copied.
        algorithm: what reads them besides the algorithms that take dense channels_last filters as they are: a name of
            `hipconv.conv2d_router.METHODS`, several of them, or "auto" for what conv2d may choose by itself, which so far are
            those alone.

    Returns:
        An object that `hipconv.conv2d` and `hipconv.conv2d_plan` take as `weight`, on the device of `weight`. It records no
        gradient. When this returns, its memory is written, so that any stream may use it, and CUDA graphs may be captured with
        it.

    Raises:
        TypeError: an argument of the wrong kind. ValueError: a shape that is none of filters, a name that is unknown, or
        filters that an algorithm named does not pack. hipconv.errors.JitError: the kernels had to be built and could not be.
    """
    require_kinds(prepack_conv2d, locals())
    require_dense(weight=weight)
    if weight.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"weight: got a tensor on {weight.device}, expected one on the CPU or on a GPU that this torch calls 'cuda'"
        )
    if weight.dim() != 4:
        raise ValueError(
            f"weight: got shape {tuple(weight.shape)}, expected (out_channels, in_channels / groups, height, width)"
        )
    if wrong := wrong_dtype("weight", weight.dtype):
        raise wrong
    names = (algorithm,) if isinstance(algorithm, str) else tuple(algorithm)
    for name in names:
        if name != "auto" and name not in router.METHODS:
            raise ValueError(f"algorithm: got {describe(name)}, expected 'auto' or names of hipconv.conv2d_router.METHODS")
        if name in PACKING and not _is_packed(weight):
            raise ValueError(
                f"algorithm: got {describe(name)} for weight of shape {tuple(weight.shape)} and {weight.dtype}, expected 3x3 "
                f"filters of a 16-bit type"
            )
    with torch.inference_mode(False):  # a tensor that any later mode can use
        kept = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device, memory_format=torch.channels_last)
        with torch.no_grad():
            kept.copy_(weight)
    on_gpu = not (weight.device.type == "cpu" and targets.of(weight.device).backend == "cpu")
    packs = tuple(name for name in PACKING if name in names) if on_gpu and weight.numel() else ()
    if packs:
        target = targets.of(weight.device)
        module = jit.module("conv2d", target)
        filters.keep_for_good(kept, [_packing(module, target.arch, kept, name) for name in packs])
    if weight.is_cuda:
        torch.cuda.current_stream(weight.device).synchronize()
    return PackedFilters(kept, packs)


def _is_packed(weight: Tensor) -> bool:
    return tuple(weight.shape[2:]) == (3, 3) and weight.dtype != torch.float32


def _packing(module: ModuleType, arch: str, weight: Tensor, algorithm: str) -> Packing:
    """The packing of any call with these filters."""
    x, out = (
        torch.empty(1, channels, 3, 3, dtype=weight.dtype, device="meta") for channels in (weight.shape[1], weight.shape[0])
    )
    options = [1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [3, 3], weight.dtype, True
    call = module.Call(*options, algorithm, arch, [0, 0, 1])
    packing, _ = filters.packing_of(module.conv2d_packing(out, x, weight.to("meta"), None, None, call))
    assert packing is not None
    return packing
