"""hipconv under the names of Dao-AILab's causal-conv1d 1.7.0, module for module: what layers of Mamba models call."""

from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update
from .install import VERSION as __version__
from .install import install_as_causal_conv1d

__all__ = ["__version__", "causal_conv1d_fn", "causal_conv1d_update", "install_as_causal_conv1d"]
