"""The command that checks versions of torch which are not installed."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest

from integration import torch_versions
from support import ROOT
from support.backends import EVERYTHING


@pytest.mark.skipif(not EVERYTHING, reason="nightly: a minute, and 90 MB from PyPI")
def test_the_oldest_version_that_is_promised_has_every_name_and_header(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "op_tests/check_torch_versions.py", "2.4.0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["torch 2.4.0: names: ok", "torch 2.4.0: headers: ok"]


def test_what_does_not_compile_is_said_binding_by_binding(tmp_path: Path) -> None:
    """Against no headers at all."""
    errors = torch_versions.headers(tmp_path)
    bindings = {file.name for file in (ROOT / "csrc" / "pybind").glob("*.cpp")}
    assert {line.partition(":")[0] for line in errors.splitlines()} >= bindings and "torch" in errors


def test_no_large_build_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip names the size first."""
    pip = tmp_path / "pip"
    pip.write_text(
        "#!/bin/sh\necho '  Downloading torch-9.9-cp311-cp311-manylinux2014_aarch64.whl (797.3 MB)'\nexec sleep 60\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(torch_versions.sys, "executable", str(pip))
    assert torch_versions.fetch("9.9", tmp_path) == "PyPI's build for aarch64 has 797.3 MB, more than 400 MB"
    pip.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for torch==9.9'\nexit 1\n")
    assert torch_versions.fetch("9.9", tmp_path) == "ERROR: No matching distribution found for torch==9.9"
