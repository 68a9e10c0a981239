"""The public name of `hipconv.reference.training`."""

from .reference.training import causal_conv1d

__all__ = ["causal_conv1d"]
