"""The owner of a build under way, written into its directory: for where locks do not tell."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import time

_BUILDER = ".builder"
_ABANDONED = 86400  # seconds after which nobody goes on with it
_TO_SIGN = 60  # seconds within which one who makes a directory signs it, however busy the machine is


def sign(directory: Path) -> None:
    """Say that this process builds there."""
    (directory / _BUILDER).write_text(_this_process())


def _this_process() -> str:
    """The machine since its last start, the process, and when that began."""
    boot, start = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        start = _start_of(os.getpid())
    return f"{boot or os.uname().nodename} {os.getpid()} {start}"


def _start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def is_under_way(leftover: Path) -> bool:
    """Tell whether a build goes on although its lock is free: on some network file systems a lock holds in its own machine
    alone, or not.

    Of this machine's processes that is known. What another machine's began is left alone for a day, and what nobody has put
    anything into yet for a minute.
    """
    try:
        if not _content(leftover):
            return abs(time.time() - leftover.stat().st_mtime) < _TO_SIGN
        machine, pid, start = (leftover / _BUILDER).read_text().split(" ")
        if machine == _this_process().split(" ", 1)[0]:
            return _start_of(int(pid)) == start
        return time.time() - leftover.stat().st_mtime < _ABANDONED
    except (OSError, ValueError):  # no such process; or what an earlier version began
        return False


def _content(directory: Path) -> list[str]:
    """Names of what is in there, but for a signature whose file is made and not written yet."""
    with os.scandir(directory) as found:
        return [entry.name for entry in found if entry.name != _BUILDER or entry.stat().st_size > 0]
