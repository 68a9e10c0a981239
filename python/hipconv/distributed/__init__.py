"""Convolutions of tensors that are split over the processes of a torch.distributed group: exact halo exchange, context-parallel conv1d,
spatially parallel conv2d.

Everything moves through torch's own process groups, one collective a call. docs/distributed.md says what has the bits of one device.
"""

from .conv1d import causal_conv1d
from .conv2d import conv2d
from .halo import gather, halo, shard

__all__ = ["causal_conv1d", "conv2d", "gather", "halo", "shard"]
