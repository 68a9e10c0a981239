"""conv2d's `few_filters` on simt: every matrix unit, every way in which it reads x, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, check

pytestmark = pytest.mark.usefixtures("one_thread")


def few_filters(shape: tuple[int, int, int, int], filters: tuple[int, int, int], **more: Any) -> Case:
    return Case(shape, filters, algorithm="few_filters", tile=(128, 32), **more)


SAME = (1, 1, 1, 1)
NCHW = {"x_layout": "nchw0", "out_layout": "nchw0"}
# One or two groups of 32 columns; one pass over the channels or several; rectangles that end within the image or do not; x read
# by vectors, by two pixels, and by elements.
CASES = [
    few_filters((1, 64, 20, 37), (3, 3, 3), padding=SAME, bias=True, activation="relu"),
    few_filters((2, 160, 9, 5), (2, 3, 3), padding=(0, 2, 1, 0), residual=True),
    few_filters((1, 24, 33, 66), (3, 3, 3), padding=SAME, bias=True, **NCHW),
    few_filters((2, 40, 7, 10), (7, 3, 3), padding=(1, 1, 2, 0), residual=True, **NCHW),
    few_filters((1, 9, 11, 13), (2, 5, 5), padding=(2, 2, 2, 2), mode="reflect", out_dtype=torch.float32, **NCHW),
    few_filters((1, 16, 12, 9), (4, 3, 4), dilation=(2, 1), padding=(2, 2, 1, 2), mode="circular", weight_layout="kcrs"),
    few_filters((3, 12, 6, 8), (1, 1, 7), padding=(0, 0, 3, 3), mode="replicate", x_layout="nhwc1", out_layout="nhwc1"),
]


def test_every_way_to_read_x(module: Any) -> None:
    if not module.conv2d_tiles("few_filters", arch_here(), torch.float16):
        return  # RDNA 3 has none
    for number, case in enumerate(CASES):
        check(module, case._replace(dtype=HALVES[number % 2]))
