"""Prefill of mostly short sequences, which `tile` and `words` make by a launch of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from serving.prefill_cases import STATE_LAYOUTS, Case, check, expected, kernel_names, run_on_copy, same_values
from support.tensors import mismatch
from hipconv import serving

TYPES = (torch.float16, torch.bfloat16, torch.float32)
# One token each; short ones of any length; those longer than a short one may be, next to each other and at both ends.
MIXES = (
    [1] * 130,
    [*range(17), 0, *[1] * 20, 2, 3],
    [17, *[1] * 20, 40, 0, 18, 17, *[2] * 15, 16, 150, *[1] * 30, 35],
)


def shifted(t: Tensor) -> Tensor:
    """A copy of a (dim, tokens) tensor in whose memory rows of channels begin one element later, two elements longer."""
    wide = torch.full((t.shape[1], t.shape[0] + 2), torch.nan, dtype=t.dtype, device=t.device)
    return wide[:, 1 : t.shape[0] + 1].T.copy_(t)


@pytest.mark.parametrize("width", range(2, 9))
def test_short_sequences(device: torch.device, width: int) -> None:
    """In new tensors and in place, with padding and tokens of nobody, in words and not, a slot's columns in rows and not."""
    words = "words" if "words" in kernel_names(device) else "auto"
    for number, (dim, state_layout) in enumerate(itertools.product((64, 34, 19), STATE_LAYOUTS)):
        mix, dtype = (number // 2 + width) % 3, TYPES[(number + width) % 3]
        case = Case(MIXES[mix], dim, width, dtype, dtype, state_layout=state_layout, dead_tokens=number % 3)
        case = case._replace(use_silu=number % 2 == 0, has_bias=number % 3 > 0, weight_dtype=(dtype, torch.float32)[mix % 2])
        arguments = case.inputs(device)
        arguments["cache_indices"][[3, -2]] = -1
        place = shifted if (number + width) % 4 == 0 else torch.clone
        arguments["x"] = place(arguments["x"])
        out, pool = check(arguments | {"kernel": words, "block_m": 64})
        x, pool_in_place = place(arguments["x"]), arguments["conv_states"].clone()
        serving.causal_conv1d_fn(**(arguments | {"x": x, "conv_states": pool_in_place, "block_m": 64}), out=x)
        live = expected(arguments)[2]
        assert same_values(x[:, live], out[:, live]) and same_values(x[:, ~live], arguments["x"][:, ~live]), (dim, mix)
        assert same_values(pool, pool_in_place), (dim, mix, state_layout)


def test_many_strips_and_kernels_give_the_same_bits(device: torch.device) -> None:
    if "words" in kernel_names(device):
        arguments = Case([*[1] * 9, 2, 20, 1, 1], 1032, 4, torch.bfloat16, torch.bfloat16).inputs(device)
        out, pool = check(arguments | {"kernel": "staged"})
        for kernel in ("words", "tile"):
            again, pool_again = run_on_copy(arguments | {"kernel": kernel, "block_m": 64})
            assert torch.equal(again, out) and same_values(pool_again, pool)


def test_split_and_infinite_weights(device: torch.device) -> None:
    """Where q, k or v begins in a word; taps before a sequence without a state count for nothing, even if infinite."""
    words = "words" if "words" in kernel_names(device) else "auto"
    for dtype in TYPES:
        arguments = Case([*[1] * 30, 5, 16, 17, 3, 40, 2], 70, 4, dtype, dtype).inputs(device) | {
            "kernel": words,
            "block_m": 64,
        }
        arguments["weight"][[5, 66], 1] = torch.inf
        wanted, wanted_pool, live = expected(arguments)
        out, pool = run_on_copy(arguments)
        finite = wanted.isfinite()
        assert torch.equal(finite[:, live], out.isfinite()[:, live]) and not finite[:, live].all()
        assert mismatch(out[finite & live], wanted[finite & live]) is None and same_values(pool, wanted_pool)
        arguments["weight"][[5, 66], 1] = 1
        wanted, _, live = expected(arguments)
        states = arguments.pop("conv_states").clone()
        parts = serving.causal_conv1d_split_qkv(**arguments, conv_states=states, k_dim=22, v_dim=26)
        assert mismatch(torch.cat(parts, 1).T[:, live], wanted[:, live]) is None


def test_rows_that_make_several_sequences_by_themselves(device: torch.device) -> None:
    """A row makes as many of many sequences as leave the last blocks like the others."""
    words = "words" if "words" in kernel_names(device) else "auto"
    arguments = Case([*[1] * 530, 2, 20, 3], 1023, 2, torch.float32, torch.float32).inputs(device)
    check(arguments | {"kernel": words})
