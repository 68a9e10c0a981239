"""An axis of an image, cut into grids of outputs that share no dilated taps, as csrc/kernels/conv2d/common/axes.h has it."""

from __future__ import annotations

import math
from typing import NamedTuple


class GridAxis(NamedTuple):
    apart: int  # outputs from one of a grid to its next one
    step: int  # places of x, a dilation apart, from those of an output to those of the next one


def grid_axis(taps: int, stride: int, dilation: int) -> GridAxis:
    """One tap is dilated by nothing: places of x are a stride apart."""
    dilation = dilation if taps > 1 else stride
    common = math.gcd(stride, dilation)
    return GridAxis(dilation // common, stride // common)
