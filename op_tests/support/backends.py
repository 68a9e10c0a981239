"""The places to run: the backends, the ways that simt runs a kernel, and the environment variables that choose."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os

import torch

EVERYTHING = os.environ.get("HIPCONV_TEST_ARCHS") == "all"  # what takes too long for every run, too
BACKENDS = ("cpu", "simt", "gpu")  # simt: the GPU kernels, thread by thread, on the host


def _simt(wave: int, order: str) -> dict[str, str]:
    return {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": str(wave), "HIPCONV_SIMT_ORDER": order}


# To run CPU tensors, by environment: the GPU kernels in both wave sizes, and threads in an order that hides no missing barrier
# (simt/test_simt.py: each of the two straight orders hides some).
WAYS = {
    "cpu": {"HIPCONV_BACKEND": "cpu"},
    "simt-wave64": _simt(64, "shuffled:1"),
    "simt-wave32-shuffled": _simt(32, "shuffled:3"),
}
if EVERYTHING:
    WAYS |= {f"simt-wave64-{order}": _simt(64, order) for order in ("ascending", "descending")}


def backends() -> list[str]:
    """The backends that this machine has."""
    return [backend for backend in BACKENDS if backend != "gpu" or torch.cuda.is_available()]


def on_kernels() -> list[str]:
    """The backends that run our kernels for every op: conv2d of CPU tensors is torch's own."""
    return [backend for backend in backends() if backend != "cpu"]


def device_of(backend: str) -> torch.device:
    """The device whose tensors `backend` serves."""
    return torch.device("cuda" if backend == "gpu" else "cpu")


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for as long as it lasts."""
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def use_backend(backend: str) -> contextlib.AbstractContextManager[None]:
    """Send CPU tensors to `backend`."""
    return environment(HIPCONV_BACKEND="simt" if backend == "simt" else "cpu")
