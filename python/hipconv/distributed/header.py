"""The header: what the ranks of a group tell each other before data moves, so that all go on or all raise the same error.

It has a fixed size, so that ranks which disagree about everything else can still read each other's: the number of the call on this group,
the size of the rank's shard, and the call's settings as text. A rank whose own arguments are wrong sends its error in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
import hashlib
import struct
from typing import Any, NamedTuple
import weakref

import torch
import torch.distributed as dist

from .groups import Group, device_for_messages

BYTES = 1024
_NUMBERS = struct.Struct("<qqqq16sI")  # call number, sizes, kind, digest of the whole text, bytes of it that follow
_FITS, _VALUE_ERROR, _TYPE_ERROR = range(3)

_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # made on each group


class Header(NamedTuple):
    """This is what a rank says of its call."""

    number: int
    size: int
    other: int
    kind: int
    digest: bytes
    text: str

    def packed(self) -> torch.Tensor:
        text = self.text.encode()[: BYTES - _NUMBERS.size]
        message = _NUMBERS.pack(self.number, self.size, self.other, self.kind, self.digest, len(text)) + text
        return torch.frombuffer(bytearray(message.ljust(BYTES, b"\0")), dtype=torch.uint8)


def unpacked(message: torch.Tensor) -> Header:
    content = bytes(message.tolist())
    number, size, other, kind, digest, length = _NUMBERS.unpack_from(content)
    return Header(number, size, other, kind, digest, content[_NUMBERS.size : _NUMBERS.size + length].decode(errors="replace"))


class Local(NamedTuple):
    """This is what a rank's own arguments come to."""

    settings: Mapping[str, object]  # what all ranks must have alike, by the name that an error says
    size: int  # of its shard
    other: int = 0  # of a second one, such as a residual's


def agree(
    call: str, group: Group, look: Callable[[], Local], validate: bool, sizes: tuple[int, ...] | None = None
) -> tuple[Local, tuple[int, ...], tuple[int, ...]]:
    """Find what `look` does in this rank's arguments, the sizes of all shards, and the second sizes (without `validate` this rank's alone).
    Every rank of the group raises if one does.

    Args:
        call: the function's name.
        look: raises TypeError or ValueError for arguments that are wrong by themselves.
        validate: gather the headers. Without it only this rank's arguments are looked at, and `sizes` is believed.
        sizes: what the caller says the sizes are; checked against this rank's, and with `validate` against all ranks'.
    """
    number = _calls.get(group.process_group, 0)
    _calls[group.process_group] = number + 1
    local, error = None, None
    try:
        local = look()
        _check_sizes(local.size, sizes, group, validate)
    except (TypeError, ValueError) as wrong:
        error = wrong
    if not validate:
        if error is not None:
            raise error
        assert local is not None and sizes is not None
        return local, sizes, (local.other,)
    if local is not None and error is None:
        settings = {"call": call, **local.settings, "sizes": "not given" if sizes is None else sizes}
        text, kind, size, other = "\n".join(f"{name}={value}" for name, value in settings.items()), _FITS, local.size, local.other
    else:
        text, kind, size = str(error), _TYPE_ERROR if isinstance(error, TypeError) else _VALUE_ERROR, 0
        other = 0
    mine = Header(number, size, other, kind, hashlib.blake2b(text.encode(), digest_size=16).digest(), text)
    headers = _gathered(mine, group)
    if found := disagreement(headers):
        raise found from error
    assert local is not None
    return local, tuple(header.size for header in headers), tuple(header.other for header in headers)


def refuse(call: str, group: Group, error: TypeError | ValueError) -> None:
    """Raise, on every rank of the group, what this rank has found before it came to `agree`."""

    def look() -> Local:
        raise error

    agree(call, group, look, True)


def _check_sizes(size: int, sizes: tuple[int, ...] | None, group: Group, validate: bool) -> None:
    if sizes is None:
        if not validate:
            raise ValueError("sizes: got None with validate=False, expected the size of every rank's shard: no rank asks the others then")
        return
    if len(sizes) != group.size or min(sizes) < 0:
        raise ValueError(f"sizes: got {sizes}, expected one of at least 0 for each of the group's {group.size} ranks")
    if sizes[group.rank] != size:
        raise ValueError(f"sizes: got {sizes}, whose entry {group.rank} is this rank's, expected it to be {size}, the size of its shard")


def _gathered(mine: Header, group: Group) -> list[Header]:
    if group.size == 1:
        return [mine]
    message = mine.packed().to(device_for_messages(group))
    received = [torch.empty_like(message) for _ in range(group.size)]
    dist.all_gather(received, message, group=group.process_group)
    return [unpacked(one) for one in torch.stack(received).cpu()]


def disagreement(headers: list[Header]) -> TypeError | ValueError | None:
    """Return what to raise, the same on every rank, where one refuses its arguments or differs from most others."""
    for rank, header in enumerate(headers):
        if header.kind != _FITS:
            kind = TypeError if header.kind == _TYPE_ERROR else ValueError
            return kind(f"rank {rank} of the group refuses its arguments: {header.text}")
    settings = [dict(line.partition("=")[::2] for line in header.text.split("\n")) for header in headers]
    calls = [{"call": one.get("call", ""), "call number": str(header.number)} for one, header in zip(settings, headers, strict=True)]
    for values in (calls, settings):
        for name in dict.fromkeys(name for one in values for name in one):
            found = [one.get(name, "nothing") for one in values]
            if len(set(found)) > 1:
                return _differ(name, found)
    if len({header.digest for header in headers}) > 1:  # past what the header has room for
        return _differ("sizes", [header.digest.hex()[:8] for header in headers])
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
