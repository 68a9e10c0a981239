"""The op tests once more with the simt backend built under AddressSanitizer and UndefinedBehaviorSanitizer.

torch allocates CPU tensors with malloc, so a kernel that reads or writes a byte outside its tensors, where no value it computes would
show it, stops here.
"""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g1 -O0"  # compiling takes the time: 1.4 CPU minutes, and 5 at -O1
CXX = os.environ.get("CXX", "g++")

# A tensor whose storage was shrunk behind its back: the kernel is led past the end of the memory.
LIE = """
import torch, hipconv
x = torch.zeros(1, 4, 8)
x.untyped_storage().resize_(64)
hipconv.causal_conv1d_fwd(torch.zeros(1, 4, 8), x, torch.zeros(4, 1))
"""


def sanitized(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers' runtimes loaded first, and builds instrumented."""
    runtimes = [subprocess.check_output([CXX, f"-print-file-name={name}.so"], text=True).strip() for name in ("libasan", "libubsan")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep what they allocate
        "HIPCONV_EXTRA_FLAGS": FLAGS,
        "HIPCONV_CACHE_DIR": str(tmp_path),
        "HIPCONV_BACKEND": "simt",
        "PYTHONPATH": str(ROOT / "python"),
    }
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.skipif(shutil.which(CXX) is None, reason=f"no {CXX}")
def test_the_op_tests_pass_under_the_sanitizers(tmp_path: Path) -> None:
    selected = "simt-wave64 and not descending and not opcheck and not compiles"
    done = sanitized(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "op_tests/test_causal_conv1d.py", "-k", selected)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]

    done = sanitized(tmp_path, "-c", LIE)  # and the same build does catch what it is there to catch
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr and "causal_conv1d" in done.stderr, done.stderr[-3000:]
