"""Builds that fail, are interrupted, are forbidden or lack a tool: what they say and what they leave.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

import json
from pathlib import Path
import re
import shutil

import pytest

from jit.probe import ANSWER, ATTEMPT, Probe
from hipconv.jit import toolchain

# ---- failed builds -----------------------------------------------------------------------------------------------------------


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


# ---- HIPCONV_JIT=0, missing tools --------------------------------------------------------------------------------------------


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
    assert (
        "another machine" in error and "python -m hipconv build --all --arch generic" in error and "HIPCONV_CACHE_DIR" in error
    )
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
    (beside / "ninja").symlink_to(toolchain._ninja() or "")
    script = f"""
    import sysconfig
    sys.executable = {str(beside / "python")!r}
    paths = sysconfig.get_path
    sysconfig.get_path = lambda name, **more: str(Path(sys.executable).parent) if name == "scripts" else paths(name, **more)
    """
    assert probe.python(script, ANSWER, PATH=str(tools), CXX=None) == "42\n"
    assert probe.builds() == 1
