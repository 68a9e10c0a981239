"""Built modules on disk: where they are kept, how they get there whole or not at all, how they are found again.

<root>/<module>-<backend>-<arch>-<fingerprint>-<compiler>/   the library, meta.json, and the sources it was built from
<root>/.building-<the same>-XXXX/                            a build under way, or what a killed one left
<root>/.locks/<the same>.lock                                taken while building; the OS releases it when its holder dies
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import tempfile
from typing import IO, NamedTuple
import warnings

from . import _trust
from ._variables import switch
from .errors import CacheUntrusted, CacheUnwritable

_RECORDED = {"module", "target", "name", "library", "library_bytes", "sha256", "seconds"}
_ARTEFACT_NAME = re.compile(r"(?P<module>\w+)-(rocm|cuda|cpu|simt)-[\w-]+-[0-9a-f]{16}-[0-9a-f]{8}")


class Artefact(NamedTuple):
    """A published build."""

    directory: Path
    meta: dict

    @property
    def library(self) -> Path:
        return self.directory / self.meta["library"]


# ---- roots ---------------------------------------------------------------------------------------------------------------------


def roots() -> Iterator[Path]:
    """Cache directories, best first: HIPCONV_CACHE_DIR, else XDG_CACHE_HOME, else ~/.cache; then a per-user temporary one."""
    if lasting := _lasting_root():
        yield lasting
    if temporary := _temporary_root():
        yield temporary


def _lasting_root() -> Path | None:
    if named := _named_root():
        return named
    if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return Path(xdg, "hipconv")
    if (home := os.path.expanduser("~")).startswith("/"):
        return Path(home, ".cache", "hipconv")
    return None  # a user without a home


def _named_root() -> Path | None:
    chosen = os.environ.get("HIPCONV_CACHE_DIR")
    return Path(chosen).absolute() if chosen else None


def _temporary_root() -> Path | None:
    try:
        return Path(tempfile.gettempdir(), f"hipconv-{os.geteuid()}")
    except OSError:  # no temporary directory at all
        return None


# ---- trust ---------------------------------------------------------------------------------------------------------------------


def objection(root: Path, place: Path) -> str | None:
    """Why what is at `place`, which is `root` or below it, is not to be loaded: others than this user and root could have put it there.

    HIPCONV_TRUST_CACHE=1 vouches for HIPCONV_CACHE_DIR. To be asked again of a directory that was made meanwhile, perhaps by others.
    """
    if root == _named_root() and switch("TRUST_CACHE", False):
        return None
    return _trust.objection(place)


def _refuse_if_named(root: Path, reason: str) -> None:
    """An error where the user has asked for `root` by name, and would look there in vain for what is built elsewhere."""
    if root == _named_root():
        raise CacheUntrusted(
            f"HIPCONV_CACHE_DIR: got {root}, from which no code is loaded because others could have put it there: {reason}. Expected a "
            "directory that this user or root owns, in directories that they own, and which nobody else may write to (`chmod go-w`, "
            "`chown`). Set HIPCONV_TRUST_CACHE=1 to use it nevertheless, if you trust all who can write there."
        )


def _trusted(root: Path) -> bool:
    """Whether to use what is in `root`; says so where a user would expect it."""
    reason = objection(root, root)
    if reason is None:
        return True
    _refuse_if_named(root, reason)
    if root == _lasting_root():
        warnings.warn(
            f"hipconv passes over its cache {root}, where others could have put code: {reason}. Mend that with `chmod` or `chown`, or set "
            "HIPCONV_CACHE_DIR to a directory of this user's own that lasts.",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


# ---- a place to write to -------------------------------------------------------------------------------------------------------


def why_unusable(root: Path) -> str | None:
    """None if files can be made under `root` (which is created, for this user alone) and can be trusted there, else the reason."""
    try:
        if reason := objection(root, root):
            return reason
        _make_private(root)
        if reason := objection(root, root):
            return reason
        with tempfile.TemporaryFile(dir=root):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _make_private(directory: Path) -> None:
    """Make `directory` and those that lead to it, as far as they are missing."""
    if not directory.is_dir():
        _make_private(directory.parent)
        with contextlib.suppress(FileExistsError):  # by another process, or it is a file, as its next use shows
            directory.mkdir(mode=0o700)


def writable_root() -> Path:
    """The first root that can be written to; says so when that is not the first one."""
    refusals = [] if _lasting_root() else ["~/.cache/hipconv (this user has no home directory)"]
    unwritable = bool(refusals)
    for root in roots():
        reason = why_unusable(root)
        if reason is None:
            if unwritable:
                warnings.warn(
                    f"hipconv cannot write to its cache {'; '.join(refusals)}. Using {root} instead; "
                    "set HIPCONV_CACHE_DIR to a directory that lasts, or every restart may build again.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return root
        if untrusted := objection(root, root):
            _refuse_if_named(root, untrusted)
        else:
            unwritable = True  # the others have been passed over by _trusted, which says so
        refusals.append(f"{root} ({reason})")
    raise CacheUnwritable(f"no writable cache directory: tried {'; '.join(refusals)}. Set HIPCONV_CACHE_DIR to one.")


# ---- finding -------------------------------------------------------------------------------------------------------------------


def find(name: str, compiler: str | None) -> Artefact | None:
    """The artefact called `name` built by `compiler`; by any, newest first, where `compiler` is None. Starts no process."""
    for root in filter(_trusted, roots()):
        if compiler is not None:
            candidates = [root / f"{name}-{compiler}"]
        else:
            candidates = sorted(_listing(root, f"{name}-*"), key=lambda place: place.stat().st_mtime, reverse=True)
        for directory in candidates:
            if artefact := read(directory):
                return artefact
    return None


def read(directory: Path) -> Artefact | None:
    """The artefact in `directory`, if it is to be trusted and whole to the last byte: a damaged library crashes, or computes nonsense.

    It is not written to once it is published, only replaced as a whole: what is read here is what an import finds next.
    """
    while True:
        try:
            place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            meta = _meta_of_whole_artefact(place)
            if os.path.samestat(os.fstat(place), os.stat(directory)):
                return Artefact(directory, meta) if meta and _is_trusted(directory, meta) else None
        except OSError:
            return None
        finally:
            os.close(place)
        # Another process has replaced it meanwhile: read that one.


def _meta_of_whole_artefact(place: int) -> dict | None:
    """meta.json in the directory that is open as `place`, if the library beside it is what that records."""

    def content_of(name: str) -> IO[bytes]:
        return open(name, "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=place))

    try:
        with content_of("meta.json") as file:
            meta = json.load(file)
        if not isinstance(meta, dict) or not meta.keys() >= _RECORDED:  # a hash is missing from those of earlier versions
            return None
        with content_of(meta["library"]) as file:
            return meta if _sha256(file) == meta["sha256"] else None
    except (OSError, ValueError, TypeError):
        return None


def _is_trusted(directory: Path, meta: dict) -> bool:
    for name in ("meta.json", meta["library"]):
        if reason := objection(directory.parent, directory / name):
            _refuse_if_named(directory.parent, reason)
            return False
    return True


def _sha256(file: IO[bytes]) -> str:
    total = hashlib.sha256()  # the fastest in hashlib on processors with instructions for it: 0.7 ms a megabyte
    while block := file.read(1 << 20):
        total.update(block)
    return total.hexdigest()


def _listing(root: Path, pattern: str) -> list[Path]:
    try:
        return list(root.glob(pattern))
    except OSError:
        return []


def listing() -> list[Artefact]:
    """Every artefact in every root."""
    named = (place for root in filter(_trusted, roots()) for place in sorted(_listing(root, "*")) if _ARTEFACT_NAME.fullmatch(place.name))
    return [artefact for place in named if (artefact := read(place))]


# ---- publishing ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(root: Path, name: str, *, wait: bool, on_wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Hold the lock under which `name` is built in `root`; yields whether it is held (not on a file system without locks)."""
    import filelock

    lock = None
    try:
        (root / ".locks").mkdir(exist_ok=True, mode=0o775)
        candidate = filelock.FileLock(str(root / ".locks" / f"{name}.lock"), mode=0o664)
        try:
            candidate.acquire(timeout=0)
            lock = candidate
        except filelock.Timeout:
            if wait:
                on_wait()
                candidate.acquire()
                lock = candidate
    except (OSError, NotImplementedError):
        pass
    try:
        yield lock is not None
    finally:
        if lock:
            lock.release()


def building(root: Path, name: str, on_wait: Callable[[], None]) -> contextlib.AbstractContextManager[bool]:
    """One process at a time builds `name`; the others call `on_wait`, wait, and find it built.

    Where the file system has no locks, nobody waits and several may build: publishing is atomic, so that only costs time.
    """
    reap(root)
    return _locked(root, name, wait=True, on_wait=on_wait)


def reap(root: Path) -> None:
    """Delete what killed builds left: the directories whose lock nobody holds."""
    for leftover in _listing(root, ".building-*"):
        name = leftover.name.removeprefix(".building-").rpartition("-")[0]
        with _locked(root, name, wait=False) as nobody_builds_it:
            if nobody_builds_it:
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def staging(root: Path, name: str) -> Iterator[Path]:
    """A private directory to build `name` in, gone afterwards unless it was published."""
    directory = Path(tempfile.mkdtemp(prefix=f".building-{name}-", dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def publish(staged: Path, name: str, meta: dict) -> Artefact:
    """Make a finished build visible under `name`, with one rename."""
    library = staged / meta["library"]
    with library.open("rb") as file:
        os.fsync(file.fileno())  # after a power cut, either no artefact or a whole one
        meta = {**meta, "library_bytes": os.fstat(file.fileno()).st_size, "sha256": _sha256(file)}
    (staged / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    for file in (library, staged / "meta.json"):
        file.chmod(file.stat().st_mode & 0o755)  # what others may write to is not loaded
    mask = os.umask(0)
    os.umask(mask)
    staged.chmod(0o755 & ~mask)
    final = staged.parent / name
    try:
        staged.rename(final)
    except OSError:
        if artefact := read(final):  # another process was faster, on a file system without locks
            return artefact
        shutil.rmtree(final)  # a damaged one
        staged.rename(final)
    return Artefact(final, meta)


def clear(module: str | None = None) -> list[Path]:
    """Delete the artefacts of one module, or all, and what killed builds left; returns what was deleted. Touches nothing else."""
    removed = []
    for root in filter(_trusted, roots()):
        reap(root)
        for directory in _listing(root, "*"):
            match = _ARTEFACT_NAME.fullmatch(directory.name)
            if match and module in (None, match["module"]) and directory.is_dir():
                shutil.rmtree(directory)
                removed.append(directory)
    return removed
