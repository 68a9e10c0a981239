"""The training functions of the causal conv1d as torch calls them: the forward with states and ids, bad input, autograd,
compilation.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from conv1d.backward_cases import Case, Inputs, grid, wrong_gradients
from support.backends import WAYS, environment
from support.observe import LookOn
from support.tensors import LAYOUTS, mismatch
import hipconv
from hipconv import reference_training

fn: Any = hipconv.causal_conv1d_fn
convolve: Any = hipconv.causal_conv1d


# ---- the forward with states and ids -----------------------------------------------------------------------------------------


def test_forward_matches_the_reference(device: torch.device) -> None:
    for case in grid():
        x, weight, bias, _, ids, initial, _, silu = case.inputs(device)
        expected, expected_final = reference_training.causal_conv1d(x, weight, bias, ids, initial, silu)
        out, final = fn(x, weight, bias, ids, initial, True, activation="silu" if silu else None)
        assert (wrong := mismatch(out, expected)) is None, f"{case}: {wrong}"
        assert torch.equal(final, expected_final)
        assert out.stride() == torch.empty_like(x).stride()
        padding = torch.zeros_like(x, dtype=torch.bool) if ids is None else (ids < 0)[:, None].expand_as(x)
        assert (out[padding] == 0).all()


def test_chunks_joined_by_their_states_are_the_whole(device: torch.device) -> None:
    x, weight, bias, *_ = Case(2, 8, 50, 4, torch.bfloat16).inputs(device)
    ids = torch.arange(50, dtype=torch.int32, device=device).div(7, rounding_mode="floor").expand(2, -1)
    sequences: list[Any] = [None, ids]
    for seq_idx in sequences:
        whole, final = fn(x, weight, bias, seq_idx, None, True, activation="silu")
        state: Any = None
        outs = []
        for begin, end in itertools.pairwise([0, 1, 2, 10, 11, 49, 50]):
            of_chunk = None if seq_idx is None else seq_idx[:, begin:end]
            if state is not None and of_chunk is not None:  # a state belongs to the sequence of the chunk's first token
                state = state * (seq_idx[:, begin] == seq_idx[:, begin - 1])[:, None, None]
            out, state = fn(x[..., begin:end], weight, bias, of_chunk, state, True, activation="silu")
            outs.append(out)
        assert (torch.cat(outs, 2).float() - whole.float()).abs().max() <= 0.02
        assert torch.equal(state, final)


def test_final_states_may_take_the_place_of_initial_ones(device: torch.device) -> None:
    for seqlen in (1, 2, 3, 90):
        x, weight, bias, *_, initial, _, _ = Case(2, 5, seqlen, 4, has_initial=True).inputs(device)
        expected = fn(x, weight, bias, None, initial.clone(), True)
        pool = initial.clone()
        out, final = fn(x, weight, bias, None, pool, True, pool)
        assert final is pool and torch.equal(out, expected[0]) and torch.equal(pool, expected[1])
        pool = initial.clone()
        torch.ops.hipconv.causal_conv1d_states_fwd(out, pool, x, weight, bias, None, pool)
        assert torch.equal(out, expected[0]) and torch.equal(pool, expected[1])


# ---- bad input ---------------------------------------------------------------------------------------------------------------

_X = (2, 6, 10)
BAD_CALLS: dict[str, Any] = {
    "dout of another shape": (lambda: {"dout": torch.zeros(2, 6, 9)}, ValueError, ["dout:", "(2, 6, 9)", "(2, 6, 10)"]),
    "dout of another dtype": (
        lambda: {"dout": torch.zeros(*_X).half()},
        TypeError,
        ["dout:", "torch.float16", "torch.float32"],
    ),
    "seq_idx of int64": (lambda: {"seq_idx": torch.zeros(2, 10).long()}, TypeError, ["seq_idx:", "torch.int64", "torch.int32"]),
    "seq_idx of another shape": (lambda: {"seq_idx": torch.zeros(10).int()}, ValueError, ["seq_idx:", "(10,)", "(2, 10)"]),
    "states too long": (
        lambda: {"initial_states": torch.zeros(2, 6, 4)},
        ValueError,
        ["initial_states:", "(2, 6, 4)", "(2, 6, 3)"],
    ),
    "states of another dtype": (
        lambda: {"initial_states": torch.zeros(2, 6, 3).half()},
        TypeError,
        ["initial_states:", "float16"],
    ),
    "final gradient too short": (lambda: {"dfinal_states": torch.zeros(2, 6, 2)}, ValueError, ["dfinal_states:", "(2, 6, 2)"]),
    "x of int32": (lambda: {"x": torch.zeros(*_X).int()}, TypeError, ["x:", "torch.int32"]),
    "weight of another dim": (lambda: {"weight": torch.zeros(5, 4)}, ValueError, ["weight:", "(5, 4)", "(6, width >= 1)"]),
    "bias on another device": (lambda: {"bias": torch.zeros(6, device="meta")}, ValueError, ["bias:", "meta"]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    with device:
        good = Inputs(torch.zeros(*_X), torch.zeros(6, 4), torch.zeros(6), torch.zeros(*_X))
        dx = torch.full(_X, 42.0)
        bad = good._replace(**make_changes())
    with pytest.raises(error) as caught:
        bad.gradients(dx=dx)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (dx == 42).all()


def test_dx_may_share_a_buffer_with_inputs_but_no_byte(device: torch.device) -> None:
    inputs = Case(2, 6, 10, 4).inputs(device)
    buffer = torch.zeros(2, 12, 10, device=device)
    buffer[:, :6] = inputs.x
    expected = inputs.gradients()
    found = inputs._replace(x=buffer[:, :6]).gradients(dx=buffer[:, 6:])
    assert all(map(torch.equal, found, expected))
    with pytest.raises(ValueError, match="dx: shares memory with dout"):
        inputs.gradients(dx=inputs.dout)
    with pytest.raises(ValueError, match=r"kernel: got 'tile', which serves|kernel: got 'tile', expected one of"):
        inputs.gradients("tile")


# ---- torch -------------------------------------------------------------------------------------------------------------------


def test_gradcheck() -> None:
    with environment(**WAYS["cpu"]):
        for seqlen in (2, 9):
            case = Case(2, 3, seqlen, 4, has_ids=True, has_initial=True)
            inputs = case.inputs(torch.device("cpu"))
            ids = inputs.seq_idx
            tensors = tuple(t.double().requires_grad_() for t in (inputs.x, inputs.weight, inputs.bias, inputs.initial_states))
            for seq_idx in (None, ids):
                assert torch.autograd.gradcheck(
                    lambda x, w, b, i, s=seq_idx: fn(x, w, b, s, i, True, activation="silu"), tensors
                )
            assert torch.autograd.gradcheck(lambda x, w: fn(x, w), tensors[:2])


@pytest.mark.parametrize("which", [convolve, fn], ids=["causal_conv1d", "causal_conv1d_fn"])
def test_the_way_past_the_dispatcher_records_what_the_operator_does(device: torch.device, which: Any) -> None:
    """The same bits whatever wants a gradient. Saved tensors are watched, packed by hooks and let go."""
    x, weight, bias, dout, *_ = Case(2, 5, 9, 3, torch.float32).inputs(device)
    assert bias is not None
    which(x, weight, bias)  # loads the module
    for given in (bias, bias[:0], None):
        for wanted in ((x,), (weight,), (x, weight), (x, weight, bias)):
            leaves: list[Tensor | None] = [
                tensor.detach().requires_grad_(any(tensor is one for one in wanted)) for tensor in (x, weight)
            ]
            leaves.append(None if given is None else given.detach().requires_grad_(any(bias is one for one in wanted)))
            differentiated = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad and leaf.numel()]
            out = which(*leaves, activation="silu")
            assert type(out.grad_fn).__name__ == "_CausalConv1dBackward"
            with LookOn():
                other = which(*leaves, activation="silu")
                expected = torch.autograd.grad(other, differentiated, dout)
            assert type(other.grad_fn).__name__ != "_CausalConv1dBackward" and torch.equal(out, other)
            for gradient, theirs in zip(torch.autograd.grad(out, differentiated, dout), expected, strict=True):
                assert torch.equal(gradient, theirs)
    empty = bias[:0].detach().requires_grad_()
    assert which(x, weight, empty).grad_fn is None

    leaf = x.detach().requires_grad_()
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = which(leaf, weight, bias, activation="silu")
    assert [id(tensor) for tensor in packed] == [id(leaf), id(weight), id(bias)]
    (first,) = torch.autograd.grad(out, leaf, dout, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert first.grad_fn is not None and second.abs().sum() > 0
    (again,) = torch.autograd.grad(out, leaf, 2 * dout)
    assert torch.allclose(again, 2 * first)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(out, leaf, dout)
    out = which(leaf, weight, bias)
    weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_reach_every_input(device: torch.device, layout: str) -> None:
    inputs = Case(2, 8, 30, 4, torch.bfloat16, layout=layout, has_initial=True, has_final=True, has_ids=True).inputs(device)
    leaves: list[Any] = [t.clone().requires_grad_() for t in (inputs.x, inputs.weight, inputs.bias, inputs.initial_states)]
    out, final = fn(*leaves[:3], inputs.seq_idx, leaves[3], True, activation="silu")
    torch.autograd.backward([out, final], [inputs.dout, inputs.dfinal_states])
    found: Any = tuple(leaf.grad for leaf in leaves)
    assert (wrong := wrong_gradients(inputs, found)) is None, wrong
    assert [g.dtype for g in found] == [leaf.dtype for leaf in leaves]

    plain = convolve(*leaves[:3], "silu")
    leaves[0].grad = None
    plain.backward(inputs.dout)
    simple = inputs._replace(seq_idx=None, initial_states=None, dfinal_states=None)
    assert (wrong := mismatch(leaves[0].grad, simple.expected()[0])) is None, wrong


def test_autocast_leaves_dtypes_alone(device: torch.device) -> None:
    x, weight, *_ = Case(2, 8, 30, 4).inputs(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert fn(x.requires_grad_(), weight).dtype == torch.float32
        assert torch.ops.hipconv.causal_conv1d_fn(x, weight)[0].dtype == torch.float32


def test_opcheck(device: torch.device) -> None:
    for case in (Case(2, 6, 20, 4), Case(1, 6, 9, 3, has_ids=True, has_initial=True, has_final=True, layout="channel_last")):
        x, weight, bias, dout, ids, initial, dfinal, silu = case.inputs(device)
        backward = (x, weight, bias, dout, ids, initial, dfinal, initial is not None, silu)
        torch.library.opcheck(torch.ops.hipconv.causal_conv1d_bwd.default, backward)
        torch.library.opcheck(torch.ops.hipconv.causal_conv1d_bwd_out.default, (torch.empty_like(x), *backward))
        final = torch.empty(case.batch, case.dim, case.width - 1, device=device)
        torch.library.opcheck(
            torch.ops.hipconv.causal_conv1d_states_fwd.default,
            (torch.empty_like(x), final, x, weight, bias, ids, initial, silu),
        )
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, weight, bias, initial)]
        torch.library.opcheck(
            torch.ops.hipconv.causal_conv1d_fn.default, (*leaves[:3], ids, leaves[3], initial is not None, silu)
        )


def test_compiles_into_one_graph(device: torch.device) -> None:
    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, final = fn(x * 2, weight, bias, return_final_states=True, activation="silu")
        return out.sum() + final.sum() + convolve(x, weight, bias).sum()

    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for seqlen in (20, 21, 35):
        inputs = Case(2, 8, seqlen, 4).inputs(device)
        leaves = [t.requires_grad_() for t in (inputs.x, inputs.weight, inputs.bias)]
        found = torch.autograd.grad(compiled(*leaves), leaves)
        expected = torch.autograd.grad(layer(*leaves), leaves)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, expected, strict=True))
    assert len(graphs) == 1
