"""Where the cases are from, and how many each source has: docs/testing.md has these numbers, which a test compares."""

from __future__ import annotations

import functools

from foreign.problems import DATA, Problem, case_of, read_list

ONEDNN_IN_EVERY_RUN = 1_300


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
