"""Decode steps of the causal conv1d: a few new tokens a row, the tokens before them in a pool of states."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from . import torch_ops
from ._arguments import wants_silu


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int | None = -1,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    validate_data: bool = False,
    *,
    conv_state_indices_in: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    out: Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    """One or several new tokens of each row through a causal depthwise conv1d, and each row's state advanced past them.

    With ``h`` the last ``width - 1`` values of a row's state followed by its new tokens,
    ``out[t, d] = act(bias[d] + sum_i weight[d, i] * h[t + i, d])``, computed in float32 and rounded once, to nearest even. The
    signature is the union of those of vLLM, SGLang and ATOM, and the state is laid out as theirs: the window is in the *first*
    ``width - 1`` columns of a slot, oldest first, and columns after it are left alone. (Dao-AILab's, which has it in the last, is
    `causal_conv1d.causal_conv1d_update`.) `hipconv.reference_update.causal_conv1d_update` states all of it in torch.

    Args:
        x: (batch, dim), one token a row; (batch, dim, seqlen); or, with `query_start_loc`, (tokens, dim). float32, float16 or
            bfloat16, any strides.
        conv_state: (slots, dim, state_len), state_len >= width - 1, any of the three dtypes, written. Any strides that give each
            element memory of its own: (slots, dim, state_len) and a transposed (slots, state_len, dim) are both fast. Tokens are
            kept in its dtype, and are history in that dtype.
        weight: (dim, width), any of the three dtypes, any strides.
        bias: (dim,), any of the three dtypes; None or an empty tensor for none.
        activation: "silu" or "swish" (the same) or True; None or False for none.
        conv_state_indices: (batch,), the slot of each row, or (batch, blocks), a block table, of which column 0 counts unless the
            two arguments about blocks say otherwise. None: row b has slot b. As all index tensors here: any integer dtype, any
            strides, on the device of `x`; read by the kernel, never copied to the host.
        num_accepted_tokens: (batch,), speculative decoding as in vLLM: how many of the tokens of a row's previous call were
            accepted, at least 1. The window then starts at column ``num_accepted_tokens[b] - 1``, and the call leaves the window
            but its oldest column, followed by all new tokens, in columns 0 to ``width - 3 + tokens``; so state_len must be at least
            ``width - 2`` plus the tokens of a row.
        query_start_loc: (batch + 1,), where the tokens of each row begin in x, and the last ones end. Rows may have no tokens;
            their state is left alone.
        max_query_len: the most tokens of a row of a packed batch, if known; only compared with state_len. Nothing needs it.
        pad_slot_id: rows with this slot, read or written, are padding: they have no state and their output is zero. None: no slot
            means padding. (vLLM's null block is pad_slot_id=0.) Rows whose slot is outside the pool are padding too.
        block_idx_last_scheduled_token, initial_state_idx: (batch,), prefix caching as in vLLM: the column of the block table that
            holds the slot to write, and the one with the slot to read.
        validate_data: also check the values of all index tensors, which waits for the device. Not during graph capture.
        conv_state_indices_in: like `conv_state_indices`, the slots to read, where they are not those to write (ATOM).
        cache_seqlens: (batch,), the number of tokens each row has had: its state is a circular buffer, token n being in column
            ``n % state_len`` (Dao-AILab).
        intermediate_conv_window: (slots, tokens, dim, width - 1), dtype of `conv_state`, written: the window after each new token
            (SGLang).
        intermediate_state_indices: (batch,), the slot of each row therein; None: row b has slot b. (AITER's has the slot of
            conv_state: pass `conv_state_indices` here.) A row with a slot outside keeps no windows.
        retrieve_next_token, retrieve_next_sibling: (batch, seqlen), a tree of draft tokens as in SGLang: a token's first child and
            next sibling, -1 for none. Each token is convolved along its ancestors. `conv_state` is left alone: the window of the
            token that is accepted is in `intermediate_conv_window`. At most 1024 tokens.
        retrieve_parent_token: (batch, seqlen), int32 or int64, written: each token's parent; 0 for token 0, and for tokens that
            no link reaches.
        out: a tensor of the shape and dtype of `x` to write into, which may be `x` itself; what peers do by default is `out=x`.
            None makes a new one. Padded rows and tokens past ``query_start_loc[-1]`` are zero in a new one, left alone in a given one.
        kernel: the kernel's name, or "auto" for the library's choice.

    Returns:
        `out`.

    Raises:
        TypeError, ValueError: an argument does not fit; nothing is written then. With `validate_data`, also for values of indices.
        hipconv.errors.JitError: the kernels had to be built and could not be.

    Two rows that write one slot race: either's state may remain, or a mixture by channels; so does a row that reads a slot which
    another one writes. Records no gradient. Runs on the current stream of `x`'s device and does not wait for it.
    """
    use_silu = wants_silu(activation)
    tensors = (
        conv_state_indices, conv_state_indices_in, num_accepted_tokens, query_start_loc, block_idx_last_scheduled_token, initial_state_idx,
        cache_seqlens, intermediate_conv_window, intermediate_state_indices, retrieve_next_token, retrieve_next_sibling,
        retrieve_parent_token,
    )  # fmt: skip
    if validate_data:
        check_values(x, conv_state, weight, **_options(tensors, max_query_len, pad_slot_id))
    result = torch.empty_like(x) if out is None else out
    inputs = (x, conv_state, weight, bias)
    if not torch_ops.update_directly(
        [result], inputs, use_silu, tensors, max_query_len, pad_slot_id, state_at_end=False, zero_padding=out is None, kernel=kernel
    ):
        torch.ops.hipconv.causal_conv1d_update.default(
            result, None if out is x else x, *inputs[1:], use_silu, zero_padding=out is None, kernel_name=kernel,
            **_options(tensors, max_query_len, pad_slot_id),
        )  # fmt: skip
    return result


def causal_conv1d_update_split_qkv(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    k_dim: int,
    v_dim: int,
    bias: Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int | None = -1,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    validate_data: bool = False,
    *,
    conv_state_indices_in: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    kernel: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_update` whose output goes to three tensors: queries, keys and values, as linear attention takes them.

    The channels of `x` are those of q, k and v: ``dim = 2 * k_dim + v_dim``, any sizes. The semantics is that of the functions of
    this name in AITER and ATOM; the other arguments are those of `causal_conv1d_update`.

    Returns:
        q, k (tokens, k_dim) and v (tokens, v_dim), contiguous unless given as `out`; the tokens of a row follow each other, in x of
        shape (batch, dim, seqlen) as well.
    """
    use_silu = wants_silu(activation)
    if x.shape[1] != 2 * k_dim + v_dim or k_dim < 0 or v_dim < 0:
        raise ValueError(f"k_dim, v_dim: got {k_dim} and {v_dim}, expected 2 * k_dim + v_dim to be x.shape[1] = {x.shape[1]}")
    tensors = (
        conv_state_indices, conv_state_indices_in, num_accepted_tokens, query_start_loc, block_idx_last_scheduled_token, initial_state_idx,
        cache_seqlens, intermediate_conv_window, intermediate_state_indices, retrieve_next_token, retrieve_next_sibling,
        retrieve_parent_token,
    )  # fmt: skip
    if validate_data:
        check_values(x, conv_state, weight, **_options(tensors, max_query_len, pad_slot_id))
    if out is None:
        tokens = x.shape[0] * (x.shape[2] if x.dim() == 3 else 1)
        q, k, v = (torch.empty(tokens, channels, dtype=x.dtype, device=x.device) for channels in (k_dim, k_dim, v_dim))
    else:
        q, k, v = out
    inputs = (x, conv_state, weight, bias)
    if not torch_ops.update_directly(
        [q, k, v], inputs, use_silu, tensors, max_query_len, pad_slot_id, state_at_end=False, zero_padding=out is None, kernel=kernel
    ):
        torch.ops.hipconv.causal_conv1d_update_split_qkv.default(
            q, k, v, *inputs, use_silu, zero_padding=out is None, kernel_name=kernel, **_options(tensors, max_query_len, pad_slot_id)
        )
    return q, k, v


_TENSORS = (
    "conv_state_indices", "conv_state_indices_in", "num_accepted_tokens", "query_start_loc", "block_idx_last_scheduled_token",
    "initial_state_idx", "cache_seqlens", "intermediate_conv_window", "intermediate_state_indices", "retrieve_next_token",
    "retrieve_next_sibling", "retrieve_parent_token",
)  # fmt: skip


def _options(tensors: tuple[Tensor | None, ...], max_query_len: int, pad_slot_id: int | None) -> dict[str, Any]:
    """By name, those that are not None: each one that the operator is passed costs a little."""
    options = dict(zip(_TENSORS, tensors, strict=True)) | {"max_query_len": max_query_len, "pad_slot_id": pad_slot_id}
    return {name: value for name, value in options.items() if value is not None}


def check_values(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    *,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    conv_state_indices_in: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    **_: Tensor,  # the options of which any value has a meaning
) -> None:
    """Raise ValueError naming the first value of an index tensor that a decode step cannot mean. Waits for the device."""

    def require(name: str, values: list[int], good: list[bool], expected: str) -> None:
        for b, (value, fine) in enumerate(zip(values, good, strict=True)):
            if not fine:
                raise ValueError(f"{name}: got {value} at row {b}, expected {expected}")

    batch = x.shape[0]
    counts = [x.shape[2] if x.dim() == 3 else 1] * batch
    if query_start_loc is not None:
        starts = query_start_loc.tolist()
        counts = [end - begin for begin, end in itertools.pairwise(starts)]
        batch = len(counts)
        if starts and starts[0] != 0:
            raise ValueError(f"query_start_loc: got {starts[0]} at row 0, expected 0")
        require("query_start_loc", starts[1:], [count >= 0 for count in counts], "no less than the value before")
        require("query_start_loc", starts[1:], [end <= x.shape[0] for end in starts[1:]], f"at most the {x.shape[0]} tokens of x")
        if max_query_len > 0:
            require("max_query_len", [max_query_len] * batch, [count <= max_query_len for count in counts], "no row to be longer")

    slots = conv_state.shape[0]

    def slots_of(name: str, table: Tensor | None, columns_name: str, columns: Tensor | None) -> list[int]:
        if table is None:
            return list(range(batch))
        blocks = table.shape[1] if table.dim() == 2 else 1
        chosen = [0] * batch if columns is None else columns.tolist()
        require(columns_name, chosen, [0 <= column < blocks for column in chosen], f"a block of the table, 0 to {blocks - 1}")
        rows = table.tolist()
        found = [row[column] if table.dim() == 2 else row for row, column in zip(rows, chosen, strict=True)]
        good = [slot == pad_slot_id or 0 <= slot < slots for slot in found]
        require(name, found, good, f"a slot of conv_state, 0 to {slots - 1}, or pad_slot_id ({pad_slot_id})")
        return found

    columns = ("block_idx_last_scheduled_token", block_idx_last_scheduled_token)
    written = slots_of("conv_state_indices", conv_state_indices, *columns)
    given = (
        ("conv_state_indices", conv_state_indices) if conv_state_indices_in is None else ("conv_state_indices_in", conv_state_indices_in)
    )
    read = slots_of(*given, "initial_state_idx", initial_state_idx)
    live = [write != pad_slot_id and slot != pad_slot_id for write, slot in zip(written, read, strict=True)]
    first: dict[int, int] = {}
    for b, slot in enumerate(written):
        if live[b] and counts[b] > 0 and first.setdefault(slot, b) != b:
            raise ValueError(f"conv_state_indices: got {slot} at row {b}, expected a slot of its own: row {first[slot]} writes it too")

    if num_accepted_tokens is not None and weight.shape[1] > 1:
        kept = conv_state.shape[2] - (weight.shape[1] - 2)
        accepted = num_accepted_tokens.tolist()
        good = [not live[b] or 1 <= value <= kept for b, value in enumerate(accepted)]
        require("num_accepted_tokens", accepted, good, f"1 to {kept}, what the {conv_state.shape[2]} columns of a state can hold")
        require("query_start_loc", counts, [count <= kept for count in counts], f"at most {kept} tokens, as there are num_accepted_tokens")
    if intermediate_state_indices is not None and intermediate_conv_window is not None:
        kept = intermediate_conv_window.shape[0]
        values = intermediate_state_indices.tolist()
        good = [not live[b] or 0 <= value < kept for b, value in enumerate(values)]
        require("intermediate_state_indices", values, good, f"a slot of intermediate_conv_window, 0 to {kept - 1}")
    for name, links in (("retrieve_next_token", retrieve_next_token), ("retrieve_next_sibling", retrieve_next_sibling)):
        for t, values in enumerate([] if links is None else links.T.tolist()):
            good = [not live[b] or value == -1 or t < value < counts[b] for b, value in enumerate(values)]
            require(f"{name}[:, {t}]", values, good, f"-1, or a token after {t} of the {counts[0]}")
