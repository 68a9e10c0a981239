"""Layers: causal convolutions of state-space and linear-attention models, and the two-dimensional convolution."""

from .causal_conv1d import CausalConv1d
from .conv2d import Conv2d
from .short_convolution import ShortConvolution

__all__ = ["CausalConv1d", "Conv2d", "ShortConvolution"]
