"""Many processes, threads and forks at once, and killed ones: there is one build, and nobody is stuck.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
import time

import pytest
import torch

from jit.probe import ANSWER, Probe, wait_until
from hipconv import jit, targets


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


def test_a_child_forked_while_a_compiler_is_started_does_not_keep_the_build_waiting(probe: Probe) -> None:
    """It would have inherited the pipe at whose end the build waits, and held it open until its alarm."""
    script = """
    import signal, subprocess
    close = subprocess.Popen._close_pipe_fds
    def close_late(*arguments):
        starting.set()
        time.sleep(0.3)
        close(*arguments)
    subprocess.Popen._close_pipe_fds = close_late
    starting = threading.Event()
    builds = []
    builder = threading.Thread(target=lambda: builds.append(jit.module("probe", CPU).answer()))
    builder.start()
    children = []
    while builder.is_alive():
        if starting.wait(0.01):
            starting.clear()
            children.append(os.fork())
            if children[-1] == 0:
                signal.alarm(20)  # the bound
                signal.pause()
    alive = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
    for child in alive:
        os.kill(child, signal.SIGKILL)
    print(builds, len(children) > 0, alive == children)
    """
    assert probe.python(script) == "[42] True True\n"


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize("name", ["causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "causal_conv1d_varlen"])
def test_modules_for_several_targets_share_no_kernel(name: str) -> None:
    """g++ makes one variable in a process of all inline ones of a name, whichever libraries they are in: a table of kernels
    would be that of the first module which is loaded."""
    for target in (targets.of(torch.device("cpu")), targets.named("wave64")):
        library = jit.build(name, target).library
        lines = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout.splitlines()
        unique = {line.split(" u ", 1)[1] for line in lines if " u hipconv::" in line}
        assert unique <= {"hipconv::python_of_torch"}, unique
