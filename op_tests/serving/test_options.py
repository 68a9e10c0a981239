"""The lists of what serving's calls take: public functions, operators, checks and references name the same."""

from __future__ import annotations

from collections.abc import Callable
import inspect

import pytest
import torch

from hipconv import reference, reference_update, serving
from hipconv.ops.serving.options import DECODE_WRITES, DecodeTensors, PrefillOptions

DECODE = (serving.causal_conv1d_update, serving.causal_conv1d_update_split_qkv)
PREFILL = (serving.causal_conv1d_fn, serving.causal_conv1d_split_qkv)


def names_of(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize("function", DECODE)
def test_decode_functions_take_what_the_list_has(function: Callable) -> None:
    assert set(DecodeTensors._fields) <= names_of(function)
    kinds = inspect.signature(function).parameters
    assert all(kinds[name].default is None and kinds[name].annotation == "Tensor | None" for name in DecodeTensors._fields)


@pytest.mark.parametrize("function", PREFILL)
def test_prefill_functions_take_what_the_list_has(function: Callable) -> None:
    assert set(PrefillOptions._fields) - {"use_silu"} <= names_of(function)
    assert PrefillOptions().pad_slot_id == inspect.signature(function).parameters["pad_slot_id"].default


def test_references_take_what_the_lists_have() -> None:
    # The reference returns retrieve_parent_token.
    assert set(DecodeTensors._fields) - {"retrieve_parent_token"} <= names_of(reference_update.causal_conv1d_update)
    assert set(PrefillOptions._fields) <= names_of(reference.causal_conv1d_varlen)


@pytest.mark.parametrize("operator", ["causal_conv1d_update", "causal_conv1d_update_split_qkv"])
def test_schemas_of_decode_mark_what_is_written(operator: str) -> None:
    arguments = {argument.name: argument for argument in getattr(torch.ops.hipconv, operator).default._schema.arguments}
    written = {name for name, argument in arguments.items() if argument.alias_info and argument.alias_info.is_write}
    assert written & set(DecodeTensors._fields) == set(DECODE_WRITES)
    assert all(arguments[name].kwarg_only and arguments[name].default_value is None for name in DecodeTensors._fields)


@pytest.mark.parametrize("operator", ["causal_conv1d_varlen", "causal_conv1d_varlen_split"])
def test_schemas_of_prefill_are_the_list(operator: str) -> None:
    arguments = getattr(torch.ops.hipconv, operator).default._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.name in PrefillOptions._fields}
    assert list(defaults.items()) == list(PrefillOptions._field_defaults.items())
