"""Convolution kernels for state-space and vision models: HIP, compiled on first use, on AMD and NVIDIA GPUs and on the CPU."""

__version__ = "0.1.0"

from . import errors, reference, serving
from .conv1d import causal_conv1d_fwd
from .jit import warmup

__all__ = ["causal_conv1d_fwd", "errors", "reference", "serving", "warmup"]
