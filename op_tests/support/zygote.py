"""Python processes that have imported torch already: forks of one that waits for orders, each in 20 ms instead of 2 CPU
seconds.

A process gets an environment, output pipes and a session of its own, as from subprocess.Popen, and runs a script as `python -c`
does. Only what torch reads from the environment while it is imported is that of the process which asked first; setuptools,
which torch's loader takes, is there already; and when the script is done, threads are waited for and exit functions run, but
torch's thousands of objects are not taken apart, each of which would be copied for that.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time

WAITING = """
import atexit, gc, json, os, signal, socket, sys, tempfile, threading, traceback
import setuptools, torch

orders = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the status of those who report
gc.freeze()
while True:
    message, passed, *_ = socket.recv_fds(orders, 1 << 20, 3)
    if not message:  # nobody is left to give any
        sys.exit()
    *outputs, report = passed
    if os.fork() == 0:
        orders.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            break
        os.close(outputs[0]), os.close(outputs[1])
        os.write(report, f"{child}\\n".encode())
        os.write(report, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
        os._exit(0)
    for descriptor in (*outputs, report):
        os.close(descriptor)
order = json.loads(message)
os.setsid()
for descriptor, output in enumerate(outputs, 1):
    os.dup2(output, descriptor)
    os.close(output)
os.close(report)
os.environ.clear()
os.environ.update(order["environment"])
tempfile.tempdir = None
sys.argv = ["-c"]
sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
status = 0
try:
    exec(compile(order["script"], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
except SystemExit as exit:
    status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    if status and not isinstance(exit.code, int):
        print(exit.code, file=sys.stderr)
except Exception:
    status = 1
    traceback.print_exc()
threading._shutdown()
atexit._run_exitfuncs()
try:
    sys.stdout.flush()
    sys.stderr.flush()
except OSError:
    status = 120  # as Python does
os._exit(status & 255)
"""


@functools.cache
def _waiting() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The one that waits, which ends with this process, and where it takes its orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WAITING, str(theirs.fileno())]
    with theirs:
        return ours, subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])


class Forked:
    """A process that runs `script`, with as much of subprocess.Popen as tests need."""

    def __init__(self, script: str, environment: dict[str, str], stderr: int = subprocess.PIPE) -> None:
        pipes = [os.pipe() for _ in range(3 if stderr == subprocess.PIPE else 2)]  # stdout, report, stderr
        (self.stdout, report, *errors), (stdout, reports, *given) = (
            [os.fdopen(end) for end in ends] for ends in zip(*pipes, strict=True)
        )
        order = json.dumps({"script": script, "environment": environment}).encode()
        socket.send_fds(_waiting()[0], [order], [stdout.fileno(), given[0].fileno() if given else stderr, reports.fileno()])
        for end in (stdout, reports, *given):
            end.close()
        self.pid = int(report.readline())
        self.returncode: int | None = None
        self._texts: dict[int, str] = {}
        self._pipes = [self.stdout, report, *errors]
        self._readers: list[threading.Thread] = []

    def communicate(self, timeout: float) -> tuple[str, str | None]:
        """Return what it prints until it ends; subprocess.TimeoutExpired if that is later."""

        def read(number: int) -> None:
            self._texts[number] = self._pipes[number].read()

        limit = time.monotonic() + timeout
        if not self._readers:
            self._readers = [threading.Thread(target=read, args=[number], daemon=True) for number in range(len(self._pipes))]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(max(0.0, limit - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("python -c", timeout)
        for pipe in self._pipes:
            pipe.close()
        self.returncode = int(self._texts[1])
        return self._texts[0], self._texts.get(2)
