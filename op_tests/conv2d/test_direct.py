"""conv2d's `direct` on simt: every tile and matrix unit, groups in bundles, few channels, few filters, with small integers.

    python op_tests/conv2d/test_direct.py --unit mfma,wmma11 --cases 300

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
import random
import struct
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
import torch.nn.functional as F

from conv2d.exact import (
    HALVES,
    Case,
    arch_here,
    check,
    check_random_cases,
    is_served,
    random_cases_command,
    running_on,
)
from support.backends import EVERYTHING
from hipconv.ops.conv2d import direct_tiling
from hipconv.ops.conv2d.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")

MMA_SYNC = 4  # of MatrixUnit in csrc/include/device/arch.h
TILES = [(512, 16), (512, 32), (256, 16), (256, 32), (256, 64), (128, 16), (128, 32), (128, 64), (128, 128)]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_estimate_knows_the_tiling(module: Any, layout: str) -> None:
    """The router's blocks are the kernel's: passes and chunks, bundles and windows, of each tile."""
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    layers = [
        Problem(2, 96, (35, 35), 96, (3, 3), (35, 35), (1, 1), (1, 1, 1, 1), (1, 1), 1, "bfloat16", layout),
        Problem(3, 18, (56, 57), 18, (3, 3), (28, 29), (2, 2), (1, 1, 1, 1), (1, 1), 1, "bfloat16", layout),
        Problem(1, 3, (64, 80), 64, (7, 7), (32, 40), (2, 2), (3, 3, 3, 3), (1, 1), 1, "bfloat16", layout),
        Problem(9, 256, (7, 7), 256, (3, 3), (7, 7), (1, 1), (1, 1, 1, 1), (1, 1), 32, "bfloat16", layout),
        Problem(1, 512, (16, 16), 40, (3, 3), (16, 16), (1, 1), (2, 2, 2, 2), (2, 2), 1, "bfloat16", layout),
        Problem(2, 60, (30, 30), 20, (1, 5), (30, 30), (1, 1), (0, 0, 2, 2), (1, 1), 4, "bfloat16", layout),
    ]
    found = 0
    for problem, tile in itertools.product(layers, TILES):
        filters = (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel)
        x = torch.empty(problem.batch, problem.in_channels, *problem.in_size, device="meta", dtype=torch.bfloat16)
        out = torch.empty(problem.batch, problem.out_channels, *problem.out_size, device="meta", dtype=torch.bfloat16)
        weight = torch.empty(filters, device="meta", dtype=torch.bfloat16)
        tensors = [t.to(memory_format=memory) for t in (out, x, weight)]
        call = module.Call(
            problem.stride, problem.padding, problem.dilation, problem.groups, "zeros", "none", "ieee", problem.out_size,
            torch.bfloat16, layout == "nhwc", "direct", arch_here(), (*tile, 1),
        )  # fmt: skip
        if module.conv2d_refusal(*tensors, None, None, call) is not None:
            continue
        form, *_ = module.conv2d_packing(*tensors, None, None, call)
        _, unit, windows, bundles, _, of_bundle, taps, strip, _, chunks, passes, _ = struct.unpack("12q", form)
        lds = direct_tiling.lds_of("sm_90" if unit == MMA_SYNC else "gfx942")
        bundle, tiling = direct_tiling.bundle_of(problem), direct_tiling.tiling_of(problem, tile, lds)
        assert tiling is not None
        assert (bundle.has_windows, bundle.bundles, bundle.filters, bundle.taps) == (windows, bundles, of_bundle, taps)
        assert (tiling.atoms * 16, tiling.chunks, tiling.passes) == (strip, chunks, passes), (problem, tile)
        found += 1
    assert found > 40 or unit_of_plain_products(module)


def unit_of_plain_products(module: Any) -> bool:
    return not module.conv2d_tiles("direct", arch_here(), torch.bfloat16)


def test_every_tile(module: Any) -> None:
    """Bundles of several groups, strips of 16 filters and of 32, in both layouts; more pixels than a tile has,
    and no whole number.
    """
    cases = [
        Case((2, 64, 11, 33), (64, 3, 3), padding=(1, 1, 1, 1), groups=8, bias=True),
        Case(
            (1, 72, 9, 22),
            (144, 3, 3),
            padding=(1, 1, 1, 1),
            groups=3,
            x_layout="nchw",
            weight_layout="kcrs",
            out_layout="nchw",
        ),
        Case(
            (1, 6, 20, 30),
            (80, 3, 3),
            (2, 2),
            (1, 1, 1, 1),
            x_layout="nhwc1",
            out_layout="nhwc1",
            residual=True,
            activation="relu",
        ),
    ]
    for number, (tile, case) in enumerate(itertools.product(TILES, cases)):
        dtype = HALVES[number % 2]
        if is_served(module, case._replace(algorithm="direct", dtype=dtype), tile):
            check(module, case._replace(algorithm="direct", dtype=dtype, tile=tile))
        else:
            assert tile == (512, 32) or (tile in ((256, 64), (128, 128)) and case.groups == 8), (tile, case)


SPECIAL = {
    "one pixel, one channel, one filter": Case((1, 1, 1, 1), (1, 1, 1)),
    "four channels a group": Case((1, 128, 8, 8), (128, 3, 3), padding=(1, 1, 1, 1), groups=32),
    "groups that do not fill the last bundle": Case((2, 40, 7, 6), (40, 3, 3), padding=(1, 1, 1, 1), groups=10, bias=True),
    "groups of three channels": Case((2, 24, 7, 6), (24, 3, 3), padding=(1, 1, 1, 1), groups=8),
    "groups of three channels, not vectors": Case((1, 15, 7, 6), (10, 3, 3), padding=(1, 1, 1, 1), groups=5, x_layout="nchw"),
    "more filters than channels": Case((1, 16, 7, 8), (64, 3, 3), (1, 1), (1, 1, 1, 1), groups=8),
    "fewer filters than channels": Case((1, 64, 7, 8), (16, 3, 3), (1, 1), (1, 1, 1, 1), groups=8, residual=True),
    "24 a group": Case((1, 72, 9, 8), (72, 3, 3), (2, 2), (1, 1, 1, 1), groups=3),
    "64 a group": Case((1, 128, 5, 6), (128, 3, 3), padding=(1, 1, 1, 1), groups=2),
    "depthwise": Case((1, 10, 7, 8), (20, 3, 3), (1, 1), (1, 1, 1, 1), groups=10),
    "7x7 images": Case((5, 32, 7, 7), (32, 3, 3), padding=(1, 1, 1, 1), groups=2, out_layout="nchw", x_layout="nchw0"),
    "stem": Case((1, 3, 21, 19), (64, 7, 7), (2, 2), (3, 3, 3, 3), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"),
    "stem, channels last": Case(
        (1, 3, 21, 24), (32, 3, 3), (2, 2), (1, 1, 1, 1), x_layout="nhwc1", bias=True, activation="relu"
    ),
    "stem, one channel, dilated": Case((1, 1, 21, 24), (24, 3, 5), (2, 3), (1, 1, 1, 1), (2, 2), out_layout="nchw"),
    "head": Case((1, 64, 12, 10), (3, 3, 3), padding=(1, 1, 1, 1), bias=True),
    "head of many channels": Case((1, 264, 6, 20), (3, 3, 3), padding=(1, 1, 1, 1), out_layout="nchw"),
    "head, 1x1, channels first": Case((1, 64, 12, 16), (2, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw"),
    "patches": Case((2, 3, 16, 16), (40, 4, 4), (4, 4), x_layout="nchw", weight_layout="kcrs", bias=True),
    "patches of a transformer": Case((2, 3, 28, 28), (32, 14, 14), (14, 14), x_layout="nchw", weight_layout="kcrs"),
    "1x1, stride 2": Case((2, 64, 7, 9), (72, 1, 1), (2, 2)),
    "uneven taps": Case((1, 40, 9, 12), (16, 2, 5), (3, 2), (1, 0, 2, 1), (2, 1)),
    "dilation": Case((1, 64, 17, 15), (16, 3, 3), (1, 1), (12, 12, 6, 6), (12, 6), groups=4),
    "more padding than image": Case((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6)),
    "asymmetric padding": Case((2, 16, 9, 8), (24, 3, 3), (2, 2), (0, 1, 0, 1)),
    "17 x 1": Case((1, 16, 17, 5), (8, 17, 1), padding=(8, 8, 0, 0)),
    "wide": Case((1, 16, 3, 700), (16, 3, 3), padding=(1, 1, 1, 1), groups=4, out_layout="nchw"),
    "many small images": Case((70, 8, 3, 2), (16, 2, 2), padding=(0, 1, 0, 0)),
    "epilogue, channels first": Case(
        (2, 32, 8, 8),
        (64, 3, 3),
        padding=(1, 1, 1, 1),
        groups=2,
        out_layout="nchw0",
        bias=True,
        residual=True,
        activation="relu",
    ),
    "f32 out": Case(
        (2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), groups=2, out_dtype=torch.float32, bias=True, residual=True
    ),
    "f32 out, channels first": Case((2, 32, 8, 8), (64, 1, 1), out_layout="nchw", out_dtype=torch.float32),
    "reflect": Case((2, 16, 6, 7), (16, 3, 3), padding=(2, 1, 3, 2), groups=4, mode="reflect"),
    "replicate": Case((2, 3, 6, 7), (16, 3, 3), padding=(2, 1, 3, 2), mode="replicate", x_layout="nchw"),
    "circular": Case((1, 16, 6, 7), (16, 5, 3), (2, 1), (3, 4, 7, 2), mode="circular", bias=True),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_shapes(module: Any, name: str) -> None:
    case = SPECIAL[name]._replace(algorithm="direct")
    ways = [((128, 32), torch.bfloat16), ((256, 16), torch.float16)]
    for tile, dtype in ways if EVERYTHING else ways[list(SPECIAL).index(name) % 2 :][:1]:
        assert is_served(module, case, tile)
        check(module, case._replace(tile=tile, dtype=dtype))


def random_case(rng: random.Random) -> Case:
    groups, kernel = (
        rng.choice([1, 2, 3, 4, 5, 8, 16, 24]),
        rng.choice([(1, 1), (3, 3), (3, 3), (2, 3), (5, 1), (4, 4), (7, 7)]),
    )
    stride, dilation = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 2), rng.randint(1, 2))
    height, width = (dilation[i] * (kernel[i] - 1) + 1 + rng.randint(0, 12) for i in (0, 1))
    each = [1, 2, 3, 4, 8, 16, 24, 64] if groups < 5 else [1, 2, 3, 4, 8]
    return Case(
        (rng.randint(1, 3), groups * rng.choice(each), height, width),
        (groups * rng.choice([1, 2, 3, 4, 8, 16, 20, 64][: 8 if groups < 5 else 5]), *kernel),
        stride,
        (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)),
        dilation,
        groups,
        "zeros" if rng.random() < 0.8 else "replicate",
        rng.choice(HALVES),
        rng.choice(["nhwc", "nhwc", "nchw", "nchw0", "nhwc1"]),
        rng.choice(["krsc", "kcrs", "krsc1"]),
        rng.choice(["nhwc", "nchw", "nchw0", "nhwc1"]),
        rng.choice([None, None, torch.float32]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.3,
        activation=rng.choice(["none", "relu"]),
        tile=rng.choice(TILES),
        algorithm="direct",
    )


def test_random_shapes(module: Any) -> None:
    check_random_cases(random_case, module, 400 if EVERYTHING else 30, 11)


def test_not_finite_values_stay_in_their_group(module: Any) -> None:
    """A bundle multiplies channels of one group by zeros that belong to another;
    what an infinity or a NaN makes of it is mended.
    """
    x = torch.ones(1, 16, 9, 9)
    x[0, 3, 4, 4], x[0, 12, 0, 8], x[0, 15, 8, 0] = float("nan"), float("inf"), -float("inf")
    for groups, dtype in itertools.product((1, 2, 4, 16), HALVES):
        weight = torch.full((16, 16 // groups, 3, 3), 0.5)
        bias = torch.arange(16.0)
        call = module.Call(
            [1, 1], [1] * 4, [1, 1], groups, "zeros", "none", "ieee", [9, 9], dtype, True, "direct", arch_here(), [128, 16, 1]
        )
        given = x.to(dtype).contiguous(memory_format=torch.channels_last)
        out = module.conv2d(given, weight.to(dtype), bias.to(dtype), None, call, 0).float()
        expected = F.conv2d(x, weight, bias, padding=1, groups=groups)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=0, equal_nan=True)


def test_random_numbers(module: Any) -> None:
    """Against float64, rounded once: f32 sums of bf16 products are off by little more than that rounding."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 64, 13, 12, generator=generator).bfloat16().contiguous(memory_format=torch.channels_last)
    weight = (torch.randn(64, 8, 3, 3, generator=generator) / 72**0.5).bfloat16()
    call = module.Call(
        [1, 1], [1] * 4, [1, 1], 8, "zeros", "none", "ieee", [13, 12], torch.float32, True, "direct", arch_here(), [128, 32, 1]
    )
    out = module.conv2d(x, weight, None, None, call, 0)
    assert (out.double() - F.conv2d(x.double(), weight.double(), padding=1, groups=8)).abs().max() < 1e-5


def test_tiles_of_architectures() -> None:
    with running_on("mfma") as module:
        for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_80", "sm_90"):
            assert module.conv2d_tiles("direct", arch, torch.float16) == [list(tile) for tile in TILES]
            assert module.conv2d_tiles("direct", arch, torch.float32) == []
        for arch in ("gfx1030", "gfx906", "sm_75"):  # without matrix instructions
            assert module.conv2d_tiles("direct", arch, torch.float16) == []


def main() -> None:
    random_cases_command(__doc__, functools.partial(check_random_cases, random_case))


if __name__ == "__main__":
    main()
