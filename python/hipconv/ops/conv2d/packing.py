"""Filters as an algorithm of conv2d reads them: kept from call to call, and made ahead of time by `hipconv.prepack_conv2d`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
import threading
from types import ModuleType
from typing import Any, NamedTuple
import weakref

import torch
from torch import Tensor

from ... import jit
from ...arguments import describe, require_dense, require_kinds
from ...jit import targets
from ..dispatch import stream
from . import router

PACKED_LIMIT = 1 << 30
"""Bytes of filters that plain calls keep packed, on all devices; the ones used longest ago go first."""

PACKING = ("winograd_f4", "winograd_f2")
"""The algorithms that read filters in an order and a precision of their own."""


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
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"weight: got dtype {weight.dtype}, expected torch.float32, torch.float16 or torch.bfloat16")
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
        module = jit.module("conv2d", targets.of(weight.device))
        planes = {name: _pack(module, kept, name) for name in packs}
        with _lock:
            _keep(kept, _Entry((), weakref.ref(kept, _forget(id(kept))), planes, True))
    if weight.is_cuda:
        torch.cuda.current_stream(weight.device).synchronize()
    return PackedFilters(kept, packs)


def _is_packed(weight: Tensor) -> bool:
    return tuple(weight.shape[2:]) == (3, 3) and weight.dtype != torch.float32


# ---- what is kept from call to call ------------------------------------------------------------------------------------------


class _Planes(NamedTuple):
    packed: Tensor
    made_on: torch.cuda.Stream | None  # None where packing was done when it returned
    made: torch.cuda.Event | None


class _Entry(NamedTuple):
    state: tuple  # empty where it lasts
    weight: weakref.ref[Tensor]
    planes: dict[str, _Planes]
    is_lasting: bool  # made by prepack_conv2d: not dropped for others, and valid in a captured graph


_lock = threading.RLock()  # a weak reference's callback may come while it is held
_entries: OrderedDict[int, _Entry] = OrderedDict()  # by the identity of weight


def _state(weight: Tensor) -> tuple:
    """All that tells whether a tensor that is the same object has the same values."""
    return weight._version, weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device


def _forget(key: int):
    def callback(reference: weakref.ref) -> None:
        with _lock:
            entry = _entries.get(key)
            if entry is not None and entry.weight is reference:
                del _entries[key]

    return callback


def _keep(weight: Tensor, entry: _Entry) -> None:
    _entries[id(weight)] = entry
    _entries.move_to_end(id(weight))
    sizes = {
        key: sum(planes.packed.numel() for planes in kept.planes.values())
        for key, kept in _entries.items()
        if not kept.is_lasting
    }
    total = sum(sizes.values())
    for key, size in sizes.items():
        if total <= PACKED_LIMIT or key == id(weight):
            break
        del _entries[key]
        total -= size


def _pack(module: ModuleType, weight: Tensor, algorithm: str) -> _Planes:
    call = module.Call([1, 1], [0] * 4, [1, 1], 1, "zeros", "none", "ieee", [1, 1], weight.dtype, True, algorithm, [0, 0, 1])
    packed = module.conv2d_pack(weight, call, stream(weight))
    if not weight.is_cuda:
        return _Planes(packed, None, None)
    made_on = torch.cuda.current_stream(weight.device)
    return _Planes(packed, made_on, made_on.record_event())


def planes_of(module: ModuleType, weight: Tensor, algorithm: str) -> Tensor | None:
    """The filters as `algorithm` reads them: packed when `weight` last changed. None where the call has to pack them itself.

    A graph that is being captured packs filters in each replay, as it has to see what becomes of `weight`; unless
    prepack_conv2d made them. So does a call on an inference tensor, whose changes are not counted. Changes that torch does not
    count (through `weight.data` or memory shared with numpy) are not seen: after these, call `forget`.
    """
    capturing = weight.is_cuda and torch.cuda.is_current_stream_capturing()
    with _lock:
        entry = _entries.get(id(weight))
        if entry is not None and entry.weight() is not weight:
            entry = None
        if entry is not None and entry.is_lasting:
            planes = entry.planes.get(algorithm)
            return None if planes is None else planes.packed
        if capturing or weight.is_inference():
            return None
        state = _state(weight)
        if entry is None or entry.state != state:
            entry = _Entry(state, weakref.ref(weight, _forget(id(weight))), {}, False)
        planes = entry.planes.get(algorithm)
        if planes is None:
            planes = entry.planes[algorithm] = _pack(module, weight, algorithm)
            _keep(weight, entry)
        else:
            _entries.move_to_end(id(weight))
    if planes.made_on is not None and planes.made is not None:
        here = torch.cuda.current_stream(weight.device)
        if here != planes.made_on:
            here.wait_event(planes.made)
            planes.packed.record_stream(here)
    return planes.packed


def forget(weight: Tensor | None = None) -> None:
    """Drop what plain calls keep of filters: of `weight`, or of all.
    Needed only after a change of them that torch does not count.
    """
    with _lock:
        for key, entry in list(_entries.items()):
            if not entry.is_lasting and (weight is None or entry.weight() is weight):
                del _entries[key]
