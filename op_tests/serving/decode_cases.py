"""Calls of decode that several tests make, and the check of one against the reference: outputs, pool,
and that nothing else is written.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import Tensor

from support.tensors import DTYPES, mismatch, same_bits
from hipconv import jit, targets
from hipconv.reference_update import Update
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_update


def kernels(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_update", targets.of(device)).causal_conv1d_update_kernels()


LAYOUTS = ("N,D,S", "N,S,D", "padded")


def make_state(layout: str, slots: int, dim: int, state_len: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A pool of normal values; "padded": (slots, dim, state_len) at an odd offset, with gaps of NaN between all elements."""
    values = torch.randn(slots, dim, state_len)
    if layout == "N,S,D":
        return values.mT.contiguous().to(device, dtype).mT
    if layout == "N,D,S":
        return values.to(device, dtype)
    state = torch.full((slots, dim + 1, 2 * state_len + 3), torch.nan, dtype=dtype, device=device)[
        :, 1:, 1 : 2 * state_len + 1 : 2
    ]
    return state.copy_(values)


def make_weights(dim: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return (torch.randn(dim, width) / width**0.5).to(device, dtype), torch.randn(dim).to(device, dtype)


def check(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = True, *, kernel="auto", **options
) -> Update:
    """One call, out of place, against the reference: outputs, padding, pool, windows and parents;
    and nothing else is written.
    """
    on_host: dict[str, Any] = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in options.items()}
    parent = on_host.pop("retrieve_parent_token", None)
    for name in ("max_query_len", "validate_data"):
        on_host.pop(name, None)
    expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), None if bias is None else bias.cpu(), silu, **on_host)
    inputs: dict[str, Any] = {"x": x, "weight": weight}
    inputs |= {name: value for name, value in options.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in inputs.items()}
    out = causal_conv1d_update(x, state, weight, bias, silu, kernel=kernel, **options)
    wrong = mismatch(out.cpu(), expected.out)
    assert wrong is None, wrong
    assert (out.cpu()[~expected.live] == 0).all(), "a padded row's output is not zero"
    assert same_bits(state.cpu(), expected.conv_state), "the pool differs"
    if expected.intermediate_conv_window is not None:
        assert same_bits(options["intermediate_conv_window"].cpu(), expected.intermediate_conv_window), "the windows differ"
        before.pop("intermediate_conv_window")
    if parent is not None and expected.retrieve_parent_token is not None:
        rows = expected.live.flatten(1).any(1)
        assert torch.equal(options["retrieve_parent_token"].cpu().long()[rows], expected.retrieve_parent_token[rows])
        assert torch.equal(options["retrieve_parent_token"].cpu()[~rows], parent[~rows])
        before.pop("retrieve_parent_token")
    for name, value in before.items():
        assert same_bits(inputs[name], value), f"{name} was written"
    return expected


def random_call(draw: random.Random, device: torch.device) -> tuple[tuple, dict]:
    """Arguments of a call that combines features, shapes, strides and types at random."""
    torch.manual_seed(draw.randrange(2**31))
    dim = draw.choice([1, 3, 8, 33, 40, 64, 100, 132, 260, 516])
    width = draw.choice([1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9])
    dtype = draw.choice(list(DTYPES.values()))
    state_dtype = draw.choice([dtype, dtype, torch.float32, *DTYPES.values()])
    weight_dtype = draw.choice([dtype, *DTYPES.values()])
    form = draw.choice(["one", "one", "tokens", "tokens-inside", "packed", "strided"])
    mode = draw.choice(["plain", "plain", "speculative", "circular", "tree"])
    batch = draw.choice([1, 2, 5])
    seqlen = 1 if form == "one" else draw.choice([1, 2, 3, 4, 7])
    options: dict[str, Any] = {}

    if form == "packed" and mode != "tree":
        lengths = [draw.choice([0, 1, 1, 2, seqlen]) for _ in range(batch)]
        seqlen = max(lengths)
        starts = torch.tensor([sum(lengths[:b]) for b in range(batch + 1)])
        x = torch.randn(int(starts[-1]) + draw.choice([0, 3]), dim)
        options["query_start_loc"] = starts.to(draw.choice([torch.int32, torch.int64]))
        options["max_query_len"] = draw.choice([-1, max(seqlen, 1), 8])
    elif form == "one":
        x = torch.randn(batch, dim) if mode != "tree" else torch.randn(batch, dim, 1)
    else:
        x = torch.randn(batch, dim, seqlen)
    x = x.to(device, dtype)
    if form == "tokens":
        x = x.mT.contiguous().mT
    elif form == "strided":
        x = (
            torch.stack([x, torch.full_like(x, torch.nan)], 1).transpose(0, 1)[0]
            if draw.random() < 0.5
            else x.flip(0).contiguous()
        )

    slots = batch + draw.choice([0, 3])
    spare = draw.choice([0, 0, 1, 4])
    state_len = width - 1 + spare
    if mode == "speculative":
        seqlen = max(seqlen, options.get("max_query_len", 1))
        state_len = max(width - 2 + max(seqlen, 1) + spare, width - 1)
        options["num_accepted_tokens"] = torch.randint(1, state_len - width + 3, (batch,))
    elif mode == "circular":
        state_len += state_len == 0
        options["cache_seqlens"] = torch.randint(0, 50, (batch,))
    elif mode == "tree":
        child, sibling = random_tree(draw, batch, x.shape[2])
        options |= {"retrieve_next_token": child, "retrieve_next_sibling": sibling}
        if draw.random() < 0.5:
            options["retrieve_parent_token"] = torch.full(child.shape, 77, dtype=torch.int32)

    addressing = draw.choice(["none", "one", "one", "column", "blocks", "fork"])
    if addressing != "none":
        table = torch.randperm(2 * batch)[: 2 * batch].view(batch, 2)
        if addressing in ("one", "column"):
            table = torch.randperm(slots)[:batch, None].expand(batch, 2).clone()
        else:
            slots = 2 * batch + draw.choice([0, 1])
        table[torch.rand(batch) < 0.3] = draw.choice([-1, -1, 99])  # padding, and a slot outside the pool
        table = table.to(draw.choice([torch.int32, torch.int64, torch.int16]))
        options["conv_state_indices"] = table[:, 0] if addressing == "column" else table[:, 0].contiguous()
        if addressing == "blocks" and mode != "circular":
            options["conv_state_indices"] = table
            options["initial_state_idx"] = torch.randint(0, 2, (batch,), dtype=torch.int32)
            options["block_idx_last_scheduled_token"] = torch.randint(0, 2, (batch,))
        if addressing == "fork" and mode != "circular":
            options["conv_state_indices_in"] = table[:, 1]
    state = make_state(draw.choice(LAYOUTS), slots, dim, state_len, state_dtype, device)

    if draw.random() < 0.3:
        longest = max(seqlen, 1) if x.dim() == 2 else x.shape[2]
        rows, steps = batch + 1, longest + draw.choice([0, 1])
        windows = make_state(draw.choice(LAYOUTS), rows * steps, dim, max(width - 1, 1), state_dtype, device)[..., : width - 1]
        options["intermediate_conv_window"] = windows.unflatten(0, (rows, steps))
        if draw.random() < 0.7:
            options["intermediate_state_indices"] = torch.randperm(rows)[:batch] - draw.choice([0, 0, 1])
    weight, bias = make_weights(dim, width, weight_dtype, device)
    if draw.random() < 0.2:
        weight = weight.T.contiguous().T
    options = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in options.items()}
    return (x, state, weight, draw.choice([bias, None]), draw.random() < 0.5), options


def random_tree(draw: random.Random, batch: int, tokens: int, parents: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Links of random trees, in which a parent comes before its children; the last tokens may be of none.

    Puts the parent of each token of the only row into `parents`, if that is given.
    """
    child, sibling = torch.full((batch, tokens), -1), torch.full((batch, tokens), -1)
    for b in range(batch):
        children: dict[int, list[int]] = {}
        chosen = [0] * tokens
        for t in range(1, draw.randint(1, tokens)):
            chosen[t] = draw.randrange(t)
            children.setdefault(chosen[t], []).append(t)
        if parents is not None:
            parents[:] = chosen
        for parent, found in children.items():
            for before, after in itertools.pairwise([parent, *found]):
                (child if before == parent else sibling)[b, before] = after
    return child, sibling
