"""The examples run as a person runs them, only shorter; and those of the README as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import torch

from support import ROOT
from support.tensors import mismatch
from hipconv import reference

EXAMPLES = ROOT / "examples"


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


def test_the_examples_of_the_readme(capsys) -> None:
    """One after the other, as they build on each other; but for those that need transformers or, where there is none, a GPU."""
    names: dict[str, Any] = {}
    served: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        if "transformers" not in block and ("cuda" not in block or torch.cuda.is_available()):
            exec(block, names)
            for expected in re.findall(r"# (.* on \w+ gfx.*?) …$", block, re.MULTILINE):
                assert expected in capsys.readouterr().out
            if "serving" in block:
                served = dict(names)
    assert len(blocks) >= 5

    prompts, token, weight, bias = (served[name] for name in ("prompts", "token", "weight", "bias"))
    for request, (begin, end) in enumerate(((0, 5), (5, 305))):
        whole = torch.cat([prompts[:, begin:end], token[request][:, None]], 1)
        computed = torch.cat([served["y"][:, begin:end], served["out"][request][:, None]], 1)
        assert mismatch(computed, reference.causal_conv1d(whole[None], weight, bias, True)[0]) is None
        assert torch.equal(served["pool"][served["slots"][request]], whole[:, -3:])
