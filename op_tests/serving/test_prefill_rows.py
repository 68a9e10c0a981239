"""Prefill of an x along tokens by rows of lanes: spans of 128 or 256 tokens, of rows that begin anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from serving.prefill_cases import STATE_LAYOUTS, Case, expected, kernel_names, run_on_copy, same_values
from support.tensors import DTYPES, strided
from hipconv import serving

# Sequences begin at each of the last tokens of a span, whatever boundary its rows have; more of them are empty than a block
# looks up at once; whole spans have no start, or nothing else.
MIXES = (
    [700],
    [1] * 290,
    [*[127] * 9, 121, 2, 3, 1, 255, 7, 249, 5, 4],
    [*[0] * 90, 250, *[0] * 300, 3, 1, 0, 2, *[0] * 270, 9, 200, 0],
    [3, 40, 8, 17, 6, 70, 1, 1, 33, 5] * 3,
)


def call(number: int, width: int, device: torch.device, packed: bool = False) -> tuple[dict[str, Any], Tensor, int]:
    """Arguments of integers, and the buffer of NaN that x lies in, from which element on. `packed`: states of 16 bits whose
    columns of two channels, or two channels' columns, are words.
    """
    dtype, dim = list(DTYPES.values())[(number + width) % 3], (1, 33, 16, 3, 66)[(number + width) % 5]
    if packed:
        dtype, dim = (torch.bfloat16, torch.float16)[number % 2], (66, 16, 34)[(number + width) % 3]
    case = Case(MIXES[number], dim, width, dtype, dtype, dtype, use_silu=False, layout="channel_first")
    case = case._replace(
        state_layout=STATE_LAYOUTS[(number + width) % 2],
        has_bias=number % 2 > 0,
        spare_columns=0 if packed else width % 3,
        dead_tokens=number,
    )
    arguments = case.inputs(device, seed=number)
    generator = torch.Generator().manual_seed(width)
    for name in ("x", "weight", "bias", "conv_states"):
        if arguments[name] is not None:
            values = torch.randint(-3, 4, arguments[name].shape, generator=generator).to(device, arguments[name].dtype)
            arguments[name] = torch.where(arguments[name].isnan(), arguments[name], values)
    arguments["x"].nan_to_num_(2.0)
    arguments["cache_indices"][len(MIXES[number]) // 2 or 1 :][:1] = -1
    offset, beyond = (0, 1, 5, 8, 2)[(number + width) % 5], (0, 3, 1, 8)[(number + 2 * width) % 4]
    x, buffer = strided(arguments["x"].shape, (arguments["x"].shape[1] + beyond, 1), offset, dtype, device, torch.nan)
    arguments["x"] = x.copy_(arguments["x"])
    forced = {"block_m": 128 << (number + width) % 4, "block_n": (0, 8, 16, 32)[number % 4]}  # stretches of 1 to 8 spans
    return arguments | forced | {"kernel": "staged" if "staged" in kernel_names(device) else "auto"}, buffer, offset


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_spans(device: torch.device, width: int) -> None:
    """Every output is exact, in a new tensor, beside x's boundaries, in place, along channels, and split; so is the pool."""
    for number in range(len(MIXES)):
        arguments, buffer, offset = call(number, width, device)
        x, k_dim = arguments["x"], arguments["x"].shape[0] // 3
        wanted, wanted_pool, live = expected(arguments)
        wanted[:, ~live] = 0
        out, pool = run_on_copy(arguments)
        assert torch.equal(out.double(), wanted) and same_values(pool, wanted_pool), number

        for strides, begin in ((x.stride(), offset + 3), ((1, x.shape[0] + width % 2), 1)):
            placed, around = strided(x.shape, strides, begin, x.dtype, device, 42.0)
            run_on_copy(arguments | {"out": placed})
            assert torch.equal(placed[:, live].double(), wanted[:, live]) and (placed[:, ~live] == 42).all(), (number, strides)
            placed.fill_(42.0)
            assert (around == 42).all(), "nothing beside the output changes"
        if k_dim:
            pool = arguments["conv_states"].clone()
            named = {name: value for name, value in arguments.items() if name != "kernel"} | {"conv_states": pool}
            parts = serving.causal_conv1d_split_qkv(**named, k_dim=k_dim, v_dim=x.shape[0] - 2 * k_dim)
            assert torch.equal(torch.cat(parts, dim=1).T.double(), wanted) and same_values(pool, wanted_pool), number

        dead, before = x[:, ~live].clone(), buffer.clone()
        pool = arguments["conv_states"].clone()
        serving.causal_conv1d_fn(**(arguments | {"conv_states": pool}), out=x)
        assert torch.equal(x[:, live].double(), wanted[:, live]) and same_values(x[:, ~live], dead), number
        assert same_values(pool, wanted_pool), number
        x.fill_(torch.nan)
        before.as_strided(x.shape, x.stride(), offset).fill_(torch.nan)
        assert same_values(buffer, before), "nothing beside x changes"


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 7, 8])
def test_states_in_words(device: torch.device, width: int) -> None:
    """Starts that move states in words, of two channels a lane, are exact, in a new tensor, split, and in place."""
    for number in range(len(MIXES)):
        arguments, _, _ = call(number, width, device, packed=True)
        x, k_dim = arguments["x"], arguments["x"].shape[0] // 3
        wanted, wanted_pool, live = expected(arguments)
        wanted[:, ~live] = 0
        out, pool = run_on_copy(arguments)
        assert torch.equal(out.double(), wanted) and same_values(pool, wanted_pool), number
        pool = arguments["conv_states"].clone()
        named = {name: value for name, value in arguments.items() if name != "kernel"} | {"conv_states": pool}
        parts = serving.causal_conv1d_split_qkv(**named, k_dim=k_dim, v_dim=x.shape[0] - 2 * k_dim)
        assert torch.equal(torch.cat(parts, dim=1).T.double(), wanted) and same_values(pool, wanted_pool), number
        pool = arguments["conv_states"].clone()
        serving.causal_conv1d_fn(**(arguments | {"conv_states": pool}), out=x)
        assert torch.equal(x[:, live].double(), wanted[:, live]) and same_values(pool, wanted_pool), number


@pytest.mark.parametrize("swapped", [False, True], ids=["in any order", "swapped here and there"])
def test_starts_that_make_no_sense(device: torch.device, swapped: bool) -> None:
    """Starts that do not ascend lead nowhere: what is beside the outputs stays as it is, and so do slots of no sequence."""
    for number, seed in ((1, 0), (3, 1), (3, 2), (4, 3)):
        arguments, _, offset = call(number, 5, device)
        x, starts, pool = arguments["x"], arguments["query_start_loc"], arguments["conv_states"]
        generator = torch.Generator().manual_seed(seed)
        if swapped:
            order = torch.arange(len(starts)) + torch.randint(-40, 41, starts.shape, generator=generator)
            starts = starts[order.argsort().to(device)]
        else:
            starts = torch.randint(-300, x.shape[1] + 300, starts.shape, generator=generator).to(starts)
        placed, around = strided(x.shape, x.stride(), offset + 3, x.dtype, device, 42.0)
        _, after = run_on_copy(arguments | {"query_start_loc": starts, "out": placed})
        placed.fill_(42.0)
        assert (around == 42).all(), "nothing beside the output changes"
        unused = torch.ones(len(pool), dtype=torch.bool, device=device)
        slots = arguments["cache_indices"].long()
        unused[slots[(slots >= 0) & (slots < len(pool))]] = False
        assert unused.any() and same_values(after[unused], pool[unused])
