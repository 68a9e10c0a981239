"""A checkout of hipconv whose only module, `probe`, compiles in a quarter of a second, for tests of the JIT engine.

Its binding is plain Python C API and its one function tells what it was built from: `answer()` is ANSWER of
csrc/include/answer.h for the cpu backend, and ANSWER * 100 + the wave size for simt. Everything runs in processes of its own
with private caches, homes and temporary directories, scripts in forks of one that has imported torch; the compiler is a script
that logs, and can be told to wait or to fail.
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import json
import os
from pathlib import Path
import shutil
import signal
import site
import subprocess
import sys
import textwrap
import time

from support import ROOT
from support.zygote import Forked

FILES = {
    "jit_config.json": json.dumps(
        {
            "probe": {
                "kernels": ["kernels/probe_*.cu"],
                "cpu": ["cpu/probe_*.cpp"],
                "pybind": ["pybind/probe.cpp"],
                "flags": ["-O0"],
            }
        }
    ),
    "README.md": "A probe.\n",
    "csrc/README.md": "Sources.\n",
    "csrc/include/answer.h": '#pragma once\n#include "detail/deep.h"\n#define ANSWER 42\nint answer();\n',
    "csrc/include/detail/deep.h": "#pragma once\n",
    "csrc/include/detail/unused.h": "#pragma once\n",
    "csrc/compat/simt/unused_simt.h": "#pragma once\n",
    "csrc/cpu/probe_cpu.cpp": '#include "answer.h"\nint answer() { return ANSWER; }\n',
    "csrc/kernels/probe_kernel.cu": '#include "answer.h"\nint answer() { return ANSWER * 100 + HIPCONV_SIMT_WAVE; }\n',
    "csrc/pybind/probe.cpp": """#include <Python.h>
#include "answer.h"
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)
static PyObject* call_answer(PyObject*, PyObject*) { return PyLong_FromLong(answer()); }
static PyMethodDef methods[] = {{"answer", call_answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(TORCH_EXTENSION_NAME), nullptr, -1, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
""",
}

# Logs each compilation; waits while the file $PROBE_HOLD exists (a minute at most); fails while $PROBE_BREAK does.
COMPILER = """#!/bin/sh
case " $* " in *" -c "*)
    echo "$*" >> "$PROBE_LOG"
    waited=0
    while [ -e "$PROBE_HOLD" ] && [ $waited -lt 600 ]; do sleep 0.1; waited=$((waited + 1)); done
    if [ -e "$PROBE_BREAK" ]; then echo "the disk is on fire" >&2; exit 1; fi
esac
exec {compiler} "$@"
"""

IMPORTS = """
import json, os, sys, threading, time
from pathlib import Path
from hipconv import cache, errors, jit, registry, targets
from hipconv.jit.targets import Target
CPU, SIMT = Target("cpu", "generic"), Target("simt", "wave64")
jit.progress.PATIENCE = 600.0  # builds of the probe are to be quiet however busy the machine is
"""
ANSWER = 'print(jit.module("probe", CPU).answer())'

# The answer, or the text of the error, and how many files were compiled until now.
ATTEMPT = """
def attempt(target=CPU):
    try:
        return jit.module("probe", target).answer()
    except errors.BuildError as error:
        return str(error)
def compilations():
    return len(Path(os.environ["PROBE_LOG"]).read_text().splitlines())
"""

# From here on file permissions bind this process, also where the tests run as root: a process without capabilities.
UNPRIVILEGED = """
import ctypes
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""

# Makes somebody else the owner of a file or directory: root gives it away, anybody else goes by another name from here on.
GIVE_AWAY = """
def give_away(place):
    if os.geteuid() == 0:
        os.chown(place, 12345, 12345)
    else:
        os.geteuid = lambda: 12345
"""


def code(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


def write_compiler(path: Path) -> Path:
    """A logging g++; torch knows compilers by name, so `path` should contain "g++"."""
    path.write_text(COMPILER.replace("{compiler}", str(shutil.which("g++"))))
    path.chmod(0o755)
    return path


def copy_package(root: Path) -> None:
    """Copy the package with what Python compiled of it, for which processes that import the copy would take as long as for all
    else, but without what is being written.
    """
    shutil.copytree(ROOT / "python/hipconv", root / "python/hipconv", ignore=shutil.ignore_patterns("*.pyc.*"))


def wait_until(condition: Callable[[], object], what: str, seconds: float = 40) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)


def tree_hash(directory: Path) -> str:
    """Changes with any name or byte below `directory`."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        total.update(
            f"{path.relative_to(directory)}\0{path.is_file()}\0".encode() + (path.read_bytes() if path.is_file() else b"")
        )
    return total.hexdigest()


class Probe:
    """A checkout, its environment, and what happened there."""

    def __init__(self, directory: Path, compiler: Path) -> None:
        self.root = directory / "checkout"
        self.cache = directory / "cache"
        self.log = directory / "compiled.log"
        self.hold = directory / "hold"
        self.break_ = directory / "break"
        self.home = directory / "home"
        self.temporary = directory / "temporary"
        for place in (self.home, self.temporary):
            place.mkdir(parents=True, exist_ok=True)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HIPCONV_", "TORCH", "XDG_", "PYTHON", "CXX"))
        }
        self.environment = kept | {
            "PYTHONPATH": str(self.root / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUSERBASE": site.getuserbase(),  # an installation below the real home stays visible
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "HIPCONV_CACHE_DIR": str(self.cache),
            "CXX": str(compiler),
            "CUDA_VISIBLE_DEVICES": "",  # the probe is for the host
            "HIP_VISIBLE_DEVICES": "",
            "PROBE_LOG": str(self.log),
            "PROBE_HOLD": str(self.hold),
            "PROBE_BREAK": str(self.break_),
        }

    def create(self) -> Probe:
        copy_package(self.root)
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        return self

    # ---- running

    def _variables(self, variables: dict[str, str | None]) -> dict[str, str]:
        return {key: value for key, value in (self.environment | variables).items() if value is not None}

    def run(self, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Python with `arguments`, to the end; a keyword sets an environment variable, or unsets it with None."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=self._variables(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._finish(process, arguments)

    def start(self, *parts: str, stderr: int = subprocess.PIPE, **variables: str | None) -> Forked:
        """A script of `parts`, each of which may be indented, after IMPORTS, in a process that has imported torch already."""
        return Forked(code(IMPORTS, *parts), self._variables(variables), stderr)

    def script(self, *parts: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """As `start`, to the end, which has to come within three minutes, though all else is busy."""
        return self._finish(Forked(code(IMPORTS, *parts), self._variables(variables)), parts)

    def _finish(self, process: subprocess.Popen[str] | Forked, what: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        try:
            out, err = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=180)
            raise AssertionError(f"still running after three minutes: {what}\n{out}\n{err}") from None
        return subprocess.CompletedProcess(what, process.returncode or 0, out, err)

    def python(self, *parts: str, **variables: str | None) -> str:
        """Return what such a script prints; it must succeed, and say nothing on stderr."""
        done = self.script(*parts, **variables)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", done.stderr
        return done.stdout

    def cli(self, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """`python -m hipconv`, in a process that has imported torch already."""
        script = f"import runpy, sys\nsys.argv[1:] = {list(arguments)!r}\nrunpy.run_module('hipconv', run_name='__main__')"
        return self._finish(Forked(script, self._variables(variables)), arguments)

    # ---- looking

    def compilations(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def builds(self) -> int:
        """Count how often the binding was compiled, which each build does once."""
        return self.log.read_text().count("pybind/probe.cpp -o") if self.log.exists() else 0

    def artefacts(self, module: str = "probe") -> list[Path]:
        return sorted(self.cache.glob(f"{module}-*"))

    def leftovers(self) -> list[Path]:
        return list(self.cache.glob(".building-*"))

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))
