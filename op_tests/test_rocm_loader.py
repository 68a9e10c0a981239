"""A rehearsal of ROCm without a GPU: the real registry and the smallest module through the ROCm branch of torch's extension loader.

Debian's hipcc compiles and links for gfx90a against a CPU build of torch that is told it is a ROCm build. It shows what cannot be
seen on NVIDIA or on the host: that hipify changes nothing, that the HIP text compiles with AMD's own headers and host compiler, that
the module imports, and that a launch on a machine without a GPU raises.
"""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest
from test_gpu_compilers import PACKAGES, ROOT, require
import torch

REHEARSAL = """
import hashlib, json, os, sys
from pathlib import Path
import torch
torch.version.hip = "5.2"
torch.cuda._is_compiled = lambda: True

from hipconv import cache, jit, registry
from hipconv.targets import Target

target = Target("rocm", "gfx90a")
artefact = jit.build("copy", target)
root = registry.source_root()
entry = registry.module("copy")
staged = {str(file.relative_to(artefact.directory)) for file in (artefact.directory / "csrc").rglob("*") if file.is_file()}
expected = {str(file) for file in (*registry.sources(entry, "rocm"), *registry.headers("rocm"))}
assert staged == expected, f"hipify wrote {staged ^ expected}"
for file in expected:
    assert (artefact.directory / file).read_bytes() == (root / file).read_bytes(), f"hipify rewrote {file}"
assert "--offload-arch=gfx90a" in (artefact.directory / "build.ninja").read_text()

module = jit.module("copy", target)
assert jit.module("copy", target) is module
x, out = torch.ones(2, 4, 8), torch.full((2, 4, 8), 42.0)
try:
    module.copy(out, x, 0)
except RuntimeError as error:
    print("raised:", error)
else:
    sys.exit("a launch without a GPU did not raise")
assert (out == 42.0).all(), "out was written"
try:
    module.copy(out, torch.ones(2, 4, 9), 0)
except ValueError as error:
    print("refused:", error)
"""  # on stdout: these two lines and nothing else


@pytest.fixture(scope="module")
def rocm_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A ROCM_HOME around Debian's hipcc, and empty stand-ins for the libraries of a ROCm torch."""
    runtime = Path("/usr/lib/x86_64-linux-gnu/libamdhip64.so")
    require("hipcc", "g++", str(runtime), remedy=f"Debian: apt-get install {PACKAGES}")
    home = tmp_path_factory.mktemp("rocm")
    for directory in ("bin", "include", "lib", "stand-ins"):
        (home / directory).mkdir()
    hipcc = home / "bin" / "hipcc"
    hipcc.write_text('#!/bin/sh\nexec /usr/bin/hipcc "$@"\n')  # a link would lose hipcc its own files
    hipcc.chmod(0o755)
    (home / "lib" / "libamdhip64.so").symlink_to(runtime)
    for library in ("c10_hip", "torch_hip"):
        subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", home / "stand-ins" / f"lib{library}.so"], check=True)
    stand_ins = str(home / "stand-ins")
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "ROCM_HOME": str(home),
        "HIP_PLATFORM": "amd",  # hipcc drives nvcc wherever it finds one
        "LIBRARY_PATH": stand_ins,
        "LD_LIBRARY_PATH": stand_ins,
        "HIPCONV_CACHE_DIR": str(home / "cache for cuda"),  # hipify moves what it writes out of a path with that word in it
        "PYTHONPATH": str(ROOT / "python"),
        "HOME": str(home),
    }


@pytest.mark.skipif(torch.version.hip is not None or torch.version.cuda is not None, reason="needs a CPU build of torch to rehearse with")
def test_builds_imports_and_raises_through_the_rocm_branch(rocm_environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", REHEARSAL], env=rocm_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    raised, refused = done.stdout.splitlines()
    assert raised.startswith("raised: hipconv: copy: the kernel could not be launched: hipError")
    assert refused.startswith("refused: out: got shape (2, 4, 8)")
    assert done.stderr == ""
    siblings = {place.name for place in Path(rocm_environment["HOME"]).iterdir()}
    assert siblings == {"bin", "include", "lib", "stand-ins", "cache for cuda"}, "something was written outside the cache"
