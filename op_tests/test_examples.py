"""The examples run as a person runs them, only shorter."""

from __future__ import annotations

import os
from pathlib import Path
import re
import subprocess
import sys

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=EXAMPLES, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_char_mamba_learns_and_writes() -> None:
    sizes = ["--steps", "12", "--dim", "32", "--batch", "4", "--seqlen", "48", "--lr", "0.02"]
    output = run("train_char_mamba.py", *sizes, "--prompt", "import ", "--length", "30", "--text", "train_char_mamba.py")
    losses = [float(loss) for loss in re.findall(r"step .* loss (\S+)", output)]
    assert len(losses) > 2 and losses[-1] < losses[0] - 0.1, output
    assert "decode and prefill: equal" in output
    assert "\r" not in output
    assert len(output.split("\n\nimport ")[1]) == 30 + len("\n"), output
