"""The public name of `hipconv.reference.decode`."""

from .reference.decode import Update, causal_conv1d_update

__all__ = ["Update", "causal_conv1d_update"]
