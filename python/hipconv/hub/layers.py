"""Layers that `kernels` puts in the place of transformers' functions: modules without state, whose `forward` is the function.

Names, and the number and kinds of the parameters, are those of transformers 5.23: `kernels` compares them. Semantics are those
of Dao-AILab's functions; `hipconv.causal_conv1d_fn` and `hipconv.causal_conv1d_update` document them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..ops.conv1d import decode, training

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


class causal_conv1d_fn(nn.Module):
    """The causal conv1d of (batch, dim, seqlen), forward and backward; seq_idx and initial_states by keyword,
    what else there is unused.
    """

    has_backward = True
    can_torch_compile = True

    def forward(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
    ):
        known = {name: kwargs[name] for name in _KNOWN if kwargs.get(name) is not None}
        return training.causal_conv1d_fn(hidden_states, weight, bias, activation=activation, **known)


class causal_conv1d_update(nn.Module):
    """New tokens of each row, (batch, dim, tokens), after the state (batch, dim, state_len),
    which is advanced past them in place.
    """

    has_backward = False
    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        return decode.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


_KNOWN = ("seq_idx", "initial_states", "return_final_states", "final_states_out")
