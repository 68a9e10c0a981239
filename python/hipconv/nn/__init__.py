"""Layers: causal convolutions of state-space and linear-attention models."""

from .causal_conv1d import CausalConv1d, ShortConvolution

__all__ = ["CausalConv1d", "ShortConvolution"]
