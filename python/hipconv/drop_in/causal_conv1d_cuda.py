"""The original's extension module, which older layers import by itself: both its present functions, which write into tensors they are
given, and those until version 1.4, which returned new ones. The number of arguments tells them apart.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import cpp_functions


def causal_conv1d_fwd(x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None,
                      *rest: Any) -> Tensor | None:  # fmt: skip
    """``(…, out, final_states_out, silu_activation)``, or ``(…, final_states_out, silu_activation) -> out``."""
    if len(rest) == 2:
        return cpp_functions.causal_conv1d_fwd_function(x, weight, bias, seq_idx, initial_states, *rest)
    out, final_states_out, silu_activation = rest
    out.copy_(cpp_functions.causal_conv1d_fwd_function(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation))
    return None


def causal_conv1d_bwd(x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None,
                      initial_states: Tensor | None, dfinal_states: Tensor | None, dx: Tensor | None,
                      *rest: Any) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    """``(…, dweight, dbias, dinitial_states, silu_activation)``, the first two added to, or ``(…, return_dinitial_states,
    silu_activation) -> (dx, dweight, dbias, dinitial_states)``, the parameters' in the dtype of the parameters."""
    inputs = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx)
    if len(rest) == 2:
        return cpp_functions.causal_conv1d_bwd_function(*inputs, *rest)
    dweight, dbias, dinitial_states, silu_activation = rest
    _, of_weight, of_bias, of_states = cpp_functions.causal_conv1d_bwd_function(*inputs, dinitial_states is not None, silu_activation)
    dweight += of_weight
    if dbias is not None and of_bias is not None:
        dbias += of_bias
    if dinitial_states is not None and of_states is not None:
        dinitial_states.copy_(of_states)
    return None


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor | None:
    """``(…, out, silu_activation, cache_seqlens, conv_state_indices)``, or the same without `out`, which is returned then."""
    if len(rest) == 3:
        return cpp_functions.causal_conv1d_update_function(x, conv_state, weight, bias, *rest)
    out, *options = rest
    out.copy_(cpp_functions.causal_conv1d_update_function(x, conv_state, weight, bias, *options))
    return None
