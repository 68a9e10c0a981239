"""AITER's fused decode step of a gated delta net, against its formula element by element in plain torch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from serving.decode_cases import make_state, make_weights
from support.marks import needs_gpu
from support.tensors import mismatch, same_bits
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import fused_reshape_causal_conv1d_update_single_token as fused

LAYOUTS = ("interleaved", "flat")
HEADS = {"one key head": (1, 2, 8, 8), "groups": (2, 6, 8, 4), "as many": (3, 3, 5, 7), "wide": (4, 8, 16, 16)}


def columns(layout: str, k_heads: int, v_heads: int, k_dim: int, v_dim: int) -> tuple[list[int], ...]:
    """Return where in a token's packed columns the channels of the convolution, z, b and a are, one by one."""
    group = v_heads // k_heads
    if layout == "flat":
        dim, z_dim = 2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim
        return [*range(dim)], [*range(dim, dim + z_dim)], [*range(v_heads)], [*range(v_heads, 2 * v_heads)]
    pitch = 2 * k_dim + 2 * group * v_dim
    q = [h * pitch + i for h in range(k_heads) for i in range(k_dim)]
    k = [h * pitch + k_dim + i for h in range(k_heads) for i in range(k_dim)]
    v = [h // group * pitch + 2 * k_dim + h % group * v_dim + i for h in range(v_heads) for i in range(v_dim)]
    z = [column + group * v_dim for column in v]
    b = [h // group * 2 * group + h % group for h in range(v_heads)]
    return [*q, *k, *v], z, b, [column + group for column in b]


class Call:
    """A call's tensors, and what it should leave."""

    def __init__(
        self, layout: str, heads: tuple[int, int, int, int], device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.layout, self.heads = layout, heads
        k_heads, v_heads, k_dim, v_dim = heads
        self.dim = 2 * k_heads * k_dim + v_heads * v_dim
        self.rows, tokens = 3, 5
        self.x = torch.randn(tokens, self.dim + v_heads * v_dim).to(device, dtype)
        self.ba = torch.randn(tokens, 2 * v_heads).to(device, dtype)
        self.z_out = torch.full((4, v_heads, v_dim), 42.0, dtype=dtype, device=device)
        self.core = torch.full_like(self.z_out, 43.0)
        self.state = make_state("N,S,D", 6, self.dim, 3, dtype, torch.device(device))
        self.weight, self.bias = make_weights(self.dim, 4, dtype, torch.device(device))
        self.options: dict[str, Any] = {"conv_state_indices": torch.tensor([4, 1, 2], dtype=torch.int32, device=device)}

    def tensors(self) -> list[Tensor]:
        return [self.x, self.ba, self.z_out, self.core, self.state, self.weight, self.bias]

    def __call__(self, **changes: Any) -> tuple[Tensor, Tensor, Tensor]:
        named = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
        arguments: dict[str, Any] = {
            "x": self.x,
            "num_actual_tokens": self.rows,
            **dict(zip(named, self.heads, strict=True)),
            "ba": self.ba,
            "z_out": self.z_out,
            "core_attn_out": self.core,
            "conv_state": self.state,
            "weight": self.weight,
            "bias": self.bias,
            "activation": "silu",
            "qkvz_layout": self.layout,
            **self.options,
        }
        return fused(**(arguments | changes))

    def check(self) -> None:
        channels, z, b, a = columns(self.layout, *self.heads)
        x, ba = self.x.cpu().flatten(1), self.ba.cpu().flatten(1)
        host: dict[str, Any] = {
            name: value.cpu() if isinstance(value, Tensor) else value for name, value in self.options.items()
        }
        expected = expected_update(x[: self.rows, channels], self.state.cpu(), self.weight.cpu(), self.bias.cpu(), True, **host)
        inputs = [self.x.clone(), self.ba.clone()]
        out, found_b, found_a = self()
        assert out.dtype == self.x.dtype and out.is_contiguous() and found_b.is_contiguous() and found_a.is_contiguous()
        assert (wrong := mismatch(out.cpu(), expected.out)) is None, wrong
        assert (out.cpu()[~expected.live] == 0).all(), "a padded row's output is not zero"
        assert same_bits(self.state.cpu(), expected.conv_state), "the pool differs"
        assert torch.equal(found_b.cpu(), ba[: self.rows, b]) and torch.equal(found_a.cpu(), ba[: self.rows, a])
        assert torch.equal(self.z_out.cpu().flatten(1)[: self.rows], x[: self.rows, z].to(self.z_out.dtype))
        assert not self.z_out[self.rows :].any() and not self.core.any()
        assert torch.equal(self.x, inputs[0]) and torch.equal(self.ba, inputs[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_every_element_comes_from_where_aiter_takes_it(
    device: torch.device, layout: str, heads: tuple[int, int, int, int]
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        Call(layout, heads, device, dtype).check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_no_rows_and_packed_shapes(layout: str) -> None:
    call = Call(layout, (2, 6, 8, 4))
    call.options["conv_state_indices"] = torch.tensor([4, -1, 2])
    call.check()
    call.options |= {"conv_state_indices": torch.tensor([4, 0, 2]), "pad_slot_id": 0}
    call.check()
    call.x, call.ba = call.x.unflatten(1, (2, -1)), call.ba.unflatten(1, (2, -1))  # as the projections have them
    call.check()
    call.z_out, call.core = (torch.full((4, 24), 1.0, dtype=torch.bfloat16) for _ in range(2))
    call.check()
    call.rows, call.options = 0, {}
    call.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_projections_and_block_tables(layout: str) -> None:
    """x and ba are slices of one projection's output; the slots to read and to write are in different columns of a table."""
    call = Call(layout, (2, 4, 8, 8))
    wide = torch.randn(5, call.x.shape[1] + call.ba.shape[1] + 3)
    call.x, call.ba = wide[:, : call.x.shape[1]], wide[:, -call.ba.shape[1] :]
    call.options = {
        "conv_state_indices": torch.tensor([[0, 3], [1, 4], [2, 5]]),
        "initial_state_idx": torch.tensor([0, 1, 0]),
        "block_idx_last_scheduled_token": torch.tensor([1, 1, 0]),
    }
    call.check()


REFUSALS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "heads": (ValueError, "num_v_heads", {"num_v_heads": 5}),
    "no heads": (ValueError, "num_k_heads", {"num_k_heads": 0}),
    "layout": (ValueError, "qkvz_layout", {"qkvz_layout": "packed"}),
    "x": (ValueError, "x", {"x": torch.zeros(5, 7)}),
    "ba": (ValueError, "ba", {"ba": torch.zeros(5, 7)}),
    "z_out": (ValueError, "z_out", {"z_out": torch.zeros(4, 7)}),
    "z_out's strides": (ValueError, "z_out", {"z_out": torch.zeros(6, 4, 4).mT[:, :4].mT.transpose(0, 1)}),
    "core_attn_out": (ValueError, "core_attn_out", {"core_attn_out": torch.zeros(3, 6, 4)}),
    "too many tokens": (ValueError, "num_actual_tokens", {"num_actual_tokens": 5}),
    "drafts": (ValueError, "num_accepted_tokens", {"num_accepted_tokens": torch.ones(3, dtype=torch.int32)}),
    "packed": (ValueError, "query_start_loc", {"query_start_loc": torch.arange(4)}),
    "activation": (ValueError, "activation", {"activation": "relu"}),
    "weight": (ValueError, "weight", {"weight": torch.zeros(7, 4)}),
    "state": (ValueError, "conv_state", {"conv_state": torch.zeros(6, 56, 2)}),
    "slots": (ValueError, "conv_state_indices", {"conv_state_indices": torch.zeros(2, dtype=torch.int32)}),
    "a slot outside": (
        ValueError,
        "conv_state_indices",
        {"conv_state_indices": torch.tensor([0, 1, 99]), "validate_data": True},
    ),
    "no tensor": (TypeError, "ba", {"ba": [1.0]}),
    "no count": (TypeError, "num_actual_tokens", {"num_actual_tokens": "3"}),
    "no flag": (TypeError, "validate_data", {"validate_data": "yes"}),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_does_not_fit_is_refused_by_name_and_writes_nothing(kind: str) -> None:
    error, name, changes = REFUSALS[kind]
    call = Call("interleaved", (2, 6, 8, 4))
    before = [tensor.clone() for tensor in call.tensors()]
    with pytest.raises(error, match=rf"^{name}\b.*got"):
        call(**changes)
    assert all(torch.equal(one, other) for one, other in zip(before, call.tensors(), strict=True))


@pytest.mark.parametrize("name", ["x", "ba", "conv_state", "core_attn_out"])
def test_memory_that_is_written_is_its_own(name: str) -> None:
    call = Call("flat", (1, 1, 8, 8))
    memory = torch.zeros(6 * 24 * 3)
    views = {"x": memory.view(-1)[: 5 * 32].view(5, 32), "ba": memory[:10].view(5, 2), "conv_state": memory.view(6, 3, 24).mT,
             "core_attn_out": memory[16:48].view(4, 1, 8)}  # fmt: skip
    with pytest.raises(ValueError, match=r"(z_out|core_attn_out): got memory of"):
        call(**{"z_out": memory[: 4 * 8].view(4, 1, 8), name: views[name]})
    assert not memory.any()


def test_against_three_parts_that_callers_take(device: torch.device) -> None:
    """vLLM's next kernel reads q, k and v as slices of out: they are in this order, each of all its heads."""
    call = Call("interleaved", (2, 4, 8, 8), device)
    call.weight.zero_()[:, -1] = 1
    out, _, _ = call(activation=None, bias=None)
    q, k, v = out.split([16, 16, 32], 1)
    by_head = call.x[:3].view(3, 2, -1)
    assert torch.equal(q.view(3, 2, 8), by_head[..., :8]) and torch.equal(k.view(3, 2, 8), by_head[..., 8:16])
    assert torch.equal(v.view(3, 2, 16), by_head[..., 16:32])


def test_compiles_into_one_graph() -> None:
    call, again = Call("interleaved", (2, 4, 8, 8)), Call("interleaved", (2, 4, 8, 8))
    for mine, theirs in zip(again.tensors(), call.tensors(), strict=True):
        mine.copy_(theirs)
    expected = call()
    found = torch.compile(again.__call__, fullgraph=True, backend="aot_eager")()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(call.state, again.state) and torch.equal(call.z_out, again.z_out) and not again.core.any()


@needs_gpu
def test_a_captured_graph_serves_other_tokens() -> None:
    draw = random.Random(0)
    for layout in LAYOUTS:
        call = Call(layout, (2, 4, 16, 16), "cuda", torch.bfloat16)
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, b, a = call()
        call.x.copy_(torch.randn_like(call.x))
        call.options["conv_state_indices"].copy_(torch.tensor(draw.sample(range(6), 3)))
        state = call.state.clone()
        graph.replay()
        call.state.copy_(state)
        expected = call()
        graph.replay()
        call.state.copy_(state)
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip((out, b, a), expected, strict=True))
