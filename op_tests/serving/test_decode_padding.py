"""Decode where rows are padding, where out is x, and where it reads one slot and writes another."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from serving.decode_cases import LAYOUTS, check, kernels, make_state, make_weights, random_tree
from support.tensors import mismatch, same_bits
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_update, causal_conv1d_update_split_qkv

# ---- padding -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rows", "tokens", "packed"])
def test_padded_rows_are_zero_in_a_new_tensor_and_untouched_in_a_given_one(device: torch.device, form: str) -> None:
    """Peers leave them uninitialised in a new tensor; tokens before query_start_loc[0] and past query_start_loc[-1] too."""
    for dim, layout, kernel in itertools.product((8, 33), LAYOUTS[:2], kernels(device)):
        weight, bias = make_weights(dim, 4, torch.bfloat16, device)
        indices = torch.tensor([2, -1, 0, -1], device=device)
        options: dict[str, Any] = {"conv_state_indices": indices}
        x = torch.full((4, dim) if form == "rows" else (4, dim, 3), torch.nan, dtype=torch.bfloat16, device=device)
        live = torch.zeros(x.shape, dtype=torch.bool, device=device)
        live[[0, 2]] = True
        if form == "packed":
            x, live = (
                torch.full((13, dim), torch.nan, dtype=torch.bfloat16, device=device),
                torch.zeros(13, dim, dtype=torch.bool, device=device),
            )
            options["query_start_loc"] = torch.tensor([2, 3, 5, 8, 9], device=device)
            live[[2, 5, 6, 7]] = True
        x[live] = torch.randn_like(x[live])
        state = make_state(layout, 3, dim, 3, torch.bfloat16, device)
        torch.use_deterministic_algorithms(True)  # new memory is NaN then
        try:
            check(x, state.clone(), weight, bias, kernel=kernel, **options)
        except ValueError as refusal:
            assert "which serves" in str(refusal)
            continue
        finally:
            torch.use_deterministic_algorithms(False)
        out = torch.full_like(x, 42.0)
        causal_conv1d_update(x, state, weight, bias, True, out=out, kernel=kernel, **options)
        assert (out[~live] == 42.0).all() and not (out[live] == 42.0).any() and not out.isnan().any()


def test_a_pad_slot_is_compared_with_slots_not_with_row_numbers(device: torch.device) -> None:
    """Peers compare the program's number with pad_slot_id. Row 2 is live here, and slot 2 means padding."""
    for pad in (2, 0):  # 0 is vLLM's null block
        state = make_state("N,D,S", 4, 8, 3, torch.float32, device)
        indices = torch.tensor([3, 2, 1, 0], device=device)
        expected = check(
            torch.randn(4, 8, device=device),
            state,
            torch.ones(8, 4, device=device),
            conv_state_indices=indices,
            pad_slot_id=pad,
        )
        assert expected.live.any(1).tolist() == [slot != pad for slot in indices.tolist()]


def test_no_pad_slot(device: torch.device) -> None:
    state = make_state("N,D,S", 2, 8, 3, torch.float32, device)
    expected = check(torch.randn(2, 8, device=device), state, torch.ones(8, 4, device=device), pad_slot_id=None,
                     conv_state_indices=torch.tensor([1, -1], device=device))  # fmt: skip
    assert expected.live.any(1).tolist() == [True, False], "a slot outside the pool is padding whatever pad_slot_id"


def test_more_rows_than_slots(device: torch.device) -> None:
    """Peers assert that there are as many cache lines as rows, which breaks graph capture of padded batches."""
    state = make_state("N,S,D", 2, 8, 3, torch.bfloat16, device)
    indices = torch.tensor([1] + 8 * [-1], dtype=torch.int32, device=device)
    check(
        torch.randn(9, 8).to(device, torch.bfloat16),
        state,
        *make_weights(8, 4, torch.bfloat16, device),
        conv_state_indices=indices,
    )


def test_the_null_block_is_padding_like_the_pad_slot(device: torch.device) -> None:
    """vLLM's keyword: slot 0 stands for none, and it may stand in many rows, checked values or not."""
    x, (weight, bias) = torch.randn(5, 8, device=device), make_weights(8, 4, torch.float32, device)
    state = make_state("N,D,S", 4, 8, 3, torch.float32, device)
    indices = torch.tensor([2, 0, 3, 0, -1], device=device, dtype=torch.int32)
    expected = expected_update(
        x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, conv_state_indices=indices.cpu(), pad_slot_id=0
    )
    assert expected.live.any(1).tolist() == [True, False, True, False, False]
    forms: list[dict[str, Any]] = [{}, {"pad_slot_id": None}, {"null_block_id": -1, "pad_slot_id": 0}]
    for numbers in ({"null_block_id": 0} | form for form in forms):
        pool = state.clone()
        checked: dict[str, Any] = {"validate_data": None not in numbers.values()}  # -1 is neither number otherwise
        out = causal_conv1d_update(x, pool, weight, bias, True, indices, metadata=object(), **numbers, **checked)
        assert mismatch(out.cpu(), expected.out) is None and same_bits(pool.cpu(), expected.conv_state)
        q, k, v = causal_conv1d_update_split_qkv(
            x, state.clone(), weight, 2, 4, bias, True, indices, metadata=object(), **numbers
        )
        assert torch.equal(torch.cat([q, k, v], 1), out)
    with pytest.raises(ValueError, match="null_block_id: got 0 beside pad_slot_id 3, expected only one of them to be a slot"):
        causal_conv1d_update(x, state, weight, bias, True, indices, pad_slot_id=3, null_block_id=0)


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31), 2**32 + 1, 2**62])
def test_indices_outside_of_their_range_are_padding(device: torch.device, bad: int) -> None:
    """They never lead a read or a write astray (the sanitizers watch)."""
    dim = 8
    x, weight = torch.randn(2, dim, device=device), torch.ones(dim, 4, device=device)
    rows = torch.tensor([bad, 1], device=device)
    for kernel in kernels(device):
        cases: dict[str, dict[str, Any]] = {
            "conv_state_indices": {},
            "conv_state_indices_in": {"conv_state_indices": torch.tensor([0, 2], device=device)},
            "num_accepted_tokens": {},
            "initial_state_idx": {"conv_state_indices": torch.tensor([[0, 1], [2, 2]], device=device)},
            "block_idx_last_scheduled_token": {"conv_state_indices": torch.tensor([[0, 1], [2, 2]], device=device)},
            "intermediate_state_indices": {"intermediate_conv_window": torch.zeros(2, 1, dim, 3, device=device)},
        }
        for name, others in cases.items():
            state = make_state("N,D,S", 3, dim, 3, torch.float32, device)
            try:
                expected = check(x, state, weight, kernel=kernel, **(others | {name: rows}))
            except ValueError as refusal:
                assert "which serves" in str(refusal)
                continue
            assert expected.live[1].all() and expected.live[0].any() == (name == "intermediate_state_indices")


def test_more_accepted_tokens_than_a_state_holds_are_padding(device: torch.device) -> None:
    for width, tokens, accepted in itertools.product((2, 4, 5), (1, 3), (0, 1, 3, 4)):
        kept = 3
        state = make_state("N,D,S", 2, 8, width - 2 + kept, torch.float32, device)
        expected = check(torch.randn(2, 8, tokens, device=device), state, torch.ones(8, width, device=device),
                         num_accepted_tokens=torch.tensor([accepted, 1], device=device))  # fmt: skip
        assert expected.live[0].any() == (1 <= accepted <= kept) and expected.live[1].all()


def test_query_start_loc_that_leads_outside_of_x(device: torch.device) -> None:
    for starts in ([0, 2, 9], [-5, 2, 4], [0, 2**31 - 1, 3], [0, 3, 1], [7, 8, 9]):
        x, state = torch.randn(4, 8, device=device), make_state("N,D,S", 2, 8, 3, torch.float32, device)
        causal_conv1d_update(x, state, torch.ones(8, 4, device=device), query_start_loc=torch.tensor(starts, device=device))


# ---- in place, forks, prefix caching -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rows", "tokens", "inside", "packed", "tree"])
def test_out_may_be_x(device: torch.device, form: str) -> None:
    """vLLM, SGLang and AITER overwrite x by default."""
    for dim, width, kernel in itertools.product((8, 33), (2, 4, 7), ("auto", *kernels(device))):
        x = torch.randn(3, dim, 5).to(device, torch.float16)
        x = {"rows": x[:, :, 0].contiguous(), "tokens": x.mT.contiguous().mT, "packed": x[0].T.contiguous()}.get(form, x)
        options: dict[str, Any] = {}
        if form == "packed":
            options["query_start_loc"] = torch.tensor([0, 3, 3, 5], device=device)
        if form == "tree":
            child, sibling = random_tree(random.Random(dim), 3, 5)
            options = {"retrieve_next_token": child.to(device), "retrieve_next_sibling": sibling.to(device)}
        state = make_state("N,D,S", 3, dim, width - 1, torch.float16, device)
        weight, bias = make_weights(dim, width, torch.float16, device)
        other = state.clone()
        try:
            expected = causal_conv1d_update(x, state, weight, bias, True, kernel=kernel, **options)
        except ValueError:
            continue
        assert causal_conv1d_update(x, other, weight, bias, True, out=x, kernel=kernel, **options) is x
        assert same_bits(x, expected) and same_bits(other, state)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fork_reads_one_slot_and_writes_another(device: torch.device, layout: str) -> None:
    """Peers wrote the input slot, which other requests share, when a chunk was shorter than the window (vLLM #56196)."""
    for state_len, dim, kernel in itertools.product((3, 4), (8, 33), kernels(device)):
        state = make_state(layout, 6, dim, state_len, torch.bfloat16, device)
        before = state.clone()
        read, write = torch.tensor([5, 5, -1, 2], device=device), torch.tensor([0, 1, 3, -1], device=device)
        try:
            expected = check(
                torch.randn(4, dim).to(device, torch.bfloat16),
                state,
                *make_weights(dim, 4, torch.bfloat16, device),
                kernel=kernel,
                conv_state_indices=write,
                conv_state_indices_in=read,
            )
        except ValueError:
            continue
        assert expected.live.any(1).tolist() == [True, True, False, False]
        assert same_bits(state[2:], before[2:]), "the slots read, and those of padded rows, are as they were"
        assert same_bits(state[:2, :, 3:], before[:2, :, 3:]), "columns after the window are as they were"


def test_block_tables(device: torch.device) -> None:
    state = make_state("N,S,D", 9, 16, 3, torch.bfloat16, device)
    table = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8]], dtype=torch.int32, device=device)
    check(
        torch.randn(3, 16).to(device, torch.bfloat16),
        state,
        *make_weights(16, 4, torch.bfloat16, device),
        conv_state_indices=table,
        initial_state_idx=torch.tensor([0, 1, 1], device=device),
        block_idx_last_scheduled_token=torch.tensor([1, 1, 2], device=device),
    )


def test_short_rows_of_a_packed_batch_are_rolled_by_their_own_length(device: torch.device) -> None:
    """vLLM shortens the part of a state that it rolls by max_query_len - length:
    a row of 1 token among rows of 4 keeps its state.
    """
    x, state = torch.randn(6, 8, device=device), make_state("N,D,S", 3, 8, 3, torch.float32, device)
    before = state.clone()
    starts = torch.tensor([0, 4, 5, 5], device=device)
    for max_query_len in (-1, 4):
        state.copy_(before)
        check(x, state, torch.ones(8, 4, device=device), query_start_loc=starts, max_query_len=max_query_len)
        assert torch.equal(state[1], torch.cat([before[1, :, 1:], x[4, :, None]], 1))
        assert torch.equal(state[2], before[2]), "a row without tokens keeps its state"
