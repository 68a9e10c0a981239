"""The forward of rows that continue from states or hold packed sequences: any width, any memory,
and what a tap must not see.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from conv1d.cases import random_rows
from support.observe import launches_of
from support.tensors import LAYOUTS, empty_as, mismatch, mismatch_beside_infinities, strided
import hipconv
from hipconv import reference, reference_training

fn: Any = hipconv.causal_conv1d_fn


@pytest.mark.parametrize("seed", range(4))
def test_any_memory_with_poison_around_x_and_canaries_around_out(device: torch.device, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(60):
        arguments, buffer = random_rows(draw, device)
        inputs = {name: value for name, value in arguments.items() if name not in ("out", "final_states_out")}
        expected, expected_final = reference_training.causal_conv1d(**inputs)
        torch.ops.hipconv.causal_conv1d_states_fwd(**arguments)
        what = {
            name: (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        assert (wrong := mismatch(arguments["out"], expected)) is None, f"{what}: {wrong}"
        assert arguments["final_states_out"] is None or torch.equal(arguments["final_states_out"], expected_final), what
        arguments["out"].fill_(42.0)
        assert (buffer == 42.0).all(), f"{what}: wrote outside out"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_few_channels_of_rows_whose_tokens_are_far_apart(device: torch.device, dtype: torch.dtype) -> None:
    """The rows of a token follow each other in memory: beside a row's channels are another row's, or memory before the tensor.
    There are fewer channels than a vector has, and a few more.
    """
    torch.manual_seed(0)
    pairs = []
    for dim, width, seqlen in itertools.product(range(1, 10), range(1, 6), (5, 40)):
        x, _ = strided((17, dim, seqlen), (dim, 1, 17 * dim), 1, dtype, device, torch.nan)
        out, buffer = strided((17, dim, seqlen), (dim, 1, 17 * dim), 1, dtype, device, 42.0)
        x.normal_()
        weight = torch.randn(dim, width, device=device)
        hipconv.causal_conv1d_fwd(out, x, weight)
        pairs.append((out.flatten(), reference.causal_conv1d(x, weight).flatten()))
        assert (buffer[0] == 42.0) and (buffer[1 + out.numel() :] == 42.0).all(), (dim, width, seqlen)
    wrong = mismatch(*map(torch.cat, zip(*pairs, strict=True)))
    assert wrong is None, wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gaps_of_any_length_between_rows_of_out_are_not_written(device: torch.device, dtype: torch.dtype) -> None:
    """x is channel-last, out is not: tiles of tokens are longer than short rows, and as long as some with their gap."""
    torch.manual_seed(0)
    for dim, seqlen, gap in itertools.product((66, 128), (11, 12, 15, 16, 19, 23, 30, 33), range(1, 8)):
        shape, pitch = (1, dim, seqlen), seqlen + gap
        x = torch.randn(1, seqlen, dim, device=device).to(dtype).mT
        out, buffer = strided(shape, (dim * pitch, pitch, 1), 2, dtype, device, 42.0)
        hipconv.causal_conv1d_fwd(out, x, torch.randn(dim, 6, device=device))
        assert not (out == 42.0).all()
        out.fill_(42.0)
        assert (buffer == 42.0).all(), (dim, seqlen, gap)


def test_the_staged_kernel_makes_any_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles cut by the ends of rows and channels; taps that all tokens of a wave reach, that some do, that none does;
    ids that return.
    """
    monkeypatch.setenv("HIPCONV_CONV1D_KERNEL", "staged")
    draw = random.Random(0)
    torch.manual_seed(0)
    for _ in range(60):
        arguments, buffer = random_rows(draw, device)
        inputs = {name: value for name, value in arguments.items() if name not in ("out", "final_states_out")}
        torch.ops.hipconv.causal_conv1d_states_fwd(**arguments)
        wrong = mismatch(arguments["out"], reference_training.causal_conv1d(**inputs)[0])
        assert wrong is None, f"{arguments['x'].shape}, {arguments['x'].stride()}, {arguments['weight'].shape}: {wrong}"
        arguments["out"].fill_(42.0)
        assert (buffer == 42.0).all()


def test_the_kernel_of_lines_makes_any_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that begin and end within rows, and of many rows; x and out in any memory of their own; states between rows."""
    monkeypatch.setenv("HIPCONV_CONV1D_KERNEL", "lines")
    draw = random.Random(1)
    torch.manual_seed(1)
    for _ in range(120):
        arguments, buffer = random_rows(draw, device)
        if arguments["weight"].shape[1] > 8:
            continue
        inputs = {name: value for name, value in arguments.items() if name not in ("out", "final_states_out")}
        torch.ops.hipconv.causal_conv1d_states_fwd(**arguments)
        wrong = mismatch(arguments["out"], reference_training.causal_conv1d(**inputs)[0])
        assert wrong is None, f"{arguments['x'].shape}, {arguments['x'].stride()}, {arguments['weight'].shape}: {wrong}"
        arguments["out"].fill_(42.0)
        assert (buffer == 42.0).all()


@pytest.mark.parametrize("seqlen", [1, 7])
def test_many_short_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch, seqlen: int) -> None:
    """More rows than a tile has, in every order of x and out, with every form; and more than 2^16 of them."""
    draw = random.Random(seqlen)
    many = [((70_000, 3), "channel_first", False, False, False)] if seqlen == 1 else []
    forms = itertools.product([(90, 20)], LAYOUTS, (False, True), (False, True), (False, True))
    for (batch, dim), layout, crossed, has_ids, has_state in (*forms, *many):
        monkeypatch.setenv("HIPCONV_CONV1D_KERNEL", "lines" if batch == 90 else "auto")
        width, dtype = draw.randint(2, 8), draw.choice([torch.float32, torch.bfloat16])
        torch.manual_seed(width)
        other = LAYOUTS[1 - LAYOUTS.index(layout)] if crossed else layout
        x = empty_as(layout, (batch, dim, seqlen), dtype, device).normal_()
        out = empty_as(other, (batch, dim, seqlen), dtype, device).fill_(torch.nan)
        weight, bias = torch.randn(dim, width, device=device) / width**0.5, torch.randn(dim, device=device)
        ids = torch.randint(-1, 2, (batch, seqlen), device=device, dtype=torch.int32) if has_ids else None
        state = torch.randn(batch, dim, width - 1, device=device).to(dtype) if has_state else None
        torch.ops.hipconv.causal_conv1d_states_fwd(out, None, x, weight, bias, ids, state, True)
        expected = reference_training.causal_conv1d(x, weight, bias, ids, state, True)[0]
        assert (wrong := mismatch(out, expected)) is None, (
            f"{batch}x{dim}x{seqlen}, {layout} to {other}, width {width}: {wrong}"
        )


@pytest.mark.parametrize("step", [1, 3])
def test_ids_in_order_at_any_step(device: torch.device, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Taps of eight tokens at a time see what ids leave them: at the ends of rows and where the id changes, in every width."""
    monkeypatch.setenv("HIPCONV_CONV1D_KERNEL", "lines")  # which makes these through tile_lds
    generator = torch.Generator().manual_seed(step)
    draw = random.Random(step)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-5, 5, shape, generator=generator).to(device)

    batch = 3
    for dim, seqlen, layout in itertools.product((3, 40), (5, 8, 9, 16, 71, 300), LAYOUTS):
        width, dtype = draw.randint(1, 8), draw.choice([torch.float32, torch.bfloat16])
        changes = torch.rand(batch, seqlen, generator=generator) < draw.choice([0.02, 0.3])
        ids = torch.full((batch, step * seqlen), -(2**31), dtype=torch.int32, device=device)[:, ::step]
        ids[:] = changes.cumsum(1)
        x, out = (empty_as(layout, (batch, dim, seqlen), dtype, device) for _ in range(2))
        x[:] = integers(batch, dim, seqlen)
        weight, bias = integers(dim, width).to(dtype), integers(dim).to(dtype)
        state = integers(batch, dim, width - 1).to(dtype) if draw.random() < 0.5 and width > 1 else None
        torch.ops.hipconv.causal_conv1d_states_fwd(out.fill_(torch.nan), None, x, weight, bias, ids, state, False)
        expected = reference_training.causal_conv1d(x, weight, bias, ids, state, False)[0].to(dtype)
        assert torch.equal(out, expected), f"{dim} channels, {seqlen} tokens, {layout}, width {width}, {dtype}"


@pytest.mark.parametrize("form", ["plain", "ids", "states"])
def test_rows_of_which_a_thread_makes_some(device: torch.device, form: str) -> None:
    """So many short rows that fill a card otherwise; a few are distinct."""
    some, repeats, dim, seqlen, width = 27, 600, 33, {"plain": 9, "ids": 3, "states": 1}[form], 4
    generator = torch.Generator().manual_seed(seqlen)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-5, 5, shape, generator=generator)

    def repeated(rows: Tensor) -> Tensor:
        return rows.repeat(repeats, 1, 1)

    x, state = integers(some, seqlen, dim).half(), integers(some, width - 1, dim).half()
    weight, bias = integers(dim, width).half().to(device), integers(dim).half().to(device)
    ids = integers(some, seqlen).div(5, rounding_mode="floor").int() if form == "ids" else None
    initial = state.to(device).mT if form == "states" else None
    seq_idx = None if ids is None else ids.to(device)
    expected, expected_final = reference_training.causal_conv1d(x.to(device).mT, weight, bias, seq_idx, initial, False)
    out = torch.full((repeats * some, seqlen, dim), torch.nan, dtype=torch.float16, device=device).mT
    all_initial = None if initial is None else repeated(state).to(device).mT
    all_ids = None if seq_idx is None else seq_idx.repeat(repeats, 1)
    torch.ops.hipconv.causal_conv1d_states_fwd(
        out, all_initial, repeated(x).to(device).mT, weight, bias, all_ids, all_initial, False
    )
    assert torch.equal(out.unflatten(0, (repeats, some)), expected.half().expand(repeats, -1, -1, -1))
    if all_initial is not None:
        assert torch.equal(all_initial.unflatten(0, (repeats, some)), expected_final.half().expand(repeats, -1, -1, -1))


@pytest.mark.parametrize(
    ("width", "dtype", "dim", "begin"),
    [(3, torch.float16, 66, 2), (4, torch.bfloat16, 66, 2), (5, torch.bfloat16, 128, 1)],
    ids=str,
)
def test_many_tokens_in_words_or_anywhere(device: torch.device, width: int, dtype: torch.dtype, dim: int, begin: int) -> None:
    """Words are aligned there, or nothing; so many that a card is full; NaNs and canaries are between tokens."""
    some, seqlen = 5, 67
    repeats = 192 if begin == 2 else 800 if device.type == "cuda" else 2
    own = slice(begin, begin + dim)
    generator = torch.Generator().manual_seed(width)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-5, 5, shape, generator=generator).to(device, dtype)

    rows, weight, bias = integers(some, dim, seqlen), integers(dim, width), integers(dim)
    weight[2, 1] = rows[3, 5, 7] = torch.inf
    x = torch.full((repeats * some, seqlen, dim + 4), torch.nan, dtype=dtype, device=device)
    out = torch.full_like(x, 42.0)
    x[..., own] = rows.mT.repeat(repeats, 1, 1)
    torch.ops.hipconv.causal_conv1d_fwd(out[..., own].mT, x[..., own].mT, weight, bias, False)
    expected = reference_training.causal_conv1d(rows, weight, bias, None, None, False)[0].to(dtype)
    wanted = torch.full_like(out[:some], 42.0)
    wanted[..., own] = expected.mT
    assert torch.equal(out.nan_to_num(7.0).unflatten(0, (repeats, some)), wanted.nan_to_num(7.0).expand(repeats, -1, -1, -1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_filters_of_hundreds_of_taps(device: torch.device, layout: str) -> None:
    for width, batch, dim, seqlen in ((128, 1, 20, 1200), (1024, 2, 3, 1100), (1025, 1, 3, 1100), (200, 1, 70, 90)):
        x = empty_as(layout, (batch, dim, seqlen), torch.bfloat16, device).normal_()
        weight, bias = torch.randn(dim, width, device=device) / width**0.5, torch.randn(dim, device=device)
        ids = torch.arange(seqlen, device=device, dtype=torch.int32).div(150, rounding_mode="floor").expand(batch, seqlen)
        state = torch.randn(batch, width - 1, dim, device=device, dtype=torch.bfloat16).mT
        for seq_idx, initial in ((None, None), (ids, None), (None, state), (ids, state)):
            out = fn(x, weight, bias, seq_idx, initial, activation="silu")
            expected = reference_training.causal_conv1d(x, weight, bias, seq_idx, initial, True)[0]
            assert (wrong := mismatch(out, expected)) is None, (
                f"width {width}, ids {seq_idx is not None}, state {initial is not None}: {wrong}"
            )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [24, 25, 33])
def test_what_a_tap_does_not_see_does_not_count(device: torch.device, dim: int, layout: str) -> None:
    """Infinities and NaNs in weights, in x, in states, and in padding; small integers are exact beside them."""
    values = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    for width, order, has_state in itertools.product([*range(1, 9), 9, 20], (None, "any", "documents"), (False, True)):
        generator = torch.Generator().manual_seed(width)
        shape, value = (2, dim, 45), next(values)
        x = empty_as(layout, shape, torch.float32, device).copy_(torch.randint(-9, 9, shape, generator=generator))
        weight = torch.randint(-9, 9, (dim, width), generator=generator).to(device, torch.float32)
        ids: Any = None
        if order:
            ids = torch.randint(-1, 2, (2, 45), generator=generator, dtype=torch.int32).to(device)
        if order == "documents":  # of one row; that of the other fills it
            ids = ids.abs().cumsum(1, dtype=torch.int32) * torch.tensor([[1], [0]], dtype=torch.int32, device=device)
        state = torch.randint(-9, 9, (2, dim, width - 1), generator=generator).to(device, torch.float32) if has_state else None
        for channel in range(8):
            weight[channel, channel % width] = value
            x[channel % 2, 8 + channel, 5 * channel] = value
            if state is not None and width > 1:
                state[channel % 2, 16 + channel, channel % (width - 1)] = value
        expected, expected_final = reference_training.causal_conv1d(x, weight, None, ids, state)
        out, final = fn(x, weight, None, ids, state, True)
        what = f"width {width}, ids {order}, state {has_state}, {value}"
        assert (wrong := mismatch_beside_infinities(out, expected)) is None, f"{what}: {wrong}"
        finite = expected.isfinite()
        assert torch.equal(out[finite].double(), expected[finite]), what
        assert torch.equal(final.nan_to_num(7.0), expected_final.nan_to_num(7.0)), what


@pytest.mark.parametrize("width", [*range(1, 9), 9, 40])
def test_chunks_joined_by_their_states_are_the_whole(device: torch.device, width: int) -> None:
    for layout in LAYOUTS:
        x = empty_as(layout, (2, 40, 60), torch.bfloat16, device).normal_()
        weight = torch.randn(40, width, device=device)
        state: Any = None
        whole, final = fn(x, weight, None, None, None, True, activation="silu")
        for begin, end in itertools.pairwise([0, 1, 3, 20, 21, 59, 60]):
            out, state = fn(x[..., begin:end], weight, None, None, state, True, activation="silu")
            assert torch.equal(out, whole[..., begin:end]) or device.type == "cpu", (layout, begin)
        assert torch.equal(state, final)


@pytest.mark.parametrize("seqlen", [1, 5, 40])
@pytest.mark.parametrize("width", [2, 4, 8, 20])
def test_final_states_of_neighbouring_channels_at_any_alignment(device: torch.device, width: int, seqlen: int) -> None:
    """They are vectors of 16, 8, 4 and 2 bytes, with canaries around them; some take the place of the initial states."""
    for dtype, (dim, offset, gap) in itertools.product(
        (torch.bfloat16, torch.float32), ((16, 0, 0), (12, 0, 0), (10, 2, 2), (16, 1, 0), (7, 0, 0), (16, 0, 3))
    ):
        torch.manual_seed(dim + offset)
        x = torch.randn(3, seqlen, dim).to(device, dtype).mT
        weight = torch.randn(dim, width).to(device, dtype)
        room = torch.full((3 * (dim + gap) * (width - 1) + offset + 8,), 42.0, dtype=dtype, device=device)
        pitch = dim + gap
        final = room[offset:].as_strided((3, dim, width - 1), ((width - 1) * pitch, 1, pitch))
        for has_state, in_place in ((False, False), (True, False), (True, True)):
            state = torch.randn(3, width - 1, dim).to(device, dtype).mT if has_state else None
            expected, expected_final = reference_training.causal_conv1d(x, weight, None, None, state)
            out = torch.empty_like(x)
            if in_place and state is not None:
                state = final.copy_(state)
            torch.ops.hipconv.causal_conv1d_states_fwd(out, final, x, weight, None, None, state, False)
            assert mismatch(out, expected) is None and torch.equal(final, expected_final), (dtype, dim, offset, gap)
            kept = final.clone()
            final.fill_(42.0)
            assert (room == 42.0).all(), "wrote outside the states"
            final.copy_(kept)


# Strides of rows of (dim, seqlen): the row, channels, tokens; and their first element.
MEMORY = {
    "aligned tokens": lambda dim, seqlen: (((dim + 8) * seqlen, 1, dim + 8), 8),
    "tokens anywhere": lambda dim, seqlen: (((dim + 3) * seqlen, 1, dim + 3), 1),
    "rows anywhere": lambda dim, seqlen: ((dim * (seqlen + 1), seqlen + 1, 1), 1),
    "dense rows": lambda dim, seqlen: ((dim * seqlen, seqlen, 1), 0),
}


@pytest.mark.parametrize("memory", MEMORY)
def test_threads_that_end_a_row_write_its_final_state(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    """Rows that are shorter than the state, and of several runs; bits, with NaNs around x and canaries around the states."""
    monkeypatch.setenv("HIPCONV_CONV1D_KERNEL", "lines" if "rows" in memory else "auto")  # which makes these through tile_lds
    draw, generator = random.Random(memory), torch.Generator().manual_seed(5)
    for dim, seqlen, has_state in itertools.product((3, 40, 66), (2, 7, 17, 75), (False, True)):
        width, dtype = draw.choice([2, 3, 4, 5, 8]), draw.choice([torch.float16, torch.bfloat16, torch.float32])
        batch, past = 5, width - 1
        strides, first = MEMORY[memory](dim, seqlen)

        def integers(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randint(-5, 5, shape, generator=generator).to(device, dtype)

        x, _ = strided((batch, dim, seqlen), strides, first, dtype, device, torch.nan)
        x.copy_(integers(batch, dim, seqlen))
        out, outs = strided((batch, dim, seqlen), strides, first, dtype, device, 42.0)
        pitch = dim + draw.choice([0, 1, 8])
        of_states = (past * pitch, 1, pitch) if draw.random() < 0.7 else (dim * past, past, 1)
        final, finals = strided((batch, dim, past), of_states, 8, dtype, device, 42.0)
        weight, state = integers(dim, width), integers(batch, past, dim).mT if has_state else None
        expected, expected_final = reference_training.causal_conv1d(x, weight, None, None, state, False)
        forward = functools.partial(torch.ops.hipconv.causal_conv1d_states_fwd, out, final, x, weight, None, None, state, False)
        launched = launches_of(forward)
        what = f"{dim}x{seqlen}, width {width}, {dtype}, state {has_state}, {launched}"
        assert torch.equal(out, expected.to(dtype)) and torch.equal(final, expected_final.to(dtype)), what
        for view, buffer in ((out, outs), (final, finals)):
            view.fill_(42.0)
            assert (buffer == 42.0).all(), f"wrote outside: {what}"
        by_threads = any("tile_lds" in name for name in launched)
        assert not (by_threads and len(launched) > 1), f"another kernel wrote the states: {what}"
