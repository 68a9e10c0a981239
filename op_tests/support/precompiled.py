"""torch's headers, precompiled: five seconds of each of the thirty bindings that a run of all tests compiles.

g++ takes `<torch/csrc/utils/pybind.h>` precompiled wherever a binding includes it first and the flags allow it, and reads the
text otherwise: nothing else differs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import shlex
import subprocess
import sysconfig

import torch

import support  # noqa: F401  makes an uninstalled hipconv importable
from hipconv import targets
from hipconv.jit import toolchain

HEADER = "torch/csrc/utils/pybind.h"
LOADER_FLAGS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20"]  # torch's; with others there the text is read


def torch_headers(directory: Path) -> bool:
    """Precompile for the two kinds of host builds; `directory` is for CPATH. Whether it could be done:
    clang has no use for it.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    include = Path(torch.__file__).parent / "include"
    compiled = directory / f"{HEADER}.gch"  # a directory: g++ takes the one that fits
    compiled.mkdir(parents=True)
    (directory / HEADER).symlink_to(include / HEADER)
    searched = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]

    def precompile(arch: str) -> bool:
        flags = toolchain.flags(targets.named(arch), ["-O3"]).host
        ours = [flag for flag in flags if not flag.startswith("-DHIPCONV_")]  # torch reads none, and g++ would insist on them
        theirs = [*LOADER_FLAGS, *(f"-isystem{place}" for place in searched)]
        command = [*compiler, *theirs, *ours, "-x", "c++-header", str(include / HEADER), "-o", str(compiled / arch)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    try:
        with ThreadPoolExecutor() as threads:
            return all(threads.map(precompile, ("cpu", "wave64")))
    except OSError:  # no compiler
        return False
