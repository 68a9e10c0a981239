"""conv2d's `wave_gemm` on simt: every tile and matrix unit, each way to read operands, with small integers.

    python op_tests/conv2d/test_wave_gemm.py --unit mfma,wmma11 --cases 300

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
import random
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

pytestmark = pytest.mark.usefixtures("one_thread")

# Twice as many waves share a sum with split_k of 2.
TILES = [(128, 32), (64, 32), (32, 32), (16, 32)]


def test_every_tile(module: Any) -> None:
    """Operands by vectors, by words, and one by one; more pixels and filters than a tile has, and no whole number."""
    cases = [
        Case((2, 72, 5, 7), (40, 3, 3), padding=(1, 1, 1, 1), bias=True),
        Case((2, 150, 9, 9), (33, 1, 1), weight_layout="kcrs", residual=True, activation="relu"),
        Case((1, 24, 12, 13), (70, 3, 3), (2, 2), (0, 1, 2, 1), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"),
        Case((1, 64, 9, 7), (80, 3, 3), (2, 2), (1, 1, 1, 1), groups=2, bias=True, residual=True),
        Case((2, 12, 5, 6), (27, 3, 3), padding=(1, 1, 1, 1), groups=3, x_layout="nchw", weight_layout="kcrs", bias=True),
    ]
    for number, (tile, case) in enumerate(itertools.product(TILES, cases)):
        split = 1 + number // 5 % 2
        asked = case._replace(algorithm="wave_gemm", dtype=HALVES[number % 2], tile=tile, split_k=split)
        if list(tile) in module.conv2d_tiles("wave_gemm", "wave", torch.float16):
            check(module, asked)


SPECIAL = {
    "one of each": Case((1, 1, 1, 1), (1, 1, 1)),
    "squeeze": Case((32, 216, 1, 1), (54, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw0", bias=True),
    "excite": Case((2, 54, 1, 1), (216, 1, 1), x_layout="nchw0", weight_layout="kcrs", out_layout="nchw0"),
    "odd channels": Case((2, 35, 6, 5), (20, 1, 1), bias=True),
    "odd strides": Case((2, 64, 6, 5), (20, 1, 1), x_layout="nhwc1", out_layout="nhwc1"),
    "odd filters": Case((2, 56, 6, 5), (20, 3, 3), weight_layout="krsc1"),
    "stem": Case((1, 3, 21, 19), (64, 7, 7), (2, 2), (3, 3, 3, 3), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"),
    "stem, channels last": Case((1, 3, 21, 24), (32, 3, 3), (2, 2), (1, 1, 1, 1), bias=True, activation="relu"),
    "long sum": Case((1, 512, 7, 7), (40, 3, 3), padding=(1, 1, 1, 1), residual=True),
    "dilation": Case((1, 64, 17, 15), (16, 3, 3), (1, 1), (12, 12, 6, 6), (12, 6)),
    "more padding than image": Case((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6)),
    "asymmetric padding": Case((2, 16, 9, 8), (24, 3, 3), (2, 2), (0, 1, 0, 1)),
    "uneven taps": Case((1, 40, 9, 12), (16, 2, 5), (3, 2), (1, 0, 2, 1), (2, 1)),
    "pairs of channels, 3x3": Case((1, 18, 9, 12), (36, 3, 3), padding=(1, 1, 1, 1), activation="relu"),
    "f32 out": Case((2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), out_dtype=torch.float32, bias=True, residual=True),
    "f32 out, channels first": Case((2, 32, 8, 8), (64, 1, 1), x_layout="nchw", out_layout="nchw", out_dtype=torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_shapes(module: Any, name: str) -> None:
    case = SPECIAL[name]._replace(algorithm="wave_gemm")
    ways = [((64, 32), torch.bfloat16, 2), ((16, 32), torch.float16, 1), ((16, 32), torch.bfloat16, 2)]
    for tile, dtype, split in ways if EVERYTHING else ways[list(SPECIAL).index(name) % 3 :][:1]:
        assert is_served(module, case, tile)
        check(module, case._replace(tile=tile, dtype=dtype, split_k=split))


def test_filters_that_others_pack_are_refused(module: Any) -> None:
    """Beside x that is read by vectors, other GEMMs pack filters; and the estimates do not see how filters lie."""
    case = Case((1, 64, 8, 8), (64, 3, 3), weight_layout="kcrs", algorithm="wave_gemm")
    assert not is_served(module, case, (16, 32))
    assert is_served(module, case._replace(weight_layout="krsc"), (16, 32))
    assert is_served(module, case._replace(x_layout="nchw"), (16, 32))


def random_case(rng: random.Random) -> Case:
    kernel = rng.choice([(1, 1), (1, 1), (3, 3), (2, 3), (5, 1), (4, 4), (7, 7)])
    stride, dilation = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 2), rng.randint(1, 2))
    height, width = (dilation[i] * (kernel[i] - 1) + 1 + rng.randint(0, 12) for i in (0, 1))
    return Case(
        (rng.randint(1, 3), rng.choice([1, 2, 3, 8, 10, 16, 24, 36, 40, 64]), height, width),
        (rng.choice([1, 2, 8, 20, 32, 48, 72]), *kernel),
        stride,
        (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)),
        dilation,
        dtype=rng.choice(HALVES),
        x_layout=rng.choice(["nhwc", "nhwc", "nchw", "nchw0", "nhwc1"]),
        weight_layout=rng.choice(["krsc", "kcrs", "krsc1"]),
        out_layout=rng.choice(["nhwc", "nchw", "nchw0", "nhwc1"]),
        out_dtype=rng.choice([None, None, torch.float32]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.3,
        activation=rng.choice(["none", "relu"]),
        tile=rng.choice(TILES[1:]),
        split_k=rng.randint(1, 2),
        algorithm="wave_gemm",
    )


def test_random_shapes(module: Any) -> None:
    check_random_cases(random_case, module, 400 if EVERYTHING else 30, 11)


def test_random_numbers(module: Any) -> None:
    """Against float64: f32 sums of bf16 products, whose parts are added up."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 192, 5, 6, generator=generator).bfloat16().contiguous(memory_format=torch.channels_last)
    weight = (
        (torch.randn(40, 192, 3, 3, generator=generator) / 1728**0.5).bfloat16().contiguous(memory_format=torch.channels_last)
    )
    call = module.Call(
        [1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [5, 6], torch.float32, True, "wave_gemm", arch_here(), [16, 32, 1]
    )
    out = module.conv2d(x, weight, None, None, call, 0)
    assert (out.double() - F.conv2d(x.double(), weight.double(), padding=1)).abs().max() < 1e-5


def test_tiles_of_architectures() -> None:
    with running_on("mfma") as module:
        for arch in ("gfx90a", "gfx942", "gfx950"):
            assert module.conv2d_tiles("wave_gemm", arch, torch.float16) == [list(tile) for tile in TILES[1:]]
        for arch in ("gfx1100", "gfx1201", "sm_80", "sm_90"):
            assert module.conv2d_tiles("wave_gemm", arch, torch.bfloat16) == [list(tile) for tile in TILES]
        for arch, dtype in (("gfx1030", torch.float16), ("sm_75", torch.float16), ("sm_90", torch.float32)):
            assert module.conv2d_tiles("wave_gemm", arch, dtype) == []


def main() -> None:
    random_cases_command(__doc__, functools.partial(check_random_cases, random_case))


if __name__ == "__main__":
    main()
