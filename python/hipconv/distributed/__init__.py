"""Convolutions of tensors that are split over the processes of a torch.distributed group: exact halo exchange, context-parallel
conv1d, spatially parallel conv2d.

Everything moves through torch's own process groups, one collective a call. docs/distributed.md says what has the bits of one
device.
"""

from typing import TYPE_CHECKING

from .conv1d import causal_conv1d
from .conv2d import conv2d
from .halo import begin_halo, gather, halo, shard

if TYPE_CHECKING:
    from .styles import SpatialParallel

__all__ = ["SpatialParallel", "begin_halo", "causal_conv1d", "conv2d", "gather", "halo", "shard"]


def __getattr__(name: str) -> object:
    """`SpatialParallel` when it is asked for: the part of torch that it builds upon takes a second to import."""
    if name == "SpatialParallel":
        from .styles import SpatialParallel

        return SpatialParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
