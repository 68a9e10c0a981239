"""Decode as torch's operator: schema, compiled graphs, fake tensors; captured graphs on a GPU."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from serving.decode_cases import make_state, make_weights, random_call
from support.marks import needs_gpu
from support.tensors import mismatch, same_bits
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_update, causal_conv1d_update_split_qkv

# ---- torch -------------------------------------------------------------------------------------------------------------------


def test_opcheck(device: torch.device) -> None:
    weight, bias = make_weights(6, 4, torch.float32, device)
    state = make_state("N,D,S", 3, 6, 3, torch.float32, device)
    x, out = torch.randn(2, 6, 2, device=device), torch.zeros(2, 6, 2, device=device)
    op = torch.ops.hipconv.causal_conv1d_update.default
    torch.library.opcheck(op, (out, x, state, weight, bias, True), {"conv_state_indices": torch.tensor([0, 2], device=device)})
    torch.library.opcheck(op, (out, None, state, weight, None, False))
    child = torch.tensor([[1, -1], [-1, -1]], device=device)
    tree = {
        "retrieve_next_token": child,
        "retrieve_next_sibling": torch.full_like(child, -1),
        "retrieve_parent_token": child.clone(),
    }
    torch.library.opcheck(
        op, (out, x, state, weight, bias, True), {"intermediate_conv_window": torch.zeros(2, 2, 6, 3, device=device), **tree}
    )
    q, k, v = (torch.zeros(4, 2, device=device) for _ in range(3))
    torch.library.opcheck(torch.ops.hipconv.causal_conv1d_update_split_qkv.default, (q, k, v, x, state, weight, bias, True))


def test_what_is_written_is_marked_and_nothing_else() -> None:
    """A schema elsewhere declares conv_state unwritten: torch.compile may then reorder or drop the update."""
    for op, written in {
        torch.ops.hipconv.causal_conv1d_update.default: {
            "out",
            "conv_state",
            "intermediate_conv_window",
            "retrieve_parent_token",
        },
        torch.ops.hipconv.causal_conv1d_update_split_qkv.default: {
            "q",
            "k",
            "v",
            "conv_state",
            "intermediate_conv_window",
            "retrieve_parent_token",
        },
    }.items():
        marked = {argument.name for argument in op._schema.arguments if argument.alias_info and argument.alias_info.is_write}
        assert marked == written


@pytest.mark.parametrize("in_place", [False, True])
def test_compiles_into_one_graph(device: torch.device, in_place: bool) -> None:
    weight, bias = make_weights(6, 4, torch.float32, device)

    def step(x: Tensor, state: Tensor, indices: Tensor) -> Tensor:
        x = x * 2
        out = causal_conv1d_update(x, state, weight, bias, "silu", indices, out=x if in_place else None)
        q, _, _ = causal_conv1d_update_split_qkv(out, state, weight, 2, 2, bias, conv_state_indices=indices)
        return q + state.sum()

    x, indices = torch.randn(2, 6, device=device), torch.tensor([2, 0], device=device)
    state = make_state("N,D,S", 3, 6, 3, torch.float32, device)
    other = state.clone()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, state, indices), step(x, other, indices)) and torch.equal(state, other)


def test_fake_tensors_need_no_kernel() -> None:
    x = torch.empty(2, 6, device="meta")
    assert causal_conv1d_update(x, torch.empty(2, 6, 3, device="meta"), torch.empty(6, 4, device="meta")).shape == (2, 6)


# ---- GPU only ----------------------------------------------------------------------------------------------------------------


@needs_gpu
def test_a_captured_graph_serves_other_rows_lengths_and_slots() -> None:
    cuda = torch.device("cuda")
    weight, bias = make_weights(512, 4, torch.bfloat16, cuda)
    for layout, speculative in itertools.product(("N,D,S", "N,S,D"), (False, True)):
        state = make_state(layout, 20, 512, 6, torch.bfloat16, cuda)
        x, out = (
            torch.zeros(24, 512, dtype=torch.bfloat16, device=cuda),
            torch.zeros(24, 512, dtype=torch.bfloat16, device=cuda),
        )
        slots, starts = torch.full((8,), -1, device=cuda), torch.zeros(9, dtype=torch.int32, device=cuda)
        options: dict[str, Any] = {"query_start_loc": starts, "conv_state_indices": slots}
        if speculative:
            options["num_accepted_tokens"] = torch.ones(8, dtype=torch.int32, device=cuda)
        causal_conv1d_update(x, state, weight, bias, True, out=out, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with pytest.raises(ValueError, match="validate_data: got True while the current stream captures a graph"):
                causal_conv1d_update(x, state, weight, bias, True, out=out, validate_data=True, **options)
            causal_conv1d_update(x, state, weight, bias, True, out=out, **options)
        for seed in range(4):
            torch.manual_seed(seed)
            x.copy_(torch.randn(24, 512))
            slots.copy_(torch.randperm(20)[:8])
            slots[seed] = -1
            starts.copy_(torch.cat([torch.zeros(1), torch.randint(0, 4, (8,)).cumsum(0)]))
            if speculative:
                options["num_accepted_tokens"].copy_(torch.randint(1, 4, (8,)))
            host = {name: value.cpu() for name, value in options.items()}
            expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, **host)
            out.fill_(42.0)
            graph.replay()
            assert mismatch(out.cpu()[expected.live], expected.out[expected.live]) is None
            assert (out.cpu()[~expected.live] == 42.0).all() and same_bits(state.cpu(), expected.conv_state)


@needs_gpu
def test_nothing_waits_for_the_device() -> None:
    cuda = torch.device("cuda")
    arguments = [random_call(random.Random(seed), cuda) for seed in range(40)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for (x, state, weight, bias, silu), options in arguments:
            causal_conv1d_update(x, state, weight, bias, silu, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
