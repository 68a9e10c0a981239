"""SGLang's causal conv1d, prefill and decode, served by hipconv: the entry point ``sglang.srt.plugins``.

Signatures and semantics are those of SGLang 0.5.23: its Triton functions, and the facade that on NVIDIA chooses between these
and a compiled extension. What is not a pool of states with packed sequences goes to SGLang's own functions: dense batches,
circular states, and prefills under a captured graph, whose schedule it has on the device already. Prefill reads as many slots
as there are sequences, and takes longer arrays of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import serving
from . import cut_to_sequences, wanted
from .rebind import Replacement, rebind

# The newer SGLang has the first one, the older the second.
_TRITON = ("sglang.kernels.ops.mamba.causal_conv1d_triton", "sglang.srt.layers.attention.mamba.causal_conv1d_triton")
_FACADE = "sglang.srt.layers.attention.mamba.causal_conv1d"
_COMMON = {"x", "weight", "bias", "activation", "pad_slot_id", "validate_data"}
_PREFILL = _COMMON | {"conv_states", "query_start_loc", "seq_lens_cpu", "cache_indices", "has_initial_state"}
_TREES = {
    "intermediate_conv_window",
    "intermediate_state_indices",
    "retrieve_next_token",
    "retrieve_next_sibling",
    "retrieve_parent_token",
}
_DECODE = _COMMON | _TREES | {"conv_state", "conv_state_indices", "num_accept_tokens", "metadata"}


def _prefill(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    ours = {name: value for name, value in arguments.items() if value is not None or name in _PREFILL}
    packed = (
        arguments["x"].dim() == 2 and arguments.get("conv_states") is not None and arguments.get("query_start_loc") is not None
    )
    if not packed or not ours.keys() <= _PREFILL:
        return original(**arguments)
    ours = cut_to_sequences(ours, ("cache_indices", "has_initial_state"))
    return serving.causal_conv1d_fn(**{"bias": None} | ours | {"validate_data": False})


def _decode(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    ours = {name: value for name, value in arguments.items() if value is not None or name in _DECODE}
    if not ours.keys() <= _DECODE:
        return original(**arguments)
    accepted = ours.pop("num_accept_tokens", None)
    return serving.causal_conv1d_update(**ours | {"validate_data": False, "num_accepted_tokens": accepted})


def register() -> None:
    """Register with SGLang, which calls this in each process.

    Raises:
        ValueError: HIPCONV_PLUGINS is none of 0, 1 and all. SGLang logs it and goes on with its own functions.
    """
    engines, _ = wanted()
    if engines:
        rebind(
            Replacement(module, name, frozenset(parameters), call)
            for module in (*_TRITON, _FACADE)
            for name, parameters, call in (
                ("causal_conv1d_fn", _PREFILL | {"block_table"}, _prefill),
                ("causal_conv1d_update", _DECODE | {"cache_seqlens"}, _decode),
            )
        )
