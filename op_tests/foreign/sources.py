"""The sources of the cases, and how many each has: docs/testing.md has these numbers, which a test compares."""

from __future__ import annotations

import functools
import importlib.util

from conv2d.cases import Case
from foreign import engines, onnx_cases, torch_cases
from foreign.problems import DATA, Problem, case_of, is_small, read_list, reduced

ONEDNN_IN_EVERY_RUN = 1_500


@functools.cache
def onednn() -> list[Problem]:
    return read_list("onednn")


@functools.cache
def miopen() -> list[Problem]:
    return read_list("miopen")


@functools.cache
def amd_issues() -> dict[str, Problem]:
    """By the name of the issue."""
    lines = [line.split(maxsplit=1) for line in (DATA / "amd_issues.txt").read_text().splitlines() if not line.startswith("#")]
    return {name: Problem(name, case_of(problem)) for name, problem in lines}


def counts() -> dict[str, tuple[int, int]]:
    """Count, for each source, in every run and nightly on a machine without a GPU: the cases that a kernel of ours computes.

    A case counts once, whatever its dtype and layout and whichever backends run it, and for the first source that has it. What
    torch refuses and so do we is not counted, as no kernel runs.
    """
    found: dict[str, tuple[int, int]] = {}
    seen: set[Case] = set()
    issues = list(amd_issues().values())
    lists = {
        "oneDNN": (onednn(), ONEDNN_IN_EVERY_RUN),
        "MIOpen": (miopen(), len(miopen())),
        "AMD users' issues": (issues, len(issues)),
    }
    for source, (problems, in_every_run) in lists.items():
        small = [each for each in problems if is_small(each) or source.startswith("AMD")]  # a test each, whatever its size
        new = {reduced(each.case) for each in small} - seen
        seen |= new
        found[source] = (min(in_every_run, len(new)), len(new))
    found["PyTorch"] = (len(torch_cases.cases()),) * 2
    if importlib.util.find_spec("onnx"):
        found["ONNX"] = (len(onnx_cases.cases()),) * 2
    found["vLLM and SGLang"] = (len(engines.cases()),) * 2
    return found
