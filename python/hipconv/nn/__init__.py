"""Layers: causal convolutions of state-space and linear-attention models and of video, and the two-dimensional convolution."""

from .causal_conv1d import CausalConv1d
from .conv2d import Conv2d
from .conv3d import CausalConv3d
from .short_convolution import ShortConvolution

__all__ = ["CausalConv1d", "CausalConv3d", "Conv2d", "ShortConvolution"]
