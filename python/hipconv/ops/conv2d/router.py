"""Which algorithm, tile and split a conv2d runs with: one pure function from what a call is and what the card is.

Every algorithm that serves a call estimates how long it takes, and the one that takes least is chosen. What an algorithm
serves, and its tiles, are asked of the kernels' own host code and handed in. Nothing is tried out at run time, so a new shape
costs nothing. A card that somebody has measured (`measured.py`) has its estimates multiplied by what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import NamedTuple

from . import costs
from .costs import Estimate
from .problem import Card, Problem, Tile, Tiles


class Algorithm(NamedTuple):
    """A row of the table: what the algorithm is, for the documentation, and its estimate."""

    what: str
    estimate: Callable[[Problem, Card, Tiles, int], Estimate] = costs.last_resort
    plain: bool = False  # float32 is multiplied as it is, whatever precision is allowed
    exact: bool = True  # in float32 up to the one rounding of the result; else intermediate values are rounded to 16 bits, too


ALGORITHMS = {
    "depthwise_banded": Algorithm(
        "a group for each channel of x: matrix cores, rows of x in LDS times bands with a filter's taps on diagonals; 16-bit "
        "types",
        costs.depthwise_banded,
    ),
    "depthwise_rolling": Algorithm(
        "the same of filters of up to 11 rows and 16 columns: 16 strips of columns at once, down whose rows sums move in "
        "registers, without LDS; 16-bit types, float32 as TF32",
        costs.depthwise_rolling,
    ),
    "depthwise_strips": Algorithm(
        "the same of channels_last images, by way of LDS: filters of up to 7 rows and 9 columns; 16-bit types",
        costs.depthwise_strips,
    ),
    "depthwise_diagonal": Algorithm(
        "a group for each channel of x, channels_last: matrix cores, a filter's taps on diagonals; filters of up to 11 rows "
        "and 12 columns, any number of them a channel, any dilation and padding; 16-bit types",
        costs.depthwise_diagonal,
    ),
    "depthwise": Algorithm(
        "a group for each channel of x: rows of x pass by filters in registers, each read once",
        costs.depthwise,
        plain=True,
    ),
    "depthwise_tile": Algorithm(
        "a group for each channel of x: plain products on a tile of x in LDS, as floats; any filter, stride, dilation and "
        "padding mode",
        costs.depthwise_tile,
        plain=True,
    ),
    "relaid_warpgroup_gemm": Algorithm(
        "x repacked to dense channels-last memory first, then warpgroup_gemm; 16-bit types, float32 as TF32",
        costs.relaid_warpgroup_gemm,
    ),
    "warpgroup_gemm": Algorithm(
        "the matrix cores of sm_90 by warpgroups, operands brought to them by TMA; 16-bit types, float32 as TF32",
        costs.warpgroup_gemm,
    ),
    "direct": Algorithm(
        "matrix cores on a patch of x in LDS: few channels or few filters, of a group or in all; 16-bit types", costs.direct
    ),
    "few_filters": Algorithm(
        "matrix cores fed from memory, the taps of all filters beside each other, so that x is multiplied once: up to 64 taps "
        "of all filters together, of stride 1; 16-bit types, one group",
        costs.few_filters,
    ),
    "few_products": Algorithm(
        "matrix cores on what waves gather from memory, all filters in LDS: sums of up to 192 products, as in first layers; "
        "16-bit types, one group",
        costs.few_products,
    ),
    "pointwise": Algorithm(
        "matrix cores fed from memory, all filters in LDS: 1x1 filters of few channels on many pixels, channels_last; 16-bit "
        "types, one group",
        costs.pointwise,
    ),
    "skinny_gemm": Algorithm(
        "plain products, threads that share a sum read both operands from memory at once: 1x1 filters on up to 64 pixels",
        costs.skinny_gemm,
        plain=True,
    ),
    "wave_gemm": Algorithm(
        "matrix cores fed from memory without LDS, the waves of a block share each sum: small problems; 16-bit types, one "
        "group",
        costs.wave_gemm,
    ),
    "split_warpgroup_gemm": Algorithm(
        "float32 repacked into two parts of TF32, whose three products the warpgroups of sm_90 add up",
        costs.split_warpgroup_gemm,
    ),
    "winograd_f4": Algorithm(
        "3x3 filters of stride 1 by 36 products for 16 outputs instead of 144, of float16; 16-bit types",
        costs.winograd_f4,
        exact=False,
    ),
    "winograd_f2": Algorithm(
        "the same by 16 products for 4 outputs instead of 36: slower, with smaller errors", costs.winograd_f2, exact=False
    ),
    "relaid_implicit_gemm": Algorithm(
        "x repacked to dense channels-last memory first, then implicit_gemm; 16-bit types", costs.relaid_implicit_gemm
    ),
    "split_implicit_gemm": Algorithm(
        "float32 as sums of three products of TF32 parts, on the matrix cores of sm_80 and later, in implicit_gemm's tiles",
        costs.split_implicit_gemm,
    ),
    "fma_direct": Algorithm(
        "plain products on a patch of x in LDS: few channels of a group, any stride, dilation and padding mode",
        costs.fma_direct,
        plain=True,
    ),
    "fma_gemm": Algorithm(
        "plain products in float32, in tiles as narrow as filters are few, operands read element by element",
        costs.fma_gemm,
        plain=True,
    ),
    "implicit_gemm": Algorithm(
        "matrix cores, output pixels by filters in tiles; split-K where tiles are few", costs.implicit_gemm
    ),
    "naive": Algorithm("a thread per output: any shape, strides, groups, dilation and padding mode", plain=True),
}
"""The algorithms of GPUs, in the order in which plans list them, and in which the first of two that take as long is chosen."""

METHODS = {name: algorithm.what for name, algorithm in ALGORITHMS.items()}
"""Their names, and what they are, for tests, benchmarks and documentation. CPU tensors have "torch" alone."""

CPU_METHOD = "torch"
VARIABLE = "HIPCONV_CONV2D_ALGORITHM"
WORKSPACE_LIMIT = 256 << 20  # bytes


class Choice(NamedTuple):
    algorithm: str
    tile: Tile  # zeros of an algorithm without tiles
    split_k: int
    why: str


@functools.lru_cache(4096)
def choose(
    problem: Problem, card: Card, serving: tuple[tuple[str, Tiles], ...], workspace_limit: int = WORKSPACE_LIMIT
) -> Choice:
    """The plan of a call: the algorithm that takes least.

    Args:
        serving: the algorithms that can run it, each with the tiles it has on the card (none if it has no tiles). One that was
            asked for by name comes alone.
        workspace_limit: bytes that the parts of a split sum may take.
    """
    estimates = {name: estimate_of(name, problem, card, tiles, workspace_limit) for name, tiles in serving}
    name, (_, tile, parts) = min(estimates.items(), key=lambda item: (item[1].us, not ALGORITHMS[item[0]].exact))
    measured = "; by costs measured on such a card" if card.measured and len(serving) > 1 else ""
    if not any(tile):
        why = "the fastest that serves the call" if len(serving) > 1 else "it alone serves the call"
        return Choice(name, tile, parts, why + measured)
    split = f", {parts} parts of each sum" if parts > 1 else ""
    multiplied = costs.of_planes(problem, costs.WINOGRAD[name], workspace_limit) if name in costs.WINOGRAD else problem
    tiles_of = f"{costs.blocks_of(multiplied, tile)} tiles{split} for {card.compute_units} compute units"
    return Choice(name, tile, parts, tiles_of + measured)


def estimate_of(name: str, problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> Estimate:
    """The algorithm's estimate, times what somebody measured on the card, if so."""
    estimate = ALGORITHMS[name].estimate(problem, card, tiles, workspace_limit)
    return estimate if card.measured is None else estimate._replace(us=estimate.us * card.measured.of(name, problem))


def estimated_us(problem: Problem, card: Card, serving: Sequence[tuple[str, Tiles]], workspace_limit: int) -> float:
    """Return what the best of these takes."""
    return min((estimate_of(name, problem, card, tiles, workspace_limit).us for name, tiles in serving), default=0.0)


# ---- by name -----------------------------------------------------------------------------------------------------------------


def requested(
    keyword: str,
    variable: str | None,
    here: Sequence[str],
    *,
    known: Sequence[str] = (*METHODS, CPU_METHOD),
    name: str = VARIABLE,
) -> tuple[str, str]:
    """(the algorithm asked for or "auto", what asked for it): a call's `algorithm`, else the environment variable `name`, else
    "auto".

    The variable holds for every backend, so it may name an algorithm that only another one has, and then means nothing here.
    `known` has those of all backends.
    """
    if keyword != "auto":
        if keyword not in here:
            raise ValueError(f"algorithm: got '{keyword}', expected one of {_listed(here)}")
        return keyword, "algorithm"
    if variable and variable != "auto":
        if variable not in known:
            raise ValueError(f"{name}: got '{variable}', expected one of {_listed(known)}")
        if variable in here:
            return variable, name
    return "auto", "auto"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in ("auto", *names))
