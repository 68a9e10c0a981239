"""Convolutions of tensors that are split over the processes of a torch.distributed group: exact halo exchange, context-parallel conv1d,
spatially parallel conv2d.

Everything moves through torch's own process groups, one collective a call. docs/distributed.md says what has the bits of one device.
"""

from .halo import gather, halo, shard

__all__ = ["gather", "halo", "shard"]
