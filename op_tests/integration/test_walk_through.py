"""docs/adding_*.md, followed to the letter: what they add to a copy of the repository builds and runs.

A block of code after `<!-- file: PATH -->` is a new file. One after `<!-- edit: PATH: after `TEXT` -->` follows the only line
that is that text, or has it; `instead of` takes the line's place. One after `<!-- run: BACKENDS -->` is run as a script on each
of these. What stands under one `##` heading of adding_a_kernel.md, and all of adding_an_op.md, is a walk.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import shutil
from typing import NamedTuple

import pytest

from support import ROOT
from support.zygote import Forked


class Step(NamedTuple):
    """One block of a page."""

    kind: str
    what: str  # the path of a file, or the backends of a run
    where: str  # of an edit: "after", "instead of"
    line: str
    text: str


STEP = re.compile(
    r"^<!-- (file|edit|run): ([^\n]*?)(?:: (after|instead of) `([^\n]*)`)? -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def steps_of(text: str) -> list[Step]:
    steps = [Step(*groups) for groups in STEP.findall(text)]
    assert len(steps) == text.count("\n<!-- "), "a block that is marked in another way"
    return steps


def walks() -> dict[str, list[Step]]:
    sections = (ROOT / "docs" / "adding_a_kernel.md").read_text().split("\n## ")[1:]
    found = {section.partition("\n")[0]: steps_of(section) for section in sections}
    found["A family"] = steps_of((ROOT / "docs" / "adding_an_op.md").read_text())
    return {title: steps for title, steps in found.items() if steps}


@pytest.mark.parametrize("title", walks())
def test_a_walk_touches_few_files(title: str) -> None:
    own = {step.what for step in walks()[title] if step.kind == "file"}
    touched = {step.what for step in walks()[title] if step.kind == "edit"}
    assert len(own | touched) <= 6 if title == "A family" else len(touched) <= 2
    assert any(step.kind == "run" for step in walks()[title])


def test_the_walks_lead_where_their_pages_say(tmp_path: Path) -> None:
    """All of them are taken in one copy and one process, which has torch from the start;
    and what they add keeps to the floors.
    """
    for name in ("csrc", "python", "op_tests/support"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "jit_config.json", tmp_path)

    script = f"import os, sys\nsys.path.insert(0, {str(tmp_path / 'op_tests')!r})\n"
    script += "from support import test_floors\nfor name in dir(test_floors):\n"
    script += "    name.startswith('test_') and getattr(test_floors, name)()\n"
    for title, steps in walks().items():
        for step in steps:
            if step.kind == "run":
                for backend in step.what.split():
                    script += f"print({title!r}, flush=True)\nos.environ['HIPCONV_BACKEND'] = {backend!r}\n"
                    script += f"exec({step.text!r}, {{}})\n"
            else:
                take(step, tmp_path / step.what)
    variables = {"PYTHONPATH": str(tmp_path / "python"), "HIPCONV_CACHE_DIR": str(tmp_path / "cache")}
    variables |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = Forked(script, dict(os.environ) | variables)
    output, errors = done.communicate(timeout=1200)
    assert done.returncode == 0, output + str(errors)


def take(step: Step, path: Path) -> None:
    """Write the step's new file, or its edit."""
    if step.kind == "file":
        assert not path.exists(), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text)
        return
    lines = path.read_text().splitlines(keepends=True)
    whole = [number for number, line in enumerate(lines) if step.line == line.strip()]
    places = whole or [number for number, line in enumerate(lines) if step.line in line]
    assert len(places) == 1, f"{step.what}: '{step.line}' is in lines {places}"
    kept = places[0] + (step.where == "after")
    path.write_text("".join([*lines[:kept], step.text, *lines[places[0] + 1 :]]))
