"""Filters in the order in which an algorithm of conv2d or conv3d reads them, kept from call to call."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
import functools
import os
import threading
from typing import Any, NamedTuple
import weakref

import torch
from torch import Tensor

from .dispatch import stream

PACKED_LIMIT = 1 << 30
"""Bytes of filters that plain calls keep packed, on all devices, unless `VARIABLE` says otherwise; the ones used longest ago go
first.
"""
VARIABLE = "HIPCONV_PACKED_LIMIT"


class Packing(NamedTuple):
    """The order in which calls that are alike read filters that they cannot read as they are."""

    form: bytes  # of one tensor, two packings of the same form are the same bytes
    size: int  # in bytes
    pack: Callable[[Tensor, int], Tensor]  # (filters, stream) -> the packed ones


def packing_of(found: tuple[bytes, int, Any, int] | None) -> tuple[Packing | None, int | None]:
    """(what a module's question for a call's packing finds, the workspace that the call takes beside it)."""
    return (None, None) if found is None else (Packing(found[0], found[1], found[2].pack), found[3])


class _Packed(NamedTuple):
    filters: Tensor
    made_on: int  # the stream, as a pointer
    made: torch.cuda.Event | None  # None where packing was done when it returned
    is_lasting: bool  # not dropped for others, and valid in a captured graph


class _Entry:
    """The packed filters of a weight."""

    __slots__ = ("by_form", "has_served", "state", "weight")

    def __init__(self, weight: Tensor, state: tuple) -> None:
        self.weight, self.state = weakref.ref(weight, _forget(id(weight))), state
        self.by_form: dict[bytes, _Packed] = {}
        self.has_served = False  # since the weight last changed, a call found what another had packed


class _Thread(threading.local):
    records = False


_thread = _Thread()


class recorded:
    """As long as it lasts, gradients of calls are recorded, although their forward runs without grad mode."""

    def __enter__(self) -> None:
        self._before, _thread.records = _thread.records, True

    def __exit__(self, *_: object) -> None:
        _thread.records = self._before


_entries: OrderedDict[int, _Entry] = OrderedDict()  # by the identity of weight, the one used longest ago first
_size = 0  # bytes that are kept and do not last

# Whoever changes what is kept has it. A `with` takes and leaves C's lock itself: a signal's handler that raises leaves it free.
_lock = threading.RLock()
_left: deque[Callable[[], None]] = deque()  # changes that are asked for in the middle of another one


def _changes_here() -> bool:
    """Tell whether this thread is in the middle of a change."""
    return _lock._is_owned()  # type: ignore[attr-defined]  # threading.Condition asks so, too


def _change_when_free(change: Callable[[], None]) -> None:
    """Do what a weak reference's callback asks for. It may come at any allocation, so it waits for nobody: in the middle of a
    change, by its own thread or another one, it leaves it to that change's end.
    """
    _left.append(change)
    _do_what_was_left()


def _do_what_was_left() -> None:
    while _left and not _changes_here():
        try:
            if not _lock.acquire(blocking=False):
                return  # who has it looks here once more
            while _left:
                _left.popleft()()
        finally:
            if _changes_here():
                _lock.release()


def _state(weight: Tensor) -> tuple:
    """All that tells whether a tensor that is the same object has the same values."""
    return weight._version, weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device


def _forget(key: int) -> Callable[[weakref.ref], None]:
    def callback(reference: weakref.ref) -> None:
        _change_when_free(functools.partial(_let_go, key, reference))

    return callback


def _let_go(key: int, reference: weakref.ref) -> None:
    entry = _entries.get(key)
    if entry is not None and entry.weight is reference:
        _drop(entry)
        del _entries[key]


def _drop(entry: _Entry) -> None:
    """Let go of what does not last."""
    global _size
    _size -= sum(packed.filters.numel() for packed in entry.by_form.values() if not packed.is_lasting)
    entry.by_form = {form: packed for form, packed in entry.by_form.items() if packed.is_lasting}


def _add(entry: _Entry, weight: Tensor, packing: Packing, is_lasting: bool = False) -> _Packed:
    """Pack, and keep it; let go of others' where that is too much."""
    global _size
    here = stream(weight)
    filters = packing.pack(weight, here)
    made = torch.cuda.current_stream(weight.device).record_event() if weight.is_cuda and not is_lasting else None
    packed = entry.by_form[packing.form] = _Packed(filters, here, made, is_lasting)
    if (before := _entries.get(id(weight))) is not None and before is not entry:  # of a tensor that is gone
        _drop(before)
    _entries[id(weight)] = entry
    _entries.move_to_end(id(weight))
    if not is_lasting:
        _size += filters.numel()
        limit = _limit()
        for key, other in list(_entries.items()) if _size > limit else ():
            if _size <= limit or other is entry:
                break
            _drop(other)
            if not other.by_form:
                del _entries[key]
    return packed


def _limit() -> int:
    value = os.environ.get(VARIABLE, "")
    if value and not value.isdecimal():
        raise ValueError(f"{VARIABLE}: got '{value}', expected a number of bytes; 0 keeps no filters")
    return int(value) if value else PACKED_LIMIT


def _known(weight: Tensor) -> _Entry | None:
    entry = _entries.get(id(weight))
    return entry if entry is not None and entry.weight() is weight else None


def _is_trained(weight: Tensor) -> bool:
    """Tell whether its values may change without torch's counting: between a step and the next, sharded training (FSDP) writes
    gathered weights into one tensor, and keeps its version.
    """
    if not weight.requires_grad:
        return False
    return _thread.records or (torch.distributed.is_available() and torch.distributed.is_initialized())


def packed(weight: Tensor, packing: Packing | None) -> Tensor | None:
    """The filters as a call reads them: packed when `weight` last changed. None where the call reads them as they are, or has
    to pack them itself.

    What is packed is kept for the next call. But where a weight has changed before any call gained by that, the first call that
    sees it changed packs for itself alone, at no more cost than without all this, and the second one keeps.

    A graph that is being captured packs filters in each replay, as it has to see what becomes of `weight`; unless
    prepack_conv2d made them. So do a call that records a gradient of `weight`, a call on a weight that requires one in a
    process of `torch.distributed`, and a call on an inference tensor, whose changes are not counted. Other changes that torch
    does not count (through `weight.data` or memory shared with numpy) are not seen: after these, call `forget`.
    """
    if packing is None or _changes_here():  # a finalizer's call, in the middle of a change
        return None
    capturing = weight.is_cuda and torch.cuda.is_current_stream_capturing()
    try:
        with _lock:
            entry = _known(weight)
            found = None if entry is None else entry.by_form.get(packing.form)
            if found is not None and found.is_lasting:
                return found.filters
            if capturing or weight.is_inference() or _is_trained(weight):
                return None
            state = _state(weight)
            if entry is None:
                entry = _Entry(weight, state)
            elif entry.state != state:
                gained, found = entry.has_served, None
                _drop(entry)
                entry.state, entry.has_served = state, False
                if not gained:
                    return None
            if found is None:
                return _add(entry, weight, packing).filters if packing.size <= _limit() else None
            entry.has_served = True
            _entries.move_to_end(id(weight))
    finally:
        _do_what_was_left()
    if found.made is not None and stream(weight) != found.made_on:
        here = torch.cuda.current_stream(weight.device)
        here.wait_event(found.made)
        found.filters.record_stream(here)
    return found.filters


def keep_for_good(weight: Tensor, packings: list[Packing]) -> None:
    """Pack filters whose values never change; the caller waits for the stream, so that every other one may read them."""
    try:
        with _lock:
            entry = _known(weight) or _Entry(weight, _state(weight))
            for packing in packings:
                _add(entry, weight, packing, True)
    finally:
        _do_what_was_left()


def forget(weight: Tensor | None = None) -> None:
    """Drop what plain calls keep of filters: of `weight`, or of all.
    Needed only after a change of them that torch does not count.
    """
    if _changes_here():
        _left.append(functools.partial(_forget_now, weight))
        return
    try:
        with _lock:
            _forget_now(weight)
    finally:
        _do_what_was_left()


def _forget_now(weight: Tensor | None) -> None:
    for key, entry in list(_entries.items()):
        if weight is None or entry.weight() is weight:
            _drop(entry)
            if not entry.by_form:
                del _entries[key]
