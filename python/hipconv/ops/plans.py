"""The plans of calls have this in common: the kernels that serve them, and why one was chosen."""

from __future__ import annotations

import math
from types import ModuleType

from torch import Tensor

from .. import jit
from ..jit import targets
from ..jit.targets import Target


def target_of(x: Tensor, name: str | None) -> Target:
    """The target that a plan is for."""
    if name is not None:
        return targets.named(name, argument="target")
    return targets.of_machine()[0] if x.device.type == "meta" else targets.of(x.device)


def module_for(name: str, target: Target) -> ModuleType:
    """The module that makes the choices of `target`, which need not be in this machine: then that of one that runs here."""
    here = that_runs_here(target)
    return jit.module(name, here, "" if here == target else f"whose host code makes the plan for {target}")


def that_runs_here(target: Target) -> Target:
    """A target of this machine whose module makes the same choices."""
    if target.backend == "cpu":
        return Target("cpu", targets.host_isa())
    if target.backend == "simt" or target in targets.of_machine():
        return target
    return Target("simt", "wave64" if target.backend == "rocm" else "wave32")


def distinct_bytes(tensor: Tensor) -> int:
    """An axis of stride 0 shows the same elements again."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
    return math.prod(sizes) * tensor.element_size()


def si(value: int) -> str:
    """With a decimal prefix: 268435456 -> "268.4 M"."""
    exponent = min(4, max(0, len(str(value)) - 1) // 3)
    return f"{value / 1000**exponent:.{1 if exponent else 0}f} {' kMGT'[exponent].strip()}"
