"""Run vLLM's and SGLang's own tests of their causal conv1d, as they are, on `hipconv.serving`.

    python op_tests/run_engine_tests.py                            # vLLM's, from its sdist on PyPI (47 MB)
    python op_tests/run_engine_tests.py --directory peer           # fetched into peer/ once; a machine without network reads it
    there python op_tests/run_engine_tests.py --file SGLANG/test/registered/layers/mamba/test_causal_conv1d.py -- -k update

SGLang publishes its tests in its repository alone: `--file` takes such a file, or any other of either engine's. The engines
themselves are not installed. What a file imports from them is put in their place: their functions are hipconv's, and the few
other names of the table below what they are there. A file that imports more is refused. Without a GPU the one change to a text
is the device.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
import functools
import os
from pathlib import Path
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from peers.packages import provide, sdist
from hipconv import serving

SDIST, TESTS = "vllm==0.33.0", "tests/kernels/mamba/test_causal_conv1d.py"


def sgl_kernel_fwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor | None, starts: Tensor | None, slots: Tensor | None,
    has_state: Tensor | None, silu: bool, pad: int,
) -> None:  # fmt: skip
    """sgl_kernel.causal_conv1d_fwd, which writes into x: (dim, tokens) with starts, else (1, dim, tokens)."""
    of_one = x if starts is not None else x.squeeze(0)
    begins = torch.tensor([0, of_one.shape[1]], dtype=torch.int32, device=x.device) if starts is None else starts
    states = x.new_zeros(1, len(weight), weight.shape[1] - 1) if states is None else states
    of_one.copy_(
        serving.causal_conv1d_fn(of_one, weight, bias, states, begins, slots, has_state, "silu" if silu else None, pad)
    )


def sgl_kernel_update(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    lengths: Tensor | None,
    slots: Tensor | None,
    pad: int,
) -> None:
    """sgl_kernel.causal_conv1d_update, which writes into x."""
    activation = "silu" if silu else None
    options: dict[str, Any] = {"conv_state_indices": slots, "cache_seqlens": lengths, "pad_slot_id": pad}
    x.copy_(serving.causal_conv1d_update(x, state, weight, bias, activation, **options))


def prefill(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    *more: Any,
    **options: Any,
) -> Tensor:
    """Both engines' causal_conv1d_fn, which read as many slots as there are sequences, and take more."""
    slots = None if cache_indices is None else cache_indices[: len(query_start_loc) - 1]
    return serving.causal_conv1d_fn(x, weight, bias, conv_states, query_start_loc, slots, has_initial_state, *more, **options)


GPU = torch.cuda.is_available()
PLATFORM = SimpleNamespace(
    device_type="cuda" if GPU else "cpu",
    seed_everything=torch.manual_seed,
    # A file leaves out on other platforms what it does because of the engine's kernels there.
    is_cuda_alike=lambda: True,
    is_cuda=lambda: True,
    is_cpu=lambda: False,
    is_xpu=lambda: False,
)
NAMES: dict[str, dict[str, Any]] = {
    "vllm": {
        "causal_conv1d_fn": functools.partial(prefill, null_block_id=0),  # its padding is block 0 unless it is told
        "causal_conv1d_update": functools.partial(serving.causal_conv1d_update, null_block_id=0),
        "PAD_SLOT_ID": -1,
        "NULL_BLOCK_ID": 0,
        "current_platform": PLATFORM,
        "set_random_seed": torch.manual_seed,
    },
    "sglang": {
        "causal_conv1d_fn": prefill,
        "causal_conv1d_update": serving.causal_conv1d_update,
        "PAD_SLOT_ID": -1,
        "get_device": lambda: "cuda" if GPU else "cpu",
        "empty_gpu_cache": lambda: None,
        "register_cuda_ci": lambda **_: None,  # these say in which of SGLang's CI runs a file takes part
        "register_amd_ci": lambda **_: None,
    },
    "sgl_kernel": {"causal_conv1d_fwd": sgl_kernel_fwd, "causal_conv1d_update": sgl_kernel_update},
}


def stand_in(text: str) -> None:
    """Make importable what a test's text imports from an engine; ValueError for what is not known."""
    imports = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    for node in imports:
        place = node.module or ""
        parts = place.split(".")
        if parts[0] not in NAMES:
            continue
        known = NAMES[parts[0]]
        for depth in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        for alias in node.names:
            if alias.name not in known:
                raise ValueError(f"the file imports {alias.name} from {place}; known are {', '.join(known)}")
            setattr(sys.modules[place], alias.name, known[alias.name])


class Outcomes:
    """Counts what becomes of the cases."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.count["xfailed" if hasattr(report, "wasxfail") else report.outcome] += report.when != "teardown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, nargs="+", help="test files of the engines (default: vLLM's, from PyPI)")
    parser.add_argument(
        "--directory", type=Path, help="keep what is fetched here, and look here first (default: a temporary one)"
    )
    parser.add_argument("pytest", nargs="*", help="more for pytest, after --, as in -- -k update -x")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        provide(directory, "einops")
        files = options.file
        if not files:
            # its setup.py names the version after what it is built for, unless it is told
            os.environ |= {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": SDIST.partition("==")[2]}
            provide(directory, "setuptools_scm", "vcs_versioning", "setuptools_rust", "semantic_version")
            files = [sdist(directory, SDIST, skips_build="VLLM_SKIP_BUILD") / TESTS]
        tests = []
        for number, file in enumerate(files):
            text = file.read_text()
            stand_in(text)
            tests.append(Path(temporary) / f"test_{number}_{file.stem}.py")
            tests[-1].write_text(text.replace('"cuda"', '"cpu"').replace(".cuda()", "") if not GPU else text)
        if not GPU:
            torch.accelerator.empty_cache = lambda: None  # which files call on every platform that has one
        outcomes = Outcomes()
        quiet = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", temporary, "-c", os.devnull]
        status = pytest.main([*quiet, *options.pytest, *map(str, tests)], plugins=[outcomes])
    counts = ", ".join(f"{outcomes.count[kind]} {kind}" for kind in ("passed", "failed", "skipped", "xfailed"))
    print(f"{', '.join(map(str, options.file or [SDIST]))} on {torch.cuda.get_device_name() if GPU else 'the CPU'}: {counts}")
    return 1 if status or not outcomes.count["passed"] else 0
