"""The blocks into which `depthwise_diagonal` cuts a call, as csrc/kernels/conv2d/depthwise_diagonal/ has them; their time."""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import NamedTuple

from .axes import GridAxis, grid_axis
from .problem import Problem

_PIXELS, _CHANNELS, _WAVES, _THREADS = 16, 8, 4, 128
_MOST_SEGMENTS, _MOST_ROUNDS = 64, 3  # that an image is cut into; of blocks, up to which it is
_OUT_PITCH, _LDS_OF_UNIT, _LDS_OF_BLOCK, _BESIDE = 80, 224 << 10, 96 << 10, 1 << 10  # bytes


class Kernel(NamedTuple):
    """Room for rows of taps and pairs of columns of taps, for rows of x so far apart: DiagonalShape."""

    rows: int
    pairs: int
    step: int

    @property
    def under_way(self) -> int:
        return -(-self.rows // self.step)

    def registers(self, groups: int) -> int:
        return 2 * self.rows * self.pairs + 4 * self.under_way * groups

    @property
    def groups(self) -> int:
        return 4 if self.registers(4) <= 72 else 2 if self.registers(2) <= 170 else 1

    @property
    def blocks(self) -> int:
        used = self.registers(self.groups)
        return 4 if used <= 72 else 3 if used <= 112 else 2

    @property
    def at_once(self) -> int:
        return 2 if self.step == 1 else 1

    @property
    def loads(self) -> int:
        return 2 if self.step == 1 else 3

    @property
    def stages(self) -> int:
        return 3 if self.at_once == 2 else 4


# csrc/kernels/conv2d/depthwise_diagonal/unstrided.cu and strided.cu
KERNELS = [
    Kernel(*of)
    for of in (
        *((7, 1, 1), (11, 1, 1), (3, 2, 1), (5, 3, 1), (7, 4, 1), (9, 5, 1), (11, 6, 1)),
        *((3, 2, 2), (5, 3, 2), (7, 4, 2), (11, 6, 2), (7, 4, 3), (11, 6, 3), (11, 6, 4)),
    )
]


def _rows_of(problem: Problem) -> GridAxis:
    return grid_axis(problem.kernel[0], problem.stride[0], problem.dilation[0])


def _kernel_of(problem: Problem) -> Kernel | None:
    taps, step = problem.kernel, _rows_of(problem).step
    fitting = [k for k in KERNELS if k.rows >= taps[0] and 2 * k.pairs >= taps[1] and k.step == step]
    return min(fitting, key=lambda kernel: kernel.rows * kernel.pairs, default=None)


def _tiles(problem: Problem, kernel: Kernel) -> Iterator[tuple[int, int, int]]:
    """Vectors of channels and columns of outputs of a block, and blocks that LDS has room for at a time."""
    stride, width = problem.stride[1], problem.out_size[1]
    reach = (problem.kernel[1] - 1) * problem.dilation[1] + 1
    tail = -(-(reach - stride) // stride) * stride if reach > stride else 0
    left, is_zeros = problem.padding[2], problem.padding_mode == "zeros"
    seen = (width - 1) * stride + reach - left
    read = (0 if is_zeros else left) + (min(seen, problem.in_size[1]) if is_zeros else seen)
    multiplier = problem.out_channels // problem.in_channels

    def used(pixels: int, chunks: int, x_chunks: int) -> int:
        runs = min(pixels, 2 if width >= pixels else -(-(pixels - 1) // width) + 1)
        columns = pixels * stride + runs * tail
        if min(columns, runs * read) * x_chunks > kernel.loads * _THREADS:
            return _LDS_OF_UNIT
        row = -(-columns // stride) * stride * (x_chunks | 1) * 16
        out = kernel.groups * _PIXELS * (_WAVES // chunks) * _OUT_PITCH
        return kernel.at_once * (kernel.stages * kernel.step * row + 2 * out) + 16

    for chunks in (4, 2, 1):
        x_chunks = chunks // multiplier if chunks % multiplier == 0 else 1 if multiplier % chunks == 0 else 2
        whole = kernel.groups * _PIXELS * (_WAVES // chunks)
        for resident in range(kernel.blocks, 0, -1):
            most, pixels = min(_LDS_OF_BLOCK, _LDS_OF_UNIT // resident - _BESIDE), whole
            while pixels > 0 and used(pixels, chunks, x_chunks) > most:
                pixels -= 2 if pixels > 16 else 1
            if pixels > 0:
                yield chunks, pixels, resident
            if pixels == whole:
                break


def microseconds(problem: Problem, units: int) -> float | None:
    """The time of the fastest way to cut a call, but for its bytes, or None if there is none. The constants are those of cut()
    in depthwise_diagonal.cu: a fit to 190 layers on an H200, of which 9 in 10 are within a fourth.
    """
    kernel = _kernel_of(problem)
    if kernel is None:
        return None
    classes = _rows_of(problem).apart
    rows, halo = -(-problem.out_size[0] // classes), kernel.under_way - 1
    alone = 0.27 + 0.19 * (kernel.step - 1)
    each = kernel.groups * (0.0027 * kernel.rows * kernel.pairs + 0.0085 + 0.022 * (kernel.step - 1))
    least = math.inf
    for chunks, pixels, resident in _tiles(problem, kernel):
        columns = -(-problem.batch * problem.out_size[1] // pixels)
        tiles = columns * -(-(problem.out_channels // _CHANNELS) // chunks) * classes
        slots = units * resident
        for segments in range(1, min(rows, _MOST_SEGMENTS, (_MOST_ROUNDS * slots - 1) // tiles + 1) + 1):
            steps = -(-rows // segments) + (halo // 2 if segments == 1 else halo)
            rounds = -(-tiles * segments // slots)
            us = rounds * (1.8 + alone * steps) + tiles * segments / units * each * steps
            least = min(least, (1.2 if chunks == 1 else 1.0) * us)
    return 3.8 + least if least < math.inf else None
