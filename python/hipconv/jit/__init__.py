"""From a module's name to its loaded kernels.

module(name, target)   a dictionary lookup when warm
  -> cache             a published artefact: import it; no compiler, no other process
  -> build             stage the sources, torch.utils.cpp_extension.load, publish with one rename
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import hashlib
import importlib.util
import json
import logging
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from types import ModuleType

import torch

from ..arguments import require_kinds
from ..errors import BadRegistry, BuildDisabled, BuildError, CaptureError
from . import cache, registry, targets
from .interruptions import causes, pass_on
from .targets import Target
from .variables import switch

_PATIENCE = 10.0  # seconds, after which a log is told of a build

_loaded: dict[tuple[str, Target], ModuleType] = {}
_loaded_for_gpu: dict[tuple[str, int], ModuleType] = {}  # by device index, for calls of a few microseconds
# Texts by artefact name: an edit makes another name, so the failure is not remembered against it. An exception would hold on to its
# traceback, and so to the tensors of the call that met it.
_failed: dict[str, str] = {}
_lock = threading.RLock()


def _forget_lock() -> None:
    """A child forked while another thread was building must not wait for that thread."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)


# ---- the way in ----------------------------------------------------------------------------------------------------------------


def module(name: str, target: Target, purpose: str = "") -> ModuleType:
    """The loaded extension module `name` for `target`, built first if it must be; then `purpose` says why, where that is not plain.

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
    with _lock:
        if (name, target) not in _loaded:
            _loaded[name, target] = _find_or_build(name, target, purpose)
        return _loaded[name, target]


def loaded(name: str, tensor: torch.Tensor) -> ModuleType | None:
    """The module for tensors where this one is, if an earlier call has loaded it; perhaps one for a device that has no module."""
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
        hipconv.errors.UnknownModule: one of them names no module; nothing is built then. Other errors of `hipconv.errors`: a build.
    """
    require_kinds(warmup, locals())
    entries = [registry.module(name) for name in (registry.modules() if modules is None else modules)]
    machine = targets.of_machine()
    _failed.clear()
    for entry in entries:
        for target in machine[:-1] or machine:
            if registry.serves(entry, target.backend):
                module(entry.name, target)


def build(name: str, target: Target) -> cache.Artefact:
    """Make sure that an artefact exists, for this machine or another one; what `python -m hipconv build` does."""
    _check_switches()
    with _lock:
        wanted = artefact_name(name, target)
        problems: list[str] = []
        found = next(cache.candidates(wanted, _compiler_hash(target), problems), None)
        return found or _build(name, target, wanted, problems)[0]


def _find_or_build(name: str, target: Target, purpose: str) -> ModuleType:
    _check_switches()
    wanted = artefact_name(name, target)
    problems: list[str] = []
    for found in cache.candidates(wanted, _compiler_hash(target), problems):
        try:
            return _import(found)
        except ImportError as error:
            problems.append(f"{found.directory} cannot be imported: {error}")
    return _build(name, target, wanted, problems, purpose)[1]


def _check_switches() -> None:
    """Raise ValueError for one that is neither on nor off, before anybody relies on it."""
    for name in ("JIT", "VERBOSE", "TRUST_CACHE"):
        switch(name, False)


def _import(artefact: cache.Artefact) -> ModuleType:
    dynamic = "$" in str(artefact.directory)  # to the dynamic loader, $LIB and the like are variables
    with cache.literal(artefact.directory) if dynamic else contextlib.nullcontext(artefact.directory) as directory:
        spec = importlib.util.spec_from_file_location(artefact.meta["name"], directory / artefact.meta["library"])
        assert spec and spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return loaded


# ---- what an artefact depends on -----------------------------------------------------------------------------------------------


def artefact_name(name: str, target: Target) -> str:
    """Module, target, and a hash of all that goes into the library but the compiler."""
    entry = registry.module(name)
    if not registry.serves(entry, target.backend):
        raise BadRegistry(f"module '{name}' has no kernels for {target}: expected a target of another backend")
    root = registry.source_root()
    files = [*registry.sources(entry, target.backend), *registry.headers(entry, target.backend)]
    ingredients = {
        "files": {str(file): hashlib.sha256((root / file).read_bytes()).hexdigest() for file in files},
        "flags": targets.flags(target, entry.flags),
        "torch": [torch.__version__, torch.version.git_version],
        "python": [sysconfig.get_config_var("SOABI"), os.uname().machine],
        "target": target,
    }
    digest = hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()
    return f"{name}-{target.backend}-{target.arch}-{digest[:16]}"


def _compiler_hash(target: Target) -> str | None:
    """A hash of the compilers, or None where they are not installed: then any build of the same sources will do."""
    record = targets.compiler_record(target.backend)
    return None if record is None else hashlib.sha256(json.dumps(record).encode()).hexdigest()[:8]


# ---- building ------------------------------------------------------------------------------------------------------------------


def _build(name: str, target: Target, wanted: str, problems: list[str], purpose: str = "") -> tuple[cache.Artefact, ModuleType]:
    """Build and publish, or wait for the process that does; returns the artefact and the loaded module.

    `problems` are those of earlier builds.
    """
    use = f"for {target}{purpose and f', {purpose}'}"
    if not switch("JIT", True):
        unusable = "none that the caches hold can be used: " + "; ".join(problems)
        missing = f"no cache holds it (looked for {wanted}-* in {', '.join(map(str, cache.roots()))})"
        raise BuildDisabled(
            f"HIPCONV_JIT=0 forbids building '{name}' {use}, and {unusable if problems else missing}. Run `python -m hipconv build "
            f"{name} --arch {target.arch}` without HIPCONV_JIT=0 where this torch and a compiler are installed, or point HIPCONV_CACHE_DIR "
            "to where that was done."
        )
    for problem in problems:
        _say(f"building {name} for {target} again: {problem}")
    targets.require_toolchain(target, use)
    full_name = f"{wanted}-{_compiler_hash(target)}"
    if full_name in _failed:
        raise BuildError(_failed[full_name])
    root = cache.writable_root(full_name)
    with cache.building(root, full_name, on_wait=lambda: _say(f"waiting for another process to build {name} {use}", always=bool(purpose))):
        found = cache.read(root / full_name)
        if found:
            with contextlib.suppress(ImportError):  # that one could not be imported before, either
                return found, _import(found)  # that process was faster
        with cache.staging(root, full_name) as staged, cache.literal(staged) as literal:
            started = time.monotonic()
            try:
                files = len(registry.sources(registry.module(name), target.backend))
                progress = _progress(f"{name} {use}", literal, files, announced=bool(purpose))
                with progress, _environment(targets.loader_environment(target, literal / "tools")):
                    loaded = _load(name, target, literal, full_name)
                meta = {
                    "module": name,
                    "target": list(target),
                    "name": loaded.__name__,
                    "library": f"{loaded.__name__}.so",
                    "seconds": round(time.monotonic() - started, 1),
                    "torch": torch.__version__,
                    "compilers": targets.compiler_record(target.backend),
                }
                for leaving in (*staged.glob("*.o"), *staged.glob(".ninja_*"), *staged.glob("lock")):
                    leaving.unlink()
                shutil.rmtree(staged / "tools")
                return cache.publish(staged, full_name, meta, replace=found is not None), loaded
            except Exception as error:
                pass_on(error)
                why = _why_it_failed(name, target, use, root, literal, error)
                if not any(isinstance(cause, OSError) for cause in causes(error)):  # such as a full disk, which may be mended
                    _failed[full_name] = why
                raise BuildError(why) from None


def _load(name: str, target: Target, staged: Path, full_name: str) -> ModuleType:
    """Copy the sources below `staged` and let torch's loader compile and import them there.

    The copy keeps hipify, which writes beside what it reads, out of the user's tree. A directory used once also keeps the loader's
    two memories away: of a lock file whose owner died, and of an earlier failure in this process.
    """
    from torch.utils import cpp_extension

    entry = registry.module(name)
    root = registry.source_root()
    for header in registry.headers(entry, target.backend):
        _copy(root / header, staged / header)
    places = registry.staged_names(entry, target.backend)
    for source, place in places.items():
        _copy(root / source, staged / place)
    flags = targets.flags(target, entry.flags)
    with _quiet_hipify() if target.backend == "rocm" and not _verbose() else contextlib.nullcontext():
        return cpp_extension.load(
            name=re.sub(r"\W", "_", f"hipconv_{full_name}"),  # pybind11 takes two modules of one name for one
            sources=[str(staged / place) for place in places.values()],
            extra_cflags=flags.host,
            extra_cuda_cflags=flags.device,
            extra_ldflags=flags.link,
            build_directory=str(staged),
            with_cuda=target.on_gpu,
            verbose=_verbose(),
        )


def _quiet_hipify() -> contextlib.AbstractContextManager:
    """hipify prints that it succeeded, whatever it is told."""
    from unittest import mock

    from torch.utils.hipify import hipify_python

    return mock.patch.object(hipify_python, "print", lambda *_, **__: None, create=True)


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, destination)


def _why_it_failed(name: str, target: Target, use: str, root: Path, staged: Path, error: Exception) -> str:
    text = str(error)
    for cause in causes(error):  # torch asks compilers who they are, and keeps for itself what those said that failed to answer
        if isinstance(cause, subprocess.CalledProcessError) and (said := (cause.output or b"").decode(errors="replace")) not in text:
            text += f"\n{said}"
    # Sources are compiled by their staged paths, headers found by relative ones; the user's own are wanted for both.
    text = text.replace(f"{staged}{os.sep}", "")
    text = re.sub(r"(?<![\w./-])csrc/", lambda _: f"{registry.source_root()}/csrc/", text)
    for source, place in registry.staged_names(registry.module(name), target.backend).items():
        text = text.replace(str(place), str(source))
    tools = ", ".join(f"{tool} = {place}" for tool, place in targets.compilers(target.backend).items())
    return (
        f"building '{name}' {use} failed ({type(error).__name__}).\n{text}\n"
        f"Compilers: {tools}. Cache: {root}. torch {torch.__version__}.\n"
        "CXX chooses the host compiler; CUDA_HOME or ROCM_HOME the device compiler; HIPCONV_EXTRA_FLAGS adds flags; "
        "HIPCONV_VERBOSE=1 shows the commands. This process tries again when a source changes or hipconv.warmup() is called."
    )


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and keep the loader's own log to errors, for as long as it runs."""
    saved = {key: os.environ.get(key) for key in variables}
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    os.environ.update(variables)
    if not _verbose():
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


# ---- saying what goes on -------------------------------------------------------------------------------------------------------


def _verbose() -> bool:
    return switch("VERBOSE", False)


def _say(text: str, *, always: bool = False) -> None:
    """A line on a terminal, or wherever HIPCONV_VERBOSE asks for it; silence in pipes and logs, but for what they are `always` told."""
    if sys.stderr and (always or sys.stderr.isatty() or _verbose()):
        print(f"hipconv: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress(what: str, staged: Path, files: int, *, announced: bool) -> Iterator[None]:
    """Say what is being built and for how long.

    A terminal shows a line that counts the seconds; pipes and logs get one when the build has taken _PATIENCE seconds, as somebody may
    think that the process hangs, and one each minute from then on. What the user did not ask for is announced there, too.
    """
    started = time.monotonic()
    done = threading.Event()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()

    def report() -> None:
        wait = 1.0 if on_terminal else _PATIENCE
        with contextlib.suppress(OSError, ValueError):  # whoever listened has left
            while not done.wait(wait):
                so_far = f"{time.monotonic() - started:.0f} s, {sum(1 for _ in staged.glob('*.o'))} of {files} files"
                if on_terminal:  # what it is for has been said, and the line is to fit
                    print(f"\rhipconv: building {what.partition(',')[0]} … {so_far} ", end="", file=sys.stderr, flush=True)
                else:
                    _say(f"building {what} … {so_far} compiled", always=True)
                    wait = 60.0

    reporter = threading.Thread(target=report, daemon=True)
    _say(f"building {what} (once; later processes load it from the cache)", always=announced)
    if not _verbose():
        reporter.start()
    outcome = "stopped building {what} after"
    try:
        yield
        outcome = "built {what} in"
    finally:
        done.set()
        if not _verbose():
            reporter.join()
            if on_terminal:
                print("\r\x1b[K", end="", file=sys.stderr)
        _say(f"{outcome.format(what=what)} {time.monotonic() - started:.1f} s", always=announced)
