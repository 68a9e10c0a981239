"""Layers: causal convolutions of state-space and linear-attention models and of video, and the two-dimensional convolution."""

from .causal_conv1d import CausalConv1d, ShortConvolution
from .conv2d import Conv2d
from .conv3d import CausalConv3d

__all__ = ["CausalConv1d", "CausalConv3d", "Conv2d", "ShortConvolution"]
