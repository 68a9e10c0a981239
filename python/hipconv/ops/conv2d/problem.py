"""This is what the choice of a conv2d's algorithm depends on: what the call is, and what the card is."""

from __future__ import annotations

import math
from typing import NamedTuple


class Problem(NamedTuple):
    """This is what a call is, as far as the choice depends on it."""

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    out_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str  # "bfloat16"
    layout: str  # "nhwc", "nchw": of x
    float32_precision: str = "ieee"  # or "tf32", where the card has it; "ieee" of other dtypes

    @property
    def pixels(self) -> int:
        return self.batch * math.prod(self.out_size)

    @property
    def filters(self) -> int:
        """Count those of a group."""
        return self.out_channels // self.groups

    @property
    def products(self) -> int:
        """That an output sums."""
        return self.in_channels // self.groups * math.prod(self.kernel)


class Card(NamedTuple):
    arch: str  # "gfx942", "sm_90", "wave64"
    compute_units: int


Tile = tuple[int, int]  # output pixels, filters
Tiles = tuple[Tile, ...]
