"""A module is built for a target: a backend and an architecture, found from a tensor's device or by name."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NamedTuple

import torch

from .architectures import ARCHITECTURES, SIMT

BACKENDS = ("rocm", "cuda", "cpu", "simt")


class Target(NamedTuple):
    """A backend ("rocm", "cuda", "cpu", "simt") and an architecture of it ("gfx942", "sm_90", "avx512", "wave64")."""

    backend: str
    arch: str

    def __str__(self) -> str:
        return f"{self.backend} {self.arch}"

    @property
    def on_gpu(self) -> bool:
        return self.backend in ("rocm", "cuda")


# ---- from a device to a target -----------------------------------------------------------------------------------------------


def of(device: torch.device) -> Target:
    """The target that serves tensors on `device`."""
    if device.type == "cpu":
        backend = os.environ.get("HIPCONV_BACKEND", "")
        simt = backend == "simt"
        return _host(backend, *(os.environ.get(name, "") if simt else "" for name in ("HIPCONV_SIMT_WAVE", "HIPCONV_SIMT_MMA")))
    if device.type == "cuda":
        return _gpu(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError(
        f"x: got a tensor on {device}, expected one on the CPU or on a GPU that this torch calls 'cuda' (CUDA and ROCm)"
    )


@functools.cache
def _gpu(index: int) -> Target:
    if torch.version.hip:
        return Target("rocm", torch.cuda.get_device_properties(index).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability(index)
    return Target("cuda", f"sm_{major}{minor}")


@functools.cache
def _host(backend: str, wave: str, unit: str) -> Target:
    if backend in ("", "cpu"):
        return Target("cpu", host_isa())
    if backend != "simt":
        raise ValueError(f"HIPCONV_BACKEND: got '{backend}', expected 'cpu' or 'simt' (it chooses what CPU tensors run on)")
    if wave not in ("", "32", "64"):
        raise ValueError(f"HIPCONV_SIMT_WAVE: got '{wave}', expected 32 or 64")
    simt = {name: ARCHITECTURES[name] for name in SIMT}
    wave = wave or str(next((known.wave for known in simt.values() if known.matrix_unit == unit), 64))
    units = {known.matrix_unit: name for name, known in simt.items() if str(known.wave) == wave}
    if unit and unit not in units:
        raise ValueError(f"HIPCONV_SIMT_MMA: got '{unit}' with waves of {wave} lanes, expected one of {', '.join(units)}")
    return Target("simt", units[unit] if unit else f"wave{wave}")


def of_machine() -> list[Target]:
    """The target of every visible GPU, without repeats, then that of the host."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return [*dict.fromkeys(_gpu(index) for index in gpus), of(torch.device("cpu"))]


def named(arch: str, argument: str = "arch") -> Target:
    """The target that an architecture's name means: gfx942, sm_90, wave64, cpu, or one of the host's instruction sets."""
    if arch.startswith("gfx"):
        return Target("rocm", arch)
    if arch.startswith("sm_") and arch[3:4].isdigit():
        return Target("cuda", arch)
    if arch in SIMT:
        return Target("simt", arch)
    if arch == "cpu":
        return Target("cpu", host_isa())
    if arch in ISA:
        return Target("cpu", arch)
    known = f"gfx<digits>, sm_<digits>, {', '.join(SIMT)}, cpu, or one of {', '.join(_usable_isas())}"
    raise ValueError(f"{argument}: got '{arch}', expected {known}")


def parse(arch: str) -> Target:
    """The target called `arch`, if this torch and this host can build for it."""
    target = named(arch)
    if target.backend == "cpu" and target.arch not in _usable_isas():
        raise ValueError(f"arch: got '{arch}', which this host cannot run; expected one of {', '.join(_usable_isas())}")
    if target.on_gpu and not (torch.version.hip if target.backend == "rocm" else torch.version.cuda):
        kind = "ROCm" if target.backend == "rocm" else "CUDA"
        raise ValueError(f"arch: got '{arch}', which needs a {kind} build of torch; this one is {torch.__version__}")
    return target


# ---- the host's instruction sets ---------------------------------------------------------------------------------------------


class _Isa(NamedTuple):
    needs: tuple[str, ...]  # as /proc/cpuinfo calls them
    flags: tuple[str, ...]  # as the compiler does
    capability: str  # as torch's headers do


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
ISA = {
    "avx512_bf16": _Isa((*_AVX512, "avx512_bf16"), tuple(f"-m{f}" for f in (*_AVX512, "avx512bf16")), "AVX512"),
    "avx512": _Isa(_AVX512, tuple(f"-m{f}" for f in _AVX512), "AVX512"),
    "avx2": _Isa(_AVX2, tuple(f"-m{f}" for f in _AVX2), "AVX2"),
    "generic": _Isa((), (), "DEFAULT"),
}


@functools.cache
def _cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def _usable_isas() -> list[str]:
    return [name for name, isa in ISA.items() if set(isa.needs) <= _cpu_features()]


def host_isa() -> str:
    """The best instruction set that hipconv builds for and this host has."""
    return _usable_isas()[0]
