"""Winograd's transforms on AMD cards: all loads of a tile under way at once, packed arithmetic, and registers for several
waves.

pytest op_tests/machine_code/test_winograd_isa.py
"""

from __future__ import annotations

import pytest

from machine_code.amd_code import Kernel, instructions_of
from machine_code.compilers import require_amd_compiler
from machine_code.rocm_build import CLANGS, archs_of, code_of
from support import ROOT

KERNELS = ROOT / "csrc" / "kernels" / "conv2d" / "winograd"
CDNA = ("gfx90a", "gfx942", "gfx950")
PACKED = ("v_pk_", "v_dual_")  # CDNA; RDNA, whose two instructions at once count as one here


def most_loads_in_a_row(kernel: Kernel) -> int:
    """Loads that are issued before the kernel waits for one of them."""
    most = now = 0
    for instruction in instructions_of(kernel.function):
        waits = instruction.kind == "wait" and ("vmcnt" in instruction.text or "loadcnt" in instruction.text)
        now = 0 if waits or instruction.kind == "branch" else now + (instruction.kind == "load")
        most = max(most, now)
    return most


@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang in CLANGS for arch in archs_of("conv2d", clang)])
def test_transforms_load_a_tile_at_once_by_packed_arithmetic(clang: int, arch: str) -> None:
    require_amd_compiler()
    for file, name, loads, instructions in (
        ("input", "conv2d_winograd_input<bf16, 4, true>", 34, 1250),  # a second set of loads is for tiles at the border
        ("output", "conv2d_winograd_output<bf16, 4>", 36, 3400),  # ten activations, for each row of a tile
    ):
        kernel = code_of(KERNELS / f"{file}.cu", arch, clang).kernel(name)
        what = f"{name} on {arch} by clang {clang}"
        of_kernel = instructions_of(kernel.function)
        assert most_loads_in_a_row(kernel) >= loads, f"{what}: {most_loads_in_a_row(kernel)} loads under way, expected {loads}"
        vector = sum(instruction.kind == "valu" for instruction in of_kernel)
        assert vector <= instructions, f"{what}: {vector} vector instructions, expected at most {instructions}"
        assert sum(instruction.mnemonic.startswith(PACKED) for instruction in of_kernel) >= 45, what
        assert kernel.waves >= (4 if arch in CDNA else 8), f"{what}: {kernel.waves} waves fit on a SIMD"
