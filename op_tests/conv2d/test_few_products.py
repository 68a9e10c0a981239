"""conv2d's `few_products` on simt: every matrix unit, every number of products that has an instance, with small integers.

`exact.py` says how a case is made and judged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conv2d.exact import HALVES, Case, arch_here, call_of, check

pytestmark = pytest.mark.usefixtures("one_thread")


def few_products(shape: tuple[int, int, int, int], filters: tuple[int, int, int], **more: Any) -> Case:
    return Case(shape, filters, algorithm="few_products", tile=(128, 32), **more)


SAME = (1, 1, 1, 1)
NCHW = {"x_layout": "nchw0", "out_layout": "nchw0"}
# Sums of one, two and five pieces of 32 products, which fill them or not; filters that fill 32 or not; tiles of pixels that
# touch a border or do not; factors read one by one or in pairs, which begin at a run or in front of it; out that is stored by
# eight filters, by two, by four pixels, or element by element.
CASES = [
    few_products((1, 3, 9, 11), (32, 3, 3), stride=(2, 2), padding=SAME, bias=True, activation="relu"),
    few_products((2, 3, 20, 21), (16, 3, 3), padding=(0, 2, 1, 0), residual=True),
    few_products((1, 3, 24, 40), (72, 3, 3), padding=SAME, bias=True, activation="relu", **NCHW),
    few_products((2, 1, 9, 7), (34, 5, 5), padding=(2, 2, 2, 2), x_layout="nchw0", out_layout="nhwc", residual=True),
    few_products((1, 4, 8, 12), (40, 4, 4), stride=(4, 4), x_layout="nhwc1", weight_layout="kcrs", out_dtype=torch.float32),
    few_products((3, 2, 7, 9), (5, 1, 3), padding=(0, 0, 1, 1), dilation=(1, 2), out_layout="nchw0", residual=True, bias=True),
    few_products((1, 3, 26, 22), (64, 7, 7), stride=(2, 2), padding=(3, 3, 3, 3), bias=True),
    few_products((1, 3, 26, 24), (24, 7, 7), stride=(2, 2), padding=(3, 3, 3, 3), residual=True, **NCHW),
    few_products((2, 33, 5, 6), (16, 1, 1), bias=True, **NCHW),
    few_products((1, 8, 6, 5), (6, 4, 5), x_layout="nhwc", out_layout="nhwc1", out_dtype=torch.float32),
    few_products((2, 11, 5, 6), (32, 2, 3), padding=(1, 0, 0, 2), weight_layout="krsc1", out_layout="nchw", residual=True),
]  # fmt: skip


def test_every_number_of_products(module: Any) -> None:
    if not module.conv2d_tiles("few_products", arch_here(), torch.float16):
        return  # RDNA 3 has none
    for number, case in enumerate(CASES):
        check(module, case._replace(dtype=HALVES[number % 2]))


def test_what_lies_beside_a_factor_does_not_count(module: Any) -> None:
    """Products beyond the last one read the first factor: as it is infinite here, a product of it by zero would be NaN."""
    if not module.conv2d_tiles("few_products", arch_here(), torch.float16):
        return
    for layout in ("nhwc", "nchw0"):
        case = few_products((1, 3, 6, 6), (8, 3, 3), out_layout=layout, x_layout=layout)
        x = torch.full((1, 3, 6, 6), float("inf"), dtype=case.dtype)
        weight = torch.ones(8, 3, 3, 3, dtype=case.dtype)
        if layout == "nhwc":
            x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous(memory_format=torch.channels_last)
        out = module.conv2d(x, weight, None, None, call_of(module, case), 0)
        assert (out == float("inf")).all()
