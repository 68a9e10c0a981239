"""The engine under attack: disks that are full, or change under it; sources that vanish; masks, clocks, locks and processors
that are not what they were.

Each test runs real processes on a small checkout of its own (probe.py). docs/testing.md has a table of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import subprocess
import time

import pytest

from jit.probe import ANSWER, ATTEMPT, UNPRIVILEGED, Probe, wait_until
from support.backends import EVERYTHING

nightly = pytest.mark.skipif(not EVERYTHING, reason="nightly: HIPCONV_TEST_ARCHS=all")

# Mounts a file system of memory, which only this process and those that it starts see.
MOUNT = """
import ctypes, errno
_libc = ctypes.CDLL(None, use_errno=True)
def _check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def mount(place, options=b"", flags=0):
    Path(place).mkdir(parents=True, exist_ok=True)
    user, group = os.getuid(), os.getgid()
    if os.geteuid():
        _check(_libc.unshare(0x10000000))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _check(_libc.unshare(0x00020000))
    _check(_libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
    _check(_libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, b"mode=700" + options))
def remount(place, flags):
    _check(_libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags | 0x20, None))
"""


@pytest.fixture(scope="module")
def mounts() -> None:
    """For tests that need a file system of their own."""
    words = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
    ):
        pytest.skip("this machine lets nobody mount a file system")


# ---- disks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    "temporary", [pytest.param(False, id="cache"), pytest.param(True, id="cache and TMPDIR", marks=nightly)]
)  # fmt: skip
def test_a_disk_that_fills_in_the_middle_of_a_build(probe: Probe, temporary: bool) -> None:
    """Wherever it is full: in copies of sources, in the compiler, in the linker, in what is written last.
    And it is tried again.
    """
    script = """
    disk = Path(os.environ["HIPCONV_CACHE_DIR"]).parent
    mount(disk, b",size=4m")
    Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
    Path(os.environ["HIPCONV_CACHE_DIR"]).mkdir()
    def fill(left):
        with open(disk / "fill", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, os.fstat(file.fileno()).st_size // 4096 * 4096 - left))
    said = []
    for left in SIZES:
        fill(left << 10)
        answer = attempt()
        root = Path(os.environ["HIPCONV_CACHE_DIR"])
        left_over = [place.name for place in root.iterdir() if place.name != ".locks"] if answer != 42 else []
        said.append([left, answer, left_over, len(jit.builder._failed)])
        if answer == 42:
            break
    (disk / "fill").unlink()
    print(json.dumps([said, attempt()]))
    """.replace("SIZES", str([*range(0, 400, 4)] if EVERYTHING else [0, 4, 16, 20, 24, 28, 32, 40, 400]))
    disk = probe.home.parent / "disk"
    more = {"TMPDIR": str(disk / "tmp")} if temporary else {}
    done = probe.script(MOUNT, ATTEMPT, script, HIPCONV_CACHE_DIR=str(disk / "cache"), **more)
    assert done.returncode == 0, done.stderr
    said, at_last = json.loads(done.stdout)
    assert at_last == 42
    failures = [text for _, text, _, _ in said if text != 42]
    assert len(failures) >= 4
    for left, text, left_over, remembered in said:
        if text != 42:
            assert "No space left on device" in text or "building 'probe'" in text, (left, text)
        assert not left_over and not remembered, (left, left_over, remembered, text)


def test_a_file_that_may_not_grow_is_a_full_disk(probe: Probe) -> None:
    """A limit on the size of files, of the shell's `ulimit -f`:
    what is written next to a library that was cut short is not published.
    """
    script = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    first = attempt()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(json.dumps([first, attempt()]))
    """
    first, second = json.loads(probe.python(ATTEMPT, script))
    assert "building 'probe'" in first and "8 KiB" in first and second == 42
    assert len(probe.artefacts()) == 1 and not probe.leftovers()


@pytest.mark.usefixtures("mounts")
def test_a_home_on_a_disk_that_is_read_only(probe: Probe) -> None:
    script = """
    mount(os.environ["HOME"])
    remount(os.environ["HOME"], 1)
    """
    done = probe.script(MOUNT, script, ANSWER, HIPCONV_CACHE_DIR=None)
    assert done.stdout == "42\n", done.stderr
    assert "Read-only file system" in done.stderr and "set HIPCONV_CACHE_DIR" in done.stderr


@pytest.mark.usefixtures("mounts")
def test_a_cache_from_which_nothing_may_be_run_is_named(probe: Probe) -> None:
    """A disk mounted with noexec, as /tmp and homes of guarded servers are."""
    script = """
    mount(os.environ["HIPCONV_CACHE_DIR"], flags=8)
    print(attempt())
    """
    said = probe.python(MOUNT, ATTEMPT, script, HIPCONV_CACHE_DIR=str(probe.home.parent / "disk"))
    assert "noexec" in said and "HIPCONV_CACHE_DIR" in said and "failed to map segment" in said


# ---- sources -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["csrc", "csrc/cpu/probe_cpu.cpp", "jit_config.json", "csrc/include/answer.h"])
def test_sources_that_vanish_after_the_import(warm: Probe, gone: str) -> None:
    """As when a package is upgraded, or a checkout changes its branch, below a process. What is loaded stays;
    nothing else is guessed.
    """
    script = f"""
    import shutil
    loaded = jit.module("probe", CPU).answer()
    place = Path({str(warm.root / gone)!r})
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    print(json.dumps([loaded, jit.module("probe", CPU).answer()]))
    try:
        print(jit.module("probe", SIMT).answer())
    except errors.JitError as error:
        print(type(error).__name__, error)
    """
    done = warm.script(script)
    assert done.returncode == 0, done.stderr
    answers, second = done.stdout.split("\n", 1)
    assert json.loads(answers) == [42, 42]
    if gone == "csrc/cpu/probe_cpu.cpp":  # which simt has no use for
        assert second == "4264\n"
    elif gone != "csrc/include/answer.h":
        assert "reinstall hipconv" in second and second.startswith("BadRegistry"), second
    else:
        assert "answer.h" in second and second.startswith("BuildError"), second
    assert not warm.leftovers()


def test_a_source_that_vanishes_while_it_is_copied(probe: Probe) -> None:
    script = f"""
    copy = jit.builder._copy
    exec('''def _copy(source, destination):
        if source.name == "probe_cpu.cpp":
            source.unlink()
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, destination)''', vars(jit.builder))
    first = attempt()
    source = Path({str(probe.root / "csrc/cpu/probe_cpu.cpp")!r})
    source.write_text('#include "answer.h"\\nint answer() {{ return ANSWER; }}\\n')
    jit.builder._copy = copy
    print(json.dumps([first, attempt()]))
    """
    first, second = json.loads(probe.python(ATTEMPT, script))
    assert "probe_cpu.cpp" in first and second == 42
    assert not probe.leftovers()


# ---- masks and clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["0o077", pytest.param("0o000", marks=nightly)])
def test_a_mask_of_permissions(probe: Probe, mask: str) -> None:
    """Built under it, and found again by this user without it; and nothing that is loaded is for others to write."""
    assert probe.python(UNPRIVILEGED, f"os.umask({mask})", ANSWER) == "42\n"
    assert probe.python(UNPRIVILEGED, ANSWER, HIPCONV_JIT="0") == "42\n"
    (artefact,) = probe.artefacts()
    for place in (probe.cache, artefact, artefact / "meta.json", *artefact.glob("*.so")):
        assert not place.stat().st_mode & 0o022, place


def test_a_mask_that_takes_ones_own_files_away_is_refused(probe: Probe) -> None:
    script = """
    os.umask(0o277)
    try:
        jit.module("probe", CPU)
    except errors.CacheUnwritable as error:
        print(error)
    """
    assert "Permission denied" in probe.python(UNPRIVILEGED, script)


CLOCK = r"""
#include <sys/time.h>
#include <time.h>
#include <dlfcn.h>
static long shift(void) { static long calls; return (++calls & 1 ? 10 : -10) * 31536000L; }
int clock_gettime(clockid_t clock, struct timespec* now) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval* now, void* zone) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec; now->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t* to) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (to) *to = t.tv_sec; return t.tv_sec; }
"""


@nightly
def test_a_clock_that_jumps(probe: Probe, tmp_path: Path) -> None:
    """By twenty years at each look, in this process and in compilers; and files from the future and from 1970."""
    library = tmp_path / "clock.so"
    words = ["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(words, input=CLOCK, text=True, check=True)
    done = probe.run("-c", "import time; print(abs(time.time() - time.time()) > 1e8)", LD_PRELOAD=str(library))
    assert done.stdout == "True\n"
    sources = sorted((probe.root / "csrc").rglob("*.*"))
    for number, file in enumerate(sources):
        os.utime(file, (5e9, 5e9) if number % 2 else (0, 0))
    script = "from hipconv import jit\nfrom hipconv.jit.targets import Target\n" + ANSWER.replace(
        "CPU", 'Target("cpu", "generic")'
    )
    done = probe.run("-c", script, LD_PRELOAD=str(library))
    assert done.stdout == "42\n", done.stderr
    assert probe.builds() == 1
    for place in (*sources, *probe.cache.rglob("*")):
        os.utime(place, (5e9, 5e9))
    assert probe.python(ANSWER) == "42\n" and probe.builds() == 1
    for place in (*sources, *probe.cache.rglob("*")):
        os.utime(place, (0, 0))
    assert probe.python(ANSWER) == "42\n" and probe.builds() == 1


# ---- locks -------------------------------------------------------------------------------------------------------------------

# Network file systems do this: no locks at all, an error late, or locks that hold in one machine alone, so that all others get
# them too.
LOCKS = {
    "not there": "raise NotImplementedError",
    "fail": "raise OSError(37, 'No locks available')",
    "held by everybody": "return None",
}


@pytest.mark.parametrize("how", ["held by everybody", *(pytest.param(how, marks=nightly) for how in ("not there", "fail"))])
def test_many_processes_where_locks_do_not_work(probe: Probe, how: str) -> None:
    """Several build then, and nobody waits, fails, or clears away what another is at. The last to publish finds it there."""
    count = 32 if EVERYTHING else 4
    patch = f"""
    import filelock
    exec('''def acquire(self, *arguments, **options):
        {LOCKS[how]}''', vars(filelock))
    filelock.FileLock.acquire = filelock.acquire
    filelock.FileLock.release = lambda self, force=False: None
    sign = jit.under_way.sign
    def sign_late(directory):
        time.sleep(0.5)  # enough for the others to come across a directory that does not say yet whose it is
        sign(directory)
    jit.under_way.sign = sign_late
    """
    probe.hold.touch()
    processes = [probe.start(patch, ANSWER) for _ in range(count)]
    wait_until(lambda: len(probe.leftovers()) == count, "all build at once", 120)
    time.sleep(0.2)
    probe.hold.unlink()
    for process in processes:
        assert process.communicate(timeout=170) == ("42\n", "")
    assert len(probe.artefacts()) == 1 and not probe.leftovers()
    assert probe.builds() == count
    assert probe.python(ANSWER, HIPCONV_JIT="0") == "42\n"


def test_what_another_machine_builds_is_left_alone_until_it_is_old(warm: Probe) -> None:
    """Its locks may not be seen here."""
    name = warm.artefacts()[0].name
    shutil.rmtree(warm.artefacts()[0])
    theirs = warm.cache / f".building-{name}-theirs"
    theirs.mkdir()
    (theirs / ".builder").write_text("another-machine 1 1")
    assert warm.python(ANSWER) == "42\n"
    assert warm.leftovers() == [theirs]
    os.utime(theirs, (time.time() - 3 * 86400,) * 2)
    shutil.rmtree(warm.artefacts()[0])
    assert warm.python(ANSWER) == "42\n"
    assert not warm.leftovers()


# ---- other processors --------------------------------------------------------------------------------------------------------


def test_an_artefact_for_instructions_that_this_processor_lacks_is_not_loaded(warm: Probe) -> None:
    """In a cache that several machines share: each finds its own, by its name."""
    script = """
    made = {isa: jit.module("probe", Target("cpu", isa)).__file__ for isa in ("avx512", "avx2", "generic")}
    print(len({Path(file).parent.name for file in made.values()}), all(isa in file for isa, file in made.items()))
    from hipconv.jit import builds
    here = builds.Build.of("probe", CPU).name
    class Elsewhere:
        machine = "another"
    os.uname = lambda: Elsewhere
    print(here != builds.Build.of("probe", CPU).name)
    """
    assert warm.python(script) == "3 True\nTrue\n"


def test_a_library_for_another_processor_in_the_place_of_ours_is_replaced(warm: Probe) -> None:
    """Whole to its last byte, and of no use here: ELF's machine is another."""
    (artefact,) = warm.artefacts()
    script = f"""
    import hashlib
    meta = Path({str(artefact / "meta.json")!r})
    told = json.loads(meta.read_text())
    library = meta.parent / told["library"]
    code = bytearray(library.read_bytes())
    code[18:20] = (243).to_bytes(2, "little")  # RISC-V
    library.unlink()
    library.write_bytes(code)
    meta.write_text(json.dumps(told | {{"sha256": hashlib.sha256(code).hexdigest()}}))
    print(jit.module("probe", CPU).answer())
    """
    done = warm.script(script)
    assert done.stdout == "42\n", done.stderr
    assert warm.builds() == 1 and warm.python(ANSWER, HIPCONV_JIT="0") == "42\n"
