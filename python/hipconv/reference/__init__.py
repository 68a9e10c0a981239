"""What every op computes, in plain torch with float64 accumulation: the tests compare with these, the docs point to them."""

from __future__ import annotations

from collections.abc import Sequence
import itertools

import torch
from torch import Tensor
import torch.nn.functional as F

from ..ops.conv2d.activations import ACTIVATIONS


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False) -> Tensor:
    """Causal depthwise conv1d: ``act(bias[d] + sum_i weight[d, i] * x[b, d, t - width + 1 + i])`` with ``x[..., t < 0] = 0``.

    Args:
        x: (batch, dim, seqlen), any float dtype, any strides.
        weight: (dim, width).
        bias: (dim,), or None or an empty tensor for none.
        use_silu: apply SiLU.

    Returns:
        (batch, dim, seqlen), contiguous, float64: not rounded to the dtype of `x`.
    """
    batch, dim, seqlen = x.shape
    width = weight.shape[1]
    out = torch.zeros(batch, dim, seqlen, dtype=torch.float64, device=x.device)
    if bias is not None and bias.numel():
        out += bias.double()[None, :, None]
    for i in range(width):
        shift = width - 1 - i  # tap i sees the input `shift` tokens back; where there is none it adds nothing
        if shift < seqlen:
            out[..., shift:] += weight[:, i].double()[None, :, None] * x[..., : seqlen - shift].double()
    return F.silu(out) if use_silu else out


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    padding_mode: str = "zeros",
) -> Tensor:
    """2-D convolution: ``act(bias[k] + sum_{c, r, s} weight[k, c, r, s] * x[n, c, p stride + r dilation, q stride + s dilation] +
    residual[n, k, p, q])`` of the padded x, c over the channels of filter k's group.

    Args:
        x: (batch, channels, height, width), or without batch, any float dtype, any strides.
        weight: (out_channels, channels / groups, kernel height, kernel width).
        padding: an int, a pair (height, width), (top, bottom, left, right), "same" or "valid".
        activation, padding_mode: as `hipconv.conv2d` has them.

    Returns:
        (batch, out_channels, out height, out width), or without batch, float64: not rounded to the dtype of `x`.
    """
    if x.dim() == 3:
        batched = None if residual is None else residual[None]
        return conv2d(
            x[None], weight, bias, stride, padding, dilation, groups, activation=activation, residual=batched, padding_mode=padding_mode
        )[0]
    if padding == "same":
        missing = [n * (taps - 1) for n, taps in zip(_pair(dilation), weight.shape[2:], strict=True)]
        sides = [missing[1] // 2, -(-missing[1] // 2), missing[0] // 2, -(-missing[0] // 2)]
    elif isinstance(padding, str):
        sides = [0, 0, 0, 0]
    elif isinstance(padding, int) or len(padding) < 3:
        (height, width) = _pair(padding)
        sides = [width, width, height, height]
    else:
        sides = [*padding[2:], *padding[:2]]
    padded = F.pad(x.double(), sides, mode="constant" if padding_mode == "zeros" else padding_mode) if any(sides) else x.double()
    out = F.conv2d(padded, weight.double(), None, _pair(stride), 0, _pair(dilation), groups)
    if bias is not None:
        out += bias.double()[:, None, None]
    if residual is not None:
        out += residual.double()
    return ACTIVATIONS[activation](out)


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else [value[0], value[-1]]


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
        (dim, tokens) float64, zero where a token is padding or in no sequence; a new pool; and (tokens,) bool, which tokens are live.
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
