"""The arguments that serving's calls take beside x, weight, bias and the pool: one list for prefill and one for decode.

The torch schemas, the checks of values and the calls of the bindings are made from these lists, and the references take them.
The public functions write their tuples out, which is what a call of a few microseconds can afford; a test compares their names
with the lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

from torch import Tensor


class DecodeTensors(NamedTuple):
    """The optional tensors of a decode step, in the order of the binding."""

    conv_state_indices: Tensor | None = None
    conv_state_indices_in: Tensor | None = None
    num_accepted_tokens: Tensor | None = None
    query_start_loc: Tensor | None = None
    block_idx_last_scheduled_token: Tensor | None = None
    initial_state_idx: Tensor | None = None
    cache_seqlens: Tensor | None = None
    intermediate_conv_window: Tensor | None = None
    intermediate_state_indices: Tensor | None = None
    retrieve_next_token: Tensor | None = None
    retrieve_next_sibling: Tensor | None = None
    retrieve_parent_token: Tensor | None = None


DECODE_WRITES = ("intermediate_conv_window", "retrieve_parent_token")


class PrefillOptions(NamedTuple):
    """The options of a prefill, in the order of the binding."""

    cache_indices: Tensor | None = None
    cache_indices_in: Tensor | None = None
    has_initial_state: Tensor | None = None
    block_idx_first_scheduled_token: Tensor | None = None
    block_idx_last_scheduled_token: Tensor | None = None
    initial_state_idx: Tensor | None = None
    num_computed_tokens: Tensor | None = None
    block_size_to_align: int = 0
    use_silu: bool = False
    pad_slot_id: int | None = -1
    null_block_id: int | None = None


PREFILL_TENSORS = 7  # of these options, the first


_SCHEMA_TYPES = {Tensor | None: "Tensor?", int: "int", bool: "bool", int | None: "int?"}


def schema_of(options: Any, writes: dict[str, str] | None = None) -> str:
    """A list as part of a torch schema; `writes` has the letters of the tensors that are written."""
    parts = []
    for name, kind in get_type_hints(options).items():
        letter = (writes or {}).get(name)
        parts.append(f"{f'Tensor({letter}!)?' if letter else _SCHEMA_TYPES[kind]} {name}={options._field_defaults[name]}")
    return ", ".join(parts)
