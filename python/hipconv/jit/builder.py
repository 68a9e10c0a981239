"""Build a module: stage the sources, torch.utils.cpp_extension.load, publish with one rename."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import importlib.util
import logging
import os
from pathlib import Path
import re
import resource
import shutil
import subprocess
import tempfile
import time
from types import ModuleType

import torch

from ..errors import BuildDisabled, BuildError
from . import cache, toolchain
from .builds import Build
from .interruptions import causes, pass_on
from .progress import say, showing, verbose
from .variables import switch

# Texts by artefact name: an edit makes another name, so the failure is not remembered against it. An exception would hold on to
# its traceback, and so to the tensors of the call that met it.
_failed: dict[str, str] = {}

_LEAST_ROOM = 1 << 20  # bytes with which no compiler gets far, whatever it says then: some end with a signal


def forget_failures() -> None:
    """Let builds that failed be tried again."""
    _failed.clear()


def load(artefact: cache.Artefact) -> ModuleType:
    """Import a build."""
    dynamic = "$" in str(artefact.directory)  # to the dynamic loader, $LIB and the like are variables
    with cache.literal(artefact.directory) if dynamic else contextlib.nullcontext(artefact.directory) as directory:
        spec = importlib.util.spec_from_file_location(artefact.meta["name"], directory / artefact.meta["library"])
        assert spec and spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return loaded


def make(build: Build, problems: list[str]) -> tuple[cache.Artefact, ModuleType]:
    """Build and publish, or wait for the process that does; returns the artefact and the loaded module.

    `problems` are those of earlier builds.
    """
    if not switch("JIT", True):
        unusable = "none that the caches hold can be used: " + "; ".join(problems)
        missing = f"no cache holds it (looked for {build.name}-* in {', '.join(map(str, cache.roots()))})"
        raise BuildDisabled(
            f"HIPCONV_JIT=0 forbids building '{build.module}' {build.use}, and {unusable if problems else missing}. Run "
            f"`python -m hipconv "
            f"build {build.module} --arch {build.target.arch}` without HIPCONV_JIT=0 where this torch and a compiler are "
            f"installed, or point HIPCONV_CACHE_DIR to where that was done."
        )
    for problem in problems:
        say(f"building {build.module} for {build.target} again: {problem}")
    toolchain.require_toolchain(build.target, build.use)
    full_name, announced = build.full_name, bool(build.purpose)
    if full_name in _failed:
        raise BuildError(_failed[full_name])
    root = cache.writable_root(full_name)
    waiting = f"waiting for another process to build {build.module} {build.use}"
    with cache.building(root, full_name, on_wait=lambda: say(waiting, always=announced)):
        found = cache.read(root / full_name)
        if found:
            with contextlib.suppress(ImportError):  # that one could not be imported before, either
                return found, load(found)  # that process was faster
        with cache.staging(root, full_name) as staged, cache.literal(staged) as literal:
            started = time.monotonic()
            try:
                shown = showing(f"{build.module} {build.use}", literal, len(build.sources), announced=announced)
                with shown, _environment(toolchain.loader_environment(build.target, literal / "tools")):
                    loaded = _compile(build, literal)
                meta = {
                    "module": build.module,
                    "target": list(build.target),
                    "name": loaded.__name__,
                    "library": f"{loaded.__name__}.so",
                    "seconds": round(time.monotonic() - started, 1),
                    "torch": torch.__version__,
                    "compilers": build.compilers,
                }
                for leaving in (*staged.glob("*.o"), *staged.glob(".ninja_*"), *staged.glob(".builder"), *staged.glob("lock")):
                    leaving.unlink()
                shutil.rmtree(staged / "tools")
                return cache.publish(staged, full_name, meta, replace=found is not None), loaded
            except Exception as error:
                pass_on(error)
                why = _why_it_failed(build, root, literal, error)
                full = _full_disks(why, root)
                if full:
                    why += f"\nThe disk is full: {full}. The next call tries again."
                elif not any(isinstance(cause, OSError) for cause in causes(error)):  # which may be mended, too
                    _failed[full_name] = why
                raise BuildError(why) from None


def _compile(build: Build, staged: Path) -> ModuleType:
    """Copy the sources below `staged` and let torch's loader compile and import them there.

    The copy keeps hipify, which writes beside what it reads, out of the user's tree. A directory used once also keeps the
    loader's two memories away: of a lock file whose owner died, and of an earlier failure in this process.
    """
    from torch.utils import cpp_extension

    for header in build.headers:
        _copy(build.root / header, staged / header)
    for source, place in build.sources.items():
        _copy(build.root / source, staged / place)
    with _quiet_hipify() if build.target.backend == "rocm" and not verbose() else contextlib.nullcontext():
        return cpp_extension.load(
            name=build.extension,
            sources=[str(staged / place) for place in build.sources.values()],
            extra_cflags=build.flags.host,
            extra_cuda_cflags=build.flags.device,
            extra_ldflags=build.flags.link,
            build_directory=str(staged),
            with_cuda=build.target.on_gpu,
            verbose=verbose(),
        )


def _quiet_hipify() -> contextlib.AbstractContextManager:
    """hipify prints that it succeeded, whatever it is told."""
    from unittest import mock

    from torch.utils.hipify import hipify_python

    return mock.patch.object(hipify_python, "print", lambda *_, **__: None, create=True)


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, destination)


def _full_disks(why: str, root: Path) -> str:
    """Which disks that a build writes to have no room, in words; empty if that was not why it failed,
    as far as anybody says.
    """
    rooms = {}
    for place in (root, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            disk = os.statvfs(place)
            rooms[place] = disk.f_bavail * disk.f_frsize
    longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if longest != resource.RLIM_INFINITY:  # which ends compilers with a signal
        return f"no file may be longer than {longest >> 10} KiB (`ulimit -f`)"
    limits = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if any(os.strerror(code) in why for code in limits) or any(room < _LEAST_ROOM for room in rooms.values()):
        return ", ".join(f"{place} has room for {room >> 10} KiB" for place, room in rooms.items())
    return ""


def _why_it_failed(build: Build, cache_root: Path, staged: Path, error: Exception) -> str:
    text = str(error)
    for cause in causes(error):  # torch asks compilers who they are, and keeps for itself what those said that failed to answer
        if (
            isinstance(cause, subprocess.CalledProcessError)
            and (said := (cause.output or b"").decode(errors="replace")) not in text
        ):
            text += f"\n{said}"
    # Sources are compiled by their staged paths, headers found by relative ones; the user's own are wanted for both.
    text = text.replace(f"{staged}{os.sep}", "")
    text = re.sub(r"(?<![\w./-])csrc/", lambda _: f"{build.root}/csrc/", text)
    for source, place in build.sources.items():
        text = text.replace(str(place), str(source))
    if "failed to map segment" in text:
        text += f"\n{cache_root} is perhaps on a disk mounted with noexec: set HIPCONV_CACHE_DIR to a directory"
        text += " from which code may be run."
    tools = ", ".join(f"{tool} = {place}" for tool, place in toolchain.compilers(build.target.backend).items())
    return (
        f"building '{build.module}' {build.use} failed ({type(error).__name__}).\n{text}\n"
        f"Compilers: {tools}. Cache: {cache_root}. torch {torch.__version__}.\n"
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
    if not verbose():
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
