"""Decode steps of the layers of Mamba models, whose states hold the window in their last columns."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from ...arguments import SILU, UnknownActivation, as_the_peers, parse_activation, wrong_kind
from ..dispatch import refuse_derivatives_of_torch_func
from ..serving import operators

_nothing = contextlib.nullcontext()


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
        conv_state_indices: (batch,), the slot of each row; rows with a negative one have output zero and touch no state. None:
            row b has slot b.

    Returns:
        A new tensor like `x`.

    Raises:
        What `causal_conv1d_fn` raises. No gradient is recorded, and a derivative by `torch.func` is refused.
    """
    use_silu = parse_activation(activation, SILU, False, UnknownActivation)
    tensors = (conv_state_indices, None, None, None, None, None, cache_seqlens, None, None, None, None, None)
    try:
        inputs = (x, conv_state, weight, bias)
        refuse_derivatives_of_torch_func(x=x, conv_state=conv_state, weight=weight, bias=bias)  # no_grad would hide them
        with torch.no_grad() if torch.is_grad_enabled() else _nothing:
            out: Any = operators.update_directly(
                None, inputs, use_silu, tensors, -1, None, state_at_end=True, zero_padding=True, kernel="auto"
            )
            if out is None:
                out = torch.empty_like(x)
                torch.ops.hipconv.causal_conv1d_update.default(
                    out,
                    *inputs,
                    use_silu,
                    conv_state_indices=conv_state_indices,
                    cache_seqlens=cache_seqlens,
                    state_at_end=True,
                )
    except Exception as error:
        raise as_the_peers(wrong_kind(causal_conv1d_update, locals()) or error) from None
    return out
