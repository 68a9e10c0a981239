"""The machine code of the fast kernels keeps to its limits on AMD cards; and the counter itself, on code with known counts.

`pytest -s op_tests/test_amd_isa.py -k limits` prints the table.
"""

from __future__ import annotations

from pathlib import Path
import re
import sys

import pytest

from machine_code.amd_code import (
    AMD_ARCHS,
    CodeObject,
    Instruction,
    Kernel,
    build,
    bytes_of,
    compile_for,
    functions_of,
    instructions_of,
    kind_of,
    run,
)
from machine_code.amd_isa import FAST_KERNELS, FastKernel, HotLoop, add_row, figures, hot_loops, main, matrix, new_table
from machine_code.amd_masks import SCC, Masks, State
from machine_code.amd_shifts import leaking_shifts
from machine_code.compilers import require_amd_compiler
from machine_code.rocm_build import CLANGS, code_of

pytestmark = pytest.mark.usefixtures("amd_compiler")


@pytest.fixture(scope="module")
def amd_compiler() -> None:
    require_amd_compiler()


@pytest.mark.parametrize("clang", CLANGS)
@pytest.mark.parametrize("name", FAST_KERNELS)
def test_fast_kernels_keep_to_their_limits(name: str, clang: int) -> None:
    print()
    table = new_table([name])
    misses = []
    asked = FAST_KERNELS[name]
    for found in figures(asked, [code_of(asked.source, arch, clang) for arch in CLANGS[clang]]):
        add_row(table, name, found)
        misses += [f"{found.kernel.arch}: {miss}" for miss in found.misses()]
    assert not misses, "\n".join(misses)


# ---- kernels in HIP --------------------------------------------------------------------------------------------------------------

PROBES = """
#include <hip/hip_runtime.h>
using Floats = float __attribute__((ext_vector_type(4)));

// 2 loads, 1 store, 4 fused multiply-adds
__global__ void axpy(Floats* y, const Floats* x, float a, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

// the same, with a right edge written element by element
__global__ void axpy_edge(float* y, const float* x, float a, int n) {
    for (int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < n; i += 4 * gridDim.x * blockDim.x) {
        if (i + 4 <= n) {
            *reinterpret_cast<Floats*>(y + i) = a * *reinterpret_cast<const Floats*>(x + i) + *reinterpret_cast<Floats*>(y + i);
        } else {
            for (int j = i; j < n; ++j) y[j] = __builtin_sqrtf(a * x[j] + y[j]);
        }
    }
}

// the same, with a rare repair of the result
__global__ void axpy_repair(Floats* y, const Floats* x, float a, float b, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        Floats sum = a * x[i] + y[i];
        if (sum.x != sum.x) {
            for (int j = 0; j < 6; ++j) sum.x = __builtin_amdgcn_rcpf(b * i - (sum.x != sum.x ? a : sum.x));
        }
        y[i] = sum;
    }
}

// the same, with an activation that an argument turns on
__global__ void axpy_flag(Floats* y, const Floats* x, float a, bool on, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        Floats sum = a * x[i] + y[i];
        if (on) {
            asm volatile("");  // so that it stays inside the loop
            for (int j = 0; j < 4; ++j) sum[j] = __builtin_amdgcn_rcpf(sum[j]);
        }
        y[i] = sum;
    }
}

// no loop at all
__global__ void once(Floats* y, const Floats* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}

// a copy beside the loop with the activation
__global__ void copy_or_activate(Floats* y, const Floats* x, bool copies, int n) {
    const int step = gridDim.x * blockDim.x;
    if (copies) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) y[i] = x[i];
    } else {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
            Floats v = x[i];
            for (int j = 0; j < 4; ++j) v[j] = __builtin_amdgcn_rcpf(v[j]);
            y[i] = v;
        }
    }
}

// 120 values live at once
__global__ void wide(float* y, const float* x, int n) {
    float v[120];
#pragma unroll
    for (int i = 0; i < 120; ++i) v[i] = x[i * n];
    asm volatile("" ::: "memory");
#pragma unroll
    for (int i = 0; i < 120; ++i) y[i * n] = v[119 - i];
}

// 24 KB of LDS for a block of 256 threads
__global__ void __attribute__((amdgpu_flat_work_group_size(1, 256))) shared(float* y, const float* x) {
    __shared__ float all[6144];
    for (int i = 0; i < 24; ++i) all[i * 256 + threadIdx.x] = x[i * 256 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 24; ++i) y[i * 256 + threadIdx.x] = all[i * 256 + 255 - threadIdx.x];
}

template <typename T> __global__ void typed(T* y) { *y = T(1); }
template __global__ void typed<float>(float*);
template __global__ void typed<int>(int*);
"""


@pytest.fixture(scope="module", params=["gfx942", "gfx1100"])
def probes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CodeObject:
    source = tmp_path_factory.mktemp("probes") / "probes.cu"
    source.write_text(PROBES)
    return build(source, request.param)


@pytest.mark.parametrize(("clang", "arch"), [(clang, arch) for clang, archs in CLANGS.items() for arch in archs])
def test_waves_are_what_the_compiler_says(clang: int, arch: str, source: Path, tmp_path: Path) -> None:
    remarks = compile_for(arch, "-Rpass-analysis=kernel-resource-usage", "-c", source, "-o", tmp_path / "code", clang=clang)
    said = sorted(map(int, re.findall(r"Occupancy \[waves/SIMD\]: (\d+)", remarks)))
    kernels = build(source, arch, clang).kernels
    assert sorted(kernel.waves for kernel in kernels) == said, {kernel.name: kernel.waves for kernel in kernels}
    assert len(set(said)) > 1


def only(loops: list[HotLoop]) -> HotLoop:
    assert len(loops) == 1
    return loops[0]


def test_a_vector_loop_is_counted_exactly(probes: CodeObject) -> None:
    loop = only(hot_loops(probes.kernel("axpy")))
    assert loop.is_loop and not loop.nested and loop.work == 16
    assert loop.cheapest.by_mnemonic == loop.dearest.by_mnemonic
    assert (loop.cheapest.of("load", 16), loop.cheapest.of("load"), loop.cheapest.of("store", 16)) == (2, 2, 1)
    assert loop.cheapest.multiplications == 4
    assert loop.cheapest.transcendental == 0 and loop.cheapest.of("lds") == 0
    assert loop.cheapest.loads_in_flight(16) == 2


def test_an_edge_in_the_loop_is_not_the_steady_state(probes: CodeObject) -> None:
    plain, edge = only(hot_loops(probes.kernel("axpy"))), hot_loops(probes.kernel("axpy_edge"))[0]
    assert edge.work == 16 and edge.cheapest.multiplications == 4
    assert edge.dearest.transcendental == 0 and edge.dearest.of("store") == 1
    assert plain.cheapest.valu <= edge.cheapest.valu <= edge.dearest.valu <= plain.cheapest.valu + 4


def test_a_repair_that_some_lanes_need_is_not_the_steady_state(probes: CodeObject) -> None:
    plain, repair = only(hot_loops(probes.kernel("axpy"))), only(hot_loops(probes.kernel("axpy_repair")))
    assert repair.dearest.transcendental == 0 and repair.dearest.multiplications == 4
    assert plain.cheapest.valu < repair.cheapest.valu <= repair.dearest.valu <= plain.cheapest.valu + 6  # the comparison


def test_a_flag_leaves_a_range_unless_the_steady_state_is_known(probes: CodeObject) -> None:
    kernel = probes.kernel("axpy_flag")
    either = only(hot_loops(kernel))
    assert (either.cheapest.transcendental, either.dearest.transcendental) == (0, 4)
    assert either.dearest.valu == either.cheapest.valu + 4
    known = only(hot_loops(kernel, also=lambda i: int(i.transcendental)))
    assert known.cheapest.transcendental == known.dearest.transcendental == 4
    assert known.cheapest.valu == either.dearest.valu


def test_a_kernel_without_loops_counts_as_a_whole(probes: CodeObject) -> None:
    kernel = probes.kernel("once")
    whole = only(hot_loops(kernel))
    assert not whole.is_loop and whole.work == 16
    assert whole.cheapest.by_mnemonic["s_endpgm"] == 1
    with pytest.raises(LookupError, match="once on gfx"):
        hot_loops(kernel, width=32)


def test_a_loop_that_only_copies_is_not_the_hot_one_where_there_is_an_activation(source: Path) -> None:
    asked = FastKernel(source, "copy_or_activate", 4, transcendental=1)
    [found] = figures(asked, [build(source, "gfx942")])
    assert found.loop.is_loop and found.loop.dearest.transcendental == 4 and found.misses() == []
    copy, *_ = hot_loops(found.kernel)
    assert copy.dearest.transcendental == 0 and copy.dearest.valu < found.loop.dearest.valu
    assert [loop.is_loop for loop in hot_loops(found.kernel, whole=False)] == [True, True]
    with pytest.raises(LookupError):
        hot_loops(found.kernel, whole=True)


def test_kernels_are_found_by_a_part_of_their_name(probes: CodeObject) -> None:
    assert probes.kernel("typed<int>").name == "typed<int>"
    with pytest.raises(LookupError, match=r"(?s)2 kernels .*typed<float>\n  typed<int>$"):
        probes.kernel("typed")
    with pytest.raises(LookupError, match="0 kernels"):
        probes.kernel("typed<double>")


# ---- hand-written code -----------------------------------------------------------------------------------------------------------


def assembled(arch: str, text: str, tmp_path: Path) -> Kernel:
    """A kernel of these instructions."""
    source, code = tmp_path / "probe.s", tmp_path / "probe.o"
    source.write_text(f"probe:\n{text}\n  s_endpgm\n")
    run("clang-19", "-x", "assembler", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", source, "-o", code)
    function = functions_of(run("llvm-objdump-19", "-d", code))["probe"]
    return Kernel("probe", arch, {"wavefront_size": AMD_ARCHS[arch].wave}, function)


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
    loop = only(hot_loops(assembled(arch, text, tmp_path)))
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
    loop = only(hot_loops(assembled("gfx942", text, tmp_path)))
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
    assert only(hot_loops(assembled("gfx942", text, tmp_path))).work == 16


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
    loop = only(hot_loops(assembled("gfx942", text, tmp_path)))
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
    assert only(hot_loops(assembled(arch, text, tmp_path))).cheapest.loads_in_flight(16) == in_flight


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
    states = [{register: value for register, value in state.items() if register != SCC} for state in Masks(64).step(instruction, known)]
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


# ---- the command -----------------------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *words: str | Path) -> tuple[int, list[str]]:
    """Its exit status, and what it prints below the table's header."""
    monkeypatch.setattr(sys, "argv", ["amd_isa.py", *map(str, words)])
    status = main()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:5] == ["kernel", "arch", "in", "elements", "VALU"]
    return status, lines


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "probes.cu"
    file.write_text(PROBES)
    return file


def test_the_command_shows_any_kernel(monkeypatch, capsys, source: Path) -> None:
    words: list[str | Path] = ["--source", source, "--instance", "axpy", "--element_bytes", "4", "--arch", "gfx942"]
    status, [row, *mnemonics] = command(monkeypatch, capsys, *words, "--mnemonics")
    assert status == 0 and row.split()[:4] == ["axpy", "gfx942", "loop", "4"] and row.endswith("kept")
    assert "    2  v_pk_fma_f32" in mnemonics
    _, [_, *listing] = command(monkeypatch, capsys, *words, "--listing")
    assert sum(line.startswith("-+ ") for line in listing) == sum(int(line.split()[0]) for line in mnemonics) < len(listing)
    with pytest.raises(SystemExit):
        command(monkeypatch, capsys, "--source", source)


def test_the_command_fails_on_a_miss_and_names_it(monkeypatch, capsys, source: Path) -> None:
    strict = FastKernel(source, "axpy", 4, transcendental=2, multiplications=2, valu={"gfx942": 1.0}, waves=9)
    monkeypatch.setitem(FAST_KERNELS, "tile", strict)
    status, [row] = command(monkeypatch, capsys, "--kernel", "tile", "--arch", "gfx942")
    assert status == 1 and row.endswith("VALU 2.00 > 1; waves 8 < 9; 0.00 transcendental, not 2; 1.00 multiplications < 2")
    narrow = FastKernel(source, "axpy", 4, width=8, multiplications=1, valu={"gfx942": 2.0}, waves=8)
    monkeypatch.setitem(FAST_KERNELS, "tile", narrow)
    status, [row] = command(monkeypatch, capsys, "--kernel", "tile", "--arch", "gfx942")
    assert status == 1 and row.endswith("  no load of 8 bytes")
