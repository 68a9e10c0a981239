"""Some things make the JIT engine build again, others do not; builds are damaged; a warm process starts nothing.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
import re
import shutil

import pytest

from jit.probe import ANSWER, FILES, GIVE_AWAY, IMPORTS, Probe, code, tree_hash, write_compiler
from hipconv import cache

# ---- what rebuilds, and what does not ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["csrc/cpu/probe_cpu.cpp", "csrc/include/answer.h"])
def test_an_edit_rebuilds_and_shows(warm: Probe, what: str) -> None:
    warm.edit(
        what,
        "ANSWER 42" if what.endswith(".h") else "return ANSWER",
        "ANSWER 43" if what.endswith(".h") else "return ANSWER + 1",
    )
    assert warm.python(ANSWER) == "43\n"
    assert warm.builds() == 1


def test_any_header_that_is_included_and_any_flag_rebuild(warm: Probe) -> None:
    warm.edit("csrc/include/detail/deep.h", "once", "once // and more")
    assert warm.python(ANSWER) == "42\n"
    assert warm.builds() == 1
    warm.edit("jit_config.json", "-O0", "-O1")
    assert warm.python(ANSWER) == "42\n"
    assert warm.builds() == 2
    assert warm.python(ANSWER, HIPCONV_EXTRA_FLAGS="-DANOTHER") == "42\n"
    assert warm.builds() == 3
    assert all(f"{flag} " in warm.log.read_text() for flag in ("-O0", "-O1", "-DANOTHER"))
    assert len(warm.artefacts()) == 4  # and each of the earlier ones is still there to go back to
    warm.edit("jit_config.json", "-O1", "-O0")
    assert warm.python(ANSWER) == "42\n"
    assert warm.builds() == 3


def test_nothing_else_rebuilds(warm: Probe) -> None:
    for name in ("README.md", "csrc/README.md"):
        (warm.root / name).write_text("Other words.\n")
    (warm.root / "csrc/include/notes.txt").write_text("New.\n")
    warm.edit("csrc/kernels/probe_kernel.cu", "100", "1000")  # not among the sources of the cpu backend
    for header in ("csrc/include/detail/unused.h", "csrc/compat/simt/unused_simt.h"):
        warm.edit(header, "once", "once // and more")
    for name in FILES:
        os.utime(warm.root / name)
    assert warm.python(ANSWER) == "42\n"
    assert warm.compilations() == 0


def test_another_compiler_rebuilds(warm: Probe, tmp_path: Path) -> None:
    other = write_compiler(tmp_path / "another-g++")
    for expected in (1, 1):
        assert warm.python(ANSWER, CXX=str(other)) == "42\n"
        assert warm.builds() == expected
    os.utime(other, (1, 1))  # an upgrade in place
    assert warm.python(ANSWER, CXX=str(other)) == "42\n"
    assert warm.builds() == 2


def test_the_key_holds_all_that_the_library_depends_on(warm: Probe) -> None:
    script = """
    import platform, sysconfig, torch
    def name(target=CPU):
        return jit.artefact_name("probe", target).rpartition("-")[2]
    seen = [name(), name(SIMT), name(Target("simt", "wave32")), name(Target("cpu", "avx2"))]
    torch.version.git_version = "0" * 40
    seen.append(name())
    torch.__version__ = "99.0"
    seen.append(name())
    sysconfig.get_config_vars()["SOABI"] = "cpython-399"
    seen.append(name())
    print(len(seen), len(set(seen)))
    """
    assert warm.python(script) == "7 7\n"


def damage(artefact: Path, how: str) -> None:
    (library,), meta = artefact.glob("*.so"), artefact / "meta.json"
    content = library.read_bytes()
    if how == "truncated":
        os.truncate(library, len(content) // 2)  # mapping it would end the process
    elif how == "zeros in the middle":
        with library.open("r+b") as file:  # and so would this
            file.seek(len(content) // 4)
            file.write(bytes(len(content) // 2))
    elif how == "one bit":  # of the name of the module's function: it imports, and lacks that function
        assert content.count(b"\0answer\0") == 1
        library.write_bytes(content.replace(b"\0answer\0", b"\0answes\0"))
    elif how == "library gone":
        library.unlink()
    elif how == "meta.json cut":
        os.truncate(meta, 20)
    elif how == "meta.json of an earlier version":
        meta.write_text(json.dumps({key: value for key, value in json.loads(meta.read_text()).items() if key != "sha256"}))
    else:
        meta.write_text("[]")


@pytest.mark.parametrize(
    "how",
    [
        "truncated",
        "zeros in the middle",
        "one bit",
        "library gone",
        "meta.json cut",
        "meta.json of an earlier version",
        "no record",
    ],
)
def test_a_damaged_artefact_is_not_found(warm: Probe, how: str) -> None:
    (artefact,) = warm.artefacts()
    assert cache.read(artefact)
    damage(artefact, how)
    assert cache.read(artefact) is None


def test_a_damaged_artefact_is_built_again(warm: Probe) -> None:
    (artefact,) = warm.artefacts()
    damage(artefact, "one bit")
    assert warm.python(ANSWER) == "42\n"
    assert warm.builds() == 1
    assert warm.python(ANSWER, HIPCONV_JIT="0") == "42\n"


def test_an_artefact_that_is_replaced_while_it_is_read_is_read_again(warm: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    (artefact,) = warm.artefacts()
    shutil.copytree(artefact, artefact.with_name("next"))
    damage(artefact, "one bit")
    read = cache._sha256

    def replaced_by_another_process(file):
        if artefact.with_name("next").exists():
            artefact.rename(artefact.with_name("previous"))
            artefact.with_name("next").rename(artefact)
        return read(file)

    monkeypatch.setattr(cache, "_sha256", replaced_by_another_process)
    assert cache.read(artefact)


def make_unimportable(artefact: Path) -> None:
    """Whole, as far as its record says, and for another machine, say."""
    (library,), meta = artefact.glob("*.so"), artefact / "meta.json"
    library.write_bytes(b"no library, but all of it")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"sha256": hashlib.sha256(library.read_bytes()).hexdigest()}))


def test_an_artefact_that_cannot_be_imported_is_built_again(warm: Probe) -> None:
    (artefact,) = warm.artefacts()
    make_unimportable(artefact)
    assert warm.python(ANSWER) == "42\n"
    assert warm.builds() == 1 and warm.artefacts() == [artefact] and cache.read(artefact) and not warm.leftovers()


def test_hipconv_jit_0_deletes_nothing_and_says_what_is_wrong(warm: Probe) -> None:
    script = """
    try:
        jit.module("probe", CPU)
    except errors.BuildDisabled as error:
        print(error)
    try:
        cache.clear([])
    except ValueError as error:
        print(error)
    """
    (artefact,) = warm.artefacts()
    for damaging, expected in (
        (make_unimportable, "cannot be imported: .*file too short"),
        (lambda it: damage(it, "truncated"), "is damaged"),
    ):
        damaging(artefact)
        before = tree_hash(warm.cache)
        refused, not_cleared = warm.python(script, HIPCONV_JIT="0").splitlines()
        assert re.search(f"none that the caches hold can be used: {re.escape(str(artefact))} {expected}", refused)
        assert not_cleared == "HIPCONV_JIT: got '0', expected 1 to delete builds: with 0 none could be made in their place"
        assert tree_hash(warm.cache) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its files to another user")
def test_nothing_of_another_user_is_deleted(warm: Probe) -> None:
    script = """
    (artefact,) = next(cache.roots()).glob("probe-*")
    leftover = artefact.with_name(f".building-{artefact.name}-x")
    leftover.mkdir()
    for place in (artefact, leftover):
        give_away(place)
    os.environ["HIPCONV_TRUST_CACHE"] = "1"
    print(cache.clear([]) == ([], [artefact]), leftover.exists(), artefact.exists())
    print(cache.writable_root(artefact.name))
    """
    done = warm.script(GIVE_AWAY, script)
    assert done.stdout.startswith(f"True True True\n{warm.temporary}/hipconv-"), done.stderr
    assert "holds a build that cannot be used and belongs to" in done.stderr


# ---- the warm path -----------------------------------------------------------------------------------------------------------

WARM = """
import sys
started = []
EVENTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
sys.addaudithook(lambda event, arguments: started.append(event) if event in EVENTS else None)
import torch
started.clear()  # whatever torch does is its own affair
before = set(sys.modules)
"""


@pytest.mark.parametrize("toolchain", [True, False], ids=["compiler", "no compiler"])
def test_a_warm_process_starts_no_other_and_touches_no_compiler(warm: Probe, toolchain: bool) -> None:
    report = """
    answer = jit.module("probe", CPU).answer()
    loader = [name for name in ("torch.utils.cpp_extension", "setuptools", "filelock") if name in set(sys.modules) - before]
    print(json.dumps([answer, list(started), loader]))
    import subprocess
    try:
        subprocess.run(["/nonexistent"])
    except OSError:
        print(started)  # the hook works
    """
    done = warm.run("-c", code(WARM, IMPORTS, report), **({} if toolchain else {"PATH": "/nonexistent", "CXX": None}))
    assert done.stdout == "[42, [], []]\n['subprocess.Popen']\n", done.stderr
    assert warm.compilations() == 0


def test_importing_hipconv_builds_nothing_and_is_cheap(probe: Probe) -> None:
    script = """
    started_at = time.process_time()
    import hipconv
    took = time.process_time() - started_at
    imported = set(sys.modules) - before
    heavy = [name for name in ("torch.utils.cpp_extension", "setuptools", "filelock", "ninja") if name in imported]
    print(json.dumps([took, started, heavy]))
    """
    probe.run("-m", "compileall", "-q", str(probe.root / "python"))  # as pip does when it installs
    runs = [json.loads(probe.run("-c", code(WARM, "import json, time", script)).stdout) for _ in range(5)]
    assert all(run[1:] == [[], []] for run in runs)
    assert min(run[0] for run in runs) < 0.05
    assert not probe.cache.exists() and not list(probe.home.iterdir()) and probe.compilations() == 0


def test_a_build_leaves_the_process_as_it_was(probe: Probe) -> None:
    script = """
    import logging
    import torch.utils.cpp_extension
    def state():
        return dict(os.environ), os.getcwd(), logging.getLogger("torch.utils.cpp_extension").level, os.umask(0o022)
    os.environ.pop("PATH_THAT_NEVER_WAS", None)
    before = state()
    jit.module("probe", CPU)
    print(state() == before)
    """
    assert probe.python(script) == "True\n"
    assert probe.builds() == 1


def test_two_targets_of_one_module_live_side_by_side(warm: Probe) -> None:
    script = """
    import torch
    device = torch.device("cpu")
    answers = [jit.module("probe", target).answer() for target in (CPU, SIMT, Target("simt", "wave32"), CPU)]
    os.environ["HIPCONV_BACKEND"] = "simt"
    answers.append(jit.module("probe", targets.of(device)).answer())
    os.environ["HIPCONV_SIMT_WAVE"] = "32"
    answers.append(jit.module("probe", targets.of(device)).answer())
    print(answers)
    """
    assert json.loads(warm.python(script)) == [42, 4264, 4232, 42, 4264, 4232]
    assert warm.builds() == 2


def test_an_artefact_for_another_architecture_is_never_loaded(warm: Probe) -> None:
    """The GPU is pretended, and its artefact the CPU's library under another name."""
    script = """
    import shutil, torch
    torch.cuda.get_device_capability = lambda index: (9, 0)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.version.hip = None
    os.environ["HIPCONV_JIT"] = "0"
    own = targets.of(torch.device("cuda", 0))
    (library,) = cache.roots().__next__().glob("probe-cpu-*")
    for target in (Target("cuda", "sm_80"), Target("cuda", "sm_90")):
        name = f"{jit.artefact_name('probe', target)}-{jit.builds.Build.of('probe', target).compiler or '0' * 8}"
        shutil.copytree(library, library.parent / name)
        try:
            print(target, own, jit.module("probe", own).answer())
        except errors.BuildDisabled as error:
            print(target, "refused:", "cuda sm_90" in str(error))
    """
    assert warm.python(script) == "cuda sm_80 refused: True\ncuda sm_90 cuda sm_90 42\n"


def test_nothing_is_built_or_loaded_during_capture(probe: Probe) -> None:
    script = """
    import torch
    torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
    try:
        jit.module("probe", Target("cuda", "sm_90"))
    except errors.CaptureError as error:
        print("probe" in str(error) and "warmup(['probe'])" in str(error))
    """
    assert probe.python(script) == "True\n"
    assert not probe.cache.exists() and probe.compilations() == 0
