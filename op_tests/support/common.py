"""Shared by the op tests: backends and memory layouts to run on, comparison with a reference, what ran, timing, the table of a CLI run."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import contextlib
import importlib.util
import mmap
import os
from pathlib import Path
import statistics
import sys
import time

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if importlib.util.find_spec("hipconv") is None:  # run from a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

EVERYTHING = os.environ.get("HIPCONV_TEST_ARCHS") == "all"  # what takes too long for every run, too
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LAYOUTS = ("channel_first", "channel_last")
BACKENDS = ("cpu", "simt", "gpu")  # simt: the GPU kernels, thread by thread, on the host
WAYS = {  # to run CPU tensors, by environment: the GPU kernels in both wave sizes and three orders of threads
    "cpu": {"HIPCONV_BACKEND": "cpu"},
    "simt-wave64": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "ascending"},
    "simt-wave64-descending": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "descending"},
    "simt-wave32-shuffled": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:3"},
}


# ---- where to run --------------------------------------------------------------------------------------------------------------


def backends() -> list[str]:
    """The backends that this machine has."""
    return [backend for backend in BACKENDS if backend != "gpu" or torch.cuda.is_available()]


def device_of(backend: str) -> torch.device:
    """The device whose tensors `backend` serves."""
    return torch.device("cuda" if backend == "gpu" else "cpu")


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for as long as it lasts."""
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def use_backend(backend: str) -> contextlib.AbstractContextManager[None]:
    """Send CPU tensors to `backend`."""
    return environment(HIPCONV_BACKEND="simt" if backend == "simt" else "cpu")


# ---- tensors -------------------------------------------------------------------------------------------------------------------


def empty_as(layout: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised (batch, dim, seqlen) tensor: `channel_first` has seqlen innermost in memory, `channel_last` dim."""
    batch, dim, seqlen = shape
    if layout == "channel_first":
        return torch.empty(batch, dim, seqlen, dtype=dtype, device=device)
    return torch.empty(batch, seqlen, dim, dtype=dtype, device=device).transpose(1, 2)


_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python's mmap does not name on all versions


def untouched(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A view over memory of its own that is all zeros and takes a page only where it is touched."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


# ---- comparison ----------------------------------------------------------------------------------------------------------------


def mismatch(out: Tensor, reference: Tensor, *, may_differ: float = 0.001) -> str | None:
    """None if `out` is `reference` (float64) up to rounding, else what is wrong.

    Every element within 2.5 eps (1 + |ref|) + 2e-6, eps being that of out's dtype; and of a 16-bit out all elements but a share of
    `may_differ` (all but one of a short one) equal to the reference rounded once, so that a second rounding cannot hide.
    """
    if out.shape != reference.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(reference.shape)}"
    error = (out.double() - reference).abs()
    bound = 2.5 * torch.finfo(out.dtype).eps * (1 + reference.abs()) + 2e-6
    outside = ~(error <= bound)  # NaN is outside
    if outside.any():
        where = tuple(int(i) for i in outside.nonzero()[0])
        return (
            f"{int(outside.sum())} of {out.numel()} elements are off, first at {where}: got {out[where].item():.6g}, "
            f"expected {reference[where].item():.6g}"
        )
    if out.dtype != torch.float32:
        differing = int((out != reference.to(out.dtype)).sum())
        if differing > max(1, out.numel() * may_differ):
            return f"{differing} of {out.numel()} elements are not the reference rounded once to {out.dtype}"
    return None


def mismatch_beside_infinities(out: Tensor, reference: Tensor) -> str | None:
    """`mismatch` where the reference is finite; where it is not, `out` is the same infinity, or NaN too."""
    finite = reference.isfinite()
    same = (out.double() == reference) | (out.isnan() & reference.isnan())
    if out.shape != reference.shape or not same[~finite].all():
        return f"{int((~finite & ~same).sum())} of {int((~finite).sum())} infinities and NaNs are not there"
    return mismatch(out[finite], reference[finite], may_differ=0.01)


# ---- what ran ------------------------------------------------------------------------------------------------------------------


class Calls(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def cost_of(call: Callable[[], object]) -> tuple[int, list[str]]:
    """Bytes that a second `call` allocates, whether it keeps them or not, and what it starts on a GPU: kernels, copies, fills."""
    call()
    with torch.profiler.profile(profile_memory=True) as profile:
        result = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    del result
    events = profile.events() or []
    allocated = sum(max(0, event.self_cpu_memory_usage + event.self_device_memory_usage) for event in events)
    return allocated, [event.name for event in events if event.device_type == torch.autograd.DeviceType.CUDA]


# ---- timing and the table ------------------------------------------------------------------------------------------------------


def microseconds(call: Callable[[], object], device: torch.device, budget_s: float = 0.3) -> float:
    """Median time of a call: by graph replay on a GPU, where launches cost more than small kernels; by the clock on the CPU."""
    call()
    if device.type == "cuda":
        return _graph_microseconds(call)
    times: list[float] = []
    while not times or (sum(times) < budget_s and len(times) < 100):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _graph_microseconds(call: Callable[[], object], calls: int = 20, replays: int = 10) -> float:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


class Table:
    """Rows of one width per column, printed as they come."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self.widths = [max(width, len(title)) for title, width in columns]
        self.row(*(title for title, _ in columns))

    def row(self, *cells: object) -> None:
        texts = (str(cell).ljust(w) if i == 0 else str(cell).rjust(w) for i, (cell, w) in enumerate(zip(cells, self.widths, strict=True)))
        print("  ".join(texts), flush=True)


def list_of(kind: Callable[[str], object]) -> Callable[[str], list]:
    """An argparse type for one value or several, comma-separated: `--width 2,4`."""

    def parse(text: str) -> list:
        items = [kind(item) for item in text.split(",") if item]
        if not items:
            raise argparse.ArgumentTypeError(f"got '{text}', expected one value or several, comma-separated")
        return items

    return parse


def at_least(low: int) -> Callable[[str], int]:
    """An argparse type that accepts integers from `low` on."""

    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"got '{text}', expected an integer of at least {low}")
        return int(text)

    return parse


def check_state_len(parser: argparse.ArgumentParser, state_len: int, width: int) -> None:
    """Leave with an error of `parser` if a state of so many columns cannot hold the window."""
    if state_len < width - 1:
        parser.error(f"argument --state_len: got {state_len}, expected at least width - 1 = {width - 1} at --width {width}")


def choice_of(*allowed: str) -> Callable[[str], str]:
    """An argparse type that accepts the given words only."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"got '{text}', expected one of {', '.join(allowed)}")
        return text

    return parse


def flattened(groups: Sequence[list]) -> list:
    """The values of an option that takes several, each possibly a list."""
    return [item for group in groups for item in group]
