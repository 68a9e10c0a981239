"""Convolution kernels for state-space and vision models: HIP, compiled on first use, on AMD and NVIDIA GPUs and on the CPU."""

__version__ = "0.1.0"

from . import errors, nn, reference, reference_training, serving
from .conv1d import causal_conv1d, causal_conv1d_fwd
from .conv1d_plan import causal_conv1d_plan
from .conv2d import conv2d
from .conv2d_plan import conv2d_plan
from .drop_in import causal_conv1d_fn, causal_conv1d_update, install_as_causal_conv1d
from .jit import warmup

__all__ = [
    "causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_fwd",
    "causal_conv1d_plan",
    "causal_conv1d_update",
    "conv2d",
    "conv2d_plan",
    "errors",
    "install_as_causal_conv1d",
    "nn",
    "reference",
    "reference_training",
    "serving",
    "warmup",
]
