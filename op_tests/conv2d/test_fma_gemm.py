"""conv2d's `fma_gemm` on simt: every tile, x by elements and by vectors, with small integers.

    python op_tests/conv2d/test_fma_gemm.py --unit mfma,wmma11 --cases 300

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

from conv2d.exact import Case, arch_here, check, check_random_cases, is_served, random_cases_command, running_on
from support.backends import EVERYTHING

pytestmark = pytest.mark.usefixtures("one_thread")

TILES = [(128, 64), (256, 32), (256, 16), (64, 32), (16, 32)]
FIRST = {"x_layout": "nchw0", "weight_layout": "kcrs", "out_layout": "nchw0"}


def plain(*sizes: Any, **more: Any) -> Case:
    arguments: dict[str, Any] = {"dtype": torch.float32, "algorithm": "fma_gemm"} | more
    return Case(*sizes, **arguments)


def test_every_tile(module: Any) -> None:
    """More pixels and filters than a tile has, and no whole number; products of more and of fewer than a turn."""
    cases = [
        plain((2, 40, 13, 12), (70, 1, 1), bias=True),
        plain((2, 40, 14, 12), (70, 1, 1), **FIRST, residual=True, activation="relu"),
        plain((1, 3, 21, 19), (67, 3, 3), (2, 2), (1, 1, 1, 1), bias=True),
        plain((1, 18, 11, 13), (35, 3, 3), (1, 1), (1, 1, 1, 1), **FIRST, bias=True, residual=True),
        plain((2, 12, 9, 10), (40, 3, 3), padding=(1, 1, 1, 1), groups=2, bias=True),
    ]
    assert module.conv2d_tiles("fma_gemm", "wave", torch.float32) == [list(tile) for tile in TILES]
    for tile, case in itertools.product(TILES, cases):
        check(module, case._replace(tile=tile))


SPECIAL = {
    "one of each": plain((1, 1, 1, 1), (1, 1, 1)),
    "squeeze": plain((32, 216, 1, 1), (54, 1, 1), **FIRST, bias=True),
    "excite": plain((2, 5, 1, 1), (216, 1, 1), **FIRST),
    "odd strides": plain((2, 64, 6, 5), (20, 1, 1), x_layout="nhwc1", out_layout="nhwc1"),
    "mixed layouts": plain((2, 8, 6, 8), (20, 3, 3), x_layout="nchw", weight_layout="krsc", residual=True),
    "stem": plain((1, 3, 21, 19), (64, 7, 7), (2, 2), (3, 3, 3, 3), **FIRST),
    "long sum": plain((1, 160, 5, 5), (40, 3, 3), padding=(1, 1, 1, 1), residual=True),
    "dilation": plain((1, 8, 17, 15), (16, 3, 3), (1, 1), (12, 12, 6, 6), (12, 6)),
    "more padding than image": plain((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6)),
    "asymmetric padding": plain((2, 16, 9, 8), (24, 3, 3), (2, 2), (0, 1, 0, 1)),
    "uneven taps": plain((1, 10, 9, 12), (16, 2, 5), (3, 2), (1, 0, 2, 1), (2, 1)),
    "reflected, though nothing is": plain((1, 8, 5, 6), (8, 3, 3), mode="reflect"),
    "groups of one filter": plain((2, 12, 5, 6), (6, 3, 3), padding=(1, 1, 1, 1), groups=6, **FIRST),
    "16 bits out": plain((2, 32, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), out_dtype=torch.bfloat16, bias=True, residual=True),
    "one pixel more": plain((1, 8, 257, 1), (8, 1, 1), **FIRST),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_shapes(module: Any, name: str) -> None:
    case = SPECIAL[name]
    for tile in TILES if EVERYTHING else TILES[list(SPECIAL).index(name) % 3 :: 3]:
        assert is_served(module, case, tile)
        check(module, case._replace(tile=tile))


def test_padding_modes_are_refused(module: Any) -> None:
    case = plain((1, 8, 5, 6), (8, 3, 3), padding=(1, 1, 1, 1))
    assert is_served(module, case, (64, 32))
    assert not is_served(module, case._replace(mode="reflect"), (64, 32))
    assert not is_served(module, case._replace(split_k=2), (64, 32))


def random_case(rng: random.Random) -> Case:
    kernel = rng.choice([(1, 1), (1, 1), (3, 3), (2, 3), (5, 1), (4, 4), (7, 7)])
    dilation = (rng.randint(1, 2), rng.randint(1, 2))
    height, width = (dilation[i] * (kernel[i] - 1) + 1 + rng.randint(0, 12) for i in (0, 1))
    groups = rng.choice([1, 1, 1, 2, 3])
    return plain(
        (rng.randint(1, 3), groups * rng.choice([1, 2, 3, 8, 10, 16, 24, 36]), height, width),
        (groups * rng.choice([1, 2, 8, 20, 32, 48]), *kernel),
        (rng.randint(1, 3), rng.randint(1, 3)),
        (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3)),
        dilation,
        groups,
        x_layout=rng.choice(["nhwc", "nhwc", "nchw", "nchw0", "nhwc1"]),
        weight_layout=rng.choice(["krsc", "kcrs", "kcrs0", "krsc1"]),
        out_layout=rng.choice(["nhwc", "nchw", "nchw0", "nhwc1"]),
        out_dtype=rng.choice([None, None, torch.bfloat16]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.3,
        activation=rng.choice(["none", "relu"]),
        tile=rng.choice(TILES),
    )


def test_random_shapes(module: Any) -> None:
    check_random_cases(random_case, module, 400 if EVERYTHING else 30, 11)


def test_random_numbers(module: Any) -> None:
    """Against float64: shared sums whose parts are added up."""
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(2, 192, 5, 6, generator=generator), torch.randn(40, 192, 3, 3, generator=generator) / 1728**0.5
    call = module.Call(
        [1, 1], [1] * 4, [1, 1], 1, "zeros", "none", "ieee", [5, 6], torch.float32, True, "fma_gemm", arch_here(), [16, 32, 1]
    )
    out = module.conv2d(x, weight, None, None, call, 0)
    assert (out.double() - F.conv2d(x.double(), weight.double(), padding=1)).abs().max() < 4e-6


def test_tiles_of_architectures() -> None:
    with running_on("mfma") as module:
        for arch in ("gfx90a", "gfx1030", "gfx1201", "sm_75", "sm_90"):
            assert module.conv2d_tiles("fma_gemm", arch, torch.float32) == [list(tile) for tile in TILES]
            assert module.conv2d_tiles("fma_gemm", arch, torch.float16) == []


def main() -> None:
    random_cases_command(__doc__, functools.partial(check_random_cases, random_case))


if __name__ == "__main__":
    main()
