"""``causal_conv1d.causal_conv1d_interface``: the functions that Mamba layers call, and what they compute in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import (
    SILU,
    UnknownActivation,
    as_the_peers,
    parse_activation,
    require_apart,
    require_dense,
    require_floats,
    require_integers,
    require_kinds,
    require_shape,
    wrong_output,
    wrong_rows,
)
from ..ops.conv1d.decode import causal_conv1d_update
from ..ops.conv1d.training import causal_conv1d_fn, check_final_states_out
from ..reference import training as reference_training
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


class CausalConv1dFn:
    """The original's autograd function, for those who call its `apply`."""

    apply = staticmethod(causal_conv1d_fn)


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
    """`causal_conv1d_fn` in plain torch, in float64, rounded to the dtype of `x`.
    (The order of arguments is the original's.)
    """
    use_silu = parse_activation(activation, SILU, False, UnknownActivation)
    try:
        require_kinds(causal_conv1d_ref, locals())
        _check_inputs(x, weight, bias, seq_idx, initial_states)
        if final_states_out is not None:
            check_final_states_out(final_states_out, bool(return_final_states), x, weight)
    except (TypeError, ValueError) as error:
        raise as_the_peers(error) from None
    out, final_states = reference_training.causal_conv1d(x, weight, bias, seq_idx, initial_states, use_silu)
    if not return_final_states:
        return out.to(x.dtype)
    return out.to(x.dtype), final_states if final_states_out is None else final_states_out.copy_(final_states)


def _check_inputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None
) -> None:
    """Check what kernels check of their inputs, for what torch computes."""
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
    use_silu = parse_activation(activation, SILU, False, UnknownActivation)
    try:
        require_kinds(causal_conv1d_update_ref, locals())
        require_dense(x=x)
        tokens = x[..., None] if x.dim() == 2 else x
        _check_inputs(tokens, weight, bias, None, None)
        past, state_len = weight.shape[1] - 1, conv_state.shape[2] if conv_state.dim() == 3 else 0
        require_floats(conv_state=conv_state)
        axes = f"(batch, dim, state_len >= width - 1 = {past})"
        require_shape("conv_state", conv_state, (*tokens.shape[:2], max(past, state_len)), axes, x)
        if wrong := wrong_output("conv_state", conv_state):
            raise wrong
        require_apart({"conv_state": conv_state}, {"x": x, "weight": weight, "bias": bias, "cache_seqlens": cache_seqlens})
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
