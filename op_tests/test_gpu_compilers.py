"""Every kernel file through the GPU compilers, with no GPU: AMD machine code by clang, NVIDIA's by nvcc.

Each file compiles alone, with `-Icsrc/include -std=c++17 -O3` and nothing else of ours. What the compiler reports must hold for
every kernel on every architecture: no scratch memory, no spilled register, no flat memory access. Compilers that are missing fail
the test where CI=true and skip it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
from pathlib import Path
import re
import shutil
import subprocess

import pytest

ROOT = Path(__file__).resolve().parent.parent
KERNELS = sorted((ROOT / "csrc" / "kernels").glob("*.cu"))
AMD_ARCHS = {"gfx90a": 9010, "gfx942": 9402, "gfx1100": 11000, "gfx1151": 11501, "gfx1201": 12001}
BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")  # of Debian's rocm-device-libs
PACKAGES = "clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs hipcc"


def require(*tools: str, remedy: str) -> None:
    """Fail in CI, skip elsewhere, if one of these commands or files is missing."""
    missing = [tool for tool in tools if not (Path(tool).exists() or shutil.which(tool))]
    if missing:
        reason = f"{', '.join(missing)} not found; {remedy}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def run(*command: str | Path, **options) -> str:
    """The command's output; its text in the failure if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def device_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Debian's device bitcode, which stops at gfx940 and gfx1036, with the version files of newer architectures added."""
    require("clang++-19", "llvm-readelf-19", "llvm-objdump-19", str(BITCODE), remedy=f"Debian: apt-get install {PACKAGES}")
    library = tmp_path_factory.mktemp("bitcode")
    for bitcode in BITCODE.glob("*.bc"):
        (library / bitcode.name).symlink_to(bitcode)
    for arch, version in AMD_ARCHS.items():
        place = library / f"oclc_isa_version_{arch.removeprefix('gfx')}.bc"
        if not place.exists():
            text = f'__attribute__((weak, visibility("protected"), address_space(4))) const unsigned __oclc_ISA_version = {version};'
            target = ["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O1", "-c", "-emit-llvm"]
            run("clang-19", "-x", "c", *target, "-o", place, "-", input=text)
    yield library


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
@pytest.mark.parametrize("arch", AMD_ARCHS)
def test_compiles_for_amd_without_scratch_spills_or_flat_accesses(arch: str, source: Path, device_library: Path, tmp_path: Path) -> None:
    code = tmp_path / f"{source.stem}.{arch}.hsaco"
    run(
        "clang++-19", "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}",
        "--hip-path=/usr", f"--rocm-device-lib-path={device_library}", "-D__HIP_PLATFORM_AMD__",
        "-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc' / 'include'}", "-c", source, "-o", code,
    )  # fmt: skip
    notes = run("llvm-readelf-19", "--notes", code)
    kernels = [(name, dict(re.findall(r"\.(\w+):\s+(\d+)", text))) for name, text in _kernels(notes)]
    assert kernels, f"no kernel in {source.name}"
    for name, numbers in kernels:
        assert int(numbers["private_segment_fixed_size"]) == 0, f"{name} uses scratch memory on {arch}"
        assert int(numbers["vgpr_spill_count"]) == 0 and int(numbers["sgpr_spill_count"]) == 0, f"{name} spills registers on {arch}"
        assert int(numbers["group_segment_fixed_size"]) <= 64 * 1024, f"{name} uses more LDS than {arch} has"
    flat = [line.strip() for line in run("llvm-objdump-19", "-d", code).splitlines() if re.search(r"\bflat_", line)]
    assert not flat, f"flat memory access on {arch}: {flat[:3]}"


def _kernels(notes: str) -> Iterator[tuple[str, str]]:
    """Name and text of each kernel's entry in a code object's metadata."""
    listing = notes.partition("amdhsa.kernels:")[2].partition("amdhsa.target:")[0]
    for entry in re.split(r"^  - (?=\.)", listing, flags=re.MULTILINE)[1:]:
        name = re.search(r"^    \.name:\s+(\S+)", entry, flags=re.MULTILINE)
        assert name, entry
        yield name[1], entry


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_compiles_for_nvidia_without_spills(source: Path, tmp_path: Path) -> None:
    require("nvcc", remedy="install the CUDA toolkit's compiler")
    includes = [f"-I{ROOT / 'csrc' / place}" for place in ("include", "compat/cuda")]
    report = run("nvcc", "-arch=sm_90", "-std=c++17", "-O3", "-Xptxas", "-v", *includes, "-c", source, "-o", tmp_path / "code.o")
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert frames and all(frame == ("0", "0", "0") for frame in frames), report


def test_kernel_files_keep_to_the_portable_dialect() -> None:
    """What hipify would rewrite, what only one vendor understands, and what simt cannot run."""
    forbidden = {
        r"<<<|>>>": "launch with hipLaunchKernelGGL",
        r"\bcuda\w*|__CUDACC__": "no CUDA names, comments included: hipify would rewrite the file",
        r"\bstd::(min|max|pow|ceil|floor|exp|log|sqrt|abs)\b": "no std:: math: hipify would rewrite it",
        r"\b__shared__\b": "declare LDS through HIPCONV_SHARED",
        r"__launch_bounds__": "use HIPCONV_LAUNCH_BOUNDS",
        r"__gfx|__GFX|__AMDGCN|__CUDA_ARCH__|__HIP_|__NVCC__": "only arch.h reads a compiler's architecture macros",
        r"\bwarpSize\b|__syncwarp": "use kWaveSize",
    }
    for source in KERNELS:
        text = source.read_text()
        assert "#include <hip/hip_runtime.h>" in text, f"{source.name}: hipify would add the include"
        for pattern, advice in forbidden.items():
            found = re.search(pattern, text)
            assert not found, f"{source.name}: '{found[0]}': {advice}"
        for kernel in re.finditer(r"__global__[^;{(]*", text):
            assert "HIPCONV_LAUNCH_BOUNDS" in kernel[0], f"{source.name}: a kernel without HIPCONV_LAUNCH_BOUNDS: {kernel[0]}"


def test_no_iostreams() -> None:
    """Their numeric facets can come from the C++ library inside torch's wheels: printing a number then crashes (seen with CUDA's)."""
    for source in (ROOT / "csrc").rglob("*.*"):
        found = re.search(r"#include <(iostream|sstream|fstream|iomanip)>", source.read_text())
        assert not found, f"{source.name}: {found[0]}"
