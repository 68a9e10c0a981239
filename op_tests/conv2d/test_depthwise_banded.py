"""conv2d's `depthwise_banded` on simt: every matrix unit, every way to read x and to write out, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, check

pytestmark = pytest.mark.usefixtures("one_thread")


def banded(shape: tuple[int, int, int, int], taps: tuple[int, int], **more: Any) -> Case:
    channels, multiplier = shape[1], more.pop("multiplier", 1)
    return Case(shape, (channels * multiplier, *taps), groups=channels, algorithm="depthwise_banded", tile=(32, 32), **more)


SAME3, SAME5, SAME7 = (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)
NCHW = {"x_layout": "nchw0", "out_layout": "nchw0", "weight_layout": "kcrs0"}
# Rows of x of even and odd lengths, whose taps begin at even or odd places of LDS, or at both; planes that are whole vectors or
# not; images that pass alone, by two or by four; strips of rows, and outputs of more columns than a wave has sums of; windows
# of one, two and three steps of a product.
CASES = [
    banded((6, 11, 7, 7), (3, 3), padding=SAME3, bias=True, activation="relu", **NCHW),
    banded((7, 3, 7, 9), (3, 3), padding=SAME3, **NCHW),
    banded((3, 4, 9, 9), (5, 5), padding=SAME5, residual=True, **NCHW),
    banded((2, 9, 14, 14), (5, 5), padding=SAME5, residual=True, bias=True, **NCHW),
    banded((2, 3, 28, 28), (7, 7), padding=SAME7, bias=True, **NCHW),
    banded((1, 2, 45, 72), (3, 3), padding=SAME3, bias=True, residual=True, **NCHW),
    banded((1, 5, 19, 33), (3, 3), padding=SAME3, stride=(2, 2), **NCHW),
    banded((2, 3, 41, 35), (3, 3), padding=SAME3, bias=True, **NCHW),
    banded((1, 4, 30, 36), (5, 3), padding=(0, 2, 1, 0), stride=(2, 3), multiplier=2, **NCHW),
    banded((5, 3, 12, 17), (3, 3), padding=(2, 2, 3, 3), dilation=(2, 3), **NCHW),
    banded((2, 3, 12, 15), (4, 2), padding=(3, 0, 1, 2), dilation=(1, 2), stride=(3, 1), activation="relu", **NCHW),
    banded((1, 6, 9, 40), (1, 31), padding=(0, 0, 15, 15), **NCHW),
    banded((3, 5, 1, 50), (1, 4), padding=(0, 0, 3, 0), bias=True, **NCHW),
    banded((2, 5, 40, 1), (9, 1), padding=(4, 4, 0, 0), **NCHW),
    banded((2, 7, 31, 30), (7, 7), padding=SAME7, stride=(2, 2), **NCHW),
    banded((1, 3, 5, 6), (3, 3), padding=(4, 5, 4, 6), bias=True, residual=True, activation="relu", **NCHW),
    banded((2, 8, 16, 32), (3, 3), padding=SAME3, **NCHW),
]  # fmt: skip


def test_every_way_through_memory(module: Any) -> None:
    if not module.conv2d_tiles("depthwise_banded", arch_here(), torch.float16):
        return  # RDNA 3 has none
    for number, case in enumerate(CASES):
        check(module, case._replace(dtype=HALVES[number % 2]))
