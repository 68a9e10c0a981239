"""Run the tests of Dao-AILab's causal-conv1d 1.7.0, as they are, on hipconv.

    python op_tests/run_peer_tests.py                         # on a GPU every case; without one, a quarter of those up to 256
    tokens python op_tests/run_peer_tests.py --part 1/4              # the first of four random parts
    python op_tests/run_peer_tests.py --directory peer        # fetched into peer/ once; a machine without network reads it
    there

The sdist, and einops where it is missing, come into a temporary directory (packages.py). The tests import `causal_conv1d` and
find compat/causal_conv1d. Without a GPU the one change to their text is the device.
"""

from __future__ import annotations

import argparse
from collections import Counter
import os
from pathlib import Path
import random
import sys
import tempfile
from typing import cast

import pytest
import torch

from peers.packages import provide, sdist
from support import ROOT

SDIST = "causal-conv1d==1.7.0"
TESTS = "tests/test_causal_conv1d.py"
TOO_LONG_FOR_A_CPU = "test_causal_conv1d_race_condition"  # 10,000 calls of 2 x 4128 x 2048


class Selection:
    """Keeps the cases that are asked for, and counts what becomes of them."""

    def __init__(self, max_seqlen: int, part: tuple[int, int], on_cpu: bool) -> None:
        self.max_seqlen, self.part, self.on_cpu = max_seqlen, part, on_cpu
        self.total, self.selected, self.outcomes = 0, 0, Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        self.total = len(items)
        short = [item for item in items if self._seqlen(item) <= self.max_seqlen]
        if self.on_cpu:
            short = [item for item in short if item.originalname != TOO_LONG_FOR_A_CPU]
        random.Random(0).shuffle(short)  # every N-th of a grid of parameters would hold some of them fixed
        first, step = self.part
        items[:] = short[first - 1 :: step]
        self.selected = len(items)
        print(
            f"{self.selected} of {self.total} cases selected ({len(short)} have at most {self.max_seqlen} tokens)", flush=True
        )

    @staticmethod
    def _seqlen(item: pytest.Function) -> int:
        return cast(int, item.callspec.params.get("seqlen", 0)) if hasattr(item, "callspec") else 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes["xfailed" if hasattr(report, "wasxfail") else report.outcome] += report.when != "teardown"


def part(text: str) -> tuple[int, int]:
    first, _, step = text.partition("/")
    if not (first.isdigit() and step.isdigit() and 1 <= int(first) <= int(step)):
        raise argparse.ArgumentTypeError(f"got '{text}', expected I/N with 1 <= I <= N, as in 1/4")
    return int(first), int(step)


def main() -> int:
    on_cpu = not torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--max-seqlen", type=int, default=256 if on_cpu else sys.maxsize, help="skip longer cases (here: %(default)s)"
    )
    parser.add_argument(
        "--part", type=part, default=(1, 4) if on_cpu else (1, 1), help="I/N: the I-th of N random parts (here: %(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="keep what is fetched here, and look here first (default: a temporary one)"
    )
    parser.add_argument("pytest", nargs="*", help="more for pytest, after --, as in -- -k update -x")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        source = sdist(directory, SDIST, skips_build="CAUSAL_CONV1D_SKIP_CUDA_BUILD") / TESTS
        provide(directory, "einops")
        tests = Path(temporary) / source.name
        text = source.read_text()
        tests.write_text(text.replace('device = "cuda"', 'device = "cpu"') if on_cpu else text)
        sys.path[:0] = [str(ROOT / "compat" / "causal_conv1d"), str(ROOT / "python")]

        selection = Selection(options.max_seqlen, options.part, on_cpu)
        quiet = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", temporary, "-c", os.devnull]
        status = pytest.main([*quiet, *options.pytest, str(tests)], plugins=[selection])
    import causal_conv1d

    where = "the CPU" if on_cpu else torch.cuda.get_device_name()
    counts = ", ".join(f"{selection.outcomes[kind]} {kind}" for kind in ("passed", "failed", "skipped", "xfailed"))
    print(f"{SDIST}'s tests on causal_conv1d {causal_conv1d.__version__}, {where}: {counts} of {selection.selected}")
    return 1 if status or not selection.outcomes["passed"] else 0
