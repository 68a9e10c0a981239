"""conv2d's `depthwise_strips` on simt: every matrix unit, strips of one image and of several, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, check

pytestmark = pytest.mark.usefixtures("one_thread")


def strips(shape: tuple[int, int, int, int], taps: tuple[int, int], **more: Any) -> Case:
    return Case(shape, (shape[1], *taps), groups=shape[1], algorithm="depthwise_strips", **more)


SAME3, SAME5, SAME7 = (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)
# Images of less than a strip, of one and of many; blocks that end within an image and within a run of strips; channels that
# fill no block; segments of which the last is lower; filters of fewer rows than the kernel has room for, and dilated ones.
CASES = [
    strips((20, 8, 7, 7), (3, 3), padding=SAME3, bias=True, activation="relu"),
    strips((3, 40, 9, 9), (5, 5), padding=SAME5, bias=True, activation="relu"),
    strips((2, 24, 14, 14), (7, 7), padding=SAME7, bias=True),
    strips((1, 32, 45, 72), (3, 3), padding=SAME3),
    strips((1, 16, 19, 133), (3, 3), padding=SAME3, stride=(2, 2)),
    strips((2, 24, 15, 22), (5, 5), padding=(2, 1, 1, 2), stride=(2, 2), bias=True, activation="relu"),
    strips((5, 16, 13, 13), (7, 7), padding=SAME7, stride=(2, 2)),
    strips((2, 16, 12, 17), (3, 3), padding=(2, 2, 3, 3), dilation=(2, 3)),
    strips((2, 8, 12, 15), (4, 2), padding=(3, 0, 1, 2)),
    strips((3, 16, 1, 50), (1, 9), padding=(0, 0, 8, 0), bias=True),
    strips((2, 8, 40, 1), (7, 1), padding=(3, 3, 0, 0)),
    strips((1, 8, 5, 6), (3, 3), padding=(4, 5, 4, 6), bias=True, activation="relu"),
    strips((2, 8, 30, 7), (1, 1), stride=(2, 2)),
    strips((3, 40, 9, 9), (5, 5), padding=SAME5, residual=True, bias=True, activation="relu"),
    strips((2, 24, 14, 19), (7, 7), padding=SAME7, residual=True, mode="reflect"),
    strips((5, 8, 7, 7), (3, 3), padding=(1, 2, 0, 1), mode="circular", bias=True, activation="relu"),
    strips((1, 16, 21, 33), (5, 5), padding=(3, 2, 4, 1), mode="replicate"),
    strips((2, 8, 21, 25), (3, 3), stride=(2, 2), mode="reflect"),
]  # fmt: skip


def test_every_way_through_memory(module: Any) -> None:
    tiles = module.conv2d_tiles("depthwise_strips", arch_here(), torch.float16)
    assert tiles or os.environ["HIPCONV_SIMT_MMA"].startswith("wmma")  # RDNA has none
    for tile in tiles:
        for number, case in enumerate(CASES):
            check(module, case._replace(dtype=HALVES[number % 2], tile=tile))
