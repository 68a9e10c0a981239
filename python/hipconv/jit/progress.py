"""Saying what goes on while a module is built, or something else takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from pathlib import Path
import sys
import threading
import time
from typing import TypeVar

from .variables import switch

T = TypeVar("T")

PATIENCE = 10.0  # seconds, after which a log is told of a build


def verbose() -> bool:
    return switch("VERBOSE", False)


def say(text: str, *, always: bool = False) -> None:
    """A line on a terminal, or wherever HIPCONV_VERBOSE asks for it; silence in pipes and logs,
    but for what they are `always` told.
    """
    if sys.stderr and (always or sys.stderr.isatty() or verbose()):
        print(f"hipconv: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def showing(what: str, staged: Path, files: int, *, announced: bool) -> Iterator[None]:
    """Say what is being built and for how long.

    A terminal shows a line that counts the seconds; pipes and logs get one when the build has taken PATIENCE seconds, as
    somebody may think that the process hangs, and one each minute from then on. What the user did not ask for is announced
    there, too.
    """
    started = time.monotonic()
    done = threading.Event()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()

    def report() -> None:
        wait = 1.0 if on_terminal else PATIENCE
        with contextlib.suppress(OSError, ValueError):  # whoever listened has left
            while not done.wait(wait):
                so_far = f"{time.monotonic() - started:.0f} s, {sum(1 for _ in staged.glob('*.o'))} of {files} files"
                if on_terminal:  # what it is for has been said, and the line is to fit
                    print(f"\rhipconv: building {what.partition(',')[0]} … {so_far} ", end="", file=sys.stderr, flush=True)
                else:
                    say(f"building {what} … {so_far} compiled", always=True)
                    wait = 60.0

    reporter = threading.Thread(target=report, daemon=True)
    say(f"building {what} (once; later processes load it from the cache)", always=announced)
    if not verbose():
        reporter.start()
    outcome = "stopped building {what} after"
    try:
        yield
        outcome = "built {what} in"
    finally:
        done.set()
        if not verbose():
            reporter.join()
            if on_terminal:
                print("\r\x1b[K", end="", file=sys.stderr)
        say(f"{outcome.format(what=what)} {time.monotonic() - started:.1f} s", always=announced)


BAR = 24  # columns
REFRESH = 0.2  # seconds


def counting(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, one after the other, while a terminal shows a bar of how many are done, and how long the rest will take.

    Pipes and logs get a line when PATIENCE seconds have passed, and one each minute from then on.
    """
    started = time.monotonic()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    due = started + (0.0 if on_terminal else PATIENCE)
    try:
        for done, item in enumerate(items):
            if (now := time.monotonic()) >= due:
                due = now + (REFRESH if on_terminal else 60.0)
                left = f", {(now - started) / done * (len(items) - done):.0f} s left" if done else ""
                text = f"{what} … {done} of {len(items)}{left}"
                with contextlib.suppress(OSError, ValueError):  # whoever listened has left
                    if on_terminal:
                        bar = ("#" * (BAR * done // len(items))).ljust(BAR, ".")
                        print(f"\r\x1b[Khipconv: [{bar}] {text} ", end="", file=sys.stderr, flush=True)
                    else:
                        say(text, always=True)
            yield item
    finally:
        if on_terminal:
            with contextlib.suppress(OSError, ValueError):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
