"""Exceptions that are the caller's: a signal handler raised them, or another thread, inside of whatever was running."""

from __future__ import annotations

from collections.abc import Iterator
import subprocess
import sys
import traceback

_OF_BUILDS = {
    "builtins",
    __name__.partition(".")[0],
    "torch",
    "setuptools",
    "_distutils_hack",
    "distutils",
    "packaging",
    "ninja",
    "filelock",
}


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it was raised from, and so on."""
    cause: BaseException | None = error
    while cause:
        yield cause
        cause = cause.__cause__


def pass_on(error: BaseException) -> None:
    """Raise what is the caller's, `error` or one that it was raised from; return if none is.

    It is known by its class, or by the function that raised it: one that is neither Python's nor of what finds and builds
    modules. torch's loader and file operations catch OSError, which TimeoutError is, too: callers' alarms like to raise that.
    """
    if any(isinstance(cause, (subprocess.CalledProcessError, ImportError)) for cause in causes(error)):
        return  # a compiler's failure, whoever has wrapped Python's functions, or a library's
    for cause in causes(error):
        took_part = [
            type(cause).__module__,
            *(frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(cause.__traceback__)),
        ]
        if any(module.partition(".")[0] not in _OF_BUILDS | sys.stdlib_module_names for module in took_part):
            raise cause from cause.__cause__
