"""conv3d's loops on AMD cards: matrix instructions and 16 bytes an access. Its warpgroups are NVIDIA's alone.

pytest op_tests/machine_code/test_conv3d_isa.py
"""

from __future__ import annotations

import itertools

import pytest

from machine_code.amd_code import Instruction, instructions_of
from machine_code.amd_isa import hot_loops, matrix
from machine_code.compilers import require_amd_compiler
from machine_code.rocm_build import CLANGS, archs_of, code_of
from support import ROOT

KERNELS = ROOT / "csrc" / "kernels" / "conv3d"
CDNA = ("gfx90a", "gfx942", "gfx950")
THREADS = 256
VALU = {True: 200, False: 500}  # vector instructions of a step, at most, by vectors and by elements
GFX90A = 20  # more of them there: each of the 11 to 13 additions to an address is two instructions, which is one on gfx942
WIDE = ("global_load_dwordx4", "global_load_b128")


@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang in CLANGS for arch in archs_of("conv3d", clang)])
def test_a_step_of_the_implicit_gemm_is_matrix_instructions_and_wide_loads(clang: int, arch: str) -> None:
    """The code has one step, and the loads of the first and of the next one."""
    require_amd_compiler()
    code = code_of(KERNELS / "implicit_gemm" / "vectors.cu", arch, clang)
    for tile_n in (128, 96, 32):
        kernel = code.kernel(f"conv3d_implicit_gemm_kernel<bf16, {tile_n}, true>")
        what = f"{kernel.name} on {arch} by clang {clang}"
        instructions = instructions_of(kernel.function)
        each = 32 * 32 * (16 if arch == "gfx950" else 8) if arch in CDNA else 16 * 16 * 16
        products = 128 * tile_n * 64 // (THREADS // kernel.wave_size)
        assert sum(i.kind == "matrix" for i in instructions) == products // each, what
        chunks = (128 + tile_n) * 8 // THREADS  # of 16 bytes, that a thread loads
        assert sum(i.mnemonic in WIDE for i in instructions) >= 2 * chunks, what


@pytest.mark.parametrize("dtype", ["float", "tf32"])
@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang in CLANGS for arch in archs_of("conv3d", clang)])
def test_a_step_of_float32_is_matrix_instructions_or_multiplications(clang: int, arch: str, dtype: str) -> None:
    """MFMA of float32 on CDNA, of TF32 on gfx942; elsewhere a loop of FMAs within the step, from 16 bytes an access of LDS."""
    require_amd_compiler()
    if dtype == "tf32" and arch != "gfx942":
        pytest.skip(f"{arch} has no instructions for {dtype}")
    code = code_of(KERNELS / "implicit_gemm" / f"{ {'float': 'f32'}.get(dtype, dtype) }.cu", arch, clang)
    for tile_n, by_vectors in itertools.product((96, 64, 32), (True, False)):
        kernel = code.kernel(f"conv3d_implicit_gemm_kernel<{dtype}, {tile_n}, {str(by_vectors).lower()}>")
        what = f"{kernel.name} on {arch} by clang {clang}"
        products = 128 * tile_n * 32 // (THREADS // kernel.wave_size)  # of a step, by a wave
        work = matrix if arch in CDNA else multiplications
        counts = hot_loops(kernel, work=work)[0].dearest
        assert counts.of("lds") == counts.of("lds", 16) > 0, f"{what}: LDS accesses of less than 16 bytes"
        if arch not in CDNA:
            phases = products // kernel.wave_size // 4  # a quarter of a step: two of its eight chunks
            assert sum(map(multiplications, counts.instructions)) == phases, what
            assert counts.valu <= phases * 5 // 4, f"{what}: {counts.valu} vector instructions for {phases} multiplications"
            continue
        each = 32 * 32 * {"float": 2, "tf32": 4}[dtype]
        assert counts.of("matrix") == products // each, what
        most = VALU[by_vectors] + (16 * (128 + tile_n) * 8 // THREADS if dtype == "tf32" else 0)  # four an element to round
        most += GFX90A * (arch == "gfx90a")
        assert counts.valu <= most, f"{what}: {counts.valu} vector instructions, expected up to {most}"


def multiplications(instruction: Instruction) -> int:
    """A dual-issue instruction is one name after another."""
    return sum("fmac_f32" in name or "fma_f32" in name for name in instruction.mnemonic.split("::"))


@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang in CLANGS for arch in archs_of("conv3d", clang)])
def test_few_filters_read_x_once_and_multiply_from_registers(clang: int, arch: str) -> None:
    """A step of 32 channels, of which four are in the code: three taps of time by 32 columns by a wave's pixels."""
    require_amd_compiler()
    kernel = code_of(KERNELS / "few_filters" / "few_filters.cu", arch, clang).kernel("conv3d_few_filters_kernel<bf16>")
    what = f"{kernel.name} on {arch} by clang {clang}"
    instructions = instructions_of(kernel.function)
    each = 16 * 16 * (32 if arch == "gfx950" else 16)
    steps = 4 * 3 * 32 * 32 * kernel.wave_size // each
    assert sum(instruction.kind == "matrix" for instruction in instructions) == steps, what
    wide = [i for i in instructions if i.mnemonic in WIDE]
    # all steps of x before the walk and within it; RDNA 3 has the chunks of a step twice, in both halves of a wave
    of_step = 8 if arch.startswith("gfx11") else 4
    assert len(wide) >= 5 * of_step, f"{what}: {len(wide)} loads of 16 bytes"
