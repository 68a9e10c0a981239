"""A decode step of the causal conv1d, row by row in plain torch with float64 accumulation."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor
import torch.nn.functional as F


class Update(NamedTuple):
    """The tensors that `causal_conv1d_update` leaves behind."""

    out: Tensor  # the shape of x, float64; rows of padding, and tokens of no row, are zero
    conv_state: Tensor
    intermediate_conv_window: Tensor | None
    retrieve_parent_token: Tensor | None
    live: Tensor  # of the shape of out: False where nothing was computed


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    use_silu: bool = False,
    *,
    conv_state_indices: Tensor | None = None,
    conv_state_indices_in: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    pad_slot_id: int | None = -1,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    state_at_end: bool = False,
) -> Update:
    """A decode step; the arguments are those of `hipconv.serving.causal_conv1d_update`. Nothing given is changed.

    A token's history is what the state's dtype holds of it, in the call that brings the token too: T tokens in one call are T
    calls of one token.

    `state_at_end`: the window is the last width - 1 columns of a slot, and all columns move (Dao-AILab's convention).
    """
    width, state_len = weight.shape[1], conv_state.shape[2]
    past = width - 1
    state = conv_state.clone()
    windows = None if intermediate_conv_window is None else intermediate_conv_window.clone()
    parents = None if retrieve_next_token is None else torch.zeros(retrieve_next_token.shape, dtype=torch.int64)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    live = torch.zeros(x.shape, dtype=torch.bool, device=x.device)

    def rows_of(tensor: Tensor) -> list[Tensor]:  # each (dim, tokens), a view
        if query_start_loc is None:
            return [row if row.dim() == 2 else row[:, None] for row in tensor]
        ends = [min(max(end, 0), tensor.shape[0]) for end in query_start_loc.tolist()]
        return [tensor[begin : max(begin, end)].T for begin, end in itertools.pairwise(ends)]

    def slot_of(b: int, table: Tensor | None, columns: Tensor | None) -> int | None:
        slot = b
        if table is not None:
            column = 0 if columns is None else int(columns[b])
            blocks = table.shape[1] if table.dim() == 2 else 1
            if not 0 <= column < blocks:
                return None
            slot = int(table[b, column] if table.dim() == 2 else table[b])
            if slot == pad_slot_id:
                return None
        return slot if 0 <= slot < state.shape[0] else None

    taps = weight.double()[:, None]

    def convolve(windows: Tensor) -> Tensor:  # (dim, tokens, width) -> (dim, tokens)
        sums = (windows.double() * taps).sum(2)
        sums = sums if bias is None or not bias.numel() else sums + bias.double()[:, None]
        return F.silu(sums) if use_silu else sums

    for b, (tokens, results, marks) in enumerate(zip(rows_of(x), rows_of(out), rows_of(live), strict=True)):
        count = tokens.shape[1]
        write = slot_of(b, conv_state_indices, block_idx_last_scheduled_token)
        read = slot_of(b, conv_state_indices if conv_state_indices_in is None else conv_state_indices_in, initial_state_idx)
        accepted = 1
        if num_accepted_tokens is not None and past:
            accepted = int(num_accepted_tokens[b])
            kept = state_len - (width - 2)
            if not 1 <= accepted <= kept or count > kept:
                continue
        if write is None or read is None or count == 0:
            continue
        marks.fill_(True)
        slot = b if intermediate_state_indices is None else int(intermediate_state_indices[b])
        snapshots = windows[slot] if windows is not None and 0 <= slot < windows.shape[0] else None
        new = tokens.to(state.dtype)

        if cache_seqlens is not None:
            order = [(int(cache_seqlens[b]) + i) % state_len for i in range(state_len)] if state_len else []
            history = state[read][:, order]  # oldest first
        elif state_at_end:
            history = state[read]
        else:
            history = state[read][:, accepted - 1 : accepted - 1 + past]
        window = history[:, history.shape[1] - past :]

        if retrieve_next_token is not None and retrieve_next_sibling is not None:
            assert parents is not None
            parent = [-1] + [0] * (count - 1)
            for t in range(count):
                child, sibling = int(retrieve_next_token[b, t]), int(retrieve_next_sibling[b, t])
                if t < child < count:
                    parent[child] = t
                if 0 < t < sibling < count:
                    parent[sibling] = parent[t]
            parents[b] = torch.tensor(parent).clamp(min=0)
            paths: list[Tensor] = []  # of each token: the window and its ancestors, then itself
            for t in range(count):
                paths.append(torch.cat([window if t == 0 else paths[parent[t]], new[:, t : t + 1]], 1))
                seen = torch.cat([paths[t][:, :-1].double(), tokens[:, t : t + 1].double()], 1)
                results[:, t] = convolve(seen[:, None, seen.shape[1] - width :])[:, 0]
                if snapshots is not None and t < snapshots.shape[0] and past:
                    snapshots[t] = paths[t][:, -past:]
            continue

        if past == 0:
            results[:] = convolve(tokens[..., None])
            continue
        held = torch.cat([window, new], 1)
        before = held.unfold(1, past, 1)  # (dim, tokens + 1, past): what each token sees, and what the last one leaves
        results[:] = convolve(torch.cat([before[:, :count].double(), tokens[..., None].double()], 2))
        if snapshots is not None:
            for t in range(min(count, snapshots.shape[0])):
                snapshots[t] = before[:, t + 1]
        if cache_seqlens is not None:
            for t in range(count):
                state[write][:, (int(cache_seqlens[b]) + t) % state_len] = new[:, t]
        elif num_accepted_tokens is not None:
            state[write][:, : past - 1 + count] = torch.cat([window[:, 1:], new], 1)
        else:
            moved = torch.cat([history, new], 1)
            state[write][:, : history.shape[1]] = moved[:, moved.shape[1] - history.shape[1] :]
    return Update(out, state, windows, parents, live)
