"""The JIT engine: that it builds once, exactly when it must, and survives what happens on other people's machines.

Each test runs real processes on a small checkout of its own (probe.py); the last ones build the real registry.
"""

from __future__ import annotations

from collections import Counter
import hashlib
import json
import os
from pathlib import Path
import pty
import re
import select
import shutil
import signal
import time

import pytest

from jit.probe import ANSWER, FILES, GIVE_AWAY, IMPORTS, UNPRIVILEGED, Probe, code, tree_hash, wait_until, write_compiler
import support  # noqa: F401  makes an uninstalled hipconv importable
from support import ROOT
from hipconv import cache, registry, targets
from hipconv.errors import BadRegistry, UnknownModule

# ---- fixtures ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_compiler(tmp_path_factory.mktemp("compiler") / "logging-g++")


@pytest.fixture
def probe(tmp_path: Path, compiler: Path) -> Probe:
    """A checkout with nothing built."""
    return Probe(tmp_path, compiler).create()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> Path:
    """A directory with a checkout and a cache that holds its CPU build, to be copied."""
    directory = tmp_path_factory.mktemp("built")
    assert Probe(directory, compiler).create().python(ANSWER) == "42\n"
    return directory


@pytest.fixture
def warm(built: Path, tmp_path: Path, compiler: Path) -> Probe:
    """A checkout with its CPU build in the cache. Nothing is logged yet."""
    for name in ("checkout", "cache"):
        shutil.copytree(built / name, tmp_path / name)
    return Probe(tmp_path, compiler)


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HIPCONV_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# ---- many processes, killed processes, threads, forks --------------------------------------------------------------------------


def test_eight_cold_processes_make_one_build(probe: Probe) -> None:
    probe.hold.touch()  # the compiler waits until all eight are about to ask
    processes = [probe.start("print('ready', flush=True)", ANSWER) for _ in range(8)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 8
    wait_until(probe.log.exists, "the first compilation")
    time.sleep(0.3)  # enough for an engine without a lock to start eight
    probe.hold.unlink()
    assert [process.communicate(timeout=60) for process in processes] == [("42\n", "")] * 8
    assert probe.builds() == 1
    assert len(probe.artefacts()) == 1


def test_a_killed_build_is_cleared_away_and_done_again(probe: Probe) -> None:
    probe.hold.touch()
    victim = probe.start(ANSWER)
    wait_until(probe.log.exists, "the first compilation")
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate(timeout=10)
    assert probe.leftovers() and not probe.artefacts()
    # The orphaned compiler, which ninja put into a group of its own, still waits, and goes on meanwhile.
    assert probe.python(ANSWER, PROBE_HOLD="") == "42\n"
    probe.hold.unlink()
    assert not probe.leftovers() and len(probe.artefacts()) == 1
    assert probe.python(ANSWER, HIPCONV_JIT="0") == "42\n"


def test_a_build_under_way_elsewhere_is_not_cleared_away(probe: Probe) -> None:
    probe.hold.touch()
    slow = probe.start(ANSWER)
    wait_until(probe.log.exists, "the first compilation")
    # Another target neither waits for it nor deletes it.
    assert probe.python('print(jit.module("probe", SIMT).answer())', PROBE_HOLD="") == "4264\n"
    assert len(probe.leftovers()) == 1
    probe.hold.unlink()
    assert slow.communicate(timeout=60) == ("42\n", "")
    assert not probe.leftovers()


def test_stale_locks_do_no_harm(warm: Probe, tmp_path: Path) -> None:
    (artefact,) = warm.artefacts()
    name = artefact.name
    shutil.rmtree(artefact)
    (warm.cache / ".locks").mkdir(exist_ok=True)
    (warm.cache / ".locks" / f"{name}.lock").write_text("1")
    for place in (warm.cache / f".building-{name}-dead", tmp_path / "torch" / "hipconv_probe_cpu"):
        place.mkdir(parents=True)
        (place / "lock").touch()  # what torch's own loader would wait for, for ever
    assert warm.python(ANSWER, TORCH_EXTENSIONS_DIR=str(tmp_path / "torch")) == "42\n"
    assert warm.artefacts() == [artefact] and not warm.leftovers()


def test_eight_threads_make_one_build_at_a_time(probe: Probe) -> None:
    """One of each target, and not both at once: torch's loader, and the environment it reads, are the whole process's."""
    probe.hold.touch()
    script = """
    from concurrent.futures import ThreadPoolExecutor
    gate = threading.Barrier(8)
    def ask(target):
        gate.wait()
        return jit.module("probe", target).answer()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(ask, [CPU, SIMT] * 4)
        log = Path(os.environ["PROBE_LOG"])
        while not log.exists():
            time.sleep(0.01)
        time.sleep(0.5)  # enough for a second build to start
        both = "probe_cpu.cpp" in log.read_text() and "probe_kernel.cpp" in log.read_text()
        os.remove(os.environ["PROBE_HOLD"])
        print(json.dumps([both, *answers]))
    """
    assert json.loads(probe.python(script)) == [False, *([42, 4264] * 4)]
    assert probe.builds() == 2


def test_an_artefact_appears_whole_with_one_rename(probe: Probe) -> None:
    script = """
    published = str(next(cache.roots()) / "probe-")
    changes = []
    def note(event, arguments):
        writes = event == "open" and arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.link", "os.symlink", "os.rename", "os.chmod", "os.remove"):
            if any(isinstance(place, (str, Path)) and str(place).startswith(published) for place in arguments):
                changes.append(event)
    sys.addaudithook(note)
    jit.module("probe", CPU)
    print(changes)
    """
    assert probe.python(script) == "['os.rename']\n"


def test_a_child_forked_during_a_build_is_not_stuck(probe: Probe) -> None:
    probe.hold.touch()
    script = """
    import signal
    builder = threading.Thread(target=lambda: jit.module("probe", CPU))
    builder.start()
    while not os.path.exists(os.environ["PROBE_LOG"]):
        assert builder.is_alive()
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # the bound
        os._exit(jit.module("probe", CPU).answer())
    time.sleep(0.2)
    os.remove(os.environ["PROBE_HOLD"])
    status = os.waitpid(child, 0)[1]
    builder.join()
    print(os.waitstatus_to_exitcode(status), jit.module("probe", CPU).answer())
    """
    assert probe.python(script) == "42 42\n"
    assert probe.builds() == 1


# ---- what rebuilds, and what does not ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["csrc/cpu/probe_cpu.cpp", "csrc/include/answer.h"])
def test_an_edit_rebuilds_and_shows(warm: Probe, what: str) -> None:
    warm.edit(what, "ANSWER 42" if what.endswith(".h") else "return ANSWER", "ANSWER 43" if what.endswith(".h") else "return ANSWER + 1")
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
    "how", ["truncated", "zeros in the middle", "one bit", "library gone", "meta.json cut", "meta.json of an earlier version", "no record"]
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


# ---- the warm path -------------------------------------------------------------------------------------------------------------

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
    heavy = [name for name in ("torch.utils.cpp_extension", "setuptools", "filelock", "ninja") if name in set(sys.modules) - before]
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


# ---- failed builds -------------------------------------------------------------------------------------------------------------

ATTEMPT = """
def attempt(target=CPU):
    try:
        return jit.module("probe", target).answer()
    except errors.BuildError as error:
        return str(error)
def compilations():
    return len(Path(os.environ["PROBE_LOG"]).read_text().splitlines())
"""


@pytest.mark.parametrize(
    ("name", "target"),
    [("csrc/cpu/probe_cpu.cpp", "CPU"), ("csrc/kernels/probe_kernel.cu", "SIMT"), ("csrc/include/answer.h", "CPU")],
)
def test_a_failed_build_says_why_once_and_works_when_mended(probe: Probe, name: str, target: str) -> None:
    probe.edit(name, "int answer()", "int no_such_thing = missing; int answer()")
    script = f"""
    first, compiled = attempt({target}), compilations()
    second, again = attempt({target}), compilations()
    source = Path({str(probe.root / name)!r})
    source.write_text(source.read_text().replace("int no_such_thing = missing;", ""))
    print(json.dumps([first, first == second, compiled == again, attempt({target})]))
    """
    first, same, not_again, mended = json.loads(probe.python(ATTEMPT, script))
    assert same and not_again
    assert mended == (42 if target == "CPU" else 4264)
    assert re.search(rf"{re.escape(str(probe.root / name))}:\d+:\d+: error:.*missing", first)
    assert ".building-" not in "".join(line for line in first.splitlines() if "error:" in line)
    assert str(probe.cache) in first and "'probe' for " in first
    for variable in ("CXX", "CUDA_HOME", "ROCM_HOME", "HIPCONV_EXTRA_FLAGS", "HIPCONV_VERBOSE"):
        assert variable in first
    assert not probe.leftovers()


def test_warmup_tries_a_failed_build_again(probe: Probe) -> None:
    probe.break_.touch()
    script = """
    import hipconv
    target = targets.of_machine()[-1]
    first, compiled = attempt(target), compilations()
    os.remove(os.environ["PROBE_BREAK"])
    remembered = attempt(target) == first and compilations() == compiled
    hipconv.warmup(["probe"])
    print(json.dumps(["the disk is on fire" in first, remembered, attempt(target)]))
    """
    assert json.loads(probe.python(ATTEMPT, script)) == [True, True, 42]


def test_a_remembered_failure_keeps_no_caller_alive(probe: Probe) -> None:
    """Its traceback would keep the tensors of a call, and grow with each."""
    probe.break_.touch()
    script = """
    import gc, weakref
    class Tensor: ...
    def call():
        tensor = Tensor()
        attempt()
        return weakref.ref(tensor)
    references = [call(), call()]
    gc.collect()
    print([reference() for reference in references])
    """
    assert probe.python(ATTEMPT, script) == "[None, None]\n"


INTERRUPT = """
import signal
def interrupted(kind, when):
    def handler(*_):
        raise kind("time is up")
    def alarm():
        while not when():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, handler)
    threading.Thread(target=alarm, daemon=True).start()
    try:
        return jit.module("probe", CPU)
    except BaseException as error:
        return type(error).__name__, str(error), jit.builder._failed
"""


def test_an_exception_of_the_callers_ends_a_build_and_is_not_remembered(probe: Probe) -> None:
    """torch's loader catches OSError, which TimeoutError is, and raises an error of its own."""
    probe.hold.touch()
    script = """
    log = Path(os.environ["PROBE_LOG"])
    for kind in (TimeoutError, RuntimeError, KeyboardInterrupt):
        print(*interrupted(kind, log.exists))
        log.unlink()
    Path(os.environ["PROBE_BREAK"]).touch()  # for the compilers, which ninja leaves behind
    os.remove(os.environ["PROBE_HOLD"])
    time.sleep(0.3)
    os.remove(os.environ["PROBE_BREAK"])
    print(jit.module("probe", CPU).answer())
    """
    said = probe.python(INTERRUPT, script).splitlines()
    assert said == [f"{kind} time is up {{}}" for kind in ("TimeoutError", "RuntimeError", "KeyboardInterrupt")] + ["42"]
    assert not probe.leftovers()


def test_an_exception_of_the_callers_ends_the_wait_for_another_process(warm: Probe) -> None:
    script = """
    import fcntl
    (artefact,) = next(cache.roots()).glob("probe-*")
    lock = artefact.parent / ".locks" / f"{artefact.name}.lock"
    artefact.rename(artefact.with_name("elsewhere"))
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Event()
        jit.builder.say = lambda *_, **__: waiting.set()
        print(*interrupted(TimeoutError, waiting.is_set))
    """
    assert warm.python(INTERRUPT, script) == "TimeoutError time is up {}\n"
    assert warm.compilations() == 0


def test_an_exception_of_the_callers_is_no_damage(warm: Probe) -> None:
    script = """
    reading = threading.Event()
    def slow(file):
        reading.set()
        time.sleep(20)
    cache._sha256 = slow
    print(*interrupted(ValueError, reading.is_set))
    """
    assert warm.python(INTERRUPT, script) == "ValueError time is up {}\n"


def test_a_full_disk_is_not_remembered(probe: Probe) -> None:
    script = """
    exec("def _copy(*_): raise OSError(28, 'No space left on device')", vars(jit.builder))
    try:
        jit.module("probe", CPU)
    except errors.BuildError as error:
        print("No space left on device" in str(error), jit.builder._failed)
    """
    assert probe.python(script) == "True {}\n"


@pytest.mark.parametrize("name", ["broken", "broken-g++"])
def test_what_a_broken_compiler_says_is_shown(probe: Probe, tmp_path: Path, name: str) -> None:
    """torch asks one whose name it does not know who it is, and tells only that it failed."""
    broken = tmp_path / name
    broken.write_text("#!/bin/sh\necho no licence for this compiler >&2\nexit 1\n")
    broken.chmod(0o755)
    script = """
    try:
        jit.module("probe", CPU)
    except errors.BuildError as error:
        print(error)
    """
    shown = probe.script(script, CXX=str(broken)).stdout
    assert "no licence for this compiler" in shown and str(broken) in shown


# ---- where the cache is --------------------------------------------------------------------------------------------------------


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


# ---- HIPCONV_JIT=0, missing tools ----------------------------------------------------------------------------------------------


def test_hipconv_jit_0_forbids_a_build_and_says_what_to_do(warm: Probe) -> None:
    script = """
    print(jit.module("probe", CPU).answer())
    try:
        jit.module("probe", SIMT)
    except errors.BuildDisabled as error:
        print(error)
    """
    answer, error = warm.python(script, HIPCONV_JIT="0").split("\n", 1)
    assert answer == "42"
    for part in ("HIPCONV_JIT=0", "'probe' for simt wave64", "python -m hipconv build probe --arch wave64", str(warm.cache)):
        assert part in error
    assert warm.compilations() == 0


def test_a_switch_is_on_or_off(warm: Probe) -> None:
    script = """
    for name in ("JIT", "VERBOSE"):
        os.environ[f"HIPCONV_{name}"] = "maybe"
        try:
            jit.module("probe", CPU)
        except ValueError as error:
            print(error)
        os.environ[f"HIPCONV_{name}"] = ""
    """
    assert warm.python(script) == "".join(f"HIPCONV_{name}: got 'maybe', expected 0 or 1\n" for name in ("JIT", "VERBOSE"))


def test_a_missing_toolchain_is_named_with_its_remedy(probe: Probe) -> None:
    hide = """
    import sysconfig
    sys.executable, sys.modules["ninja"] = "/nowhere/python", None
    sysconfig.get_path = lambda name: "/nowhere/" + name
    """
    ask = """
    try:
        jit.module("probe", CPU)
    except errors.MissingToolchain as error:
        print(error)
    """
    error = probe.python(hide, ask, PATH="/nonexistent", CXX=None)
    assert "cpu generic" in error
    assert re.search(r"'c\+\+'.*PATH.*install g\+\+.*CXX", error)
    assert re.search(r"ninja .*beside this Python.*pip install ninja", error)
    assert "/nowhere/include/Python.h" in error
    assert "another machine" in error and "python -m hipconv build --all --arch generic" in error and "HIPCONV_CACHE_DIR" in error
    error = probe.python(ask, PATH="/nonexistent", CXX="my-g++")
    assert "'my-g++'" in error and "pip install ninja" not in error


@pytest.fixture
def tools(tmp_path: Path, compiler: Path) -> Path:
    """A PATH with a C++ compiler and no ninja: an environment that is not activated."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name in ("as", "ld", "sh", "sleep"):
        (directory / name).symlink_to(str(shutil.which(name)))
    (directory / "c++").symlink_to(compiler)
    return directory


def test_ninja_is_found_beside_python(probe: Probe, tools: Path) -> None:
    assert shutil.which("ninja", path=str(tools)) is None
    assert probe.python(ANSWER, PATH=str(tools), CXX=None) == "42\n"


def test_only_ninja_is_taken_from_beside_python(probe: Probe, tools: Path, tmp_path: Path) -> None:
    """A compiler there must not displace the one on PATH, nor a broken ninja on PATH the one there."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for broken in (beside / "c++", beside / "g++", tools / "ninja"):
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
    (beside / "ninja").symlink_to(targets._ninja() or "")
    script = f"""
    import sysconfig
    sys.executable = {str(beside / "python")!r}
    paths = sysconfig.get_path
    sysconfig.get_path = lambda name, **more: str(Path(sys.executable).parent) if name == "scripts" else paths(name, **more)
    """
    assert probe.python(script, ANSWER, PATH=str(tools), CXX=None) == "42\n"
    assert probe.builds() == 1


# ---- what the user sees --------------------------------------------------------------------------------------------------------


def test_a_build_is_quiet_when_piped_and_speaks_when_asked(probe: Probe) -> None:
    done = probe.script(ANSWER)
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert probe.builds() == 1
    done = probe.script(ANSWER.replace("CPU", "SIMT"), HIPCONV_VERBOSE="1")
    assert "hipconv: building probe for simt wave64" in done.stderr
    assert re.search(r"built probe for simt wave64 in \d+\.\d s", done.stderr)
    assert "-c " in done.stdout + done.stderr  # and the commands


def test_a_terminal_shows_what_is_built_and_for_how_long(probe: Probe) -> None:
    probe.hold.touch()
    ours, theirs = pty.openpty()
    process = probe.start(ANSWER, stderr=theirs)
    os.close(theirs)
    shown = ""
    limit = time.monotonic() + 40
    try:
        while time.monotonic() < limit and select.select([ours], [], [], 10)[0]:
            shown += os.read(ours, 4096).decode(errors="replace")
            if re.search(r"building probe for cpu generic … [1-9]\d* s", shown):
                probe.hold.unlink(missing_ok=True)  # the live line has counted
    except OSError:  # the terminal's other side is closed
        pass
    assert process.communicate(timeout=40)[0] == "42\n"
    assert not probe.hold.exists(), shown
    assert re.search(r"built probe for cpu generic in \d+\.\d s", shown)


def test_a_long_build_says_so_in_a_log(probe: Probe) -> None:
    probe.hold.touch()
    script = """
    class Log:  # ends the wait when it is told
        def isatty(self):
            return False
        def write(self, text):
            said.append(text)
            Path(os.environ["PROBE_HOLD"]).unlink(missing_ok=True)
        def flush(self):
            pass
    said, stderr, sys.stderr, jit.progress.PATIENCE = [], sys.stderr, Log(), 0.2
    jit.module("probe", CPU)
    sys.stderr = stderr
    print("".join(said))
    """
    assert re.fullmatch(r"hipconv: building probe for cpu generic … \d s, 0 of 2 files compiled\n\n", probe.python(script))


def test_a_plan_that_builds_says_what_for(probe: Probe) -> None:
    script = """
    from hipconv.ops import plans as _plans
    print(_plans.module_for("probe", Target("rocm", "gfx942")).answer())
    os.environ["HIPCONV_JIT"] = "0"
    try:
        _plans.module_for("probe", Target("cuda", "sm_90"))
    except errors.BuildDisabled as error:
        print(error)
    """
    done = probe.script(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 2
    assert done.stderr.startswith("hipconv: building probe for simt wave64, whose host code makes the plan for rocm gfx942 (once; ")
    answer, refusal = done.stdout.splitlines()
    assert answer == "4264" and "building 'probe' for simt wave32, whose host code makes the plan for cuda sm_90" in refusal


# ---- python -m hipconv ---------------------------------------------------------------------------------------------------------


def test_cli_env_names_what_a_bug_report_needs(warm: Probe) -> None:
    done = warm.cli("env")
    assert done.returncode == 0, done.stderr
    for word in ("hipconv", "torch", "python", "device    cpu", "compiler", str(warm.cache), "HIPCONV_CACHE_DIR=", str(warm.root)):
        assert word in done.stdout


def test_cli_builds_lists_and_clears_only_what_is_its_own(warm: Probe) -> None:
    done = warm.cli("build", "--arch", "generic,wave64", "wave32", "--arch", "wave64", "probe")
    assert done.returncode == 0, done.stderr
    assert warm.builds() == 2  # generic was there
    assert {line.partition(": ")[0] for line in done.stdout.splitlines()} == {
        f"probe for {t}" for t in ("cpu generic", "simt wave32", "simt wave64")
    }
    for artefact in warm.artefacts():
        assert str(artefact) in done.stdout

    warm.edit("csrc/kernels/probe_kernel.cu", "100", "1000")
    listed = warm.cli("list").stdout
    assert "probe" in listed and str(warm.cache) in listed
    states = Counter(re.findall(r"(cpu generic|simt wave\d\d) .* (current|other sources)", listed))
    assert states == {("cpu generic", "current"): 1, ("simt wave32", "other sources"): 1, ("simt wave64", "other sources"): 1}

    foreign = ["notes.txt", "probe-cpu-generic", f"probe-cpu-generic-{'0' * 16}-{'0' * 8}.bak/file", "my results/table.csv"]
    foreign.append(f"probe-cpu-generic-{'0' * 16}-{'0' * 8}")  # a file, whatever its name
    for name in foreign:
        (warm.cache / name).parent.mkdir(exist_ok=True)
        (warm.cache / name).write_text("mine")
    leftover = warm.cache / f".building-{warm.artefacts()[0].name}-x"
    leftover.mkdir()
    done = warm.cli("clear", "probe", "another")
    assert done.returncode == 1 and "unknown module 'another'" in done.stderr and len(warm.artefacts()) > 3
    done = warm.cli("clear")
    assert done.returncode == 0, done.stderr
    assert "3 builds removed" in done.stdout
    assert not leftover.exists() and not list(warm.cache.glob("*/meta.json"))
    assert all((warm.cache / name).read_text() == "mine" for name in foreign)


def test_cli_build_all_builds_every_module_for_this_machine(probe: Probe) -> None:
    done = probe.cli("build", "--all")
    assert done.returncode == 0, done.stderr
    (artefact,) = probe.artefacts()
    assert str(artefact) in done.stdout and json.loads((artefact / "meta.json").read_text())["module"] == "probe"


def test_cli_refuses_with_a_reason(probe: Probe) -> None:
    """All from one process, as each import of torch takes a second."""
    script = """
    import contextlib, io, torch
    from hipconv.__main__ import main
    def refusal(*arguments):
        sys.argv = ["hipconv", *arguments]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                code = main()
            except SystemExit as exit:
                code = exit.code
        return code, said.getvalue()
    foreign = "sm_90" if torch.version.hip else "gfx942"
    print(json.dumps({
        "foreign": refusal("build", "--all", "--arch", "sm_90" if torch.version.hip else "gfx942"),
        "arch": refusal("build", "probe", "--arch", "z80"),
        "module": refusal("build", "prob"),
        "nothing": refusal("build"),
        "command": refusal("bild"),
        "swallowed": refusal("build", "--arch", "wave64", "probe", "prob"),
        "to clear": refusal("clear", "prob"),
    }))
    """
    said = json.loads(probe.python(script))
    assert {case for case, (code, _) in said.items() if code == 2} == {"nothing", "command"}
    assert all(code in (1, 2) for code, _ in said.values())
    assert "build of torch" in said["foreign"][1]
    assert all(name in said["arch"][1] for name in ("z80", "gfx", "sm_", "wave64", "generic"))
    for case in ("module", "to clear"):
        assert "unknown module 'prob'" in said[case][1] and "defines: probe" in said[case][1]
    assert "arch: got 'prob', expected gfx" in said["swallowed"][1]
    assert "--all" in said["nothing"][1]
    assert probe.compilations() == 0
    assert probe.cli("build", "prob").returncode == 1


def test_cli_ends_quietly_when_nobody_reads_on(probe: Probe) -> None:
    script = """
    from hipconv.__main__ import main
    reader, writer = os.pipe()
    os.dup2(writer, 1), os.close(writer), os.close(reader)
    sys.argv = ["hipconv", "list"]
    sys.exit(main())
    """
    done = probe.script(script)
    assert done.returncode == 128 + signal.SIGPIPE and done.stderr == ""


# ---- the registry --------------------------------------------------------------------------------------------------------------

ENTRY = {"kernels": ["kernels/a.cu"], "cpu": ["cpu/a.cpp"], "pybind": ["pybind/a.cpp"], "flags": ["-O3"]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"a": []}', "expected exactly the keys"),
        (json.dumps({"a": ENTRY | {"sources": []}}), "expected exactly the keys kernels, cpu, pybind, flags"),
        (json.dumps({"a": {"kernels": []}}), "expected exactly the keys"),
        (json.dumps({"a": ENTRY | {"cpu": "cpu/a.cpp"}}), "cpu: expected a list of strings"),
        (json.dumps({"a": ENTRY | {"flags": [3]}}), "flags: expected a list of strings"),
        (json.dumps({"a": ENTRY | {"kernels": ["/etc/*"]}}), "kernels: expected globs below csrc/"),
        (json.dumps({"a": ENTRY | {"pybind": ["../setup.py"]}}), "pybind: expected globs below csrc/"),
        (json.dumps({"a": ENTRY | {"cpu": [""]}}), "cpu: expected globs below csrc/"),
        (json.dumps({"../a": ENTRY}), "'../a'"),
    ],
)
def test_a_wrong_registry_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BadRegistry, match=re.escape(complaint)) as caught:
        registry.parse(text, "its-path.json")
    assert "its-path.json" in str(caught.value)


def test_a_registry_is_data_and_never_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = f"f'{{__import__(\"os\").mkdir({str(tmp_path / 'trap')!r})}}'".replace("/", "\\x2f")
    entry = registry.parse(json.dumps({"a": ENTRY | {"cpu": [trap], "flags": [trap]}}), "")["a"]
    assert entry.flags == [trap]
    monkeypatch.setattr(registry, "source_root", lambda: tmp_path)
    with pytest.raises(BadRegistry, match="no file matches csrc/f'"):
        registry.sources(entry, "cpu")
    assert not (tmp_path / "trap").exists()


def test_globs_match_files_and_must_match_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "source_root", lambda: tmp_path)
    for name in ("kernels/a_2.cu", "kernels/a_1.cu", "pybind/a.cpp"):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / name).touch()
    module = registry.Module("a", ["kernels/a_*.cu"], ["kernels"], ["pybind/a.cpp"], [])
    assert registry.sources(module, "simt") == [Path("csrc/kernels/a_1.cu"), Path("csrc/kernels/a_2.cu"), Path("csrc/pybind/a.cpp")]
    with pytest.raises(BadRegistry, match="'a': no file matches csrc/kernels"):  # a directory
        registry.sources(module, "cpu")


def test_an_unknown_module_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownModule, match=r"'causal_conv'; .* causal_conv1d"):
        registry.module("causal_conv")


def test_objects_have_names_of_their_own() -> None:
    """torch's loader names them by their file's name alone, and simt turns .cu into .cpp."""
    for module in registry.modules().values():
        for backend in ("rocm", "cuda", "cpu", "simt"):
            if not registry.serves(module, backend):
                continue
            names = Counter((place.stem, place.suffix == ".cu") for place in registry.staged_names(module, backend).values())
            assert max(names.values()) == 1, (module.name, backend, names)


def test_files_of_one_name_build_into_one_module(probe: Probe) -> None:
    """Beside each other, each with a header of its own; an error in one names that one."""
    config = probe.root / "jit_config.json"
    config.write_text(config.read_text().replace("cpu/probe_*.cpp", "cpu/**/probe*.cpp"))
    for number, directory in enumerate(("one", "two")):
        place = probe.root / "csrc/cpu" / directory
        place.mkdir()
        (place / "own.h").write_text(f"#define PART {number + 1}\n")
        (place / "probe.cpp").write_text(f'#include "own.h"\nint {directory}() {{ return PART; }}\n')
    probe.edit("csrc/cpu/probe_cpu.cpp", "int answer() {", "int one(); int two(); int answer() { if (one() != 1 || two() != 2) return 0;")
    assert probe.python(ANSWER) == "42\n"
    probe.edit("csrc/cpu/two/own.h", "2", "")
    script = "print(attempt(CPU))"
    assert f"{probe.root}/csrc/cpu/two/probe.cpp:2:" in probe.python(ATTEMPT, script)


@pytest.mark.parametrize(("arch", "has_them"), [("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_100", True), ("sm_120a", True)])
def test_only_cards_that_have_early_launches_are_asked_for_them(arch: str, has_them: bool) -> None:
    """Where a kernel does not wait by itself, its launch has to."""
    assert ("-DHIPCONV_EARLY_LAUNCHES" in targets.flags(targets.Target("cuda", arch), []).device) == has_them


# ---- the real thing ------------------------------------------------------------------------------------------------------------


def real(directory: Path, compiler: Path) -> Probe:
    """A checkout of all of hipconv, for this machine's compiler."""
    checkout = Probe(directory, compiler)
    shutil.copytree(ROOT / "python/hipconv", checkout.root / "python/hipconv", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "csrc", checkout.root / "csrc")
    shutil.copy(ROOT / "jit_config.json", checkout.root)
    return checkout


def test_a_real_module_builds_and_leaves_its_sources_alone(tmp_path: Path, compiler: Path) -> None:
    """Both paths hold a space and the word that makes hipify write elsewhere: into a sibling tree where it says hip."""
    directory = tmp_path / "my cuda env"
    checkout, cache_of_its_own = real(directory, compiler), directory / "cuda cache"
    before, siblings = tree_hash(checkout.root), sorted(directory.iterdir())
    done = checkout.cli("build", "copy", HIPCONV_CACHE_DIR=str(cache_of_its_own), CXX=None)
    assert done.returncode == 0, done.stderr + done.stdout
    assert tree_hash(checkout.root) == before
    assert sorted(directory.iterdir()) == sorted([*siblings, cache_of_its_own]) and list(tmp_path.iterdir()) == [directory]
    listed = checkout.cli("list", HIPCONV_CACHE_DIR=str(cache_of_its_own), CXX=None).stdout
    assert re.search(r"copy \(\d+ source files\)\n  cpu \w+ .* current", listed)


def test_the_demo_compares_with_the_reference(tmp_path: Path, compiler: Path) -> None:
    """With what other tests build, too."""
    done = real(tmp_path, compiler).cli("demo", HIPCONV_CACHE_DIR=str(next(cache.roots())), CXX=os.environ.get("CXX"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.fullmatch(r"causal_conv1d_fwd on cpu \(cpu \w+\): ok, max error \S+, first call \S+ s\n", done.stdout)
