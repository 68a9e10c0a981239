"""Checks of hipconv against a version of torch that is not installed here, from its wheel on PyPI.

    python op_tests/check_torch_versions.py 2.4.0 2.13.0          # the oldest that is promised, and the one that is installed
    python op_tests/check_torch_versions.py 2.4.0 --directory torch_wheels    # fetched once, kept there

The version that is installed runs the demo, which builds and calls a module. Of another one PyPI has no build for x86-64
without CUDA, but one for aarch64: its Python and its headers are those of every build. Nothing of it is run:

* names: mypy reads hipconv against its Python and stubs; a name or an argument that is not there is an error.
* headers: g++ compiles each binding against its headers, as far as the machine's code (-fsyntax-only).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

import torch

from support import ROOT

LARGEST = 400  # MB; a build with CUDA is more
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64")


def fetch(version: str, directory: Path) -> Path | str:
    """The wheel for aarch64, or why it is not fetched: pip names the size before the first byte, and is stopped then."""
    if found := sorted(directory.glob(f"torch-{version}-*aarch64.whl")):
        return found[0]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--progress-bar",
        "off",
        *platforms,
        "--python-version",
        python,
        "-d",
        str(directory),
        f"torch=={version}",
    ]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout
        for line in pip.stdout:
            lines.append(line.strip())
            size = re.search(r"Downloading torch-\S+ \(([\d.]+) (MB|GB)\)", line)
            if size and float(size[1]) * (1000 if size[2] == "GB" else 1) > LARGEST:
                pip.kill()
                return f"PyPI's build for aarch64 has {size[1]} {size[2]}, more than {LARGEST} MB"
    if pip.returncode:
        return next((line for line in reversed(lines) if line.startswith("ERROR")), "pip found none")
    return sorted(directory.glob(f"torch-{version}-*aarch64.whl"))[0]


def unpack(wheel: Path, place: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", ".pyi", ".h", ".hpp", ".cuh", "py.typed"))]
        archive.extractall(place, [name for name in names if name.startswith("torch/")])
    return place


def names(place: Path) -> str:
    """mypy's errors in hipconv, with torch's Python at `place` before the installed one."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(place / "cache"), "python/hipconv"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(place)}, capture_output=True, text=True, check=False
    )
    if not re.search(r"checked \d+ source files", done.stdout):
        return f"mypy failed: {done.stdout[-500:]}{done.stderr[-500:]}"
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("python/hipconv") and " error: " in line)


def headers(place: Path) -> str:
    """g++'s errors in each binding, with torch's headers at `place`."""
    include = place / "torch" / "include"
    system = [
        f"-isystem{path}" for path in (include, include / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include"))
    ]
    bindings = sorted((ROOT / "csrc" / "pybind").glob("*.cpp"))
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-DTORCH_EXTENSION_NAME=checked", *system,
               *(f"-I{ROOT / 'csrc' / path}" for path in ("include", "compat/simt"))]  # fmt: skip
    failed = []
    for binding in bindings:
        done = subprocess.run([*command, str(binding)], capture_output=True, text=True, check=False)
        failed += [f"{binding.name}: {done.stderr[:500]}"] if done.returncode else []
    return "\n".join(failed)


def demo() -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(
        [sys.executable, "-m", "hipconv", "demo"], env=environment, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--directory", type=Path, help="keep the wheels here, and look here first (default: a temporary one)")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        for version in options.versions:
            if torch.__version__.partition("+")[0] == version:
                found = {"runs": demo()}
            else:
                wheel = fetch(version, directory)
                if isinstance(wheel, str):
                    print(f"torch {version}: not checked: {wheel}", flush=True)
                    wrong += 1
                    continue
                place = unpack(wheel, Path(temporary, version))
                found = {"names": names(place), "headers": headers(place)}
            for what, errors in found.items():
                print(f"torch {version}: {what}: {'WRONG' if errors else 'ok'}{errors and chr(10)}{errors}", flush=True)
                wrong += bool(errors)
    return 1 if wrong else 0
