"""Which positions of a split axis lie where, and who needs which of them. Pure functions of sizes;
nothing here looks at a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import itertools
from typing import NamedTuple

EDGES = ("zeros", "first", "wrap")
LAYOUTS = ("contiguous", "zigzag")


class Chunk(NamedTuple):
    """A run of positions of the whole axis that lie one after another on one rank."""

    rank: int
    start: int  # in the whole axis
    size: int
    at: int  # in the rank's tensor

    @property
    def stop(self) -> int:
        return self.start + self.size


class Part(NamedTuple):
    """One thing that a rank needs: a run of positions of a rank's tensor; or zeros, of no rank."""

    rank: int
    at: int
    size: int
    repeat: int = 1  # this many of its only position
    backwards: bool = False  # the last position first


NOBODY = -1
Chunks = tuple[Chunk, ...]
Parts = tuple[Part, ...]
Wants = tuple[Parts, ...]  # by rank


def even_sizes(total: int, parts: int) -> tuple[int, ...]:
    """As torch.tensor_split has them: the first ones are larger by one."""
    return tuple(total // parts + (i < total % parts) for i in range(parts))


@functools.lru_cache(1024)
def contiguous(sizes: tuple[int, ...]) -> Chunks:
    """A chunk a rank, in the order of ranks."""
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(Chunk(rank, start, size, 0) for rank, (start, size) in enumerate(zip(starts, sizes, strict=False)))


@functools.lru_cache(1024)
def zigzag(total: int, ranks: int) -> Chunks:
    """Two chunks a rank, r and 2 ranks - 1 - r of as many as tensor_split makes:
    causal attention then has as much work on each.
    """
    sizes = even_sizes(total, 2 * ranks)
    starts = list(itertools.accumulate(sizes, initial=0))
    chunks = []
    for number, size in enumerate(sizes):
        first_half = number < ranks
        rank = number if first_half else 2 * ranks - 1 - number
        chunks.append(Chunk(rank, starts[number], size, 0 if first_half else sizes[rank]))
    return tuple(chunks)


def sizes_of(chunks: Chunks, ranks: int) -> tuple[int, ...]:
    """Return the sizes of the ranks' tensors."""
    return tuple(sum(chunk.size for chunk in chunks if chunk.rank == rank) for rank in range(ranks))


def inside(chunks: Chunks, start: int, stop: int) -> Parts:
    """Return where positions [start, stop) of the whole axis lie."""
    found = []
    for chunk in chunks:
        low, high = max(start, chunk.start), min(stop, chunk.stop)
        if low < high:
            found.append(Part(chunk.rank, chunk.at + low - chunk.start, high - low))
    return tuple(found)


def around(chunks: Chunks, start: int, stop: int, edge: str) -> Parts:
    """The same, of positions that may lie before the axis and behind its end.

    What is there: zeros; with "first" the nearest position that exists; with "wrap" the other end, as often round as it takes;
    with "reflect" the axis mirrored at its first and last position.
    """
    total = chunks[-1].stop
    if start >= stop:
        return ()
    if edge == "wrap":
        found: Parts = ()
        while start < stop:
            place = start % total
            size = min(stop - start, total - place)
            found += inside(chunks, place, place + size)
            start += size
        return found
    if edge == "reflect":
        end = 2 * total - 1  # position at lies, mirrored at the last one, where end - 1 - at does
        mirrored = inside(chunks, 1 - min(stop, 0), 1 - start), inside(chunks, end - stop, end - max(start, total))
        ends = [tuple(part._replace(backwards=part.size > 1) for part in parts[::-1]) for parts in mirrored]
        return ends[0] + inside(chunks, max(start, 0), min(stop, total)) + ends[1]
    before, behind = min(stop, 0) - start, stop - max(start, total)
    found = inside(chunks, max(start, 0), min(stop, total))
    if edge == "zeros":
        ends = [(Part(NOBODY, 0, count),) if count > 0 else () for count in (before, behind)]
    else:
        outer = inside(chunks, 0, 1), inside(chunks, total - 1, total)
        ends = [
            (end[0]._replace(repeat=count),) if count > 0 else () for end, count in zip(outer, (before, behind), strict=True)
        ]
    return ends[0] + found + ends[1]


@functools.lru_cache(1024)
def with_halo(sizes: tuple[int, ...], before: int, after: int, edge: str) -> Wants:
    """Each rank's own shard with what stands around it."""
    chunks = contiguous(sizes)
    return tuple(
        around(chunks, chunk.start - before, chunk.start, edge)
        + ((Part(chunk.rank, 0, chunk.size),) if chunk.size else ())
        + around(chunks, chunk.stop, chunk.stop + after, edge)
        for chunk in chunks
    )


@functools.lru_cache(1024)
def windows(chunks: Chunks, ranges: tuple[tuple[int, int], ...], edge: str) -> Wants:
    """For each rank a range of the whole axis, wherever it lies."""
    return tuple(around(chunks, start, stop, edge) for start, stop in ranges)


def lengths(parts: Sequence[Part]) -> list[int]:
    return [part.size * part.repeat for part in parts]
