"""The causal conv1d of inference servers: prefill and decode, with states in a pool. To import this defines its operators."""

from . import operators

__all__ = ["operators"]
