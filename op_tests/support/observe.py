"""This observes what a call runs: its operators, the memory that it allocates, what it starts on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
import tempfile

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.backends import environment


class Calls(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


class LookOn(TorchDispatchMode):
    """Sends calls through the operator, as torch.compile and a process's first call do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def launches_of(call: Callable[[], object]) -> list[str]:
    """The kernels that a call launches on simt, by the names by which its launchers call them."""
    with tempfile.TemporaryDirectory() as folder, environment(HIPCONV_SIMT_LAUNCHES=f"{folder}/launches"):
        call()
        log = Path(folder, "launches")
        return log.read_text().splitlines() if log.exists() else []


def cost_of(call: Callable[[], object]) -> tuple[int, list[str]]:
    """Bytes that a second `call` allocates, whether it keeps them or not, and what it starts on a GPU: kernels, copies,
    fills.
    """
    call()
    with torch.profiler.profile(profile_memory=True) as profile:
        result = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    del result
    events = profile.events() or []
    allocated = sum(max(0, event.self_cpu_memory_usage + event.self_device_memory_usage) for event in events)
    return allocated, [event.name for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
