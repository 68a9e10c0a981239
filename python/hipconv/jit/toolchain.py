"""The tools that builds for a target take: compilers, ninja, and their flags."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import shlex
import shutil
import sys
import sysconfig
from typing import NamedTuple

import torch

from ..errors import MissingToolchain
from . import registry
from .targets import ISA, Target

# ---- compilers ---------------------------------------------------------------------------------------------------------------


def _device_compiler(backend: str) -> tuple[str, Path | None]:
    """The name and place of nvcc or hipcc, looked for where torch's loader looks. Starts no process."""
    name, homes, default = {
        "cuda": ("nvcc", ("CUDA_HOME", "CUDA_PATH"), "/usr/local/cuda"),
        "rocm": ("hipcc", ("ROCM_HOME", "ROCM_PATH"), "/opt/rocm"),
    }[backend]
    override = os.environ.get("PYTORCH_NVCC")
    if override:
        found = shutil.which(shlex.split(override)[0])
        return override, Path(found) if found else None
    for variable in homes:
        if home := os.environ.get(variable):
            place = Path(home, "bin", name)
            return name, place if place.exists() else None
    found = shutil.which(name)
    if found is None and Path(default, "bin", name).exists():
        found = str(Path(default, "bin", name))
    return name, Path(found) if found else None


def _host_compiler() -> str:
    return os.environ.get("CXX") or "c++"


def compilers(backend: str) -> dict[str, Path | None]:
    """Each compiler that a build for `backend` runs, by name, with its place or None. Starts no process."""
    host = _host_compiler()
    found = shutil.which(shlex.split(host)[0])
    tools: dict[str, Path | None] = {host: Path(found) if found else None}
    if backend in ("rocm", "cuda"):
        name, place = _device_compiler(backend)
        tools[name] = place
    return tools


def compiler_record(backend: str) -> list[list[str | int]] | None:
    """Name, path, size and mtime of each compiler, by which a change of compiler is noticed; None where one is missing."""
    record: list[list[str | int]] = []
    for name, place in compilers(backend).items():
        if place is None:
            return None
        stat = place.stat()
        record.append([name, str(place.resolve()), stat.st_size, stat.st_mtime_ns])
    return record


def _ninja() -> str | None:
    """Find ninja: beside the running Python, although PATH may not say so, in the `ninja` package, or on PATH."""
    places = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    try:
        import ninja

        places.append(ninja.BIN_DIR)
    except ImportError:
        pass
    return shutil.which("ninja", path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]))


def require_toolchain(target: Target, use: str) -> None:
    """Raise MissingToolchain, naming each thing that a build for `target` needs and lacks; `use` says what that is for."""
    missing = []
    hints = {
        "nvcc": "install the CUDA toolkit that matches your torch and set CUDA_HOME to it",
        "hipcc": "install ROCm's hip-dev packages and set ROCM_HOME to the installation (usually /opt/rocm)",
    }
    for name, place in compilers(target.backend).items():
        if place is None:
            hint = hints.get(name, "install g++ (Debian: apt-get install g++), or set CXX to a C++17 compiler")
            missing.append(f"the compiler '{name}' (looked on PATH and in its usual homes): {hint}")
    if _ninja() is None:
        missing.append("ninja (looked beside this Python and on PATH): pip install ninja")
    if importlib.util.find_spec("setuptools") is None:
        missing.append("the package setuptools, which torch's loader imports: pip install setuptools")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        missing.append(f"Python's headers (looked for {header}): Debian: apt-get install {package}")
    if missing:
        raise MissingToolchain(
            f"to build {use}, hipconv needs what this machine lacks:\n  - "
            + "\n  - ".join(missing)
            + "\nOr build on another machine with the same torch and Python (`python -m hipconv build --all --arch "
            + f"{target.arch}`), and set HIPCONV_CACHE_DIR here to a copy of its cache."
        )


# ---- flags -------------------------------------------------------------------------------------------------------------------


class Flags(NamedTuple):
    """Flags for torch's loader; include paths are relative to the directory that holds the staged csrc/."""

    host: list[str]
    device: list[str]
    link: list[str]


def flags(target: Target, module_flags: list[str]) -> Flags:
    """Everything a build for `target` adds to the loader's own flags, HIPCONV_EXTRA_FLAGS last."""
    ours, *compat = registry.include_directories(target.backend)
    common = [*module_flags, f"-I{ours}", *(f"{'-isystem' if target.backend == 'simt' else '-I'}{place}" for place in compat)]
    extra = shlex.split(os.environ.get("HIPCONV_EXTRA_FLAGS", ""))
    if target.on_gpu:
        if target.backend == "cuda" and _compute_capability(target) >= 90:
            common.append("-DHIPCONV_EARLY_LAUNCHES")  # the host's part does not know what card it is for
        return Flags(common, [*common, *extra], [])
    if target.backend == "simt":
        # -Og: tests wait for the compiler more than for the kernels.
        wave, _, unit = target.arch.removeprefix("wave").partition("-")
        common += [f"-DHIPCONV_SIMT_WAVE={wave}", *([f"-DHIPCONV_SIMT_MMA={unit}"] if unit else []), "-Og"]
    else:
        isa = ISA[target.arch]
        common += [*isa.flags, f"-DCPU_CAPABILITY={isa.capability}", f"-DCPU_CAPABILITY_{isa.capability}"]
        if torch.backends.openmp.is_available():
            common.append("-fopenmp")  # not at link time: the symbols are to come from the OpenMP runtime torch has loaded
    return Flags([*common, *extra], [], extra)


def _compute_capability(target: Target) -> int:
    """90 of sm_90a."""
    return int(target.arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz"))


def loader_environment(target: Target, tools: Path) -> dict[str, str]:
    """Variables that torch's loader reads: exactly this architecture, and ninja found although no environment is activated.

    `tools`, made here, holds a link to ninja alone: the directory that ninja is in may hold other compilers than those PATH
    chose.
    """
    tools.mkdir()
    (tools / "ninja").symlink_to(str(_ninja()))
    variables = {"PATH": os.pathsep.join([str(tools), os.environ.get("PATH", os.defpath)]), "CXX": _host_compiler()}
    if target.backend == "rocm":
        variables["PYTORCH_ROCM_ARCH"] = target.arch
    elif target.backend == "cuda":
        digits = target.arch.removeprefix("sm_")
        if digits == "90" and int((torch.version.cuda or "12").split(".")[0]) >= 12:
            digits = "90a"  # with the instructions that only it has
        number = str(_compute_capability(target))
        variables["TORCH_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}{digits[len(number) :]}"
    return variables
