"""The prefill of packed sequences, one by one in plain torch with float64 accumulation."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .conv1d import causal_conv1d


def causal_conv1d_varlen(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    use_silu: bool = False,
    pad_slot_id: int | None = -1,
    block_idx_first_scheduled_token: Tensor | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    num_computed_tokens: Tensor | None = None,
    block_size_to_align: int = 0,
    *,
    cache_indices_in: Tensor | None = None,
    null_block_id: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed sequences that continue from, and update, states in a pool; the arguments of `hipconv.serving.causal_conv1d_fn`.

    Returns:
        (dim, tokens) float64, zero where a token is padding or in no sequence; a new pool; and (tokens,) bool, which tokens are
        live.
    """
    past = weight.shape[1] - 1
    slots = conv_states.shape[0]
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    live = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
    pool = conv_states.clone()

    def is_slot(slot: int) -> bool:
        return 0 <= slot < slots and slot not in (pad_slot_id, null_block_id)

    def entry(table: Tensor | None, sequence: int, column: int) -> int:
        if table is None:
            return sequence
        row = table[sequence].reshape(-1)
        return int(row[column]) if 0 <= column < len(row) else -1

    def per_sequence(values: Tensor | None, sequence: int) -> int:
        return 0 if values is None else int(values[sequence])

    starts = [min(max(start, 0), x.shape[1]) for start in query_start_loc.tolist()]
    for b, (begin, end) in enumerate(itertools.pairwise(starts)):
        last = per_sequence(block_idx_last_scheduled_token, b)
        read = entry(cache_indices if cache_indices_in is None else cache_indices_in, b, per_sequence(initial_state_idx, b))
        write = entry(cache_indices, b, last)
        if end <= begin or not is_slot(read) or not (is_slot(write) or write == null_block_id):
            continue
        live[begin:end] = True
        continues = bool(per_sequence(has_initial_state, b))
        before = conv_states[read, :, :past] if continues else conv_states.new_zeros(x.shape[0], past)
        if continues:
            window = torch.cat([before.double(), x[:, begin:end].double()], dim=1)[None]
            out[:, begin:end] = causal_conv1d(window, weight, bias, use_silu)[0, :, past:]
        else:
            out[:, begin:end] = causal_conv1d(x[None, :, begin:end], weight, bias, use_silu)[0]
        inputs = torch.cat([before, x[:, begin:end].to(conv_states.dtype)], dim=1)  # token i in column past + i
        states = [(write, end - begin)]
        if block_idx_first_scheduled_token is not None:
            computed = per_sequence(num_computed_tokens, b)
            boundary = (computed + end - begin - 1) // block_size_to_align * block_size_to_align - computed
            column = last - 1
            while boundary > 0 and column >= per_sequence(block_idx_first_scheduled_token, b):
                states.append((entry(cache_indices, b, column), boundary))
                boundary -= block_size_to_align
                column -= 1
        for slot, position in states:
            if is_slot(slot):
                pool[slot, :, :past] = inputs[:, position : position + past]
    return out, pool, live
