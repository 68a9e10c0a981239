"""conv2d's implicit GEMM on simt: every tile, form of x and matrix unit, with small integers, whose sums are exact in any
order.

    python op_tests/test_conv2d_gemm.py --unit mfma,wmma11 --cases 300

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import os
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conv2d.exact import DTYPES, HALVES, Case, arch_here, check, integers, is_served, random_cases_command, running_on
from support.backends import environment
import hipconv
from hipconv import jit, targets

pytestmark = pytest.mark.usefixtures("one_thread")


def tiles_of(module: Any, dtype: torch.dtype) -> list[tuple[int, int]]:
    return [(m, n) for m, n in module.conv2d_tiles("implicit_gemm", arch_here(), dtype)]


def serves(tile: tuple[int, int], case: Case) -> bool:
    """Tell whether the tile has the form in which x comes."""
    aligned = case.x_layout == "nhwc" and case.shape[1] // case.groups % (4 if case.dtype == torch.float32 else 8) == 0
    if case.dtype == torch.float32 and tile[1] == 128:
        return False  # it is for TF32
    if case.mode != "zeros" or max(case.filters[1:]) > 15:
        return tile == (64, 64)
    return tile[0] != 256 or aligned


# ---- every tile --------------------------------------------------------------------------------------------------------------

LAYOUTS = [("nhwc", "krsc", "nhwc"), ("nchw", "kcrs", "nchw"), ("nhwc1", "krsc1", "nhwc1")]


@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda layouts: layouts[0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tile(module: Any, dtype: torch.dtype, layouts: tuple[str, str, str]) -> None:
    """More pixels and filters than a tile has, and no whole number of tiles; taps inside the channels' steps, and outside."""
    x_layout, weight_layout, out_layout = layouts
    for tile, channels in itertools.product(tiles_of(module, dtype), (64, 24)):
        case = Case(
            (2, channels, 11, tile[0] // 16), (tile[1] + 24, 3, 3), padding=(1, 1, 1, 1), dtype=dtype, x_layout=x_layout,
            weight_layout=weight_layout, out_layout=out_layout, bias=True, tile=tile,
        )  # fmt: skip
        if serves(tile, case):
            check(module, case)
        rounded = case._replace(float32_precision="tf32")
        if dtype == torch.float32 and module.conv2d_has_tf32(arch_here()) and is_served(module, rounded, tile):
            check(module, rounded)


# ---- tails and everything else -----------------------------------------------------------------------------------------------

SPECIAL = {
    "one pixel, one channel, one filter": Case((1, 1, 1, 1), (1, 1, 1)),
    "1x1": Case((2, 128, 6, 5), (40, 1, 1)),
    "1x1, stride 2": Case((2, 64, 7, 9), (72, 1, 1), (2, 2)),
    "stem": Case((1, 3, 21, 19), (64, 7, 7), (2, 2), (3, 3, 3, 3), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"),
    "stem, channels last": Case((1, 3, 21, 19), (64, 7, 7), (2, 2), (3, 3, 3, 3), x_layout="nhwc1"),
    "head": Case((1, 64, 12, 10), (3, 3, 3), padding=(1, 1, 1, 1)),
    "patches": Case((3, 3, 28, 28), (32, 14, 14), (14, 14), x_layout="nchw", weight_layout="kcrs"),
    "asymmetric padding": Case((2, 16, 9, 8), (24, 3, 3), (2, 2), (0, 1, 0, 1)),
    "more padding than image": Case((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6)),
    "dilation": Case((1, 64, 17, 15), (16, 3, 3), (1, 1), (12, 12, 6, 6), (12, 6)),
    "uneven taps": Case((1, 40, 9, 12), (16, 2, 5), (3, 2), (1, 0, 2, 1), (2, 1)),
    "15 x 1": Case((1, 16, 17, 5), (8, 15, 1), padding=(7, 7, 0, 0)),
    "17 x 1": Case((1, 16, 17, 5), (8, 17, 1), padding=(8, 8, 0, 0)),
    "grouped": Case((2, 96, 7, 6), (60, 3, 3), (1, 1), (1, 1, 1, 1), groups=3),
    "grouped, channels first": Case(
        (2, 12, 7, 8), (8, 3, 3), (1, 1), (1, 1, 1, 1), groups=4, x_layout="nchw", out_layout="nchw"
    ),
    "depthwise": Case((1, 10, 7, 8), (20, 3, 3), (1, 1), (1, 1, 1, 1), groups=10),
    "two steps of channels": Case((1, 128, 5, 6), (16, 3, 3), padding=(1, 1, 1, 1)),
    "nine chunks": Case((1, 72, 5, 6), (16, 3, 3), padding=(1, 1, 1, 1)),
    "many small images": Case((70, 8, 3, 2), (16, 2, 2), padding=(0, 1, 0, 0)),
    "epilogue": Case((2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), bias=True, residual=True, activation="relu"),
    "epilogue, channels first": Case(
        (2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw", bias=True, residual=True, activation="relu"
    ),
    "f32 out": Case((2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), out_dtype=torch.float32, bias=True, residual=True),
    "f32 out, channels first": Case((2, 32, 8, 8), (64, 1, 1), out_layout="nchw", out_dtype=torch.float32),
    "reflect": Case((2, 16, 6, 7), (16, 3, 3), padding=(2, 1, 3, 2), mode="reflect"),
    "replicate": Case((2, 3, 6, 7), (16, 3, 3), padding=(2, 1, 3, 2), mode="replicate", x_layout="nchw"),
    "circular": Case((1, 16, 6, 7), (16, 5, 3), (2, 1), (3, 4, 7, 2), mode="circular", bias=True),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_shapes(module: Any, name: str) -> None:
    case = SPECIAL[name]
    check(module, case)
    check(module, case._replace(dtype=torch.float32, out_dtype=None))
    for tile in tiles_of(module, torch.float16)[:1]:
        if serves(tile, case):
            check(module, case._replace(dtype=torch.float16, tile=tile))


PATCHED = {
    "one patch": Case((1, 64, 16, 16), (128, 3, 3), padding=(1, 1, 1, 1)),
    "ragged": Case((1, 128, 31, 30), (40, 3, 3), padding=(1, 0, 2, 1), bias=True, residual=True, activation="relu"),
    "grouped, unpadded": Case((1, 128, 18, 34), (24, 3, 3), groups=2, out_dtype=torch.float32),
    "three images": Case((3, 64, 8, 32), (130, 3, 3), padding=(1, 1, 1, 1), bias=True),
}


@pytest.mark.parametrize("name", PATCHED)
@pytest.mark.parametrize("layouts", [*LAYOUTS, ("nhwc", "kcrs", "nchw")], ids=lambda layouts: f"{layouts[0]}-{layouts[2]}")
def test_patches_that_serve_all_taps(module: Any, layouts: tuple[str, str, str], name: str) -> None:
    """3x3 taps of images that 16 columns by 8 or 16 rows fill well."""
    x_layout, weight_layout, out_layout = layouts
    case = PATCHED[name]._replace(x_layout=x_layout, weight_layout=weight_layout, out_layout=out_layout)
    for tile in tiles_of(module, case.dtype):
        if tile[1] == 128 and (tile[0] == 128 or case.shape[2] != 8):
            check(module, case._replace(tile=tile, dtype=torch.float16 if x_layout == "nhwc" else torch.bfloat16))


# ---- warpgroups --------------------------------------------------------------------------------------------------------------

WARPGROUP_TILES = [(256, 128), (128, 128), (128, 64), (64, 64)]
WARPGROUPED = {
    "narrow patches": Case((2, 72, 16, 15), (72, 3, 3), padding=(1, 1, 1, 1), bias=True),
    "narrow patches, f32 out": Case((1, 64, 32, 8), (40, 3, 3), padding=(0, 2, 2, 0), out_dtype=torch.float32, bias=True),
    "narrow patches of groups": Case((2, 128, 16, 9), (24, 3, 3), padding=(1, 1, 1, 1), groups=2, weight_layout="kcrs"),
    # More tiles than a block's warpgroups make in one turn each, with sums as long as a ring and longer.
    "narrow patches in turns": Case((2, 72, 40, 40), (8, 3, 3), padding=(1, 1, 1, 1), bias=True, activation="relu"),
    "wide patches in turns": Case((1, 72, 48, 64), (8, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw", bias=True),
    "runs in turns": Case((1, 72, 97, 97), (8, 3, 3), (2, 2), bias=True),
    "shared filters in turns": Case((3, 200, 31, 33), (40, 1, 1), bias=True),
    "planes in turns": Case((3, 200, 40, 40), (8, 1, 1), x_layout="nchw0", out_layout="nchw", bias=True),
    "wide patches by boxes": Case(
        (2, 136, 4, 64), (40, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw", bias=True, residual=True
    ),
    "wide patches by boxes, uneven": Case((1, 72, 5, 60), (72, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw0"),
    "more steps than stages": Case((1, 1088, 5, 8), (64, 1, 1), bias=True, activation="relu"),
    "runs across images": Case((7, 64, 7, 7), (136, 3, 3), (2, 2), (1, 1, 1, 1), residual=True, activation="relu"),
    "runs, uneven": Case((2, 40, 13, 11), (33, 2, 5), (3, 2), (1, 0, 2, 1), (2, 1), weight_layout="krsc1"),
    "runs, more padding than image": Case((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6), out_layout="nhwc1"),
    "runs to odd images": Case(
        (3, 64, 7, 7), (72, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw", bias=True, activation="relu"
    ),
    "runs to even images": Case((5, 64, 6, 7), (40, 1, 1), out_layout="nchw0", bias=True),
    "a pixel": Case((1, 64, 1, 1), (64, 1, 1), bias=True),
    # Rows that begin inside a sector: two blocks share filters, or x where the tiles along filters are an even number.
    "shared filters of an odd number of tiles": Case((3, 24, 8, 8), (40, 3, 3), padding=(1, 1, 1, 1), bias=True),
    "shared filters of many steps": Case((5, 1000, 6, 7), (40, 1, 1), bias=True, activation="relu"),
    "shared x": Case((3, 40, 9, 11), (130, 2, 3), (1, 2), (1, 0, 1, 1), bias=True, residual=True),
    "shared x of many steps": Case((3, 1000, 6, 7), (72, 1, 1), out_layout="nhwc1"),
    "wide patches": Case(
        (2, 72, 4, 64), (40, 3, 3), padding=(1, 1, 1, 1), x_layout="nchw", out_layout="nchw", bias=True, residual=True
    ),
    "wide patches, uneven": Case((1, 64, 2, 128), (72, 3, 3), padding=(2, 0, 2, 0), x_layout="nchw", weight_layout="kcrs"),
    "wide patches, unpadded": Case((1, 60, 6, 128), (8, 3, 3), padding=(0, 0, 0, 0), x_layout="nchw", out_layout="nchw"),
    "whole images": Case((3, 72, 8, 13), (40, 1, 1), x_layout="nchw0", out_layout="nchw", bias=True, activation="relu"),
    "planes, ragged": Case((5, 200, 5, 8), (70, 1, 1), x_layout="nchw0", out_layout="nchw0", residual=True),
    "planes, small images": Case((9, 64, 2, 4), (136, 1, 1), x_layout="nchw0", out_layout="nhwc", bias=True),
    "planes of long rows": Case((2, 130, 3, 48), (40, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw"),
    "planes of groups": Case((2, 128, 8, 9), (72, 1, 1), groups=2, x_layout="nchw0", out_layout="nchw", activation="relu"),
    "whole images of groups": Case((2, 48, 16, 9), (64, 1, 1), groups=2, x_layout="nchw0", out_layout="nhwc"),
}


@pytest.fixture(scope="module")
def warpgroup_module() -> Iterator[Any]:
    with running_on("mma_sync") as found:
        yield found


@pytest.mark.parametrize("name", WARPGROUPED)
def test_warpgroups(warpgroup_module: Any, name: str) -> None:
    """x that TMA loads and x that waves gather, in each tile that serves it, with more than one tile for a block;
    and split-K.
    """
    case = WARPGROUPED[name]._replace(algorithm="warpgroup_gemm")
    served = [tile for tile in WARPGROUP_TILES if is_served(warpgroup_module, case, tile)]
    assert served, "no tile serves it"
    for tile, dtype in zip(served, itertools.cycle(HALVES)):
        check(warpgroup_module, case._replace(tile=tile, dtype=dtype))
    if case.shape[1] // case.groups > 64:
        check(warpgroup_module, case._replace(tile=served[-1], split_k=2))


PLANES_OF_TF32 = {
    "196 pixels, nothing else a multiple": Case(
        (3, 37, 14, 14), (70, 1, 1), weight_layout="kcrs0", out_layout="nchw0", bias=True, activation="relu"
    ),
    "324 pixels": Case((1, 100, 18, 18), (33, 1, 1), weight_layout="kcrs0", out_layout="nchw0", residual=True),
    "64 pixels": Case((3, 64, 8, 8), (130, 1, 1), out_layout="nchw0", bias=True),
    "3136 pixels": Case((1, 33, 56, 56), (64, 1, 1), out_layout="nchw0"),
    "4 pixels along filters": Case((7, 72, 2, 2), (40, 1, 1), out_layout="nhwc", bias=True, activation="relu"),
    "groups": Case((2, 128, 4, 9), (74, 1, 1), groups=2, weight_layout="kcrs", out_layout="nchw"),
    "bf16 out": Case((3, 130, 3, 20), (24, 1, 1), out_layout="nchw0", out_dtype=torch.bfloat16, bias=True),
    "more steps than stages": Case((1, 1060, 2, 18), (24, 1, 1), out_layout="nchw0"),
}


@pytest.mark.parametrize("name", PLANES_OF_TF32)
def test_warpgroups_of_planes_by_registers(warpgroup_module: Any, name: str) -> None:
    """Contiguous float32 that may be rounded to TF32, in each tile; and split-K, in the blocks of a cluster and by memory."""
    case = PLANES_OF_TF32[name]._replace(
        algorithm="warpgroup_gemm", x_layout="nchw0", dtype=torch.float32, float32_precision="tf32"
    )
    for tile in WARPGROUP_TILES:
        check(warpgroup_module, case._replace(tile=tile))
    parts = min(9, -(-case.shape[1] // case.groups // 32))
    for split_k in {2, parts} if parts > 1 else ():
        check(warpgroup_module, case._replace(tile=(64, 64), split_k=split_k))
    assert not is_served(warpgroup_module, case._replace(float32_precision="ieee"), (64, 64))


@pytest.mark.parametrize("split_k", [2, 4, 6, 7, 9])
def test_warpgroups_of_split_sums(warpgroup_module: Any, split_k: int) -> None:
    """Nine k-blocks are five parts of two, or three of three: no part may be left without a k-block. Up to four parts are the
    blocks of a cluster here, whose compute units are two.
    """
    case = Case((2, 64, 9, 9), (40, 3, 3), (2, 2), (1, 1, 1, 1), bias=True, residual=True, activation="relu", split_k=split_k)
    check(warpgroup_module, case._replace(algorithm="warpgroup_gemm", tile=(128, 64)))


SHARED_SUMS = {
    "vectors along filters": Case(
        (1, 192, 8, 20), (72, 3, 3), padding=(1, 1, 1, 1), out_layout="nhwc0", bias=True, residual=True
    ),
    "vectors along pixels": Case(
        (2, 130, 8, 16), (40, 1, 1), x_layout="nchw0", out_layout="nchw0", bias=True, activation="relu"
    ),
    "elements along filters": Case((1, 200, 9, 9), (37, 1, 1), out_layout="nhwc0", bias=True, residual=True),
    "elements along pixels": Case((1, 320, 7, 7), (72, 1, 1), out_layout="nchw0", activation="relu"),
    "float32": Case(
        (1, 96, 9, 9), (48, 3, 3), (2, 2), (1, 1, 1, 1), out_layout="nhwc0", dtype=torch.float32, float32_precision="tf32"
    ),
}


@pytest.mark.parametrize("name", SHARED_SUMS)
def test_blocks_of_a_cluster_share_a_tile(warpgroup_module: Any, name: str) -> None:
    """Each stores a share of it, in vectors or by elements, along filters or pixels."""
    for tile, split_k in (((64, 64), 2), ((64, 64), 3), ((128, 64), 3), ((128, 128), 2)):
        check(warpgroup_module, SHARED_SUMS[name]._replace(algorithm="warpgroup_gemm", tile=tile, split_k=split_k))


def test_warpgroups_on_random_shapes(warpgroup_module: Any) -> None:
    rng, done = random.Random(7), 0
    tiles = {dtype: [(64, 64)] for dtype in DTYPES}
    while done < 30:
        case = random_case(rng, tiles)._replace(
            algorithm="warpgroup_gemm", tile=rng.choice(WARPGROUP_TILES), split_k=rng.randint(1, 2)
        )
        if case.mode == "zeros" and case.dtype != torch.float32 and is_served(warpgroup_module, case, case.tile):
            check(warpgroup_module, case, done)
            done += 1


# ---- x that is repacked ------------------------------------------------------------------------------------------------------

RELAID = {
    "stem": Case(
        (2, 3, 21, 19), (72, 7, 7), (2, 2), (3, 3, 3, 3), x_layout="nchw", weight_layout="kcrs", out_layout="nchw", bias=True
    ),
    "few channels, channels last": Case((2, 5, 9, 14), (40, 3, 4), (1, 3), (0, 2, 2, 0), x_layout="nhwc1", residual=True),
    "few channels, dilated rows": Case((1, 8, 13, 9), (24, 3, 3), (2, 1), (2, 1, 1, 1), (2, 1), x_layout="nchw"),
    "patches of a transformer": Case((1, 3, 28, 28), (32, 14, 14), (14, 14), x_layout="nchw0", weight_layout="kcrs"),
    "patches, filters without gaps": Case(
        (2, 3, 29, 30), (40, 14, 14), (14, 14), x_layout="nchw0", weight_layout="kcrs0", out_layout="nchw0", bias=True
    ),
    "patches, filters channels last": Case((2, 4, 13, 24), (24, 4, 8), (4, 8), x_layout="nhwc1", residual=True),
    "patches of x with gaps, filters channels last": Case((1, 8, 6, 9), (20, 2, 3), (2, 3), x_layout="nchw"),
    "few channels, one column": Case((2, 4, 11, 9), (16, 3, 1), (2, 2), (1, 1, 0, 0), x_layout="nchw"),
    "odd images": Case(
        (3, 72, 7, 7), (136, 3, 3), padding=(1, 1, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw"
    ),
    "even images": Case(
        (3, 65, 6, 7), (40, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw", bias=True, activation="relu"
    ),
    "steps that pass over pixels": Case((2, 70, 9, 11), (24, 1, 1), (2, 3), (1, 0, 2, 1), x_layout="nchw"),
    "channels that end within a chunk": Case(
        (2, 83, 5, 6), (24, 2, 2), x_layout="nhwc1", weight_layout="krsc1", out_layout="nhwc1"
    ),
    "groups": Case((2, 128, 6, 5), (32, 3, 3), padding=(1, 1, 1, 1), groups=2, x_layout="nchw", weight_layout="kcrs"),
    "reflect": Case((2, 20, 6, 7), (16, 3, 3), (1, 2), (2, 1, 3, 2), mode="reflect", x_layout="nchw", out_layout="nchw"),
    "circular, channels last": Case((1, 16, 6, 7), (16, 5, 3), (2, 1), (3, 4, 7, 2), mode="circular", bias=True),
    "replicate, few channels": Case((2, 3, 6, 7), (16, 3, 3), padding=(2, 1, 3, 2), mode="replicate", x_layout="nchw"),
}


@pytest.mark.parametrize("name", RELAID)
def test_relaid(module: Any, name: str) -> None:
    """By each GEMM that the unit has, in its smallest tile."""
    served = 0
    for algorithm, dtype in (("relaid_implicit_gemm", torch.bfloat16), ("relaid_warpgroup_gemm", torch.float16)):
        for tile in [(m, n) for m, n in module.conv2d_tiles(algorithm, arch_here(), dtype)][-1:]:
            case = RELAID[name]._replace(algorithm=algorithm, dtype=dtype, tile=tile)
            if is_served(module, case, tile):
                check(module, case)
                served += 1
                if is_served(module, case._replace(split_k=2), tile):
                    check(module, case._replace(split_k=2))
    assert served


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("size", [(7, 9), (6, 12), (14, 14)], ids=str)
def test_images_with_gaps_behind_each_channel(warpgroup_module: Any, size: tuple[int, int], dtype: torch.dtype) -> None:
    """Tiles that reach into two images or three; channels begin at multiples of 16 bytes whether images end at one or not."""
    N, C, K, pixels = 3, 40, 45, size[0] * size[1]
    pitch = pixels // 8 * 8 + 16
    x, weight = integers((N, C, *size), "nchw0", dtype, 1), integers((K, C, 1, 1), "krsc", dtype, 2)
    memory = torch.full((N, K, pitch), 7.0, dtype=dtype)
    out = memory.as_strided((N, K, *size), (K * pitch, pitch, size[1], 1))
    precision: dict[str, Any] = {"float32_precision": "tf32"} if dtype == torch.float32 else {}
    hipconv.conv2d(x, weight, algorithm="relaid_warpgroup_gemm", out=out, **precision)
    assert torch.equal(out, F.conv2d(x.float(), weight.float()).to(dtype))
    assert (memory[..., pixels:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_images_of_one_column_of_wider_ones(warpgroup_module: Any, dtype: torch.dtype) -> None:
    """Their pixels are a row apart, though a column's stride says otherwise."""
    x, weight = integers((2, 64, 8, 1), "nchw0", dtype, 1), integers((64, 64, 1, 1), "krsc", dtype, 2)
    memory = torch.full((2, 64, 8, 8), 7.0, dtype=dtype)
    precision: dict[str, Any] = {"float32_precision": "tf32"} if dtype == torch.float32 else {}
    for algorithm in ("warpgroup_gemm", "relaid_warpgroup_gemm"):
        memory.fill_(7.0)
        hipconv.conv2d(x, weight, algorithm=algorithm, out=memory[..., :1], **precision)
        assert torch.equal(memory[..., :1], F.conv2d(x.float(), weight.float()).to(dtype))
        assert (memory[..., 1:] == 7).all()


def test_x_that_the_gemms_read_in_place_is_not_relaid(module: Any) -> None:
    for algorithm in ("relaid_implicit_gemm", "relaid_warpgroup_gemm"):
        assert not is_served(module, Case((1, 64, 5, 5), (16, 3, 3), algorithm=algorithm), (128, 64))
        assert not is_served(
            module, Case((1, 64, 5, 5), (16, 3, 3), algorithm=algorithm, dtype=torch.float32, x_layout="nchw"), (128, 64)
        )


@pytest.mark.parametrize("split_k", [2, 3, 5, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_split_sums(module: Any, dtype: torch.dtype, split_k: int) -> None:
    """Parts of several lengths, empty ones too; the residual, bias and activation once, after the sum."""
    case = Case(
        (2, 64, 5, 5),
        (40, 3, 3),
        padding=(1, 1, 1, 1),
        dtype=dtype,
        bias=True,
        residual=True,
        activation="relu",
        split_k=split_k,
    )
    if split_k <= 9 or dtype == torch.float32:
        check(module, case)
    check(module, case._replace(shape=(2, 120, 5, 5), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"))


def random_case(rng: random.Random, tiles: dict[torch.dtype, list[tuple[int, int]]]) -> Case:
    groups, dtype = rng.choice([1, 1, 1, 2, 3]), rng.choice(DTYPES)
    kernel = rng.choice([(1, 1), (3, 3), (3, 3), (2, 3), (5, 1), (4, 4)])
    stride, dilation = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 2), rng.randint(1, 2))
    height, width = (dilation[i] * (kernel[i] - 1) + 1 + rng.randint(0, 8) for i in (0, 1))
    case = Case(
        (rng.randint(1, 3), groups * rng.choice([1, 3, 4, 8, 12, 16, 40, 64]), height, width),
        (groups * rng.choice([1, 3, 8, 20, 33, 64]), *kernel),
        stride,
        (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)),
        dilation,
        groups,
        "zeros" if rng.random() < 0.8 else "replicate",
        dtype,
        rng.choice(["nhwc", "nhwc", "nchw", "nhwc1"]),
        rng.choice(["krsc", "kcrs", "krsc1"]),
        rng.choice(["nhwc", "nchw", "nhwc1"]),
        rng.choice([None, None, torch.float32]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.3,
        activation=rng.choice(["none", "relu"]),
    )
    case = case._replace(tile=rng.choice([tile for tile in tiles[dtype] if serves(tile, case)]))
    products = case.shape[1] // groups * kernel[0] * kernel[1]
    return case._replace(split_k=rng.randint(1, max(1, min(4, products // (32 if dtype == torch.float32 else 64)))))


def check_random_cases(module: Any, count: int, seed: int) -> None:
    rng = random.Random(seed)
    tiles = {dtype: tiles_of(module, dtype) for dtype in DTYPES}
    for number in range(count):
        check(module, random_case(rng, tiles), number)


def test_random_shapes(module: Any) -> None:
    check_random_cases(module, 60, 42)


# ---- numbers that are not integers -------------------------------------------------------------------------------------------


def test_f32_is_not_rounded_to_less(module: Any) -> None:
    """True f32 products: with 432 of them a sum, factors of 11 bits would be 50 times as far off."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 48, 9, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, 48, 3, 3, generator=generator)
    options = ([1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [9, 8], torch.float32, True)
    call = module.Call(*options, "implicit_gemm", arch_here(), [64, 64, 1])
    error = module.conv2d(x, weight, None, None, call, 0).double() - F.conv2d(x.double(), weight.double(), padding=1)
    assert error.abs().max() < 2e-4


def test_not_finite_values_stay_where_they_are(module: Any) -> None:
    """A NaN or an infinity reaches the outputs whose taps see it, and zero padding of x or of the channels reaches none."""
    x = torch.ones(1, 20, 9, 9, dtype=torch.float16)
    x[0, 3, 4, 4], x[0, 19, 0, 8] = float("nan"), float("inf")
    for x_layout, dtype in itertools.product((torch.channels_last, torch.contiguous_format), DTYPES):
        call = module.Call(
            [1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [9, 9], dtype, True, "implicit_gemm", arch_here(), [64, 64, 1]
        )
        weight = torch.full((5, 20, 3, 3), 0.5, dtype=dtype)
        out = module.conv2d(x.to(dtype).contiguous(memory_format=x_layout), weight, None, None, call, 0).float()
        expected = F.conv2d(x.float(), weight.float(), padding=1)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=0, equal_nan=True)


# ---- far apart ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["batch", "channel", "row", "column"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_elements_over_4_gb_apart(layout: str, axis: str) -> None:
    """Untouched memory costs nothing, so two images, channels, rows or columns may lie far apart."""
    shape, far = [2, 16, 4, 5], 2**31 + 24
    strides = {"nhwc": [4096, 1, 160, 32], "nchw": [4096, 64, 8, 1]}[layout]
    place = ["batch", "channel", "row", "column"].index(axis)
    shape[place], strides[place] = 2, far
    try:
        memory = torch.UntypedStorage(2 * (far + 2 * 4096))  # torch.empty might fill it
    except RuntimeError as error:
        pytest.skip(f"no 4 GB of address space: {error}")
    x = torch.empty(0, dtype=torch.float16).set_(memory, 0, shape, strides)
    values = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(7)).half()
    x.copy_(values)
    weight = torch.randint(-1, 2, (24, shape[1], 2, 2), generator=torch.Generator().manual_seed(8)).half()
    size = [shape[2] + 1, shape[3] + 1]
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_MMA="mfma", HIPCONV_SIMT_WAVE="64"):
        module = jit.module("conv2d", targets.of(torch.device("cpu")))
        options = ([1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", size, torch.float16, True)
        call = module.Call(*options, "implicit_gemm", arch_here(), [64, 64, 1])
        out = module.conv2d(x, weight, None, None, call, 0)
    assert torch.equal(out, F.conv2d(values.double(), weight.double(), padding=1).half())


# ---- what is legal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "relaid_implicit_gemm", "winograd_f2", "winograd_f4"])
def test_tiles_that_a_unit_does_not_have_are_refused(module: Any, algorithm: str) -> None:
    """Their kernels are empty, or those of other tiles: a launch would leave `out` as it was, and say nothing."""
    layout = "nchw" if algorithm == "relaid_implicit_gemm" else "nhwc"
    case = Case((1, 64, 9, 9), (72, 3, 3), padding=(1, 1, 1, 1), x_layout=layout, algorithm=algorithm)
    tiles = [(256, 128), (128, 128), (128, 64), (64, 64)]
    served = [tile for tile in tiles if is_served(module, case, tile)]
    assert served == [(m, n) for m, n in module.conv2d_tiles(algorithm, arch_here(), case.dtype)]
    assert ((256, 128) in served) == (os.environ["HIPCONV_SIMT_MMA"] == "mma_sync")
    for tile in [tile for tile in [*tiles, (64, 128), (32, 32)] if tile not in served]:
        with pytest.raises(ValueError, match=f"^algorithm: got '{algorithm}', which serves the tiles alone that"):
            check(module, case._replace(tile=tile))


def test_tiles_of_architectures() -> None:
    with running_on("mfma") as module:
        common = [[128, 128], [128, 64], [64, 64]]
        expected = {
            "gfx90a": common, "gfx942": common, "gfx950": common, "gfx1100": common, "gfx1151": common, "gfx1201": common,
            "gfx1030": [[64, 64]], "gfx906": [[64, 64]], "gfx1250": [[64, 64]], "sm_75": [],
            "sm_80": [[256, 128], *common], "sm_86": common, "sm_89": common, "sm_90": [[256, 128], *common], "sm_120": common,
        }  # fmt: skip
        for dtype in HALVES:
            for algorithm in ("implicit_gemm", "winograd_f2", "winograd_f4"):
                assert {arch: module.conv2d_tiles(algorithm, arch, dtype) for arch in expected} == expected
        for arch in expected:
            on_nvidia = arch.startswith("sm_") and arch != "sm_75"
            tiles = [] if arch == "sm_75" else [[128, 64], [64, 64]]
            assert module.conv2d_tiles("implicit_gemm", arch, torch.float32) == [*([[128, 128]] if on_nvidia else []), *tiles]
            assert module.conv2d_tiles("split_implicit_gemm", arch, torch.float32) == (tiles if on_nvidia else [])
            tiles = [list(tile) for tile in WARPGROUP_TILES] if arch == "sm_90" else []
            assert module.conv2d_tiles("warpgroup_gemm", arch, torch.float16) == tiles
            assert module.conv2d_tiles("warpgroup_gemm", arch, torch.float32) == tiles
            assert module.conv2d_tiles("split_warpgroup_gemm", arch, torch.float32) == tiles[1:]
            assert module.conv2d_tiles("split_warpgroup_gemm", arch, torch.float16) == []
            assert module.conv2d_has_tf32(arch) == (on_nvidia or arch == "gfx942")
            assert module.conv2d_tiles("naive", arch, torch.float16) is None


def main() -> None:
    random_cases_command(__doc__, check_random_cases)
