"""From where code is loaded: only from where nobody but this user and root could have put it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import support  # noqa: F401  makes an uninstalled hipconv importable
from hipconv.jit import trust


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file that is to be trusted, three directories below one that is."""
    library = tmp_path / "home" / "cache" / "artefact" / "library.so"
    library.parent.mkdir(parents=True)
    library.touch(0o755)
    for place in (library, *library.parents[:3]):
        place.chmod(0o755)
    assert trust.objection(library) is None
    return library


@pytest.fixture
def nobody_elses_group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what the files' group is called and whom it holds, for the test to change."""
    group = SimpleNamespace(gr_name="alice", gr_mem=[])
    user = SimpleNamespace(pw_name="alice", pw_gid=os.getegid())
    monkeypatch.setattr(trust.grp, "getgrgid", lambda gid: group)
    monkeypatch.setattr(trust.pwd, "getpwuid", lambda uid: user)
    group.owner = user
    return group


def test_whoever_may_write_on_the_way_decides_what_is_there(library: Path, nobody_elses_group: SimpleNamespace) -> None:
    nobody_elses_group.gr_name = "staff"
    for place in (library, *library.parents[:3]):
        for mode, reason in ((0o757, f"everybody may write to {place}"), (0o775, f"group staff may write to {place}")):
            place.chmod(mode)
            assert trust.objection(library) == reason
        place.chmod(0o755)


def test_a_directory_like_tmp_may_be_on_the_way_but_is_no_cache(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_is_roots", lambda uid: True)
    library.parent.chmod(0o1777)
    assert trust.objection(library) is None
    assert trust.objection(library.parent / "not there yet") is None
    assert trust.objection(library.parent) == f"everybody may write to {library.parent}"


def test_a_group_of_one_user_may_write(library: Path, nobody_elses_group: SimpleNamespace) -> None:
    library.parent.chmod(0o775)
    assert trust.objection(library) is None
    nobody_elses_group.gr_mem = ["alice"]
    assert trust.objection(library) is None
    nobody_elses_group.gr_mem = ["alice", "bob"]
    assert trust.objection(library)
    nobody_elses_group.gr_mem = []
    nobody_elses_group.owner.pw_gid += 1  # not her primary group: whose it is, nobody knows
    assert trust.objection(library)


def test_a_group_that_an_access_control_list_extends_may_not(
    library: Path, nobody_elses_group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.parent.chmod(0o775)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"user:bob:rwx")
    assert trust.objection(library) == f"group alice may write to {library.parent}"


def test_what_belongs_to_another_user_is_not_trusted(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lstat = Path.lstat
    for others in (library, *library.parents[:3]):

        def owned_by_another(place: Path, others: Path = others) -> object:
            info = lstat(place)
            return SimpleNamespace(st_mode=info.st_mode, st_uid=12345, st_gid=info.st_gid) if place == others else info

        monkeypatch.setattr(Path, "lstat", owned_by_another)
        assert trust.objection(library) == f"{others} belongs to uid 12345"
        monkeypatch.setattr(trust, "_overflow_uid", lambda: 12345)  # in a user namespace root's files look so
        assert trust.objection(library) is None
        monkeypatch.undo()


def test_links_are_followed_and_all_that_they_lead_through_is_looked_at(library: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    for target in (library.parent, "home/cache/artefact", "home/../home/cache/./artefact"):
        link.symlink_to(target)
        assert trust.objection(link / "library.so") is None
        library.parent.parent.chmod(0o757)
        assert trust.objection(link / "library.so") == f"everybody may write to {library.parent.parent}"
        library.parent.parent.chmod(0o755)
        link.unlink()
    link.symlink_to("link")
    assert trust.objection(link / "library.so") is None  # nothing can be loaded from there


def test_a_link_that_another_user_made_is_not_trusted(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    link = tmp_path / "link"
    link.symlink_to(library)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert trust.objection(link) == f"{link} belongs to uid 12345"
