"""The blocks into which `fma_direct` cuts a call, as csrc/kernels/conv2d/fma_direct/fma_direct.cu has them; their cycles."""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import NamedTuple

from .axes import grid_axis
from .problem import Problem

_QUAD, _COLUMNS, _THREADS = 4, 8, 256  # filters and columns of a thread, threads of a block


class Lds(NamedTuple):
    """Bytes that a block may have, and a compute unit has."""

    of_block: int
    of_unit: int


def lds_of(arch: str) -> Lds:
    return Lds(96 << 10, 224 << 10) if arch.startswith("sm_") else Lds(32 << 10, 64 << 10)


class Axis(NamedTuple):
    taps: int
    outputs: int
    apart: int  # outputs from one of a grid to its next one
    step: int  # places of x from those of an output to those of the next one


class Call(NamedTuple):
    """A call before it is cut."""

    rows: Axis
    columns: Axis
    filters: int
    channels: int
    group_filters: int
    group_channels: int
    batch: int
    bytes: int  # of an element
    across: bool  # x has its channels beside each other
    stores_across: bool  # out has
    unit_bytes: int
    has_zeros: bool

    @property
    def phases(self) -> int:
        return min(self.columns.step, self.columns.taps)

    @property
    def columns_read(self) -> int:
        return 7 * self.phases + self.columns.taps

    @property
    def sees_one(self) -> bool:
        return self.group_filters % _QUAD == 0

    @property
    def sees_four(self) -> bool:
        return self.group_filters == self.group_channels == 1

    @property
    def instructions_of_row(self) -> float:
        loads = 1 if self.sees_one or self.sees_four else 4
        conversions = 0 if self.bytes == 4 else 1 if self.sees_one else 4
        taps = self.columns.taps
        return self.rows.taps * (self.columns_read * (loads + conversions + 0.5) + taps * 39 + 35 * self.phases)

    @property
    def instructions_of_column(self) -> float:
        axis = self.columns
        made = axis.apart * _round_up(_ceil(axis.outputs, axis.apart), _COLUMNS)
        return made / axis.outputs * self.instructions_of_row


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def call_of(problem: Problem) -> Call:
    """Describe a call, with rows and columns exchanged where the kernel does so."""
    size = 4 if problem.dtype == "float32" else 2
    across = problem.layout == "nhwc" or problem.in_channels == 1
    units = [unit for unit in (16, 4) if unit > size and problem.in_channels * size % unit == 0 and problem.layout == "nhwc"]
    axes = [
        Axis(taps, outputs, *grid_axis(taps, stride, dilation))
        for taps, outputs, stride, dilation in zip(
            problem.kernel, problem.out_size, problem.stride, problem.dilation, strict=True
        )
    ]
    call = Call(
        rows=axes[0],
        columns=axes[1],
        filters=problem.out_channels,
        channels=problem.in_channels,
        group_filters=problem.filters,
        group_channels=problem.in_channels // problem.groups,
        batch=problem.batch,
        bytes=size,
        across=across,
        stores_across=problem.layout == "nhwc",
        unit_bytes=units[0] if units else size,
        has_zeros=problem.padding_mode == "zeros",
    )
    turned = call._replace(rows=axes[1], columns=axes[0])
    takes_turned = problem.layout == "nhwc" and turned.instructions_of_column < 0.95 * call.instructions_of_column
    return turned if takes_turned else call


class Tiling(NamedTuple):
    """A block, as lanes share it."""

    quads: int
    groups: int
    rows: int
    units: int  # of a column of x in LDS
    columns: int  # of x
    lds: int  # bytes
    splits: int  # threads that bring rows of one unit


def tiling_of(call: Call, quads: int, groups: int, rows: int, lds: Lds) -> Tiling | None:
    """Cut a call, if LDS has room for it: use_lds."""
    filters, of_unit, step = _QUAD * quads, call.unit_bytes // call.bytes, call.columns.step
    products = call.rows.taps * call.columns.taps * call.group_channels
    whole = _ceil(filters, call.group_filters)
    begins = filters % call.group_filters == 0 or call.group_filters % filters == 0
    seen = (whole if begins else whole + 1) * call.group_channels
    begins_units = (
        begins
        and filters // call.group_filters * call.group_channels % of_unit == 0
        and (filters >= call.group_filters or call.group_channels % of_unit == 0)
    )
    channels = min(seen + (0 if begins_units else of_unit - 1), _round_up(call.channels, of_unit))
    units, columns = _ceil(channels, of_unit), (groups * _COLUMNS - 1) * step + call.columns.taps
    column_bytes = _round_up(units * call.unit_bytes, 16)
    if not call.across and column_bytes % 32 == 0:
        column_bytes += 16
    row_bytes = columns * column_bytes
    lanes_bytes = filters * call.bytes % 128 if call.sees_four else 16
    for _ in range(8):
        if lanes_bytes == 0 or row_bytes * call.rows.step % 128 == lanes_bytes:
            break
        row_bytes += 16
    ring_rows = (rows - 1) * call.rows.step + call.rows.taps
    size = products * (quads + (quads + 1) % 2) * 16 + ring_rows * row_bytes + 2 * step * column_bytes
    if size > lds.of_block or columns * units >= 1 << 15 or products * filters >= 1 << 15:
        return None
    splits = max(1, min(quads * groups * rows // (columns * units), rows * call.rows.step, ring_rows))
    return Tiling(quads, groups, rows, units, columns, size, splits)


def tilings_of(call: Call, lds: Lds) -> Iterator[Tiling]:
    """All ways in which the kernel may cut a call: plan_fma_direct."""
    all_quads, all_rows = _ceil(call.filters, _QUAD), _ceil(call.rows.outputs, call.rows.apart)
    all_groups = _ceil(_ceil(call.columns.outputs, call.columns.apart), _COLUMNS)
    before, found = 0, False
    for most in (32, 16, 8, 4, 2, 1):
        if most < 4 and found:
            return
        even = _ceil(all_quads, _ceil(all_quads, most))
        quads = min(even if even <= 4 else _round_up(even, 4), most)
        if quads == before:
            continue
        before = quads
        for groups in range(1, 1 + min(2, all_groups)):
            rows = 1
            while 2 * rows * groups * quads <= _THREADS and rows < all_rows:
                rows *= 2
            fitting = 0
            while fitting < 3 and rows > 0:
                if tiling := tiling_of(call, quads, groups, rows, lds):
                    fitting += 1
                    found = True
                    yield tiling
                rows //= 2


def cycles_of(call: Call, t: Tiling, compute_units: int, lds: Lds) -> float:
    """Estimate a way, cut into the best number of segments: cut_segments."""
    threads = _round_up(t.quads * t.groups * t.rows, 32)
    resident = min(lds.of_unit // (t.lds + 1024), 512 // threads)
    if resident < 1:
        return math.inf
    out_row = call.instructions_of_row * call.group_channels + (300 if call.stores_across else 2600)
    turns = _ceil(t.columns * t.units * t.splits, threads)
    bring_row = (8 if call.unit_bytes >= 4 else 25) * (1 if call.has_zeros else 2) * turns / t.splits
    products = call.rows.taps * call.columns.taps * call.group_channels
    filters = 35 * _ceil(products * t.quads * _QUAD, 4 * threads) + 440
    reads = 2.4 if call.sees_one else call.bytes if call.sees_four else 9.6
    accesses = call.group_channels * call.rows.taps * (call.columns_read * reads + 7.1 * call.columns.taps)
    grid_rows = _ceil(call.rows.outputs, call.rows.apart)
    tiles = _ceil(_ceil(call.columns.outputs, call.columns.apart), t.groups * _COLUMNS)
    of_image = call.rows.apart * call.columns.apart * tiles * _ceil(call.filters, _QUAD * t.quads)
    best, segments = math.inf, 1
    while segments <= 32:
        rows = _round_up(_ceil(grid_rows, segments), t.rows)
        count = _ceil(grid_rows, rows)
        if count == segments or segments == 1:
            steps, x_rows = rows / t.rows, (rows - 1) * call.rows.step + call.rows.taps
            issue = threads / (4 * 32 * 0.72) * (filters + steps * (out_row + 280 * turns + 60) + x_rows * bring_row)
            second_cache = x_rows * t.columns * t.units * call.unit_bytes / 13.8
            a_unit = of_image * call.batch * count / compute_units
            rounds = a_unit / resident + 0.5 if a_unit / resident > 5 else float(int(a_unit / resident + 0.97))
            busy = min(max(a_unit, 1.0), resident) * max(issue, second_cache, threads / 32 * steps * accesses)
            waits = 2640 + steps * (3450 + 3.6 * out_row) + 2.6 * x_rows * bring_row
            best = min(best, max(rounds, 1.0) * (max(busy, waits) + 0.29 * min(busy, waits)))
        segments += 1 + segments // 2
    return best


def cycles(problem: Problem, compute_units: int, arch: str) -> float:
    """Estimate the cycles of a call; infinitely many if LDS has no room for it."""
    call, lds = call_of(problem), lds_of(arch)
    return min((cycles_of(call, tiling, compute_units, lds) for tiling in tilings_of(call, lds)), default=math.inf)
