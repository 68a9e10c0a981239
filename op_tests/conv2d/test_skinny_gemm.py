"""conv2d's `skinny_gemm` on simt: every tile, teams of 4 to 256 threads, by vectors and by elements, with small integers.

    python op_tests/conv2d/test_skinny_gemm.py --unit mfma,wmma11 --cases 300

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import functools
from pathlib import Path
import random
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
import torch.nn.functional as F

from conv2d.exact import DTYPES, Case, arch_here, check, check_random_cases, is_served, random_cases_command, running_on
from support.backends import EVERYTHING
import hipconv
from hipconv.ops.conv2d import costs

pytestmark = pytest.mark.usefixtures("one_thread")

TILES = [(1, 2), (4, 4), (8, 4)]
FIRST = {"x_layout": "nchw0", "weight_layout": "kcrs0", "out_layout": "nchw0"}


def skinny(*sizes: Any, **more: Any) -> Case:
    arguments: dict[str, Any] = {"dtype": torch.float32, "algorithm": "skinny_gemm", "tile": (4, 4)} | more
    return Case(*sizes, **arguments)


# Channels for teams of 4 to 256 threads, the last ones with more chunks than they take at once.
CHANNELS = [4, 24, 68, 200, 512, 648, 1100, 1632, 2064, 4108]


@pytest.mark.parametrize("channels", CHANNELS)
def test_teams(module: Any, channels: int) -> None:
    """Fewer pixels than a tile has and more, and filters that fill no block."""
    for number, dtype in enumerate(DTYPES):
        for tile in TILES:
            case = skinny((3, channels, 3, 1), (2 * tile[1] + 1, 1, 1), dtype=dtype, tile=tile, bias=True)
            if EVERYTHING or (number + TILES.index(tile) + CHANNELS.index(channels)) % 3 == 0:
                check(module, case)


SPECIAL = {
    "one of each": skinny((1, 1, 1, 1), (1, 1, 1)),
    "squeeze": skinny((32, 216, 1, 1), (20, 1, 1), **FIRST, bias=True, activation="relu"),
    "excite": skinny((2, 20, 1, 1), (216, 1, 1), **FIRST, bias=True, residual=True),
    "excite by elements": skinny((2, 18, 1, 1), (216, 1, 1), **FIRST, bias=True),
    "one image": skinny((1, 480, 1, 1), (40, 1, 1), **FIRST, bias=True, activation="relu", tile=(1, 2)),
    "64 pixels": skinny((1, 36, 8, 8), (12, 1, 1), tile=(8, 4), residual=True),
    "a few pixels, contiguous": skinny((2, 40, 3, 5), (9, 1, 1), x_layout="nchw", weight_layout="kcrs", out_layout="nchw"),
    "odd strides": skinny((2, 64, 3, 2), (20, 1, 1), x_layout="nhwc1", weight_layout="krsc1", out_layout="nhwc1", bias=True),
    "every third column": skinny((2, 12, 7, 10), (10, 1, 1), (2, 3), bias=True, residual=True),
    "groups": skinny((3, 60, 1, 2), (21, 1, 1), groups=3, bias=True),
    "groups by elements": skinny((3, 27, 1, 2), (21, 1, 1), groups=3, **FIRST),
    "taps as channels": skinny((5, 12, 3, 2), (10, 3, 2), bias=True),
    "contiguous taps as channels": skinny((5, 6, 3, 2), (10, 3, 2), **FIRST, bias=True),
    "16 bits out": skinny((4, 32, 1, 1), (24, 1, 1), out_dtype=torch.float16, bias=True, residual=True),
    "float32 out": skinny((4, 32, 1, 1), (24, 1, 1), dtype=torch.bfloat16, out_dtype=torch.float32, bias=True),
    "16 bits by elements": skinny((9, 54, 1, 1), (24, 1, 1), dtype=torch.float16, bias=True),
}  # fmt: skip
SURROUNDED = {"x_layout": "nhwc", "weight_layout": "krsc"}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_shapes(module: Any, name: str) -> None:
    case = SPECIAL[name]
    if name == "taps as channels":  # without gaps, as torch makes channels_last tensors
        check_joined(module, case)
        return
    for tile in TILES if EVERYTHING else [case.tile]:
        if is_served(module, case, tile):
            check(module, case._replace(tile=tile))
    assert is_served(module, case, case.tile)


def check_joined(module: Any, case: Case) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = (
        torch.randint(-1, 2, shape, generator=generator).float().to(memory_format=torch.channels_last)
        for shape in (case.shape, (case.filters[0], case.shape[1], *case.filters[1:]))
    )
    call = module.Call(
        [1, 1], [0] * 4, [1, 1], 1, "zeros", "none", "ieee", [1, 1], torch.float32, False, "skinny_gemm", arch_here(), [4, 4, 1]
    )
    assert torch.equal(module.conv2d(x, weight, None, None, call, 0), F.conv2d(x, weight))


def test_what_is_refused(module: Any) -> None:
    served = skinny((1, 8, 8, 8), (8, 1, 1))
    assert is_served(module, served, (4, 4))
    assert not is_served(module, served._replace(shape=(1, 8, 5, 13)), (4, 4))  # 65 pixels
    assert not is_served(module, served._replace(padding=(0, 0, 1, 0), shape=(1, 8, 4, 4)), (4, 4))
    assert not is_served(module, served._replace(filters=(8, 3, 3)), (4, 4))
    assert not is_served(module, served._replace(split_k=2), (4, 4))
    assert not is_served(module, served._replace(x_layout="nhwc1"), (8, 4))  # by elements in tiles of 4 pixels
    assert not is_served(module, skinny((1, 8, 2, 2), (8, 2, 2), x_layout="nchw0"), (4, 4))  # the orders differ


def random_case(rng: random.Random) -> Case:
    groups = rng.choice([1, 1, 1, 2, 3])
    height, width = rng.choice([(1, 1), (1, 1), (2, 1), (3, 4), (7, 7)])
    return skinny(
        (rng.choice([1, 1, 2, 5, 33]), groups * rng.choice([1, 2, 6, 8, 12, 20, 36, 90, 300]), height, width),
        (groups * rng.choice([1, 2, 3, 10, 20]), 1, 1),
        (rng.randint(1, 3), rng.randint(1, 3)),
        groups=groups,
        dtype=rng.choice(DTYPES),
        x_layout=rng.choice(["nhwc", "nhwc", "nchw", "nchw0", "nhwc1"]),
        weight_layout=rng.choice(["krsc", "kcrs", "kcrs0", "krsc1"]),
        out_layout=rng.choice(["nhwc", "nchw", "nchw0", "nhwc1"]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.3,
        activation=rng.choice(["none", "relu"]),
        tile=rng.choice(TILES),
    )


def test_random_shapes(module: Any) -> None:
    check_random_cases(random_case, module, 400 if EVERYTHING else 30, 12)


def test_random_numbers(module: Any) -> None:
    """Against float64: sums that waves share."""
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(6, 1200, 1, 1, generator=generator), torch.randn(9, 1200, 1, 1, generator=generator) / 1200**0.5
    call = module.Call(
        [1, 1], [0] * 4, [1, 1], 1, "zeros", "none", "ieee", [1, 1], torch.float32, True, "skinny_gemm", arch_here(), [4, 4, 1]
    )
    out = module.conv2d(x, weight, None, None, call, 0)
    assert (out.double() - F.conv2d(x.double(), weight.double())).abs().max() < 2e-6


def test_tiles_of_architectures() -> None:
    with running_on("mfma") as module:
        for arch in ("gfx90a", "gfx1030", "gfx1201", "sm_75", "sm_90"):
            for dtype in DTYPES:
                assert module.conv2d_tiles("skinny_gemm", arch, dtype) == [list(tile) for tile in TILES]


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size", "algorithm"),
    [
        (1, 480, 40, 1, "skinny_gemm"),  # squeeze and excitation
        (32, 720, 60, 1, "skinny_gemm"),
        (32, 60, 720, 1, "skinny_gemm"),
        (1, 384, 1536, 1, "skinny_gemm"),
        (1, 1024, 2048, 7, "split_implicit_gemm"),  # products enough for matrix cores
        (1, 64, 40, 9, "fma_gemm"),  # 81 pixels
    ],
)
def test_the_choice(batch: int, channels: int, filters: int, size: int, algorithm: str) -> None:
    x, weight = (
        torch.empty(*shape, device="meta").contiguous(memory_format=torch.channels_last)
        for shape in ((batch, channels, size, size), (filters, channels, 1, 1))
    )
    assert hipconv.conv2d_plan(x, weight, target="sm_90", float32_precision="ieee").algorithm == algorithm
    plan = hipconv.conv2d_plan(x, weight, target="sm_90", float32_precision="tf32")
    assert plan.algorithm != "skinny_gemm" or plan.float32_precision == "ieee"


def test_teams_of_the_estimate() -> None:
    """They are those of the kernel's host code."""
    teams = [costs._skinny_team(-(-channels // 4)) for channels in CHANNELS]
    assert teams == [4, 4, 16, 32, 64, 128, 192, 256, 256, 256]
    assert [costs._skinny_team(chunks) for chunks in (1, 8, 9, 128, 129, 256, 257)] == [4, 4, 8, 64, 128, 128, 192]


def main() -> None:
    random_cases_command(__doc__, functools.partial(check_random_cases, random_case))


if __name__ == "__main__":
    main()
