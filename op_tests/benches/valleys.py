"""Speed of every conv1d call that can be written: a seeded lattice of widths, layouts, strides, types, lengths, dims and forms.

    python op_tests/bench_valleys.py
    python op_tests/bench_valleys.py --op forward,backward --cases 400 --seed 3 --json valleys.json --plot valleys.png
    python op_tests/bench_valleys.py --op forward --only form=plain layout=last_shifted,last_slice

A call's floor is the larger of two times: that of a copy kernel that moves as many bytes as there are in the 32-byte sectors
which the call must touch, measured in turn with the call; and that of the operations of its formula at the card's rate. Calls
that move 16 MB or more are judged by their share of the floor, smaller ones by how many microseconds they take longer. Times
are those of bench_causal_conv1d.py. The result of each call is compared with the reference, in some channels. It ends with 1 if
one is wrong.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
from pathlib import Path
import statistics

import torch

from benches.measure import ROTATED_BYTES, copier, heading, origin, parser_for, report
import benches.plot
from benches.valley_cases import AXES, Case, build, sample
from support.backends import device_of
from support.cli import Table, at_least, choice_of, flattened, list_of
from support.timing import in_turn_us

LARGE = 16_000_000  # bytes moved
BARS = (50, 75, 90)  # % of the floor
LATE = (0.5, 1.5)  # microseconds
LANES = 128  # of a compute unit of an NVIDIA card since sm_86 and of AMD's with packed or dual-issued float32
_NOT_AXES = ("op", "text", "bytes", "us", "copy_us", "floor_us", "wrong")


def rate(device: torch.device) -> float:
    """Operations that the lanes of the card start in a microsecond; endless where nothing tells the clock."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    clock = getattr(properties, "clock_rate", 0)  # kHz
    return properties.multi_processor_count * LANES * clock / 1e3 if properties and clock else float("inf")


def bench(case: Case, device: torch.device) -> dict:
    """One case: its bytes, and the times of the call, of the copy and of the floor in microseconds."""
    first = build(case, device)
    wrong = first.check()
    moved = first.bytes_moved()
    copies = min(256, max(3, -(-ROTATED_BYTES // moved))) if device.type == "cuda" else 3
    problems = [first, *(build(case, device) for _ in range(copies - 1))]
    half = max(16, moved // 2 // 16 * 16)
    pairs = [torch.empty(2, half, dtype=torch.uint8, device=device) for _ in range(copies)]
    copy = copier(device)
    ours, copied = in_turn_us([[one.call for one in problems], [functools.partial(copy, *pair) for pair in pairs]], device)
    floor = max(copied, first.operations / rate(device))
    return {**case, "text": first.text, "bytes": moved, "us": ours, "copy_us": copied, "floor_us": floor, "wrong": wrong}


def measure(options: argparse.Namespace) -> dict:
    """Every case, and the summary, printed."""
    device = device_of(options.backend)
    where = origin(device)
    print(f"{heading(where)}; seed {options.seed}; {rate(device) / 1e6:.1f} T operations/s; times in us")
    rows: list[dict] = []
    failed: collections.Counter[str] = collections.Counter()
    for op in flattened(options.op):
        cases = [case for case in sample(op, options.cases, options.seed) if _wanted(case, options.only)]
        for number, case in enumerate(cases):
            if options.scale != 1:
                case["megabytes"] *= options.scale
            try:
                rows.append(bench(case, device))
            except (ValueError, NotImplementedError) as error:  # a refusal by name: no call that can be written
                failed[f"{op}: {error}"] += 1
            if number % 100 == 99:
                print(f"{op}: {number + 1} of {len(cases)}", flush=True)
            if device.type == "cuda" and number % 20 == 19:
                gc.collect()
                torch.cuda.empty_cache()
    for text, count in failed.items():
        print(f"refused {count} times: {text}")
    summarize(rows, options.worst)
    return {**where, "seed": options.seed, "rows": rows}


def share(row: dict) -> float:
    return 100 * row["floor_us"] / row["us"]


def late(row: dict) -> float:
    return row["us"] - row["floor_us"]


def summarize(rows: list[dict], worst: int) -> None:
    """Prints the percentiles of each op and form, the counts under each bar, and the worst cases."""
    large = [row for row in rows if row["bytes"] >= LARGE]
    small = [row for row in rows if row["bytes"] < LARGE]
    columns = [("16 MB and more", 26), ("cases", 5), ("least", 6), ("5 %", 6), ("25 %", 6), ("median", 6)]
    table = Table([*columns, *((f"< {bar} %", 6) for bar in BARS)])
    for name, group in _groups(large):
        shares = sorted(share(row) for row in group)
        at = [shares[int(q * (len(shares) - 1))] for q in (0, 0.05, 0.25)]
        under = (sum(s < bar for s in shares) for bar in BARS)
        table.row(name, len(group), *(f"{s:.1f}" for s in at), f"{statistics.median(shares):.1f}", *under)
    table = Table(
        [
            ("less: us over the floor", 26),
            ("cases", 5),
            ("median", 6),
            ("95 %", 6),
            ("most", 6),
            *((f"> {bar}", 6) for bar in LATE),
        ]
    )
    for name, group in _groups(small):
        over = sorted(late(row) for row in group)
        at = [statistics.median(over), over[int(0.95 * (len(over) - 1))], over[-1]]
        table.row(name, len(group), *(f"{us:.2f}" for us in at), *(sum(us > bar for us in over) for bar in LATE))
    for title, group in (("16 MB and more", sorted(large, key=share)), ("less", sorted(small, key=late, reverse=True))):
        if not group:
            continue
        print(f"the worst, {title}:")
        for row in group[:worst]:
            axes = " ".join(
                f"{axis}={row[axis]}" for axis in ("form", *AXES[row["op"]]) if axis not in ("megabytes", "dim", "seqlen")
            )
            figures = f"{row['us']:9.2f} us, floor {row['floor_us']:8.2f}, {share(row):5.1f} %"
            print(f"  {figures}  {row['op']} {row['text']} ({row['bytes'] / 1e6:.1f} MB) {axes}")
    for row in rows:
        if row["wrong"]:
            print(
                "WRONG",
                row["wrong"],
                {key: value for key, value in row.items() if key not in _NOT_AXES},
                row["op"],
                row["text"],
            )
    print(f"{sum(row['wrong'] is not None for row in rows)} of {len(rows)} results are wrong")


def _groups(rows: list[dict]) -> list[tuple[str, list[dict]]]:
    """By op, then by op and form."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["op"], []).append(row)
    for row in rows:
        groups.setdefault(f"  {row['op']}, {row['form']}", []).append(row)
    ops = list(AXES)
    return sorted(groups.items(), key=lambda item: ops.index(item[0].strip().partition(",")[0]))


def _wanted(case: Case, only: list[tuple[str, list[str]]]) -> bool:
    return all(str(case.get(axis)) in values for axis, values in only)


def _axis(text: str) -> tuple[str, list[str]]:
    axis, equals, values = text.partition("=")
    known = sorted({"form", *(axis for axes in AXES.values() for axis in axes)})
    if not equals or axis not in known:
        raise argparse.ArgumentTypeError(f"got '{text}', expected AXIS=VALUE,…, AXIS being one of {', '.join(known)}")
    return axis, values.split(",")


def main() -> int:
    parser, _ = parser_for(__doc__)
    parser.add_argument("--op", type=list_of(choice_of(*AXES)), nargs="+", default=[list(AXES)])
    parser.add_argument("--cases", type=at_least(1), default=240, help="of each op; default 240")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--only", type=_axis, nargs="+", default=[], metavar="AXIS=VALUE,…", help="leave the other cases out")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the bytes of each case")
    parser.add_argument("--worst", type=at_least(0), default=20, help="how many of the worst to print; default 20")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=Path, help="draw a heat map of shares over the values of axes here; needs matplotlib")
    parser.add_argument("--read", type=Path, help="measure nothing: take the results that --json wrote here")
    options = parser.parse_args()
    return report(options, measure, benches.plot.draw_valleys)
