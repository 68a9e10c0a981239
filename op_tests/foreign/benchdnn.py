"""Reads the problem lists of oneDNN's benchdnn into data/onednn.txt.

python op_tests/foreign/benchdnn.py ONEDNN_CHECKOUT

The grammar is that of oneDNN's tests/benchdnn/doc/knobs_desc.md: entries such as mb2, ic16, ih7, kh5, ph2 in any order, `_`
between them where it is easier to read, `n` and a name at the end. What is not said is 1 (g, sh, sw) or 0 (dh, dw), two images,
and square; the result's size follows from the padding, or the padding from the result's size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
import re
import sys

sys.path.insert(0, str(Path(__file__).parents[1]))

from conv2d.cases import Case
from foreign.problems import Problem, is_valid, reduced, write_list

INPUTS = "tests/benchdnn/inputs/conv"
ENTRY = re.compile(r"(mb|[io][cdhw]|[ksdp][dhw]|g)(\d+)_*")
OF_A_FILE = 400  # problems: five files are lattices of a generator's, of up to 3,000
HEAD = """The convolutions of oneDNN's test inputs, tests/benchdnn/inputs/conv, of one and two dimensions, as numbers alone.
oneDNN is the work of its contributors (Apache-2.0, https://github.com/uxlfoundation/oneDNN). Of problems that are the same once
they are reduced for a CPU, the first is kept, and of a file with more than 400 such, 400;
those with more than 2^26 elements an image are left out. `python op_tests/foreign/benchdnn.py CHECKOUT` writes this file."""


def entries_of(word: str) -> dict[str, int] | None:
    """The entries of a descriptor; None if the word is none."""
    entries, at = {}, 0
    while at < len(word) and word[at] != "n":
        found = ENTRY.match(word, at)
        if not found:
            return None
        entries[found[1]] = int(found[2])
        at = found.end()
    return entries if {"ic", "oc"} <= entries.keys() else None


def along(entries: dict[str, int], axis: str) -> tuple[int, int, int, int, int, int] | None:
    """(size, taps, stride, padding before and after, distance of taps) along "d", "h" or "w"; None if nothing is said of the
    axis.

    The result may be smaller than the input allows: then the input counts as cut to what the result sees.
    """
    if not any(name[-1] == axis and name[0] in "iokp" for name in entries if name != "g" and len(name) == 2):
        return None
    size, taps, stride = entries[f"i{axis}"], entries[f"k{axis}"], entries.get(f"s{axis}", 1)
    distance = entries.get(f"d{axis}", 0) + 1
    reach = distance * (taps - 1) + 1
    padding, result = entries.get(f"p{axis}"), entries.get(f"o{axis}", 0)
    if not result:
        padding = padding or 0
        result = (size + 2 * padding - reach) // stride + 1
    elif padding is None:
        padding = int(((result - 1) * stride - size + reach) / 2)
    after = (result - 1) * stride + reach - size - padding
    return (size, taps, stride, padding, after, distance) if after >= 0 else (size + after, taps, stride, padding, 0, distance)


def case_of_descriptor(word: str) -> Case | None:
    """The convolution of a descriptor; None if it is none of at most two dimensions, or of a depth of one."""
    entries = entries_of(word)
    if entries is None:
        return None
    try:
        depth, rows, columns = (along(entries, axis) for axis in "dhw")
    except KeyError:
        return None
    if depth is not None:
        if depth[:2] != (1, 1) or depth[3:5] != (0, 0):
            return None
        rows = rows or depth  # what is not said is a cube's
    if rows is not None:
        columns = columns or rows
    if columns is None:
        return None
    rows = rows or (1, 1, 1, 0, 0, 1)
    case = Case(
        *(entries.get("mb", 2), entries["ic"], rows[0], columns[0], entries["oc"], rows[1], columns[1]),
        stride=(rows[2], columns[2]),
        padding=(*rows[3:5], *columns[3:5]),
        dilation=(rows[5], columns[5]),
        groups=entries.get("g", 1),
    )
    return case if is_valid(case) else None


def problems_of(folder: Path) -> Iterator[Problem]:
    """Those of every file of a folder of inputs, by name; of one that has more than OF_A_FILE, as many, spread evenly."""
    seen: set[Case] = set()
    for file in sorted(folder.iterdir()):
        cases = []
        for line in file.read_text().splitlines():
            for word in line.partition("#")[0].split():
                case = None if word.startswith("-") else case_of_descriptor(word)
                if case is not None and reduced(case) not in seen:
                    seen.add(reduced(case))
                    cases.append(case)
        step = max(1, len(cases) / OF_A_FILE)
        yield from (Problem(file.name, cases[int(i * step)]) for i in range(min(len(cases), OF_A_FILE)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the root of a checkout of oneDNN")
    print(write_list("onednn", HEAD, problems_of(parser.parse_args().checkout / INPUTS)), "problems")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
