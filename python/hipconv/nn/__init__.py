"""Layers: causal convolutions of state-space and linear-attention models, and the two-dimensional convolution."""

from .causal_conv1d import CausalConv1d, ShortConvolution
from .conv2d import Conv2d

__all__ = ["CausalConv1d", "Conv2d", "ShortConvolution"]
