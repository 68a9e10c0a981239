"""The architectures that are known by name, and what a compute unit of each has. Other GPUs are built for too, and planned for
as small ones.
"""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    wave: int
    """Lanes."""
    matrix_unit: str
    """"mfma" (CDNA), "wmma11", "wmma12" (RDNA 3 and 4), "mma_sync", "wgmma" (NVIDIA), or "fma" for none."""
    lds: int = 64 << 10
    """Bytes of LDS, or shared memory, that a compute unit has; on RDNA a work-group processor, on NVIDIA an SM."""
    compute_units: int = 8
    """Those of the card that stands for the architecture where none is in the machine."""


ARCHITECTURES = {
    "gfx90a": Architecture(64, "mfma", 64 << 10, 104),
    "gfx942": Architecture(64, "mfma", 64 << 10, 304),
    "gfx950": Architecture(64, "mfma", 160 << 10, 256),
    "gfx1100": Architecture(32, "wmma11", 128 << 10, 96),
    "gfx1151": Architecture(32, "wmma11", 128 << 10, 40),
    "gfx1201": Architecture(32, "wmma12", 128 << 10, 64),
    "sm_80": Architecture(32, "mma_sync", 164 << 10, 108),
    "sm_86": Architecture(32, "mma_sync", 100 << 10, 82),
    "sm_89": Architecture(32, "mma_sync", 100 << 10, 128),
    "sm_90": Architecture(32, "wgmma", 228 << 10, 132),
    "sm_100": Architecture(32, "mma_sync", 228 << 10, 148),
    "sm_120": Architecture(32, "mma_sync", 100 << 10, 170),
    # simt: few units, so that its tests split sums too.
    "wave64": Architecture(64, "mfma"),
    "wave64-fma": Architecture(64, "fma"),
    "wave32": Architecture(32, "mma_sync"),
    "wave32-wmma11": Architecture(32, "wmma11"),
    "wave32-wmma12": Architecture(32, "wmma12"),
    "wave32-fma": Architecture(32, "fma"),
}
SIMT = tuple(name for name in ARCHITECTURES if name.startswith("wave"))
FEWEST_UNITS = 8  # of an architecture that is not listed


def compute_units(name: str) -> int:
    """Return those of the card that stands for the architecture."""
    return ARCHITECTURES[name].compute_units if name in ARCHITECTURES else FEWEST_UNITS
