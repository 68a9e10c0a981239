"""This is what the choice of a conv2d's algorithm depends on: what the call is, and what the card is."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

FEW = 32  # channels or filters, at most
SMALL = 1 << 20  # outputs: fewer do not fill a large card


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
    padding_mode: str = "zeros"

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

    @property
    def kind(self) -> str:
        """Name what kind of problem it is, such as "16 bit, nhwc, dense, large": on one card, the estimates of an algorithm are
        wrong by about one factor for all problems of a kind.
        """
        products = f"float32 {self.float32_precision}" if self.dtype == "float32" else "16 bit"
        if self.groups > 1:
            shape = "depthwise" if self.groups == self.in_channels else "grouped"
        elif min(self.in_channels, self.out_channels) <= FEW:
            shape = "few channels"
        else:
            shape = "pointwise" if self.kernel == (1, 1) else "dense"
        size = "small" if self.pixels * self.out_channels < SMALL else "large"
        return f"{products}, {self.layout}, {shape}, {size}"


@dataclasses.dataclass(frozen=True, eq=False)  # compared and hashed by identity, as a card is part of many keys
class Factors:
    """These say how many times longer algorithms take on a card than estimated, as somebody measured them there."""

    of_kinds: dict[str, dict[str, float]]
    """By algorithm, then by `Problem.kind`."""

    def of(self, algorithm: str, problem: Problem) -> float:
        """Return the factor for a problem; where the algorithm was not measured on its kind, the median of the algorithm's, and
        where it was not measured at all, of all.
        """
        kinds = self.of_kinds.get(algorithm, {})
        if (exactly := kinds.get(problem.kind)) is not None:
            return exactly
        others = kinds.values() or [factor for each in self.of_kinds.values() for factor in each.values()]
        if not others:
            return 1.0
        from statistics import median  # a few milliseconds, which calls without a measured card need not wait for

        return median(others)


class Card(NamedTuple):
    arch: str  # "gfx942", "sm_90", "wave64"
    compute_units: int
    measured: Factors | None = None


Tile = tuple[int, int]  # output pixels, filters
Tiles = tuple[Tile, ...]
