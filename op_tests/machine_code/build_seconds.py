"""Tell how many CPU seconds each file of a cold build for NVIDIA's cards takes, step by step, on a machine with no GPU.

    python op_tests/build_seconds.py --module conv2d
    python op_tests/build_seconds.py --module causal_conv1d_bwd --file backward/tile.cu backward/tile_8.cu

The commands are those that torch's extension loader gives ninja; a CPU build of torch is told that it is one for CUDA 13.
nvcc's own steps are run one after the other: reading the text, its front end, cicc, which makes PTX, ptxas, and the host's
compiler. Seconds are of the processor, user and system: beside other work they grow by a quarter, not by a factor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import re
import resource
import subprocess
import tempfile
from unittest import mock

import torch

import support  # noqa: F401  makes an uninstalled hipconv importable
from hipconv import registry, targets
from hipconv.jit import builder, toolchain
from hipconv.jit.builds import Build

STEPS = ("read", "front", "cicc", "ptxas", "host", "all")


def commands(name: str, target: targets.Target, place: Path) -> list[str]:
    """The commands by which ninja would compile a module's files, staged in `place`."""
    from torch.utils import cpp_extension

    class Enough(Exception):
        pass

    home = str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")))
    with (
        mock.patch.object(torch.version, "cuda", "13.0"),
        mock.patch.object(cpp_extension, "CUDA_HOME", home),
        mock.patch.object(cpp_extension, "_run_ninja_build", side_effect=Enough),
        mock.patch.dict(os.environ, toolchain.loader_environment(target, place / "tools")),
    ):
        with contextlib.suppress(Enough):
            builder._compile(Build.of(name, target), place)
        listed = subprocess.run(["ninja", "-C", place, "-t", "commands"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if " -c " in line]


def seconds_of(command: str, place: Path, environment: dict[str, str]) -> float:
    """The processor's seconds for a command of a shell."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, shell=True, cwd=place, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps_of(command: str, place: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """nvcc's steps of a command, and their environment."""
    environment = os.environ | {"TMPDIR": str(place)}  # where nvcc keeps what passes from step to step
    command = command.replace("nvcc ", "nvcc -dryrun ", 1)
    dry = subprocess.run(command, shell=True, cwd=place, env=environment, capture_output=True, text=True, check=True)
    for text in re.findall(r"^#\$ (.*)", dry.stderr, re.MULTILINE):
        if variable := re.fullmatch(r"(\w+)=(.*)", text):
            environment[variable[1]] = variable[2]
        elif not text.startswith(("--", "rm ")):
            kinds = {"cicc" in text[:40]: "cicc", text.startswith("ptxas"): "ptxas", text.startswith("cudafe"): "front"}
            yield kinds.get(True, "read" if " -E " in text else "host"), text, environment


def of_module(name: str, target: targets.Target, endings: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Each file of a module whose path ends so, and its seconds."""
    with tempfile.TemporaryDirectory(prefix="hipconv-seconds-") as directory:
        place = Path(directory).resolve()
        for command in commands(name, target, place):
            [file] = re.findall(r" -c \S*csrc/(\S+)", command)
            if endings and not file.endswith(tuple(endings)):
                continue
            found = dict.fromkeys(STEPS, 0.0)
            if file.endswith(".cu"):
                for kind, text, environment in steps_of(command, place):
                    found[kind] += seconds_of(text, place, environment)
            else:
                found["host"] = seconds_of(command, place, dict(os.environ))
            found["all"] = sum(found.values())
            yield file, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", nargs="+", default=list(registry.modules()), help="default: all")
    parser.add_argument("--arch", default="sm_90", help="default: sm_90")
    parser.add_argument("--file", nargs="+", default=[], metavar="ENDING", help="files whose paths end so; default: all")
    options = parser.parse_args()
    for name in options.module:
        total, longest = 0.0, 0.0
        print(f"{name:52}" + "".join(f"{step:>8}" for step in STEPS))
        for file, found in of_module(name, targets.named(options.arch), options.file):
            print(f"  {file:50}" + "".join(f"{found[step]:8.2f}" for step in STEPS), flush=True)
            total, longest = total + found["all"], max(longest, found["all"])
        print(f"  {'all files; the longest':50}{total:8.1f}{longest:8.1f}")
    return 0
