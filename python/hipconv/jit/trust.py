"""Trust in files: code is loaded that this user or root wrote, if nobody else could have put it where it is."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
from pathlib import Path
import pwd
import stat

_MOST_LINKS = 40  # as many as Linux follows


def objection(path: Path) -> str | None:
    """None if only this user and root could have put there what is, or will be, at `path`; else what speaks against it.

    Looks at every directory and link that leads there, as somebody who may rename one of them chooses all below it. Directories
    that do not exist yet are not looked at, nor those that this user may not look into: nothing can be loaded from there.
    """
    ahead = list(reversed(path.absolute().parts[1:]))
    place, links = Path("/"), 0
    try:
        while True:
            info = place.lstat()
            if stat.S_ISLNK(info.st_mode):
                if (reason := _wrong_owner(place, info)) or links == _MOST_LINKS:
                    return reason
                target = Path(os.readlink(place))
                ahead += reversed(target.parts[target.is_absolute() :])
                place, links = Path("/") if target.is_absolute() else place.parent, links + 1
            elif ahead and not stat.S_ISDIR(info.st_mode):
                return None  # like /dev/null
            elif reason := _wrong_owner(place, info) or _wrong_writers(place, info, is_last=not ahead):
                return reason
            if not ahead:
                return None
            name = ahead.pop()
            place = place.parent if name == ".." else place / name
    except OSError:
        return None


def ours(path: Path) -> bool:
    """Tell whether `path` is there and this user's own, not counting what a link there leads to."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _wrong_owner(place: Path, info: os.stat_result) -> str | None:
    if info.st_uid == os.geteuid() or _is_roots(info.st_uid):
        return None
    return f"{place} belongs to {name_of(info.st_uid)}"


def _wrong_writers(place: Path, info: os.stat_result, is_last: bool) -> str | None:
    if info.st_mode & stat.S_ISVTX and _is_roots(info.st_uid) and not is_last:
        return None  # like /tmp: nobody may rename there what is not his
    if info.st_mode & stat.S_IWOTH:
        return f"everybody may write to {place}"
    if info.st_mode & stat.S_IWGRP and not _is_private(info.st_gid, info.st_uid, place):
        return f"group {_group_of(info.st_gid)} may write to {place}"
    return None


def _is_private(gid: int, owner: int, place: Path) -> bool:
    """Tell whether the group is that of one user, the owner or this one: his primary group, called as he is,
    as where the umask is 002.
    """
    try:
        os.getxattr(place, "system.posix_acl_access")
        return False  # the group's bits stand for all whom an access control list names
    except OSError:
        pass
    for uid in (owner, os.geteuid()):
        with contextlib.suppress(KeyError):  # who has no name has no group of that name
            user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
            if user.pw_gid == gid and user.pw_name == group.gr_name and {*group.gr_mem} <= {user.pw_name}:
                return True
    return False


def _is_roots(uid: int) -> bool:
    return uid == 0 or uid == _overflow_uid()


@functools.cache
def _overflow_uid() -> int:
    """As whom root's files appear in a user namespace that root is not in, as Apptainer makes one; 0 elsewhere."""
    try:
        if any(line.split()[0] == "0" for line in Path("/proc/self/uid_map").read_text().splitlines()):
            return 0
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0


def name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
