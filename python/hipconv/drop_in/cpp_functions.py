"""``causal_conv1d.cpp_functions``: forward, backward and update as plain functions, for layers that write their own autograd
functions.

None records a gradient. Errors are those of `causal_conv1d_interface.causal_conv1d_fn`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import as_the_peers, flag, wrong_kind
from ..ops.conv1d.decode import causal_conv1d_update


def causal_conv1d_fwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    final_states_out: Tensor | None,
    silu_activation: bool,
) -> Tensor:
    """The output of `causal_conv1d_fn`, a new tensor; the final states are written into `final_states_out`, if there is one."""
    try:
        if type(silu_activation) is not bool:
            silu_activation = flag("silu_activation", silu_activation)
        out = torch.empty_like(x)
        torch.ops.hipconv.causal_conv1d_states_fwd.default(
            out, final_states_out, x, weight, bias, seq_idx, initial_states, silu_activation
        )
    except Exception as error:
        raise as_the_peers(wrong_kind(causal_conv1d_fwd_function, locals()) or error) from None
    return out


def causal_conv1d_bwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    dx: Tensor | None,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of `causal_conv1d_fn`.

    Args:
        dout: (batch, dim, seqlen), the gradient of the output; dfinal_states: (batch, dim, width - 1), that of the final
            states, or None.
        dx: a tensor like `x`, of any strides, to write its gradient into, or None for a new one.
        return_dinitial_states: whether to compute that one too.

    Returns:
        dx, dweight (dim, width) in the dtype of `weight`, dbias (dim,) or None, and dinitial_states (batch, dim, width - 1) or
        None.
    """
    try:
        if type(return_dinitial_states) is not bool or type(silu_activation) is not bool:
            return_dinitial_states = flag("return_dinitial_states", return_dinitial_states)
            silu_activation = flag("silu_activation", silu_activation)
        inputs = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states, return_dinitial_states, silu_activation)
        if dx is None:
            dx, dweight, dbias, dinitial_states = torch.ops.hipconv.causal_conv1d_bwd.default(*inputs)
        else:
            dweight, dbias, dinitial_states = torch.ops.hipconv.causal_conv1d_bwd_out.default(dx, *inputs)
    except Exception as error:
        raise as_the_peers(wrong_kind(causal_conv1d_bwd_function, locals()) or error) from None
    return (
        dx,
        dweight,
        None if bias is None else dbias,
        dinitial_states if return_dinitial_states and initial_states is not None else None,
    )


def causal_conv1d_update_function(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
) -> Tensor:
    """`causal_conv1d_interface.causal_conv1d_update`."""
    try:
        if type(silu_activation) is not bool:
            silu_activation = flag("silu_activation", silu_activation)
    except TypeError as error:
        raise as_the_peers(error) from None
    return causal_conv1d_update(
        x, conv_state, weight, bias, "silu" if silu_activation else None, cache_seqlens, conv_state_indices
    )
