"""Headers, precompiled: torch's take five seconds of each of the thirty bindings that a run of all tests compiles, and those of
simt half a second of each of its two hundred files of kernels.

g++ takes a header precompiled wherever a file includes it first, the flags allow it, and no other place comes before CPATH
(simt's own come after it); it reads the text otherwise: nothing else differs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import shlex
import subprocess
import sysconfig

import torch

import support
from hipconv import targets
from hipconv.jit import toolchain

OF_BINDINGS = "torch/csrc/utils/pybind.h"
OF_KERNELS = "hip/hip_runtime.h"
LOADER_FLAGS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20"]  # torch's; with others there the text is read


def precompile(directory: Path) -> bool:
    """Precompile for the kinds of host builds; `directory` is for CPATH. Tell whether it could be done:
    clang has no use for it.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    torch_include = Path(torch.__file__).parent / "include"
    places = {OF_BINDINGS: torch_include, OF_KERNELS: support.ROOT / "csrc" / "compat" / "simt"}
    for header, place in places.items():
        (directory / f"{header}.gch").mkdir(parents=True)  # a directory: g++ takes the one that fits
        (directory / header).symlink_to(place / header)
    searched = [torch_include, torch_include / "torch/csrc/api/include", sysconfig.get_path("include")]
    theirs = [*LOADER_FLAGS, *(f"-isystem{place}" for place in searched)]

    def one(header: str, arch: str) -> bool:
        ours = toolchain.flags(targets.named(arch), ["-O3"]).host
        if header == OF_BINDINGS:  # torch reads none of our macros, and g++ would insist on them
            ours = [flag for flag in ours if not flag.startswith("-DHIPCONV_")]
        command = [*compiler, *theirs, *ours, "-x", "c++-header", str(places[header] / header)]
        command += ["-o", str(directory / f"{header}.gch" / arch)]
        return subprocess.run(command, cwd=support.ROOT, capture_output=True, check=False).returncode == 0

    builds = [(OF_BINDINGS, "cpu"), (OF_BINDINGS, "wave64"), (OF_KERNELS, "wave64"), (OF_KERNELS, "wave32")]
    try:
        with ThreadPoolExecutor() as threads:
            return all(threads.map(one, *zip(*builds, strict=True)))
    except OSError:  # no compiler
        return False
