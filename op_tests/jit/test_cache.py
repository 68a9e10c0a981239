"""These tests say where the cache is, on other people's machines: no home, nothing writable, files that others may write.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

import os
from pathlib import Path
import re

import pytest

from jit.probe import ANSWER, GIVE_AWAY, UNPRIVILEGED, Probe
from hipconv import cache


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HIPCONV_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_order_of_cache_directories(no_home: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def first() -> str:
        return str(next(cache.roots()))

    no_home.setenv("HOME", str(tmp_path / "home"))
    assert first() == f"{tmp_path}/home/.cache/hipconv"
    no_home.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert first() == f"{tmp_path}/home/.cache/hipconv"
    no_home.setenv("XDG_CACHE_HOME", f"{tmp_path}/xdg")
    assert first() == f"{tmp_path}/xdg/hipconv"
    no_home.setenv("HIPCONV_CACHE_DIR", f"{tmp_path}/chosen")
    assert first() == f"{tmp_path}/chosen"


def test_a_home_that_does_not_exist_yet_will_do(probe: Probe) -> None:
    home = probe.home / "new" / "user"
    assert probe.python(ANSWER, HIPCONV_CACHE_DIR=None, HOME=str(home)) == "42\n"
    assert len(list((home / ".cache/hipconv").glob("probe-*"))) == 1


def fallback_artefacts(probe: Probe) -> list[Path]:
    (root,) = probe.temporary.iterdir()
    assert root.name == f"hipconv-{os.getuid()}" and root.stat().st_mode & 0o777 == 0o700
    return list(root.glob("probe-*"))


def test_an_impossible_cache_falls_back_and_says_so(probe: Probe) -> None:
    done = probe.script(ANSWER, HIPCONV_CACHE_DIR="/dev/null/x")
    assert done.stdout == "42\n", done.stderr
    assert "RuntimeWarning" in done.stderr and "/dev/null/x" in done.stderr and str(probe.temporary) in done.stderr
    assert len(fallback_artefacts(probe)) == 1
    assert probe.python(ANSWER, HIPCONV_CACHE_DIR="/dev/null/x") == "42\n"
    assert probe.builds() == 1


def test_a_path_may_have_any_characters(warm: Probe) -> None:
    """Those that ninja, a shell, PATH, a compiler or the dynamic loader reads in its own way."""
    script = """
    odd = b"a b:c\\nd$LIB#e\\"f'g\\\\h;i*\\xe9"
    home = os.environ["HOME"] = os.path.join(os.environ["HOME"], os.fsdecode(odd))
    assert str(next(cache.roots())) == home + "/cache"
    print(jit.module("probe", SIMT).answer())
    jit._loaded.clear()
    os.environ["HIPCONV_JIT"] = "0"
    print(jit.module("probe", SIMT).answer(), len(os.listdir(home + "/cache")))  # and .locks
    """
    assert warm.python(script, HIPCONV_CACHE_DIR="~/cache") == "4264\n4264 2\n"


def test_a_home_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPCONV_CACHE_DIR", "~no_such_user/cache")
    with pytest.raises(ValueError, match="HIPCONV_CACHE_DIR: got '~no_such_user/cache', expected a directory"):
        next(cache.roots())


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_in_the_place_of_an_artefact_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = tmp_path / "probe-x"
    if kind == "file":
        place.write_text("a file")
    else:
        place.symlink_to("nowhere")
    monkeypatch.setenv("HIPCONV_CACHE_DIR", str(tmp_path))
    for compiler in ("x", None):
        problems: list[str] = []
        assert list(cache.candidates("probe", compiler, problems)) == []
        assert len(problems) == 1 and problems[0].startswith(f"{place} cannot be read: ")
    with cache.staging(tmp_path, "probe-x") as staged:
        artefact = publish(staged)
    assert cache.read(place) == artefact and list(tmp_path.iterdir()) == [place]


def publish(staged: Path) -> cache.Artefact:
    (staged / "a.so").touch(0o777)
    return cache.publish(staged, "probe-x", {"library": "a.so", "name": "a", "module": "probe", "target": [], "seconds": 1})


def test_a_user_who_may_not_write_home_falls_back_and_is_told(probe: Probe) -> None:
    probe.home.chmod(0o555)
    done = probe.script(UNPRIVILEGED, ANSWER, HIPCONV_CACHE_DIR=None)
    assert done.stdout == "42\n", done.stderr
    assert "RuntimeWarning" in done.stderr and f"{probe.home}/.cache/hipconv (Permission denied)" in done.stderr
    assert len(fallback_artefacts(probe)) == 1


def test_a_user_without_a_home_falls_back_and_is_told(probe: Probe) -> None:
    script = """
    import pwd
    def no_such_user(uid):
        raise KeyError(uid)
    pwd.getpwuid = no_such_user
    """
    done = probe.script(script, ANSWER, HIPCONV_CACHE_DIR=None, HOME=None)
    assert done.stdout == "42\n", done.stderr
    assert "RuntimeWarning" in done.stderr and "home" in done.stderr
    assert len(fallback_artefacts(probe)) == 1


def test_a_read_only_cache_is_used_without_a_word(warm: Probe) -> None:
    places = [warm.home, warm.temporary, warm.cache, *warm.cache.rglob("*")]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    script = """
    try:
        next(cache.roots()).joinpath("file").touch()
    except PermissionError:
        print("read-only")
    """
    try:
        assert warm.python(UNPRIVILEGED, script, ANSWER) == "read-only\n42\n"
    finally:
        for place in places:
            place.chmod(0o755)
    assert warm.compilations() == 0


@pytest.mark.parametrize("without_compiler", [{}, {"PATH": "/nonexistent", "CXX": None}], ids=["compiler", "no compiler"])
def test_a_cache_that_cannot_be_read_is_named(warm: Probe, without_compiler: dict[str, str | None]) -> None:
    script = """
    next(cache.roots()).chmod(0)
    try:
        jit.module("probe", CPU)
    except errors.BuildDisabled as error:
        print(error)
    """
    refused = warm.python(UNPRIVILEGED, script, HIPCONV_JIT="0", **without_compiler)
    warm.cache.chmod(0o755)
    assert re.search(rf"none that the caches hold can be used: {warm.cache}\S* cannot be read", refused)


def test_a_temporary_directory_that_others_can_write_is_never_used(warm: Probe) -> None:
    """There another user could leave a library for this one to run."""
    script = """
    import shutil
    os.environ["HIPCONV_CACHE_DIR"] = "/dev/null/x"
    root = Path(os.environ["TMPDIR"], f"hipconv-{os.getuid()}")
    shutil.copytree(os.environ["FOREIGN"], root)
    def attempt():
        jit._loaded.clear()
        reached = []
        for jit_allowed in "01":
            os.environ["HIPCONV_JIT"] = jit_allowed
            try:
                jit.module("probe", CPU)
                reached.append("used")
                break
            except (errors.BuildDisabled, errors.CacheUnwritable) as error:
                reached.append(type(error).__name__)
        print(*reached)
    for mode in (0o777, 0o1777, 0o700):
        root.chmod(mode)
        attempt()
    give_away(root)
    root.rename(root.with_name(f"hipconv-{os.geteuid()}"))
    attempt()
    """
    done = warm.script(GIVE_AWAY, script, FOREIGN=str(warm.cache))
    refused = "BuildDisabled CacheUnwritable\n"
    assert done.stdout == refused + refused + "used\n" + refused, done.stderr


def test_a_named_cache_that_others_can_write_is_an_error_unless_vouched_for(warm: Probe) -> None:
    script = """
    root = next(cache.roots())
    (artefact,) = root.glob("probe-*")
    (library,) = artefact.glob("*.so")
    def attempt(what, trust=None):
        jit._loaded.clear()
        os.environ.pop("HIPCONV_TRUST_CACHE", None) if trust is None else os.environ.update(HIPCONV_TRUST_CACHE=trust)
        try:
            print(what, jit.module("probe", CPU).answer())
        except (errors.CacheUntrusted, ValueError) as error:
            print(what, type(error).__name__, error)
    for place in (root, library, artefact, artefact / "meta.json", root.parent):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)
        attempt(place)
        attempt(place, "0")
        attempt(place, "1")
        place.chmod(mode)
        attempt(place)
    attempt("typo", "yes")
    give_away(artefact)
    attempt(artefact)
    """
    *said, mistyped, others = warm.python(GIVE_AWAY, script).splitlines()
    assert len(said) == 4 * 5
    for refused, refused_too, trusted, mended in zip(*[iter(said)] * 4, strict=True):
        place = trusted.removesuffix(" 42")
        assert trusted == mended == f"{place} 42" and refused == refused_too
        assert refused.startswith(f"{place} CacheUntrusted HIPCONV_CACHE_DIR: got {warm.cache}, from which no code is loaded")
        assert f"everybody may write to {place}" in refused and "HIPCONV_TRUST_CACHE=1" in refused
    assert mistyped == "typo ValueError HIPCONV_TRUST_CACHE: got 'yes', expected 0 or 1"
    assert "CacheUntrusted" in others and "belongs to" in others
    assert warm.builds() == 0


def test_a_home_cache_that_others_can_write_is_passed_over_with_a_line(warm: Probe) -> None:
    """Root may have the home of another user, and a container one that everybody writes to."""
    script = """
    import shutil, warnings
    home = Path(os.environ["HOME"], ".cache/hipconv")
    shutil.move(os.environ.pop("HIPCONV_CACHE_DIR"), home)
    def attempt():
        with warnings.catch_warnings(record=True) as said:
            try:
                jit.module("probe", CPU)
            except errors.BuildDisabled as error:
                print(type(error).__name__, cache.writable_root("probe"), *(warning.message for warning in said))
    home.parent.chmod(0o777)
    attempt()
    home.parent.chmod(0o755)
    give_away(home)
    attempt()
    """
    for line in warm.python(GIVE_AWAY, script, HIPCONV_JIT="0").splitlines():
        refusal, instead, said = line.split(" ", 2)
        assert refusal == "BuildDisabled" and instead.startswith(f"{warm.temporary}/hipconv-")
        assert said.count("hipconv passes over") == 1 and said.count("HIPCONV_CACHE_DIR") == 1


def test_what_hipconv_makes_is_for_nobody_else_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = os.umask(0)
    try:
        root = tmp_path / "new" / "cache"
        assert cache.why_unusable(root) is None
        assert [place.stat().st_mode & 0o777 for place in (root, root.parent)] == [0o700, 0o700]
        with cache.staging(root, "probe") as staged:
            artefact = publish(staged)
        assert [place.stat().st_mode & 0o777 for place in (artefact.directory, artefact.library)] == [0o755, 0o755]
        assert cache.read(artefact.directory) == artefact
    finally:
        os.umask(mask)


def test_a_temporary_directory_made_by_others_at_the_last_moment_is_not_used(probe: Probe) -> None:
    script = """
    temporary = cache._temporary_root()
    os.environ["HIPCONV_CACHE_DIR"] = "/dev/null/x"
    roots = list(cache.roots())
    assert temporary in roots and not temporary.exists()
    cache.roots = lambda: iter(roots)  # it looked free a moment ago
    temporary.mkdir()
    temporary.chmod(0o777)
    try:
        print(cache.writable_root("probe"))
    except errors.CacheUnwritable as error:
        print(str(temporary) in str(error))
    """
    assert probe.python(script) == "True\n"
