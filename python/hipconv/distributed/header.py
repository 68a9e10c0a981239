"""The header: what the ranks of a group tell each other before data moves, so that all go on or all raise the same error.

It has a fixed size, so that ranks which disagree about everything else can still read each other's: the number of the call on
this group, the size of the rank's shard, and the call's settings as text. A rank whose own arguments are wrong sends its error
in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import ctypes
import hashlib
import struct
from typing import Any, NamedTuple
import weakref

import torch
import torch.distributed as dist

from ..arguments import describe, flag
from .groups import Group, device_for_messages

BYTES = 1024
_NUMBERS = struct.Struct("<qqqq16sI")  # call number, sizes, kind, digest of the whole text, bytes of it that follow
_SIZES, _SIZES_AT = struct.Struct("<qq"), struct.calcsize("<q")
_FITS, _VALUE_ERROR, _TYPE_ERROR, _OTHER_ERROR = range(4)

_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # made on each group


class Header(NamedTuple):
    """The words of a rank about its call."""

    number: int
    size: int
    other: int
    kind: int
    digest: bytes
    text: str

    def packed(self) -> bytes:
        text = self.text.encode()[: BYTES - _NUMBERS.size]
        message = _NUMBERS.pack(self.number, self.size, self.other, self.kind, self.digest, len(text)) + text
        return message.ljust(BYTES, b"\0")


def unpacked(content: bytes) -> Header:
    number, size, other, kind, digest, length = _NUMBERS.unpack_from(content)
    return Header(number, size, other, kind, digest, content[_NUMBERS.size : _NUMBERS.size + length].decode(errors="replace"))


class Local(NamedTuple):
    """The result of checking a rank's own arguments."""

    settings: Mapping[str, object]  # what all ranks must have alike, by the name that an error says
    size: int  # of its shard
    other: int = 0  # of a second one, such as a residual's


def agree(
    call: str, group: Group, look: Callable[[], Local], *, near: object = None, validate: object = True, sizes: object = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of all shards, and the second sizes (without `validate` this rank's alone). Every rank of the group raises if
    one does.

    Args:
        call: the function's name.
        look: what this rank's arguments come to; raises TypeError or ValueError for those that are wrong by themselves.
        near: a tensor of the call: where a group has no backend for the host, the headers lie on its device.
        validate: the argument of that name: gather the headers. Without it only this rank's arguments are looked at, and
            `sizes` is believed.
        sizes: the argument of that name: checked against this rank's size, and with `validate` against all ranks'.
    """
    number = _calls.get(group.process_group, 0)
    _calls[group.process_group] = number + 1
    compares, local, error = True, None, None
    try:
        compares = flag("validate", validate)
        given = checked_sizes("sizes", sizes, group)
        local = look()
        _check_own_size(local.size, given, group, compares)
        if not compares:
            assert given is not None
            return given, (local.other,)
        settings = {"call": call, **local.settings, "sizes": "not given" if given is None else given}
        text = "\n".join(f"{name}={_brief(value)}" for name, value in settings.items())
        kind, size, other = _FITS, local.size, local.other
    except Exception as wrong:  # whatever it is, the others wait
        if not compares:
            raise
        error, text, size, other = wrong, str(wrong), 0, 0
        kind = _TYPE_ERROR if isinstance(wrong, TypeError) else _VALUE_ERROR if isinstance(wrong, ValueError) else _OTHER_ERROR
    mine = Header(number, size, other, kind, hashlib.blake2b(text.encode(), digest_size=16).digest(), text)
    message = mine.packed()
    messages = _gathered(message, group, near)
    differ = error is not None or any(_beside_sizes(one) != _beside_sizes(message) for one in messages)
    if differ and (found := disagreement([unpacked(one) for one in messages])):
        raise found from error
    sizes_of_ranks = [_SIZES.unpack_from(one, _SIZES_AT) for one in messages]
    return tuple(size for size, _ in sizes_of_ranks), tuple(other for _, other in sizes_of_ranks)


def checked_sizes(name: str, sizes: object, group: Group) -> tuple[int, ...] | None:
    """An argument that holds the size of every rank's part, as a tuple, or None."""
    if sizes is None:
        return None
    if (
        not isinstance(sizes, Sequence)
        or isinstance(sizes, str)
        or any(isinstance(s, bool) or not isinstance(s, int) for s in sizes)
    ):
        raise TypeError(f"{name}: got {describe(sizes)}, expected a list of integers, one for each rank of the group, or None")
    if len(sizes) != group.size or min(sizes) < 0:
        raise ValueError(f"{name}: got {tuple(sizes)}, expected one of at least 0 for each of the group's {group.size} ranks")
    return tuple(sizes)


def _check_own_size(size: int, sizes: tuple[int, ...] | None, group: Group, validate: bool) -> None:
    if sizes is None:
        if not validate:
            raise ValueError(
                "sizes: got None with validate=False, expected the size of every rank's shard: no rank asks the others then"
            )
        return
    if sizes[group.rank] != size:
        raise ValueError(
            f"sizes: got {sizes}, whose entry {group.rank} is this rank's, expected it to be {size}, the size of its shard"
        )


def _brief(value: object) -> str:
    """A setting, so short that a header has room for all of them; long ones, as the sizes of many ranks are,
    by their digest.
    """
    text = str(value)
    if len(text) <= 80:
        return text
    return f"{text[:40]}... ({len(text)} characters, digest {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"


def _beside_sizes(message: bytes) -> tuple[bytes, bytes]:
    """Return what ranks must have alike of a message."""
    return message[:_SIZES_AT], message[_SIZES_AT + _SIZES.size :]


def _gathered(message: bytes, group: Group, near: object) -> list[bytes]:
    if group.size == 1:
        return [message]
    device = device_for_messages(group, near)
    sent = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)
    received = torch.empty(group.size * BYTES, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(received, sent, group=group.process_group)
    received = received.cpu()
    return [ctypes.string_at(received.data_ptr() + rank * BYTES, BYTES) for rank in range(group.size)]


def disagreement(headers: list[Header]) -> TypeError | ValueError | RuntimeError | None:
    """Return what to raise, the same on every rank, where one refuses its arguments or differs from most others."""
    for rank, header in enumerate(headers):
        if header.kind != _FITS:
            kinds: dict[int, type[TypeError | ValueError]] = {_TYPE_ERROR: TypeError, _VALUE_ERROR: ValueError}
            return kinds.get(header.kind, RuntimeError)(f"rank {rank} of the group refuses its arguments: {header.text}")
    settings = [dict(line.partition("=")[::2] for line in header.text.split("\n")) for header in headers]
    calls = [
        {"call": one.get("call", ""), "call number": str(header.number)} for one, header in zip(settings, headers, strict=True)
    ]
    for values in (calls, settings):
        for name in dict.fromkeys(name for one in values for name in one):
            found = [one.get(name, "nothing") for one in values]
            if len(set(found)) > 1:
                return _differ(name, found)
    if len({header.digest for header in headers}) > 1:  # past what the header has room for
        return _differ(
            f"the arguments after {list(settings[0])[-1]}", [f"digest {header.digest.hex()[:8]}" for header in headers]
        )
    return None


def _differ(name: str, found: list[str]) -> ValueError:
    counts = Counter(found)
    most = max(counts.values())
    usual = next(value for value in found if counts[value] == most)  # of the lowest rank, where there are as many of two
    rank = next(rank for rank, value in enumerate(found) if value != usual)
    advice = (
        ": the ranks have not made the same calls on this group, and cannot go on with it"
        if name in ("call", "call number")
        else ", as every rank must have it"
    )
    return ValueError(
        f"{name}: got {found[rank]} on rank {rank} of the group, expected {usual}, which rank {found.index(usual)} has{advice}"
    )
