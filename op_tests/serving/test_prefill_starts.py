"""Prefill of sequences whose starts share tiles: many of them, across tiles and stretches, with states of every type."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from serving.prefill_cases import STATE_LAYOUTS, Case, cached_call, check, expected, kernel_names, run_on_copy, same_values
from support.tensors import DTYPES, mismatch, strided
from hipconv import serving

STARTS = [
    [1] * 150,  # more than a block looks up at once, and than a tile has tokens
    [0, 1, 0, 0, 2] * 40,
    [*range(17)] * 2,
    [*[63] * 8, 7, 62, 2, 62, 130, 1, 56, 7, 1],  # one begins at each of the last seven tokens of a tile
    [8] * 20,
]


def kernel_of(device: torch.device) -> str:
    """Return the kernel whose tiles these are, where there is one."""
    return "staged" if "staged" in kernel_names(device) else "auto"


def call(number: int, width: int, device: torch.device, **sizes: Any) -> dict[str, Any]:
    """Return one of the calls: every pair of types, layouts, odd dims, padding among the sequences."""
    dtypes = list(DTYPES.values())
    case = Case(
        STARTS[number % len(STARTS)],
        (1, 33, 16, 65, 67, 130, 31)[(number + width) % 7],
        width,
        dtypes[number % 3],
        dtypes[(number // 3 + width) % 3],
        layout=("channel_first", "channel_first", "channel_last")[(number + width) % 3],
        state_layout=STATE_LAYOUTS[(number // 2 + width) % 2],
        use_silu=number % 2 == 0,
        has_bias=number % 4 > 0,
        spare_columns=number % 3 % 2,
        dead_tokens=number % 4,
    )
    arguments = case._replace(**sizes).inputs(device, seed=number)
    arguments["cache_indices"][3::11] = -1
    return arguments | {"kernel": kernel_of(device)}


@pytest.mark.parametrize("width", range(1, 9))
def test_many_starts_in_a_tile(device: torch.device, width: int) -> None:
    """Outputs and every element of the pool, the NaN of slots and columns of nobody included."""
    for number in range(10):
        arguments = call(number, width, device)
        out, pool = run_on_copy(arguments)
        wanted, wanted_pool, live = expected(arguments)
        assert mismatch(out[:, live], wanted[:, live], may_differ=0.003) is None, number  # sums of eight taps, few elements
        assert (out[:, ~live] == 0).all() and same_values(pool, wanted_pool), number
        for tokens in (64, 128, 512):
            again, pool_again = run_on_copy(arguments | {"block_m": tokens})
            assert same_values(again, out) and same_values(pool_again, pool), (number, tokens)


@pytest.mark.parametrize("width", range(1, 9))
def test_many_starts_in_place(device: torch.device, width: int) -> None:
    """Tokens that blocks share are overwritten by one of them: bits are those of a new tensor."""
    for number in range(1, 10, 2):
        arguments = call(number, width, device)
        wanted, wanted_pool = run_on_copy(arguments)
        live = expected(arguments)[2]
        for tokens in (64, 256):
            x, pool = arguments["x"].clone(), arguments["conv_states"].clone()
            serving.causal_conv1d_fn(**(arguments | {"x": x, "conv_states": pool, "block_m": tokens}), out=x)
            assert same_values(x[:, live], wanted[:, live]), (number, tokens)
            assert same_values(x[:, ~live], arguments["x"][:, ~live]) and same_values(pool, wanted_pool), (number, tokens)


@pytest.mark.parametrize("width", range(2, 9))
def test_boundaries_of_many_short_sequences(device: torch.device, width: int) -> None:
    """States at boundaries that the initial state reaches into, in the slot of the initial state, too."""
    lengths = [1, 2, 3, 9, 1, 70, 4, 4, 1, 17] * 4
    computed = [(7 * number) % 5 * (number % 4) for number in range(len(lengths))]
    for block, layout in ((1, "channel_first"), (2, "channel_last"), (3, "channel_first"), (16, "channel_first")):
        arguments = cached_call(device, computed, lengths, block, dim=35, width=width, layout=layout)
        check(arguments | {"kernel": kernel_of(device)})


def test_taps_before_a_sequence_without_a_state_are_left_out(device: torch.device) -> None:
    """An infinite weight times nothing is nothing, token by token."""
    for width, number in itertools.product((2, 3, 4, 5, 8), range(3)):
        arguments = call(number, width, device, dead_tokens=0)
        arguments["weight"][:, : width - 1] = torch.inf
        arguments["has_initial_state"][:] = False
        out, pool = run_on_copy(arguments)
        starts = arguments["query_start_loc"][:-1].long()
        lengths = arguments["query_start_loc"].diff()
        firsts = starts[(lengths > 0) & (arguments["cache_indices"] >= 0)]
        assert out[:, firsts].isfinite().all(), (width, number)
        assert same_values(pool, run_on_copy(arguments | {"weight": arguments["weight"].nan_to_num()})[1])


def test_indices_that_make_no_sense_lead_nowhere(device: torch.device) -> None:
    """Starts in no order, far outside, and slots of all numbers: nothing beside the outputs and the pool changes."""
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        arguments = call(number, 2 + number % 7, device)
        tokens, count = arguments["x"].shape[1], len(arguments["cache_indices"])
        starts = torch.randint(-20, tokens + 20, (count + 1,), generator=generator)
        starts[::5] = torch.tensor([-(2**31), 2**31 - 1])[torch.arange(len(starts[::5])) % 2]
        arguments["query_start_loc"] = (starts if number % 2 else starts.sort().values).to(device, torch.int32)
        arguments["cache_indices"] = torch.randint(-3, 2 * count, (count,), generator=generator).to(device, torch.int32)
        pool, memory = strided(
            arguments["conv_states"].shape, arguments["conv_states"].stride(), 64, arguments["conv_states"].dtype, device, 42.0
        )
        pool.copy_(arguments["conv_states"])
        x = arguments["x"]
        out, buffer = strided(x.shape, x.stride(), 64, x.dtype, device, 42.0)
        serving.causal_conv1d_fn(**(arguments | {"conv_states": pool, "out": out}))
        for values, around in ((pool, memory), (out, buffer)):
            values.zero_()
            assert around.eq(42).sum() == around.numel() - values.numel(), number
