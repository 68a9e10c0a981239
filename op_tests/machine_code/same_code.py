"""Tell whether two trees compile to the same machine code, which a change of text alone must not change.

    git worktree add ../before HEAD~3
    python op_tests/same_machine_code.py ../before . --arch gfx942,sm_90a
    python op_tests/same_machine_code.py ../before . --file backward/vector.cu backward/whole.cu

Every kernel of the files is compared by its name, wherever it stands: for AMD what clang makes of it, for NVIDIA the assembly
of the machine code or, where cuobjdump is not installed, nvcc's PTX. Numbers of labels are not compared. Exits with 1 if a
kernel differs, is gone or is new.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import re
import shutil
import tempfile

from machine_code.amd_code import CLANG, clang_flags, device_library, run
from support.cli import list_of

AMD_FLAGS = ("-D__HIP_PLATFORM_AMD__", "-mllvm", "-amdgpu-early-inline-all=true", "-mllvm", "-amdgpu-function-calls=false")
COMMON = ("-std=c++17", "-O3")


def amd_kernels(tree: Path, source: Path, arch: str, out: Path) -> dict[str, str]:
    run(
        f"clang++-{CLANG}",
        "-x",
        "hip",
        "--offload-device-only",
        "--no-gpu-bundle-output",
        f"--offload-arch={arch}",
        "--hip-path=/usr",
        *clang_flags(CLANG, [arch]),
        *AMD_FLAGS,
        *COMMON,
        f"-I{tree / 'csrc/include'}",
        "-S",
        source,
        "-o",
        out,
    )
    found = {}
    for function in re.finditer(r"^(\w+):[^\n]*\n(.*?)^\.Lfunc_end\d+:", out.read_text(), re.MULTILINE | re.DOTALL):
        body = re.sub(r"[ \t]*(;.*)?$", "", function[2], flags=re.MULTILINE)
        if "s_endpgm" in body:
            found[function[1]] = re.sub(r"\.LBB\d+_", ".LBB_", body)
    return found


def nvidia_kernels(tree: Path, source: Path, arch: str, out: Path) -> dict[str, str]:
    assembled = shutil.which("cuobjdump")
    includes = (f"-I{tree / 'csrc' / place}" for place in ("include", "compat/cuda"))
    form = "-cubin" if assembled else "-ptx"
    run("nvcc", f"-arch={arch}", "-DHIPCONV_EARLY_LAUNCHES", *COMMON, form, *includes, source, "-o", out)
    if assembled:
        parts = re.split(r"\n\s*Function : ", run("cuobjdump", "-sass", out))[1:]
        return {name.strip(): re.sub(r"\.L_x_\d+", ".L", body) for name, _, body in (part.partition("\n") for part in parts)}
    parts = re.split(r"^(?=\.(?:visible|weak) \.entry)", out.read_text(), flags=re.MULTILINE)[1:]
    kernels = ((re.search(r"\.entry (\w+)", part), part) for part in parts)
    return {name[1]: re.sub(r"\$L__BB\d+_", "$L_", re.sub(r"//.*", "", part)) for name, part in kernels if name}


def kernels_of(tree: Path, endings: Iterable[str], arch: str, directory: Path) -> dict[str, str]:
    """The code of each kernel, by its mangled name, of the files whose paths end so; of all files by default."""
    sources = sorted((tree / "csrc" / "kernels").rglob("*.cu"))
    if endings:
        sources = [source for source in sources if str(source).endswith(tuple(endings))]
    of_source = amd_kernels if arch.startswith("gfx") else nvidia_kernels

    def compiled(numbered: tuple[int, Path]) -> dict[str, str]:
        return of_source(tree, numbered[1], arch, directory / f"{numbered[0]}.{arch}")

    directory.mkdir(exist_ok=True)
    found: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for kernels in threads.map(compiled, enumerate(sources)):
            found |= kernels
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of hipconv")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--arch", type=list_of(str), default=["gfx942", "sm_90a"], help="one or several; default gfx942,sm_90a")
    parser.add_argument("--file", nargs="+", default=[], metavar="ENDING", help="kernel files whose paths end so; default: all")
    options = parser.parse_args()
    changed = 0
    with tempfile.TemporaryDirectory(prefix="hipconv-same-code-") as place:
        for arch in options.arch:
            if arch.startswith("gfx"):
                device_library()  # once, before the threads
            before, after = (
                kernels_of(getattr(options, tree).resolve(), options.file, arch, Path(place, tree))
                for tree in ("before", "after")
            )
            differ = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
            gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
            print(f"{arch}: {len(before)} kernels, {len(differ)} differ, {len(gone)} are gone, {len(new)} are new", flush=True)
            for what, names in (("differs", differ), ("is gone", gone), ("is new", new)):
                for name in names:
                    sizes = (str(len(code[name].splitlines())) for code in (before, after) if name in code)
                    print(f"  {run('c++filt', name).strip()} {what} ({' -> '.join(sizes)} lines)")
            changed += len(differ) + len(gone) + len(new)
    return int(changed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
