"""Every op is computed here in plain torch with float64 accumulation: the tests compare with these, the docs point to them."""

from .conv1d import causal_conv1d
from .conv2d import conv2d
from .conv3d import conv3d
from .prefill import causal_conv1d_varlen

__all__ = ["causal_conv1d", "causal_conv1d_varlen", "conv2d", "conv3d"]
