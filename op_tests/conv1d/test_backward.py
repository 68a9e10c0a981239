"""The backward of the causal conv1d, and its forward with states and sequence ids: a pytest suite, and a command that checks any case.

python op_tests/test_causal_conv1d_bwd.py --batch 4 --dim 512 --seqlen 2048 --width 4 --dtype float16,bfloat16 --layout channel_last
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from support.backends import WAYS, device_of, environment, use_backend
from support.cli import choice_of, list_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch
import hipconv
from hipconv import jit, reference_training, targets

fn: Any = hipconv.causal_conv1d_fn
convolve: Any = hipconv.causal_conv1d


class Case(NamedTuple):
    """One call: sizes, types, layout, and what the rows hold."""

    batch: int
    dim: int
    seqlen: int
    width: int
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    use_silu: bool = True
    has_bias: bool = True
    layout: str = "channel_first"
    has_ids: bool = False
    has_initial: bool = False
    has_final: bool = False

    def inputs(self, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        shape, state = (self.batch, self.dim, self.seqlen), (self.batch, self.dim, self.width - 1)
        x, dout = (empty_as(self.layout, shape, self.dtype, device).copy_(normal(*shape)) for _ in range(2))
        ids = torch.randint(-1, 4, (self.batch, self.seqlen), generator=generator, dtype=torch.int32).sort(1)[0].roll(1, 1)
        return Inputs(
            x,
            (normal(self.dim, self.width) / self.width**0.5).to(device, self.weight_dtype),
            normal(self.dim).to(device, self.weight_dtype) if self.has_bias else None,
            dout,
            ids.to(device) if self.has_ids else None,
            normal(*state).to(device, self.dtype) if self.has_initial else None,
            normal(*state).to(device, self.dtype) if self.has_final else None,
            self.use_silu,
        )


class Inputs(NamedTuple):
    """The tensors of a call of the backward."""

    x: Tensor
    weight: Tensor
    bias: Any
    dout: Tensor
    seq_idx: Any = None
    initial_states: Any = None
    dfinal_states: Any = None
    use_silu: bool = True

    def expected(self) -> tuple[Any, ...]:
        """dx, dweight, dbias and dinitial_states by autograd through the reference, in float64."""
        named: tuple[Any, ...] = (self.x, self.weight, self.bias, self.initial_states)
        leaves: list[Any] = [None if t is None else t.detach().double().requires_grad_() for t in named]
        x, weight, bias, initial = leaves
        out, final = reference_training.causal_conv1d(x, weight, bias, self.seq_idx, initial, self.use_silu)
        loss = (out * self.dout.double()).sum()
        if self.dfinal_states is not None:
            loss = loss + (final * self.dfinal_states.double()).sum()
        wanted = [t for t in (x, weight, bias, initial) if t is not None]
        found = dict(zip(map(id, wanted), torch.autograd.grad(loss, wanted, allow_unused=True), strict=True))
        return tuple(None if t is None else found[id(t)] if found[id(t)] is not None else t * 0 for t in (x, weight, bias, initial))

    def gradients(self, kernel: str = "auto", dx: Tensor | None = None) -> tuple[Tensor, ...]:
        x, weight, bias, dout, ids, initial, dfinal, silu = self
        inputs = (x, weight, bias, dout, ids, initial, dfinal, initial is not None, silu)
        if dx is None:
            return torch.ops.hipconv.causal_conv1d_bwd(*inputs, kernel_name=kernel)
        return (dx, *torch.ops.hipconv.causal_conv1d_bwd_out(dx, *inputs, kernel_name=kernel))


def wrong_gradients(inputs: Inputs, found: tuple[Tensor, ...]) -> str | None:
    """None if the gradients are those of the reference, else what is wrong. Sums over tokens may be off by f32 rounding of each term."""
    terms = inputs.x.shape[0] * inputs.x.shape[2] * 10  # of a magnitude of a few units
    for name, ours, expected in zip(("dx", "dweight", "dbias", "dinitial_states"), found, inputs.expected(), strict=True):
        if expected is None:
            continue
        if name in ("dx", "dinitial_states"):
            wrong = mismatch(ours, expected, may_differ=0.005)  # f32 sums of f32 products of sums cancel now and then
        else:
            eps = torch.finfo(ours.dtype).eps
            bound = eps * (1 + expected.abs()) + 1e-6 * (10 + terms**0.5)
            off = ~((ours.double() - expected).abs() <= bound)
            wrong = f"{int(off.sum())} sums are off, by up to {(ours.double() - expected).abs().max():.3g}" if off.any() else None
            wrong = wrong or (f"shape {ours.shape}" if ours.shape != expected.shape else None)
        if wrong:
            return f"{name}: {wrong}"
    return None


def kernels_of(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_bwd", targets.of(device)).causal_conv1d_bwd_kernels()


def refused(error: ValueError) -> bool:
    return "which serves" in str(error)


def served_by(inputs: Inputs, kernel: str) -> tuple[Tensor, ...] | None:
    try:
        return inputs.gradients(kernel)
    except ValueError as error:
        assert refused(error), error
        return None


# ---- everything below with a `device` runs on every backend (conftest.py) ----------------------------------------------------------

SHAPES = [(1, 1, 1), (2, 7, 2), (3, 8, 3), (2, 33, 9), (1, 8, 131), (2, 3, 270), (2, 40, 20), (20, 4, 7), (1, 140, 18)]


def _grid() -> list[Case]:
    """Each dtype with each layout and all that rows may hold; the rest drawn so that each value occurs."""
    draw = random.Random(0)
    cases = []
    combinations = itertools.product(DTYPES.values(), LAYOUTS, itertools.product((False, True), repeat=3))
    for number, (dtype, layout, contents) in enumerate(combinations):
        width, weight_dtype = draw.choice([1, 2, 3, 4, 4, 5, 6, 7, 8, 11]), draw.choice([*DTYPES.values()])
        use_silu, has_bias = draw.random() < 0.7, draw.random() < 0.7
        cases.append(Case(*SHAPES[number % len(SHAPES)], width, dtype, weight_dtype, use_silu, has_bias, layout, *contents))
    return cases


def test_every_kernel_matches_autograd_through_the_reference(device: torch.device) -> None:
    served = set()
    for case in _grid():
        inputs = case.inputs(device)
        for kernel in kernels_of(device):
            found = served_by(inputs, kernel)
            if found is not None:
                served.add((kernel, case.layout))
                assert (wrong := wrong_gradients(inputs, found)) is None, f"{kernel}, {case}: {wrong}"
    assert {kernel for kernel, _ in served} == set(kernels_of(device))


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fast_kernels_at_every_length_and_alignment(device: torch.device, layout: str, width: int) -> None:
    """Vectors cut by row ends and starts; x, dout and dx aligned alike and not; poison around inputs, canaries around dx; some of the
    rows of each kind hold packed sequences."""
    names = [name for name in kernels_of(device) if name not in ("naive", "openmp")]
    dtypes = itertools.cycle(DTYPES.values())
    served = set()
    for inner in [1, 2, 3, 5, 7, 8, 9, 15, 17, 24, 31, 33, 64, 65, 130, 257, 128, 176, 304, *([520, 1100] if width == 4 else [])]:
        outer = 1 + inner % 5 if inner % 2 else 8
        pitch, offset, shift = (inner, 0, 0) if inner % 3 else (inner + inner % 5, inner % 4, inner % 2)
        sizes = (2, outer, inner) if layout == "channel_first" else (2, inner, outer)
        strides = (outer * pitch, pitch, 1) if layout == "channel_first" else (outer * pitch, 1, pitch)
        case = Case(
            *sizes, width, next(dtypes), layout=layout, use_silu=inner % 4 > 0, has_initial=inner % 5 == 0, has_final=inner % 7 == 0,
            has_ids=inner % 16 == 8 or inner % 5 == 2,
        )  # fmt: skip
        good = case.inputs(device, seed=inner)
        x, _ = _strided(good.x, strides, offset, torch.nan)
        dout, _ = _strided(good.dout, strides, offset, torch.nan)
        inputs = good._replace(x=x, dout=dout)
        for kernel in names:
            dx, buffer = _strided(torch.full_like(good.x, torch.nan), strides, offset + shift, 42.0)
            try:
                found = inputs.gradients(kernel, dx)
            except ValueError as error:
                assert refused(error), error
                continue
            served.add(kernel)
            assert (wrong := wrong_gradients(inputs, found)) is None, f"{kernel}, {case}, {strides}: {wrong}"
            dx.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside dx"
    expected = {"vector"} if layout == "channel_first" else {"tile"} if 2 <= width <= 4 else set()
    assert (expected | ({"simd"} if width > 1 else set())) & set(names) <= served


def _strided(values: Tensor, strides: tuple[int, ...], offset: int, fill: float) -> tuple[Tensor, Tensor]:
    """The values in a view with these strides, and the buffer around it, full of `fill`."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True))
    buffer = torch.full((offset + span + 37,), fill, dtype=values.dtype, device=values.device)
    return buffer.as_strided(values.shape, strides, offset).copy_(values), buffer


def test_any_strides(device: torch.device) -> None:
    """Also of the ids, states, weight and bias; and expanded inputs."""
    base = Case(2, 6, 21, 4, has_ids=True, has_initial=True, has_final=True).inputs(device)
    expected = base.gradients("auto")

    def spread(t: Tensor) -> Tensor:
        return torch.stack([t, torch.full_like(t, -7)], dim=-1)[..., 0]

    spreads = base._replace(
        x=spread(base.x), weight=spread(base.weight), bias=spread(base.bias), dout=spread(base.dout.mT).mT, seq_idx=spread(base.seq_idx),
        initial_states=spread(base.initial_states), dfinal_states=spread(base.dfinal_states),
    )  # fmt: skip
    for ours, theirs in zip(spreads.gradients(), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    expanded = base._replace(dout=torch.ones(1, 1, 1, device=device).expand_as(base.x), dfinal_states=None)
    assert (wrong := wrong_gradients(expanded, expanded.gradients())) is None, wrong


def test_gradients_are_the_same_bits_every_time(device: torch.device) -> None:
    threads = torch.get_num_threads()
    try:
        for layout in LAYOUTS:
            inputs = Case(3, 40, 700, 4, torch.bfloat16, layout=layout).inputs(device)
            first = inputs.gradients()
            torch.set_num_threads(1)
            assert all(map(torch.equal, first, inputs.gradients()))
            torch.set_num_threads(threads)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="so many tokens need a GPU")
@pytest.mark.parametrize("width", [4, 7])
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_walks_of_every_length(dtype: torch.dtype, width: int) -> None:
    """Where there is enough work, the last walks are shorter than the first; the plain kernel has none."""
    inputs = Case(4, 4096, 4096, width, dtype).inputs(torch.device("cuda"))
    ids = (torch.arange(4096, device="cuda") // 100).to(torch.int32).expand(4, -1)
    for case in (inputs, inputs._replace(seq_idx=ids)):
        found, plain = case.gradients("vector"), case.gradients("naive")
        assert (wrong := mismatch(found[0], plain[0].double(), may_differ=0.005)) is None, wrong
        for ours, theirs in zip(found[1:3], plain[1:3], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-2)
        assert all(map(torch.equal, found, case.gradients("vector")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_integers_are_exact(device: torch.device, layout: str) -> None:
    for kernel in kernels_of(device):
        case = Case(2, 16, 264, 4, use_silu=False, layout=layout)
        inputs = case.inputs(device)
        inputs = inputs._replace(x=(inputs.x * 2).round(), dout=(inputs.dout * 2).round(), weight=(inputs.weight * 3).round())
        found = served_by(inputs, kernel)
        if found is not None:
            for ours, expected in zip(found[:3], inputs.expected(), strict=False):
                assert torch.equal(ours.double(), expected), kernel


def test_sizes_of_zero(device: torch.device) -> None:
    for shape in ((0, 4, 5), (2, 0, 5), (2, 4, 0)):
        for kernel in ("auto", "naive" if "naive" in kernels_of(device) else "openmp"):
            inputs = Case(*shape, 4, has_initial=True, has_final=True).inputs(device)
            assert (wrong := wrong_gradients(inputs, inputs.gradients(kernel))) is None, wrong
        out, final = fn(inputs.x, inputs.weight, inputs.bias, None, inputs.initial_states, True)
        assert out.shape == shape
        assert torch.equal(final, reference_training.causal_conv1d(inputs.x, inputs.weight, initial_states=inputs.initial_states)[1])


def put(inputs: Inputs, value: float) -> None:
    """One of `value` in each channel, but for the last ones: at another place in each of them."""
    places = [("weight", i) for i in range(inputs.weight.shape[1])] + [("bias", 0)]
    places += [(name, t) for name in ("x", "dout") for t in (0, 1, 2, -3, -2, -1, 255, 263, 271)]  # the last: ends of walks
    places += [(name, column) for name in ("initial_states", "dfinal_states") for column in (0, 2)]
    for channel, (name, at) in enumerate(places):
        tensor = getattr(inputs, name)
        if name == "bias":
            tensor[channel] = value
        elif tensor is not None and -tensor.shape[-1] <= at < tensor.shape[-1]:
            (tensor if name == "weight" else tensor[0])[channel, at] = value


@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinities_and_nans_reach_what_they_reach_in_the_reference(device: torch.device, layout: str) -> None:
    """Taps that see nothing are not there: not zero times infinity. Rows of whole vectors, and rows that begin and end within one."""
    values = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    short, long = itertools.product((2, 5, 16, 21), (False, True), (False, True)), itertools.product((520, 523), (False, True), (False,))
    for seqlen, use_silu, has_states in (*short, *long):
        case = Case(1, 32, seqlen, 4, use_silu=use_silu, layout=layout, has_initial=has_states, has_final=has_states)
        inputs = case.inputs(device)
        put(inputs, next(values))
        expected = inputs.expected()
        for kernel in kernels_of(device):
            if (found := served_by(inputs, kernel)) is None:
                continue
            for name, ours, wanted in zip(("dx", "dweight", "dbias", "dinitial_states"), found, expected, strict=True):
                same = wanted is None or torch.allclose(ours.double(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
                assert same, f"{name} of {kernel}, {case}"


def test_the_derivative_of_silu_at_its_ends(device: torch.device) -> None:
    ends = torch.tensor([-torch.inf, -1e30, -1e6, -100.0, -20.0, 20.0, 100.0, 1e6, 1e30, torch.inf, torch.nan], device=device)
    for layout, kernel in itertools.product(LAYOUTS, kernels_of(device)):
        x = empty_as(layout, (1, 8, 16 * len(ends)), torch.float32, device).zero_()
        x[..., ::16] = ends
        inputs = Inputs(x, torch.tensor([[0.0, 1.0]], device=device).expand(8, 2), None, torch.ones_like(x))
        if (found := served_by(inputs, kernel)) is not None:
            assert torch.allclose(found[0].double(), inputs.expected()[0], rtol=1e-5, atol=1e-12, equal_nan=True), (kernel, layout)


# ---- the forward with states and ids -----------------------------------------------------------------------------------------------


def test_forward_matches_the_reference(device: torch.device) -> None:
    for case in _grid():
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


# ---- bad input -----------------------------------------------------------------------------------------------------------------------

_X = (2, 6, 10)
BAD_CALLS: dict[str, Any] = {
    "dout of another shape": (lambda: {"dout": torch.zeros(2, 6, 9)}, ValueError, ["dout:", "(2, 6, 9)", "(2, 6, 10)"]),
    "dout of another dtype": (lambda: {"dout": torch.zeros(*_X).half()}, TypeError, ["dout:", "torch.float16", "torch.float32"]),
    "seq_idx of int64": (lambda: {"seq_idx": torch.zeros(2, 10).long()}, TypeError, ["seq_idx:", "torch.int64", "torch.int32"]),
    "seq_idx of another shape": (lambda: {"seq_idx": torch.zeros(10).int()}, ValueError, ["seq_idx:", "(10,)", "(2, 10)"]),
    "states too long": (lambda: {"initial_states": torch.zeros(2, 6, 4)}, ValueError, ["initial_states:", "(2, 6, 4)", "(2, 6, 3)"]),
    "states of another dtype": (lambda: {"initial_states": torch.zeros(2, 6, 3).half()}, TypeError, ["initial_states:", "float16"]),
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


# ---- torch ---------------------------------------------------------------------------------------------------------------------------


def test_gradcheck() -> None:
    with environment(**WAYS["cpu"]):
        for seqlen in (2, 9):
            case = Case(2, 3, seqlen, 4, has_ids=True, has_initial=True)
            inputs = case.inputs(torch.device("cpu"))
            ids = inputs.seq_idx
            tensors = tuple(t.double().requires_grad_() for t in (inputs.x, inputs.weight, inputs.bias, inputs.initial_states))
            for seq_idx in (None, ids):
                assert torch.autograd.gradcheck(lambda x, w, b, i, s=seq_idx: fn(x, w, b, s, i, True, activation="silu"), tensors)
            assert torch.autograd.gradcheck(lambda x, w: fn(x, w), tensors[:2])


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
            torch.ops.hipconv.causal_conv1d_states_fwd.default, (torch.empty_like(x), final, x, weight, bias, ids, initial, silu)
        )
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, weight, bias, initial)]
        torch.library.opcheck(torch.ops.hipconv.causal_conv1d_fn.default, (*leaves[:3], ids, leaves[3], initial is not None, silu))


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


# ---- the command -----------------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", [2]), ("dim", [64]), ("seqlen", [500]), ("width", [4])):
        parser.add_argument(f"--{name}", type=list_of(int), default=default)
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), default=list(DTYPES))
    parser.add_argument("--layout", type=list_of(choice_of(*LAYOUTS)), default=list(LAYOUTS))
    parser.add_argument("--backend", choices=("cpu", "simt", "gpu"), default="gpu" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    failures = 0
    with use_backend(options.backend):
        device = device_of(options.backend)
        for sizes in itertools.product(options.batch, options.dim, options.seqlen, options.width):
            for dtype, layout in itertools.product(options.dtype, options.layout):
                inputs = Case(*sizes, DTYPES[dtype], layout=layout).inputs(device)
                for kernel in kernels_of(device):
                    found = served_by(inputs, kernel)
                    wrong = "does not serve" if found is None else wrong_gradients(inputs, found)
                    failures += wrong not in (None, "does not serve")
                    print(*sizes, dtype, layout, kernel, wrong or "ok")
    sys.exit(failures > 0)
