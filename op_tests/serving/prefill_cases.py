"""Calls of prefill that several tests make, and the check of one against the reference."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, zeros

from support.tensors import empty_as, mismatch
from hipconv import jit, reference, serving, targets

STATE_LAYOUTS = ("dim_first", "dim_last")  # (slots, dim, state_len) in memory, or (slots, state_len, dim)
CPU = torch.device("cpu")


class Case(NamedTuple):
    """One call: the sequences' lengths, sizes, types, layouts."""

    lengths: list[int]
    dim: int
    width: int = 4
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    use_silu: bool = True
    has_bias: bool = True
    layout: str = "channel_last"
    state_layout: str = "dim_last"
    spare_columns: int = 0  # of a slot, after the window
    dead_tokens: int = 0  # after the last sequence

    def inputs(self, device: torch.device, seed: int = 0) -> dict[str, Any]:
        """Arguments by name. Slots are given out at random; those of nobody, and spare columns, hold NaN;
        so do a few tokens.
        """
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        count, tokens = len(self.lengths), sum(self.lengths) + self.dead_tokens
        x = empty_as(self.layout, (1, self.dim, tokens), self.dtype, device)[0]
        x.copy_(normal(self.dim, tokens))
        x[:, sum(self.lengths) :] = torch.nan
        slots, columns = count + 3, self.width - 1 + self.spare_columns
        if self.state_layout == "dim_first":
            pool = torch.full((slots, self.dim, columns), torch.nan, dtype=self.state_dtype, device=device)
        else:
            pool = torch.full((slots, columns, self.dim), torch.nan, dtype=self.state_dtype, device=device).transpose(1, 2)
        mine = torch.randperm(slots, generator=generator)[:count]
        flags = torch.rand(count, generator=generator) < 0.6
        pool[mine[flags].to(device), :, : self.width - 1] = normal(int(flags.sum()), self.dim, self.width - 1).to(
            device, self.state_dtype
        )
        return {
            "x": x,
            "weight": (normal(self.dim, self.width) / self.width**0.5).to(device, self.weight_dtype),
            "bias": normal(self.dim).to(device, self.weight_dtype) if self.has_bias else None,
            "conv_states": pool,
            "query_start_loc": torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=device),
            "cache_indices": mine.to(device, torch.int32),
            "has_initial_state": flags.to(device),
            "activation": "silu" if self.use_silu else None,
        }


def expected(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The reference's outputs, pool and live tokens for arguments of `causal_conv1d_fn`."""
    changed = {name: value for name, value in arguments.items() if name not in _NOT_SEMANTIC}
    changed["use_silu"] = bool(changed.pop("activation", "silu"))
    return reference.causal_conv1d_varlen(**changed)


_NOT_SEMANTIC = ("kernel", "block_m", "block_n", "num_warps", "metadata", "seq_lens_cpu", "validate_data")


def same_values(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN included."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def run_on_copy(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output of a call, and a copy of the pool as the call leaves it."""
    pool = arguments["conv_states"].clone()
    return serving.causal_conv1d_fn(**(arguments | {"conv_states": pool})), pool


def check(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Run a call on a copy of the pool; compare outputs, dead tokens, every element of the pool, and that x is what it was."""
    x = arguments["x"].clone()
    out, pool = run_on_copy(arguments)
    wanted, wanted_pool, live = expected(arguments)
    wrong = mismatch(out[:, live], wanted[:, live])
    assert wrong is None, wrong
    assert (out[:, ~live] == 0).all(), "dead tokens of a new tensor are zero"
    assert same_values(pool, wanted_pool)
    assert same_values(x, arguments["x"])
    return out, pool


def kernel_names(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_varlen", targets.of(device)).causal_conv1d_varlen_kernels()


def padded_call(device: torch.device) -> dict[str, Any]:
    """Sequences 1 and 3 are padding, and five tokens belong to no sequence."""
    arguments = Case([6, 3, 1, 4, 12], 16, 4, torch.bfloat16, torch.bfloat16, dead_tokens=3).inputs(device)
    arguments["x"].copy_(torch.randn(arguments["x"].shape, generator=torch.Generator().manual_seed(1)))
    arguments["query_start_loc"] += 2  # of the three, two come first now
    arguments["cache_indices"][1] = arguments["cache_indices"][3] = -1
    return arguments


def in_place_kernels(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_varlen", targets.of(device)).causal_conv1d_varlen_in_place_kernels()


def cached_call(
    device: torch.device, computed: list[int], lengths: list[int], block: int, dim: int = 16, **sizes: Any
) -> dict[str, Any]:
    """Chunks that continue after `computed` tokens, as vLLM schedules them: one block of the table for each `block` tokens."""
    arguments = Case(lengths, dim, **sizes).inputs(device)
    count = len(lengths)
    width = arguments["weight"].shape[1]
    columns = max(-(-(c + n) // block) for c, n in zip(computed, lengths, strict=True)) + 1
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(count * columns, generator=generator).reshape(count, columns).to(device) + 1
    pool = torch.full((count * columns + 2, dim, width - 1), torch.nan, device=device)
    ends = torch.tensor([c + n for c, n in zip(computed, lengths, strict=True)], device=device)
    before = torch.tensor(computed, device=device)
    initial = (-(-before // block) - 1).clamp(min=0)
    pool[table[torch.arange(count), initial]] = torch.randn(count, dim, width - 1, generator=generator).to(device)
    return arguments | {
        "conv_states": pool,
        "cache_indices": table,
        "has_initial_state": before > 0,
        "block_idx_first_scheduled_token": before // block,
        "block_idx_last_scheduled_token": (-(-ends // block) - 1).clamp(min=0),
        "initial_state_idx": initial,
        "num_computed_tokens": before,
        "block_size_to_align": block,
        "null_block_id": 0,
    }


def good_call(device: torch.device) -> dict[str, Any]:
    with device:
        return {
            "x": zeros(6, 10),
            "weight": zeros(6, 4),
            "bias": zeros(6),
            "conv_states": zeros(5, 6, 3) + 42,
            "query_start_loc": torch.tensor([0, 4, 10]),
            "cache_indices": torch.tensor([1, 2]),
            "has_initial_state": torch.tensor([True, False]),
            "out": zeros(6, 10) + 42,
        }
