"""Every module as users of ROCm get it, with no AMD GPU: built by torch's extension loader through hipcc, with several clangs.

torch, a CPU build of it, is told that it is a ROCm build. Debian's hipcc, of ROCm 5.2, then compiles and links as that one
would, with its own clang 15 or with one that is as new as those of ROCm 6 and 7. `modules(clang)` builds the modules of the
registry, once per process, and gives their libraries, their objects and the machine code in them. It needs PACKAGES, not a ROCm
installation.

What a user's build has and this one does not: ROCm's own headers and runtime, which Debian has in an older version. Of the
flags one is changed: a single build is for all architectures of a clang, so that files are read and bindings compiled once and
not once for each.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
from typing import NamedTuple

from machine_code.amd_code import AMD_ARCHS, CodeObject, clang_flags, code_objects, knows, run
from support import ROOT
from support.backends import EVERYTHING
from support.precompiled import KEEPER
from hipconv import registry

RUNTIME = Path("/usr/lib/x86_64-linux-gnu/libamdhip64.so")
CLANGS = {  # version: what it compiles for; in every run a card of CDNA and one of RDNA
    19: tuple(arch for arch in AMD_ARCHS if knows(19, arch)) if EVERYTHING else ("gfx942",),
    22: tuple(AMD_ARCHS) if EVERYTHING else ("gfx1201",),
}
# In every run all modules are compiled for gfx942, and this one by clang 22 for gfx1201 too. The other modules on gfx1201,
# whose waves have 32 lanes, and gfx950, whose source is gfx942's, are nightly.
ONE_IN_EVERY_RUN = {"copy": "gfx1201"}
LINKED_ONLY = 15  # hipcc's own clang compiles the host's part alone: modules that link, import and refuse
OF_HIPCC = ("copy",)  # in every run hipcc's own clang builds it; clang 19 and 22 link the others
NAMED = "gfx90a"  # what torch is told; the compiler's script puts the clang's architectures in its place
DIALECT = (
    "-std=c++17"  # torch's up to 2.9; with later torch's, C++20, clang 19 does not get along with precompiled headers of HIP
)


def names_of(clang: int) -> list[str]:
    """The modules that a clang of CLANGS, or LINKED_ONLY, builds."""
    if EVERYTHING:
        return list(registry.modules())
    if clang == LINKED_ONLY:
        return [name for name in registry.modules() if name in OF_HIPCC]
    return [name for name in registry.modules() if archs_of(name, clang)]


def archs_of(module: str, clang: int) -> tuple[str, ...]:
    """The architectures that a clang of CLANGS compiles a module for."""
    if EVERYTHING:
        return CLANGS[clang]
    if clang == 19:
        return CLANGS[clang]
    return tuple(arch for arch in CLANGS[clang] if arch == ONE_IN_EVERY_RUN.get(module))


# In hipcc's place: Debian's, whose clang is 15, or the clang that $REHEARSED_CLANG names, with the flags that hipcc gives its
# own. Instead of the architecture that torch names it compiles for $REHEARSED_ARCHS. <hip/hip_runtime.h>, which takes longer to
# read than most kernels, is precompiled before the first file for each architecture, and for the host, whose code nobody waits
# for and which is not optimised. Machine code is that of $REHEARSED_NOTHING if it names a file.
HIPCC = """#!{python} -SE
import fcntl, os, subprocess, sys

compiler, archs = os.environ["REHEARSED_CLANG"].split(), os.environ["REHEARSED_ARCHS"].split()
words = [word for word in sys.argv[1:] if not word.startswith("--offload-arch=")] + os.environ["REHEARSED_FLAGS"].split()
if "-c" in words:
    passes = {{f"-Xarch_{{arch}}": ["--offload-device-only", f"--offload-arch={{arch}}"] for arch in archs}}
    passes["-Xarch_host"] = ["--offload-host-only", f"--offload-arch={{archs[0]}}"]
    words += ["-Xarch_host", "-O0"]
    headers, object = os.environ["REHEARSED_HEADERS"], words.index("-o")
    with open(headers + "/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        common = [word for word in words[:object] + words[object + 2 :] if word != "-c" and not word.endswith((".cu", ".hip"))]
        common = [word for word in common if "TORCH_EXTENSION_NAME" not in word] + ["-Wno-unused-command-line-argument"]
        for name, only in passes.items():
            header = f"{{headers}}/{{name}}.h"
            if not os.path.exists(header + ".complete"):
                with open(header, "w") as file:
                    file.write("#include <hip/hip_runtime.h>\\n")
                emit = (word for part in ("-emit-pch", "-o", header + ".pch") for word in ("-Xclang", part))
                subprocess.run([*compiler, *common, "-x", "hip", *only, "-fsyntax-only", *emit, header], check=True)
                open(header + ".complete", "w").close()
    words += [f"--offload-arch={{arch}}" for arch in archs]
    words += [word for name in passes for word in (name, f"-include{{headers}}/{{name}}.h")]
    words[:0] = ["-x", "hip"]
    if nothing := os.environ.get("REHEARSED_NOTHING"):
        words += ["--cuda-host-only", "-Xclang", "-fcuda-include-gpubinary", "-Xclang", nothing]
os.execvp(compiler[0], [*compiler, *words])
"""

# The host compiler: compiles a binding, which no GPU compiler reads, once for all clangs, unoptimised, as nobody waits for its
# calls here, and keeps what it links. Those of copy and conv3d are compiled with all flags of a ROCm torch. Where the run keeps
# objects, the others are those of the other backends, as these flags change none of them (support/precompiled.py).
HOST_COMPILER = """#!/bin/sh
for word; do case $word in *.o) object=$word ;; *.so) library=$word ;; -DTORCH_EXTENSION_NAME=*) name=${word#*=} ;; esac; done
case " $* " in
*" -c "*)
    kept=$REHEARSED_BINDINGS/$name.o
    if [ -e "$kept" ]; then cp "$kept" "$object" && cp "$kept.d" "$object.d"; exit; fi
    case $name in *_copy_* | *_conv3d_*) KEPT_OBJECTS= ;; esac
    if [ "$KEPT_OBJECTS" ]; then
        CPATH=$KEPT_OBJECTS "$REHEARSED_KEEPER" "$@"
    else
        g++ "$@" -O0
    fi && cp "$object.d" "$kept.d" && cp "$object" "$kept"
    exit ;;
*" -shared "*)
    mkdir "$REHEARSED_OBJECTS/$library" && cp *.o "$REHEARSED_OBJECTS/$library" ;;
esac
exec g++ "$@"
"""

SCRIPT = """
import json, os, sys
import torch
torch.version.hip = "5.2"
torch.cuda._is_compiled = lambda: True

from hipconv import jit, registry, targets

target = targets.Target("rocm", sys.argv[1])
targets.of = lambda device: target  # CPU tensors are as good as others: no kernel will run
{calls}
of_module = json.loads(sys.argv[2])
for name in of_module:
    os.environ.update(of_module[name])
    artefact = jit.build(name, target)
    root, entry = registry.source_root(), registry.module(name)
    files = [file for file in (artefact.directory / "csrc").rglob("*") if file.is_file()]
    staged = {{str(file.relative_to(artefact.directory)) for file in files}}
    places = registry.staged_names(entry, "rocm") | {{header: header for header in registry.headers(entry, "rocm")}}
    expected = {{str(place): root / file for file, place in places.items()}}
    common = staged & set(expected)
    rewritten = [place for place in common if (artefact.directory / place).read_bytes() != expected[place].read_bytes()]
    module = jit.module(name, target)
    print(json.dumps({{
        "name": name,
        "library": str(artefact.library),
        "by_hipify": sorted(staged ^ set(expected)) + rewritten,
        "commands": (artefact.directory / "build.ninja").read_text(),
        "loaded_again": jit.module(name, target) is module,
        **launched(name, module),
    }}), flush=True)
"""

# A call of each module, which must raise an error of ours, and leave `out` as it was.
CALLS = """
import hipconv
from hipconv import serving

def launched(name, module):
    # out, x, weight: (batch, dim, seqlen) and (dim, width); images and filters of conv2d
    x, weight = torch.ones(2, 4, 8), torch.ones(4, 4)
    out, state = torch.full((2, 4, 8), 42.0), torch.full((2, 4, 3), 42.0)
    images = torch.full((1, 4, 6, 8), 42.0)
    call = {
        "copy": lambda: module.copy(out, x, 0),
        "causal_conv1d": lambda: hipconv.causal_conv1d_fwd(out, x, weight),
        "causal_conv1d_bwd": lambda: module.causal_conv1d_bwd(
            x, weight, None, x, None, None, None, out, False, False, "auto", 0
        ),
        "causal_conv1d_update": lambda: serving.causal_conv1d_update(x, state, weight, out=out),
        "causal_conv1d_varlen": lambda: serving.causal_conv1d_fn(
            x[0], weight, None, state, torch.tensor([0, 5, 8], dtype=torch.int32), out=out[0]
        ),
        "conv2d": lambda: hipconv.conv2d(torch.ones(1, 4, 6, 8), torch.ones(4, 4, 3, 3), padding=1, out=images),
        "conv3d": lambda: hipconv.conv3d(
            torch.ones(4, 1, 6, 8), torch.ones(4, 4, 1, 3, 3), padding=(0, 1, 1), out=images[0][:, None]
        ),
    }[name]
    try:
        call()
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    else:
        raised = None
    refused = None
    if name == "copy":
        try:
            module.copy(out, torch.ones(2, 4, 9), 0)
        except ValueError as error:
            refused = str(error)
    was_written = not all((tensor == 42).all() for tensor in (out, state, images))
    return {"raised": raised, "refused": refused, "out_was_written": was_written}
"""


class Module(NamedTuple):
    """A module of the registry, as one clang built it, and what its use showed."""

    name: str
    library: Path
    objects: tuple[Path, ...]  # what it was linked of
    by_hipify: list[str]  # files that hipify added, took away or rewrote
    commands: str  # ninja's
    loaded_again: bool  # from memory, when asked for once more
    raised: str | None  # by a launch, on a machine with no GPU
    refused: str | None  # by copy, of tensors that do not fit
    out_was_written: bool

    def code(self, arch: str) -> CodeObject:
        """The machine code of all its kernels for an architecture, read out of the library."""
        return _code(self.library)[arch]


@functools.cache
def _code(library: Path) -> dict[str, CodeObject]:
    return code_objects(library)


@functools.cache
def _directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="hipconv-rocm-")  # removed when the process ends


@functools.cache
def home() -> Path:
    """A ROCM_HOME around Debian's hipcc, a host compiler, and empty stand-ins for the libraries of a ROCm torch."""
    home = Path(_directory().name)
    for directory in ("bin", "include", "lib", "stand-ins", "bindings"):
        (home / directory).mkdir()
    scripts = {
        "bin/hipcc": HIPCC.format(python=sys.executable),
        "bin/g++": HOST_COMPILER,
    }
    for name, text in scripts.items():
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "lib" / "libamdhip64.so").symlink_to(RUNTIME)
    for library in ("c10_hip", "torch_hip"):
        run("g++", "-shared", "-x", "c++", "/dev/null", "-o", home / "stand-ins" / f"lib{library}.so")
    return home


def environment(clang: int) -> dict[str, str]:
    """In which torch's loader takes its ROCm branch and `clang` compiles."""
    place = home()
    of_clang = {name: place / f"{name}-{clang}" for name in ("objects", "headers")}
    for directory in of_clang.values():
        directory.mkdir(exist_ok=True)
    like_hipcc = "--hip-path=/usr -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false"
    stand_ins = str(place / "stand-ins")
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "ROCM_HOME": str(place),
        "HIP_PLATFORM": "amd",  # hipcc drives nvcc wherever it finds one
        "REHEARSED_CLANG": "/usr/bin/hipcc" if clang == LINKED_ONLY else f"clang++-{clang} {like_hipcc}",
        "REHEARSED_HEADERS": str(of_clang["headers"]),
        "REHEARSED_BINDINGS": str(place / "bindings"),
        "REHEARSED_OBJECTS": str(of_clang["objects"]),
        "REHEARSED_KEEPER": str(KEEPER),
        **{name: os.environ[name] for name in ("KEPT_OBJECTS", "KEPT_COMPILER") if name in os.environ},
        "CXX": str(place / "bin" / "g++"),
        "LIBRARY_PATH": stand_ins,
        "LD_LIBRARY_PATH": stand_ins,
        # hipify moves what it writes out of a path with that word in it.
        "HIPCONV_CACHE_DIR": str(place / f"cache for cuda-{clang}"),
        "PYTHONPATH": str(ROOT / "python"),
        "HOME": str(place),
        "TMPDIR": tempfile.gettempdir(),
        **({"REHEARSED_NOTHING": str(_nothing())} if clang == LINKED_ONLY else {}),
    }


@functools.cache
def _nothing() -> Path:
    """Machine code of no kernel, as hipcc's own clang packs it."""
    source, code = home() / "nothing.cu", home() / "nothing.hipfb"
    source.write_text("")
    run(
        "/usr/bin/hipcc",
        f"--offload-arch={NAMED}",
        "--cuda-device-only",
        "-c",
        source,
        "-o",
        code,
        env=os.environ | {"HIP_PLATFORM": "amd"},
    )
    return code


@functools.cache
def modules(clang: int) -> dict[str, Module]:
    """The modules of `names_of`, built with a clang; RuntimeError with what was said if that fails."""
    flags = "-Wno-unused-command-line-argument" if clang == LINKED_ONLY else "-Wall -Wextra -Werror"
    of_module = {}
    for name in names_of(clang):
        archs = (NAMED,) if clang == LINKED_ONLY else archs_of(name, clang)
        of_module[name] = {
            "REHEARSED_ARCHS": " ".join(archs),
            "REHEARSED_FLAGS": " ".join([*clang_flags(clang, archs), DIALECT, flags]),
        }
    script, variables = SCRIPT.format(calls=CALLS), environment(clang)
    done = subprocess.run(
        [sys.executable, "-c", script, NAMED, json.dumps(of_module)], env=variables, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("hipconv: building ")]  # which it takes a while
    if done.returncode != 0 or said:
        raise RuntimeError(f"clang {clang}: {done.stdout[-2000:]}{done.stderr[-20000:]}")
    found = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        library = Path(said.pop("library"))
        objects = tuple(sorted(Path(variables["REHEARSED_OBJECTS"], library.name).glob("*.o")))
        found[said["name"]] = Module(library=library, objects=objects, **said)
    return found


def module_of(source: Path) -> str:
    """The module that a kernel file belongs to."""
    [name] = [
        entry.name for entry in registry.modules().values() if source.relative_to(ROOT) in registry.sources(entry, "rocm")
    ]
    return name


def code_of(source: Path, arch: str, clang: int) -> CodeObject:
    """The machine code of that module."""
    return modules(clang)[module_of(source)].code(arch)
