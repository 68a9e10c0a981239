"""The blocks into which `depthwise_tile` cuts a call, as csrc/kernels/conv2d/depthwise_tile/ has them; their time."""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import NamedTuple

from .axes import grid_axis
from .problem import Problem

_THREADS, _ROWS = 256, 8  # of a block; of outputs of a thread
_MOST_BLOCKS = (1 << 32) // _THREADS  # as AMD counts the threads of a launch in 32 bits
_LDS_OF_UNIT, _BESIDE = 224 << 10, 1 << 10  # bytes of a compute unit of an NVIDIA card; of a block beside its own


class Room(NamedTuple):
    """Bytes of LDS that a block may have, blocks that a compute unit has, and whether LDS may leave room for fewer."""

    lds: int
    blocks: int
    varies: bool

    def resident(self, lds: int) -> int:
        return min(_LDS_OF_UNIT // (lds + _BESIDE), self.blocks) if self.varies else self.blocks


def _room_of(arch: str) -> Room:
    return Room(64 << 10, 4, True) if arch.startswith("sm_") else Room(21 << 10, 3, False)


class Call(NamedTuple):
    """A call before it is cut."""

    across: bool  # lanes lie along channels
    apart: int  # rows of outputs of a thread
    step: int  # rows of x from one output of a thread to the next
    phases: int  # of rows of taps
    channels: int  # of all images, unless they lie beside each other
    multiplier: int
    bytes: int  # of an element


class Tiling(NamedTuple):
    """A block."""

    channels: int
    columns: int
    lines: int
    blocks: int
    lds: int
    staged: int
    parts: int
    part_rows: int
    in_rows: int
    in_columns: int


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _call_of(problem: Problem) -> Call:
    rows = grid_axis(problem.kernel[0], problem.stride[0], problem.dilation[0])
    across = problem.layout == "nhwc" and problem.in_channels > 1
    channels = problem.in_channels * (1 if across else problem.batch)
    step, multiplier = problem.stride[0] * rows.apart, problem.out_channels // problem.in_channels
    return Call(across, rows.apart, step, rows.step, channels, multiplier, 4 if problem.dtype == "float32" else 2)


def _reach(problem: Problem, axis: int) -> int:
    return (problem.kernel[axis] - 1) * problem.dilation[axis] + 1


def _tiling_of(problem: Problem, call: Call, room: Room, channels: int, columns: int, lines: int) -> Tiling | None:
    """Cut a call, if LDS has room for it: use_lds."""
    taps, stride = problem.kernel, problem.stride
    rows = min(problem.out_size[0], lines * _ROWS * call.apart)
    in_rows, in_columns = (rows - 1) * stride[0] + _reach(problem, 0), (columns - 1) * stride[1] + _reach(problem, 1)
    of_phase = _ceil(taps[0], call.phases)
    phase_rows = lines * _ROWS + of_phase - 1 + (call.apart > 1 or call.phases > 1)
    phases = 1 if call.across else stride[1]
    phase_columns = _ceil(in_columns, phases)
    pitch = phase_rows * call.step | 1
    filters, filter_pitch = channels * call.multiplier, _ceil(of_phase, 4) * 4 * call.phases * taps[1]
    filter_pitch += 4 if filter_pitch % 8 == 0 else 0
    channel_words = phases * phase_columns * pitch
    if call.across:
        words = phase_columns * channels * pitch
    else:
        words = channels * (channel_words + (columns * pitch - channel_words) % 32)
    size = 4 * (_ceil(words, 4) * 4 + filters * filter_pitch)
    if size > room.lds or max(filters * math.prod(taps), in_rows, lines * call.apart * columns * filters) >= 1 << 15:
        return None
    staged, steps = channels * in_columns, _ceil(in_rows, call.step)
    parts = max(1, min(_THREADS // staged, _ceil(steps * call.step, 8)))
    part_rows = _ceil(steps, parts) * call.step
    all_lines = _ceil(problem.out_size[0], _ROWS * call.apart)
    blocks = _ceil(call.channels, channels) * _ceil(all_lines, lines) * _ceil(problem.out_size[1], columns)
    blocks *= problem.batch if call.across else 1
    return Tiling(channels, columns, lines, blocks, size, staged, _ceil(in_rows, part_rows), part_rows, in_rows, in_columns)


def _tilings_of(problem: Problem, call: Call, room: Room) -> Iterator[Tiling]:
    """All ways in which the kernel may cut a call: plan_depthwise_tile."""
    height, width = problem.out_size
    all_lines, column_blocks = _ceil(height, _ROWS * call.apart), _ceil(width, 128)
    for _ in range(4):
        if column_blocks > width:
            return
        columns, row_blocks = _ceil(width, column_blocks), 1
        while row_blocks <= all_lines:
            lines, channels = _ceil(all_lines, row_blocks), 1
            while channels <= 64:
                even = _ceil(call.channels, _ceil(call.channels, channels)) if call.across else channels
                tiling = _tiling_of(problem, call, room, even, columns, lines)
                if tiling is None:
                    break
                if tiling.blocks < _MOST_BLOCKS:
                    yield tiling
                channels *= 2
            row_blocks += 1 + row_blocks // 3
        column_blocks *= 2


def _cycles_of(problem: Problem, call: Call, tiling: Tiling, compute_units: int, room: Room) -> float:
    """Estimate a way: cycles_of."""

    def turns(items: int) -> int:
        return _ceil(items, _THREADS)

    taps, filters = math.prod(problem.kernel), tiling.channels * call.multiplier
    phases = min(call.phases, problem.kernel[0])
    stage = 18.0 * tiling.part_rows * turns(tiling.staged * tiling.parts) + 60 * turns(filters * taps)
    outputs = 370 + 8.0 * phases * problem.kernel[1] + (_ROWS + 1.25) * taps
    instructions = stage + outputs * turns(tiling.lines * call.apart * tiling.columns * filters)
    run = (tiling.channels if call.across else tiling.in_columns) * call.bytes
    sectors = tiling.in_rows * tiling.staged * call.bytes / run * (run / 32 + 1)
    resident, of_unit = room.resident(tiling.lds), tiling.blocks / compute_units
    busy = max(1.6 * (instructions + 100), 1.85 * sectors)
    return (of_unit / resident + 1) * max(min(of_unit, resident) * busy, 2050 + 5.1 * instructions)


def cycles(problem: Problem, compute_units: int, arch: str) -> float:
    """Estimate the cycles of a call; infinitely many if LDS has no room for it."""
    call, room = _call_of(problem), _room_of(arch)
    tilings = _tilings_of(problem, call, room)
    return min((_cycles_of(problem, call, tiling, compute_units, room) for tiling in tilings), default=math.inf)
