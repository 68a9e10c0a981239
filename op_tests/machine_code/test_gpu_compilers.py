"""Every kernel through the GPU compilers, with no GPU: AMD machine code by clang, NVIDIA's by nvcc.

For AMD, what stands in the built modules (rocm_build.py) must hold for every kernel on every architecture, by every clang: no
scratch memory, no spilled register (but for a few scalar ones on gfx90a), no flat memory access, and no shift that leaks
(amd_shifts.py). nvcc compiles the files
that are above all for its cards, each alone, to machine code. HIPCONV_TEST_ARCHS=all compiles everything for everything, the
host's part for NVIDIA included. Compilers that are missing fail the test where CI=true and skip it elsewhere.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import re

import pytest

from machine_code import rocm_build
from machine_code.amd_code import LDS_OF_A_BLOCK, instructions_of, run
from machine_code.amd_shifts import SHIFT, leaking_shifts
from machine_code.compilers import require, require_amd_compiler
from support import ROOT
from support.backends import EVERYTHING
from hipconv import registry

KERNELS = sorted((ROOT / "csrc" / "kernels").rglob("*.cu"))

# gfx90a reserves more scalar registers than gfx942, so that some kernels keep a few in lanes of a vector register, which is no
# memory. A move from there is a vector instruction, and those of hot loops have limits (test_amd_isa.py).
IN_LANES = {"gfx90a": 6}


@pytest.mark.parametrize(
    ("clang", "arch", "module"),
    [
        (clang, arch, name)
        for clang in rocm_build.CLANGS
        for name in registry.modules()
        for arch in rocm_build.archs_of(name, clang)
    ],
)
def test_amd_code_has_no_scratch_spills_flat_accesses_or_leaking_shifts(clang: int, arch: str, module: str) -> None:
    require_amd_compiler()
    code = rocm_build.modules(clang)[module].code(arch)
    assert code.kernels
    for kernel in code.kernels:
        name, numbers = kernel.name, kernel.numbers
        assert numbers["private_segment_fixed_size"] == 0, f"{name} uses scratch memory on {arch}"
        assert numbers["vgpr_spill_count"] == 0, f"{name} spills registers on {arch}"
        assert numbers["sgpr_spill_count"] <= IN_LANES.get(arch, 0), f"{name} spills scalar registers on {arch}"
        assert numbers["group_segment_fixed_size"] <= LDS_OF_A_BLOCK[arch], f"{name} uses more LDS than {arch} has"
        assert numbers["max_flat_workgroup_size"] <= 1024, f"{name} may have larger blocks than {arch} has"
        if SHIFT.search(kernel.function) and (leaks := leaking_shifts(instructions_of(kernel.function))):
            pytest.fail(f"{name} on {arch}: '{leaks[0][1].text}' uses both halves of '{leaks[0][0].text}'")
    lines = code.disassembly.splitlines()
    flat = [line.strip() for line in lines if "flat_" in line and re.search(r"\bflat_", line)]
    assert not flat, f"flat memory access on {arch}: {flat[:3]}"


def test_all_kernel_files_belong_to_a_module() -> None:
    built = {source for module in registry.modules().values() for source in registry.sources(module, "rocm")}
    assert {file.relative_to(ROOT) for file in KERNELS} == {source for source in built if source.suffix == ".cu"}


FOR_NVIDIA = ("-arch=sm_90a", "-DHIPCONV_EARLY_LAUNCHES", "-std=c++17", "-O3")

# Two families have kernels of NVIDIA's cards alone, which neither clang nor simt compiles as they are. nvcc compiles these two
# files of theirs in every run, and all others nightly: those of conv3d, whose mainloop is conv2d's, and those of conv2d for f16
# and float32, and that gather x or read it in planes, take as long and differ from them in little.
IN_EVERY_RUN = [ROOT / "csrc/kernels/conv2d/warpgroup_gemm" / name for name in ("bf16.cu", "warpgroup_gemm.cu")]
FOR_NVCC = KERNELS if EVERYTHING else IN_EVERY_RUN


@pytest.fixture(scope="module")
def nvidia_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Return what nvcc says of each kernel file, compiled side by side."""
    require("nvcc", remedy="install the CUDA toolkit's compiler")
    objects = tmp_path_factory.mktemp("sm_90")
    includes = [f"-I{ROOT / 'csrc' / place}" for place in ("include", "compat/cuda")]

    def compiled(source: Path) -> str:
        out = objects / f"{source.parent.name}-{source.stem}.o"
        # The host's part as g++ reads it, which takes half of the time: what launches these kernels is not what simt has.
        return run("nvcc", *FOR_NVIDIA, "-Xptxas", "-v", "-Xcompiler", "-fsyntax-only", *includes, "-c", source, "-o", out)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(zip(FOR_NVCC, threads.map(compiled, FOR_NVCC), strict=True))


@pytest.mark.parametrize("source", FOR_NVCC, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_compiles_for_nvidia_and_spills_nothing(source: Path, nvidia_reports: dict[Path, str]) -> None:
    report = nvidia_reports[source]
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert frames or not re.search(r"HIPCONV_LAUNCH|hipLaunchKernel", source.read_text()), f"no kernel: {report}"
    assert all(frame == ("0", "0", "0") for frame in frames), report
    assert not re.search(r"\(C75\d\d\)", report), (
        f"the assembler puts waits between the products of warpgroups, or does them one by one: {report}"
    )


# Found in a kernel file or a header that kernels include, and what to write instead.
FORBIDDEN = {
    r"<<<|>>>": "launch with hipLaunchKernelGGL",
    r"\bcuda\w*|__CUDACC__": "no CUDA names, comments included: hipify would rewrite the file",
    r"\bstd::(min|max|pow|ceil|floor|exp|log|sqrt|abs)\b": "no std:: math: hipify would rewrite it",
    r"\b__shared__\b": "declare LDS through HIPCONV_SHARED",
    r"__launch_bounds__": "use HIPCONV_LAUNCH_BOUNDS",
    r"__gfx|__GFX|__AMDGCN|__CUDA_ARCH__|__HIP_|__NVCC__": "only the headers in ALLOWED read a compiler's architecture macros",
    r"\bwarpSize\b|__syncwarp": "use kWaveSize",
}
# Headers that give kernels one name for what each compiler calls otherwise.
ALLOWED = tuple(
    ROOT / "csrc" / "include" / name for name in ("device/arch.h", "device/amd.h", "device/nvidia.h", "matrix/tma.h")
)
HEADERS = sorted(header for place in ("kernels", "include") for header in (ROOT / "csrc" / place).rglob("*.h"))


def found_in(source: Path) -> dict[str, str]:
    """Return what stands in a file and is forbidden, and what to write instead."""
    text = source.read_text()
    found = {match[0]: advice for pattern, advice in FORBIDDEN.items() if (match := re.search(pattern, text))}
    for kernel in re.finditer(r"__global__[^;{(]*", text):
        if "HIPCONV_LAUNCH_BOUNDS" not in kernel[0]:
            found[kernel[0]] = "a kernel without HIPCONV_LAUNCH_BOUNDS"
    return found


def test_kernel_files_keep_to_the_portable_dialect() -> None:
    """No kernel, nor a header that it includes, has what hipify would rewrite, only one vendor understands,
    or simt cannot run.
    """
    assert len(KERNELS) > 20 and len(HEADERS) > 20
    for source in [*KERNELS, *HEADERS]:
        found = found_in(source)
        if source in ALLOWED:
            assert found, f"{source.relative_to(ROOT)} needs no exception"
        else:
            assert not found, f"{source.relative_to(ROOT)}: {found}"
    assert set(ALLOWED) <= set(HEADERS)
    for source in KERNELS:
        assert "#include <hip/hip_runtime.h>" in source.read_text(), f"{source.relative_to(ROOT)}: hipify would add the include"


@pytest.mark.parametrize(
    "text",
    [
        "kernel<<<grid, block>>>(x);", "// as in cuda", "x = std::max(a, b);", "__shared__ float a[4];",
        "#if defined(__gfx942__)",
        "int lane = threadIdx.x % warpSize;", "template <int n> __global__ void kernel(float* x) {}",
    ],
)  # fmt: skip
def test_the_check_of_the_dialect_finds_each_word(tmp_path: Path, text: str) -> None:
    source = tmp_path / "part.h"
    source.write_text(f"#pragma once\n{text}\n")
    assert len(found_in(source)) == 1
    source.write_text("#pragma once\ntemplate <int n> __global__ void HIPCONV_LAUNCH_BOUNDS(256, 1) kernel(float* x) {}\n")
    assert not found_in(source)


def test_no_iostreams() -> None:
    """Their numeric facets can come from the C++ library inside torch's wheels:
    printing a number then crashes (seen with CUDA's).
    """
    for source in (ROOT / "csrc").rglob("*.*"):
        found = re.search(r"#include <(iostream|sstream|fstream|iomanip)>", source.read_text())
        assert not found, f"{source.name}: {found[0]}"
