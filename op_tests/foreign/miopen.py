"""Reads the two-dimensional convolutions of MIOpen's own tests into data/miopen.txt.

python op_tests/foreign/miopen.py MIOPEN_CHECKOUT

Four forms are read: the arguments of its test programs (`--input n c h w --weights k c r s --pads_strides_dilations ...`), the
rows of its unit tests (`{{n, c, h, w}, {k, c, r, s}, {pads}, {strides}, {dilations}`), the rows of its fixtures (`{n, c, h, w,
k, r, s, pads, strides, dilations, miopenConvolution`), and those of its grouped tests (`{g, n, c, k, {h, w}, {r, s}, {pads},
{strides}, {dilations}}`). To these comes the lattice over which test/conv_common.hpp has the test program go, with its batches
and channels in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import itertools
from pathlib import Path
import re
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from conv2d.cases import Case
from foreign.problems import Problem, is_valid, write_list

HEAD = """The two-dimensional convolutions of MIOpen's tests, as numbers alone. MIOpen is AMD's (MIT,
https://github.com/ROCm/MIOpen).
Of problems that are the same once they are reduced for a CPU, the first is kept. `python op_tests/foreign/miopen.py CHECKOUT`
writes this file."""

NUMBERS = r"((?:\s+\d+){%d})"
ARGUMENTS = re.compile(rf"--input{NUMBERS % 4}\s+--weights{NUMBERS % 4}(?:\s+--pads_strides_dilations{NUMBERS % 6})?([^\"]*)")


def braces(count: int) -> str:
    return r"\{\s*(" + r",\s*".join([r"\d+\s*"] * count) + r")\}"


UNIT = re.compile(r"\{" + r",\s*".join([braces(4), braces(4), braces(2), braces(2), braces(2)]))
FIXTURE = re.compile(r"\{\s*(" + r",\s*".join([r"\d+"] * 13) + r"),\s*miopenConvolution")
GROUPED = re.compile(r"\{\s*(" + r",\s*".join([r"\d+\s*"] * 4) + r"),\s*" + r",\s*".join([braces(2)] * 5) + r"\}")

# The lists of test/conv_common.hpp.
BATCHES = (1, 8, 2, 64, 30, 128, 352, 512)
OTHERS = ((1024, 2048), (3072, 3072), (1, 1), (1, 7), (7, 1))
IMAGES = ((14, 14), (28, 28), (32, 32), (7, 7), (17, 17), (56, 56), (55, 55), (64, 128), (224, 224), *OTHERS)
FILTERS = ((1, 1), (3, 3), (1, 7), (5, 5), (7, 1), (7, 7), (11, 11), (2, 2), (4, 4))
CHANNELS_IN = (16, 32, 3, 128, 96, 112, 192, 256, 320, 512, 1024)
CHANNELS_OUT = (32, 64, 16, 128, 96, 112, 192, 256, 320, 512, 1024)
PADS_STRIDES_DILATIONS = (
    *((0, 0, 1, 1, 1, 1), (0, 0, 2, 2, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (2, 2, 1, 1, 1, 1), (3, 3, 2, 2, 1, 1)),
    *((0, 0, 1, 1, 2, 2), (1, 1, 2, 2, 3, 3), (3, 3, 2, 2, 4, 4), (0, 0, 1, 1, 1, 2), (1, 1, 2, 2, 2, 1)),
)


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def convolution(n: int, c: int, h: int, w: int, k: int, r: int, s: int, rest: tuple[int, ...], groups: int = 1) -> Case:
    """rest: pads, strides and dilations, height before width."""
    pads = (rest[0], rest[0], rest[1], rest[1])
    options: dict[str, Any] = {"stride": rest[2:4], "padding": pads, "dilation": rest[4:6], "groups": groups}
    return Case(n, c, h, w, k, r, s, **options)


def cases_of(text: str) -> Iterator[Case]:
    """The convolutions of a source file."""
    for found in ARGUMENTS.finditer(text):
        n, c, h, w, k, of_group, r, s = numbers(found[1] + found[2])
        rest = tuple(numbers(found[3])) if found[3] else (0, 0, 1, 1, 1, 1)
        groups = re.search(r"--group-count\s+(\d+)", found[4])
        if groups is None and c % of_group:
            continue
        yield convolution(n, c, h, w, k, r, s, rest, int(groups[1]) if groups else c // of_group)
    for found in UNIT.finditer(text):
        (n, c, h, w), (k, of_group, r, s) = numbers(found[1]), numbers(found[2])
        if c % of_group == 0:
            yield convolution(n, c, h, w, k, r, s, tuple(numbers(found[3] + "," + found[4] + "," + found[5])), c // of_group)
    for found in FIXTURE.finditer(text):
        n, c, h, w, k, r, s, *rest_of_row = numbers(found[1])
        yield convolution(n, c, h, w, k, r, s, tuple(rest_of_row))
    for found in GROUPED.finditer(text):
        g, n, c, k = numbers(found[1])
        (h, w), (r, s) = numbers(found[2]), numbers(found[3])
        yield convolution(n, c, h, w, k, r, s, tuple(numbers(",".join(found.group(4, 5, 6)))), g)


def lattice() -> Iterator[Case]:
    """Every image with every filter and every padding, stride and dilation of test/conv_common.hpp."""
    for i, ((h, w), (r, s), rest) in enumerate(itertools.product(IMAGES, FILTERS, PADS_STRIDES_DILATIONS)):
        n, c, k = BATCHES[i % 8], CHANNELS_IN[i % 11], CHANNELS_OUT[i // 11 % 11]
        yield convolution(n, c, h, w, k, r, s, rest)


def problems_of(folder: Path) -> Iterator[Problem]:
    """Those of every source below a folder of tests, by name, transposed ones left out, then the lattice."""
    for file in sorted([*folder.rglob("*.cpp"), *folder.rglob("*.hpp"), folder / "CMakeLists.txt"]):
        if "trans" not in file.name:
            yield from (Problem(str(file.relative_to(folder)), case) for case in cases_of(file.read_text()) if is_valid(case))
    yield from (Problem("conv_common.hpp", case) for case in lattice() if is_valid(case))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the root of a checkout of MIOpen")
    print(write_list("miopen", HEAD, problems_of(parser.parse_args().checkout / "test")), "problems")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
