"""``causal_conv1d.causal_conv1d_interface``: the functions that Mamba layers call, and what they compute in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import (
    SILU,
    flag,
    parse_activation,
    require_floats,
    require_integers,
    require_kinds,
    require_shape,
    wrong_kind,
    wrong_output,
    wrong_rows,
)
from ..ops.conv1d.training import causal_conv1d_with_states
from ..reference import training as reference_training
from ._errors import as_the_peers
from .cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function

__all__ = [
    "CausalConv1dFn",
    "causal_conv1d_bwd_function",
    "causal_conv1d_fn",
    "causal_conv1d_fwd_function",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_function",
    "causal_conv1d_update_ref",
]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise conv1d, differentiable, of rows that may continue from a state, end in one, or hold packed sequences.

    ``out[b, d, t] = act(bias[d] + sum_i weight[d, i] * row[b, d, t + i])``, ``row`` being ``[initial_states | x]`` (zeros in the place of
    missing initial states), in float32 and rounded once. Signature and semantics are those of Dao-AILab/causal-conv1d 1.7.0, without
    its limits on layouts, strides, widths and combinations. `hipconv.reference_training.causal_conv1d` states all of it in torch.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16, on the CPU float64 too. Any strides, any size may be zero; fastest with
            stride 1 along dim or seqlen.
        weight: (dim, width), width >= 1, any of the three dtypes, any strides.
        bias: (dim,), any of the three dtypes; None or an empty tensor for none.
        seq_idx: (batch, seqlen), int32, any strides: packed rows. A tap counts only where its token has the id of the output's token.
            Tokens with a negative id are padding: their output is zero, and no gradient comes from it.
        initial_states: (batch, dim, width - 1), dtype of `x`, any strides, oldest token first. With `seq_idx` they belong to the
            sequence of the row's first token.
        return_final_states: return the last width - 1 tokens of the row too. With `seq_idx`, those of the last token's sequence, and
            zeros in the place of others.
        final_states_out: (batch, dim, width - 1), dtype of `x`, written and returned as the final states. It may be the memory of
            `initial_states` where no gradient is recorded.
        activation: "silu" or "swish" (the same), or None.

    Returns:
        out, with the shape, dtype and memory layout of `x`; or (out, final_states).

    Raises:
        NotImplementedError: an activation of another name.
        RuntimeError (a ValueError or a TypeError too): an argument that does not fit. Nothing is written then.
        hipconv.errors.JitError: the kernels had to be built and could not be.

    Gradients of x, weight, bias and initial_states, and through the final states, are deterministic and may be differentiated again;
    forward-mode derivatives, `torch.func` and `torch.vmap` are served. Autocast leaves dtypes alone.

    Runs on the current stream of `x`'s device and does not wait for it.
    """
    use_silu = parse_activation(activation, SILU)
    try:
        if type(return_final_states) is not bool:
            return_final_states = flag("return_final_states", return_final_states)
        if final_states_out is not None:
            _check_final_states_out(final_states_out, return_final_states, x, weight)
        out, final_states = causal_conv1d_with_states(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        if final_states is None:
            return out
        return out, final_states if final_states_out is None else final_states_out.copy_(final_states)
    except Exception as error:
        wrong = wrong_kind(causal_conv1d_fn, locals()) or wrong_rows(x, weight) or wrong_output("final_states_out", final_states_out)
        raise as_the_peers(wrong or error) from None


class CausalConv1dFn:
    """The original's autograd function, for those who call its `apply`."""

    apply = staticmethod(causal_conv1d_fn)


def _check_final_states_out(final_states_out: Tensor, is_used: bool, x: Tensor, weight: Tensor) -> None:
    if not isinstance(final_states_out, Tensor) or x.dim() != 3 or weight.dim() != 2:
        raise TypeError  # which the caller has words for
    if not is_used:
        return
    expected = (x.shape[0], x.shape[1], weight.shape[1] - 1)
    if final_states_out.shape != expected:
        raise ValueError(f"final_states_out: got shape {tuple(final_states_out.shape)}, expected (batch, dim, width - 1) = {expected}")
    if final_states_out.dtype != x.dtype or final_states_out.device != x.device:
        raise TypeError(
            f"final_states_out: got {final_states_out.dtype} on {final_states_out.device}, expected {x.dtype} on {x.device}, as x has"
        )


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """One or several new tokens of each row, and each row's state advanced past them; the state is written in place.

    Args:
        x: (batch, dim), or (batch, dim, seqlen), float32, float16 or bfloat16, any strides.
        conv_state: (slots, dim, state_len), state_len >= width - 1, any strides. The window is in the *last* width - 1 columns.
        weight: (dim, width). bias: (dim,) or None. activation: "silu", "swish" or None.
        cache_seqlens: (batch,): states are circular buffers, and the new tokens go to the columns from
            ``cache_seqlens % state_len`` on. None: states are shifted.
        conv_state_indices: (batch,), the slot of each row; rows with a negative one have output zero and touch no state. None: row b
            has slot b.

    Returns:
        A new tensor like `x`.

    Raises:
        What `causal_conv1d_fn` raises. No gradient is recorded.
    """
    return causal_conv1d_update_function(x, conv_state, weight, bias, parse_activation(activation, SILU), cache_seqlens, conv_state_indices)


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`causal_conv1d_fn` in plain torch, in float64, rounded to the dtype of `x`. (The order of arguments is the original's.)"""
    use_silu = parse_activation(activation, SILU)
    try:
        require_kinds(causal_conv1d_ref, locals())
        _check_inputs(x, weight, bias, seq_idx, initial_states)
        if final_states_out is not None:
            _check_final_states_out(final_states_out, bool(return_final_states), x, weight)
            if return_final_states and (wrong := wrong_output("final_states_out", final_states_out)):
                raise wrong
    except (TypeError, ValueError) as error:
        raise as_the_peers(error) from None
    out, final_states = reference_training.causal_conv1d(x, weight, bias, seq_idx, initial_states, use_silu)
    if not return_final_states:
        return out.to(x.dtype)
    return out.to(x.dtype), final_states if final_states_out is None else final_states_out.copy_(final_states)


def _check_inputs(x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None) -> None:
    """What kernels check of their inputs, for what torch computes."""
    if wrong := wrong_rows(x, weight):
        raise wrong
    require_floats(x=x, weight=weight, bias=bias, initial_states=initial_states)
    require_integers(seq_idx=seq_idx)
    (batch, dim, seqlen), (_, width) = x.shape, weight.shape
    require_shape("x", x, (batch, dim, seqlen), "(batch, dim, seqlen)", x)
    require_shape("weight", weight, (dim, width), "(dim, width)", x)
    if bias is not None and bias.numel():
        require_shape("bias", bias, (dim,), "(dim,)", x)
    if seq_idx is not None:
        require_shape("seq_idx", seq_idx, (batch, seqlen), "(batch, seqlen)", x)
    if initial_states is not None:
        require_shape("initial_states", initial_states, (batch, dim, width - 1), "(batch, dim, width - 1)", x)


def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
    """`causal_conv1d_update` of all slots in plain torch, in float64, rounded to the dtype of `x`."""
    use_silu = parse_activation(activation, SILU)
    try:
        require_kinds(causal_conv1d_update_ref, locals())
        tokens = x[..., None] if x.dim() == 2 else x
        _check_inputs(tokens, weight, bias, None, None)
        past, state_len = weight.shape[1] - 1, conv_state.shape[2] if conv_state.dim() == 3 else 0
        require_floats(conv_state=conv_state)
        axes = f"(batch, dim, state_len >= width - 1 = {past})"
        require_shape("conv_state", conv_state, (*tokens.shape[:2], max(past, state_len)), axes, x)
        if wrong := wrong_output("conv_state", conv_state):
            raise wrong
        if cache_seqlens is not None:
            require_integers(cache_seqlens=cache_seqlens)
            require_shape("cache_seqlens", cache_seqlens, (len(x),), "(batch,)", x)
    except (TypeError, ValueError) as error:
        raise as_the_peers(error) from None
    if cache_seqlens is None:
        history = torch.cat([conv_state, tokens.to(conv_state.dtype)], dim=2)
        window = history[..., state_len - past : state_len]
    else:
        end = cache_seqlens.long()[:, None]
        columns = torch.arange(-past, tokens.shape[2], device=x.device) + end
        columns = torch.remainder(columns, state_len)[:, None, :].expand(-1, x.shape[1], -1)
        window = conv_state.gather(2, columns[..., :past])
    out, _ = reference_training.causal_conv1d(tokens, weight, bias, None, window.to(tokens.dtype), use_silu)
    if cache_seqlens is None:
        conv_state.copy_(history[..., history.shape[2] - state_len :])
    else:
        conv_state.scatter_(2, columns[..., past:], tokens.to(conv_state.dtype))
    return out.to(x.dtype).reshape(x.shape)
