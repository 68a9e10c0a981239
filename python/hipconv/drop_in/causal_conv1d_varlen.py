"""``causal_conv1d.causal_conv1d_varlen``: the states that packed sequences end in."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last `state_len` tokens of each packed sequence, with zeros before those of shorter ones.

    Args:
        x: (tokens, dim), any dtype, any strides.
        cu_seqlens: (batch + 1,), integers: where each sequence begins, and the last one ends. Read on the device.
        state_len: the columns of a state.

    Returns:
        (batch, dim, state_len), channels inside. No gradient is recorded.
    """
    with torch.no_grad():
        starts, ends = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
        tokens = ends + torch.arange(-state_len, 0, device=x.device)
        states = x.new_zeros(*tokens.shape, x.shape[1])
        if x.shape[0]:
            found = x[tokens.clamp(0, x.shape[0] - 1)]
            states = torch.where((tokens >= starts)[..., None], found, states)
        return states.transpose(1, 2)


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The same, a sequence at a time."""
    states = x.new_zeros(len(cu_seqlens) - 1, state_len, x.shape[1])
    for state, begin, end in zip(states, cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        kept = min(state_len, end - begin)
        state[state_len - kept :] = x[end - kept : end]
    return states.transpose(1, 2)
