"""The simt backend on its own: probe kernels (probes.cu) whose results follow from HIP's semantics must come out right in every
order of threads, and kernels with a defect that a GPU leaves undefined must not get by.

Everything else that runs through simt trusts it to notice a missing barrier; these tests are why it can be trusted.

    python op_tests/test_simt.py shuffles --build wave32 --order shuffled:7     one probe by hand (without a name: list them)

Where a GPU and its compiler are, the same file is compiled for the GPU and has to agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import itertools
import os
from pathlib import Path
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from support import ROOT

SOURCE = "op_tests/simt/probes.cu"  # relative, as messages are to show it
CXX = os.environ.get("CXX", "g++")
ORDERS = ("ascending", "descending", "shuffled:1", "shuffled:2")

_HAS_F16C = Path("/proc/cpuinfo").exists() and " f16c " in Path("/proc/cpuinfo").read_text()
# As modules are built for simt; f16 conversions in hardware on wave 32 and by hand on the others.
BUILDS = {
    "wave64": ["-Og", "-DHIPCONV_SIMT_WAVE=64"],
    "wave32": ["-Og", "-DHIPCONV_SIMT_WAVE=32", *(["-mf16c"] if _HAS_F16C else [])],
    "sanitized": ["-Og", "-g1", "-DHIPCONV_SIMT_WAVE=64", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
RELEASE_BUILDS = ("wave64", "wave32")
MATRIX_SOURCE = "op_tests/simt/matrix_probes.cu"
RUNTIME = "csrc/compat/simt/simt/runtime.cpp"
MATRIX_BUILDS = {  # a build for each unit that multiplies matrices
    unit: ["-Og", f"-DHIPCONV_SIMT_WAVE={wave}", f"-DHIPCONV_SIMT_MMA={unit}"]
    for unit, wave in {"mfma": 64, "mma_sync": 32, "wmma11": 32, "wmma12": 32, "fma": 32}.items()
}
MATRIX_PROBES = ["products_f16", "products_bf16", "products_f32", "copies"]

EVERYWHERE = [
    "block_reduction",
    "halo",
    "two_shared_arrays",
    "neighbour_rounds",
    "divergence_before_barrier",
    "early_exit",
    "many_blocks",
    "large_shared",
    "indices",
    "grid_stride",
    "launch_arguments",
    "invalid_launches",
    "shuffles",
    "wave_scan",
    "back_to_back_shuffles",
    "ballots",
    "shuffles_and_barriers",
    "atomic_add",
    "atomic_exchange",
    "f16_conversions",
    "bf16_conversions",
    "silu_accuracy",
    "taper",
]
HOST_ONLY = ["poison", "missing_lane", "large_stack", "all_of_shared", "os_threads", "turns"]

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the simt backend switches fibers in x86-64 assembly"),
    pytest.mark.skipif(shutil.which(CXX) is None, reason=f"no {CXX}"),
]


def compile_probes(build: str, directory: Path, source: str = SOURCE) -> Path:
    binary = directory / build
    include = ["-Icsrc/include", "-Icsrc/compat/simt"]
    flags = (BUILDS if source == SOURCE else MATRIX_BUILDS)[build]
    command = [CXX, "-x", "c++", "-std=c++17", *include, *flags, source, RUNTIME, "-o", str(binary), "-pthread"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return binary


def run(binary: Path, probe: str, order: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HIPCONV_SIMT_ORDER"}
    if order is not None:
        environment["HIPCONV_SIMT_ORDER"] = order
    return subprocess.run([str(binary), probe], env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("simt_probes")
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BUILDS, pool.map(lambda build: compile_probes(build, directory), BUILDS), strict=True))


@pytest.fixture(scope="module")
def matrix_binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("simt_matrix_probes")
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda build: compile_probes(build, directory, MATRIX_SOURCE), MATRIX_BUILDS)
        return dict(zip(MATRIX_BUILDS, compiled, strict=True))


@pytest.fixture(scope="module", autouse=True)
def no_core_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


# ---- right kernels -----------------------------------------------------------------------------------------------------------


def test_every_probe_is_run_below(binaries: dict[str, Path]) -> None:
    assert run(binaries["wave64"], "--list").stdout.split() == EVERYWHERE
    assert run(binaries["wave64"], "--list-host").stdout.split() == HOST_ONLY
    tested = {*WRONG_IN, *ABORTS, *OVERFLOWS_STACK, *FOUND_BY_ADDRESS_SANITIZER}
    assert set(run(binaries["wave64"], "--list-broken").stdout.split()) == tested


def _runs() -> list[tuple[str, str, str]]:
    """Every probe in every build and order; but what one thread converts, all values of it, in one order."""
    runs = itertools.product([*EVERYWHERE, *HOST_ONLY], BUILDS, ORDERS)
    return [run for run in runs if not run[0].endswith("_conversions") or run[2] == ORDERS[0]]


@pytest.mark.parametrize(("probe", "build", "order"), _runs())
def test_probe(binaries: dict[str, Path], probe: str, build: str, order: str) -> None:
    done = run(binaries[build], probe, order)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


# ---- orders ------------------------------------------------------------------------------------------------------------------


def turns(binary: Path, order: str | None) -> list[list[int]]:
    """Who came when: threads before a barrier, threads after it, blocks."""
    done = run(binary, "turns", order)
    assert done.returncode == 0, done.stderr
    return [[int(number) for number in line.split()] for line in done.stdout.splitlines()]


def test_orders_are_what_they_say(binaries: dict[str, Path]) -> None:
    binary = binaries["wave64"]
    forward = [list(range(40)), list(range(40)), list(range(12))]
    assert turns(binary, None) == turns(binary, "") == turns(binary, "ascending") == forward
    assert turns(binary, "descending") == [list(reversed(line)) for line in forward]
    for seed in ("shuffled:1", "shuffled:2"):
        before, after, blocks = shuffled = turns(binary, seed)
        assert [sorted(line) for line in shuffled] == forward
        assert before != after  # another order from each barrier to the next
        for line, straight in zip(shuffled, forward, strict=True):
            assert line not in (straight, straight[::-1])
        assert turns(binary, seed) == shuffled  # a seed can be run again
        assert len(blocks) == 12
    assert turns(binary, "shuffled") == turns(binary, "shuffled:1") != turns(binary, "shuffled:2")


@pytest.mark.parametrize(
    "order", ["random", "Ascending", "ascending ", "shuffled:", "shuffled:x", "shuffled:-1", "shuffled:1 2"]
)
def test_unknown_order_is_refused(binaries: dict[str, Path], order: str) -> None:
    done = run(binaries["wave64"], "halo", order)
    assert done.returncode == 2
    expected = "expected ascending, descending, shuffled, shuffled:SEED or none"
    assert done.stdout == f"invalid argument: HIPCONV_SIMT_ORDER: got '{order}', {expected}\n"


# ---- kernels without a barrier they need: a wrong answer, in these orders and no others --------------------------------------

WRONG_IN = {
    "halo_no_barrier": set(ORDERS),
    "halo_below_no_barrier": {"descending", "shuffled:1", "shuffled:2"},  # lanes read lower ones: ascending hides it
    "halo_above_no_barrier": {"ascending", "shuffled:1", "shuffled:2"},
    "rounds_one_barrier": set(ORDERS),
    "rounds_one_barrier_waves_meet": {"shuffled:1", "shuffled:2"},  # waves keep pace in the others
}


@pytest.mark.parametrize("build", RELEASE_BUILDS)
@pytest.mark.parametrize("probe", WRONG_IN)
def test_missing_barrier_shows(binaries: dict[str, Path], probe: str, build: str) -> None:
    results = {order: run(binaries[build], probe, order) for order in ORDERS}
    assert {order for order, done in results.items() if done.returncode != 0} == WRONG_IN[probe]
    for order in WRONG_IN[probe]:
        assert results[order].returncode == 1
        assert results[order].stdout.startswith("mismatch: ")


# ---- kernels that must be stopped --------------------------------------------------------------------------------------------


def lines_with(text: str) -> list[tuple[str, int]]:
    """The lines of the probes' source that have `text`: the file of each, and its number."""
    files = [Path(SOURCE), *(file.relative_to(ROOT) for file in sorted((ROOT / SOURCE).with_suffix("").glob("*.h")))]
    numbered = ((file, enumerate((ROOT / file).read_text().splitlines(), 1)) for file in files)
    return [(str(file), number) for file, lines in numbered for number, line in lines if text in line]


def line_of(text: str, occurrence: int = 0) -> str:
    """FILE:LINE of a piece of the probes' source, to find it in a message."""
    file, number = lines_with(text)[occurrence]
    return f"{file}:{number}"


def inside(kernel: str, text: str, occurrence: int = 0) -> str:
    """The same, for the occurrence-th line with `text` after a kernel's head."""
    [(file, first)] = lines_with(f" {kernel}(float*")
    numbers = [number for place, number in lines_with(text) if place == file and number >= first]
    return f"{file}:{numbers[occurrence]}"


# Probe -> kernel, then what the message has to contain. Which of several guilty threads or blocks is named depends on the
# order.
ABORTS = {
    "barrier_missed": (
        "miss_barrier",
        r"block \([01], 0, 0\): ",
        r"thread \(5, 0, 0\) has exited",
        r"waits at __syncthreads \(" + line_of("barrier that thread 5 misses"),
    ),
    "last_barrier_missed": (
        "miss_last_barrier",
        r"thread \(3, 1, 0\) has exited",
        r"waits at __syncthreads \(" + line_of("barrier that thread (3, 1, 0) misses"),
    ),
    "barrier_split": (
        "split_barrier",
        r"thread \(0, 0, 0\) waits at __syncthreads \(" + inside("split_barrier", "__syncthreads"),
        r"thread \(64, 0, 0\) waits at __syncthreads \(" + inside("split_barrier", "__syncthreads", 1),
    ),
    "shuffle_missed": (
        "miss_shuffle",
        r"thread \(7, 0, 0\) has exited",
        r"waits at __shfl \(" + inside("miss_shuffle", "__shfl"),
    ),
    "shuffle_against_barrier": (
        "shuffle_against_barrier",
        r"thread \(9, 0, 0\) waits at __syncthreads \(" + inside("shuffle_against_barrier", "__syncthreads"),
        r"waits at __shfl \(" + inside("shuffle_against_barrier", "__shfl"),
    ),
    "shuffle_split": (
        "split_shuffle",
        r"thread \(\d*[13579], 0, 0\) waits at __shfl_xor \(" + inside("split_shuffle", "__shfl_xor"),
        r"thread \(\d*[02468], 0, 0\) waits at __shfl_xor \(" + inside("split_shuffle", "__shfl_xor", 1),
    ),
    "shuffle_too_wide": (
        "shuffle_too_wide",
        r"thread \(\d+, 0, 0\) shuffles with width (128|64), and a wave has (64|32) lanes",
    ),
    "shared_write_past_end": ("write_past_end", "at byte 40 of the 40 declared at " + inside("write_past_end", "first, 10")),
    "shared_write_before_begin": (
        "write_before_begin",
        "at byte -4 of the 64 declared at " + inside("write_before_begin", "only, 16"),
    ),
    "shared_too_large": (
        "declare_too_much",
        r"needs 65552 bytes of shared memory, and a block has 65536 \(" + inside("declare_too_much", "b, 4"),
    ),
    "shared_uneven": (
        "declare_unevenly",
        "declares 64 bytes at .* where another thread declares 64 at",
        inside("declare_unevenly", "odd, 16"),
        inside("declare_unevenly", "even, 16"),
    ),
}


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled:1"])
@pytest.mark.parametrize("build", RELEASE_BUILDS)
@pytest.mark.parametrize("probe", ABORTS)
def test_undefined_behaviour_aborts(binaries: dict[str, Path], probe: str, build: str, order: str) -> None:
    done = run(binaries[build], probe, order)
    assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
    kernel, *patterns = ABORTS[probe]
    assert re.match(rf"simt: kernel {kernel}, block \(\d+, 0, 0\): ", done.stderr)
    for pattern in patterns:
        assert re.search(pattern.replace(".cu", r"\.cu"), done.stderr), done.stderr


OVERFLOWS_STACK = ("stack_recursion", "stack_large_array")


@pytest.mark.parametrize("probe", OVERFLOWS_STACK)
@pytest.mark.parametrize("build", RELEASE_BUILDS)
def test_stack_overflow_faults(binaries: dict[str, Path], probe: str, build: str) -> None:
    assert run(binaries[build], probe).returncode == -signal.SIGSEGV


FOUND_BY_ADDRESS_SANITIZER = {
    "global_out_of_bounds": ("heap-buffer-overflow", "write_out_of_bounds"),
    "shared_write_past_end": ("use-after-poison", "write_past_end"),
    "shared_write_before_begin": ("use-after-poison", "write_before_begin"),
    "shared_read_past_end": ("use-after-poison", "read_past_end"),
    "stack_recursion": ("stack-overflow", "descend"),
    "stack_large_array": ("stack-overflow", "outgrow_stack"),
}


@pytest.mark.parametrize("probe", FOUND_BY_ADDRESS_SANITIZER)
def test_address_sanitizer_stops_at_the_culprit(binaries: dict[str, Path], probe: str) -> None:
    done = run(binaries["sanitized"], probe)
    error, kernel = FOUND_BY_ADDRESS_SANITIZER[probe]
    assert done.returncode != 0
    assert f"AddressSanitizer: {error}" in done.stderr
    assert re.search(rf"#0 0x\w+ in .*{kernel}.* .*simt/probes/\w+\.h:\d+", done.stderr), done.stderr


@pytest.mark.parametrize("build", RELEASE_BUILDS)
def test_reading_past_shared_memory_gives_nan(binaries: dict[str, Path], build: str) -> None:
    done = run(binaries[build], "shared_read_past_end")
    assert done.returncode == 1
    assert "read NaN past the end" in done.stdout


# ---- matrix instructions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ascending", "shuffled:1"])
@pytest.mark.parametrize("build", MATRIX_BUILDS)
@pytest.mark.parametrize("probe", MATRIX_PROBES)
def test_matrix_probe(matrix_binaries: dict[str, Path], probe: str, build: str, order: str) -> None:
    done = run(matrix_binaries[build], probe, order)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


INSTRUCTIONS = {
    "mfma": "mfma_f32_32x32x8",
    "mma_sync": "ldmatrix.x4",
    "wmma11": "wmma_f32_16x16x16_w32",
    "wmma12": "wmma_f32_16x16x16_w32_gfx12",
}


@pytest.mark.parametrize("build", INSTRUCTIONS)
def test_a_wave_multiplies_together(matrix_binaries: dict[str, Path], build: str) -> None:
    for probe, message in {
        "product_missed": rf"waits at {INSTRUCTIONS[build]} \(csrc/include/matrix/mma.h:\d+\), but thread \(3, 0, 0\) has "
        rf"exited",
        "wave_not_full": rf"is in a wave of 3 threads: {INSTRUCTIONS[build]} takes all (64|32) lanes",
    }.items():
        done = run(matrix_binaries[build], probe)
        assert done.returncode == -signal.SIGABRT, probe
        assert re.search(message, done.stderr), done.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_copies_past_registers_arrive_late(matrix_binaries: dict[str, Path], order: str) -> None:
    done = run(matrix_binaries["mma_sync"], "copies_not_awaited", order)
    assert done.returncode == 1
    assert done.stdout.startswith("mismatch: word: element 0 is 4294967295")


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_a_cluster_wait_for_each_other(matrix_binaries: dict[str, Path], order: str) -> None:
    for build in ("mma_sync", "mfma"):
        done = run(matrix_binaries[build], "clusters", order)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        done = run(matrix_binaries[build], "clusters_not_awaited", order)
        assert done.returncode == 1
        assert done.stdout.startswith("mismatch: number: element ")


def test_large_shared_memory_is_what_the_launch_asks_for(matrix_binaries: dict[str, Path]) -> None:
    done = run(matrix_binaries["mma_sync"], "launch_asks_for_less")
    assert done.returncode == -signal.SIGABRT
    assert "declares 65536 bytes of large shared memory, and its launch asks for 65520" in done.stderr


# ---- the same probes on a GPU ------------------------------------------------------------------------------------------------


def compile_for_gpu(directory: Path, source: str) -> Path:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    binary = directory / "gpu"
    if torch.version.hip:
        architecture = torch.cuda.get_device_properties(0).gcnArchName
        command = ["hipcc", "-x", "hip", f"--offload-arch={architecture}"]
    else:
        command = ["nvcc", "-x", "cu", "-arch=sm_{}{}".format(*torch.cuda.get_device_capability(0)), "-Icsrc/compat/cuda"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    done = subprocess.run(
        [*command, "-std=c++17", "-O2", "-Icsrc/include", source, "-o", str(binary)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return binary


@pytest.mark.parametrize(("source", "expected"), [(SOURCE, EVERYWHERE), (MATRIX_SOURCE, MATRIX_PROBES)], ids=["simt", "matrix"])
def test_gpu_agrees(tmp_path: Path, source: str, expected: list[str]) -> None:
    binary = compile_for_gpu(tmp_path, source)
    assert run(binary, "--list").stdout.split() == expected
    failures = {probe: done.stdout for probe in expected if (done := run(binary, probe)).returncode != 0}
    assert not failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the simt probes and run one of them; without a name, list them.")
    parser.add_argument("probe", nargs="?")
    parser.add_argument("--build", choices=BUILDS, default="wave64")
    parser.add_argument("--order", default="ascending", help="ascending, descending, shuffled, shuffled:SEED or none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        binary = compile_probes(arguments.build, Path(directory))
        wanted = [arguments.probe] if arguments.probe else ["--list", "--list-host", "--list-broken"]
        runs = [run(binary, argument, arguments.order) for argument in wanted]
    for done in runs:
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
    return runs[-1].returncode
