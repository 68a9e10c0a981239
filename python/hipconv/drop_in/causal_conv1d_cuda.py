"""The original's extension module, which older layers import by itself: both its present functions, which write into tensors
they are given, and those until version 1.4, which returned new ones. The number of arguments tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    InvalidType,
    as_the_peers,
    flag,
    require_apart,
    require_floats,
    require_kinds,
    require_shape,
    wrong_kind,
    wrong_output,
)
from . import cpp_functions


def causal_conv1d_fwd(*arguments: Any) -> Tensor | None:
    """``(x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation)``, or ``(…, final_states_out,
    silu_activation) -> out``."""
    return _of_so_many("causal_conv1d_fwd", arguments, {7: cpp_functions.causal_conv1d_fwd_function, 8: _fwd_into})


def causal_conv1d_bwd(*arguments: Any) -> tuple[Tensor | None, ...] | None:
    """``(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states,
    silu_activation)``, dweight and dbias added to, or ``(…, dx, return_dinitial_states, silu_activation) -> (dx, dweight,
    dbias, dinitial_states)``, the parameters' in the dtype of the parameters."""
    return _of_so_many("causal_conv1d_bwd", arguments, {10: cpp_functions.causal_conv1d_bwd_function, 12: _bwd_into})


def causal_conv1d_update(*arguments: Any) -> Tensor | None:
    """``(x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices)``, or the same without `out`,
    which is returned then."""
    return _of_so_many("causal_conv1d_update", arguments, {7: cpp_functions.causal_conv1d_update_function, 8: _update_into})


def _of_so_many(name: str, arguments: tuple[Any, ...], forms: dict[int, Callable]) -> Any:
    if len(arguments) not in forms:
        raise InvalidType(f"{name}: got {len(arguments)} arguments, expected {' or '.join(map(str, forms))}")
    return forms[len(arguments)](*arguments)


def _fwd_into(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, out: Tensor,
    final_states_out: Tensor | None, silu_activation: bool,
) -> None:  # fmt: skip
    try:
        use_silu = flag("silu_activation", silu_activation)
        torch.ops.hipconv.causal_conv1d_states_fwd.default(
            out, final_states_out, x, weight, bias, seq_idx, initial_states, use_silu
        )
    except Exception as error:
        raise as_the_peers(wrong_kind(_fwd_into, locals()) or error) from None


def _bwd_into(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None, initial_states: Tensor | None,
    dfinal_states: Tensor | None, dx: Tensor | None, dweight: Tensor, dbias: Tensor | None, dinitial_states: Tensor | None,
    silu_activation: bool,
) -> None:  # fmt: skip
    into = {"dweight": (dweight, weight), "dbias": (dbias, bias), "dinitial_states": (dinitial_states, initial_states)}
    try:
        require_kinds(_bwd_into, locals())
        with torch.no_grad():
            for name, (gradient, of) in into.items():
                if gradient is not None and of is not None:
                    require_floats(**{name: gradient})
                    require_shape(name, gradient, tuple(of.shape), "the shape of what it is the gradient of", x)
                    if wrong := wrong_output(name, gradient):
                        raise wrong
            require_apart(
                {name: gradient for name, (gradient, _) in into.items()},
                {"x": x, "weight": weight, "bias": bias, "dout": dout, "seq_idx": seq_idx, "initial_states": initial_states,
                 "dfinal_states": dfinal_states, "dx": dx},
            )  # fmt: skip
            _, of_weight, of_bias, of_states = cpp_functions.causal_conv1d_bwd_function(
                x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, dinitial_states is not None, silu_activation
            )
            dweight += of_weight
            if dbias is not None and of_bias is not None:
                dbias += of_bias
            if dinitial_states is not None and of_states is not None:
                dinitial_states.copy_(of_states)
    except (TypeError, ValueError) as error:
        raise as_the_peers(error) from None


def _update_into(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, silu_activation: bool,
    cache_seqlens: Tensor | None, conv_state_indices: Tensor | None,
) -> None:  # fmt: skip
    try:
        use_silu = flag("silu_activation", silu_activation)
        if x is None:  # to the operator: that `out` holds x
            raise TypeError("x: got None, expected a torch.Tensor")
        with torch.no_grad():
            torch.ops.hipconv.causal_conv1d_update.default(
                out, None if out is x else x, conv_state, weight, bias, use_silu, conv_state_indices=conv_state_indices,
                cache_seqlens=cache_seqlens, state_at_end=True,
            )  # fmt: skip
    except Exception as error:
        raise as_the_peers(wrong_kind(_update_into, locals()) or error) from None
