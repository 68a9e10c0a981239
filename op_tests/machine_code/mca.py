"""The cycles that llvm-mca gives a loop: by LLVM's own model of a card, with one wave, whose loads take a fixed time."""

from __future__ import annotations

from collections.abc import Iterable
import re
import shutil
import subprocess

from machine_code.amd_code import Instruction

ITERATIONS = 20


def cycles(instructions: Iterable[Instruction], arch: str, clang: int) -> float | None:
    """The cycles of an iteration, or None without llvm-mca. Branches and barriers, which it does not follow, are left out."""
    tool = shutil.which(f"llvm-mca-{clang}")
    if tool is None:
        return None
    lines = [i.text for i in instructions if i.kind not in ("branch", "barrier")]
    command = [tool, "-mtriple=amdgcn", f"-mcpu={arch}", f"-iterations={ITERATIONS}"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:500]}")
    return int(found[1]) / ITERATIONS
