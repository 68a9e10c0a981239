"""vLLM's causal conv1d, prefill and decode, served by hipconv: the entry point ``vllm.general_plugins``.

Signatures and semantics are those of vLLM 0.33's ``model_executor/layers/mamba/ops/causal_conv1d.py`` (and of earlier versions,
with arguments on prefix caching). What differs from `hipconv.serving`: decode writes into x unless it is given `out`, and
`validate_data` asks for checks of shapes, which are made in any case: here it would wait for the device. Prefill reads as many
slots as there are sequences, and takes longer arrays of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import serving
from . import cut_to_sequences, wanted
from .rebind import Replacement, rebind

_OPS = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
_AITER = "aiter.ops.triton.causal_conv1d_update_single_token"
_BLOCKS = {"block_idx_last_scheduled_token", "initial_state_idx"}
_COMMON = {"x", "weight", "bias", "activation", "pad_slot_id", "validate_data"}
_PREFILL = _COMMON | _BLOCKS | {
    "conv_states", "query_start_loc", "cache_indices", "has_initial_state", "null_block_id", "block_idx_first_scheduled_token",
    "num_computed_tokens", "block_size_to_align", "metadata",
}  # fmt: skip
_DECODE = _COMMON | _BLOCKS | {
    "conv_state", "conv_state_indices", "num_accepted_tokens", "query_start_loc", "max_query_len", "null_block_id", "out",
}  # fmt: skip
_OF_SEQUENCES = _BLOCKS | {"cache_indices", "has_initial_state", "block_idx_first_scheduled_token", "num_computed_tokens"}
_FUSED = _COMMON | _BLOCKS | {
    "num_actual_tokens", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "ba", "z_out", "core_attn_out", "conv_state",
    "conv_state_indices", "num_accepted_tokens", "query_start_loc", "max_query_len", "qkvz_layout",
}  # fmt: skip


def _prefill(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if not arguments.keys() <= _PREFILL:
        return original(**arguments)
    return serving.causal_conv1d_fn(**cut_to_sequences(arguments, _OF_SEQUENCES) | {"validate_data": False})


def _decode(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if not arguments.keys() <= _DECODE:
        return original(**arguments)
    out = arguments.get("out")
    return serving.causal_conv1d_update(**arguments | {"validate_data": False, "out": arguments["x"] if out is None else out})


def _fused(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if not arguments.keys() <= _FUSED:
        return original(**arguments)
    return serving.fused_reshape_causal_conv1d_update_single_token(**arguments | {"validate_data": False})


def register() -> None:
    """Register with vLLM, which calls this in each process, any number of times.

    Raises:
        ValueError: HIPCONV_PLUGINS is none of 0, 1 and all.
    """
    engines, aiters = wanted()
    if engines:
        rebind([
            Replacement(_OPS, "causal_conv1d_fn", frozenset(_PREFILL), _prefill),
            Replacement(_OPS, "causal_conv1d_update", frozenset(_DECODE), _decode),
        ])  # fmt: skip
    if aiters:
        rebind([Replacement(_AITER, "fused_reshape_causal_conv1d_update_single_token", frozenset(_FUSED), _fused)])
