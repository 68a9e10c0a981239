"""From a module's name to its loaded kernels.

module(name, target)   a dictionary lookup when warm
  -> builds.Build      all that goes into it, looked up once: sources, headers, flags, compilers, and the name that these give
  -> cache             a published artefact: import it; no compiler, no other process
  -> builder           stage the sources, torch.utils.cpp_extension.load, publish with one rename
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from ..arguments import require_kinds
from ..errors import CaptureError
from . import builder, cache, forks, registry, targets
from .builds import Build
from .targets import Target
from .variables import switch

_loaded: dict[tuple[str, Target], ModuleType] = {}
_loaded_for_gpu: dict[tuple[str, int], ModuleType] = {}  # by device index, for calls of a few microseconds


def module(name: str, target: Target, purpose: str = "") -> ModuleType:
    """The loaded extension module `name` for `target`, built first if it must be; then `purpose` says why, where that is not
    plain.

    Raises a subclass of `hipconv.errors.JitError`.
    """
    try:
        return _loaded[name, target]
    except KeyError:
        pass
    if target.on_gpu and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            f"'{name}' for {target} is not loaded yet, and nothing may be built or loaded while a graph is captured. "
            f"Call hipconv.warmup(['{name}']) before the capture."
        )
    with forks.lock:
        if (name, target) not in _loaded:
            _loaded[name, target] = _find_or_build(name, target, purpose)
        return _loaded[name, target]


def loaded(name: str, tensor: torch.Tensor) -> ModuleType | None:
    """The module for tensors where this one is, if an earlier call has loaded it;
    perhaps one for a device that has no module.
    """
    index = tensor.get_device()
    if index >= 0 and (found := _loaded_for_gpu.get((name, index))):
        return found
    if tensor.device.type not in ("cpu", "cuda"):
        return None
    found = _loaded.get((name, targets.of(tensor.device)))
    if found and index >= 0:
        _loaded_for_gpu[name, index] = found
    return found


def warmup(modules: Sequence[str] | None = None) -> None:
    """Build if necessary, and load, ahead of the first call: before graph capture, before a server takes traffic.

    Args:
        modules: names from ``python -m hipconv list``; all by default.

    Serves every visible GPU, or the CPU where there is none. A module whose build failed earlier is tried again.

    Raises:
        TypeError: `modules` is no list of strings.
        hipconv.errors.UnknownModule: one of them names no module; nothing is built then. Other errors of `hipconv.errors`: a
        build.
    """
    require_kinds(warmup, locals())
    entries = [registry.module(name) for name in (registry.modules() if modules is None else modules)]
    machine = targets.of_machine()
    builder.forget_failures()
    for entry in entries:
        for target in machine[:-1] or machine:
            if registry.serves(entry, target.backend):
                module(entry.name, target)


def build(name: str, target: Target) -> cache.Artefact:
    """Make sure that an artefact exists, for this machine or another one; what `python -m hipconv build` does."""
    _check_switches()
    with forks.lock:
        wanted = Build.of(name, target)
        problems: list[str] = []
        found = next(cache.candidates(wanted.name, wanted.compiler, problems), None)
        return found or builder.make(wanted, problems)[0]


def _find_or_build(name: str, target: Target, purpose: str) -> ModuleType:
    _check_switches()
    wanted = Build.of(name, target, purpose)
    problems: list[str] = []
    for found in cache.candidates(wanted.name, wanted.compiler, problems):
        try:
            return builder.load(found)
        except ImportError as error:
            problems.append(f"{found.directory} cannot be imported: {error}")
    return builder.make(wanted, problems)[1]


def _check_switches() -> None:
    """Raise ValueError for one that is neither on nor off, before anybody relies on it."""
    for name in ("JIT", "VERBOSE", "TRUST_CACHE"):
        switch(name, False)


def artefact_name(name: str, target: Target) -> str:
    """Module, target, and a hash of all that goes into the library but the compiler."""
    return Build.of(name, target).name
