"""conv2d's `pointwise` on simt: every matrix unit, every number of channels that has an instance, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, check

pytestmark = pytest.mark.usefixtures("one_thread")


def pointwise(*sizes: int, **more: Any) -> Case:
    N, C, H, W, K = sizes
    return Case((N, C, H, W), (K, 1, 1), algorithm="pointwise", tile=(128, 32), **more)


# Channels that fill a lane's chunks or not, filters that fill 32 or not; more pixels than the waves of all blocks have at once.
CASES = [
    pointwise(1, 8, 5, 7, 8, bias=True),
    pointwise(2, 24, 9, 11, 72, bias=True, activation="relu"),
    pointwise(1, 32, 17, 33, 32, residual=True),
    pointwise(3, 40, 5, 5, 24, residual=True, bias=True, out_dtype=torch.float32),
    pointwise(1, 96, 6, 7, 40, bias=True),
    pointwise(1, 128, 1, 30, 16),  # whose pixels are at one distance
    pointwise(1, 200, 4, 5, 24, bias=True, residual=True),
    pointwise(2, 256, 3, 2, 32),
    pointwise(1, 36, 5, 9, 18, bias=True),
    pointwise(2, 18, 3, 7, 36, residual=True, activation="relu"),
    pointwise(1, 64, 4, 6, 44, out_dtype=torch.float32),
    pointwise(1, 6, 7, 5, 40, bias=True),
]


def test_every_number_of_channels(module: Any) -> None:
    if not module.conv2d_tiles("pointwise", arch_here(), torch.float16):
        return  # RDNA 3 has none
    for number, case in enumerate(CASES):
        check(module, case._replace(dtype=HALVES[number % 2]))


def test_strides_and_images_that_are_not_dense(module: Any) -> None:
    if not module.conv2d_tiles("pointwise", arch_here(), torch.float16):
        return
    for number, (stride, sizes) in enumerate(itertools.product(((2, 2), (1, 3)), ((2, 16, 7, 6, 24), (1, 72, 5, 9, 8)))):
        check(module, pointwise(*sizes, bias=True)._replace(stride=stride, dtype=HALVES[number % 2]))
