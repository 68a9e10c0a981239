"""The loops of conv2d's implicit GEMM are matrix instructions, LDS and memory by 16 bytes on AMD cards, and little else.

    python op_tests/test_conv2d_isa.py --arch gfx942,gfx1201

A row is about a step of 128 bytes of each operand row (of f32 without matrix instructions, a quarter of one), as one wave sees
it: matrix instructions; how many of them lie at least between a read of LDS and the wait for it; other vector instructions, LDS
accesses, loads; the cycles of a step by LLVM's model of the card (mca.py); then registers and how many waves fit on a SIMD.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from machine_code.amd_code import AMD_ARCHS, CLANG, PACKAGES, TOOLS, CodeObject, Instruction, Kernel, build, knows, missing
from machine_code.amd_isa import Counts, hot_loops, matrix
from machine_code.compilers import require_amd_compiler
from machine_code.mca import cycles
from machine_code.rocm_build import CLANGS, archs_of, code_of
from support import ROOT
from support.cli import Table, list_of

KERNELS = ROOT / "csrc" / "kernels" / "conv2d" / "implicit_gemm"
CDNA = ("gfx90a", "gfx942", "gfx950")
SMALL = [(128, 64), (64, 64)]
TILES = {"bf16": [(128, 128), *SMALL], "f16": [(128, 128), *SMALL], "float": SMALL, "tf32": SMALL}
FORMS = {"vectors": 0, "elements": 1}
THREADS = 256
# Vector instructions of a step, at most, by vectors and by elements: addresses, and zeros for what is outside the image.
VALU = {(128, 128): (80, 190), (128, 64): (80, 190), (64, 64): (60, 130)}
# Waves are those on a SIMD of CDNA; RDNA has half the SIMDs and twice the waves of half the lanes.
WAVES = {(128, 128): 2, (128, 64): 2, (64, 64): 4}
# The atoms along filters of a wave, on CDNA and on RDNA: a row of them is multiplied while the next operands come from LDS.
COLUMNS = {(128, 128): (2, 2), (128, 64): (1, 2), (64, 64): (1, 1)}


class Step(NamedTuple):
    tile: tuple[int, int]
    kernel: Kernel
    counts: Counts


def source_of(dtype: str, form: str) -> Path:
    return KERNELS / f"{ {'float': 'f32', 'tf32': 'tf32'}.get(dtype, form) }.cu"


def has(arch: str, dtype: str) -> bool:
    """Tell whether the card has instructions for it."""
    return dtype != "tf32" or arch == "gfx942"


def steps(code: CodeObject, arch: str, dtype: str, form: str) -> Iterator[Step]:
    """The hot loop of each tile's kernel."""
    for tile in TILES[dtype]:
        kernel = code.kernel(f"conv2d_implicit_gemm_kernel<{dtype}, {tile[0]}, {tile[1]}, {FORMS[form]}>")
        work = None if dtype == "float" and arch not in CDNA else matrix
        yield Step(tile, kernel, hot_loops(kernel, work=work or multiplications)[0].dearest)


def multiplications(instruction: Instruction) -> int:
    """Work of f32 where there is no matrix instruction for it; a dual-issue instruction is one name after another."""
    return sum("fmac_f32" in name or "fma_f32" in name for name in instruction.mnemonic.split("::"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TILES)
@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang in CLANGS for arch in archs_of("conv2d", clang)])
def test_steps_are_matrix_instructions_and_wide_accesses(clang: int, arch: str, dtype: str, form: str) -> None:
    require_amd_compiler()
    if not has(arch, dtype):
        pytest.skip(f"{arch} has no instructions for {dtype}")
    for tile, kernel, counts in steps(code_of(source_of(dtype, form), arch, clang), arch, dtype, form):
        what = f"{kernel.name} on {arch} by clang {clang}"
        assert counts.of("lds") == counts.of("lds", 16) > 0, f"{what}: LDS accesses of less than 16 bytes"
        assert counts.of("store") == counts.of("atomic") == 0, what
        waves = WAVES[tile] if arch in CDNA else 4 * WAVES[tile] // (2 if tile == (64, 64) else 1)
        assert kernel.waves >= waves, f"{what}: {kernel.waves} waves fit on a SIMD, expected {waves}"
        if dtype == "float" and arch not in CDNA:  # the loop is one within the step
            continue
        products = tile[0] * tile[1] * (32 if dtype in ("float", "tf32") else 64)  # of a step
        depth = {"float": 2, "tf32": 4}[dtype] if dtype in ("float", "tf32") else 16 if arch == "gfx950" else 8
        each = 32 * 32 * depth if arch in CDNA else 16 * 16 * 16
        assert counts.of("matrix") == products // each // (THREADS // kernel.wave_size), what
        of_atom = (8 if dtype in ("float", "tf32") else 16) // depth if arch in CDNA else 1  # of 16 bytes of both operands
        row = COLUMNS[tile][arch not in CDNA] * of_atom
        ahead = counts.products_under_reads()
        assert ahead >= row, f"{what}: {ahead} products between a read of LDS and the wait for it, expected a row of {row}"
        chunks = (tile[0] + tile[1]) * 8 // THREADS  # of 16 bytes, that a thread stages
        rounding = 4 * 4 * chunks if dtype == "tf32" else 0
        assert counts.valu <= VALU[tile][FORMS[form]] + rounding, f"{what}: {counts.valu} vector instructions"
        assert counts.of("lds") > chunks, what
        if form == "vectors":
            assert counts.of("load") == counts.of("load", 16) == chunks, (
                f"{what}: {counts.of('load')} loads, expected {chunks} of 16 bytes"
            )
            assert counts.loads_in_flight(16) >= chunks, f"{what}: not all loads of a step are under way at once"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=list_of(str), default=list(AMD_ARCHS), help=f"of {', '.join(AMD_ARCHS)}; all by default")
    parser.add_argument(
        "--clang", type=int, choices=(19, 22), default=CLANG, help=f"version; default {CLANG}, which does not know gfx950"
    )
    arguments = parser.parse_args()
    if lacking := missing(*TOOLS):
        parser.error(f"{', '.join(lacking)} not found; Debian: apt-get install {PACKAGES}")
    titles = ("kernel", "matrix", "ahead", "VALU", "LDS", "loads", "SALU", "waits", "all", "cycles", "VGPR", "LDS_B", "waves")
    table = Table([("arch", 8), *((title, 32 if title == "kernel" else 6) for title in titles)])
    for arch in filter(functools.partial(knows, arguments.clang), arguments.arch):
        for dtype in TILES:
            for form in FORMS if has(arch, dtype) else ():
                for tile, kernel, counts in steps(build(source_of(dtype, form), arch, arguments.clang), arch, dtype, form):
                    kinds = [counts.of(kind) for kind in ("matrix", "valu", "lds", "load", "salu", "wait")]
                    kinds.insert(1, counts.products_under_reads() if kinds[0] else 0)
                    numbers = [kernel.numbers[name] for name in ("vgpr_count", "group_segment_fixed_size")]
                    name = f"{dtype} {tile[0]}x{tile[1]} {form}"
                    took = cycles(counts.instructions, arch, arguments.clang)
                    step = "-" if took is None else f"{took:.0f}"
                    table.row(arch, name, *kinds, len(counts.instructions), step, *numbers, kernel.waves)
