"""A run of all tests compiles headers, and what is the same, once instead of in each of its thirty builds for the host.

g++ takes a header precompiled wherever a file includes it first, the flags allow it, and no other place comes before CPATH
(simt's own come after it); it reads the text otherwise: nothing else differs. Torch's headers would take three seconds of each
binding, and those of simt half a second of each of its two hundred files of kernels.

Objects are kept by `host_compiler/c++`, the keeper, which stands before other compilers on PATH and is started in their place.
The nightly run goes without it, so that every binding is compiled as users have it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import shlex
import shutil
import subprocess
import sysconfig

import torch

import support
from support.backends import EVERYTHING
from hipconv import targets
from hipconv.jit import toolchain

OF_BINDINGS = "torch/csrc/utils/pybind.h"
OF_KERNELS = "hip/hip_runtime.h"
KEEPER = Path(__file__).parent / "host_compiler" / "c++"
LOADER_FLAGS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20"]  # torch's; with others there the text is read


def precompile(directory: Path) -> dict[str, str]:
    """Precompile headers for the kinds of host builds, in `directory`, where objects are to be kept, too. Return the variables
    of the environment by which compilers find them; none where it cannot be done: clang has no use for it.
    """
    chosen = os.environ.get("CXX")
    compiler = shlex.split(chosen or "c++")
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

    builds = [(OF_BINDINGS, "wave64"), (OF_KERNELS, "wave64"), (OF_KERNELS, "wave32")]
    if EVERYTHING or chosen:
        builds.append((OF_BINDINGS, "cpu"))
    try:
        with ThreadPoolExecutor() as threads:
            if not all(threads.map(one, *zip(*builds, strict=True))):
                return {}
    except OSError:  # no compiler
        return {}
    variables = {"CPATH": [str(directory), os.environ.get("CPATH")]}
    if not EVERYTHING and not chosen:
        variables["PATH"] = [str(KEEPER.parent), os.environ["PATH"]]
        variables |= {"KEPT_OBJECTS": [str(directory)], "KEPT_COMPILER": [shutil.which("c++")]}
    return {name: os.pathsep.join(filter(None, words)) for name, words in variables.items()}
