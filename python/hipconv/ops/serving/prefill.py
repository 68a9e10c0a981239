"""Prefill: the causal conv1d of packed sequences that continue from, and update, states in a pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...arguments import SILU, flag, parse_activation, require_index, require_int_or_none, wrong_kind, wrong_parts
from . import operators
from .options import PREFILL_TENSORS, PrefillOptions
from .values import check_prefill_values, refuse_capture


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int | None = -1,
    block_idx_first_scheduled_token: Tensor | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    num_computed_tokens: Tensor | None = None,
    block_size_to_align: int | None = 0,
    metadata: object = None,
    validate_data: bool = False,
    *,
    seq_lens_cpu: object = None,
    cache_indices_in: Tensor | None = None,
    null_block_id: int | None = None,
    out: Tensor | None = None,
    kernel: str = "auto",
    block_m: int | None = None,
    block_n: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Causal depthwise conv1d of packed sequences, continuing from and updating their states in a pool.

    Sequence b is the tokens ``query_start_loc[b]`` to ``query_start_loc[b + 1]`` of `x`, preceded by its initial state if it
    has one: ``out[d, t] = act(bias[d] + sum_i weight[d, i] * window[d, t - width + 1 + i])``, computed in float32 and rounded
    once. Afterwards the last ``width - 1`` inputs, those of the initial state included (and zeros where there was none), are
    its new state. `hipconv.reference.causal_conv1d_varlen` states all of it in torch.

    Args:
        x: (dim, tokens), float32, float16 or bfloat16, any strides; fastest with stride 1 along dim. No token need belong to a
            sequence.
        weight: (dim, width), width >= 1, any of the three dtypes, any strides.
        bias: (dim,), any of the three dtypes. None or an empty tensor means none.
        conv_states: (slots, dim, state_len), state_len >= width - 1, any of the three dtypes, any strides, both (slots, dim,
            state_len) and (slots, state_len, dim) in memory. Columns 0 to width - 2 of the slots written are replaced, nothing
            else.
        query_start_loc: (sequences + 1,), not decreasing. Here and below: any integer dtype (bool is none), any strides, on the
            device of `x`.
        cache_indices: (sequences,), the slot of each sequence, or a block table (sequences, blocks), of which column 0 counts
            unless the arguments on prefix caching say otherwise. None: slot b for sequence b.
        has_initial_state: (sequences,), bool or integer: whether to continue from the slot's state. None: no sequence does.
        activation: None or False for none; True, "silu" or "swish" for SiLU.
        pad_slot_id: a slot number that marks padding. None: there is no such number.
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, num_computed_tokens: (sequences,)
            each, for prefix caching: columns of the block table. The initial state is read from column `initial_state_idx`
            (None: 0), the final state goes to `block_idx_last_scheduled_token`, and the state at each boundary of
            `block_size_to_align` tokens that the sequence crosses before its end (counting the `num_computed_tokens` before
            this call) goes to the columns from `block_idx_first_scheduled_token` on. A boundary closer than width - 1 tokens to
            the start takes what is missing from the initial state.
        block_size_to_align: tokens of a cache block; any positive number. None or 0 where there are no such arguments.
        metadata, seq_lens_cpu: accepted and not needed.
        validate_data: check the values of the index tensors too, after all shapes, dtypes and devices, and name the first that
            is wrong: starts that decrease or leave `x`; slots, and columns of a block table, outside of it; a number of
            computed tokens that is none; a slot that is written twice, or that one sequence continues from and another one
            writes. Entries that the call does not use, those of empty sequences and of padding too, are not looked at, and
            numbers of padding may repeat. This waits for the device: ValueError while a graph is captured. Tensors of the meta
            device have no values to check.
        cache_indices_in: (sequences,) or (sequences, blocks): the slots to read initial states from, where they are others than
            those to write. No sequence may read a slot that another one writes.
        null_block_id: a slot number that stands for no slot (vLLM passes 0). A sequence that reads it is padding; a state that
            would go there is not kept.
        out: None: a new tensor, laid out as `x`. Else a tensor like `x` that shares no memory with it, or `x` itself: the
            in-place form. On a GPU, up to width 8, that is two launches and memory for what blocks share: a few percent of `x`,
            and the first width - 1 outputs of each sequence; one launch, without memory, for up to 64 tokens of one or two
            sequences. Elsewhere it takes a temporary of the size of `x` and a copy.
        kernel: "auto", or the name of a kernel: on a GPU "tile" (widths 2 to 8, aligned neighbouring channels), "words"
            (widths 2 to 8, channels that are neighbours), "staged" (widths 1 to 8) or "naive"; on the CPU "simd" (width to
            65536) or "openmp".
        block_m, block_n, num_warps: the tile of a block of the kernels "tile" and "words": tokens, channels and waves of 32
            threads, powers of two, of which it takes the nearest that it has ("staged" looks at the tokens only); None or 0 for
            its own choice, which depends on sizes only. HIPCONV_VARLEN_KERNEL and
            HIPCONV_VARLEN_TILE=TOKENSxCHANNELSxWARPS do the same where
            these are not given; the former leaves the choice to the library where the device, or the form of the call, has no
            kernel of that name.

    Returns:
        `out`, (dim, tokens).

    A sequence is padding if the slot it reads (its read slot, whether or not it has an initial state) or writes is
    `pad_slot_id`, the null block or outside the pool. Tokens of padding and of no sequence are zero in a new `out` and left
    alone in a given one; no slot is touched for them. Empty sequences leave their state as it is. What two sequences write into
    one slot is undefined.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: a shape, device or name that does not fit; `out` or `conv_states` in the memory of another argument; a
            tensor that requires grad while grad mode is on; with `validate_data` a wrong value, or a capture. Nothing is
            written in any of these cases.
        hipconv.errors.JitError: the kernels had to be built and could not be.
        RuntimeError: the kernel could not be launched.

    Runs on the current stream of `x`'s device and does not wait for it.
    """
    use_silu = parse_activation(activation, SILU, True)
    indices = (
        cache_indices, cache_indices_in, has_initial_state, block_idx_first_scheduled_token, block_idx_last_scheduled_token,
        initial_state_idx, num_computed_tokens,
    )  # fmt: skip
    if type(pad_slot_id) is not int or null_block_id is not None:
        require_int_or_none(pad_slot_id=pad_slot_id, null_block_id=null_block_id)
    try:
        inputs = (x, weight, bias)
        options = (*indices, 0 if block_size_to_align is None else block_size_to_align, use_silu, pad_slot_id, null_block_id)
        tile = (0 if block_m is None else block_m, 0 if block_n is None else block_n, 0 if num_warps is None else num_warps)
        if validate_data is not False and flag("validate_data", validate_data):
            checked = torch.empty_like(x) if out is None else out
            _validate([checked], inputs, conv_states, query_start_loc, options, kernel, tile)
        outs = None if out is None else [out]
        result: Any = operators.varlen_directly(outs, inputs, conv_states, query_start_loc, options, out is None, kernel, tile)
        if result is None:
            require_index(block_size_to_align=options[PREFILL_TENSORS], block_m=tile[0], block_n=tile[1], num_warps=tile[2])
            result = torch.empty_like(x) if out is None else out
            torch.ops.hipconv.causal_conv1d_varlen.default(
                result,
                conv_states,
                *inputs,
                query_start_loc,
                *options,
                zero_padding=out is None,
                kernel_name=kernel,
                block_m=tile[0],
                block_n=tile[1],
                num_warps=tile[2],
            )
    except Exception as error:
        raise wrong_kind(causal_conv1d_fn, locals()) or error from None
    return result if out is None else out


def causal_conv1d_split_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    k_dim: int,
    v_dim: int,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int | None = -1,
    *,
    block_idx_first_scheduled_token: Tensor | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    num_computed_tokens: Tensor | None = None,
    block_size_to_align: int | None = 0,
    metadata: object = None,
    validate_data: bool = False,
    seq_lens_cpu: object = None,
    cache_indices_in: Tensor | None = None,
    null_block_id: int | None = None,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    kernel: str = "auto",
    block_m: int | None = None,
    block_n: int | None = None,
    num_warps: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_fn`, its output split into q, k and v by the kernel itself: the form of AITER and ATOM.

    Args:
        k_dim, v_dim: the channels of q and k each, and of v; any sizes with ``2 * k_dim + v_dim == dim``.

        out: None: new tensors. Else q, k and v, contiguous, of the shapes below and the dtype of `x`, which share no memory
            with each other nor with another argument. Tokens of padding and of no sequence are left alone in them.

    The other arguments are those of `causal_conv1d_fn`.

    Returns:
        q (tokens, k_dim), k (tokens, k_dim) and v (tokens, v_dim), contiguous, of the dtype of `x`. In new ones, tokens of
        padding and of no sequence are zero.

    Raises:
        As `causal_conv1d_fn`; ValueError also for parts that do not make up the channels of x.
    """
    use_silu = parse_activation(activation, SILU, True)
    indices = (
        cache_indices, cache_indices_in, has_initial_state, block_idx_first_scheduled_token, block_idx_last_scheduled_token,
        initial_state_idx, num_computed_tokens,
    )  # fmt: skip
    if type(pad_slot_id) is not int or null_block_id is not None:
        require_int_or_none(pad_slot_id=pad_slot_id, null_block_id=null_block_id)
    try:
        if x.dim() != 2 or k_dim < 0 or v_dim < 0 or 2 * k_dim + v_dim != x.shape[0]:
            raise wrong_parts(x, x.dim() == 2, "2 dimensions (dim, tokens)", k_dim, v_dim)
        if out is None:
            tokens = x.shape[1]
            q, k, v = x.new_empty((tokens, k_dim)), x.new_empty((tokens, k_dim)), x.new_empty((tokens, v_dim))
        else:
            q, k, v = out
        inputs = (x, weight, bias)
        options = (*indices, 0 if block_size_to_align is None else block_size_to_align, use_silu, pad_slot_id, null_block_id)
        tile = (0 if block_m is None else block_m, 0 if block_n is None else block_n, 0 if num_warps is None else num_warps)
        if validate_data is not False and flag("validate_data", validate_data):
            _validate([q, k, v], inputs, conv_states, query_start_loc, options, kernel, tile)
        outs = [q, k, v]
        if operators.varlen_directly(outs, inputs, conv_states, query_start_loc, options, out is None, kernel, tile) is None:
            require_index(block_size_to_align=options[PREFILL_TENSORS], block_m=tile[0], block_n=tile[1], num_warps=tile[2])
            torch.ops.hipconv.causal_conv1d_varlen_split.default(
                q,
                k,
                v,
                conv_states,
                *inputs,
                query_start_loc,
                *options,
                zero_padding=out is None,
                kernel_name=kernel,
                block_m=tile[0],
                block_n=tile[1],
                num_warps=tile[2],
            )
    except Exception as error:
        raise wrong_kind(causal_conv1d_split_qkv, locals()) or error from None
    return q, k, v


def compute_causal_conv1d_metadata(query_start_loc: object, *, device: object = None) -> tuple[None, None, None]:
    """Prepare what vLLM's and ATOM's function of this name does: nothing, because nothing is needed. It costs nothing, and does
    not look at its arguments.

    Returns:
        (None, None, None), in the places of ``nums_dict, batch_ptr, token_chunk_offset_ptr``.
    """
    return None, None, None


def _validate(
    outputs: list[Tensor],
    inputs: tuple[Tensor, Tensor, Tensor | None],
    conv_states: Tensor,
    query_start_loc: Tensor,
    options: tuple,
    kernel: str,
    tile: tuple[int, int, int],
) -> None:
    """Shapes, dtypes and devices first, as if there were no values to check."""
    x, weight, _ = inputs
    if x.is_meta:
        return  # without values
    refuse_capture(x)
    operators.check_varlen(outputs, inputs, conv_states, query_start_loc, options, kernel, tile)
    check_prefill_values(x, weight, conv_states, query_start_loc, PrefillOptions(*options))
