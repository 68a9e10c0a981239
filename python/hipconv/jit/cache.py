"""Built modules on disk: where they are kept, how they get there whole or not at all, how they are found again.

<root>/<module>-<backend>-<arch>-<fingerprint>-<compiler>/   the library, meta.json, and the sources it was built from
<root>/.building-<the same>-XXXX/                            a build under way, whose .builder says, or what a killed one left
<root>/.locks/<the same>.lock                                taken while building; the OS releases it when its holder dies
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

from ..errors import CacheUntrusted, CacheUnwritable
from . import registry, trust, under_way
from .interruptions import pass_on
from .variables import switch

_RECORDED = {"module", "target", "name", "library", "library_bytes", "sha256", "seconds"}
_LITERAL = re.compile(r"[\w ./+=@%,~-]+", re.ASCII)
_ARTEFACT_NAME = re.compile(r"(?P<module>\w+)-(rocm|cuda|cpu|simt)-[\w-]+-[0-9a-f]{16}-[0-9a-f]{8}")


class Artefact(NamedTuple):
    """A published build."""

    directory: Path
    meta: dict

    @property
    def library(self) -> Path:
        return self.directory / self.meta["library"]


# ---- roots -------------------------------------------------------------------------------------------------------------------


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
    if not chosen:
        return None
    if (expanded := os.path.expanduser(chosen)).startswith("~"):
        raise ValueError(f"HIPCONV_CACHE_DIR: got '{chosen}', expected a directory: there is no home that '~' could stand for")
    return Path(expanded).absolute()


def _temporary_root() -> Path | None:
    try:
        return Path(tempfile.gettempdir(), f"hipconv-{os.geteuid()}")
    except OSError:  # no temporary directory at all
        return None


# ---- trust -------------------------------------------------------------------------------------------------------------------


def objection(root: Path, place: Path) -> str | None:
    """Why what is at `place`, which is `root` or below it, is not to be loaded: others than this user and root could have put
    it there.

    HIPCONV_TRUST_CACHE=1 vouches for HIPCONV_CACHE_DIR. To be asked again of a directory that was made meanwhile, perhaps by
    others.
    """
    if root == _named_root() and switch("TRUST_CACHE", False):
        return None
    return trust.objection(place)


def _refuse_if_named(root: Path, reason: str) -> None:
    """An error where the user has asked for `root` by name, and would look there in vain for what is built elsewhere."""
    if root == _named_root():
        raise CacheUntrusted(
            f"HIPCONV_CACHE_DIR: got {root}, from which no code is loaded because others could have put it there: {reason}. "
            f"Expected a "
            "directory that this user or root owns, in directories that they own, and which nobody else may write to (`chmod "
            "go-w`, `chown`). Set HIPCONV_TRUST_CACHE=1 to use it nevertheless, if you trust all who can write there."
        )


def _trusted(root: Path) -> bool:
    """Tell whether to use what is in `root`; says so where a user would expect it."""
    reason = objection(root, root)
    if reason is None:
        return True
    _refuse_if_named(root, reason)
    if root == _lasting_root():
        warnings.warn(
            f"hipconv passes over its cache {root}, where others could have put code: {reason}. Mend that with `chmod` or "
            f"`chown`, or set HIPCONV_CACHE_DIR to a directory of this user's own that lasts.",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


# ---- a place to write to -----------------------------------------------------------------------------------------------------


def why_unusable(root: Path) -> str | None:
    """None if files can be made under `root` (which is created, for this user alone) and can be trusted there,
    else the reason.
    """
    try:
        if reason := objection(root, root):
            return reason
        _make_private(root)
        if reason := objection(root, root):
            return reason
        with tempfile.TemporaryFile(dir=root):
            return None
    except OSError as error:
        pass_on(error)
        return error.strerror or str(error)


def _why_taken(place: Path) -> str | None:
    """None if nothing is at `place`, or something that this user may replace."""
    try:
        owner = place.lstat().st_uid
    except OSError:
        return None
    return None if owner == os.geteuid() else f"holds a build that cannot be used and belongs to {trust.name_of(owner)}"


def _make_private(directory: Path) -> None:
    """Make `directory` and those that lead to it, as far as they are missing."""
    if not directory.is_dir():
        _make_private(directory.parent)
        with contextlib.suppress(FileExistsError):  # by another process, or it is a file, as its next use shows
            directory.mkdir(mode=0o700)


def writable_root(name: str) -> Path:
    """The first root in which `name` can be published; says so when that is not the first one."""
    refusals = [] if _lasting_root() else ["~/.cache/hipconv (this user has no home directory)"]
    unwritable = bool(refusals)
    for root in roots():
        reason = why_unusable(root) or _why_taken(root / name)
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


# ---- finding -----------------------------------------------------------------------------------------------------------------


def candidates(name: str, compiler: str | None, problems: list[str]) -> Iterator[Artefact]:
    """Artefacts called `name` that `compiler` built; by any, newest first, where that is None. Starts no process, and deletes
    nothing.

    What is wrong with those that are left out is added to `problems`.
    """
    for root in filter(_trusted, roots()):
        by_any = compiler is None
        if by_any and os.path.exists(root) and not os.access(root, os.R_OK | os.X_OK):
            problems.append(f"{root} cannot be read")
        for directory in (
            sorted(_listing(root, f"{name}-*"), key=_time_of, reverse=True) if by_any else [root / f"{name}-{compiler}"]
        ):
            if artefact := read(directory, problems):
                yield artefact


def read(directory: Path, problems: list[str] | None = None) -> Artefact | None:
    """The artefact in `directory`, if it is to be trusted and whole to the last byte: a damaged library crashes, or computes
    nonsense.

    It is not written to once it is published, only replaced as a whole: what is read here is what an import finds next.
    """
    reason = "is damaged"
    try:
        while True:
            place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                meta = _meta_of_whole_artefact(place)
                is_still_there = os.path.samestat(os.fstat(place), os.stat(directory))
            finally:
                os.close(place)
            if is_still_there:  # and was not replaced meanwhile by another process
                break
        untrusted = meta and _distrust(directory, meta)
        if meta and not untrusted:
            return Artefact(directory, meta)
        reason = untrusted or reason
    except OSError as error:
        pass_on(error)
        if isinstance(error, FileNotFoundError) and not os.path.lexists(directory):
            return None
        reason = f"cannot be read: {error.strerror}"
    if problems is not None:
        problems.append(f"{directory} {reason}")
    return None


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
    except (OSError, ValueError, TypeError) as error:
        pass_on(error)
        return None


def _distrust(directory: Path, meta: dict) -> str | None:
    for name in ("meta.json", meta["library"]):
        if reason := objection(directory.parent, directory / name):
            _refuse_if_named(directory.parent, reason)
            return f"is not to be trusted: {reason}"
    return None


def _sha256(file: IO[bytes]) -> str:
    total = hashlib.sha256()  # the fastest in hashlib on processors with instructions for it: 0.7 ms a megabyte
    while block := file.read(1 << 20):
        total.update(block)
    return total.hexdigest()


def _time_of(place: Path) -> float:
    try:
        return place.lstat().st_mtime
    except OSError:  # gone meanwhile
        return 0


def _listing(root: Path, pattern: str) -> list[Path]:
    try:
        return list(root.glob(pattern))
    except OSError:
        return []


def listing() -> list[Artefact]:
    """Every artefact in every root."""
    return [artefact for place, _ in _places() if (artefact := read(place))]


def _places() -> list[tuple[Path, str]]:
    """Every directory that is named as an artefact, and its module."""
    named = (
        (place, _ARTEFACT_NAME.fullmatch(place.name))
        for root in filter(_trusted, roots())
        for place in sorted(_listing(root, "*"))
    )
    return [(place, match["module"]) for place, match in named if match and place.is_dir() and not place.is_symlink()]


# ---- publishing --------------------------------------------------------------------------------------------------------------


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
    except (OSError, NotImplementedError) as error:
        pass_on(error)
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
    """Delete what this user's killed builds left: the directories whose lock nobody holds."""
    for leftover in filter(trust.ours, _listing(root, ".building-*")):
        name = leftover.name.removeprefix(".building-").rpartition("-")[0]
        with _locked(root, name, wait=False) as nobody_builds_it:
            if nobody_builds_it and not under_way.is_under_way(leftover):
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def staging(root: Path, name: str) -> Iterator[Path]:
    """A private directory to build `name` in, gone afterwards unless it was published."""
    directory = Path(tempfile.mkdtemp(prefix=f".building-{name}-", dir=root))
    try:
        with contextlib.suppress(OSError):  # of a full disk, which what follows meets too
            under_way.sign(directory)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def literal(directory: Path) -> Iterator[Path]:
    """A path to `directory` that means the same to ninja, shells, compilers and the dynamic loader: if need be, through /proc.

    There, a process finds what it has open by number, and so do the processes that it starts.
    """
    if _LITERAL.fullmatch(str(directory)):
        yield directory
        return
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        through = Path(f"/proc/{os.getpid()}/fd/{place}")
        if not through.exists():
            raise CacheUnwritable(
                f"HIPCONV_CACHE_DIR: got {str(directory.parent)!r}, expected a path of letters, digits, spaces and . _ - + , "
                f"= @ % ~: "
                "compilers take other characters for something else, and there is no /proc here by which to go round them"
            )
        yield through
    finally:
        os.close(place)


def publish(staged: Path, name: str, meta: dict, *, replace: bool = False) -> Artefact:
    """Make a finished build visible under `name`, with one rename; also where there is one that is whole,
    if told to `replace` it.
    """
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
        if not replace and (artefact := read(final)):  # another process was faster, on a file system without locks
            return artefact
        if not trust.ours(final):
            raise
        with staging(staged.parent, name) as aside:  # and what is there, of whatever kind, goes with it
            final.rename(aside / "replaced")
            staged.rename(final)
    return Artefact(final, meta)


def clear(modules: Sequence[str], keep: Callable[[Artefact], bool] = lambda artefact: False) -> tuple[list[Path], list[Path]]:
    """Delete the artefacts of some modules, or of all if none is named, but for those to `keep`, and what killed builds left.
    Touches nothing else.

    Returns what was deleted, and the artefacts that were not because they belong to other users.
    """
    if not switch("JIT", True):
        raise ValueError("HIPCONV_JIT: got '0', expected 1 to delete builds: with 0 none could be made in their place")
    places = _places()
    held = {module for _, module in places}  # some perhaps of earlier versions
    for module in modules:
        if module not in held:
            registry.module(module)
    for root in filter(_trusted, roots()):
        reap(root)
    found = [
        place for place, module in places if module in (modules or held) and not ((artefact := read(place)) and keep(artefact))
    ]
    own = [place for place in found if trust.ours(place)]
    for place in own:
        shutil.rmtree(place)
    return own, [place for place in found if place not in own]
