"""The counter of instructions, on code whose counts are known: loops, guards, masks, shifts,
and the classes of instructions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from machine_code.amd_code import AMD_ARCHS, Instruction, Kernel, bytes_of, functions_of, instructions_of, kind_of, run
from machine_code.amd_isa import HotLoop, hot_loops, matrix
from machine_code.amd_masks import SCC, Masks, State
from machine_code.amd_shifts import leaking_shifts
from machine_code.compilers import require_amd_compiler

pytestmark = pytest.mark.usefixtures("amd_compiler")


@pytest.fixture(scope="module")
def amd_compiler() -> None:
    require_amd_compiler()


def assembled(arch: str, text: str, tmp_path: Path) -> Kernel:
    """A kernel of these instructions."""
    source, code = tmp_path / "probe.s", tmp_path / "probe.o"
    source.write_text(f"probe:\n{text}\n  s_endpgm\n")
    run("clang-19", "-x", "assembler", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", source, "-o", code)
    function = functions_of(run("llvm-objdump-19", "-d", code))["probe"]
    return Kernel("probe", arch, {"wavefront_size": AMD_ARCHS[arch].wave}, function)


def loop_of(arch: str, text: str, tmp_path: Path) -> HotLoop:
    """The one hot loop of these instructions."""
    [loop] = hot_loops(assembled(arch, text, tmp_path))
    return loop


GFX9_ARMS = """
.Lloop:
  v_cmp_gt_u32 vcc, s4, v0
  s_and_saveexec_b64 s[0:1], vcc          // a guarded load
  s_cbranch_execz .Lloaded
  v_lshlrev_b32 v9, 4, v0
  global_load_dwordx4 v[4:7], v9, s[2:3]
.Lloaded:
  s_or_b64 exec, exec, s[0:1]
  v_cmp_lt_f32 vcc, v1, v2
  s_and_saveexec_b64 s[0:1], vcc          // one arm of three, or one of five
  s_xor_b64 s[0:1], exec, s[0:1]
  s_cbranch_execz .Lother
  .rept 3
  v_add_f32 v1, v1, v2
  .endr
.Lother:
  s_andn2_saveexec_b64 s[0:1], s[0:1]
  s_cbranch_execz .Ljoined
  .rept 5
  v_mul_f32 v1, v1, v2
  .endr
.Ljoined:
  s_or_b64 exec, exec, s[0:1]
  s_cbranch_scc0 .Lfinish                   // nothing is stored on the way out
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Lloop
.Lfinish:
  .rept 20
  v_exp_f32 v1, v1
  .endr
"""

GFX11_ARMS = """
.Lloop:
  s_mov_b32 s0, exec_lo
  v_cmpx_gt_u32 s4, v0
  s_cbranch_execz .Lloaded
  v_lshlrev_b32 v9, 4, v0
  global_load_b128 v[4:7], v9, s[2:3]
.Lloaded:
  s_or_b32 exec_lo, exec_lo, s0
  v_cmp_lt_f32 vcc_lo, v1, v2
  s_and_saveexec_b32 s0, vcc_lo
  s_xor_b32 s0, exec_lo, s0
  s_cbranch_execz .Lother
  .rept 3
  v_dual_add_f32 v1, v1, v2 :: v_dual_mul_f32 v8, v3, v5
  .endr
.Lother:
  s_and_not1_saveexec_b32 s0, s0
  s_cbranch_execz .Ljoined
  .rept 5
  v_mul_f32 v1, v1, v2
  .endr
.Ljoined:
  s_or_b32 exec_lo, exec_lo, s0
  global_store_b128 v9, v[4:7], s[6:7]
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Lloop
"""


@pytest.mark.parametrize(("arch", "text"), [("gfx942", GFX9_ARMS), ("gfx1100", GFX11_ARMS)])
def test_guards_are_passed_and_one_arm_of_an_if_is_taken(arch: str, text: str, tmp_path: Path) -> None:
    loop = loop_of(arch, text, tmp_path)
    for counts, arm in ((loop.cheapest, 3), (loop.dearest, 5)):
        assert counts.valu == 3 + arm, "two comparisons, an address, one arm"
        assert (counts.of("load", 16), counts.of("store", 16), counts.transcendental) == (1, 1, 0)
    assert loop.cheapest.lane_operations == (6 if arch == "gfx942" else 9)


def test_a_flag_that_chose_one_block_keeps_the_other_out(tmp_path: Path) -> None:
    """Uniform alternatives as the compiler lays them out: one block sets a flag that the next one asks."""
    text = """
.Lloop:
  s_mov_b64 s[8:9], -1
  s_cmp_eq_u32 s4, 2
  s_cbranch_scc0 .Lask
  .rept 4
  v_add_f32 v1, v1, v2
  .endr
  s_mov_b64 s[8:9], 0
.Lask:
  s_andn2_b64 vcc, exec, s[8:9]
  s_cbranch_vccnz .Ldone
  .rept 6
  v_mul_f32 v1, v1, v2
  .endr
.Ldone:
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Lloop
"""
    loop = loop_of("gfx942", text, tmp_path)
    assert (loop.cheapest.valu, loop.dearest.valu) == (4, 6)


def test_stores_without_lanes_are_no_work(tmp_path: Path) -> None:
    text = """
.Lloop:
  s_mov_b64 s[0:1], exec
  s_mov_b64 exec, 0
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_mov_b64 exec, s[0:1]
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s4, s4, 1
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 .Lloop
"""
    assert loop_of("gfx942", text, tmp_path).work == 16


def test_hot_loops_are_counted_by_themselves_and_the_cheapest_comes_first(tmp_path: Path) -> None:
    text = """
  v_mov_b32 v1, 0
.Louter:
  v_mov_b32 v2, 0
.Ledge:
  .rept 4
  v_add_f32 v1, v1, v2
  .endr
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s8, s8, 1
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 .Ledge
.Linner:
  v_add_f32 v1, v1, v2
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Linner
  s_sub_u32 s4, s4, 1
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 .Louter
"""
    loops = hot_loops(assembled("gfx942", text, tmp_path))
    assert [(loop.is_loop, loop.work, loop.cheapest.valu, len(loop.cheapest.instructions)) for loop in loops] == [
        (True, 16, 1, 5),
        (True, 16, 4, 8),
    ]


def test_a_loop_inside_is_counted_once_and_said_so(tmp_path: Path) -> None:
    text = """
.Louter:
  s_mov_b32 s5, 4
.Ltaps:
  v_add_f32 v1, v1, v2
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Ltaps
  global_store_dwordx4 v9, v[4:7], s[6:7]
  s_sub_u32 s4, s4, 1
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 .Louter
"""
    loop = loop_of("gfx942", text, tmp_path)
    assert loop.nested and loop.cheapest.valu == 1


def test_matrix_loops_are_found_by_their_matrix_instructions(tmp_path: Path) -> None:
    text = """
.Lloop:
  ds_read_b128 v[0:3], v16
  ds_read2_b64 v[4:7], v16 offset1:1
  ds_read_b64 v[8:9], v16
  s_barrier
  v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[4:5], a[0:15]
  v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[6:7], a[0:15]
  v_add_u32 v16, 32, v16
  s_sub_u32 s4, s4, 1
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 .Lloop
  global_store_dwordx4 v17, v[0:3], s[6:7]
"""
    counts = hot_loops(assembled("gfx942", text, tmp_path), work=matrix)[0].cheapest
    assert (counts.by_mnemonic["v_mfma_f32_32x32x8_f16"], counts.by_mnemonic["ds_read_b128"]) == (2, 1)
    assert (counts.of("matrix"), counts.of("lds", 16), counts.of("lds"), counts.of("barrier"), counts.valu) == (2, 2, 3, 1, 1)


@pytest.mark.parametrize(
    ("arch", "wait", "in_flight"),
    [
        ("gfx942", "s_waitcnt vmcnt(3)", 4),
        ("gfx942", "s_waitcnt vmcnt(0)", 2),
        ("gfx1100", "s_waitcnt vmcnt(3) lgkmcnt(0)", 5),
        ("gfx1201", "s_wait_loadcnt 0x3", 5),
        ("gfx1201", "s_wait_loadcnt_dscnt 0x301", 5),
    ],
)
def test_loads_in_flight_are_those_that_no_wait_has_ended(arch: str, wait: str, in_flight: int, tmp_path: Path) -> None:
    """Before gfx10 the counter of loads counts stores too: of the three that a wait leaves under way, one is a store."""
    size = "dwordx4" if arch == "gfx942" else "b128"
    text = f"""
.Lloop:
  global_load_{size} v[0:3], v16, s[2:3]
  global_load_{size} v[4:7], v16, s[2:3]
  global_store_{size} v17, v[8:11], s[6:7]
  {wait}
  s_sub_u32 s4, s4, 1
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 .Lloop
"""
    assert loop_of(arch, text, tmp_path).cheapest.loads_in_flight(16) == in_flight


# clang 19 made these in conv2d's epilogue: the amounts that came with it, and others.
SHIFT = """
  s_mov_b32 s63, {amounts}
  v_pk_lshrrev_b16 v37, s63, v45
  {between}
  v_lshl_or_b32 v36, v37, 24, v36
"""


@pytest.mark.parametrize(
    ("amounts", "between", "leaks"),
    [
        ("0xff0008", "v_add_f32 v1, v1, v2", True),
        ("0xff0008", "v_pk_add_u16 v1, v37, v2", True),  # uses halves; the one behind does not
        ("0x80008", "v_add_f32 v1, v1, v2", False),  # both halves are meant
        ("0xff0008", "v_mov_b32 v37, v2", False),  # another value by then
        ("0xff0008", "v_mov_b32 v[36:37], v[2:3]", False),
    ],
)
def test_packed_shifts_that_leak_into_a_neighbour_are_found(amounts: str, between: str, leaks: bool, tmp_path: Path) -> None:
    between = between.replace("v_mov_b32 v[", "v_pk_mov_b32 v[") + (", v[2:3]" if "[" in between else "")
    kernel = assembled("gfx942", SHIFT.format(amounts=amounts, between=between), tmp_path)
    assert [user.mnemonic for _, user in leaking_shifts(instructions_of(kernel.function))] == ["v_lshl_or_b32"] * leaks


ON, OFF = True, False
EXEC, VCC, S0, S2 = (126, 127), (106, 107), (0, 1), (2, 3)


@pytest.mark.parametrize(
    ("text", "known", "after"),
    [
        ("s_and_saveexec_b64 s[0:1], s[2:3]", {EXEC: ON, S2: OFF}, [{EXEC: OFF, S0: ON, S2: OFF}]),
        ("s_and_saveexec_b64 s[0:1], s[2:3]", {EXEC: ON}, [{EXEC: ON, S0: ON, S2: ON}, {EXEC: OFF, S0: ON, S2: OFF}]),
        ("s_and_saveexec_b64 s[0:1], vcc", {EXEC: OFF, VCC: ON}, [{EXEC: OFF, S0: OFF, VCC: ON}]),
        ("s_or_saveexec_b64 s[0:1], s[0:1]", {EXEC: OFF, S0: ON}, [{EXEC: ON, S0: OFF}]),
        ("s_andn2_saveexec_b64 s[0:1], s[0:1]", {EXEC: ON, S0: ON}, [{EXEC: OFF, S0: ON}]),
        ("s_andn2_saveexec_b64 s[0:1], s[0:1]", {EXEC: OFF, S0: ON}, [{EXEC: ON, S0: OFF}]),
        ("s_and_not0_wrexec_b64 s[0:1], s[2:3]", {EXEC: ON, S2: OFF}, [{EXEC: ON, S0: ON, S2: OFF}]),
        ("s_xor_b64 exec, exec, s[0:1]", {EXEC: ON, S0: ON}, [{EXEC: OFF, S0: ON}]),
        ("s_xor_b64 s[0:1], exec, s[0:1]", {EXEC: ON, S0: OFF}, [{EXEC: ON, S0: ON}]),
        ("s_or_b64 exec, exec, s[0:1]", {EXEC: OFF, S0: ON}, [{EXEC: ON, S0: ON}]),
        ("s_or_b64 s[0:1], vcc, s[2:3]", {EXEC: ON, VCC: ON}, [{EXEC: ON, VCC: ON, S0: ON}]),
        ("s_and_b64 s[0:1], vcc, s[2:3]", {EXEC: ON, VCC: ON, S0: ON}, [{EXEC: ON, VCC: ON}]),
        ("s_mov_b64 s[0:1], -1", {EXEC: ON}, [{EXEC: ON, S0: ON}]),
        ("s_mov_b32 s1, 7", {EXEC: ON, S0: ON, S2: ON}, [{EXEC: ON, S2: ON}]),
        ("s_load_dwordx4 s[0:3], s[4:5], 0x0", {EXEC: ON, S0: ON, S2: ON}, [{EXEC: ON}]),
        ("v_cmp_lt_f32 s[0:1], v0, v1", {EXEC: ON, S0: ON}, [{EXEC: ON}]),
        ("v_cmp_lt_f32 s[0:1], v0, v1", {EXEC: OFF}, [{EXEC: OFF, S0: OFF}]),
        ("v_cmpx_lt_f32 v0, v1", {EXEC: ON}, [{EXEC: ON}, {EXEC: OFF}]),
        ("v_cmpx_lt_f32 v0, v1", {EXEC: OFF}, [{EXEC: OFF}]),
        ("v_add_co_u32 v0, s[0:1], v1, v2", {EXEC: ON, S0: ON}, [{EXEC: ON}]),
        ("v_cndmask_b32 v0, v1, v2, s[0:1]", {EXEC: ON, S0: ON}, [{EXEC: ON, S0: ON}]),
        ("s_cselect_b64 s[0:1], -1, 0", {EXEC: ON, S0: ON}, [{EXEC: ON}]),
        ("s_cselect_b64 s[0:1], -1, exec", {EXEC: ON}, [{EXEC: ON, S0: ON}]),
        ("s_cmp_lg_u64 s[0:1], 0", {EXEC: ON, S0: ON}, [{EXEC: ON, S0: ON}]),
        ("s_wqm_b64 exec, exec", {EXEC: ON}, [{EXEC: ON}, {EXEC: OFF}]),
    ],
)
def test_masks_are_known_as_far_as_instructions_say(text: str, known: State, after: list[State]) -> None:
    mnemonic, _, operands = text.partition(" ")
    instruction = Instruction(0, mnemonic, tuple(operand.strip() for operand in operands.split(",")), None, text)
    states = [
        {register: value for register, value in state.items() if register != SCC}
        for state in Masks(64).step(instruction, known)
    ]
    assert sorted(map(str, map(sorted, map(dict.items, states)))) == sorted(map(str, map(sorted, map(dict.items, after))))


@pytest.mark.parametrize(
    ("mnemonic", "kind", "size"),
    [
        ("global_load_dwordx4", "load", 16),
        ("global_load_dword", "load", 4),
        ("global_load_ushort", "load", 2),
        ("global_load_short_d16_hi", "load", 2),
        ("global_load_d16_hi_b16", "load", 2),
        ("global_load_ubyte", "load", 1),
        ("global_store_b96", "store", 12),
        ("global_store_d16_hi_b16", "store", 2),
        ("buffer_store_dwordx2", "store", 8),
        ("scratch_load_b32", "load", 4),
        ("global_atomic_add_f32", "atomic", 4),
        ("ds_read_u16_d16_hi", "lds", 2),
        ("ds_load_b128", "lds", 16),
        ("ds_read2st64_b64", "lds", 16),
        ("ds_store_2addr_b32", "lds", 8),
        ("ds_bpermute_b32", "lds", 4),
        ("s_load_dwordx4", "smem", 0),
        ("s_waitcnt", "wait", 0),
        ("s_wait_loadcnt", "wait", 0),
        ("s_barrier_signal", "barrier", 0),
        ("s_cbranch_execz", "branch", 0),
        ("s_delay_alu", "hint", 0),
        ("s_and_saveexec_b64", "salu", 0),
        ("v_pk_fma_f32", "valu", 0),
        ("v_wmma_f32_16x16x16_bf16", "matrix", 0),
        ("v_mfma_f32_16x16x16_f16", "matrix", 0),
        ("buffer_gl0_inv", "other", 0),
    ],
)
def test_instructions_are_classed_by_name(mnemonic: str, kind: str, size: int) -> None:
    assert (kind_of(mnemonic), bytes_of(mnemonic)) == (kind, size)
