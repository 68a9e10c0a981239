"""The states that prefill reads and writes, and those that it keeps for prefix caching."""

from __future__ import annotations

import itertools

import pytest
import torch

from serving.prefill_cases import STATE_LAYOUTS, Case, cached_call, check, expected, kernel_names, run_on_copy, same_values
from support.tensors import DTYPES, mismatch_beside_infinities

# ---- states ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
@pytest.mark.parametrize("lengths", [[2] * 5, [300, 1, 200], [1] * 40], ids=str)
def test_read_slots_other_than_write_slots(device: torch.device, lengths: list[int], layout: str) -> None:
    """ATOM's fork: many sequences read one shared prefix's state, and it stays as it is."""
    arguments = Case(lengths, 16, 4, torch.bfloat16, torch.bfloat16, state_layout=layout).inputs(device)
    shared = next(slot for slot in range(len(lengths) + 3) if slot not in arguments["cache_indices"])
    arguments["conv_states"][shared] = torch.randn(16, 3)
    arguments["has_initial_state"][:] = True
    arguments["cache_indices_in"] = torch.full((len(lengths),), shared, device=device)
    _, pool = check(arguments)
    assert torch.equal(pool[shared], arguments["conv_states"][shared])
    arguments["cache_indices_in"][0] = -1  # what it reads tells padding
    check(arguments)


def test_no_flags_mean_no_initial_states(device: torch.device) -> None:
    """vLLM's kernel reads the flags without asking whether there are any."""
    arguments = Case([5, 2, 9], 8).inputs(device)
    out, _ = check(arguments | {"has_initial_state": None})
    assert torch.equal(out, check(arguments | {"has_initial_state": torch.zeros(3, device=device).int()})[0])


def test_state_of_a_shared_slot_survives_its_own_sequence(device: torch.device) -> None:
    """One block reads a slot and others write it, in peers that split a sequence among blocks:
    the orders of simt would show it.
    """
    for width in (2, 3, 4, 5, 6):
        arguments = Case([700], 24, width, torch.float16, torch.float16).inputs(device)
        arguments["has_initial_state"][:] = True
        arguments["conv_states"][arguments["cache_indices"].long()] = torch.randn(1, 24, width - 1, device=device).half()
        for block_m in (4, 8, 32):
            check(arguments | {"block_m": block_m})


def test_infinities_and_nans_reach_what_they_reach_in_the_reference(device: torch.device) -> None:
    """With every kernel, a channel a place. They meet no zeros where a sequence has no state; where it has one,
    they meet that.
    """
    for value, flag in itertools.product((torch.inf, -torch.inf, torch.nan), (False, True)):
        arguments = Case([1, 2, 3, 5, 9, 40], 32, 4, torch.bfloat16).inputs(device)
        arguments["has_initial_state"][:] = flag
        arguments["conv_states"][:] = 0.5
        for channel in range(4):
            arguments["weight"][channel, channel] = value
            for first, at in ((4, channel), (8, 8 + channel), (12, 20), (16, 56 + channel)):
                arguments["x"][first + channel, at] = value
        arguments["bias"][20] = value
        for column in range(3):
            arguments["conv_states"][:, 21 + column, column] = value
        wanted, wanted_pool, _ = expected(arguments)
        for kernel in kernel_names(device):
            out, pool = run_on_copy(arguments | {"kernel": kernel})
            assert (wrong := mismatch_beside_infinities(out, wanted)) is None, f"{kernel}: {wrong}"
            assert same_values(pool, wanted_pool), kernel
        assert wanted[0, :1].isfinite().all() != flag


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_small_integers_are_exact(device: torch.device, dtype: torch.dtype) -> None:
    arguments = Case([1, 0, 2, 3, 70, 1, 1, 41], 24, 4, dtype, dtype, dtype, use_silu=False).inputs(device)
    for name in ("x", "weight", "bias", "conv_states"):
        arguments[name].copy_(torch.randint(-4, 5, arguments[name].shape))
    wanted, _, _ = expected(arguments)
    assert torch.equal(check(arguments)[0].double(), wanted)


# ---- prefix caching ----------------------------------------------------------------------------------------------------------


def test_a_chunk_shorter_than_the_window_does_not_write_into_its_prefix(device: torch.device) -> None:
    """Peers wrote a short chunk's state into the slot they read, which other requests share."""
    arguments = cached_call(device, [16, 32, 16], [1, 2, 3], 16)
    read = arguments["cache_indices"][torch.arange(3), arguments["initial_state_idx"]]
    _, pool = check(arguments)
    assert torch.equal(pool[read], arguments["conv_states"][read])


@pytest.mark.parametrize("computed", [13, 14, 15])
@pytest.mark.parametrize("length", [2, 8, 100])
def test_a_boundary_close_to_the_begin_takes_the_rest_from_the_state(device: torch.device, length: int, computed: int) -> None:
    """Peers take it from the tokens of the sequence before, and forget it in a chunk of at most 8 tokens."""
    check(cached_call(device, [0, computed, 5], [50, length, 4], 16))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_states_at_every_boundary(device: torch.device, width: int, block: int) -> None:
    """Blocks of any size, also smaller than the window; the block that is read may be one that is written."""
    arguments = cached_call(device, [0, 3, 16, 31, 15, 0], [33, 70, 1, 2, 16, 5], block, width=width)
    check(arguments)
    check(arguments | {"block_m": 8})


def test_states_that_have_no_place_are_not_kept(device: torch.device) -> None:
    arguments = cached_call(device, [0, 20], [64, 40], 16)
    arguments["cache_indices"][0, 1] = 0  # the null block, for a boundary
    arguments["cache_indices"][1, 3] = 0  # and for a final state, whose sequence is live nevertheless
    arguments["cache_indices"][1, 2] = 1 << 20
    _, _, live = expected(arguments)
    assert live.all()
    check(arguments)
    for name, value in (("block_idx_last_scheduled_token", 99), ("initial_state_idx", -1), ("initial_state_idx", 1 << 31)):
        changed = arguments[name].clone()
        changed[0] = value
        check(arguments | {name: changed})
    arguments = cached_call(device, [32, 20], [64, 40], 16)
    arguments["has_initial_state"][0] = False
    arguments["block_idx_first_scheduled_token"][0] = -(1 << 31)  # boundaries that were not crossed in this call
    check(arguments)
