"""The choice of conv2d's algorithm, tile and split, and what a plan says of it. Most of these tests need no kernel."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from conv2d.cases import LAYOUTS, MODELS, Case, edge_cases, model_cases
from support.backends import environment
from support.tensors import DTYPES
import hipconv
from hipconv import conv2d_router, jit, targets
from hipconv.ops.conv2d import calls, costs
from hipconv.ops.conv2d.costs import Estimate
from hipconv.ops.conv2d.problem import Card, Problem
from hipconv.ops.conv2d.router import ALGORITHMS, Algorithm, Choice, choose

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
SERVING = (("implicit_gemm", TILES), ("naive", ()))
H200, MI300X = Card("sm_90", 132), Card("gfx942", 304)


def problem(C: int, H: int, K: int, R: int = 3, N: int = 1, groups: int = 1) -> Problem:
    return Problem(N, C, (H, H), K, (R, R), (H, H), (1, 1), (R // 2,) * 4, (1, 1), groups, "bfloat16", "nhwc")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


# ---- the choice --------------------------------------------------------------------------------------------------------------


DIRECT_TILES = ((512, 16), (512, 32), (256, 16), (256, 32), (256, 64), (128, 16), (128, 32), (128, 64), (128, 128))
WITH_DIRECT = (("warpgroup_gemm", TILES), ("direct", DIRECT_TILES), *SERVING)


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (problem(128, 56, 128, N=32, groups=32), "direct"),  # ResNeXt
        (problem(216, 28, 216, N=32, groups=9), "direct"),  # RegNet
        (problem(128, 1024, 3), "direct"),  # the last layer of a decoder
        (problem(32, 112, 16, R=1, N=32), "direct"),
        (problem(384, 14, 384, N=32, groups=6), "warpgroup_gemm"),  # groups of 64 fill its tiles
        (problem(512, 64, 512), "warpgroup_gemm"),
        (problem(256, 56, 64, R=1, N=32), "warpgroup_gemm"),
    ],
    ids=str,
)
def test_few_channels_or_few_filters_take_direct(asked: Problem, algorithm: str) -> None:
    """As they were measured on an H200."""
    assert choose(asked, H200, WITH_DIRECT).algorithm == algorithm


WAVE_TILES = ((128, 32), (64, 32), (32, 32), (16, 32))


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (problem(576, 1, 54, R=1), "wave_gemm"),  # squeeze and excitation
        (problem(216, 1, 54, R=1, N=32), "wave_gemm"),
        (problem(180, 14, 60, R=1), "wave_gemm"),
        (problem(36, 28, 256, R=1), "wave_gemm"),
        (problem(512, 64, 512), "warpgroup_gemm"),
        (problem(128, 56, 128, R=1, N=32), "warpgroup_gemm"),
    ],
    ids=str,
)
def test_small_problems_take_wave_gemm(asked: Problem, algorithm: str) -> None:
    """As they were measured on an H200."""
    assert choose(asked, H200, (("wave_gemm", WAVE_TILES), *WITH_DIRECT)).algorithm == algorithm


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (problem(24, 56, 144, R=1, N=32), "pointwise"),  # MobileNets
        (problem(144, 56, 24, R=1, N=32), "pointwise"),
        (problem(36, 28, 18, R=1, N=32), "pointwise"),  # channels that are no vectors
        (problem(240, 14, 40, R=1), "wave_gemm"),
        (problem(256, 28, 512, R=1, N=32), "warpgroup_gemm"),
    ],
    ids=str,
)
def test_1x1_filters_on_many_pixels_take_pointwise(asked: Problem, algorithm: str) -> None:
    """As they were measured on an H200."""
    serving = (("pointwise", ((128, 32),)), ("wave_gemm", WAVE_TILES), *WITH_DIRECT)
    assert choose(asked, H200, serving).algorithm == algorithm


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_few_filters_take_their_own_kernel(layout: str) -> None:
    """The last layers of decoders, as they were measured on an H100."""
    serving = (("few_filters", ((128, 32),)), ("wave_gemm", WAVE_TILES), *WITH_DIRECT)
    for channels, size in ((128, 512), (64, 512), (256, 256), (128, 64)):
        asked = problem(channels, size, 3)._replace(layout=layout)
        assert choose(asked, H200, serving).algorithm == "few_filters"


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_sums_of_few_products_take_their_own_kernel(layout: str) -> None:
    """First layers, as they were measured on an H100."""
    serving = (("few_products", ((128, 32),)), ("wave_gemm", WAVE_TILES), *WITH_DIRECT)
    for taps, filters, batch in ((3, 32, 1), (3, 32, 32), (7, 64, 1), (7, 64, 32)):
        asked = problem(3, 224, filters, R=taps, N=batch)._replace(
            stride=(2, 2), padding=(taps // 2,) * 4, out_size=(112, 112), layout=layout
        )
        assert choose(asked, H200, serving).algorithm == "few_products"
    assert choose(problem(3, 64, 512, R=3)._replace(layout=layout), H200, serving).algorithm != "few_products"


def test_contiguous_depthwise_layers_of_many_taps_take_bands() -> None:
    """Dilated ones and filters that are not square, too, as they were measured on an H100. Few taps on small images walk."""
    serving: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (("depthwise_banded", ((32, 32),)), ("depthwise", ()))

    def chosen(C: int, H: int, R: int, N: int = 32, **more: Any) -> str:
        return choose(problem(C, H, C, R, N, groups=C)._replace(layout="nchw", **more), H200, serving).algorithm

    for C, H, R in ((96, 56, 7), (192, 28, 7), (304, 8, 9), (128, 56, 31)):
        assert chosen(C, H, R) == "depthwise_banded", (C, H, R)
    assert chosen(256, 28, 3, padding=(2,) * 4, dilation=(2, 2)) == "depthwise_banded"
    assert chosen(96, 56, 1, kernel=(1, 7), padding=(0, 0, 3, 3)) == "depthwise_banded"
    for C, H, R, N in ((16, 112, 3, 32), (768, 18, 3, 32), (480, 14, 3, 1), (1632, 9, 3, 1)):
        assert chosen(C, H, R, N) == "depthwise", (C, H, R, N)


def test_contiguous_depthwise_layers_roll() -> None:
    """As they were measured on an H100. Single small images take other kernels, and larger filters bands."""
    serving: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
        ("depthwise_banded", ((32, 32),)),
        ("depthwise_rolling", ((16, 8),)),
        ("depthwise", ()),
    )

    def chosen(C: int, H: int, R: int, N: int = 32, **more: Any) -> str:
        return choose(problem(C, H, C, R, N, groups=C)._replace(layout="nchw", **more), H200, serving).algorithm

    for C, H, R, N in ((96, 56, 7, 32), (144, 56, 3, 32), (240, 28, 5, 32), (1152, 7, 5, 32), (728, 38, 3, 32), (96, 56, 7, 1)):
        assert chosen(C, H, R, N) == "depthwise_rolling", (C, H, R, N)
    assert chosen(96, 112, 3, stride=(2, 2), out_size=(56, 56)) == "depthwise_rolling"
    assert chosen(96, 56, 1, kernel=(1, 7), padding=(0, 0, 3, 3)) == "depthwise_rolling"
    # On an H200, of strides and dilations.
    assert chosen(240, 56, 7, stride=(3, 3), out_size=(19, 19)) == "depthwise_rolling"
    assert chosen(128, 96, 7, stride=(4, 4), out_size=(24, 24)) == "depthwise_rolling"
    assert chosen(256, 48, 7, padding=(6,) * 4, dilation=(2, 2)) == "depthwise_rolling"
    assert chosen(480, 32, 3, stride=(4, 4), out_size=(8, 8)) == "depthwise"
    for C, H, R, N in ((480, 14, 3, 1), (1632, 9, 3, 1), (240, 14, 5, 1)):
        assert chosen(C, H, R, N) == "depthwise", (C, H, R, N)


def test_many_small_contiguous_images_of_odd_width_are_left_to_depthwise() -> None:
    """As they were measured on an H100; even widths, large images and few of them roll."""
    serving: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (("depthwise_rolling", ((16, 8),)), ("depthwise", ()))

    def chosen(C: int, H: int, R: int = 3, N: int = 32, **more: Any) -> str:
        return choose(problem(C, H, C, R, N, groups=C)._replace(layout="nchw", **more), H200, serving).algorithm

    for C, H in ((1632, 9), (1152, 7), (728, 19), (480, 7), (300, 7)):
        assert chosen(C, H) == "depthwise", (C, H)
    assert chosen(1024, 19, stride=(2, 2), out_size=(10, 10)) == "depthwise"
    for C, H, R in ((1024, 10, 3), (672, 14, 3), (256, 75, 3), (1152, 7, 5)):
        assert chosen(C, H, R) == "depthwise_rolling", (C, H, R)


def test_channels_last_depthwise_layers_of_many_taps_take_strips() -> None:
    """Dilated ones, too, as they were measured on an H100. Three taps, five with a stride of 2 of vectors of channels, small
    images and single images are left to `depthwise`.
    """
    serving: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (("depthwise_strips", ((16, 8),)), ("depthwise", ()))

    def chosen(C: int, H: int, R: int, N: int = 32, **more: Any) -> str:
        return choose(problem(C, H, C, R, N, groups=C)._replace(**more), H200, serving).algorithm

    for C, H, R in ((96, 56, 7), (192, 28, 7), (384, 14, 7), (240, 28, 5), (512, 28, 5)):
        assert chosen(C, H, R) == "depthwise_strips", (C, H, R)
    assert chosen(256, 28, 3, padding=(2,) * 4, dilation=(2, 2)) == "depthwise_strips"
    assert chosen(144, 56, 5, stride=(2, 2), out_size=(28, 28)) == "depthwise"
    assert chosen(144, 56, 7, stride=(2, 2), out_size=(28, 28)) == "depthwise_strips"
    for C, H, R, N in ((144, 56, 3, 32), (728, 38, 3, 32), (1152, 7, 5, 32), (96, 56, 7, 1), (768, 7, 7, 1)):
        assert chosen(C, H, R, N) == "depthwise", (C, H, R, N)


def test_few_pixels_of_groups_take_wave_gemm() -> None:
    asked = problem(1024, 7, 1024, groups=32)
    assert choose(asked, H200, (("wave_gemm", WAVE_TILES), *WITH_DIRECT[1:])).algorithm == "wave_gemm"
    assert choose(asked._replace(batch=32), H200, (("wave_gemm", WAVE_TILES), *WITH_DIRECT[1:])).algorithm == "direct"


def test_places_that_do_not_overlap_become_pixels() -> None:
    """The first layer of a vision transformer."""
    asked = problem(3, 224, 768, R=16, N=32)._replace(stride=(16, 16), padding=(0,) * 4, out_size=(14, 14), layout="nchw")
    serving = (("relaid_warpgroup_gemm", WARPGROUP_TILES), ("direct", DIRECT_TILES), ("relaid_implicit_gemm", TILES), *SERVING)
    assert choose(asked, H200, serving).algorithm == "relaid_warpgroup_gemm"


@pytest.mark.parametrize(
    ("asked", "card", "tile", "parts"),
    [
        (problem(512, 256, 512), H200, (256, 128), 1),
        (problem(512, 256, 512), MI300X, (256, 128), 1),
        (problem(512, 64, 512), H200, (128, 128), 1),  # 128 tiles: nearly one each
        (problem(512, 64, 512), MI300X, (64, 64), 1),
        (problem(128, 256, 64), H200, (128, 64), 1),  # half of a 128 filters wide tile would be padding
        (problem(128, 512, 160), H200, (128, 64), 1),  # 192 columns of it rather than 256
        (problem(512, 7, 512), H200, (64, 64), 16),  # one row of 8 tiles: as many parts as are allowed
        (problem(512, 7, 2048, R=1), H200, (64, 64), 2),  # 8 steps: two parts of four
        (problem(64, 56, 64, R=1), H200, (64, 64), 1),  # one step cannot be split
        (problem(256, 14, 256), H200, (64, 64), 9),
        (problem(256, 14, 256, N=32), H200, (128, 64), 1),
        (problem(256, 14, 256, groups=4), H200, (64, 64), 2),  # a group's sums are short
    ],
    ids=str,
)
def test_tiles_for_every_unit_first_then_the_largest_then_parts(
    asked: Problem, card: Card, tile: tuple[int, int], parts: int
) -> None:
    chosen = choose(asked, card, SERVING)
    assert (chosen.algorithm, chosen.tile, chosen.split_k) == ("implicit_gemm", tile, parts)


def test_every_layer_of_the_models_has_enough_blocks_or_cannot_have_more() -> None:
    for card in (H200, MI300X, Card("gfx1201", 64)):
        for case in (case for model in MODELS for case in model_cases(model)):
            asked = problem(case.C, case.H, case.K, case.R)._replace(out_size=case.out_size, stride=case.stride)
            chosen = choose(asked, card, SERVING)
            blocks = -(-asked.pixels // chosen.tile[0]) * -(-asked.filters // chosen.tile[1]) * chosen.split_k
            steps = -(-asked.products // costs.step_of(asked))
            assert 1 <= chosen.split_k <= costs.MOST_PARTS
            assert chosen.split_k == 1 or steps // chosen.split_k >= costs.LEAST_STEPS
            enough = costs.ENOUGH * card.compute_units
            assert blocks >= enough or (chosen.tile == (64, 64) and chosen.split_k in (16, max(1, steps // 4)))
            assert costs.workspace_bytes(asked, chosen.split_k) <= conv2d_router.WORKSPACE_LIMIT


def test_parts_fit_into_the_workspace() -> None:
    asked = problem(512, 7, 512)
    part = 4 * 49 * 512
    for limit, parts in ((part * 16, 16), (part * 5, 5), (part * 2, 2), (part, 1), (0, 1)):
        assert choose(asked, H200, SERVING, limit).split_k == parts


WARPGROUP_TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
CONTIGUOUS = (
    ("relaid_warpgroup_gemm", WARPGROUP_TILES),
    ("warpgroup_gemm", WARPGROUP_TILES[1:3]),
    ("relaid_implicit_gemm", TILES),
    *SERVING,
)


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (problem(512, 256, 512), "relaid_warpgroup_gemm"),  # a copy of 67 MB for 2048 tiles of 72 steps
        (problem(64, 56, 64, R=1), "warpgroup_gemm"),  # a step: less than a launch
        (problem(512, 28, 256, R=1, N=32), "warpgroup_gemm"),  # planes, as they lie in memory
        (problem(512, 14, 1024, N=32), "relaid_warpgroup_gemm"),
    ],
    ids=str,
)
def test_x_is_repacked_where_gathering_takes_longer(asked: Problem, algorithm: str) -> None:
    asked = asked._replace(layout="nchw")
    assert choose(asked, H200, CONTIGUOUS).algorithm == algorithm
    assert choose(asked, H200, CONTIGUOUS[1:]).algorithm == "warpgroup_gemm"  # say, for want of workspace
    assert choose(asked, H200, CONTIGUOUS[2:]).algorithm in ("implicit_gemm", "relaid_implicit_gemm")


def test_steps_are_those_of_the_kernels_on_repacked_x() -> None:
    """Few channels: a sum can be split into as many parts as the rows of a filter have steps, or, where places do not overlap,
    as all that a filter has.
    """
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_WAVE="32", HIPCONV_SIMT_MMA="mma_sync"):
        module = jit.module("conv2d", targets.of(torch.device("cpu")))
        for C, R, stride in ((3, 7, 2), (8, 3, 1), (5, 11, 4), (4, 1, 1), (100, 2, 1), (3, 16, 16), (8, 5, 5)):
            x, weight, size = meta(1, C, 40, 40), meta(16, C, R, R), (40 - R) // stride + 1
            asked = Problem(1, C, (40, 40), 16, (R, R), (size, size), (stride, stride), (0,) * 4, (1, 1), 1, "bfloat16", "nchw")
            inner = costs.repacked(asked)
            stages = -(-inner.in_channels // 64) * inner.kernel[0] * inner.kernel[1]
            for parts in (stages, stages + 1):
                options = ([stride] * 2, [0] * 4, [1, 1], 1, "zeros", "none", "ieee", [size] * 2, torch.bfloat16, False)
                call = module.Call(*options, "relaid_warpgroup_gemm", "wave32", [128, 64, parts])
                refusal = module.conv2d_refusal(meta(1, 16, size, size), x, weight, None, None, call)
                assert (refusal is None) == (parts == stages), (C, R, stride, parts, refusal)


def test_planes_are_those_of_the_kernels() -> None:
    """The router and the kernels' host code apply one rule: a tile of 64 pixels serves planes and channels_last x only."""
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_WAVE="32", HIPCONV_SIMT_MMA="mma_sync"):
        module = jit.module("conv2d", targets.of(torch.device("cpu")))
    for C, height, width, groups, dtype in itertools.product(
        (60, 64, 128), (3, 4, 7, 8), (5, 6, 8), (1, 2), (torch.bfloat16, torch.float32)
    ):
        x, weight, out = (
            meta(*shape, dtype=dtype) for shape in ((2, C, height, width), (64, C // groups, 1, 1), (2, 64, height, width))
        )
        asked = problem(C, height, 64, R=1, N=2, groups=groups)._replace(
            in_size=(height, width), out_size=(height, width), layout="nchw", dtype=str(dtype).removeprefix("torch.")
        )
        options = ([1, 1], [0] * 4, [1, 1], groups, "zeros", "none", "tf32", [height, width], dtype, False)
        call = module.Call(*options, "warpgroup_gemm", "wave32", [64, 64, 1])
        refusal = module.conv2d_refusal(out, x, weight, None, None, call)
        assert (refusal is None) == costs._has_planes(asked), (C, height, width, groups, dtype, refusal)


def test_contiguous_images_of_tf32_are_repacked_where_pixels_are_no_multiple_of_four() -> None:
    serving = (("relaid_warpgroup_gemm", WARPGROUP_TILES), ("warpgroup_gemm", WARPGROUP_TILES))
    for C, size, K in ((960, 18, 160), (928, 14, 128), (128, 56, 64), (1280, 8, 192)):
        asked = problem(C, size, K, R=1, N=32)._replace(dtype="float32", float32_precision="tf32", layout="nchw")
        assert choose(asked, H200, serving).algorithm == "warpgroup_gemm"
    odd = problem(256, 35, 64, R=1, N=32)._replace(dtype="float32", float32_precision="tf32", layout="nchw")
    assert not costs._has_planes(odd) and choose(odd, H200, serving[:1]).algorithm == "relaid_warpgroup_gemm"


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_patches_are_those_of_the_kernels(layout: str) -> None:
    """The router and the kernels' host code apply one rule: channels_last x in patches can be split between channels alone, and
    contiguous x of 3x3 taps needs patches."""
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_WAVE="32", HIPCONV_SIMT_MMA="mma_sync"):
        module = jit.module("conv2d", targets.of(torch.device("cpu")))
    format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    seen = set()
    for height, width in ((h, w) for h in (4, 7, 8, 16, 30, 33, 100) for w in (8, 16, 24, 56, 64, 72, 104, 112, 128)):
        x, weight = (meta(*shape).to(memory_format=format) for shape in ((1, 64, height, width), (64, 64, 3, 3)))
        out = meta(1, 64, height, width).to(memory_format=format)
        asked = problem(64, height, 64)._replace(in_size=(height, width), out_size=(height, width), layout=layout)
        for tile_m in (64, 128, 256) if layout == "nhwc" else (128,):
            has_patches = costs._has_patches(asked, costs._of_a_turn((tile_m, 128))[0], 8 if layout == "nhwc" else 64)
            options = ([1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [height, width], torch.bfloat16, layout == "nhwc")
            tile = [tile_m, 128 if tile_m == 256 else 64, 2 if layout == "nhwc" else 1]
            call = module.Call(*options, "warpgroup_gemm", "wave32", tile)
            refusal = module.conv2d_refusal(out, x, weight, None, None, call)
            assert (refusal is None) == (has_patches != (layout == "nhwc")), (height, width, tile_m, refusal)
            seen.add(has_patches)
    assert seen == {True, False}


def test_few_pixels_take_small_tiles_of_warpgroups() -> None:
    """An H200 measured this: a compute unit alone waits for its operands, so two thirds of them are two thirds of the wait."""
    serving = (("warpgroup_gemm", WARPGROUP_TILES),)
    assert choose(problem(64, 56, 64, R=1), H200, serving)[1:3] == ((64, 64), 1)
    assert choose(problem(512, 28, 256, R=1), H200, serving)[1:3] == ((64, 64), 1)
    assert choose(problem(256, 14, 256), H200, serving)[1:3] == ((64, 64), 6)
    assert choose(problem(512, 7, 512), H200, serving)[1:3] == ((64, 64), 8)
    assert choose(problem(512, 256, 512), H200, serving)[1:3] == ((256, 128), 1)
    assert (64, 64) not in {
        choose(problem(C, size, K, N=32), H200, serving).tile for C, size, K in ((64, 56, 64), (512, 7, 512))
    }


def test_an_algorithm_without_tiles_or_one_asked_for_by_name() -> None:
    assert choose(problem(64, 8, 64), H200, SERVING[1:]) == Choice("naive", (0, 0), 1, "it alone serves the call")
    # They may come in any order.
    assert choose(problem(64, 8, 64), H200, (("naive", ()), SERVING[0])).algorithm == "implicit_gemm"


def test_the_algorithm_that_takes_least_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one needs no more than its row: with an estimate or, to be taken where nothing else serves, without."""
    asked = problem(64, 8, 96)
    monkeypatch.setitem(ALGORITHMS, "without", Algorithm("one that nobody has measured"))
    for us, expected in ((0.5, "new"), (1e6, "implicit_gemm")):
        monkeypatch.setitem(ALGORITHMS, "new", Algorithm("one without tiles", lambda *_, us=us: Estimate(us)))
        choose.cache_clear()
        chosen = choose(asked, H200, (("without", ()), *SERVING, ("new", ())))
        assert chosen.algorithm == expected
    assert choose(asked, H200, (("without", ((64, 64),)),))[:3] == ("without", (64, 64), 1)
    choose.cache_clear()


def test_equal_calls_are_chosen_for_once() -> None:
    before = choose.cache_info().hits
    assert choose(problem(96, 31, 96), H200, SERVING) is choose(problem(96, 31, 96), H200, SERVING)
    assert choose.cache_info().hits == before + 1


# ---- the registry and the kernels --------------------------------------------------------------------------------------------


def test_the_registry_names_what_the_kernels_have(device: torch.device) -> None:
    module = jit.module("conv2d", targets.of(device))
    assert set(module.conv2d_algorithms()) <= set(conv2d_router.METHODS)
    order = [name for name in conv2d_router.METHODS if name in module.conv2d_algorithms()]
    assert module.conv2d_algorithms() == order and order[-1] == "naive"


def test_exactly_what_a_plan_says_serves_does(device: torch.device) -> None:
    names = jit.module("conv2d", targets.of(device)).conv2d_algorithms()
    for case in edge_cases()[13:]:
        arguments = case.reduced(20_000).inputs(device)
        plan = hipconv.conv2d_plan(**arguments)
        assert plan.algorithm in plan.serves and plan.serves[-1] == "naive"
        for name in names:
            if name in plan.serves:
                hipconv.conv2d(**arguments, algorithm=name)
            else:
                with pytest.raises(ValueError, match=f"algorithm: got '{name}', which serves .*; this call can have .*'naive'"):
                    hipconv.conv2d(**arguments, algorithm=name)


def test_no_plan_takes_more_workspace_than_allowed(device: torch.device) -> None:
    arguments = Case(1, 256, 7, 7, 64, 3, 3, padding=1, layout="nhwc").inputs(device)
    for limit in (0, 10_000, 100_000, 1 << 20, 1 << 28):
        plan = hipconv.conv2d_plan(**arguments, workspace_limit=limit)
        assert plan.workspace <= limit
        hipconv.conv2d(**arguments, workspace_limit=limit)


# ---- plans -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_meta_tensors_have_the_plan_of_real_ones(device: torch.device, layout: str) -> None:
    target = targets.of(device).arch
    for C, K, dtype in ((64, 64, "bfloat16"), (3, 8, "float32"), (17, 5, "float16")):
        arguments = Case(1, C, 9, 9, K, 3, 3, padding=1, dtype=DTYPES[dtype], layout=layout, has_residual=True).inputs(device)
        on_meta: dict[str, Any] = {
            name: value.to("meta") if isinstance(value, Tensor) else value for name, value in arguments.items()
        }
        if device.type == "cpu":
            assert hipconv.conv2d_plan(**on_meta, target=target) == hipconv.conv2d_plan(**arguments)
        assert hipconv.conv2d_plan(**on_meta, target=target).serves == hipconv.conv2d_plan(**arguments).serves


def test_plans_for_cards_and_sizes_that_are_not_here() -> None:
    x, weight = meta(64, 512, 1024, 1024).to(memory_format=torch.channels_last), meta(512, 512, 3, 3)
    for target in ("gfx942", "gfx1201", "sm_90"):
        plan = hipconv.conv2d_plan(x, weight, padding=1, target=target)
        assert plan.target.endswith(target) and plan.layout == "nhwc" and plan.algorithm in conv2d_router.METHODS
        assert plan.workspace <= conv2d_router.WORKSPACE_LIMIT
    assert calls.card_named("gfx942") == MI300X and calls.card_named("sm_90") == H200
    on_cpu = hipconv.conv2d_plan(x, weight, padding=1, target="cpu")
    assert (on_cpu.algorithm, on_cpu.serves, on_cpu.workspace) == ("torch", ("torch",), 0)


def test_bytes_and_operations_are_those_of_the_formula() -> None:
    bias, residual = meta(16, dtype=torch.float32), meta(2, 16, 4, 5, dtype=torch.float32)
    plan = hipconv.conv2d_plan(meta(2, 8, 9, 11), meta(16, 4, 3, 3), bias, stride=2, groups=2, residual=residual, target="cpu")
    outputs = 2 * 16 * 4 * 5
    assert plan.flops == 2 * outputs * 4 * 9
    assert plan.bytes_moved == 2 * 2 * 8 * 9 * 11 + 2 * 16 * 4 * 9 + 4 * 16 + 4 * outputs + 2 * outputs
    expanded = hipconv.conv2d_plan(
        meta(1, 8, 9, 11).expand(4, -1, -1, -1), meta(16, 8, 1, 1), target="cpu", out_dtype=torch.float32
    )
    assert expanded.bytes_moved == 2 * 8 * 9 * 11 + 2 * 16 * 8 + 4 * (4 * 16 * 9 * 11)


def test_a_plan_reads_like_a_sentence_and_cannot_be_changed() -> None:
    plan = hipconv.conv2d_plan(meta(1, 512, 64, 64), meta(512, 512, 3, 3), padding=1, target="cpu")
    assert str(plan) == (
        f"torch on cpu {targets.host_isa()} in nchw, chosen by auto (CPU tensors are torch's); algorithms that serve: torch; "
        f"workspace "
        "0 B; 1474.6 FLOP a byte; floor: the longer of 19.3 GFLOP at the card's rate and a copy kernel's time for 13.1 MB"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.algorithm = "naive"  # type: ignore[misc]


def test_bad_plans_are_refused_by_name() -> None:
    x, weight = meta(1, 8, 6, 6), meta(8, 8, 3, 3)
    with pytest.raises(ValueError, match=r"^weight: got shape \(8, 8, 9, 9\)|^x: got shape"):
        hipconv.conv2d_plan(x, meta(8, 8, 9, 9), target="cpu")
    with pytest.raises(ValueError, match=r"^algorithm: got 'naive', expected one of 'auto', 'torch'"):
        hipconv.conv2d_plan(x, weight, algorithm="naive", target="cpu")
    with pytest.raises(ValueError, match=r"^target: got 'gpu'"):
        hipconv.conv2d_plan(x, weight, target="gpu")
    with pytest.raises(TypeError, match=r"^weight: got \[1.0\], expected a torch.Tensor"):
        hipconv.conv2d_plan(x, [1.0])  # type: ignore[arg-type]
