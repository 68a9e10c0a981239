"""Convolution kernels for state-space and vision models: HIP, compiled on first use, on AMD and NVIDIA GPUs and on the CPU."""

__version__ = "0.2.0"

from typing import TYPE_CHECKING

from . import errors, nn, reference, reference_training, reference_update, serving
from .drop_in import install_as_causal_conv1d
from .jit import cache as cache
from .jit import registry as registry
from .jit import targets as targets
from .jit import warmup
from .nn.replace import replace_conv2d
from .nn.video import replace_conv3d
from .ops.conv1d.decode import causal_conv1d_update
from .ops.conv1d.forward import causal_conv1d, causal_conv1d_fwd
from .ops.conv1d.plan import causal_conv1d_plan
from .ops.conv1d.training import causal_conv1d_fn
from .ops.conv2d import router as conv2d_router
from .ops.conv2d.forward import conv2d
from .ops.conv2d.packing import prepack_conv2d
from .ops.conv2d.plan import conv2d_plan
from .ops.conv3d import router as conv3d_router
from .ops.conv3d.forward import conv3d
from .ops.conv3d.plan import conv3d_plan

if TYPE_CHECKING:
    from . import distributed as distributed

__all__ = [
    "causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_fwd",
    "causal_conv1d_plan",
    "causal_conv1d_update",
    "conv2d",
    "conv2d_plan",
    "conv2d_router",
    "conv3d",
    "conv3d_plan",
    "conv3d_router",
    "errors",
    "install_as_causal_conv1d",
    "nn",
    "prepack_conv2d",
    "reference",
    "reference_training",
    "reference_update",
    "replace_conv2d",
    "replace_conv3d",
    "serving",
    "warmup",
]


def __getattr__(name: str) -> object:
    """`hipconv.distributed` when it is asked for: most processes have no use for it."""
    if name == "distributed":
        import importlib

        return importlib.import_module(".distributed", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
