"""The lock under which one thread of a process builds and loads, and forks by other threads meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import FrameType

lock = threading.RLock()

_POLL = 0.001  # seconds


def _forget_lock() -> None:
    """A child forked while another thread was building must not wait for that thread."""
    global lock
    lock = threading.RLock()


def _wait_for_pipes() -> None:
    """Nor must a build wait for such a child.

    A thread that starts a compiler has both ends of its pipes open for some milliseconds. A child forked then would keep them
    open as long as it lives, and the thread would wait as long for the end of what the compiler says.
    """
    while _another_thread_builds() and _another_thread_starts_a_process():
        time.sleep(_POLL)


def _another_thread_builds() -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def _another_thread_starts_a_process() -> bool:
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return any(_is_in_start(frame) for frame in frames.values())


def _is_in_start(frame: FrameType | None) -> bool:
    while frame and frame.f_code is not subprocess.Popen.__init__.__code__:
        frame = frame.f_back
    return frame is not None


os.register_at_fork(before=_wait_for_pipes, after_in_child=_forget_lock)
