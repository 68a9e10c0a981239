"""Decode steps of the causal conv1d: a few new tokens a row, the tokens before them in a pool of states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...arguments import SILU, flag, parse_activation, require_index, require_int_or_none, wrong_kind, wrong_parts
from . import operators
from .options import DecodeTensors
from .values import check_update_values, refuse_capture


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int | None = -1,
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
    null_block_id: int | None = None,
    metadata: object = None,
    out: Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    """One or several new tokens of each row through a causal depthwise conv1d, and each row's state advanced past them.

    With ``h`` the last ``width - 1`` values of a row's state followed by its new tokens,
    ``out[t, d] = act(bias[d] + sum_i weight[d, i] * h[t + i, d])``, computed in float32 and rounded once, to nearest even. The
    signature is the union of those of vLLM, SGLang and ATOM, and the state is laid out as theirs: the window is in the *first*
    ``width - 1`` columns of a slot, oldest first, and columns after it are left alone. (Dao-AILab's, which has it in the last,
    is `causal_conv1d.causal_conv1d_update`.) `hipconv.reference_update.causal_conv1d_update` states all of it in torch.

    Args:
        x: (batch, dim), one token a row; (batch, dim, seqlen); or, with `query_start_loc`, (tokens, dim). float32, float16 or
            bfloat16, any strides.
        conv_state: (slots, dim, state_len), state_len >= width - 1, any of the three dtypes, written. Any strides that give
            each element memory of its own: (slots, dim, state_len) and a transposed (slots, state_len, dim) are both fast.
            Tokens are kept in its dtype, and are history in that dtype.
        weight: (dim, width), any of the three dtypes, any strides.
        bias: (dim,), any of the three dtypes; None or an empty tensor for none.
        activation: "silu" or "swish" (the same) or True; None or False for none.
        conv_state_indices: (batch,), the slot of each row, or (batch, blocks), a block table, of which column 0 counts unless
            the two arguments about blocks say otherwise. None: row b has slot b. As all index tensors here: any integer dtype
            (bool is none; those that are not int32 or int64 cost a copy on the device), any strides, on the device of `x`; read
            by the kernel, never copied to the host.
        num_accepted_tokens: (batch,), speculative decoding as in vLLM: how many of the tokens of a row's previous call were
            accepted, at least 1. The window then starts at column ``num_accepted_tokens[b] - 1``, and the call leaves the
            window but its oldest column, followed by all new tokens, in columns 0 to ``width - 3 + tokens``; so state_len must
            be at least ``width - 2`` plus the tokens of a row. A row with less than 1 or more accepted tokens than its state
            can hold, or with more new tokens than that, is padding.
        query_start_loc: (batch + 1,), where the tokens of each row begin in x, and the last ones end. Rows may have no tokens;
            their state is left alone.
        max_query_len: the most tokens of a row of a packed batch, if known; only compared with state_len. Nothing needs it.
            None is -1.
        pad_slot_id: rows with this slot, read or written, are padding: they have no state and their output is zero. None: no
            slot means padding. Rows whose slot is outside the pool are padding too.
        block_idx_last_scheduled_token, initial_state_idx: (batch,), prefix caching as in vLLM: the column of the block table
            that holds the slot to write, and the one with the slot to read.
        validate_data: check the values of the index tensors too, after all shapes, dtypes and devices, and name the first that
            is wrong: starts that decrease or leave `x`; slots, and columns of a block table, outside of it; accepted tokens and
            links out of range; rows too long for a state, for `intermediate_conv_window` or for `max_query_len`; a slot that
            two rows write, or that one reads and another one writes. Entries that the call does not use, those of empty rows
            and of padding too, are not looked at, and numbers of padding may repeat. This waits for the device: ValueError
            while a graph is captured (a decode step under a graph must leave it off). Tensors of the meta device have no values
            to check.
        conv_state_indices_in: like `conv_state_indices`, the slots to read, where they are not those to write (ATOM).
        cache_seqlens: (batch,), the number of tokens each row has had: its state is a circular buffer, token n being in column
            ``n % state_len`` (Dao-AILab).
        intermediate_conv_window: (slots, tokens, dim, width - 1), dtype of `conv_state`, written: the window after each new
            token (SGLang). A row of a packed batch with more tokens than it has loses the windows after these.
        intermediate_state_indices: (batch,), the slot of each row therein; None: row b has slot b. (AITER's has the slot of
            conv_state: pass `conv_state_indices` here.) A row with a slot outside keeps no windows.
        retrieve_next_token, retrieve_next_sibling: (batch, seqlen), a tree of draft tokens as in SGLang: a token's first child
            and next sibling, -1 for none; links to the token itself, to one before it or to none of the row are ignored. Each
            token is convolved along its ancestors. `conv_state` is left alone (SGLang's kernel advances it, as if the tree were
            a chain): the window of the token that is accepted is in `intermediate_conv_window`. At most 1024 tokens.
        retrieve_parent_token: (batch, seqlen), int32 or int64, written: each token's parent; 0 for token 0, and for tokens that
            no link reaches.
        null_block_id: another number that marks padding, as `pad_slot_id` does (vLLM passes 0, the slot that stands for none).
            At most one of the two may be a slot of the pool. Unlike in `causal_conv1d_fn`, a row that only writes it is padding
            too.
        metadata: accepted and not needed (SGLang).
        out: a tensor of the shape and dtype of `x` to write into, which may be `x` itself; what peers do by default is `out=x`.
            None makes a new one. Padded rows and tokens past ``query_start_loc[-1]`` are zero in a new one, left alone in a
            given one.
        kernel: the name of a kernel, or "auto", which leaves it to HIPCONV_UPDATE_KERNEL, if set, and then to the library: on a
            GPU "step" (one token a row, width up to 8), "vector" (width 2 to 8), "turn" (width 2 to 8), "wave" (width 2 to 8),
            "pair" (width 1 to 8), "channel" (width 1 to 6) or "naive"; on the CPU "simd" (width to 65536) or "openmp". One that
            does not serve a call says what it serves.

    Returns:
        `out`.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: a shape, device, combination or name that does not fit; what is written in the memory of another argument; a
            tensor that requires grad while grad mode is on; with `validate_data` a wrong value, or a capture. Nothing is
            written in any of these cases.
        hipconv.errors.JitError: the kernels had to be built and could not be.
        RuntimeError: the kernel could not be launched.

    Two rows that write one slot race: either's state may remain, or a mixture by channels; so does a row that reads a slot
    which another one writes. Records no gradient. Runs on the current stream of `x`'s device and does not wait for it.
    """
    use_silu = parse_activation(activation, SILU, True)
    tensors = (
        conv_state_indices,
        conv_state_indices_in,
        num_accepted_tokens,
        query_start_loc,
        block_idx_last_scheduled_token,
        initial_state_idx,
        cache_seqlens,
        intermediate_conv_window,
        intermediate_state_indices,
        retrieve_next_token,
        retrieve_next_sibling,
        retrieve_parent_token,
    )
    if type(pad_slot_id) is not int or null_block_id is not None:
        require_int_or_none(pad_slot_id=pad_slot_id, null_block_id=null_block_id)
    try:
        pad = pad_slot_id if null_block_id is None else _number_of_padding(pad_slot_id, null_block_id, conv_state)
        longest = -1 if max_query_len is None else max_query_len
        inputs = (x, conv_state, weight, bias)
        if validate_data is not False and flag("validate_data", validate_data):
            checked = torch.empty_like(x) if out is None else out
            _validate([checked], inputs, tensors, longest, (pad_slot_id, null_block_id), kernel)
        outs = None if out is None else [out]
        result: Any = operators.update_directly(
            outs, inputs, use_silu, tensors, longest, pad, state_at_end=False, zero_padding=out is None, kernel=kernel
        )
        if result is None:
            if x is None:  # to the operator: that `out` holds x
                raise TypeError("x: got None, expected a torch.Tensor")
            require_index(max_query_len=longest)
            result = torch.empty_like(x) if out is None else out
            torch.ops.hipconv.causal_conv1d_update.default(
                result, None if out is x else x, *inputs[1:], use_silu, zero_padding=out is None, kernel_name=kernel,
                **_options(tensors, longest, pad),
            )  # fmt: skip
    except Exception as error:
        raise wrong_kind(causal_conv1d_update, locals()) or error from None
    return result if out is None else out


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
    max_query_len: int | None = -1,
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
    null_block_id: int | None = None,
    metadata: object = None,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    kernel: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_update` whose output goes to three tensors: queries, keys and values, as linear attention takes them.

    The semantics is that of the functions of this name in AITER and ATOM.

    Args:
        k_dim, v_dim: the channels of q and k each, and of v; any sizes with ``2 * k_dim + v_dim == dim``.
        out: None: new tensors. Else q, k and v, of the shapes below and the dtype of `x`, any strides, which share no memory
            with each other nor with another argument. Padded rows are left alone in them.

    The other arguments are those of `causal_conv1d_update`. (AITER's `activation` is "silu" by default.)

    Returns:
        q, k (tokens, k_dim) and v (tokens, v_dim), contiguous unless given as `out`; the tokens of a row follow each other, in
        x of shape (batch, dim, seqlen) as well.

    Raises:
        As `causal_conv1d_update`; ValueError also for parts that do not make up the channels of x.
    """
    use_silu = parse_activation(activation, SILU, True)
    tensors = (
        conv_state_indices,
        conv_state_indices_in,
        num_accepted_tokens,
        query_start_loc,
        block_idx_last_scheduled_token,
        initial_state_idx,
        cache_seqlens,
        intermediate_conv_window,
        intermediate_state_indices,
        retrieve_next_token,
        retrieve_next_sibling,
        retrieve_parent_token,
    )
    if type(pad_slot_id) is not int or null_block_id is not None:
        require_int_or_none(pad_slot_id=pad_slot_id, null_block_id=null_block_id)
    try:
        pad = pad_slot_id if null_block_id is None else _number_of_padding(pad_slot_id, null_block_id, conv_state)
        longest = -1 if max_query_len is None else max_query_len
        rank = x.dim()
        if not 2 <= rank <= 3 or x.shape[1] != 2 * k_dim + v_dim or k_dim < 0 or v_dim < 0:
            raise wrong_parts(x, 2 <= rank <= 3, "2 or 3 dimensions (batch, dim) or (batch, dim, seqlen)", k_dim, v_dim)
        if out is None:
            tokens = x.shape[0] * x.shape[2] if rank == 3 else x.shape[0]
            q, k, v = x.new_empty((tokens, k_dim)), x.new_empty((tokens, k_dim)), x.new_empty((tokens, v_dim))
        else:
            q, k, v = out
        inputs = (x, conv_state, weight, bias)
        if validate_data is not False and flag("validate_data", validate_data):
            _validate([q, k, v], inputs, tensors, longest, (pad_slot_id, null_block_id), kernel)
        written = operators.update_directly(
            [q, k, v], inputs, use_silu, tensors, longest, pad, state_at_end=False, zero_padding=out is None, kernel=kernel
        )
        if written is None:
            require_index(max_query_len=longest)
            torch.ops.hipconv.causal_conv1d_update_split_qkv.default(
                q, k, v, *inputs, use_silu, zero_padding=out is None, kernel_name=kernel, **_options(tensors, longest, pad)
            )
    except Exception as error:
        raise wrong_kind(causal_conv1d_update_split_qkv, locals()) or error from None
    return q, k, v


def _options(tensors: tuple[Tensor | None, ...], max_query_len: int, pad_slot_id: int | None) -> dict[str, Any]:
    """By name, those that are not None: each one that the operator is passed costs a little."""
    options = DecodeTensors(*tensors)._asdict() | {"max_query_len": max_query_len, "pad_slot_id": pad_slot_id}
    return {name: value for name, value in options.items() if value is not None}


def _validate(
    outs: list[Tensor],
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    tensors: tuple[Tensor | None, ...],
    max_query_len: int,
    padding: tuple[int | None, ...],
    kernel: str,
) -> None:
    """Shapes, dtypes and devices first, as if there were no values to check."""
    x, conv_state, weight, _ = inputs
    if x.is_meta:
        return  # without values
    refuse_capture(x)
    named = DecodeTensors(*tensors)
    operators.check_update(outs, inputs, named, max_query_len, kernel)
    check_update_values(x, weight, conv_state, named, max_query_len, padding)


def _number_of_padding(pad_slot_id: int | None, null_block_id: int | None, conv_state: Tensor) -> int | None:
    """Kernels compare slots with one number: of two, the one that could be a slot,
    as the other is outside of the pool anyway.
    """
    slots = conv_state.shape[0]
    if pad_slot_id is None or pad_slot_id == null_block_id or not 0 <= pad_slot_id < slots:
        return null_block_id
    if null_block_id is None or not 0 <= null_block_id < slots:
        return pad_slot_id
    raise ValueError(
        f"null_block_id: got {null_block_id} beside pad_slot_id {pad_slot_id}, expected only one of them to be a slot of "
        f"conv_state, 0 to {slots - 1}"
    )
