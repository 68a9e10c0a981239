"""Which algorithm, tile and split a conv2d runs with: one pure function from what a call is and what the card is.

What an algorithm serves, and its tiles, are asked of the kernels' own host code and handed in. Tiles come from configs/<arch>.json for
cards that were measured and are analytic for all others; nothing is tried out at run time, so a new shape costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

METHODS = {
    "relaid_warpgroup_gemm": "x brought to dense channels-last memory first, then warpgroup_gemm; 16-bit types",
    "warpgroup_gemm": "the matrix cores of sm_90 by warpgroups, operands brought to them by the copy engine; 16-bit types",
    "relaid_implicit_gemm": "x brought to dense channels-last memory first, then implicit_gemm; 16-bit types",
    "implicit_gemm": "matrix cores, output pixels by filters in tiles; split-K where tiles are few",
    "naive": "a thread per output: any shape, strides, groups, dilation and padding mode",
}
"""The algorithms of GPUs, the fastest first, for tests, benchmarks and documentation. CPU tensors have "torch" alone."""

CPU_METHOD = "torch"
VARIABLE = "HIPCONV_CONV2D_ALGORITHM"
WORKSPACE_LIMIT = 256 << 20  # bytes

STEP = 64  # products of an output that a block adds up at a time
LEAST_STEPS = 4  # of a part of a split sum: fewer do not pay for writing the part and reading it again
MOST_PARTS = 16
ENOUGH = 7 / 8  # of the compute units with a block: the idle rest costs less than smaller tiles do


class Problem(NamedTuple):
    """What a call is, as far as the choice depends on it."""

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    out_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str  # "bfloat16"
    layout: str  # "nhwc", "nchw": of x

    @property
    def pixels(self) -> int:
        return self.batch * math.prod(self.out_size)

    @property
    def filters(self) -> int:
        """Of a group."""
        return self.out_channels // self.groups

    @property
    def products(self) -> int:
        """That an output sums."""
        return self.in_channels // self.groups * math.prod(self.kernel)

    @property
    def key(self) -> str:
        """By which configs/<arch>.json knows it."""
        sizes = f"N{self.batch} C{self.in_channels} H{self.in_size[0]} W{self.in_size[1]}"
        sizes += f" K{self.out_channels} R{self.kernel[0]} S{self.kernel[1]}"
        stride, padding, dilation = (",".join(map(str, numbers)) for numbers in (self.stride, self.padding, self.dilation))
        return f"{self.dtype} {self.layout} {sizes} stride {stride} padding {padding} dilation {dilation} groups {self.groups}"


class Card(NamedTuple):
    arch: str  # "gfx942", "sm_90", "wave64"
    compute_units: int


class Choice(NamedTuple):
    algorithm: str
    tile: tuple[int, int]  # output pixels, filters; zeros of an algorithm without tiles
    split_k: int
    why: str


Tiles = tuple[tuple[int, int], ...]


@functools.lru_cache(4096)
def choose(problem: Problem, card: Card, serving: tuple[tuple[str, Tiles], ...], workspace_limit: int = WORKSPACE_LIMIT) -> Choice:
    """The plan of a call: the first algorithm that serves it, or, where that relays x, the same GEMM without if that is quicker.

    Args:
        serving: the algorithms that can run it, the fastest first, each with the tiles it has on the card (none if it has no tiles). One
            that was asked for by name comes alone.
        workspace_limit: bytes that the parts of a split sum may take.
    """
    measured = _measured(card.arch).get(problem.key)
    if measured is not None:
        name, tile_m, tile_n, split_k = measured
        tiles = dict(serving).get(name)
        if tiles is not None and ((tile_m, tile_n) in tiles or not tiles) and workspace_bytes(problem, split_k) <= workspace_limit:
            return Choice(name, (tile_m, tile_n), split_k, f"measured on {card.arch}")
    name, tiles = serving[0]
    if not tiles:
        return Choice(name, (0, 0), 1, "the fastest that serves the call" if len(serving) > 1 else "it alone serves the call")
    plans = [_Plan(name, *_PLANS[name](problem, card, tiles, workspace_limit))]
    if name.startswith("relaid_") and (direct := name.removeprefix("relaid_")) in dict(serving):
        plans.append(_Plan(direct, *_PLANS[direct](problem, card, dict(serving)[direct], workspace_limit)))
    name, _, tile, parts = min(plans, key=lambda plan: plan.us)
    blocks = _blocks(problem, tile)
    split = f", {parts} parts of each sum" if parts > 1 else ""
    return Choice(name, tile, parts, f"{blocks} tiles{split} for {card.compute_units} compute units")


class _Plan(NamedTuple):
    """An algorithm with its best tile and parts."""

    name: str
    us: float  # that it takes, to compare it with others of the same GEMM
    tile: tuple[int, int]
    parts: int


# ---- x that is relaid, or gathered --------------------------------------------------------------------------------------------------

_RELAYING = 2.0  # microseconds, but for the bytes
_RELAID_BYTES = 3.4e6  # read and written in a microsecond
_GATHERING = 1.2  # microseconds, of a step of implicit_gemm that reads x element by element, beyond one of vectors


def relaid(problem: Problem) -> Problem:
    """What the GEMM gets of x as conv2d/repacked/repacked.cu lays it out: a filter's row of few channels as one vector of channels."""
    if problem.in_channels > 8 or problem.kernel[1] == 1 or problem.groups > 1 or problem.dilation[1] > 1:
        return problem
    return problem._replace(in_channels=8 * problem.kernel[1], kernel=(problem.kernel[0], 1), stride=(problem.stride[0], 1))


def _relaying_us(problem: Problem) -> float:
    pixels = max(problem.pixels, problem.batch * math.prod(problem.in_size)) if problem.kernel != (1, 1) else problem.pixels
    return _RELAYING + 2 * 2 * pixels * -(-problem.in_channels // 8) * 8 / _RELAID_BYTES


# ---- tiles and parts of the implicit GEMM --------------------------------------------------------------------------------------------


def _plan_of_implicit_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> tuple[float, tuple[int, int], int]:
    """Microseconds beyond those of the same GEMM on x that it reads by vectors; the tile and parts."""
    tile = _tile(problem, card, tiles)
    blocks = _blocks(problem, tile)
    parts = _parts(problem, card, blocks, workspace_limit)
    rounds = max(1.0, blocks * parts / card.compute_units)
    return _GATHERING * rounds * -(-problem.products // STEP) / parts, tile, parts


def _plan_of_relaid_implicit_gemm(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> tuple[float, tuple[int, int], int]:
    return _relaying_us(problem), *_plan_of_implicit_gemm(relaid(problem), card, tiles, workspace_limit)[1:]


def _tile(problem: Problem, card: Card, tiles: Tiles) -> tuple[int, int]:
    """Tiles for (nearly) every compute unit first; then little padding behind the last filter; then the largest."""
    enough = [tile for tile in tiles if _blocks(problem, tile) >= ENOUGH * card.compute_units]
    if not enough:
        return max(tiles, key=lambda tile: (_blocks(problem, tile), -tile[0] * tile[1], tile))
    padded = {tile: -(-problem.filters // tile[1]) * tile[1] for tile in enough}
    least = min(padded.values())
    return max((tile for tile in enough if padded[tile] <= 1.25 * least), key=lambda tile: (tile[0] * tile[1], tile))


# ---- tiles and parts of warpgroups ---------------------------------------------------------------------------------------------------


class _TileCost(NamedTuple):
    """Microseconds of a tile of warpgroups, as an H200 takes them: of a step, and of everything else."""

    step: float
    step_alone: float  # with no other block on the compute unit
    patch_step_alone: float  # where patches serve all taps
    rest: float
    blocks_a_unit: int


_WARPGROUP_COSTS = {
    (256, 128): _TileCost(0.60, 0.60, 0.60, 5.5, 1),
    (128, 128): _TileCost(0.34, 0.34, 0.34, 3.5, 1),
    (128, 64): _TileCost(0.44, 0.36, 0.275, 3.0, 2),
    (64, 64): _TileCost(0.36, 0.29, 0.23, 3.0, 2),
}
_WINDOW_COSTS = {  # of pixels that overlap in memory: a filter's row of few channels, relaid
    (256, 128): _TileCost(1.0, 1.0, 1.0, 5.5, 1),
    (128, 128): _TileCost(0.8, 0.8, 0.8, 3.5, 1),
    (128, 64): _TileCost(1.45, 0.5, 0.5, 3.0, 2),
}
_GATHERED_COSTS = {  # of x that waves gather
    (128, 128): _TileCost(1.5, 1.5, 0.62, 2.8, 1),
    (128, 64): _TileCost(1.5, 1.5, 0.62, 2.3, 1),
}
_ADDING = 1.7  # microseconds of adding up parts, but for their bytes
_PART_BYTES, _PARTS_BYTES = 0.9e5, 5e6  # of parts, in a microsecond: that a compute unit reads; that all write and read


def _plan_of_warpgroups(
    problem: Problem, card: Card, tiles: Tiles, workspace_limit: int, costs_of: dict[tuple[int, int], _TileCost] | None = None
) -> tuple[float, tuple[int, int], int]:
    """The tile and the parts of each sum that take least by the costs above: whole tiles a compute unit count, and long sums."""
    costs_of = costs_of or (_GATHERED_COSTS if problem.layout == "nchw" else _WARPGROUP_COSTS)
    gathers = costs_of is _GATHERED_COSTS
    turns, taps = -(-problem.in_channels // problem.groups // STEP), math.prod(problem.kernel)

    def steps_a_filling(tile: tuple[int, int]) -> int:  # of the kernel's ring: a sum is split between fillings
        return taps if _has_patches(problem, tile[0], 64 if gathers else 8) else 1

    def cost(plan: tuple[tuple[int, int], int]) -> float:
        tile, parts = plan
        costs, blocks = costs_of[tile], _blocks(problem, tile) * parts
        steps = steps_a_filling(tile)
        alone = costs.patch_step_alone if steps > 1 else costs.step_alone
        step = alone if blocks <= card.compute_units or (gathers and steps > 1) else costs.step
        rounds = -(-blocks // (card.compute_units * costs.blocks_a_unit))
        us = rounds * (-(-turns * taps // steps // parts) * steps * step + costs.rest)
        if parts == 1:
            return us
        part_bytes = 4 * math.prod(tile)
        return us + _ADDING + parts * part_bytes / _PART_BYTES + 2 * blocks * part_bytes / _PARTS_BYTES

    plans = [
        (tile, parts)
        for tile in tiles
        if tile in costs_of
        for parts in range(1, min(MOST_PARTS, turns * taps // steps_a_filling(tile)) + 1)
        if parts == 1 or workspace_bytes(problem, parts) <= workspace_limit
    ]
    best = min(plans, key=cost)
    return cost(best), *best


def _has_patches(problem: Problem, tile_m: int, columns: int) -> bool:
    """Whether one filling serves all taps: as conv2d/warpgroup_gemm/warpgroup_gemm.cu has it."""
    if (problem.kernel, problem.stride, problem.dilation) != ((3, 3), (1, 1), (1, 1)):
        return False
    covered = [-(-size // of) * of for size, of in zip(problem.out_size, (tile_m // columns, columns), strict=True)]
    return math.prod(covered) * 4 <= math.prod(problem.out_size) * 5


def _plan_of_relaid_warpgroups(problem: Problem, card: Card, tiles: Tiles, workspace_limit: int) -> tuple[float, tuple[int, int], int]:
    inner = relaid(problem)
    costs_of = _WARPGROUP_COSTS if inner is problem else _WINDOW_COSTS
    us, tile, parts = _plan_of_warpgroups(inner, card, tiles, workspace_limit, costs_of)
    return us + _relaying_us(problem), tile, parts


_PLANS = {
    "relaid_warpgroup_gemm": _plan_of_relaid_warpgroups,
    "warpgroup_gemm": _plan_of_warpgroups,
    "relaid_implicit_gemm": _plan_of_relaid_implicit_gemm,
    "implicit_gemm": _plan_of_implicit_gemm,
}


def _blocks(problem: Problem, tile: tuple[int, int]) -> int:
    return -(-problem.pixels // tile[0]) * -(-problem.filters // tile[1]) * problem.groups


def _parts(problem: Problem, card: Card, blocks: int, workspace_limit: int) -> int:
    """Into how many parts to split each sum: as many as give every compute unit a block, if they are long enough and fit."""
    if blocks >= ENOUGH * card.compute_units:
        return 1
    steps = -(-problem.products // STEP)
    fit = workspace_limit // max(1, workspace_bytes(problem, 2) // 2)
    return max(1, min(-(-card.compute_units // blocks), steps // LEAST_STEPS, MOST_PARTS, fit))


def workspace_bytes(problem: Problem, parts: int) -> int:
    """Of f32 partial sums; the kernel may round it up."""
    return 0 if parts == 1 else 4 * parts * problem.pixels * problem.out_channels


# ---- what was measured -------------------------------------------------------------------------------------------------------------

CONFIGS = Path(__file__).resolve().parent / "configs"


@functools.cache
def _measured(arch: str) -> dict[str, tuple[str, int, int, int]]:
    """Problem.key -> (algorithm, tile_m, tile_n, split_k); empty for a card that nobody measured."""
    path = CONFIGS / f"{arch}.json"
    return parse_config(path.read_text(), str(path)) if path.is_file() else {}


def parse_config(text: str, where: str) -> dict[str, tuple[str, int, int, int]]:
    """Read `{"card": ..., "measured": ..., "conv2d": {key: [algorithm, tile_m, tile_n, split_k]}}`; `where` names it in errors."""
    found = {}
    for key, plan in json.loads(text)["conv2d"].items():
        if len(plan) != 4 or plan[0] not in METHODS or not all(isinstance(number, int) and number >= 0 for number in plan[1:]):
            raise ValueError(f"{where}: {key}: got {plan!r}, expected [algorithm, tile_m, tile_n, split_k]")
        found[key] = (plan[0], plan[1], plan[2], plan[3])
    return found


# ---- by name -----------------------------------------------------------------------------------------------------------------------


def requested(keyword: str, variable: str | None, here: Sequence[str]) -> tuple[str, str]:
    """(the algorithm asked for or "auto", what asked for it): a call's `algorithm`, else HIPCONV_CONV2D_ALGORITHM, else "auto".

    The variable holds for every backend, so it may name an algorithm that only another one has, and then means nothing here.
    """
    if keyword != "auto":
        if keyword not in here:
            raise ValueError(f"algorithm: got '{keyword}', expected one of {_listed(here)}")
        return keyword, "algorithm"
    if variable and variable != "auto":
        if variable not in (*METHODS, CPU_METHOD):
            raise ValueError(f"{VARIABLE}: got '{variable}', expected one of {_listed((*METHODS, CPU_METHOD))}")
        if variable in here:
            return variable, VARIABLE
    return "auto", "auto"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in ("auto", *names))
