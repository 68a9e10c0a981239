"""Every kernel file through the GPU compilers, with no GPU: AMD machine code by clang, NVIDIA's by nvcc.

Each file compiles alone, with `-Icsrc/include -std=c++17 -O3` and nothing else of ours (for NVIDIA, FOR_NVIDIA). What the compiler
reports must hold for every kernel on every architecture that it is compiled for (`amd_code.archs_of`): no scratch memory, no spilled
register, no flat memory access. nvcc compiles what is tuned for its cards so, and instantiates the rest without optimizing.
HIPCONV_TEST_ARCHS=all compiles everything for everything, the host's part for NVIDIA included. Compilers that are missing fail the test
where CI=true and skip it elsewhere.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import re

import pytest

from amd_code import ALL_ARCHS, PACKAGES, ROOT, TOOLS, archs_of, build_all, missing, run

KERNELS = sorted((ROOT / "csrc" / "kernels").glob("*.cu"))


def require(*tools: str, remedy: str) -> None:
    """Fail in CI, skip elsewhere, if one of these commands or files is missing."""
    if lacking := missing(*tools):
        reason = f"{', '.join(lacking)} not found; {remedy}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def require_amd_compiler() -> None:
    require(*TOOLS, remedy=f"Debian: apt-get install {PACKAGES}")


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_compiles_for_amd_without_scratch_spills_or_flat_accesses(source: Path) -> None:
    require_amd_compiler()
    archs = archs_of(source)
    for arch, code in zip(archs, build_all(source, archs), strict=True):
        assert code.kernels, f"no kernel in {source.name}"
        for kernel in code.kernels:
            name, numbers = kernel.name, kernel.numbers
            assert numbers["private_segment_fixed_size"] == 0, f"{name} uses scratch memory on {arch}"
            assert numbers["vgpr_spill_count"] == 0 and numbers["sgpr_spill_count"] == 0, f"{name} spills registers on {arch}"
            assert numbers["group_segment_fixed_size"] <= 64 * 1024, f"{name} uses more LDS than {arch} has"
        flat = [line.strip() for line in code.disassembly.splitlines() if re.search(r"\bflat_", line)]
        assert not flat, f"flat memory access on {arch}: {flat[:3]}"


# What nvcc compiles whole in every run: files whose names begin so.
TUNED_FOR_NVIDIA = (
    "causal_conv1d_fwd_tile",
    "causal_conv1d_fwd_vector",
    "causal_conv1d_update_step",
    "causal_conv1d_varlen_walk",
    "conv2d_relaid",
    "conv2d_warpgroup_gemm",
)

FOR_NVIDIA = ("-arch=sm_90a", "-DHIPCONV_EARLY_LAUNCHES", "-std=c++17")

# Of these also the host's part, as g++ reads it, in half of the time of each: what launches them is not what simt has.
WITH_HOST_PART = ("conv2d_relaid.cu", "conv2d_warpgroup_gemm.cu")


def compiled_whole(source: Path) -> bool:
    return ALL_ARCHS or source.name.startswith(TUNED_FOR_NVIDIA)


@pytest.fixture(scope="module")
def nvidia_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """What nvcc says of each kernel file, compiled side by side."""
    require("nvcc", remedy="install the CUDA toolkit's compiler")
    objects = tmp_path_factory.mktemp("sm_90")
    includes = [f"-I{ROOT / 'csrc' / place}" for place in ("include", "compat/cuda")]

    def compiled(source: Path) -> str:
        if not compiled_whole(source):
            how = ["-Xcicc", "-O0", "-ptx"]  # without the assembler, and unoptimized
        elif ALL_ARCHS or source.name in WITH_HOST_PART:
            how = ["-O3", "-Xptxas", "-v", "-Xcompiler", "-fsyntax-only", "-c"]
        else:
            how = ["-O3", "-Xptxas", "-v", "-cubin"]
        return run("nvcc", *FOR_NVIDIA, *how, *includes, source, "-o", objects / f"{source.stem}.o")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(zip(KERNELS, threads.map(compiled, KERNELS), strict=True))


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_compiles_for_nvidia(source: Path, nvidia_reports: dict[Path, str]) -> None:
    assert source in nvidia_reports  # nvcc's errors are raised when they are made


@pytest.mark.parametrize("source", [source for source in KERNELS if compiled_whole(source)], ids=lambda path: path.name)
def test_spills_nothing_on_nvidia(source: Path, nvidia_reports: dict[Path, str]) -> None:
    report = nvidia_reports[source]
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert frames and all(frame == ("0", "0", "0") for frame in frames), report
    assert not re.search(r"\(C75\d\d\)", report), (
        f"the assembler puts waits between the products of warpgroups, or does them one by one: {report}"
    )


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
