"""The blocks into which `direct` cuts a call, as csrc/kernels/conv2d/direct/tiling.h has them: estimates are of what runs."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from .problem import Problem, Tile

_CHUNK = 8  # channels
_ATOM = 16  # filters, at least, that a wave multiplies
_PART = 64  # pixels that 32 threads make
_MOST_STEP_CHUNKS = 4


class Bundle(NamedTuple):
    """The groups that are one product of matrices: bundling_of."""

    bundles: int
    filters: int
    chunks: int  # of 8 channels, or of a row of taps' channels
    taps: int  # that chunks do not have side by side
    by_vectors: bool
    has_windows: bool  # chunks have a row of taps side by side


class Tiling(NamedTuple):
    """A call's blocks of a tile, and their work."""

    blocks: int
    waves: int  # of 32 lanes, of a block
    atoms: int  # of _ATOM filters, of a wave
    passes: int
    chunks: int  # of a bundle, in a pass
    steps: int  # of a wave, in all passes
    staged: int  # chunks of x that a block brings to LDS


class Lds(NamedTuple):
    """A target's LDS: the bytes a block may have, and the atoms of pixels that a wave stores at once, by atoms of filters."""

    size: int
    stored: tuple[int, int]


def lds_of(arch: str) -> Lds:
    return Lds(48 << 10, (4, 2)) if arch.startswith("sm_") else Lds(32 << 10, (1, 1))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return -(-a // b) * b


@functools.lru_cache(256)
def bundle_of(problem: Problem) -> Bundle:
    channels, filters, groups = problem.in_channels // problem.groups, problem.filters, problem.groups
    aligned = problem.layout == "nhwc" and problem.in_channels % _CHUNK == 0

    def is_by_vectors(merged: int) -> bool:
        return aligned and (merged * channels % _CHUNK == 0 or groups == 1)

    def cost(merged: int) -> tuple[int, int]:
        strips, chunks = _ceil(merged * filters, _ATOM), _ceil(merged * channels, _CHUNK)
        return _ceil(groups, merged) * strips * chunks * (2 if aligned and not is_by_vectors(merged) else 1), -merged

    merged = min((n for n in range(1, min(groups, 16) + 1) if n == 1 or n * filters <= 2 * _ATOM), key=cost)
    chunks, taps, by_vectors = _ceil(merged * channels, _CHUNK), math.prod(problem.kernel), is_by_vectors(merged)
    window = _ceil(problem.kernel[1] * channels, _CHUNK)
    if groups == 1 and not by_vectors and problem.kernel[0] * window < taps * chunks:
        return Bundle(1, filters, window, problem.kernel[0], False, True)
    return Bundle(_ceil(groups, merged), merged * filters, chunks, taps, by_vectors, False)


@functools.lru_cache(1024)
def tiling_of(problem: Problem, tile: Tile, lds: Lds) -> Tiling | None:
    """Cut a call into blocks of a tile, or return None if no row of pixels fits LDS: direct_tiling and what it is made of."""
    bundle, (tile_m, tile_n) = bundle_of(problem), tile
    atoms = 2 if bundle.filters > _ATOM and tile_n > _ATOM else 1
    strips, of_block = _ceil(bundle.filters, atoms * _ATOM), tile_n // (atoms * _ATOM)
    together = max(1, min(bundle.bundles, of_block // strips))  # bundles of a block
    of_block = min(of_block, together * strips)
    waves = tile_m // _PART * of_block
    filter_blocks = _ceil(bundle.bundles, together) if together > 1 else bundle.bundles * _ceil(strips, of_block)
    scratch = waves * lds.stored[atoms - 1] * _ATOM * (atoms * _ATOM + 4) * 4

    (height, width), (rows_of_taps, columns_of_taps) = problem.out_size, problem.kernel
    down = (problem.stride[0], problem.dilation[0]) if rows_of_taps > 1 else (1, 0)  # of the patch: to a pixel, to a tap
    phases, across = 1, (1, 0)
    if columns_of_taps > 1 and not bundle.has_windows:
        phases, across = problem.stride[1], (problem.stride[1], problem.dilation[1])

    def patch_rows(rows: int) -> int:
        return (rows - 1) * down[0] + (rows_of_taps - 1) * down[1] + 1

    def has_runs(rows: int, columns: int, of: int) -> bool:
        if columns % of == 0:
            return width % of == 0
        return columns == width and rows * columns % of == 0 and height * columns % of == 0

    def storing(rows: int, columns: int) -> int:
        if (problem.layout == "nhwc" and bundle.filters >= 4) or has_runs(rows, columns, 8):
            return 100
        return 160 if has_runs(rows, columns, 4) else 300

    best, least = None, 0.0
    pieces = _ceil(width, tile_m)
    while pieces <= min(width, 4096):
        columns = _ceil(width, pieces)
        pieces = pieces + 1 if pieces < 8 else 2 * pieces
        if best is not None and columns < 4:
            break
        balanced = _ceil(height, _ceil(height, min(tile_m // columns, height)))
        patch_columns = (columns - 1) * across[0] + (columns_of_taps - 1) * across[1] + 1
        pitch = _round_up(patch_columns, phases)
        tables = 8 * patch_columns * (columns_of_taps if bundle.has_windows else 1)
        passes = 1
        while passes <= (bundle.chunks if together == 1 else 1):
            chunks = _ceil(bundle.chunks, passes)
            slot = (together * chunks | 1) * 16
            places = _round_up((_round_up(bundle.taps * chunks, _MOST_STEP_CHUNKS) + _MOST_STEP_CHUNKS) * 4, 16) + 8 * tile_m

            def room(images: int, rows: int) -> int:
                lines = images * patch_rows(rows)
                patch_begin = _round_up(places + 8 * lines + tables, 16)  # noqa: B023 - called within this turn of the loop
                return lds.size - max(lines * pitch * slot + patch_begin, places + scratch)  # noqa: B023

            if room(1, 1) >= 0:
                rows = min(1 + room(1, 1) // (pitch * slot + 8) // down[0], balanced)
                while rows > 1 and room(1, rows) < 0:
                    rows -= 1
                images = 1
                if (rows, columns) == (height, width):
                    images = max(1, min(tile_m // (rows * columns), problem.batch))
                    while images > 1 and room(images, rows) < 0:
                        images -= 1
                tiles = _ceil(problem.batch, images) * _ceil(height, rows) * _ceil(width, columns)
                steps = passes * _ceil(bundle.taps * chunks, 2)
                staged = images * patch_rows(rows) * patch_columns * together * chunks * passes
                of_waves = waves * (steps * (8 + 8 * atoms) + storing(rows, columns))
                cost = tiles * (of_waves + staged * (0.8 if bundle.by_vectors else 2.5) + 300 * passes)
                if best is None or cost < least:
                    least = cost
                    best = Tiling(tiles * filter_blocks, waves, atoms, passes, chunks, steps, staged)
                if rows == balanced:
                    break  # more passes would gain nothing
            passes = bundle.chunks if passes < bundle.chunks < 2 * passes else 2 * passes
    return best
