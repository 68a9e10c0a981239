"""causal_conv1d_update and its q/k/v form: a pytest suite, and a command that checks and times any case.

python op_tests/test_causal_conv1d_update.py
python op_tests/test_causal_conv1d_update.py --batch 256 --dim 8192 --width 4 --state_len 3,4 --dtype bfloat16 --layout N,S,D
python op_tests/test_causal_conv1d_update.py --seqlens 1,1,4 --seqlens 0,2 --dim 4096 --state_len 6 --speculative
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import functools
import itertools
import random
import sys
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch
from torch import Tensor

from support.backends import BACKENDS, backends, device_of, environment, use_backend
from support.cli import Table, at_least, check_state_len, choice_of, flattened, list_of
from support.marks import needs_gpu
from support.observe import cost_of
from support.tensors import DTYPES, mismatch, mismatch_beside_infinities
from support.timing import microseconds
from hipconv import jit, reference, targets
from hipconv.ops.serving import values as _serving_checks
from hipconv.reference_update import Update
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_update_split_qkv

# ---- everything below runs on every backend, the GPU kernels on the host in both wave sizes and three orders of threads --------

_WAYS = {
    "cpu": {"HIPCONV_BACKEND": "cpu"},
    "simt-wave64": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "ascending"},
    "simt-wave64-descending": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "descending"},
    "simt-wave32-shuffled": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:3"},
}


@pytest.fixture(params=[*_WAYS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**_WAYS.get(request.param, {})):
        yield device_of(request.param)


def kernels(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_update", targets.of(device)).causal_conv1d_update_kernels()


INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)

# ---- tensors -------------------------------------------------------------------------------------------------------------------

LAYOUTS = ("N,D,S", "N,S,D", "padded")


def make_state(layout: str, slots: int, dim: int, state_len: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A pool of normal values; "padded": (slots, dim, state_len) at an odd offset, with gaps of NaN between all elements."""
    values = torch.randn(slots, dim, state_len)
    if layout == "N,S,D":
        return values.mT.contiguous().to(device, dtype).mT
    if layout == "N,D,S":
        return values.to(device, dtype)
    state = torch.full((slots, dim + 1, 2 * state_len + 3), torch.nan, dtype=dtype, device=device)[:, 1:, 1 : 2 * state_len + 1 : 2]
    return state.copy_(values)


def make_weights(dim: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return (torch.randn(dim, width) / width**0.5).to(device, dtype), torch.randn(dim).to(device, dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN is the same as itself."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def check(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = True, *, kernel="auto", **options) -> Update:
    """One call, out of place, against the reference: outputs, padding, pool, windows and parents; and nothing else is written."""
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


@pytest.mark.parametrize("tokens", [1, 4])
def test_infinities_and_nans_reach_what_they_reach_in_the_reference(device: torch.device, tokens: int) -> None:
    """With every kernel and state layout; a channel for each place."""
    for layout, value, dtype in zip(LAYOUTS, (torch.inf, -torch.inf, torch.nan), DTYPES.values(), strict=True):
        torch.manual_seed(0)
        x, pool = torch.randn(3, 32, tokens, device=device).to(dtype), make_state(layout, 3, 32, 3, dtype, device)
        weight, bias = make_weights(32, 4, torch.float32, device)
        for channel in range(4):
            weight[channel, channel] = x[0, 4 + channel, channel % tokens] = value
            pool[1, 8 + channel, channel % 3] = value
        bias[12] = value
        expected = expected_update(x.cpu(), pool.cpu(), weight.cpu(), bias.cpu(), True)
        for kernel in kernels(device):
            state = make_state(layout, 3, 32, 3, dtype, device).copy_(pool)
            try:
                out = causal_conv1d_update(x, state, weight, bias, True, kernel=kernel)
            except ValueError:
                continue  # it does not serve these
            assert (wrong := mismatch_beside_infinities(out.cpu(), expected.out)) is None, f"{kernel}, {layout}: {wrong}"
            assert same_bits(state.cpu(), expected.conv_state), kernel


@pytest.mark.parametrize("columns", [3, 4, 6])
def test_rows_of_none_few_and_many_tokens(device: torch.device, columns: int) -> None:
    """Of 16-bit channels in whole vectors of 16 bytes, the last strip not full: some cards copy these past the registers."""
    for dtype, dim in ((torch.bfloat16, 136), (torch.float16, 520)):
        weight, bias = make_weights(dim, 4, dtype, device)
        slots = torch.tensor([5, 0, 9, 3, -1, 12, 7, 1, 11, 2, 10, 4], device=device)
        accepted = torch.tensor([1, 4, 2, 3, 1, 2, 4, 3, 1, 9, 2, 4], device=device)
        drafts: dict[str, Any] = {"num_accepted_tokens": accepted} if columns == 6 else {}
        long: tuple[list[int], dict[str, Any]] = ([9, 1, 0, 4, 2, 13, 3, 0, 1, 2, 0, 1], {})
        for lengths, options in (long, ([4, 1, 0, 4, 2, 3, 3, 0, 1, 2, 4, 1], drafts)):
            starts = torch.tensor([0, *itertools.accumulate(lengths)], device=device)
            x = torch.randn(sum(lengths) + 5, dim).to(device, dtype)
            state = make_state("N,D,S", 13, dim, columns, dtype, device)
            check(x, state, weight, bias, query_start_loc=starts, conv_state_indices=slots, pad_slot_id=-1, **options)
            x = torch.randn(12, dim, 4).to(device, dtype)  # four tokens of each channel are neighbours
            check(x, state, weight, bias, conv_state_indices=slots, pad_slot_id=-1, **options)


# ---- random calls --------------------------------------------------------------------------------------------------------------


def random_call(draw: random.Random, device: torch.device) -> tuple[tuple, dict]:
    """Arguments of a call that combines features, shapes, strides and types at random."""
    torch.manual_seed(draw.randrange(2**31))
    dim = draw.choice([1, 3, 8, 33, 40, 64, 100, 132, 260, 516])
    width = draw.choice([1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 9])
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
        x = torch.stack([x, torch.full_like(x, torch.nan)], 1).transpose(0, 1)[0] if draw.random() < 0.5 else x.flip(0).contiguous()

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


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_match_the_reference_with_every_kernel(device: torch.device, seed: int) -> None:
    served = 0
    for part, kernel in itertools.product(range(4), kernels(device)):
        arguments, options = random_call(random.Random(100 * seed + part), device)
        try:
            check(*arguments, kernel=kernel, **options)
            served += 1
        except ValueError as refusal:
            assert f"kernel: got '{kernel}', which serves" in str(refusal)
    assert served


# ---- shapes, strides, types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["N,D,S", "N,S,D"])
@pytest.mark.parametrize("state_len", [3, 4, 6])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_each_state_layout_over_several_strips(device: torch.device, dtype: torch.dtype, state_len: int, layout: str) -> None:
    """Several strips of vectors, the last one partial; rows, one of them padding; one token, four, and more than are loaded ahead."""
    dim = 4 * 128 + 4 * 37
    indices = torch.tensor([4, -1, 0], device=device, dtype=torch.int32)
    for tokens, inside, kernel in itertools.product((1, 4, 5, 8), (False, True), kernels(device)):
        torch.manual_seed(tokens)
        x = torch.randn(3, dim, tokens).to(device, dtype)
        x = x if inside else x.mT.contiguous().mT
        weight, bias = make_weights(dim, 4, dtype, device)
        state = make_state(layout, 5, dim, state_len, dtype, device)
        refused = {"step": tokens > 1 or (layout == "N,D,S" and state_len > 4), "vector": inside and tokens == 5}.get(kernel, False)
        if refused:
            with pytest.raises(ValueError, match=f"kernel: got '{kernel}', which serves"):
                check(x, state, weight, bias, kernel=kernel, conv_state_indices=indices)
        else:
            check(x, state, weight, bias, kernel=kernel, conv_state_indices=indices)


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "width", "state_len"),
    [(torch.bfloat16, torch.float32, 4, state_len) for state_len in (3, 4, 6)]
    + [(torch.float16, torch.float32, 4, 3), *((dtype, dtype, 3, 2) for dtype in DTYPES.values())],
    ids=str,
)
def test_packed_states_of_float32_and_of_width_3_move_in_vectors(
    device: torch.device, dtype: torch.dtype, state_dtype: torch.dtype, width: int, state_len: int
) -> None:
    dim = 4 * 128 + 4 * 37
    kernel = "auto" if targets.of(device).backend == "cpu" else "vector"
    table = torch.tensor([[4, 5], [-1, 1], [0, 2]], device=device)
    starts = torch.tensor([0, 1, 6, 8], device=device)
    for tokens, addressing in itertools.product((1, 4, 5, None), ("slots", "fork", "speculative")):
        if addressing == "speculative" and (state_len < 6 or tokens not in (1, 4)):
            continue
        torch.manual_seed(tokens or 0)
        x = torch.randn(3, tokens, dim).mT if tokens else torch.randn(9, dim)
        options: dict[str, Any] = {"conv_state_indices": table[:, 0]} | ({} if tokens else {"query_start_loc": starts})
        if addressing == "fork":
            options["conv_state_indices_in"] = table[:, 1]
        if addressing == "speculative":
            options["num_accepted_tokens"] = torch.tensor([1, 2, 3], device=device)
        state = make_state("N,D,S", 6, dim, state_len, state_dtype, device)
        x, (weight, bias) = x.to(device, dtype), make_weights(dim, width, dtype, device)
        check(x, state, weight, bias, silu=tokens != 1, kernel=kernel, **options)


@pytest.mark.parametrize(("offset", "gap", "kernel"), [(0, 0, "step"), (8, 8, "step"), (4, 0, "vector"), (0, 4, "vector")])
def test_four_columns_are_vectors_only_where_slots_begin_like_them(device: torch.device, offset: int, gap: int, kernel: str) -> None:
    dim, dtype = 136, torch.bfloat16
    room = torch.full((3 * (4 * dim + gap) + offset,), torch.nan, dtype=dtype, device=device)
    state = room[offset:].as_strided((3, dim, 4), (4 * dim + gap, 4, 1)).copy_(torch.randn(3, dim, 4))
    x, (weight, bias) = torch.randn(2, dim).to(device, dtype), make_weights(dim, 4, dtype, device)
    indices = torch.tensor([2, 0], device=device)
    expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, conv_state_indices=indices.cpu())
    if targets.of(device).backend == "cpu":
        kernel = "auto"
    elif kernel != "step":
        with pytest.raises(ValueError, match="got 'step'"):
            causal_conv1d_update(x, state, weight, bias, True, indices, kernel="step")
    out = causal_conv1d_update(x, state, weight, bias, True, indices, kernel=kernel)
    assert mismatch(out.cpu(), expected.out) is None and same_bits(state.cpu(), expected.conv_state)
    assert room.isnan().sum() == room.numel() - state.numel(), "a gap was written"


@pytest.mark.parametrize("wide", ["weight", "bias"])
def test_step_takes_parameters_as_wide_as_x(device: torch.device, wide: str) -> None:
    """Others fall to the next kernel."""
    dim, dtype, indices = 136, torch.bfloat16, torch.tensor([2, 0], device=device, dtype=torch.int32)
    x, state = torch.randn(2, dim).to(device, dtype), make_state("N,S,D", 3, dim, 3, dtype, device)
    weight, bias = make_weights(dim, 4, dtype, device)
    weight, bias = (weight.float(), bias.to(dtype)) if wide == "weight" else (weight, bias.float())
    check(x, state, weight, bias, conv_state_indices=indices)
    if targets.of(device).backend != "cpu":
        with pytest.raises(ValueError, match=r"got .step., .* weight and bias as wide as x"):
            causal_conv1d_update(x, state, weight, bias, True, indices, kernel="step")


def test_views_that_only_look_aligned(device: torch.device) -> None:
    """One tensor at a time begins or steps where no vector of channels, tokens or columns does; the pool's gaps stay NaN."""

    def view(values: Tensor, offset: int, gap: int) -> Tensor:
        """The same values and order of axes in memory that begins at `offset` and skips `gap` elements after each outermost step."""
        order = sorted(range(values.dim()), key=values.stride, reverse=True)
        dense = values.permute(order)
        room = torch.full((dense.shape[0] * (dense[0].numel() + gap) + offset + 8,), torch.nan, dtype=values.dtype, device=device)
        placed = room[offset:].as_strided(dense.shape, (dense[0].numel() + gap, *dense.stride()[1:]))
        return placed.copy_(dense).permute([order.index(axis) for axis in range(values.dim())])

    dim = 24
    for form, layout, name, (offset, gap) in itertools.product(
        ("one", "tokens", "inside"), ("N,D,S", "N,S,D"), ("x", "state", "weight", "bias", "out"), ((1, 0), (2, 0), (4, 0), (0, 1), (0, 2))
    ):  # fmt: skip
        torch.manual_seed(offset + 2 * gap)
        x = torch.randn(3, dim, 4).to(device, torch.bfloat16)
        x = {"one": x[:, :, 0].contiguous(), "tokens": x.mT.contiguous().mT}.get(form, x)
        weight, bias = make_weights(dim, 4, torch.bfloat16, device)
        state = make_state(layout, 4, dim, 3, torch.bfloat16, device)
        tensors = {"x": x, "state": state, "weight": weight, "bias": bias, "out": torch.zeros_like(x)}
        gaps = gap if name != "bias" else 0
        tensors[name] = view(tensors[name], offset, gaps)
        indices = torch.tensor([3, 0, 2], device=device)
        expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, conv_state_indices=indices.cpu())
        pool = tensors["state"]
        causal_conv1d_update(tensors["x"], pool, tensors["weight"], tensors["bias"], True, indices, out=tensors["out"])
        assert mismatch(tensors["out"].cpu(), expected.out) is None, (form, layout, name, offset, gap)
        assert same_bits(pool.cpu(), expected.conv_state), (form, layout, name, offset, gap)
        if name in ("state", "out"):
            whole = tensors[name].untyped_storage().nbytes() // 2
            room = torch.as_strided(tensors[name], (whole,), (1,), 0)
            assert room.isnan().sum() == whole - tensors[name].numel(), "a gap was written"


def test_slots_are_compared_with_all_their_bits(device: torch.device) -> None:
    """Slots, and the number that means padding, of 64 bits whose low half is another slot's."""
    for pad, dtype in itertools.product((1, 2**32 + 1, -(2**32) + 1, 2**31 - 1), (torch.int32, torch.int64)):
        for kernel in kernels(device):
            state = make_state("N,S,D", 4, 8, 3, torch.float32, device)
            rows = [1, 3, 2**32 + 2 if dtype == torch.int64 else -2, -(2**32) if dtype == torch.int64 else -1]
            table = torch.tensor([[row, 77] for row in rows], dtype=dtype, device=device)
            try:
                expected = check(torch.randn(4, 8, device=device), state, torch.ones(8, 4, device=device), kernel=kernel,
                                 conv_state_indices=table, pad_slot_id=pad)  # fmt: skip
            except ValueError as refusal:
                assert "which serves" in str(refusal)
                continue
            assert expected.live.any(1).tolist() == [pad != 1, True, False, False]


@pytest.mark.parametrize("width", [*range(1, 10), 33])
def test_impulses_give_back_the_weights(device: torch.device, width: int) -> None:
    """Peers' width-5 branches load the state and never multiply it: silent garbage. Here every tap of every width counts."""
    dim = width + 4
    weight = torch.arange(1, width + 1, dtype=torch.float32, device=device).repeat(dim, 1)
    for kernel in kernels(device):
        state = torch.zeros(1, dim, width - 1, device=device)
        got = []
        for t in range(dim):
            x = torch.zeros(1, dim, device=device)
            x[0, t] = 1.0  # channel d has its impulse at time d
            try:
                got.append(causal_conv1d_update(x, state, weight, kernel=kernel)[0])
            except ValueError:
                break
        if got:
            expected = torch.zeros(dim, dim, device=device)
            for d in range(dim):
                for i in range(width):
                    if d + width - 1 - i < dim:
                        expected[d + width - 1 - i, d] = i + 1
            assert torch.equal(torch.stack(got), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state_at_end", [False, True])
def test_the_window_in_the_first_or_in_the_last_columns(device: torch.device, state_at_end: bool, layout: str) -> None:
    """The raw op serves both conventions: vLLM's, and Dao-AILab's, in which all columns move."""
    for state_len, tokens, dim in itertools.product((3, 4, 7), (1, 2, 6), (8, 33)):
        torch.manual_seed(state_len)
        state = make_state(layout, 2, dim, state_len, torch.bfloat16, device)
        x = torch.randn(2, dim, tokens).to(device, torch.bfloat16)
        weight, bias = make_weights(dim, 4, torch.bfloat16, device)
        for kernel, in_columns in itertools.product(kernels(device), (True, False)):
            tokens_of_x = x.mT.contiguous().mT if in_columns else x
            pool, out = state.clone(), torch.empty_like(tokens_of_x)
            try:
                torch.ops.hipconv.causal_conv1d_update(
                    out, tokens_of_x, pool, weight, bias, True, state_at_end=state_at_end, kernel_name=kernel
                )  # fmt: skip
            except ValueError as refusal:
                assert "which serves" in str(refusal)
                continue
            expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, state_at_end=state_at_end)
            assert mismatch(out.cpu(), expected.out) is None and same_bits(pool.cpu(), expected.conv_state)


def test_every_integer_type_and_stride_of_indices(device: torch.device) -> None:
    """Peers load `block_table[:, 0]` as if its stride were 1, and corrupt other requests' states."""
    for dtype in INTEGERS:
        table = torch.tensor([[3, 9, 1], [5, 9, 1], [0, 9, 1]]).to(device, dtype)
        for indices in (table[:, 0], table, table.T.contiguous().T[:, 0]):
            x, state = torch.randn(3, 8, device=device), make_state("N,D,S", 7, 8, 3, torch.float32, device)
            expected = expected_update(x.cpu(), state.cpu(), torch.ones(8, 4), conv_state_indices=torch.tensor([3, 5, 0]))
            out = causal_conv1d_update(x, state, torch.ones(8, 4, device=device), conv_state_indices=indices)
            assert mismatch(out.cpu(), expected.out) is None and same_bits(state.cpu(), expected.conv_state)


@pytest.mark.parametrize("shape", [(70000, 1), (2, 70000)])
def test_more_rows_than_a_grid_dimension_holds(device: torch.device, shape: tuple[int, int]) -> None:
    x, state = torch.randn(shape, device=device), torch.randn(*shape, 1, device=device)
    weight = torch.randn(shape[1], 2, device=device)
    expected = state[:, :, 0] * weight[:, 0] + x * weight[:, 1]
    out = causal_conv1d_update(x, state, weight)
    assert torch.allclose(out, expected, atol=1e-5) and torch.equal(state[:, :, 0], x)


def test_pools_past_two_to_the_31_elements() -> None:
    """Peers' 32-bit offsets wrap silently: "no fault, no NaN". The pages between the slots are never touched."""
    try:
        storage = torch.empty(2**32 + 64, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("no address space for 8 GiB")
    for way in ("cpu", "simt-wave64"):
        with environment(**_WAYS[way]):
            state = storage.as_strided((3, 8, 3), (2**31 + 8, 1, 8))
            state.copy_(torch.randn(3, 8, 3))
            check(torch.randn(2, 8).bfloat16(), state, *make_weights(8, 4, torch.bfloat16, torch.device("cpu")),
                  conv_state_indices=torch.tensor([2, 1]))  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 4, 2), (2, 0, 2), (2, 4, 0), (0, 0, 0)])
def test_empty_tensors(device: torch.device, shape: tuple[int, int, int]) -> None:
    x = torch.empty(shape, device=device)
    state = torch.ones(shape[0], shape[1], 3, device=device)
    assert causal_conv1d_update(x, state, torch.empty(shape[1], 4, device=device)).shape == shape
    assert (state == 1).all()
    tokens = causal_conv1d_update(
        torch.ones(3, 4, device=device), torch.ones(0, 4, 3, device=device), torch.ones(4, 4, device=device),
        query_start_loc=torch.zeros(1, dtype=torch.int32, device=device),
    )  # fmt: skip
    assert (tokens == 0).all(), "tokens of no row"


# ---- padding -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rows", "tokens", "packed"])
def test_padded_rows_are_zero_in_a_new_tensor_and_untouched_in_a_given_one(device: torch.device, form: str) -> None:
    """Peers leave them uninitialised in a new tensor; tokens before query_start_loc[0] and past query_start_loc[-1] too."""
    for dim, layout, kernel in itertools.product((8, 33), LAYOUTS[:2], kernels(device)):
        weight, bias = make_weights(dim, 4, torch.bfloat16, device)
        indices = torch.tensor([2, -1, 0, -1], device=device)
        options: dict[str, Any] = {"conv_state_indices": indices}
        x = torch.full((4, dim) if form == "rows" else (4, dim, 3), torch.nan, dtype=torch.bfloat16, device=device)
        live = torch.zeros(x.shape, dtype=torch.bool, device=device)
        live[[0, 2]] = True
        if form == "packed":
            x, live = (
                torch.full((13, dim), torch.nan, dtype=torch.bfloat16, device=device),
                torch.zeros(13, dim, dtype=torch.bool, device=device),
            )
            options["query_start_loc"] = torch.tensor([2, 3, 5, 8, 9], device=device)
            live[[2, 5, 6, 7]] = True
        x[live] = torch.randn_like(x[live])
        state = make_state(layout, 3, dim, 3, torch.bfloat16, device)
        torch.use_deterministic_algorithms(True)  # new memory is NaN then
        try:
            check(x, state.clone(), weight, bias, kernel=kernel, **options)
        except ValueError as refusal:
            assert "which serves" in str(refusal)
            continue
        finally:
            torch.use_deterministic_algorithms(False)
        out = torch.full_like(x, 42.0)
        causal_conv1d_update(x, state, weight, bias, True, out=out, kernel=kernel, **options)
        assert (out[~live] == 42.0).all() and not (out[live] == 42.0).any() and not out.isnan().any()


def test_a_pad_slot_is_compared_with_slots_not_with_row_numbers(device: torch.device) -> None:
    """Peers compare the program's number with pad_slot_id. Row 2 is live here, and slot 2 means padding."""
    for pad in (2, 0):  # 0 is vLLM's null block
        state = make_state("N,D,S", 4, 8, 3, torch.float32, device)
        indices = torch.tensor([3, 2, 1, 0], device=device)
        expected = check(
            torch.randn(4, 8, device=device), state, torch.ones(8, 4, device=device), conv_state_indices=indices, pad_slot_id=pad
        )
        assert expected.live.any(1).tolist() == [slot != pad for slot in indices.tolist()]


def test_no_pad_slot(device: torch.device) -> None:
    state = make_state("N,D,S", 2, 8, 3, torch.float32, device)
    expected = check(torch.randn(2, 8, device=device), state, torch.ones(8, 4, device=device), pad_slot_id=None,
                     conv_state_indices=torch.tensor([1, -1], device=device))  # fmt: skip
    assert expected.live.any(1).tolist() == [True, False], "a slot outside the pool is padding whatever pad_slot_id"


def test_more_rows_than_slots(device: torch.device) -> None:
    """Peers assert that there are as many cache lines as rows, which breaks graph capture of padded batches."""
    state = make_state("N,S,D", 2, 8, 3, torch.bfloat16, device)
    indices = torch.tensor([1] + 8 * [-1], dtype=torch.int32, device=device)
    check(torch.randn(9, 8).to(device, torch.bfloat16), state, *make_weights(8, 4, torch.bfloat16, device), conv_state_indices=indices)


def test_the_null_block_is_padding_like_the_pad_slot(device: torch.device) -> None:
    """vLLM's keyword: slot 0 stands for none, and it may stand in many rows, checked values or not."""
    x, (weight, bias) = torch.randn(5, 8, device=device), make_weights(8, 4, torch.float32, device)
    state = make_state("N,D,S", 4, 8, 3, torch.float32, device)
    indices = torch.tensor([2, 0, 3, 0, -1], device=device, dtype=torch.int32)
    expected = expected_update(x.cpu(), state.cpu(), weight.cpu(), bias.cpu(), True, conv_state_indices=indices.cpu(), pad_slot_id=0)
    assert expected.live.any(1).tolist() == [True, False, True, False, False]
    forms: list[dict[str, Any]] = [{}, {"pad_slot_id": None}, {"null_block_id": -1, "pad_slot_id": 0}]
    for numbers in ({"null_block_id": 0} | form for form in forms):
        pool = state.clone()
        checked: dict[str, Any] = {"validate_data": None not in numbers.values()}  # -1 is neither number otherwise
        out = causal_conv1d_update(x, pool, weight, bias, True, indices, metadata=object(), **numbers, **checked)
        assert mismatch(out.cpu(), expected.out) is None and same_bits(pool.cpu(), expected.conv_state)
        q, k, v = causal_conv1d_update_split_qkv(x, state.clone(), weight, 2, 4, bias, True, indices, metadata=object(), **numbers)
        assert torch.equal(torch.cat([q, k, v], 1), out)
    with pytest.raises(ValueError, match="null_block_id: got 0 beside pad_slot_id 3, expected only one of them to be a slot"):
        causal_conv1d_update(x, state, weight, bias, True, indices, pad_slot_id=3, null_block_id=0)


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31), 2**32 + 1, 2**62])
def test_indices_outside_of_their_range_are_padding(device: torch.device, bad: int) -> None:
    """They never lead a read or a write astray (the sanitizers watch)."""
    dim = 8
    x, weight = torch.randn(2, dim, device=device), torch.ones(dim, 4, device=device)
    rows = torch.tensor([bad, 1], device=device)
    for kernel in kernels(device):
        cases: dict[str, dict[str, Any]] = {
            "conv_state_indices": {},
            "conv_state_indices_in": {"conv_state_indices": torch.tensor([0, 2], device=device)},
            "num_accepted_tokens": {},
            "initial_state_idx": {"conv_state_indices": torch.tensor([[0, 1], [2, 2]], device=device)},
            "block_idx_last_scheduled_token": {"conv_state_indices": torch.tensor([[0, 1], [2, 2]], device=device)},
            "intermediate_state_indices": {"intermediate_conv_window": torch.zeros(2, 1, dim, 3, device=device)},
        }
        for name, others in cases.items():
            state = make_state("N,D,S", 3, dim, 3, torch.float32, device)
            try:
                expected = check(x, state, weight, kernel=kernel, **(others | {name: rows}))
            except ValueError as refusal:
                assert "which serves" in str(refusal)
                continue
            assert expected.live[1].all() and expected.live[0].any() == (name == "intermediate_state_indices")


def test_more_accepted_tokens_than_a_state_holds_are_padding(device: torch.device) -> None:
    for width, tokens, accepted in itertools.product((2, 4, 5), (1, 3), (0, 1, 3, 4)):
        kept = 3
        state = make_state("N,D,S", 2, 8, width - 2 + kept, torch.float32, device)
        expected = check(torch.randn(2, 8, tokens, device=device), state, torch.ones(8, width, device=device),
                         num_accepted_tokens=torch.tensor([accepted, 1], device=device))  # fmt: skip
        assert expected.live[0].any() == (1 <= accepted <= kept) and expected.live[1].all()


def test_query_start_loc_that_leads_outside_of_x(device: torch.device) -> None:
    for starts in ([0, 2, 9], [-5, 2, 4], [0, 2**31 - 1, 3], [0, 3, 1], [7, 8, 9]):
        x, state = torch.randn(4, 8, device=device), make_state("N,D,S", 2, 8, 3, torch.float32, device)
        causal_conv1d_update(x, state, torch.ones(8, 4, device=device), query_start_loc=torch.tensor(starts, device=device))


# ---- in place, forks, prefix caching -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rows", "tokens", "inside", "packed", "tree"])
def test_out_may_be_x(device: torch.device, form: str) -> None:
    """vLLM, SGLang and AITER overwrite x by default."""
    for dim, width, kernel in itertools.product((8, 33), (2, 4, 7), ("auto", *kernels(device))):
        x = torch.randn(3, dim, 5).to(device, torch.float16)
        x = {"rows": x[:, :, 0].contiguous(), "tokens": x.mT.contiguous().mT, "packed": x[0].T.contiguous()}.get(form, x)
        options: dict[str, Any] = {}
        if form == "packed":
            options["query_start_loc"] = torch.tensor([0, 3, 3, 5], device=device)
        if form == "tree":
            child, sibling = random_tree(random.Random(dim), 3, 5)
            options = {"retrieve_next_token": child.to(device), "retrieve_next_sibling": sibling.to(device)}
        state = make_state("N,D,S", 3, dim, width - 1, torch.float16, device)
        weight, bias = make_weights(dim, width, torch.float16, device)
        other = state.clone()
        try:
            expected = causal_conv1d_update(x, state, weight, bias, True, kernel=kernel, **options)
        except ValueError:
            continue
        assert causal_conv1d_update(x, other, weight, bias, True, out=x, kernel=kernel, **options) is x
        assert same_bits(x, expected) and same_bits(other, state)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fork_reads_one_slot_and_writes_another(device: torch.device, layout: str) -> None:
    """Peers wrote the input slot, which other requests share, when a chunk was shorter than the window (vLLM #56196)."""
    for state_len, dim, kernel in itertools.product((3, 4), (8, 33), kernels(device)):
        state = make_state(layout, 6, dim, state_len, torch.bfloat16, device)
        before = state.clone()
        read, write = torch.tensor([5, 5, -1, 2], device=device), torch.tensor([0, 1, 3, -1], device=device)
        try:
            expected = check(torch.randn(4, dim).to(device, torch.bfloat16), state, *make_weights(dim, 4, torch.bfloat16, device),
                             kernel=kernel, conv_state_indices=write, conv_state_indices_in=read)  # fmt: skip
        except ValueError:
            continue
        assert expected.live.any(1).tolist() == [True, True, False, False]
        assert same_bits(state[2:], before[2:]), "the slots read, and those of padded rows, are as they were"
        assert same_bits(state[:2, :, 3:], before[:2, :, 3:]), "columns after the window are as they were"


def test_block_tables(device: torch.device) -> None:
    state = make_state("N,S,D", 9, 16, 3, torch.bfloat16, device)
    table = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8]], dtype=torch.int32, device=device)
    check(
        torch.randn(3, 16).to(device, torch.bfloat16), state, *make_weights(16, 4, torch.bfloat16, device), conv_state_indices=table,
        initial_state_idx=torch.tensor([0, 1, 1], device=device), block_idx_last_scheduled_token=torch.tensor([1, 1, 2], device=device),
    )  # fmt: skip


def test_short_rows_of_a_packed_batch_are_rolled_by_their_own_length(device: torch.device) -> None:
    """vLLM shortens the part of a state that it rolls by max_query_len - length: a row of 1 token among rows of 4 keeps its state."""
    x, state = torch.randn(6, 8, device=device), make_state("N,D,S", 3, 8, 3, torch.float32, device)
    before = state.clone()
    starts = torch.tensor([0, 4, 5, 5], device=device)
    for max_query_len in (-1, 4):
        state.copy_(before)
        check(x, state, torch.ones(8, 4, device=device), query_start_loc=starts, max_query_len=max_query_len)
        assert torch.equal(state[1], torch.cat([before[1, :, 1:], x[4, :, None]], 1))
        assert torch.equal(state[2], before[2]), "a row without tokens keeps its state"


# ---- properties ----------------------------------------------------------------------------------------------------------------

_DIM = 12
quick = settings(max_examples=15, deadline=None)


def _sequence(seed: int, tokens: int, dtype: torch.dtype, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(_DIM, tokens).to(device, dtype), *make_weights(_DIM, width, dtype, device)


@given(
    st.integers(0, 10**6), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(list(DTYPES.values())), st.integers(1, 7)
)
@quick
def _decoding_in_chunks(device: torch.device, seed: int, chunks: list[int], dtype: torch.dtype, width: int) -> None:
    x, weight, bias = _sequence(seed, sum(chunks), dtype, width, device)
    state = torch.zeros(3, _DIM, width - 1, dtype=dtype, device=device)
    pieces, at = [], 0
    for chunk in chunks:
        pieces.append(causal_conv1d_update(x[None, :, at : at + chunk], state[1:2], weight, bias, True)[0])
        at += chunk
    assert mismatch(torch.cat(pieces, 1).cpu(), reference.causal_conv1d(x[None].cpu(), weight.cpu(), bias.cpu(), True)[0]) is None
    tail = torch.cat([torch.zeros_like(x[:, : width - 1]).new_zeros(_DIM, width - 1), x], 1)[:, x.shape[1] :]
    assert torch.equal(state[1], tail) and not state[0].any() and not state[2].any()


def test_decoding_in_chunks_is_the_whole(device: torch.device) -> None:
    _decoding_in_chunks(device)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)], ids=str
)
def test_decode_continues_in_the_pool_that_prefill_leaves(device: torch.device, dtypes: tuple, width: int, layout: str) -> None:
    """Sequences of any length; the same states, bit for bit, as when prefill does all of it."""
    lengths, decoded, dim = [5, 1, 30, 0], 3, 24
    sequences = torch.randn(4, dim, max(lengths) + decoded).to(device, dtypes[0])
    weight, bias = make_weights(dim, width, dtypes[0], device)
    slots = torch.tensor([3, 0, 5, 2], device=device)
    pool = make_state(layout, 6, dim, width - 1, dtypes[1], device)
    pool[2] = 0  # of the sequence that has no tokens yet: prefill leaves it alone
    whole_pool = pool.clone()

    def prefill(states: Tensor, more: int) -> tuple[Tensor, ...]:
        ends = [length + more for length in lengths]
        packed = torch.cat([row[:, :end] for row, end in zip(sequences, ends, strict=True)], 1).T.contiguous().T
        starts = torch.tensor([0, *itertools.accumulate(ends)], device=device)
        return causal_conv1d_fn(packed, weight, bias, states, starts, slots).split(ends, 1)

    prefill(pool, 0)
    tokens = [torch.stack([row[:, length + t] for row, length in zip(sequences, lengths, strict=True)]) for t in range(decoded)]
    outs = torch.stack([causal_conv1d_update(token, pool, weight, bias, "silu", slots) for token in tokens], 2)
    wanted = torch.stack([out[:, -decoded:] for out in prefill(whole_pool, decoded)])
    assert mismatch(outs, wanted.double(), may_differ=0.02) is None and same_bits(pool, whole_pool)


@pytest.mark.parametrize("activation", [True, "silu", "swish", False, None])
def test_each_name_of_an_activation_and_each_form_of_no_bias(device: torch.device, activation: bool | str | None) -> None:
    x, weight, bias = torch.randn(2, _DIM, device=device), *make_weights(_DIM, 4, torch.float32, device)
    outs = []
    for own in (bias, None, bias[:0]):
        state = torch.ones(2, _DIM, 3, device=device)
        outs.append(causal_conv1d_update(x, state, weight, own, activation))
        expected = expected_update(x.cpu(), torch.ones(2, _DIM, 3), weight.cpu(), None if own is not bias else bias.cpu(), bool(activation))
        assert mismatch(outs[-1].cpu(), expected.out) is None
        split = causal_conv1d_update_split_qkv(x, torch.ones_like(state), weight, 4, _DIM - 8, own, activation)
        assert torch.equal(torch.cat(split, 1), outs[-1])
    assert torch.equal(outs[1], outs[2])


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6), st.sampled_from(list(DTYPES.values())), st.booleans(), st.data())
@quick
def _speculative(device: torch.device, seed: int, drafts: int, width: int, dtype: torch.dtype, columns_inside: bool, data) -> None:
    x, weight, bias = _sequence(seed, 30, dtype, width, device)
    state = make_state("N,D,S" if columns_inside else "N,S,D", 2, _DIM, width - 2 + drafts, dtype, device)
    state[1, :, : width - 1] = 0
    whole = reference.causal_conv1d(x[None].cpu(), weight.cpu(), bias.cpu(), True)[0]
    done, accepted = 0, 1
    while done + drafts < 30:
        tokens = x[:, done : done + drafts].clone()
        right = data.draw(st.integers(1, drafts))
        tokens[:, right:] = torch.randn_like(tokens[:, right:])  # rejected later: nothing of them may remain
        out = causal_conv1d_update(
            tokens.T.contiguous(), state, weight, bias, True, torch.tensor([1], device=device),
            torch.tensor([accepted], device=device), torch.tensor([0, drafts], device=device), drafts,
        )  # fmt: skip
        assert mismatch(out.T[:, :right].cpu(), whole[:, done : done + right]) is None
        done, accepted = done + right, right


def test_speculative_decoding_with_any_acceptance_is_the_plain_run(device: torch.device) -> None:
    """Rejected tokens leak into the state elsewhere (vLLM #50272), or the wrong ones are committed."""
    _speculative(device)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 6), st.sampled_from(list(DTYPES.values())))
@quick
def _tree(device: torch.device, seed: int, tokens: int, width: int, dtype: torch.dtype) -> None:
    x, weight, bias = _sequence(seed, tokens, dtype, width, device)
    state = make_state("N,D,S", 1, _DIM, width - 1, dtype, device)
    before = state.clone()
    parents: list[int] = []
    child, sibling = random_tree(random.Random(seed), 1, tokens, parents)
    parent = torch.full((1, tokens), -7, device=device)
    windows = torch.zeros(1, tokens, _DIM, width - 1, dtype=dtype, device=device)
    out = causal_conv1d_update(x[None], state, weight, bias, True, intermediate_conv_window=windows, retrieve_parent_token=parent,
                               retrieve_next_token=child.to(device), retrieve_next_sibling=sibling.to(device))[0]  # fmt: skip
    assert torch.equal(state, before) and parent[0].tolist() == parents
    for t in range(tokens):
        path = [t]
        while path[0]:
            path.insert(0, parents[path[0]])
        alone = before.clone()
        along = causal_conv1d_update(x[None][:, :, path], alone, weight, bias, True)[0]
        assert mismatch(out[:, t].cpu(), along[:, -1].double().cpu()) is None
        assert torch.equal(windows[0, t], alone[0])


def test_a_tree_of_drafts_is_each_of_its_paths(device: torch.device) -> None:
    _tree(device)


@pytest.mark.parametrize("seed", range(5))
def test_links_that_lead_nowhere_or_back_are_ignored(device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    links = torch.randint(-3, 12, (2, 3, 9), device=device)
    parent = torch.zeros(3, 9, dtype=torch.int64, device=device)
    check(torch.randn(3, 8, 9, device=device), make_state("N,D,S", 3, 8, 3, torch.float32, device), torch.ones(8, 4, device=device),
          retrieve_next_token=links[0], retrieve_next_sibling=links[1], retrieve_parent_token=parent)  # fmt: skip


@given(st.integers(0, 10**6), st.integers(1, 5))
@quick
def _circular(device: torch.device, seed: int, tokens: int) -> None:
    """A circular state, of any length, is the plain one in another order."""
    width, state_len = 4, 3 + seed % 6
    x, weight, bias = _sequence(seed, 23, torch.bfloat16, width, device)
    state = torch.zeros(1, _DIM, state_len, dtype=torch.bfloat16, device=device)
    pieces = []
    for at in range(0, 23, tokens):
        seen = torch.tensor([at], device=device, dtype=torch.int32)
        pieces.append(causal_conv1d_update(x[None, :, at : at + tokens], state, weight, bias, True, cache_seqlens=seen)[0])
    assert mismatch(torch.cat(pieces, 1).cpu(), reference.causal_conv1d(x[None].cpu(), weight.cpu(), bias.cpu(), True)[0]) is None


def test_circular_states(device: torch.device) -> None:
    _circular(device)


@given(st.integers(0, 10**6), st.permutations(range(5)), st.sampled_from(LAYOUTS))
@quick
def _rows(device: torch.device, seed: int, order: list[int], layout: str) -> None:
    x = torch.randn(5, _DIM, generator=torch.Generator().manual_seed(seed)).to(device, torch.float16)
    torch.manual_seed(seed)
    weight, bias = make_weights(_DIM, 4, torch.float16, device)
    state = make_state(layout, 8, _DIM, 3, torch.float16, device)
    slots = torch.randperm(8)[:5].to(device)
    clean, poisoned = state.clone(), state.clone()
    poisoned[[slot for slot in range(8) if slot not in slots.tolist()]] = torch.nan
    out = causal_conv1d_update(x, clean, weight, bias, True, slots)
    again = causal_conv1d_update(x[order], poisoned, weight, bias, True, slots[order])
    assert torch.equal(again, out[order]), "permuting rows permutes outputs, and slots of nobody do not matter"
    assert torch.equal(poisoned[slots], clean[slots]) and poisoned.isnan().sum() == 3 * _DIM * 3


def test_rows_are_independent_and_other_slots_do_not_matter(device: torch.device) -> None:
    _rows(device)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_layouts_and_batches_agree_bit_for_bit(device: torch.device, dtype: torch.dtype) -> None:
    x, (weight, bias) = torch.randn(3, 40).to(device, dtype), make_weights(40, 4, torch.float32, device)
    state = make_state("N,D,S", 3, 40, 3, dtype, device)
    results = []
    for layout in LAYOUTS:
        other = make_state(layout, 3, 40, 3, dtype, device).copy_(state)
        results.append(causal_conv1d_update(x, other, weight, bias, True))
        assert torch.equal(results[-1], results[0])
        alone = make_state(layout, 3, 40, 3, dtype, device).copy_(state)
        assert torch.equal(causal_conv1d_update(x[1:2], alone[1:2], weight, bias, True), results[0][1:2])


def test_a_state_in_float32_keeps_what_x_has(device: torch.device) -> None:
    for dim in (8, 33):
        x, state = torch.randn(2, dim).to(device, torch.bfloat16), torch.randn(2, dim, 3, device=device)
        check(x, state, *make_weights(dim, 4, torch.bfloat16, device))
        assert torch.equal(state[:, :, 2], x.float())


def test_a_state_moves_as_bits(device: torch.device) -> None:
    """NaNs with any payload, infinities and denormals pass through the window unchanged."""
    for dtype, kernel in itertools.product((torch.float16, torch.bfloat16), kernels(device)):
        every = torch.arange(-(2**15), 2**15, 97, dtype=torch.int32).to(torch.int16)[:672].view(dtype).view(1, -1).to(device)
        state = every[:, :, None].expand(1, 672, 3).contiguous()
        weight = torch.ones(672, 4, device=device, dtype=dtype if kernel == "step" else torch.float32)  # step takes no wider ones
        causal_conv1d_update(every, state, weight, kernel=kernel)
        assert same_bits(state[:, :, :2], every[:, :, None].expand(1, 672, 2)), kernel


@pytest.mark.parametrize("form", ["new", "split", "in_place"])
@pytest.mark.parametrize("mode", ["one token", "four tokens", "packed", "speculative"])
def test_one_launch_and_no_memory_beside_the_result(device: torch.device, mode: str, form: str) -> None:
    dim = 1024  # GPUs allocate multiples of 512 bytes
    x = torch.randn(8, dim, 4) if mode == "four tokens" else torch.randn(8, dim)
    options: dict[str, Any] = {"conv_state_indices": torch.tensor([5, 0, -1, 3], dtype=torch.int32, device=device)}
    if mode == "packed" or mode == "speculative":
        options["query_start_loc"] = torch.tensor([0, 2, 3, 3, 7], device=device)
    else:
        x = x[:4]
    if mode == "speculative":
        options["num_accepted_tokens"] = torch.tensor([1, 2, 1, 4], dtype=torch.int32, device=device)
    for layout, width in itertools.product(("N,D,S", "N,S,D"), (4, 3, 7)):  # of which every kernel of a GPU serves some
        state = make_state(layout, 6, dim, width + 2 if mode == "speculative" else width - 1, torch.bfloat16, device)
        weight, bias = make_weights(dim, width, torch.bfloat16, device)
        x = x.to(device, torch.bfloat16)
        call: Callable[[], object]
        if form == "split":
            call = functools.partial(causal_conv1d_update_split_qkv, x, state, weight, 256, 512, bias, True, **options)
        else:
            call = functools.partial(causal_conv1d_update, x, state, weight, bias, True, out=x if form == "in_place" else None, **options)
        allocated, launches = cost_of(call)
        assert allocated == (0 if form == "in_place" else x.nbytes)
        assert len(launches) == (1 if device.type == "cuda" else 0), launches


# ---- q, k, v -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rows", "tokens", "packed"])
def test_the_split_is_the_update_in_three_pieces(device: torch.device, form: str) -> None:
    """ATOM's mixes up channels for more than one token a row; AITER's drop or misplace tiles where k_dim % 64 != 0."""
    for k_dim, v_dim in ((8, 16), (3, 5), (0, 8), (36, 61), (64, 128), (5, 0)):
        dim = 2 * k_dim + v_dim
        x = torch.randn(3, dim, 4).to(device, torch.bfloat16)
        options: dict[str, Any] = {"conv_state_indices": torch.tensor([1, -1, 2], device=device)}
        if form == "rows":
            x = x[:, :, 0].contiguous()
        elif form == "packed":
            x = x[:2].mT.reshape(8, dim).contiguous()
            options["query_start_loc"] = torch.tensor([0, 1, 3, 6], device=device)
        state = make_state("N,D,S", 3, dim, 3, torch.bfloat16, device)
        weight, bias = make_weights(dim, 4, torch.bfloat16, device)
        other, before = state.clone(), state.clone()
        whole = causal_conv1d_update(x, state, weight, bias, True, **options)
        rows = whole.mT.reshape(-1, dim) if whole.dim() == 3 else whole
        split = causal_conv1d_update_split_qkv(x, other, weight, k_dim, v_dim, bias, "silu", **options)
        assert same_bits(other, state) and all(part.is_contiguous() for part in split)
        for part, expected in zip(split, rows.split([k_dim, k_dim, v_dim], 1), strict=True):
            assert same_bits(part, expected)
        q, k, v = (torch.full_like(part, 42.0) for part in split)
        causal_conv1d_update_split_qkv(x, other, weight, k_dim, v_dim, bias, "silu", out=(q, k, v), **options)
        assert all(((mine == 42.0) == (part == 0)).all() for mine, part in zip((q, k, v), split, strict=True)), "padding stays"
        q, k, v = (torch.zeros_like(part).T.contiguous().T for part in split)
        causal_conv1d_update_split_qkv(x, before, weight, k_dim, v_dim, bias, "silu", out=(q, k, v), **options)
        assert all(torch.equal(mine, part) for mine, part in zip((q, k, v), split, strict=True)), "neighbouring tokens in the outputs"


# ---- bad input -----------------------------------------------------------------------------------------------------------------


def _good() -> dict[str, Any]:
    return {"x": torch.zeros(2, 6, 2), "conv_state": torch.ones(3, 6, 3), "weight": torch.zeros(6, 4), "bias": torch.zeros(6)}


zeros = torch.zeros


def ints(*values: int) -> Tensor:
    return torch.tensor(values)


BAD_CALLS: dict[str, tuple[Callable[[], dict], type[Exception], list[str]]] = {
    "activation": (lambda: {"activation": "relu"}, ValueError, ["activation:", "'relu'", "'silu'"]),
    "x of one dimension": (lambda: {"x": zeros(6)}, ValueError, ["x:", "(6,)", "(batch, dim, seqlen)"]),
    "packed x of three": (lambda: {"query_start_loc": ints(0, 1, 2)}, ValueError, ["x:", "(2, 6, 2)", "2 dimensions (tokens, dim)"]),
    "x of float64": (lambda: {"x": zeros(2, 6, 2).double()}, TypeError, ["x:", "torch.float64"]),
    "conv_state of float64": (lambda: {"conv_state": zeros(3, 6, 3).double()}, TypeError, ["conv_state:", "torch.float64"]),
    "conv_state of another dim": (lambda: {"conv_state": zeros(3, 5, 3)}, ValueError, ["conv_state:", "(3, 5, 3)", "6"]),
    "conv_state too short": (lambda: {"conv_state": zeros(3, 6, 2)}, ValueError, ["conv_state:", "(3, 6, 2)", "width - 1 = 3"]),
    "fewer slots than rows": (lambda: {"conv_state": zeros(1, 6, 3)}, ValueError, ["conv_state:", "a slot for each of the 2 rows"]),
    "conv_state expanded": (lambda: {"conv_state": zeros(3, 6, 1).expand(3, 6, 3)}, ValueError, ["conv_state:", "memory of its own"]),
    "weight of another dim": (lambda: {"weight": zeros(5, 4)}, ValueError, ["weight:", "(5, 4)", "(6, width >= 1)"]),
    "bias of another dim": (lambda: {"bias": zeros(7)}, ValueError, ["bias:", "(7,)", "(6,)"]),
    "out of another shape": (lambda: {"out": zeros(2, 6, 3)}, ValueError, ["out:", "(2, 6, 3)", "(2, 6, 2)"]),
    "out of another dtype": (lambda: {"out": zeros(2, 6, 2).half()}, TypeError, ["out:", "torch.float16", "torch.float32"]),
    "indices of floats": (lambda: {"conv_state_indices": zeros(2)}, TypeError, ["conv_state_indices:", "torch.float32", "integers"]),
    "indices of bools": (lambda: {"conv_state_indices": zeros(2).bool()}, TypeError, ["conv_state_indices:", "torch.bool", "integers"]),
    "indices of another batch": (lambda: {"conv_state_indices": ints(0, 1, 2)}, ValueError, ["conv_state_indices:", "(3,)", "(2,)"]),
    "read slots alone": (lambda: {"conv_state_indices_in": ints(0, 1)}, ValueError, ["conv_state_indices_in:", "with it"]),
    "columns alone": (lambda: {"initial_state_idx": ints(0, 0)}, ValueError, ["initial_state_idx:", "conv_state_indices with it"]),
    "speculative and circular": (
        lambda: {"num_accepted_tokens": ints(1, 1), "cache_seqlens": ints(1, 1)}, ValueError, ["num_accepted_tokens:", "cache_seqlens"],
    ),
    "a circular fork": (
        lambda: {"cache_seqlens": ints(1, 1), "conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(0, 1)},
        ValueError, ["cache_seqlens:", "slots to read other than those to write"],
    ),
    "a speculative state too short": (lambda: {"num_accepted_tokens": ints(1, 1)}, ValueError, ["conv_state:", "state_len >= 4"]),
    "windows of another dtype": (
        lambda: {"intermediate_conv_window": zeros(2, 2, 6, 3).half()}, TypeError, ["intermediate_conv_window:", "torch.float16"],
    ),
    "windows too short": (
        lambda: {"intermediate_conv_window": zeros(2, 1, 6, 3)}, ValueError, ["intermediate_conv_window:", "at least 2 tokens"],
    ),
    "half a tree": (lambda: {"retrieve_next_token": zeros(2, 2).int()}, ValueError, ["retrieve_next_token:", "retrieve_next_sibling"]),
    "a parent without a tree": (lambda: {"retrieve_parent_token": zeros(2, 2).int()}, ValueError, ["retrieve_parent_token:"]),
    "kernel is unknown": (lambda: {"kernel": "fastest"}, ValueError, ["kernel:", "'fastest'", "'auto'"]),
    "x requires grad": (lambda: {"x": zeros(2, 6, 2).requires_grad_()}, ValueError, ["x:", "requires grad"]),
    "weight on another device": (lambda: {"weight": zeros(6, 4).to("meta")}, ValueError, ["weight:", "meta", "where x is"]),
    "indices on another device": (
        lambda: {"conv_state_indices": ints(0, 1).to("meta")}, ValueError, ["conv_state_indices:", "meta", "where x is"],
    ),
    "an index": (lambda: {"conv_state_indices": torch.tensor(1)}, ValueError, ["conv_state_indices:", "()", "(2,)"]),
    "no blocks": (lambda: {"conv_state_indices": zeros(2, 0).int()}, ValueError, ["conv_state_indices:", "(2, 0)", "at least one block"]),
    "too many accepted tokens": (
        lambda: {"num_accepted_tokens": ints(1, 1, 1), "conv_state": zeros(3, 6, 5)}, ValueError, ["num_accepted_tokens:", "(3,)", "(2,)"],
    ),
    "starts of two dimensions": (
        lambda: {"x": zeros(2, 6), "query_start_loc": ints(0, 1, 2)[None]}, ValueError, ["query_start_loc:", "(1, 3)"],
    ),
    "x is None": (lambda: {"x": None}, TypeError, ["x:", "None,", "torch.Tensor"]),
    "x is a list": (lambda: {"x": [1.0]}, TypeError, ["x:", "[1.0]", "torch.Tensor"]),
    "conv_state is None": (lambda: {"conv_state": None}, TypeError, ["conv_state:", "None,", "torch.Tensor"]),
    "weight is a list": (lambda: {"weight": [1.0]}, TypeError, ["weight:", "[1.0]", "torch.Tensor"]),
    "bias is a number": (lambda: {"bias": 1.0}, TypeError, ["bias:", "1.0", "torch.Tensor or None"]),
    "indices are a list": (lambda: {"conv_state_indices": [0, 1]}, TypeError, ["conv_state_indices:", "[0, 1]", "torch.Tensor or None"]),
    "windows are a string": (lambda: {"intermediate_conv_window": "w"}, TypeError, ["intermediate_conv_window:", "'w'", "torch.Tensor"]),
    "out is a tuple": (lambda: {"out": (1, 2, 3)}, TypeError, ["out:", "(1, 2, 3)", "torch.Tensor or None"]),
    "pad_slot_id is a float": (lambda: {"pad_slot_id": 1.5}, TypeError, ["pad_slot_id:", "1.5", "int or None"]),
    "pad_slot_id is a bool": (lambda: {"pad_slot_id": True}, TypeError, ["pad_slot_id:", "True", "int or None"]),
    "pad_slot_id is huge": (lambda: {"pad_slot_id": 1 << 70}, TypeError, ["pad_slot_id:", str(1 << 70), "64 bits"]),
    "null_block_id is a bool": (lambda: {"null_block_id": False}, TypeError, ["null_block_id:", "False", "int or None"]),
    "max_query_len is a float": (lambda: {"max_query_len": 1.5}, TypeError, ["max_query_len:", "1.5", "an int"]),
    "kernel is None": (lambda: {"kernel": None}, TypeError, ["kernel:", "None,", "a string"]),
}  # fmt: skip


class _LookOn(torch.utils._python_dispatch.TorchDispatchMode):
    """Sends calls through the operator, as torch.compile and a process's first call do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    with device:
        good = _good()
        arguments = good | make_changes()
    # Shapes and kinds come before values; an operator in between makes no difference.
    for checked, through in ((False, contextlib.nullcontext()), (True, contextlib.nullcontext()), (False, _LookOn())):
        with pytest.raises(error) as caught, through:
            causal_conv1d_update(**arguments, validate_data=checked)
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (good["conv_state"] == 1).all()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"x": None}, TypeError, "x: got None, expected a torch.Tensor"),
        ({"x": zeros(6)}, ValueError, r"x: got shape \(6,\), expected 2 or 3 dimensions"),
        ({"k_dim": 2.0}, TypeError, "k_dim: got 2.0, expected an int"),
        ({"v_dim": None}, TypeError, "v_dim: got None, expected an int"),
        ({"k_dim": 3}, ValueError, r"k_dim, v_dim: got 3 and 2, expected 2 \* k_dim \+ v_dim"),
        ({"out": zeros(2, 6)}, TypeError, r"out: got a torch.float32 tensor of shape \(2, 6\), expected a tuple of three torch.Tensor"),
        (
            {"out": (zeros(2, 2), zeros(2, 2))},
            TypeError,
            r"out: got \(a torch.float32 tensor of shape \(2, 2\), a .*\), expected a tuple of three torch.Tensor",
        ),
        (
            {"out": (zeros(2, 2), zeros(2, 2), None)},
            TypeError,
            r"out: got \(a .*, a .* of shape \(2, 2\), None\), expected a tuple of three torch.Tensor",
        ),
        ({"out": (zeros(2, 2), zeros(3, 2), zeros(2, 2))}, ValueError, r"k: got shape \(3, 2\), expected \(tokens, channels\)"),
    ],
)
def test_bad_input_of_the_split(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    good: dict[str, Any] = {"x": zeros(2, 6), "conv_state": torch.ones(3, 6, 3), "weight": zeros(6, 4), "k_dim": 2, "v_dim": 2}
    for through in (contextlib.nullcontext(), _LookOn()):
        with pytest.raises(error, match=words), through:
            causal_conv1d_update_split_qkv(**(good | changes))
    assert (good["conv_state"] == 1).all()


def test_memory_that_is_written_twice_is_refused(device: torch.device) -> None:
    buffer = torch.randn(4, 6, 8, device=device)
    before = buffer.clone()
    weight = torch.zeros(6, 4, device=device)
    with pytest.raises(ValueError, match="out: shares memory with conv_state"):
        causal_conv1d_update(torch.zeros(2, 6, device=device), buffer[:2, :, :3], weight, out=buffer[:2, :, 2])
    with pytest.raises(ValueError, match="conv_state: shares memory with x"):
        causal_conv1d_update(buffer[:2, :, 2], buffer[:2, :, :3], weight)
    with pytest.raises(ValueError, match="out: shares memory with x"):
        causal_conv1d_update(buffer[:2, :, :2], torch.zeros(2, 6, 3, device=device), weight, out=buffer[:2, :, 1:3])
    with pytest.raises(ValueError, match="q, k, v: got 7 channels"):
        parts = (torch.zeros(2, n, device=device) for n in (2, 2, 3))
        state = torch.zeros(2, 6, 3, device=device)
        torch.ops.hipconv.causal_conv1d_update_split_qkv(*parts, buffer[:2, :, 0], state, weight, None, False)
    links, parent = torch.full((2, 3, 2), -1, dtype=torch.int32, device=device), torch.zeros(2, 3, dtype=torch.int32, device=device)
    tree: dict[str, Any] = {"retrieve_next_token": links[:, :2, 0], "retrieve_next_sibling": links[:, :2, 1]}
    for name, value in (("retrieve_next_token", parent[:, 1:]), ("retrieve_next_sibling", parent[:, :2])):
        with pytest.raises(ValueError, match=f"retrieve_parent_token: shares memory with {name}"):
            causal_conv1d_update(
                buffer[:2, :, :2],
                torch.zeros(2, 6, 3, device=device),
                weight,
                retrieve_parent_token=parent[:, :2],
                **(tree | {name: value}),
            )
    assert (links == -1).all() and not parent.any()
    state = torch.zeros(2, 6, 3, device=device)
    with pytest.raises(ValueError, match="conv_state: shares memory with conv_state_indices"):
        causal_conv1d_update(buffer[:2, :, 0], state, weight, conv_state_indices=state.view(torch.int32)[0, :2, 0])
    with pytest.raises(ValueError, match="k_dim, v_dim: got 2 and 3"):
        causal_conv1d_update_split_qkv(buffer[:2, :, 0], torch.zeros(2, 6, 3, device=device), weight, 2, 3)
    assert torch.equal(buffer, before)


BAD_VALUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a slot outside": ({"conv_state_indices": ints(0, 5)}, ["conv_state_indices[1]: got 5", "0 to 4"]),
    "a slot outside in few bits": ({"conv_state_indices": ints(0, -2).to(torch.int8)}, ["conv_state_indices[1]: got -2", "0 to 4"]),
    "a slot outside in many bits": (
        {"conv_state_indices": torch.tensor([0, 2**64 - 1], dtype=torch.uint64)}, [f"conv_state_indices[1]: got {2**64 - 1}", "0 to 4"],
    ),
    "a slot twice": ({"conv_state_indices": ints(2, 2)}, ["conv_state_indices[1]: got 2", "conv_state_indices[0] is the same"]),
    "a slot to read outside": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(-2, 1)}, ["conv_state_indices_in[0]: got -2"],
    ),
    "a slot that another row writes": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(4, 0)},
        ["conv_state_indices_in[1]: got 0", "conv_state_indices[0] is the same"],
    ),
    "a block outside": (
        {"conv_state_indices": ints(0, 1)[:, None], "initial_state_idx": ints(0, 1)},
        ["initial_state_idx[1]: got 1", "0 to 0, a column of conv_state_indices"],
    ),
    "a block outside of the other table": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(2, 3)[:, None], "initial_state_idx": ints(0, 1)},
        ["initial_state_idx[1]: got 1", "a column of conv_state_indices_in"],
    ),
    "no token accepted": ({"num_accepted_tokens": ints(1, 0)}, ["num_accepted_tokens[1]: got 0", "1 to 2"]),
    "a row whose number is the pad slot's": (
        {"num_accepted_tokens": ints(1, 0), "pad_slot_id": 1}, ["num_accepted_tokens[1]: got 0"],
    ),
    "too many accepted": ({"num_accepted_tokens": ints(3, 1)}, ["num_accepted_tokens[0]: got 3"]),
    "more drafts than a state holds": (
        {"num_accepted_tokens": ints(1, 1), "query_start_loc": ints(0, 3, 4), "x": zeros(4, 6)}, ["query_start_loc: got 3 tokens of row 0"],
    ),
    "starts before": ({"query_start_loc": ints(-1, 2, 2)}, ["query_start_loc[0]: got -1", "at least 0"]),
    "runs backwards": ({"query_start_loc": ints(0, 2, 1)}, ["query_start_loc[2]: got 1", "at least 2"]),
    "ends late": ({"query_start_loc": ints(0, 2, 3)}, ["query_start_loc[2]: got 3", "at most 2, the tokens"]),
    "is longer than it says": ({"query_start_loc": ints(0, 2, 2), "max_query_len": 1}, ["max_query_len: got 1", "2, the tokens of row 0"]),
    "is longer than its windows": (
        {"query_start_loc": ints(0, 1, 4), "x": zeros(4, 6), "intermediate_conv_window": zeros(2, 2, 6, 3)},
        ["intermediate_conv_window: got shape (2, 2, 6, 3)", "at least 3 tokens", "row 1"],
    ),
    "a window outside": (
        {"intermediate_conv_window": zeros(2, 2, 6, 3), "intermediate_state_indices": ints(0, 2)},
        ["intermediate_state_indices[1]: got 2"],
    ),
    "a window twice": (
        {"intermediate_conv_window": zeros(2, 2, 6, 3), "intermediate_state_indices": ints(1, 1)},
        ["intermediate_state_indices[1]: got 1", "a slot of its own"],
    ),
    "a link back": (
        {"x": zeros(2, 6, 3), "retrieve_next_token": ints(1, 2, -1, 1, 1, -1).view(2, 3), "retrieve_next_sibling": ints(-1).expand(2, 3)},
        ["retrieve_next_token[1, 1]: got 1", "a token after 1 of the row's 3"],
    ),
    "a link to no token": (
        {"x": zeros(2, 6, 3), "retrieve_next_token": ints(-1).expand(2, 3), "retrieve_next_sibling": ints(-1, 3).repeat(3).view(2, 3)},
        ["retrieve_next_sibling[0, 1]: got 3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_VALUES)
def test_validate_data_names_the_first_offender(name: str) -> None:
    options, words = BAD_VALUES[name]
    state = torch.ones(5, 6, 4)
    arguments: dict[str, Any] = {"x": zeros(2, 6), "conv_state": state, "weight": zeros(6, 4)} | options
    for call in (causal_conv1d_update, functools.partial(causal_conv1d_update_split_qkv, k_dim=2, v_dim=2)):
        with pytest.raises(ValueError) as caught:
            call(**arguments, validate_data=True)
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (state == 1).all()


# Values that say nothing wrong: of entries that the call does not use, of padding, and of rows that write nothing.
UNUSED_VALUES: dict[str, dict[str, Any]] = {
    "entries of other blocks": {"conv_state_indices": ints(2, 99, 0, -7).view(2, 2)},
    "padding twice": {"conv_state_indices": ints(-1, -1), "num_accepted_tokens": ints(0, 99)},
    "the null block twice": {"conv_state_indices": ints(0, 0), "null_block_id": 0},
    "what padding would write": {"conv_state_indices": ints(99, 1), "conv_state_indices_in": ints(-1, 2)},
    "what padding would read": {"conv_state_indices": ints(-1, -1), "conv_state_indices_in": ints(99, 2)},
    "a row without tokens": {"conv_state_indices": ints(1, 1), "query_start_loc": ints(0, 2, 2), "num_accepted_tokens": ints(1, 0)},
    "starts after some tokens": {"query_start_loc": ints(1, 1, 2)},
    "one slot read by all": {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(4, 4)},
    "rows that read what they write": {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(0, 1)},
    "a tree, which writes no state": {
        "x": zeros(2, 6, 1), "conv_state_indices": ints(3, 3),
        "retrieve_next_token": ints(-1, -1).view(2, 1), "retrieve_next_sibling": ints(-1, -1).view(2, 1),
    },
    "no rows of a tree": {
        "x": zeros(0, 6, 3), "retrieve_next_token": zeros(0, 3).int(), "retrieve_next_sibling": zeros(0, 3).int(),
    },
    "no windows of a width of one": {"weight": zeros(6, 1), "conv_state_indices": ints(2, 2), "num_accepted_tokens": ints(0, 9)},
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSED_VALUES)
def test_validate_data_does_not_look_at_what_is_not_used(name: str) -> None:
    causal_conv1d_update(
        **({"x": zeros(2, 6), "conv_state": torch.ones(5, 6, 4), "weight": zeros(6, 4)} | UNUSED_VALUES[name]), validate_data=True
    )


def in_random_types(draw: random.Random, options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options, these tensors of them in any integer type that holds their values."""
    changed = dict(options)
    for name in names:
        values = options.get(name)
        if values is not None:
            low, high = (int(values.min()), int(values.max())) if values.numel() else (0, 0)
            fitting = [dtype for dtype in INTEGERS if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max]
            changed[name] = values.to(draw.choice(fitting))
    return changed


def test_validate_data_accepts_what_is_right_in_every_type(device: torch.device) -> None:
    for seed in range(80):
        arguments, options = random_call(random.Random(seed), device)
        slots = arguments[1].shape[0]
        for name in ("conv_state_indices", "conv_state_indices_in"):
            if name in options:
                options[name] = options[name].long().where(options[name] < slots, -1)
        windows = options.get("intermediate_state_indices")
        if windows is not None and (windows < 0).any():
            del options["intermediate_state_indices"]
        options = in_random_types(
            random.Random(seed), options,
            ("conv_state_indices", "conv_state_indices_in", "num_accepted_tokens", "query_start_loc", "block_idx_last_scheduled_token",
             "initial_state_idx", "cache_seqlens", "intermediate_state_indices", "retrieve_next_token", "retrieve_next_sibling"),
        )  # fmt: skip
        check(*arguments, validate_data=True, **options)


def test_validate_data_says_so_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match="validate_data: got True while the current stream captures a graph, expected False"):
        _serving_checks.refuse_capture(cast(Tensor, SimpleNamespace(is_cuda=True)))
    causal_conv1d_update(zeros(2, 6), zeros(2, 6, 3), zeros(6, 4), validate_data=True)  # host memory is no part of a graph


# ---- torch ---------------------------------------------------------------------------------------------------------------------


def test_opcheck(device: torch.device) -> None:
    weight, bias = make_weights(6, 4, torch.float32, device)
    state = make_state("N,D,S", 3, 6, 3, torch.float32, device)
    x, out = torch.randn(2, 6, 2, device=device), torch.zeros(2, 6, 2, device=device)
    op = torch.ops.hipconv.causal_conv1d_update.default
    torch.library.opcheck(op, (out, x, state, weight, bias, True), {"conv_state_indices": torch.tensor([0, 2], device=device)})
    torch.library.opcheck(op, (out, None, state, weight, None, False))
    child = torch.tensor([[1, -1], [-1, -1]], device=device)
    tree = {"retrieve_next_token": child, "retrieve_next_sibling": torch.full_like(child, -1), "retrieve_parent_token": child.clone()}
    torch.library.opcheck(
        op, (out, x, state, weight, bias, True), {"intermediate_conv_window": torch.zeros(2, 2, 6, 3, device=device), **tree}
    )
    q, k, v = (torch.zeros(4, 2, device=device) for _ in range(3))
    torch.library.opcheck(torch.ops.hipconv.causal_conv1d_update_split_qkv.default, (q, k, v, x, state, weight, bias, True))


def test_what_is_written_is_marked_and_nothing_else() -> None:
    """A schema elsewhere declares conv_state unwritten: torch.compile may then reorder or drop the update."""
    for op, written in {
        torch.ops.hipconv.causal_conv1d_update.default: {"out", "conv_state", "intermediate_conv_window", "retrieve_parent_token"},
        torch.ops.hipconv.causal_conv1d_update_split_qkv.default: {
            "q", "k", "v", "conv_state", "intermediate_conv_window", "retrieve_parent_token",
        },
    }.items():  # fmt: skip
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


# ---- GPU only ------------------------------------------------------------------------------------------------------------------


@needs_gpu
def test_a_captured_graph_serves_other_rows_lengths_and_slots() -> None:
    cuda = torch.device("cuda")
    weight, bias = make_weights(512, 4, torch.bfloat16, cuda)
    for layout, speculative in itertools.product(("N,D,S", "N,S,D"), (False, True)):
        state = make_state(layout, 20, 512, 6, torch.bfloat16, cuda)
        x, out = torch.zeros(24, 512, dtype=torch.bfloat16, device=cuda), torch.zeros(24, 512, dtype=torch.bfloat16, device=cuda)
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


# ---- the command ---------------------------------------------------------------------------------------------------------------


def measure(lengths: list[int], options: argparse.Namespace, backend: str, dim: int, width: int, state_len: int, dtype: str,
            layout: str, table: Table) -> bool:  # fmt: skip
    """Check one case against the reference, time it, print its row; True if right."""
    device = device_of(backend)
    torch.manual_seed(0)
    batch = len(lengths)
    x = torch.randn(sum(lengths), dim).to(device, DTYPES[dtype])
    state = make_state(layout, 2 * batch, dim, state_len, DTYPES[options.state_dtype or dtype], device)
    weight, bias = make_weights(dim, width, DTYPES[dtype], device)
    call: dict[str, Any] = {"conv_state_indices": torch.randperm(2 * batch)[:batch].int()}
    if set(lengths) != {1}:
        call["query_start_loc"] = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    if options.speculative:
        call["num_accepted_tokens"] = torch.randint(1, state_len - width + 3, (batch,), dtype=torch.int32)
    call = {name: value.to(device) for name, value in call.items()}
    with use_backend(backend):
        try:
            live = check(x, state, weight, bias, options.use_silu, kernel=options.kernel, **call).live
            padding = sum(not tokens.any() for tokens in live.split(lengths) if len(tokens) > 0)  # too long for state_len
            result = f"ok, but {padding} of {batch} rows are only padding: they need a larger --state_len" if padding else "ok"
        except AssertionError as error:
            result = f"WRONG: {str(error).splitlines()[0]}"
        out = torch.empty_like(x)
        took = microseconds(
            lambda: causal_conv1d_update(x, state, weight, bias, options.use_silu, out=out, kernel=options.kernel, **call), device
        )  # fmt: skip
    moved = 2 * x.nbytes + 2 * batch * dim * state_len * state.element_size()
    lengths_text = f"{batch}x{lengths[0]}" if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    table.row(
        f"{lengths_text} D{dim} w{width} S{state_len}", dtype, layout, f"{backend}/{options.kernel}", f"{took:.1f}",
        f"{moved / took / 1e3:.2f}", result,
    )  # fmt: skip
    return result.startswith("ok")


def test_the_command_prints_a_row_a_case_and_fails_on_a_mismatch(monkeypatch, capsys) -> None:
    words = "--batch 1,3 --dim 8 --width 4 --state_len 3 --dtype float16 --backend cpu --layout N,D,S"
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split()])
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
    monkeypatch.setattr(sys.modules[__name__], "mismatch", lambda out, expected: "invented")
    assert main() == 1
    assert "WRONG: invented" in capsys.readouterr().out


_ONE = "--dim 8 --dtype float32 --backend cpu --layout N,S,D"


@pytest.mark.parametrize(
    ("words", "results"),
    [
        ("--batch 2 --width 1,2,6,9", ["ok"] * 8),  # each with the two default state lengths
        ("--seqlens 0,1 --seqlens 0 --width 1,6 --state_len 5 --speculative", ["ok"] * 4),
        ("--seqlens 1,1,7 --speculative", ["ok"] * 2),
        ("--seqlens 1,7,7 --speculative --state_len 6", ["ok, but 2 of 3 rows are only padding: they need a larger --state_len"]),
    ],
)
def test_the_command_runs_any_lengths_and_sizes(monkeypatch, capsys, words: str, results: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split(), *_ONE.split()])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()[1:-1]
    assert [row.endswith(result) for row, result in zip(rows, results, strict=True)] == [True] * len(rows), rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--width 6 --state_len 4,5", "argument --state_len: got 4, expected at least width - 1 = 5 at --width 6"),
        ("--width 0", "argument --width: got '0', expected an integer of at least 1"),
        ("--seqlens 1,-2", "argument --seqlens: got '-2', expected an integer of at least 0"),
        ("--seqlens ,", "argument --seqlens: got ',', expected one value or several, comma-separated"),
        ("--seqlens 1 --batch 2", "argument --batch: not allowed with argument --seqlens"),
    ],
)
def test_the_command_refuses_what_cannot_be(monkeypatch, capsys, words: str, message: str) -> None:
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split(), *_ONE.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.splitlines()[-1] == f"test_causal_conv1d_update.py: error: {message}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = list_of(at_least(1))
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--batch", type=several, nargs="+", default=[[1, 64]], help="rows of one token; one or several; default 1,64")
    either.add_argument("--seqlens", type=list_of(at_least(0)), action="append", help="tokens of each row, like 1,1,4; may be repeated")
    parser.add_argument("--dim", type=several, nargs="+", default=[[512, 333]], help="one or several; default 512,333")
    parser.add_argument("--width", type=several, nargs="+", default=[[4]], help="one or several; default 4")
    described = "columns of a slot, one or several; default the fewest that serve, and one more"
    parser.add_argument("--state_len", type=list_of(at_least(0)), nargs="+", help=described)
    for option, words, default in (("dtype", DTYPES, DTYPES), ("backend", BACKENDS, backends())):
        described = f"of {', '.join(words)}; default {', '.join(default)}"
        parser.add_argument(f"--{option}", type=list_of(choice_of(*words)), nargs="+", default=[list(default)], help=described)
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=["N,D,S", "N,S,D"], help="of the state")
    parser.add_argument("--state_dtype", type=choice_of(*DTYPES), help="default: the dtype of x")
    parser.add_argument("--kernel", default="auto", help="a kernel's name, or auto (default)")
    parser.add_argument("--speculative", action="store_true", help="with num_accepted_tokens")
    parser.add_argument("--use_silu", action="store_true", help="SiLU after the convolution")
    options = parser.parse_args()
    rows = options.seqlens or [[1] * batch for batch in flattened(options.batch)]

    columns = [("rows", 24), ("dtype", 8), ("state", 6), ("backend/kernel", 14), ("us", 9), ("GB/s", 8), ("result", 6)]
    sizes = []
    for lengths, width in itertools.product(rows, flattened(options.width)):
        fewest = max(width - 1, width - 2 + max(lengths) if options.speculative else 0)
        for state_len in flattened(options.state_len or [[fewest, fewest + 1]]):
            check_state_len(parser, state_len, width)
            sizes.append((lengths, width, state_len))
    table = Table(columns)
    axes = (options.backend, [sizes], options.dim, options.dtype, [options.layout])
    failures = total = 0
    for backend, (lengths, width, state_len), dim, dtype, layout in itertools.product(*(flattened(axis) for axis in axes)):
        try:
            failures += not measure(lengths, options, backend, dim, width, state_len, dtype, layout, table)
        except ValueError as error:
            sys.exit(f"{backend}: {error}")
        total += 1
    print(f"{total - failures} passed, {failures} failed")
    return 1 if failures or not total else 0
