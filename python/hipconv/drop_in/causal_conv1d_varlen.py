"""``causal_conv1d.causal_conv1d_varlen``: the states that packed sequences end in."""

from ..ops.conv1d.varlen_states import causal_conv1d_varlen_states, causal_conv1d_varlen_states_ref

__all__ = ["causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"]
