"""The user sees this: a build's progress, and `python -m hipconv`.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

from collections import Counter
import json
import os
import pty
import re
import select
import signal
import time

from jit.probe import ANSWER, Probe

# ---- what the user sees ------------------------------------------------------------------------------------------------------


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
    from hipconv.ops import plans
    print(plans.module_for("probe", Target("rocm", "gfx942")).answer())
    os.environ["HIPCONV_JIT"] = "0"
    try:
        plans.module_for("probe", Target("cuda", "sm_90"))
    except errors.BuildDisabled as error:
        print(error)
    """
    done = probe.script(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 2
    assert done.stderr.startswith(
        "hipconv: building probe for simt wave64, whose host code makes the plan for rocm gfx942 (once; "
    )
    answer, refusal = done.stdout.splitlines()
    assert answer == "4264" and "building 'probe' for simt wave32, whose host code makes the plan for cuda sm_90" in refusal


# ---- python -m hipconv -------------------------------------------------------------------------------------------------------


def test_cli_env_names_what_a_bug_report_needs(warm: Probe) -> None:
    done = warm.run("-m", "hipconv", "env")  # as users call it; below, forks do, as each import of torch takes a second
    assert done.returncode == 0, done.stderr
    for word in (
        "hipconv",
        "torch",
        "python",
        "device    cpu",
        "compiler",
        str(warm.cache),
        "HIPCONV_CACHE_DIR=",
        str(warm.root),
    ):
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
    assert re.findall(r"  (cpu|simt) .* (current|other)", listed) == [("cpu", "current")]
    assert "  and 2 of other sources, flags, torch or Python, " in listed
    states = Counter(re.findall(r"(cpu generic|simt wave\d\d) .* (current|other sources)", warm.cli("list", "--all").stdout))
    assert states == {("cpu generic", "current"): 1, ("simt wave32", "other sources"): 1, ("simt wave64", "other sources"): 1}

    foreign = ["notes.txt", "probe-cpu-generic", f"probe-cpu-generic-{'0' * 16}-{'0' * 8}.bak/file", "my results/table.csv"]
    foreign.append(f"probe-cpu-generic-{'0' * 16}-{'0' * 8}")  # a file, whatever its name
    for name in foreign:
        (warm.cache / name).parent.mkdir(exist_ok=True)
        (warm.cache / name).write_text("mine")
    leftover = warm.cache / f".building-{warm.artefacts()[0].name}-x"
    leftover.mkdir()
    (leftover / "probe.o").touch()
    done = warm.cli("clear", "probe", "another")
    assert done.returncode == 1 and "unknown module 'another'" in done.stderr and len(warm.artefacts()) > 3
    (current,) = warm.cache.glob("probe-cpu-generic-*/meta.json")
    damaged = current.parent.with_name(f"probe-cpu-avx2-{'0' * 16}-{'0' * 8}")
    damaged.mkdir()
    done = warm.cli("clear", "--stale")
    assert done.returncode == 0, done.stderr
    assert "3 builds removed" in done.stdout and str(damaged) in done.stdout
    assert list(warm.cache.glob("*/meta.json")) == [current]
    done = warm.cli("clear")
    assert done.returncode == 0, done.stderr
    assert "1 build removed" in done.stdout
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
