"""This estimates how long each algorithm of conv2d takes, with its best tile and number of parts.

An algorithm's estimate is a function of the problem, the card, the tiles that the algorithm has for the call, and the bytes
that the parts of split sums may take.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from . import depthwise_diagonal_tiling, depthwise_tile_tiling, direct_tiling, fma_direct_tiling
from .axes import grid_axis
from .problem import Card, Problem, Tile, Tiles

LEAST_STEPS = 4  # of a part of a split sum: fewer do not pay for writing the part and reading it again
MOST_PARTS = 16
LEAST_SPLIT_PRODUCTS = 32  # of an output, for split float32: fewer plain sums have smaller errors than its products
ENOUGH = 7 / 8  # of the compute units with a block: the idle rest costs less than smaller tiles do


def _element_bytes(problem: Problem) -> int:
    return 4 if problem.dtype == "float32" else 2


def _moved_bytes(problem: Problem) -> int:
    """x is read once, and the result written."""
    read = problem.batch * problem.in_channels * math.prod(problem.in_size)
    return _element_bytes(problem) * (read + problem.pixels * problem.out_channels)


def step_of(problem: Problem) -> int:
    """Products of an output that a block adds up at a time: 128 bytes of channels."""
    return 32 if problem.dtype == "float32" else 64


class Estimate(NamedTuple):
    """An algorithm's best tile and parts."""

    us: float  # microseconds
    tile: Tile = (0, 0)  # zeros of an algorithm without tiles
    parts: int = 1  # of each sum


def last_resort(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Estimate an algorithm that is taken only where no other one serves: it takes longer than any."""
    return Estimate(math.inf, _tile(problem, card, tiles) if tiles else (0, 0))


# ---- a channel a group -------------------------------------------------------------------------------------------------------

_DEPTHWISE = 1.5  # microseconds, but for what follows
_DEPTHWISE_BYTES = 3.0e6  # read and written in a microsecond
_DEPTHWISE_PRODUCTS = 0.16e6  # of a compute unit in a microsecond, by filters in registers
# A compute unit makes so many products of other filters in channels_last, and bytes take so much of their time beside them:
# a fit to 28 layers on an H200.
_SLIDING_PRODUCTS, _SLIDING_BYTES = 0.038e6, 0.66
_SLIDING_HALVES, _WALKING_FILTERS = 1.4, 2.0  # measured: longer than that by so much; with several filters a channel
# By filters of as many columns, which have kernels of their own, and by any others, an output that sees padding which is not
# zeros takes so many microseconds a product: where such outputs are made after the others, and where all are.
_FRAME_PRODUCTS, _PADDED_PRODUCTS = (0.95e-6, 2.9e-6), 1.2e-6


def _depthwise_bytes_us(problem: Problem, again: float = 1.0) -> float:
    """x counts for each filter of a channel, as so much for those but the first one; rows that no filter sees do not."""
    filters = problem.in_channels + again * (problem.out_channels - problem.in_channels)
    seen = math.prod(problem.in_size) * min(1.0, problem.kernel[0] / problem.stride[0])
    moved = problem.batch * seen * filters + problem.pixels * problem.out_channels
    return _element_bytes(problem) * moved / _DEPTHWISE_BYTES


def _framed_outputs(problem: Problem) -> int:
    """Count those of an image and a filter that see padding which is not zeros."""
    if problem.padding_mode == "zeros":
        return 0
    inner = 1
    for axis in range(2):
        taps, stride, size, outputs = (of[axis] for of in (problem.kernel, problem.stride, problem.in_size, problem.out_size))
        padding = problem.padding[2 * axis]
        first, last = -(-padding // stride), size - (taps - 1) * problem.dilation[axis] - 1 + padding
        inner *= max(0, min(outputs, last // stride + 1 if last >= 0 else 0) - first)
    return math.prod(problem.out_size) - inner


def _frame_us(problem: Problem) -> float:
    """Estimate the outputs that see padding which is not zeros, made after all others."""
    of_filter = _framed_outputs(problem) * math.prod(problem.kernel) * problem.batch * problem.out_channels
    return of_filter * _FRAME_PRODUCTS[problem.kernel[1] not in (3, 5, 7)]


def _pads_in_vain(problem: Problem) -> bool:
    """Tell whether most outputs see padding which is not zeros."""
    return 2 * _framed_outputs(problem) > math.prod(problem.out_size)


# The same of walks of 16-bit types in channels_last by 5 rows of taps or more, by their stride, measured on an H100; and of 5
# rows with a stride of 2 by a ring of rows in LDS, where channels are vectors, on an H200.
_WALKING_PRODUCTS, _RING_PRODUCTS = {1: 0.05e6, 2: 0.022e6}, 0.036e6


def depthwise(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The longer of its bytes and its products, and outputs that see padding which is not zeros."""
    taps, step = problem.kernel, problem.stride
    walks = taps[0] == taps[1] and taps[0] in (3, 5, 7, 9, 11) and step[0] == step[1] <= 2 and problem.dilation == (1, 1)
    products = problem.pixels * problem.out_channels * problem.products
    has_vectors = problem.out_channels == problem.in_channels and problem.in_channels % 4 == 0
    rings = walks and problem.layout == "nhwc" and taps[0] == 3 and step[0] == 1 and problem.in_channels % 8 == 0
    pads_in_vain, padded = (False, 0.0) if rings else (_pads_in_vain(problem), _frame_us(problem))
    if problem.layout == "nhwc" and (pads_in_vain or not (walks or has_vectors)):
        us = fma_direct(problem, card, tiles, workspace_limit).us  # which runs it, and has the name
        return Estimate(us + 0.1)
    if pads_in_vain:
        return Estimate(_DEPTHWISE + products * _PADDED_PRODUCTS)
    if problem.dtype != "float32" and problem.layout == "nchw":
        return Estimate(_contiguous_depthwise_us(problem, card, walks) + padded)
    if problem.dtype == "float32" and (problem.layout == "nchw" or taps[0] >= 7 or not walks):
        return Estimate(_float32_depthwise_us(problem, card, walks) + padded)
    if not walks:
        by_products = products / (_SLIDING_PRODUCTS * card.compute_units)
        us = _DEPTHWISE + _SLIDING_BYTES * _depthwise_bytes_us(problem) + by_products
        return Estimate(_SLIDING_HALVES * us + padded)
    if problem.dtype == "float32" or taps[0] == 3:
        rate = _DEPTHWISE_PRODUCTS
    elif taps[0] == 5 and step[0] == 2 and problem.in_channels % 8 == 0:
        rate = _RING_PRODUCTS
    else:
        rate = _WALKING_PRODUCTS[step[0]]
    us = max(_depthwise_bytes_us(problem), products / (rate * card.compute_units))
    if problem.out_channels > problem.in_channels and problem.dtype != "float32":
        us *= _WALKING_FILTERS
    return Estimate(_DEPTHWISE + us + padded)


def _float32_depthwise_us(problem: Problem, card: Card, walks: bool) -> float:
    """Fit 111 contiguous layers of float32 that walk, on an H200, and 45 others: 9 in 10 are within a fourth, 8 in 10 of the
    others within a third.
    """
    bytes_us = _depthwise_bytes_us(problem, 0.3 if walks else 0.2)
    planes, taps, step = problem.batch * problem.out_channels, math.prod(problem.kernel), problem.stride[0]
    outputs = planes * math.prod(problem.out_size) / 1e6 * 132 / card.compute_units
    begin = 1.6 + (3.6 if walks and taps >= 49 and problem.layout == "nchw" else 1.6) * min(1.0, 2.5 * outputs)
    if walks and problem.layout == "nhwc":
        return begin + 0.6 * bytes_us + (0.5 + 0.12 * taps) * outputs
    if walks:
        rows = problem.out_size[0] + (problem.kernel[0] - 1) / step
        walked = planes * rows * 2 * -(-problem.out_size[1] // 2) * taps * 1e-6
        each = 2.5 + (3.5 if step > 1 else 0.0) + (14.0 if taps > 49 else 0.0)
        us = begin + 0.86 * bytes_us + (each * walked + planes * (8.4e-3 + 6e-4 * taps)) / card.compute_units
        has_vectors = taps == 9 and problem.in_size[1] % 4 == 0 and problem.in_size[1] >= 32  # that come by way of LDS
        return (0.88 if has_vectors else 1.0) * us
    if problem.layout == "nhwc":
        return begin + 0.43 * bytes_us + (0.39 * taps + 0.06 * problem.kernel[1]) * (0.55 + 0.45 * step) * outputs
    if _slides_down(problem):
        return begin + 1.14 * bytes_us + (0.94 + 0.055 * taps) * outputs
    us = begin + 0.9 * bytes_us + 0.43 * taps * (0.85 + 0.15 * step) * outputs
    return max(us, 3.0 + 0.4 * taps)  # which a thread waits for, one after another


def _comes_by_planes(problem: Problem, card: Card) -> bool:
    """Tell whether a walk of 16-bit types has many small images whose rows begin anywhere, which come to LDS as they lie."""
    bytes_of_8 = 8 * 2 * (math.prod(problem.in_size) + math.prod(problem.out_size))
    few = 56 if problem.stride[0] == 1 else 160  # planes for each compute unit
    return (
        problem.kernel == (3, 3)
        and problem.out_channels == problem.in_channels
        and problem.in_channels % 2 == 0
        and problem.in_size[1] % 2 == 1
        and bytes_of_8 <= 16 * 1024
        and problem.batch * problem.in_channels >= few * card.compute_units
    )


def _slides_down(problem: Problem) -> bool:
    """Tell whether outputs of a thread of contiguous images share rows of x, where nothing walks."""
    apart, rest = divmod(problem.dilation[0], problem.stride[0])
    return problem.kernel[0] > 1 and rest == 0 and -(-problem.out_size[0] // apart) >= 4


def _comes_by_columns(problem: Problem, card: Card) -> bool:
    """Tell whether a walk of 16-bit types has wide images of odd width and a stride of 2, and enough of them."""
    outputs = problem.batch * problem.out_channels * math.prod(problem.out_size)
    return (
        problem.kernel == (3, 3)
        and problem.stride[0] == 2
        and problem.out_channels == problem.in_channels
        and problem.in_size[1] % 2 == 1
        and problem.in_size[1] >= 32
        and outputs * problem.out_size[1] >= 3.5e5 * card.compute_units
    )


def _contiguous_depthwise_us(problem: Problem, card: Card, walks: bool) -> float:
    """Fit 225 contiguous layers of 16-bit types on an H100, beside depthwise_banded: 9 in 10 are within a fourth.

    A walk makes the products of whole pairs of columns, and of rows above and below the image.
    """
    planes = problem.batch * problem.out_channels
    bytes_us = _depthwise_bytes_us(problem, 1.0 if walks else 0.15)
    outputs, taps = planes * math.prod(problem.out_size), math.prod(problem.kernel)
    odd = outputs / 1e6 if problem.in_size[1] % 2 else 0.0  # whose rows are read element by element
    units = card.compute_units
    if walks and _comes_by_columns(problem, card):
        return 3.0 + 5.0 * outputs / 1e6 * 132 / units
    if walks and _comes_by_planes(problem, card):
        return 2.6 + (2.6 if problem.stride[0] == 1 else 6.1) * outputs / 1e6 * 132 / units
    if not walks:  # fit 14 layers on an H100: 13 are within a fifth
        known = 0.7 if problem.kernel[0] in (3, 5, 7) else 1  # rows of filters, by a kernel of their own
        each = known * (0.9 + 0.15 * taps + 0.6 * problem.kernel[1]) if _slides_down(problem) else 1 + 0.35 * taps
        return 3.0 + 0.9 * bytes_us + each * outputs / 1e6 * 132 / units
    rows = problem.out_size[0] + (problem.kernel[0] - 1) / problem.stride[0]
    walked = planes * rows * 2 * -(-problem.out_size[1] // 2) * taps
    begin = 5.7 if problem.kernel[0] >= 7 else 2.0
    return begin + 1.63 * bytes_us + 7.6e-6 * walked / units + 1.2 * odd + 1.7e-3 * planes * taps / units


_TILE, _TILE_CYCLES = 1.5, 1755.0  # microseconds, but for its cycles; which it has in a microsecond
_TILE_LONGER = {True: 1.2, False: 1.3}  # so much less has its time to be than others', of float32 (True), and of 16 bits


def depthwise_tile(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The cycles that its host code counts, or its bytes: of 80 layers on an H200 9 in 10 are within a third."""
    cycles = depthwise_tile_tiling.cycles(problem, card.compute_units, card.arch)
    us = _TILE + max(cycles / _TILE_CYCLES, _depthwise_bytes_us(problem, 0.2))
    return Estimate(_TILE_LONGER[problem.dtype == "float32"] * us)


_BANDED_ROWS, _BANDED_COLUMNS = 32, 32  # of outputs, that a wave makes at once


def depthwise_banded(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Add up the steps of its waves, the columns of outputs that each takes in turns, and the products of matrices.

    A fit to the same layers, of which 9 in 10 are within a third of it: it has to be less by an eighth.
    """
    rows, columns = problem.out_size
    alternates = problem.in_size[1] % 2 and problem.stride[0] % 2  # rows of outputs: even ones and odd ones apart
    strips = -(-rows // _BANDED_ROWS)
    if strips > 1 and not alternates:
        strips = -(-rows // (_BANDED_ROWS // 2))
    height = -(-rows // strips)
    together = 16 // -(-height // 2) if alternates else _BANDED_ROWS // height
    images = max(1, min(4, problem.batch, together)) if strips == 1 else 1
    steps = problem.out_channels * strips * -(-problem.batch // images)
    down = 2 if alternates or images * height > 16 else 1
    groups, atoms = -(-columns // _BANDED_COLUMNS), {1: 1, 2: 2}.get(-(-min(columns, _BANDED_COLUMNS) // 8), 4)
    windows = -(-(2 + 7 * problem.stride[1] + (problem.kernel[1] - 1) * problem.dilation[1]) // 16)
    products = steps * groups * problem.kernel[0] * windows * down * (atoms + 2)
    waves = (0.032 * steps * groups + 0.0028 * products + 0.0037 * problem.out_channels * strips) / card.compute_units
    us = (1.6 if problem.stride[1] > 3 else 1.14) * (4.7 + 1.3 * _depthwise_bytes_us(problem) + waves)
    return Estimate(us + _frame_us(problem), _tile(problem, card, tiles))


# Microseconds: but for what follows; of a row of outputs of a wave, by whether the stride is 1; of it for each wave of a
# compute unit, by the larger of the stride along rows and the step from row to row; and so much longer with more than seven
# rows of taps and a step of 1. Rows that are read element by element take so many times as long, by whether the stride is 1,
# and up to three rows of taps with steps of 3 and 4, whose kernels have room for seven.
_ROLLING, _ROLLING_STEP = 1.85, (0.28, 0.165)
_ROLLING_WAVE, _ROLLING_TALL, _ROLLING_ODD = {1: 0.018, 2: 0.046, 3: 0.1, 4: 0.17}, 0.014, (1.6, 1.9)
_ROLLING_FEW = 1.3


# The same of float32: but for what follows, of a row of outputs for each wave of a compute unit, by whether the stride is 1,
# and for each product of matrices. Its kernels, as csrc/kernels/conv2d/depthwise_rolling/single.cu has them: rows of taps, rows
# of x from one row of outputs to the next, columns from the first tap to behind the last, and products of a row of taps.
_ROLLING_SINGLE, _ROLLING_SINGLE_WAVE, _ROLLING_SINGLE_PRODUCT = 3.1, (0.067, 0.0285), (0.0015, 0.001)
_SINGLE_SHAPES = (
    *((3, 1, 9, 2), (5, 1, 9, 2), (7, 1, 9, 2), (9, 1, 9, 2), (3, 1, 17, 3), (7, 1, 17, 3), (11, 1, 17, 3)),
    *((3, 2, 10, 3), (5, 2, 10, 3), (7, 2, 10, 3), (11, 2, 17, 4)),
)


def _rolling_single_wave(problem: Problem, step: int) -> float:
    """Microseconds of a row of outputs of float32, for each wave."""
    reach, stride = (problem.kernel[1] - 1) * problem.dilation[1] + 1, problem.stride[1]
    taps, products = next(
        (taps, products)
        for taps, of_step, columns, products in _SINGLE_SHAPES
        if problem.kernel[0] <= taps and of_step == step and reach <= columns and 7 * stride + reach <= 8 * products
    )
    is_plain = step == stride == 1
    return _ROLLING_SINGLE_WAVE[is_plain] + _ROLLING_SINGLE_PRODUCT[is_plain] * taps * products


def depthwise_rolling(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Add up the rows of outputs of its waves, of 16 strips each, in as many segments as take least.

    A fit to 180 layers on an H200, of which 8 in 10 are within a fifth of it: it has to be less by 4 %. So is that of float32,
    to 128 layers.
    """
    tile = _tile(problem, card, tiles)
    classes, step = grid_axis(problem.kernel[0], problem.stride[0], problem.dilation[0])
    strips, rows = problem.batch * -(-problem.out_size[1] // tile[1]) * classes, -(-problem.out_size[0] // classes)
    halo = -(-problem.kernel[0] // step) - 1
    stride = max(step, problem.stride[1])
    if problem.dtype == "float32":
        begin, each_step = _ROLLING_SINGLE, 0.0
        each = _rolling_single_wave(problem, step)
    else:
        begin, each_step = _ROLLING, _ROLLING_STEP[stride == 1]
        odd = problem.in_size[1] % 2 or (problem.stride[0] == 1 and problem.out_size[1] % 2)
        each = _ROLLING_WAVE[min(4, stride)] * (_ROLLING_ODD[stride == 1] if odd else 1.0)
        each *= _ROLLING_FEW if step > 2 and problem.kernel[0] <= 3 else 1.0
        each += _ROLLING_TALL if step == 1 and problem.kernel[0] > 7 else 0.0

    def steps_us(segments: int) -> float:
        waves = -(-(-(-strips * segments // tile[0]) * problem.out_channels) // card.compute_units)
        return (each * waves + each_step) * (-(-rows // segments) + halo)

    us = begin + min(steps_us(segments) for segments in range(1, 1 + min(rows, 32)))
    return Estimate(1.04 * us + _frame_us(problem), tile)


_STRIPS = 2.0  # microseconds, but for its steps
# A row of outputs takes as long, by the stride, whatever the number of taps; measured on an H100, the second on an H200.
_STRIPS_STEP = {1: 0.85, 2: 2.3}


def depthwise_strips(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Add up the steps down the longest of its blocks' segments, of which as few are cut as keep compute units busy."""
    tile = _tile(problem, card, tiles)
    strips = problem.batch * -(-problem.out_size[1] // tile[1])
    channel_blocks = -(-problem.out_channels // (32 if tile[1] == 8 else 16))
    reach = (problem.kernel[0] - 1) * problem.dilation[0] + 1
    halo = ((5 if reach <= 5 else 7) - 1) // problem.stride[0]
    rows = problem.out_size[0]
    steps = min(
        -(-(-(-strips * segments // tile[0]) * channel_blocks) // card.compute_units) * (-(-rows // segments) + halo)
        for segments in range(1, 1 + min(rows, 16))
    )
    return Estimate(_STRIPS + max(_STRIPS_STEP[problem.stride[0]] * steps, 1.2 * _depthwise_bytes_us(problem)), tile)


_DIAGONAL_BYTES = 0.4  # so much of the time that the bytes take is not hidden behind the products
_DIAGONAL_FEW_ROWS = 1.15  # with up to three rows of taps it takes so much longer, measured on an H200


def depthwise_diagonal(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The steps of its blocks down segments of rows, cut where they take least, and a part of the bytes."""
    us = depthwise_diagonal_tiling.microseconds(problem, card.compute_units)
    bytes_us = _depthwise_bytes_us(problem, 0.0)
    longer = _DIAGONAL_FEW_ROWS if problem.kernel[0] <= 3 else 1.0
    return Estimate(math.inf if us is None else longer * (us + _DIAGONAL_BYTES * bytes_us), _tile(problem, card, tiles))


# ---- x that is repacked, or gathered -----------------------------------------------------------------------------------------

_REPACKING = 2.4  # microseconds, but for the bytes
_REPACKED_BYTES = {2: 2.7e6, 4: 3.5e6}  # read and written in a microsecond, by the bytes of an element
_REPACKED_ODD_BYTES = {2: 1.9e6, 4: 2.5e6}  # the same of contiguous images that are read pixel by pixel


def repacked(problem: Problem) -> Problem:
    """The GEMM gets this of x as conv2d/repacked/repacked.cu lays it out:
    a filter's row of few channels as one vector of channels, or all that a filter has where its places do not overlap.
    """
    each = 4 if problem.dtype == "float32" else 8
    if _has_places(problem):
        return problem._replace(in_channels=problem.products, in_size=problem.out_size, kernel=(1, 1), stride=(1, 1))
    if problem.in_channels > each or problem.kernel[1] == 1 or problem.groups > 1 or problem.dilation[1] > 1:
        return problem
    return problem._replace(in_channels=each * problem.kernel[1], kernel=(problem.kernel[0], 1), stride=(problem.stride[0], 1))


def _has_places(problem: Problem) -> bool:
    """Tell whether patches of x become pixels: as has_patches in csrc/kernels/conv2d/repacked/layout.h has it, of filters that
    lie in memory without gaps.
    """
    return (
        problem.in_channels <= (4 if problem.dtype == "float32" else 8)
        and problem.groups == 1
        and min(problem.kernel) > 1
        and problem.stride == problem.kernel
        and problem.dilation == (1, 1)
        and not any(problem.padding)
    )


def _repacking_us(problem: Problem, parts: int = 1) -> float:
    """x is read once, and written once for each part of its numbers."""
    if _has_places(problem):
        return _repacking_us(repacked(problem), parts)
    pixels = max(problem.pixels, problem.batch * math.prod(problem.in_size)) if problem.kernel != (1, 1) else problem.pixels
    element = _element_bytes(problem)
    each = 16 // element
    rates = _REPACKED_BYTES if problem.layout == "nhwc" or math.prod(problem.in_size) % 4 == 0 else _REPACKED_ODD_BYTES
    return _REPACKING + (1 + parts) * element * pixels * -(-problem.in_channels // each) * each / rates[element]


# ---- the implicit GEMM -------------------------------------------------------------------------------------------------------

# Microseconds of a tile: of a step that reads x by vectors, of everything else, and of the kernel that adds parts up, but for
# their bytes. These are no measurements but several times what warpgroups take, which are quicker wherever they serve.
_GEMM_TILE, _GEMM_STEP, _GEMM_REST, _GEMM_ADDING = (128, 64), 3.0, 16.0, 8.0
_GROUPED = 0.3  # measured: of these, with groups of few channels
_GATHERING = 1.2  # measured: of a step that reads x element by element, beyond one of vectors


def implicit_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """As if it read x element by element: where it reads it by vectors, nothing else that serves comes close."""
    few = _few_filters_us(problem, card)
    if few is not None and _FEW_FILTERS_TILE in tiles:
        return Estimate(few, _FEW_FILTERS_TILE)
    if problem.dtype == "float32":
        return _float32_gemm(problem, card, tiles, workspace_limit, problem.float32_precision)
    tile, parts = _tile_and_parts(problem, card, tiles, workspace_limit)
    steps = _rounds(problem, card, tile, parts) * -(-problem.products // step_of(problem)) / parts
    return Estimate(_gemm_us(problem, card, workspace_limit) + _GATHERING * steps, tile, parts)


_FEW_FILTERS_TILE = (64, 64)
_FEW_FILTERS_LEAST, _FEW_FILTERS_MOST = 24, 48  # of a tile that has room for 64
_FEW_FILTERS_BYTES = 3.0e6  # read and written in a microsecond
_FEW_FILTERS_BY_CHANCE = 1.08  # other estimates are off by as much


class _FewFiltersCost(NamedTuple):
    """Microseconds on an H100: of the launch; of a step and the rest of a tile, for each that a compute unit makes; of a step,
    whatever the tiles; and of the time that the bytes take.
    """

    launch: float
    step: float
    rest: float
    step_alone: float
    moved: float


_FEW_FILTERS_COSTS = {  # by the layout; fitted to 39 and 36 layers, from which eight in ten are a seventh off
    "nhwc": _FewFiltersCost(4.83, 0.118, 0.563, 0.115, 0.771),
    "nchw": _FewFiltersCost(3.81, 0.437, 1.176, 0.783, 0.839),
}


def _few_filters_us(problem: Problem, card: Card) -> float | None:
    """Estimate the tile of few filters where x is read by vectors of channels, or is contiguous with 1x1 filters (TF32, too).

    The many small blocks of a compute unit hide what warpgroups, whose tiles would be half empty, wait for.
    """
    element = _element_bytes(problem)
    by_vectors = problem.layout == "nhwc" and problem.in_channels % 8 == 0 and element == 2
    by_pixels = problem.layout == "nchw" and problem.kernel == (1, 1) and (element == 2 or problem.float32_precision == "tf32")
    few = _FEW_FILTERS_LEAST <= problem.out_channels <= _FEW_FILTERS_MOST and problem.groups == 1
    many_tiles = blocks_of(problem, _FEW_FILTERS_TILE) >= card.compute_units
    if not (few and many_tiles and (by_vectors or by_pixels)):
        return None
    costs = _FEW_FILTERS_COSTS[problem.layout]
    rounds = max(1.0, blocks_of(problem, _FEW_FILTERS_TILE) / card.compute_units)
    steps = -(-problem.in_channels // step_of(problem)) * math.prod(problem.kernel)
    size = _moved_bytes(problem)
    tiles = rounds * (costs.step * steps + costs.rest)
    us = costs.launch + tiles + costs.step_alone * steps + costs.moved * size / _FEW_FILTERS_BYTES
    return _FEW_FILTERS_BY_CHANCE * us


def split_implicit_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Beside implicit_gemm, which serves the same calls by plain FMAs: never with so few products that rounding would show."""
    if problem.products < LEAST_SPLIT_PRODUCTS:
        return last_resort(problem, card, tiles, workspace_limit)
    return _float32_gemm(problem, card, tiles, workspace_limit, "split")


# Microseconds on an H200: of a step of a tile of 128 pixels by 64 filters that is read by vectors, element by element, and so
# with channels that do not fill their chunks; of the rest of a tile; and of adding parts up, but for their bytes.
_FLOAT32_STEPS = {"ieee": (2.4, 2.7, 3.3), "split": (2.1, 2.8, 3.4), "tf32": (0.5, 1.0, 1.6)}
_FLOAT32_REST, _FLOAT32_ADDING = 5.0, 3.0
# Fitted to 660 layers on an H100: bytes of x, and of out by its layout, that float32's GEMMs move in a microsecond; the time of
# their products comes on top.
_FLOAT32_READ, _FLOAT32_STORED = 2.0e6, {"nchw": 0.48e6, "nhwc": 0.7e6}


def _float32_stored_us(problem: Problem) -> float:
    return 4 * problem.pixels * problem.out_channels / _FLOAT32_STORED[problem.layout]


def _float32_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int, products: str) -> Estimate:
    tile, parts = _tile_and_parts(problem, card, tiles, workspace_limit)
    channels = problem.in_channels // problem.groups
    read = 2 if channels % 4 != 0 else 1 if problem.layout == "nchw" else 0
    step = _FLOAT32_STEPS[products][read] * math.prod(tile) / (128 * 64)
    steps = -(-(-(-channels // 4) * 4 * math.prod(problem.kernel)) // step_of(problem)) / parts
    us = _rounds(problem, card, tile, parts) * steps * step + _FLOAT32_REST + _float32_stored_us(problem)
    us += 4 * problem.batch * problem.in_channels * math.prod(problem.in_size) / _FLOAT32_READ
    if parts > 1:
        us += _FLOAT32_ADDING + 2 * workspace_bytes(problem, parts) / _PARTS_BYTES
    return Estimate(us, tile, parts)


# ---- plain products of float32 -----------------------------------------------------------------------------------------------


class _FmaCost(NamedTuple):
    """Microseconds of a tile on an H100, of x read by vectors: fitted to 811 layers with every tile, from which they are an
    eighth off; of the tiles that they choose, nine in ten are the fastest.
    """

    products: int  # of a turn
    turn: float  # of a compute unit, for each of its blocks
    turn_alone: float  # of a block that has a compute unit for itself
    rest: float
    blocks_a_unit: int
    store: float  # of an output that is stored by elements


_FMA_COSTS = {
    (128, 64): _FmaCost(8, 0.44, 0.70, 1.2, 4, 1.5e-3),
    (256, 32): _FmaCost(8, 0.58, 0.73, 1.2, 3, 1.7e-3),
    (256, 16): _FmaCost(8, 0.42, 0.63, 0.1, 3, 1.1e-3),
    (64, 32): _FmaCost(16, 0.34, 0.57, 0.0, 4, 1.1e-3),
    (16, 32): _FmaCost(128, 1.44, 1.27, 0.9, 2, 0.0),
}
_FMA_LAUNCH, _FMA_BYTES = 2.2, 2.6e6  # microseconds; bytes in a microsecond
_FMA_ELEMENTS, _FMA_TAPS = 0.86, 1.06  # of the time of a turn: of x read by elements, and with more than one tap


def fma_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The time of a compute unit's turns, and of all bytes."""
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    size = _moved_bytes(problem)
    along_filters = problem.layout == "nhwc" or problem.out_size == (1, 1)
    by_elements = (problem.filters if along_filters else math.prod(problem.out_size)) % 4 != 0
    by_vectors = problem.layout == "nhwc" and problem.in_channels // problem.groups % 4 == 0
    slower = (1.0 if by_vectors else _FMA_ELEMENTS) * (1.0 if problem.kernel == (1, 1) else _FMA_TAPS)

    def cost(tile: Tile) -> float:
        costs = _FMA_COSTS[tile]
        blocks = blocks_of(problem, tile) / card.compute_units
        us = -(-problem.products // costs.products) * max(costs.turn_alone, blocks * costs.turn * slower)
        us += costs.rest * max(1.0, blocks / costs.blocks_a_unit)
        return us + by_elements * costs.store * problem.pixels * problem.out_channels / card.compute_units

    best = min(tiles, key=cost)
    return Estimate(_FMA_LAUNCH + cost(best) + size / _FMA_BYTES, best)


_FMA_DIRECT, _FMA_DIRECT_CYCLES = 2.0, 1750  # microseconds, but for its blocks; their cycles in a microsecond


def fma_direct(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The cycles that its host code counts: of 290 calls on an H200 8 in 10 are within a third.

    It has to be less by a tenth.
    """
    cycles = fma_direct_tiling.cycles(problem, card.compute_units, card.arch)
    return Estimate(1.1 * (_FMA_DIRECT + cycles / _FMA_DIRECT_CYCLES))


def relaid_implicit_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    us = _gemm_us(problem, card, workspace_limit) + _repacking_us(problem)
    return Estimate(us, *_tile_and_parts(repacked(problem), card, tiles, workspace_limit))


def _gemm_us(problem: Problem, card: Card, workspace_limit: int) -> float:
    """Estimate the GEMM on x that it reads by vectors: the same whether x was repacked or not."""
    parts = _parts(problem, card, blocks_of(problem, _GEMM_TILE), workspace_limit)
    steps = -(-problem.products // step_of(problem)) / parts
    us = _rounds(problem, card, _GEMM_TILE, parts) * (steps * _GEMM_STEP + _GEMM_REST)
    if problem.groups > 1:
        us *= _GROUPED  # beside `direct`, what it takes has to be near the truth
    return us if parts == 1 else us + _GEMM_ADDING + 2 * workspace_bytes(problem, parts) / _PARTS_BYTES


def _rounds(problem: Problem, card: Card, tile: Tile, parts: int) -> float:
    """Tiles that a compute unit makes one after another."""
    return max(1.0, blocks_of(problem, tile) * parts / card.compute_units)


def _tile_and_parts(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> tuple[Tile, int]:
    tile = _tile(problem, card, tiles)
    return tile, _parts(problem, card, blocks_of(problem, tile), workspace_limit)


def _tile(problem: Problem, card: Card, tiles: Tiles) -> Tile:
    """Tiles for (nearly) every compute unit first; then little padding behind the last filter; then the largest."""
    enough = [tile for tile in tiles if blocks_of(problem, tile) >= ENOUGH * card.compute_units]
    if not enough:
        return max(tiles, key=lambda tile: (blocks_of(problem, tile), -tile[0] * tile[1], tile))
    padded = {tile: -(-problem.filters // tile[1]) * tile[1] for tile in enough}
    least = min(padded.values())
    return max((tile for tile in enough if padded[tile] <= 1.25 * least), key=lambda tile: (tile[0] * tile[1], tile))


# ---- warpgroups --------------------------------------------------------------------------------------------------------------


class _TileCost(NamedTuple):
    """Microseconds of a tile of warpgroups, as an H200 takes them: of a step, and of everything else. Fitted to tiles of 1,460
    layers there, from which they are a tenth off; of TF32's planes, a fifth. Those of turns are fitted to 106 layers.
    """

    step: float
    step_alone: float  # of a block that has a compute unit for itself
    rest: float
    blocks_a_unit: int
    last: float = 0.0  # beside the last tile, whose sums are stored when no products are left


# A tile of 256 pixels is two of 128, which a compute unit's warpgroups make in turns: its costs are those of a turn.
_WARPGROUP_COSTS = {
    (256, 128): _TileCost(0.314, 0.283, 1.6, 1, 3.1),
    (128, 128): _TileCost(0.37, 0.29, 2.2, 1),
    (128, 64): _TileCost(0.53, 0.187, 1.8, 2),
    (64, 64): _TileCost(0.27, 0.132, 1.4, 2),
}
_PATCH_COSTS = {  # where a stage of x serves all taps
    (256, 128): _TileCost(0.309, 0.33, 1.24, 1, 2.3),
    (128, 128): _TileCost(0.36, 0.33, 1.7, 1),
    (128, 64): _TileCost(0.37, 0.157, 1.6, 2),
    (64, 64): _TileCost(0.18, 0.098, 2.0, 2),
}
_TF32_PATCH_COSTS = {tile: costs._replace(rest=2 * costs.rest) for tile, costs in _PATCH_COSTS.items()}
_TF32_PATCH_COSTS[256, 128] = _TileCost(0.27, 0.2, 0.83, 1, 11.8)
_WINDOW_COSTS = {  # of pixels that overlap in memory: a filter's row of few channels, repacked
    (256, 128): _TileCost(0.5, 0.5, 1.5, 1, 1.6),
    (128, 128): _TileCost(0.8, 0.8, 1.1, 1),
    (128, 64): _TileCost(1.45, 0.5, 0.6, 2),
}
_WINDOWS = 1.8  # microseconds more than these
_GATHERED_COSTS = {  # of x that waves gather
    (128, 128): _TileCost(1.5, 1.5, 0.4, 1),
    (128, 64): _TileCost(1.5, 1.5, 0.0, 1),
}
_GATHERED_PATCH_COSTS = {tile: costs._replace(step=0.62, step_alone=0.62) for tile, costs in _GATHERED_COSTS.items()}
_PLANE_COSTS = {  # of contiguous images whose channels are multiplied as they lie in memory
    (256, 128): _TileCost(0.295, 0.242, 2.3, 1, 4.0),
    (128, 128): _TileCost(0.53, 0.28, 3.2, 1),
    (128, 64): _TileCost(0.71, 0.155, 2.3, 2),
    (64, 64): _TileCost(0.28, 0.12, 2.2, 2),
}
_TF32_PLANE_COSTS = {  # the same of TF32, by registers
    (256, 128): _TileCost(0.234, 0.256, 1.94, 1, 8.3),
    (128, 128): _TileCost(0.49, 0.40, 2.5, 1),
    (128, 64): _TileCost(0.74, 0.30, 2.0, 2),
    (64, 64): _TileCost(0.47, 0.22, 1.3, 2),
}
_SPLIT_COSTS = {  # of float32 in two parts: three products for one
    (128, 128): _TileCost(1.26, 0.96, 1.7, 1),
    (128, 64): _TileCost(0.75, 0.53, 0.95, 1),
    (64, 64): _TileCost(0.85, 0.40, 0.89, 2),
}
_LAUNCHING = 1.2  # microseconds, beside all tiles
_BEHIND_REPACKING = 0.8  # microseconds more of warpgroups that begin behind it
_BY_ELEMENTS = 2.5  # microseconds of a tile whose outputs are stored one by one, along filters
_PIXELS_BY_ELEMENTS = 1.6e-6  # of an output in a contiguous image whose pixels are no vectors of eight
_UNFILLED, _UNFILLED_FLOAT32 = 0.9, 0.33  # a step of which channels fill nothing takes so much longer
_ADDING = 3.8  # microseconds of adding up parts, but for their bytes
_PART_BYTES, _PARTS_BYTES = 1.3e5, 5e6  # of parts, in a microsecond: that a compute unit reads; that all write and read
# The same within clusters: once, for each time that a block's threads make a vector of outputs each, or half of one that is
# stored by elements, and for each part.
_ADDING_IN_CLUSTERS, _CLUSTER_VECTOR, _CLUSTER_ELEMENTS, _CLUSTER_PART = 0.5, 0.6, 1.2, 0.06
_MOST_OF_CLUSTER, _CLUSTERED_UNITS = 8, 3 / 4  # blocks of a cluster; the share of the compute units that clusters may fill
_SHARED_SUMS, _VECTOR = 512, 8  # sums of a tile that a block of a cluster makes as one; of a vector


# Microseconds; bytes of x and out in a microsecond, and those where pixels of out begin inside sectors.
_WARPGROUP_LEAST, _WARPGROUP_BYTES, _WARPGROUP_UNALIGNED_BYTES = 2.8, 3e6, 2.3e6
# Fitted to 171 layers on an H200, from which the estimates are a tenth off: bytes of x, and of out by its layout, that
# warpgroups move in a microsecond of TF32 besides what their tiles take.
_TF32_READ, _TF32_STORED = 1.4e7, {"nchw": 5.8e6, "nhwc": 1.4e7}
_SPLIT_STORED = {"nchw": 2.5e6, "nhwc": 4e6}  # the same of float32 in parts, fitted to 130 layers
_HALF_EMPTY = 1.65  # measured on an H100: 128 to 32 channels of 28x28, and 256 to 36 of 56x56, stride 2, 32 images
_UNFILLED_STEPS = 0.45  # of the time that tiles of channels_last x take longer, by the part of steps that no channels fill


def warpgroup_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    estimate = _warpgroups_in_place(problem, card, tiles, workspace_limit)
    if problem.layout == "nhwc":
        estimate = _with_unfilled_steps(problem, estimate)
    if problem.dtype == "float32":
        return estimate._replace(us=estimate.us + _tf32_moved_us(problem))
    if _half_empty(problem, card, estimate.tile):
        estimate = estimate._replace(us=estimate.us * _HALF_EMPTY)
    size = _moved_bytes(problem)
    unaligned = problem.layout == "nhwc" and problem.out_channels % 16 != 0
    rate = _WARPGROUP_UNALIGNED_BYTES if unaligned else _WARPGROUP_BYTES
    return estimate._replace(us=max(estimate.us, _WARPGROUP_LEAST + size / rate))


def _half_empty(problem: Problem, card: Card, tile: Tile) -> bool:
    """Tell whether filters of several taps fill half a tile, and some compute units have two tiles and others one."""
    blocks = blocks_of(problem, tile) / card.compute_units
    few = 24 <= problem.out_channels <= 40 and problem.kernel != (1, 1) and problem.layout == "nhwc"
    return few and 1 < blocks <= 2


def _tf32_moved_us(problem: Problem) -> float:
    read = 4 * problem.batch * problem.in_channels * math.prod(problem.in_size) / _TF32_READ
    return read + 4 * problem.pixels * problem.out_channels / _TF32_STORED[problem.layout]


def _with_unfilled_steps(problem: Problem, estimate: Estimate) -> Estimate:
    if problem.dtype == "float32":
        return estimate
    channels = problem.in_channels // problem.groups
    unfilled = 1 - channels / (-(-channels // step_of(problem)) * step_of(problem))
    return estimate._replace(us=estimate.us * (1 + _UNFILLED_STEPS * unfilled))


def _warpgroups_in_place(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    if problem.layout == "nhwc":
        return _warpgroups(problem, card, tiles, workspace_limit, _WARPGROUP_COSTS, _patch_costs(problem))
    if _has_planes(problem):
        pieces = problem.batch * -(-math.prod(problem.out_size) // _PIECE)
        costs_of = _TF32_PLANE_COSTS if problem.dtype == "float32" else _PLANE_COSTS
        return _warpgroups(problem._replace(batch=1, out_size=(1, _PIECE * pieces)), card, tiles, workspace_limit, costs_of)
    return _warpgroups(problem, card, tiles, workspace_limit, _GATHERED_COSTS, _GATHERED_PATCH_COSTS)


def _patch_costs(problem: Problem) -> dict[Tile, _TileCost]:
    return _TF32_PATCH_COSTS if problem.dtype == "float32" else _PATCH_COSTS


def split_warpgroup_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Behind a kernel that reads x and filters once and writes both of their parts."""
    if problem.products < LEAST_SPLIT_PRODUCTS:
        return last_resort(problem, card, tiles, workspace_limit)
    inner = repacked(problem) if _has_places(problem) else problem
    whole_rows = inner._replace(in_channels=-(-inner.in_channels // 32) * 32)
    estimate = _warpgroups(whole_rows, card, tiles, workspace_limit, _SPLIT_COSTS)
    filters = 3 * 4 * inner.out_channels * inner.products / _REPACKED_BYTES[4]
    stored = 4 * problem.pixels * problem.out_channels / _SPLIT_STORED[problem.layout]
    return estimate._replace(us=estimate.us + _repacking_us(whole_rows, parts=2) + filters + stored)


def relaid_warpgroup_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    inner = repacked(problem)
    windows = inner is not problem and not _has_places(problem)
    costs_of = (_WINDOW_COSTS,) if windows else (_WARPGROUP_COSTS, _patch_costs(inner))
    estimate = _warpgroups(inner, card, tiles, workspace_limit, *costs_of)
    estimate = estimate._replace(us=estimate.us + _WINDOWS) if windows else _with_unfilled_steps(inner, estimate)
    us = estimate.us + _repacking_us(problem) + _BEHIND_REPACKING
    if problem.dtype == "float32":
        us += _tf32_moved_us(problem)
    # On none of 60 layers of 16 bits that were measured repacking paid.
    if problem.layout == "nchw" and problem.dtype != "float32" and _has_planes(problem):
        us = max(us, 1.05 * warpgroup_gemm(problem, card, tiles, workspace_limit).us)
    return estimate._replace(us=us)


def _warpgroups(
    problem: Problem,
    card: Card,
    tiles: Tiles,
    workspace_limit: int,
    costs_of: dict[Tile, _TileCost],
    costs_of_patches: dict[Tile, _TileCost] | None = None,
) -> Estimate:
    """The tile and the parts of each sum that take least by the costs above: whole tiles a compute unit count,
    and long sums.
    """
    gathers = costs_of is _GATHERED_COSTS
    channels = problem.in_channels // problem.groups
    slower = _UNFILLED_FLOAT32 if problem.dtype == "float32" else _UNFILLED
    unfilled = 1 + slower * (1 - channels / (-(-channels // step_of(problem)) * step_of(problem)))
    vector = 4 if problem.dtype == "float32" else 8
    by_elements = _BY_ELEMENTS if problem.layout == "nhwc" and problem.filters % vector != 0 else 0.0
    has_vectors = (problem.filters if problem.layout == "nhwc" else math.prod(problem.out_size)) % _VECTOR == 0
    channel_steps, taps = -(-problem.in_channels // problem.groups // step_of(problem)), math.prod(problem.kernel)

    def steps_a_stage(tile: Tile) -> int:  # of the mainloop: a sum is split between stages
        return taps if _has_patches(problem, _of_a_turn(tile)[0], 64 if gathers else 8) else 1

    def cost(plan: tuple[Tile, int]) -> float:
        tile, parts = plan
        turn = _of_a_turn(tile)
        steps, blocks, part_bytes = steps_a_stage(tile), blocks_of(problem, turn) * parts, 4 * math.prod(turn)
        costs = (costs_of_patches if costs_of_patches and steps > 1 else costs_of)[tile]
        # As conv2d/warpgroup_gemm/warpgroup_gemm.cu has it.
        for_clusters = math.ceil(card.compute_units * _CLUSTERED_UNITS)
        in_clusters = 1 < parts <= _MOST_OF_CLUSTER and tile[0] < 256 and blocks <= for_clusters * costs.blocks_a_unit
        step = costs.step_alone if blocks <= (for_clusters if in_clusters else card.compute_units) else costs.step
        rounds = -(-blocks // (card.compute_units * costs.blocks_a_unit))
        us = rounds * (-(-channel_steps * taps // steps // parts) * steps * step * unfilled + costs.rest + by_elements)
        us += _LAUNCHING + costs.last
        if parts == 1:
            return us
        if in_clusters:
            shares = -(-math.prod(turn) // _SHARED_SUMS // parts)
            each, round_us = (_VECTOR, _CLUSTER_VECTOR) if has_vectors else (_VECTOR // 2, _CLUSTER_ELEMENTS)
            rounds = -(-shares * _SHARED_SUMS // each // (128 if tile[0] == 64 else 256))
            return us + _ADDING_IN_CLUSTERS + round_us * rounds + _CLUSTER_PART * parts
        return us + _ADDING + parts * part_bytes / _PART_BYTES + 2 * blocks * part_bytes / _PARTS_BYTES

    plans = [
        (tile, parts)
        for tile in tiles
        if tile in costs_of
        for parts in range(1, min(MOST_PARTS, channel_steps * taps // steps_a_stage(tile)) + 1)
        if parts == 1 or workspace_bytes(problem, parts) <= workspace_limit
    ]
    if not plans:  # for tiles without costs
        return last_resort(problem, card, tiles, workspace_limit)
    best = min(plans, key=cost)
    by_pixels = problem.layout == "nchw" and problem.dtype != "float32" and math.prod(problem.out_size) % 8 != 0
    return Estimate(cost(best) + by_pixels * problem.pixels * problem.out_channels * _PIXELS_BY_ELEMENTS, *best)


_PIECE = 64  # pixels of an image that a product of warpgroups takes


def _of_a_turn(tile: Tile) -> Tile:
    """Return what a warpgroup makes in its turn, as pixels_of_turn in csrc/kernels/conv2d has it."""
    return (128 if tile[0] == 256 else tile[0], tile[1])


def _has_planes(problem: Problem) -> bool:
    """Tell whether contiguous x is multiplied as it lies in memory: as x_source_of in csrc/kernels/conv2d has it."""
    return (
        (problem.kernel, problem.stride, problem.padding) == ((1, 1), (1, 1), (0, 0, 0, 0))
        and math.prod(problem.out_size) % (4 if problem.dtype == "float32" else 8) == 0
        and (problem.groups == 1 or problem.in_channels // problem.groups % step_of(problem) == 0)
    )


def _has_patches(problem: Problem, tile_m: int, columns: int) -> bool:
    """Tell whether one stage serves all taps: as patches_serve in csrc/kernels/conv2d/gemm/layout.h has it."""
    if (problem.kernel, problem.stride, problem.dilation) != ((3, 3), (1, 1), (1, 1)):
        return False
    covered = [-(-size // of) * of for size, of in zip(problem.out_size, (tile_m // columns, columns), strict=True)]
    return math.prod(covered) * 4 <= math.prod(problem.out_size) * 5


# ---- Winograd ----------------------------------------------------------------------------------------------------------------

WINOGRAD = {"winograd_f4": 4, "winograd_f2": 2}
"""The rows and columns of outputs of a tile. No card was measured with them, so they are taken by name alone."""


def winograd_f4(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    return _winograd(problem, card, tiles, workspace_limit, WINOGRAD["winograd_f4"])


def winograd_f2(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    return _winograd(problem, card, tiles, workspace_limit, WINOGRAD["winograd_f2"])


def _winograd(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int, outputs: int) -> Estimate:
    """The tile that is best for the product of the planes."""
    planes = of_planes(problem, outputs, workspace_limit)
    if all(tile in _WARPGROUP_COSTS for tile in tiles) and card.arch == "sm_90":
        return Estimate(math.inf, _warpgroups(planes, card, tiles, 0, _WARPGROUP_COSTS).tile)
    return last_resort(planes, card, tiles, workspace_limit)


def of_planes(problem: Problem, outputs: int, workspace_limit: int) -> Problem:
    """The GEMM gets this of a chunk, as csrc/kernels/conv2d/winograd/layout.h has it: a group for each plane,
    a pixel for each tile.
    """
    planes = (outputs + 2) ** 2
    channels, filters = -(-problem.in_channels // 64) * 64, -(-problem.out_channels // 8) * 8
    tiles = problem.batch * math.prod(-(-size // outputs) for size in problem.out_size)
    of_tile, own = 2 * planes * (channels + filters) + 4, 2 * planes * channels * filters
    most = max(1, min(tiles, (workspace_limit - own - 4 * filters - 1024) // of_tile))
    chunk = -(-tiles // -(-tiles // most))
    size = (1, chunk)
    return problem._replace(
        batch=1, in_channels=planes * channels, in_size=size, out_channels=planes * filters, kernel=(1, 1), out_size=size,
        padding=(0, 0, 0, 0), groups=planes, dtype="float16", layout="nhwc",
    )  # fmt: skip


# ---- few channels or few filters ---------------------------------------------------------------------------------------------


def direct(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The larger of the bytes' time and the instructions' time."""
    bundle, lds = direct_tiling.bundle_of(problem), direct_tiling.lds_of(card.arch)

    def cost(tile: Tile) -> float:
        t = direct_tiling.tiling_of(problem, tile, lds)
        if t is None:
            return math.inf
        of_chunk = float(_OF_CHUNK if bundle.by_vectors else _OF_GATHERED)
        if bundle.by_vectors and bundle.bundles > 1 and t.chunks < 3:  # reads of 32 bytes
            of_chunk *= _NARROW
        of_wave = _OF_WAVE + t.passes * _OF_PASS + t.steps * _OF_STEP[t.atoms] + t.staged * of_chunk / t.waves / 32
        waves = t.blocks * t.waves
        busy = min(1.0, waves / (card.compute_units * _ENOUGH_WAVES))
        alone = of_wave * -(-waves // (card.compute_units * _MOST_WAVES)) / _RATE_OF_WAVE
        us = t.steps * _WAITING + max(alone, waves * of_wave / (card.compute_units * _RATE * busy))
        us *= 1 + _LONGER_BY_PASS * (t.passes - 1) + _LONGER_BY_PIXEL * (tile[0] - 128)
        us *= _DIRECT_AGAIN.get(card.arch, 1.0) if problem.kernel != (1, 1) else 1.0
        if problem.groups == problem.in_channels and problem.layout == "nhwc":
            us *= 1 + _STRIDED * (problem.stride[0] - 1)
        return us * (_CONTIGUOUS if problem.layout == "nchw" else 1.0)

    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    best = min(tiles, key=cost)
    size = _moved_bytes(problem)
    storing = 0.0
    if problem.layout == "nchw":
        storing = problem.pixels * problem.out_channels * (_ALONG_PIXELS + _DIRECT_ELEMENT * (problem.out_size[1] % 4 != 0))
    return Estimate(_DIRECT_LAUNCH + max(cost(best), size / _DIRECT_BYTES) + storing, best)


# Instructions of a wave of 32 lanes: beside its sums; of a pass; of a step, of 16 filters or 32; of a chunk of x that is
# copied, or gathered. All of these were fitted to 5,800 times on an H200 and an H100, of 607 layers with their tiles, and are a
# sixteenth off where `direct` is among the fastest.
_OF_WAVE, _OF_PASS, _OF_STEP, _OF_CHUNK, _OF_GATHERED = 1400, 57, {1: 38, 2: 91}, 29, 171
_RATE, _RATE_OF_WAVE = 3690.0, 470.0  # that a compute unit, and a wave, executes in a microsecond
_ENOUGH_WAVES, _MOST_WAVES = 8.8, 12  # of a compute unit
_NARROW = 2.0  # of chunks that lie alone in x
_STRIDED = 0.14  # that a stride adds to the time of depthwise layers in channels_last, measured on an H200
_LONGER_BY_PASS = 0.078  # that a pass adds to the time, as a block waits for its part of the patch
_LONGER_BY_PIXEL = 7.8e-4  # that a pixel of a tile adds to it: of tiles that should take as long, the smaller one was faster
_CONTIGUOUS = 1.2  # where x and out are contiguous, which are gathered and stored by pixels
_WAITING = 0.147  # microseconds of a step that a sum waits for its filters
_ALONG_PIXELS, _DIRECT_ELEMENT = 3.0e-7, 2.2e-6  # microseconds of an output that is stored along pixels; alone
# With larger filters than 1x1 it takes this part of all that, where it is among the fastest, on an H200; other cards' times are
# not known.
_DIRECT_AGAIN = {"sm_90": 0.763}
_DIRECT_LAUNCH, _DIRECT_BYTES = 3.0, 4.0e6  # microseconds; bytes in a microsecond


# ---- 1x1 filters that fit LDS ------------------------------------------------------------------------------------------------

# Fitted to 31 layers on an H200, and a fourteenth off: microseconds of a launch; bytes of filters in LDS, and of memory, in a
# microsecond, the latter for up to 128 channels, whose reads are ahead, and for more.
_POINTWISE, _POINTWISE_FILTERS, _POINTWISE_BYTES = 2.9, 1.5e4, (4.2e6, 3.1e6)
_POINTWISE_RATE = 4000.0  # instructions that a compute unit executes in a microsecond
_OF_FILTERS, _OF_PIECE = 200, 25.5  # instructions for 32 filters, and for 32 channels of these
_BY_WORDS = 1.2  # how many more there are where channels of x or out are not multiples of 8
_POINTWISE_BOTH = 0.33  # of the shorter one of both times shows


def pointwise(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The bytes' time and the instructions' time: of a wave, for 16 pixels, and 32 filters after another."""
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    pieces, groups = -(-problem.in_channels // 32), -(-problem.out_channels // 32)
    pieces = pieces if pieces <= 4 else 8  # as csrc/kernels/conv2d/pointwise/pointwise.cu has it
    moved = 2 * problem.pixels * (problem.in_channels + problem.out_channels) / _POINTWISE_BYTES[pieces > 4]
    instructions = problem.pixels / 16 * groups * (_OF_FILTERS + _OF_PIECE * pieces)
    if problem.in_channels % 8 != 0 or problem.out_channels % 8 != 0:
        instructions *= _BY_WORDS
    executed = instructions / (card.compute_units * _POINTWISE_RATE)
    begin = _POINTWISE + groups * 2048 * pieces / _POINTWISE_FILTERS
    return Estimate(begin + max(moved, executed) + _POINTWISE_BOTH * min(moved, executed), tiles[0])


# ---- few filters -------------------------------------------------------------------------------------------------------------

# Fitted to 22 layers on an H100, and a tenth off; a launch is an H200's. Microseconds of a launch with its filters; of a
# compute unit, for a pixel with its stores, and for 32 channels of it, by how x is read; how much longer more than 32 columns
# take; bytes of memory.
_FILTERS_LAUNCH, _FILTERS_PIXEL = 5.0, 0.0035
_FILTERS_PIECE, _FILTERS_COLUMNS, _FILTERS_BYTES = {"vectors": 0.0029, "pairs": 0.0053, "elements": 0.0095}, 1.3, 3.0e6


def few_filters(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """A compute unit's time for its pixels, a halo included, and the bytes' time."""
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    even = problem.layout == "nchw" and problem.in_size[1] % 2 == 0
    read = "vectors" if problem.layout == "nhwc" and problem.in_channels % 8 == 0 else "pairs" if even else "elements"
    halo = [(taps - 1) * dilation for taps, dilation in zip(problem.kernel, problem.dilation, strict=True)]
    pixels = problem.pixels * (1 + halo[0] / 16) * (1 + halo[1] / 32)
    columns = problem.out_channels * math.prod(problem.kernel)
    of_pixel = _FILTERS_PIXEL + _FILTERS_PIECE[read] * -(-problem.in_channels // 32)
    if columns > 32:
        of_pixel *= _FILTERS_COLUMNS
    size = _moved_bytes(problem)
    return Estimate(_FILTERS_LAUNCH + max(pixels / card.compute_units * of_pixel, size / _FILTERS_BYTES), tiles[0])


# ---- sums of few products ----------------------------------------------------------------------------------------------------

# Fitted to 30 layers on an H100, and a twelfth off; a launch is an H200's. Microseconds of a launch with its tables, and more
# of one that stores elements one by one; of filters in LDS, for 32 of them and a piece of 32 products; those of a compute unit
# for 16 pixels, beside them for 32 filters (along filters, and along pixels, by vectors and one by one), and for each piece but
# the first, of pairs and of single elements; bytes of memory.
_FEW, _FEW_ELEMENTS, _FEW_FILTERS, _FEW_BYTES = 2.3, 1.1, 0.3, 3.0e6
_FEW_TILE, _FEW_GROUP, _FEW_PIECE = 0.015, {"nhwc": 0.045, "nchw": 0.065, "elements": 0.155}, {True: 0.03, False: 0.045}
_FEW_MOST_PIECES = 6
_FEW_BOTH = 0.33  # of the shorter one of both times shows


def _few_order(problem: Problem) -> tuple[int, bool]:
    """Count the pieces of 32 products, and tell whether they are read in pairs: as order_of in
    csrc/kernels/conv2d/few_products/few_products.cu has it.
    """
    inside = problem.layout == "nhwc" and problem.in_channels > 1
    of_column = problem.in_channels if inside else 1
    runs = problem.kernel[0] * (1 if inside else problem.in_channels)
    length = problem.kernel[1] * of_column

    def pieces_of(products: int) -> int:
        pieces = -(-products // 32)
        return pieces if pieces <= 3 else _FEW_MOST_PIECES

    alone = pieces_of(runs * length)
    even = problem.stride[1] * of_column % 2 == 0 and problem.in_size[1] * of_column % 2 == 0
    if not even or (problem.dilation[1] != 1 and problem.kernel[1] > 1):
        return alone, False
    length = -(-(problem.padding[2] * of_column % 2 + length) // 2) * 2
    paired = pieces_of(runs * length)
    fits = runs * length <= 32 * _FEW_MOST_PIECES and paired < 2 * alone
    return (paired, True) if fits else (alone, False)


def few_products(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The bytes' time and the compute units' time, for 16 pixels and 32 filters after another."""
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    groups, (pieces, pairs) = -(-problem.out_channels // 32), _few_order(problem)
    stores = problem.layout
    if problem.out_channels % 2 != 0 if stores == "nhwc" else math.prod(problem.out_size) % 4 != 0:
        stores = "elements"
    moved = _moved_bytes(problem)
    of_tile = _FEW_TILE + groups * _FEW_GROUP[stores] + (pieces - 1) * _FEW_PIECE[pairs]
    copied, executed = moved / _FEW_BYTES, -(-problem.pixels // (16 * card.compute_units)) * of_tile
    begin = _FEW + (_FEW_ELEMENTS if stores == "elements" else 0.0) + _FEW_FILTERS * groups * pieces
    return Estimate(begin + max(copied, executed) + _FEW_BOTH * min(copied, executed), tiles[0])


# ---- small problems ----------------------------------------------------------------------------------------------------------


class _WaveCost(NamedTuple):
    """Microseconds of waves on an H200, by how they read operands: fitted to 175 small layers with every tile,
    from which they are a twentieth off.
    """

    launch: float
    block: float
    doubled: float  # that a block of twice as many waves takes longer
    step: float  # of 32 products, of one wave after another
    crowded: float  # how much longer a step takes where compute units have all the blocks they have room for
    store: float  # of an element, or of a vector, that a thread stores
    read: float  # of a megabyte that blocks read


_WAVE_COSTS = {
    "vectors": _WaveCost(0.42, 1.31, 0.68, 0.72, 0.17, 0.20, 0.10),
    "words": _WaveCost(0.78, 0.06, 0.36, 1.49, 0.38, 0.14, 0.13),
    "planes": _WaveCost(0.79, 0.86, 0.83, 0.84, 0.12, 0.38, 0.13),
    "elements": _WaveCost(1.39, 2.26, 0.36, 2.95, 0.06, 0.34, 0.06),
    "elements, nhwc": _WaveCost(1.01, 0.37, 0.28, 3.03, 0.06, 0.80, 0.13),
}
_WAVE_BLOCKS = 2  # of a compute unit
_WAVE_THREADS, _WAVE_PIXELS = 256, 128  # of a block; pixels that its waves make where they share no sum


def wave_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """Waves one after another: what each waits for, and how many of them a compute unit has. In two parts, a block has twice
    as many waves.
    """
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    taps, channels = math.prod(problem.kernel), problem.in_channels // problem.groups
    dense = problem.layout == "nhwc" or problem.in_size == (1, 1)
    if channels % 8 == 0 and (dense or taps == 1):
        reads = "vectors" if dense else "planes"
    else:
        reads = "words" if dense and channels % 2 == 0 else "elements, nhwc" if dense else "elements"
    costs = _WAVE_COSTS[reads]
    chunks = -(-channels * taps // 8) if reads.startswith("elements") else taps * -(-channels // 8)
    by_vectors = problem.filters % 8 == 0 and (problem.layout == "nhwc" or problem.out_size == (1, 1))

    def cost(plan: tuple[Tile, int]) -> float:
        tile, parts = plan
        waves = _WAVE_PIXELS // tile[0] * parts  # that share a sum
        blocks, room = blocks_of(problem, tile), _WAVE_BLOCKS * card.compute_units // parts
        steps = -(-chunks // (4 * waves)) * costs.step * (1 + costs.crowded * min(1.0, blocks / room))
        stores = math.prod(tile) / (_WAVE_THREADS * parts) / (8 if by_vectors else 1)
        block = costs.block + (costs.doubled if parts > 1 else 0) + steps + costs.store * stores
        megabytes = blocks * (min(tile[0], problem.pixels) + tile[1]) * chunks * 16 / 1e6
        return costs.launch + -(-blocks // room) * block + costs.read * megabytes

    plans = [(tile, parts) for parts in (1, 2) for tile in tiles]
    best = min(plans, key=cost)
    return Estimate(cost(best), *best)


# ---- very few pixels ---------------------------------------------------------------------------------------------------------

# Fitted to 750 layers with every tile on an H200, from which the estimates are an eighth off: microseconds of a launch with its
# first and last wait, and of a wait for operands; bytes that all compute units, and one, bring from the second cache in a
# microsecond; instructions that a compute unit, and a thread, executes in a microsecond, the former counted for each lane.
_SKINNY_LAUNCH, _SKINNY_WAIT = 1.2, 0.2
_SKINNY_BYTES, _SKINNY_UNIT_BYTES = 1.4e7, 1.1e5
_SKINNY_RATE, _SKINNY_THREAD_RATE = 1.5e5, 1200.0
_OF_SKINNY_THREAD, _OF_SKINNY_SUM = 50, 5.0  # instructions, but for those of chunks
_OF_SKINNY_READ = {"float32": 3, "by elements": 23}  # of a pixel's or a filter's chunk; others' are made floats, too
_OF_SKINNY_HALVES = 10
_SKINNY_THREADS, _SKINNY_MOST_THREADS, _SKINNY_CHUNK = 128, 256, 4  # as csrc/kernels/conv2d/skinny_gemm/params.h has them


def skinny_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """A launch, a thread's waits, the bytes' time and the instructions' time."""
    if not tiles:
        return last_resort(problem, card, tiles, workspace_limit)
    element = _element_bytes(problem)
    covers = problem.kernel == problem.in_size and problem.groups == 1  # taps that cover x are channels
    chunks, dense = -(-problem.products // _SKINNY_CHUNK), problem.layout == "nhwc" or covers
    by_vectors = dense and (problem.products if covers else problem.in_channels // problem.groups) % _SKINNY_CHUNK == 0
    read = _OF_SKINNY_READ["by elements"] if not by_vectors else _OF_SKINNY_READ.get(problem.dtype, _OF_SKINNY_HALVES)
    team = _skinny_team(chunks)
    threads = max(team, _SKINNY_THREADS)
    teams = threads // team  # of a block
    x_bytes = element if dense else 32  # a channel of a contiguous image has a sector of its own

    def cost(tile: Tile) -> float:
        pixels, rounds = min(tile[0], problem.pixels), -(-chunks // team)
        blocks = blocks_of(problem, (tile[0], tile[1] * teams))
        moved = chunks * _SKINNY_CHUNK * (pixels * x_bytes + tile[1] * teams * element)  # by a block
        instructions = _OF_SKINNY_THREAD + math.prod(tile) * (_OF_SKINNY_SUM + _SKINNY_CHUNK * rounds)
        instructions += sum(tile) * rounds * read
        busiest = -(-blocks // card.compute_units)  # blocks of a compute unit
        us = -(-rounds // (2 if tile[0] > 1 else 4)) * _SKINNY_WAIT
        us += max(blocks * moved / _SKINNY_BYTES, busiest * moved / _SKINNY_UNIT_BYTES)
        return us + max(busiest * threads * instructions / _SKINNY_RATE, instructions / _SKINNY_THREAD_RATE)

    best = min(tiles, key=cost)
    return Estimate(_SKINNY_LAUNCH + cost(best), best)


def _skinny_team(chunks: int) -> int:
    """Count the threads that share a sum: as team_of in csrc/kernels/conv2d/skinny_gemm/skinny_gemm.cu has it."""
    wanted = -(-chunks // 2)
    if wanted > _SKINNY_THREADS // 2:
        return min(-(-wanted // 64) * 64, _SKINNY_MOST_THREADS)
    return max(4, 1 << (wanted - 1).bit_length())


# ---- blocks, parts and their memory ------------------------------------------------------------------------------------------


def blocks_of(problem: Problem, tile: Tile) -> int:
    return -(-problem.pixels // tile[0]) * -(-problem.filters // tile[1]) * problem.groups


def _parts(problem: Problem, card: Card, blocks: int, workspace_limit: int) -> int:
    """Into how many parts to split each sum: as many as give every compute unit a block, if they are long enough and fit."""
    if blocks >= ENOUGH * card.compute_units:
        return 1
    steps = -(-problem.products // step_of(problem))
    fit = workspace_limit // max(1, workspace_bytes(problem, 2) // 2)
    return max(1, min(-(-card.compute_units // blocks), steps // LEAST_STEPS, MOST_PARTS, fit))


def workspace_bytes(problem: Problem, parts: int) -> int:
    """Count those of f32 partial sums; the kernel may round it up."""
    return 0 if parts == 1 else 4 * parts * problem.pixels * problem.out_channels
