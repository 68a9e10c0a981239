"""The three-dimensional convolution. To import this defines its operators."""

from . import derivatives, operators

__all__ = ["derivatives", "operators"]
