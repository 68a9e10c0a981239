"""The causal depthwise conv1d of rows, forward and backward. To import this defines its operators."""

from . import derivatives, operators, vmap

__all__ = ["derivatives", "operators", "vmap"]
