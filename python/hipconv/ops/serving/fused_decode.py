"""The decode step of a gated delta net from its packed projection: AITER's function, on top of `causal_conv1d_update`."""

from __future__ import annotations

import torch
from torch import Tensor

from ...arguments import (
    describe,
    flag,
    require_dense,
    require_floats,
    require_int_or_none,
    require_ints,
    wrong_kind,
    wrong_output,
)
from .decode import causal_conv1d_update

LAYOUTS = ("interleaved", "flat")


def fused_reshape_causal_conv1d_update_single_token(
    x: Tensor,
    num_actual_tokens: int,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    ba: Tensor,
    z_out: Tensor,
    core_attn_out: Tensor,
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
    qkvz_layout: str = "interleaved",
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of each row of a gated delta net: q, k and v out of the packed projection and through the causal conv1d; z, b
    and a apart.

    The name, arguments and semantics are those of AITER's function, which vLLM calls on ROCm for Qwen3-Next ("interleaved") and
    Qwen3.5 ("flat"). Where AITER's is one launch, this is one of `causal_conv1d_update` and three to five of torch's copies and
    fills.

    Args:
        x: (tokens, …), the rest with 2 * (num_k_heads * head_k_dim + num_v_heads * head_v_dim) elements in all; float32,
            float16 or bfloat16. "flat" has them as q, k, v, z, each of all its heads; "interleaved" has, for each key head, its
            q, its k, the v of its num_v_heads / num_k_heads value heads, and their z.
        num_actual_tokens: how many of the tokens are computed, the first ones; 0 to the tokens of `x` and of `z_out`.
        num_k_heads, num_v_heads, head_k_dim, head_v_dim: at least 1; the value heads a multiple of the key heads.
        ba: (tokens, …), the rest with 2 * num_v_heads elements: "flat" has all b, then all a; "interleaved", for each key head,
            the b of its value heads, then their a. Any floating-point dtype.
        z_out: (padded tokens, …), the rest with num_v_heads * head_v_dim elements, contiguous, floating-point, written: z of
            the tokens that are computed, zeros after them.
        core_attn_out: the same shape, contiguous, floating-point, written: zeros.
        conv_state, weight, bias: as for `causal_conv1d_update`, with dim = 2 * num_k_heads * head_k_dim + num_v_heads *
            head_v_dim, channels in the order q, k, v.
        num_accepted_tokens, query_start_loc: None, as in AITER: each row has one token, and none is a draft.
        max_query_len: accepted and not needed.
        validate_data: checks the values of the index tensors too, as `causal_conv1d_update` says: it waits for the device.
            (AITER's, like vLLM's, checks shapes only, which are checked here in any case.)
        qkvz_layout: "interleaved" or "flat".

    The other arguments are those of `causal_conv1d_update`.

    Returns:
        out (num_actual_tokens, dim), in the dtype of `x`, contiguous, zero in rows of padding (AITER leaves them unwritten); b
        and a, each (num_actual_tokens, num_v_heads), contiguous, in the dtype of `ba`.

    Raises:
        As `causal_conv1d_update`, with nothing written; ValueError also for sizes that do not fit together, for
        `num_accepted_tokens` or `query_start_loc`, and for `z_out` or `core_attn_out` where they share memory with each other
        or another argument.
        RuntimeError: a kernel could not be launched.

    A row's token is convolved in the dtype of `x`, where AITER's rounds it to that of `conv_state` first; its state holds it in
    the latter in both. Records no gradient. Runs on the current stream of `x`'s device and, without `validate_data`, does not
    wait for it.
    """
    try:
        require_int_or_none(max_query_len=max_query_len)
        qkv, z, ba_parts = _parts(
            x, ba, num_actual_tokens, (num_k_heads, num_v_heads, head_k_dim, head_v_dim), qkvz_layout, z_out, core_attn_out
        )
        for name, tensor in {"num_accepted_tokens": num_accepted_tokens, "query_start_loc": query_start_loc}.items():
            if tensor is not None:
                raise ValueError(f"{name}: got {describe(tensor)}, expected None: each row has one token, and none is a draft")
        _check_written(
            {"z_out": z_out, "core_attn_out": core_attn_out},
            {
                "x": x,
                "ba": ba,
                "conv_state": conv_state,
                "weight": weight,
                "bias": bias,
                "conv_state_indices": conv_state_indices,
                "block_idx_last_scheduled_token": block_idx_last_scheduled_token,
                "initial_state_idx": initial_state_idx,
            },
        )
        out = causal_conv1d_update(
            qkv,
            conv_state,
            weight,
            bias,
            activation,
            conv_state_indices,
            pad_slot_id=pad_slot_id,
            block_idx_last_scheduled_token=block_idx_last_scheduled_token,
            initial_state_idx=initial_state_idx,
            validate_data=flag("validate_data", validate_data),
        )
    except Exception as error:
        raise wrong_kind(fused_reshape_causal_conv1d_update_single_token, locals()) or error from None
    with torch.no_grad():
        rows = len(qkv)
        z_out[:rows].view(z.shape).copy_(z)
        if rows < len(z_out):
            z_out[rows:].zero_()
        core_attn_out.zero_()
        b, a = ba_parts.contiguous().view(2, rows, num_v_heads)
    return out, b, a


def _parts(
    x: Tensor, ba: Tensor, rows: int, heads: tuple[int, int, int, int], layout: str, z_out: Tensor, core_attn_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Split the first rows: qkv (rows, dim), z (rows, groups, channels), and b and a (2, rows, groups, heads);
    views where they can be.
    """
    k_heads, v_heads, k_dim, v_dim = heads
    require_ints(num_actual_tokens=rows)
    for name, value in zip(("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"), heads, strict=True):
        require_ints(**{name: value})
        if value < 1:
            raise ValueError(f"{name}: got {describe(value)}, expected at least 1")
    if v_heads % k_heads:
        raise ValueError(f"num_v_heads: got {v_heads}, expected a multiple of num_k_heads = {k_heads}")
    if layout not in LAYOUTS:
        raise ValueError(f"qkvz_layout: got {describe(layout)}, expected 'interleaved' or 'flat'")
    require_dense(x=x, ba=ba, z_out=z_out, core_attn_out=core_attn_out)
    require_floats(x=x, ba=ba, z_out=z_out, core_attn_out=core_attn_out)
    keys, values = k_heads * k_dim, v_heads * v_dim
    _require_columns("x", x, 2 * (keys + values), "2 * (num_k_heads * head_k_dim + num_v_heads * head_v_dim)")
    _require_columns("ba", ba, 2 * v_heads, "2 * num_v_heads")
    _require_columns("z_out", z_out, values, "num_v_heads * head_v_dim")
    if core_attn_out.shape != z_out.shape:
        raise ValueError(f"core_attn_out: got shape {tuple(core_attn_out.shape)}, expected that of z_out, {tuple(z_out.shape)}")
    most = min(len(x), len(ba), len(z_out))
    if not 0 <= rows <= most:
        raise ValueError(f"num_actual_tokens: got {rows}, expected 0 to {most}, the fewest tokens of x, ba and z_out")
    for name, tensor in {"ba": ba, "z_out": z_out, "core_attn_out": core_attn_out}.items():
        if tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}")
    packed, gates = x[:rows].reshape(rows, 2 * (keys + values)), ba[:rows].reshape(rows, 2 * v_heads)
    if layout == "flat":
        dim = 2 * keys + values
        return packed[:, :dim], packed[:, dim:].unflatten(1, (v_heads, v_dim)), gates.view(rows, 2, 1, v_heads).transpose(0, 1)
    group = v_heads // k_heads
    by_head = packed.view(rows, k_heads, 2 * k_dim + 2 * group * v_dim)
    q, k, v, z = by_head.split([k_dim, k_dim, group * v_dim, group * v_dim], 2)
    qkv = torch.cat([part.flatten(1) for part in (q, k, v)], 1) if k_heads > 1 else by_head[:, 0, : 2 * k_dim + group * v_dim]
    return qkv, z, gates.view(rows, k_heads, 2, group).permute(2, 0, 1, 3)


def _require_columns(name: str, tensor: Tensor, columns: int, formula: str) -> None:
    if tensor.dim() < 2 or tensor.shape[1:].numel() != columns:
        raise ValueError(
            f"{name}: got shape {tuple(tensor.shape)}, expected (tokens, …) with {formula} = {columns} elements a token"
        )


def _check_written(written: dict[str, Tensor], others: dict[str, Tensor | None]) -> None:
    """That copies can write there, and change nothing else by it."""
    seen = {name: tensor for name, tensor in others.items() if tensor is not None}
    for name, tensor in written.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name}: got strides {tensor.stride()} for shape {tuple(tensor.shape)}, expected a contiguous tensor"
            )
        if wrong := wrong_output(name, tensor):
            raise wrong
        for other, theirs in seen.items():
            if _may_overlap(tensor, theirs):
                raise ValueError(f"{name}: got memory of {other}, expected memory of its own")
        seen[name] = tensor


def _may_overlap(a: Tensor, b: Tensor) -> bool:
    """Tell whether the addresses between the first and the last element of both meet; `a` has no gaps."""
    if torch.compiler.is_compiling() or a.is_meta or a.device != b.device or b.layout is not torch.strided:
        return False
    if not a.numel() or not b.numel():
        return False

    def span(tensor: Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (begin, end), (other_begin, other_end) = span(a), span(b)
    return begin < other_end and other_begin < end
