"""The states that packed sequences end in, as Dao-AILab's package finds them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ...arguments import InvalidValue, as_the_peers, describe, require_dense, require_integers, require_kinds


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last `state_len` tokens of each packed sequence, with zeros before those of shorter ones.

    Args:
        x: (tokens, dim), any dtype, any strides.
        cu_seqlens: (batch + 1,), integers: where each sequence begins, and the last one ends. Read on the device.
        state_len: the columns of a state.

    Returns:
        (batch, dim, state_len), channels inside. No gradient is recorded.

    Raises:
        RuntimeError (a ValueError or a TypeError too): an argument that does not fit.
    """
    _check(x, cu_seqlens, state_len)
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
    _check(x, cu_seqlens, state_len)
    starts = cu_seqlens.tolist()
    with torch.no_grad():
        states = x.new_zeros(len(starts) - 1, state_len, x.shape[1])
        for i, (begin, end) in enumerate(itertools.pairwise(starts)):
            if not 0 <= begin <= end <= len(x):
                raise InvalidValue(
                    f"cu_seqlens: got a sequence from {begin} to {end}, expected it within the {len(x)} tokens of x"
                )
            kept = min(state_len, end - begin)
            states[i, state_len - kept :] = x[end - kept : end]
        return states.transpose(1, 2)


def _check(x: Tensor, cu_seqlens: Tensor, state_len: int) -> None:
    try:
        require_kinds(_check, locals())
        if x.dim() != 2:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected 2 dimensions (tokens, dim)")
        if cu_seqlens.dim() != 1 or not len(cu_seqlens):
            raise ValueError(f"cu_seqlens: got shape {tuple(cu_seqlens.shape)}, expected (batch + 1,), of at least one element")
        require_integers(cu_seqlens=cu_seqlens)
        require_dense(x=x, cu_seqlens=cu_seqlens)
        if cu_seqlens.device != x.device:
            raise ValueError(f"cu_seqlens: got a tensor on {cu_seqlens.device}, expected it on {x.device}, where x is")
        if not 0 <= state_len < 2**31:
            raise ValueError(f"state_len: got {describe(state_len)}, expected 0 to {2**31 - 1}")
    except (TypeError, ValueError) as error:
        raise as_the_peers(error) from None
