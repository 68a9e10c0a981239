"""conv2d's `depthwise_rolling` on simt: every matrix unit, strips of one image and of several, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, check, is_served

pytestmark = pytest.mark.usefixtures("one_thread")


def rolling(shape: tuple[int, int, int, int], taps: tuple[int, int], each: int = 1, **more: Any) -> Case:
    layouts = {"x_layout": "nchw0", "out_layout": "nchw0"} | more
    return Case(shape, (shape[1] * each, *taps), groups=shape[1], algorithm="depthwise_rolling", **layouts)


SAME3, SAME5, SAME7 = (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)
# Images of less than a strip, of one and of many; waves that end within an image; rows of even and of odd length, and gaps
# between them; segments of which the last is lower; filters of fewer rows than the kernel has room for, and dilated ones;
# several filters of a channel.
CASES = [
    rolling((20, 3, 7, 7), (3, 3), padding=SAME3, bias=True, activation="relu"),
    rolling((3, 5, 9, 9), (5, 5), padding=SAME5, bias=True, activation="relu"),
    rolling((2, 3, 14, 14), (7, 7), padding=SAME7, bias=True),
    rolling((1, 2, 45, 72), (3, 3), padding=SAME3, each=2),
    rolling((1, 2, 19, 134), (3, 3), padding=SAME3, stride=(2, 2)),
    rolling((2, 3, 15, 22), (5, 5), padding=(2, 1, 1, 2), stride=(2, 2), bias=True, activation="relu"),
    rolling((5, 2, 13, 13), (7, 7), padding=SAME7, stride=(2, 2)),
    rolling((3, 2, 13, 18), (3, 3), padding=SAME3, stride=(2, 2), bias=True),
    rolling((2, 2, 12, 18), (3, 3), padding=(2, 2, 3, 3), dilation=(2, 3)),
    rolling((2, 2, 12, 16), (4, 2), padding=(3, 0, 1, 2)),
    rolling((3, 2, 1, 50), (1, 9), padding=(0, 0, 8, 0), bias=True),
    rolling((2, 2, 40, 1), (7, 1), padding=(3, 3, 0, 0)),
    rolling((1, 2, 5, 6), (3, 3), padding=(4, 5, 4, 6), bias=True, activation="relu"),
    rolling((2, 2, 30, 8), (1, 1), stride=(2, 2)),
    rolling((2, 2, 20, 24), (11, 11), padding=(5, 5, 5, 5), x_layout="nchw", out_layout="nchw"),
    rolling((2, 2, 23, 21), (9, 9), padding=(4, 4, 4, 4), stride=(2, 2), bias=True),
    rolling((1, 2, 12, 40), (3, 9), padding=(1, 1, 7, 8), dilation=(1, 2), each=3),
    rolling((2, 3, 10, 18), (5, 5), padding=SAME5, x_layout="nchw", out_layout="nchw0"),
    rolling((2, 3, 6, 1), (3, 3), padding=SAME3, x_layout="nhwc"),
    rolling((2, 2, 22, 40), (11, 11), padding=(5, 5, 5, 5), stride=(2, 2), activation="relu"),
    rolling((2, 3, 14, 14), (3, 3), padding=SAME3, residual=True, bias=True, activation="relu"),
    rolling((3, 2, 13, 19), (5, 5), padding=SAME5, residual=True),
    rolling((1, 3, 30, 26), (7, 7), padding=SAME7, residual=True, mode="reflect", x_layout="nchw", out_layout="nchw"),
    rolling((2, 2, 17, 20), (3, 3), padding=(1, 2, 0, 1), mode="circular", each=2, bias=True, activation="relu"),
    rolling((2, 2, 25, 30), (5, 5), padding=SAME5, stride=(2, 2), mode="replicate"),
    rolling((1, 3, 40, 46), (7, 7), padding=SAME7, stride=(3, 3), bias=True, activation="relu"),
    rolling((4, 2, 19, 33), (5, 6), padding=SAME5, stride=(3, 3), residual=True),
    rolling((2, 2, 35, 60), (11, 11), padding=(5, 5, 5, 5), stride=(3, 3), residual=True, x_layout="nchw", out_layout="nchw"),
    rolling((1, 2, 64, 35), (9, 5), padding=(4, 4, 2, 2), stride=(3, 2)),
    rolling((2, 3, 41, 72), (7, 7), padding=SAME7, stride=(4, 4), residual=True, bias=True),
    rolling((1, 2, 30, 67), (9, 11), padding=(4, 3, 5, 2), stride=(4, 4)),
    rolling((3, 2, 33, 66), (3, 3), stride=(4, 4), mode="reflect", padding=SAME3),
    rolling((2, 3, 18, 20), (5, 5), padding=(4, 4, 4, 4), dilation=(2, 2), residual=True, each=2),
    rolling((2, 3, 17, 21), (7, 5), padding=(9, 9, 6, 6), dilation=(3, 3), bias=True, activation="relu"),
    rolling((2, 2, 30, 34), (5, 5), padding=(4, 4, 4, 4), dilation=(2, 2), stride=(2, 2)),
    rolling((2, 2, 31, 29), (3, 3), padding=(3, 3, 2, 2), dilation=(3, 2), stride=(2, 2), residual=True),
    rolling((1, 2, 40, 50), (7, 7), padding=(9, 9, 6, 6), dilation=(3, 2), stride=(2, 2), bias=True),
    rolling((1, 2, 3, 40), (3, 3), padding=(5, 5, 1, 1), dilation=(5, 1)),
    rolling((2, 2, 26, 24), (5, 3), padding=SAME3, dilation=(6, 1), stride=(4, 1)),
    rolling((2, 2, 26, 45), (1, 7), padding=SAME3, stride=(3, 2), residual=True),
    rolling((2, 2, 26, 48), (1, 7), padding=SAME3, stride=(1, 2), residual=True),
    rolling((2, 2, 26, 46), (3, 3), padding=SAME3, stride=(2, 2), residual=True),
    rolling((2, 2, 26, 48), (3, 3), padding=SAME3, stride=(2, 2), residual=True),
]  # fmt: skip


# More of float32: nine rows of taps, and columns far apart, which have kernels of their own.
SINGLES = [
    rolling((2, 2, 19, 20), (9, 9), padding=(4, 4, 4, 4), bias=True),
    rolling((1, 2, 12, 40), (1, 9), padding=(0, 0, 8, 8), dilation=(1, 2), each=2, residual=True),
    rolling((2, 2, 14, 19), (5, 5), padding=(6, 6, 6, 6), dilation=(3, 3), activation="relu"),
    rolling((1, 2, 17, 36), (3, 3), padding=SAME3, stride=(1, 2), residual=True),
]


def test_every_way_through_memory(module: Any) -> None:
    tiles = module.conv2d_tiles("depthwise_rolling", arch_here(), torch.float16)
    assert tiles or os.environ["HIPCONV_SIMT_MMA"].startswith("wmma")  # RDNA has none
    for tile in tiles:
        for number, case in enumerate(CASES):
            check(module, case._replace(dtype=HALVES[number % 2], tile=tile))


def test_every_way_through_memory_of_float32(module: Any) -> None:
    """Small integers are exact as TF32, too."""
    tiles = module.conv2d_tiles("depthwise_rolling", arch_here(), torch.float32)
    assert bool(tiles) == (os.environ["HIPCONV_SIMT_MMA"] == "mma_sync")
    for tile in tiles:
        cases = [case._replace(dtype=torch.float32, float32_precision="tf32", tile=tile) for case in SINGLES + CASES]
        served = [case for case in cases if is_served(module, case, tile)]
        assert len(served) >= 36 and served[: len(SINGLES)] == cases[: len(SINGLES)]
        assert not any(is_served(module, case._replace(float32_precision="ieee"), tile) for case in cases)
        for case in served:
            check(module, case)
