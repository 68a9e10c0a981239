"""Op tests once more with the kernels built under AddressSanitizer and UndefinedBehaviorSanitizer.

torch allocates CPU tensors with malloc, so a kernel that reads or writes a byte outside its tensors, where no value it computes
would show it, stops here.

Only the kernels are instrumented: bindings would take most of the time. They are linked into a library that is loaded before
the module as others use it, which then calls the launchers of the library: those that come first in the process.
"""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest
import torch

from support import ROOT
from support.backends import EVERYTHING, WAYS, environment
from hipconv import jit, registry, targets
from hipconv.jit import toolchain

# Compiling takes the time, and more at -O1: so accesses are checked by calls, null, which stops the process by itself, by
# nobody, and other undefined behaviour ends in an illegal instruction without a report (`gdb` has the line, or a build without
# that flag).
FLAGS = ["-g1", "-O0", "-fsanitize=address,undefined", "-fno-sanitize=null", "-fsanitize-undefined-trap-on-error"]
# Pointers to tensors of no elements are null, and nobody reads where an offset from them leads.
FLAGS += ["-fno-sanitize=pointer-overflow"]
FLAGS += ["--param", "asan-instrumentation-with-call-threshold=0"]
CXX = os.environ.get("CXX", "g++")

# Tensors whose storage was shrunk behind their backs: the kernel is led past the end of the memory, on the CPU by more than a
# vector, because the sanitizers do not look at masked loads.
LIES = {
    "causal_conv1d": "hipconv.causal_conv1d_fwd(torch.zeros(1, 4, 8), short(1, 4, 8), torch.zeros(4, 1))",
    "causal_conv1d_bwd": "from hipconv.drop_in import causal_conv1d_cuda as package; package.causal_conv1d_bwd("
    "torch.zeros(1, 4, 8), torch.zeros(4, 4), None, short(1, 4, 8), None, None, None, None, False, False)",
    "causal_conv1d_varlen": "serving.causal_conv1d_fn(short(4, 64), torch.zeros(4, 4), None, torch.zeros(1, 4, 3), "
    "torch.tensor([0, 64]))",
    "causal_conv1d_update": "serving.causal_conv1d_update(short(2, 64), torch.zeros(2, 64, 3), torch.zeros(64, 4))",
    "conv3d": "hipconv.conv3d(short(1, 8, 2, 40, 40), torch.zeros(8, 8, 1, 1, 1))",
}
LIAR = """
import torch, hipconv, hipconv.serving as serving

def short(*shape):
    x = torch.zeros(shape)
    x.untyped_storage().resize_(64)
    return x

"""


def sanitized_kernels(module: str, library: Path) -> None:
    """Build the kernels of a module, without its binding, for the target that CPU tensors have now."""
    target = targets.of(torch.device("cpu"))
    found = registry.module(module)
    sources = [source for source in registry.sources(found, target.backend) if "pybind" not in source.parts]
    flags = [*toolchain.flags(target, found.flags).host, *FLAGS]
    subprocess.run([CXX, "-std=c++17", "-shared", "-fPIC", *flags, "-o", library, "-x", "c++", *sources], cwd=ROOT, check=True)


def sanitized(library: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers' runtimes and the kernels loaded first."""
    runtimes = [
        subprocess.check_output([CXX, f"-print-file-name={name}.so"], text=True).strip() for name in ("libasan", "libubsan")
    ]
    variables = os.environ | {
        "LD_PRELOAD": " ".join([*runtimes, str(library)]),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep what they allocate
        "PYTHONPATH": str(ROOT / "python"),
    }
    return subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True, check=False, cwd=ROOT)


# In every run, test_guard_pages.py finds most of what these do on the CPU, and the probes of test_simt.py run sanitized.
NIGHTLY = [
    ("causal_conv1d", "simt-wave64", "not ascending and not descending and not opcheck and not compiles"),
    ("causal_conv1d_bwd", "simt-wave32-shuffled", "infinities or exact or strides or reference"),
    ("conv3d", "simt-wave32-shuffled", "chunks or strides or models or alone or edges_of_patches"),
    # One arithmetic is that of modules of one compiler's options: the forward's is not among these kernels.
    (
        "causal_conv1d_varlen",
        "cpu",
        "(reference or strides or boundary or nowhere or outside or in_place or split) and not one_arith",
    ),
    ("causal_conv1d_update", "cpu", "random or outside or look_aligned or columns or drafts or short_rows or grid_dimension"),
]


@pytest.mark.skipif(not EVERYTHING, reason="runs with HIPCONV_TEST_ARCHS=all")
@pytest.mark.skipif(shutil.which(CXX) is None, reason=f"no {CXX}")
@pytest.mark.parametrize(("module", "way", "selected"), NIGHTLY)
def test_the_op_tests_pass_under_the_sanitizers(tmp_path: Path, module: str, way: str, selected: str) -> None:
    library = tmp_path / "kernels.so"
    with environment(**WAYS[way]):
        jit.module(module, targets.of(torch.device("cpu")))  # built outside of the sanitizers
        sanitized_kernels(module, library)
        tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"op_tests/test_{module}.py", "-k", f"{way} and ({selected})"]
        done = sanitized(library, *tests)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]

        done = sanitized(library, "-c", LIAR + LIES[module])  # and these kernels do catch what they are there to catch
        assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr and module in done.stderr, done.stderr[-3000:]


# Random calls of these whose tensors have memory of their own, of any size: the ends of aligned vectors lie outside of many.
TIGHT = [("causal_conv1d_bwd", "backward"), ("causal_conv1d_varlen", "prefill"), ("causal_conv1d_update", "decode")]


@pytest.mark.skipif(not EVERYTHING, reason="runs with HIPCONV_TEST_ARCHS=all")
@pytest.mark.skipif(shutil.which(CXX) is None, reason=f"no {CXX}")
@pytest.mark.parametrize(("module", "op"), TIGHT)
def test_no_kernel_reads_or_writes_a_byte_beside_a_tensor(tmp_path: Path, module: str, op: str) -> None:
    library, way = tmp_path / "kernels.so", "simt-wave32-shuffled"
    with environment(**WAYS[way]):
        jit.module(module, targets.of(torch.device("cpu")))
        sanitized_kernels(module, library)
        calls = "import sys; sys.path.insert(0, 'op_tests'); import serving.test_guard_pages as guard; "
        done = sanitized(library, "-c", f"{calls}guard.main([{way!r}], [{op!r}], guard.tight)")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[:4000]
