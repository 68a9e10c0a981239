"""The machine code of the fast kernels keeps to its limits on AMD cards; and the command that counts it, on kernels with known
counts.

`pytest -s op_tests/machine_code/test_amd_isa.py -k limits` prints the table.
"""

from __future__ import annotations

from pathlib import Path
import re
import sys

import pytest

from machine_code.amd_code import CodeObject, build, compile_for
from machine_code.amd_isa import FAST_KERNELS, FastKernel, HotLoop, add_row, figures, hot_loops, main, new_table
from machine_code.compilers import require_amd_compiler
from machine_code.rocm_build import CLANGS, archs_of, code_of, module_of

pytestmark = pytest.mark.usefixtures("amd_compiler")


@pytest.fixture(scope="module")
def amd_compiler() -> None:
    require_amd_compiler()


BUILDS = [(name, clang) for name, fast in FAST_KERNELS.items() for clang in CLANGS if archs_of(module_of(fast.source), clang)]


@pytest.mark.parametrize(("name", "clang"), BUILDS)
def test_fast_kernels_keep_to_their_limits(name: str, clang: int) -> None:
    print()
    table = new_table([name])
    misses = []
    asked = FAST_KERNELS[name]
    for found in figures(asked, [code_of(asked.source, arch, clang) for arch in archs_of(module_of(asked.source), clang)]):
        add_row(table, name, found)
        misses += [f"{found.kernel.arch}: {miss}" for miss in found.misses()]
    assert not misses, "\n".join(misses)


# ---- kernels in HIP ----------------------------------------------------------------------------------------------------------

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


# ---- the command -------------------------------------------------------------------------------------------------------------


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
