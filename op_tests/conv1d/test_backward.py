"""The gradients of the causal conv1d by every kernel: a pytest suite, and a command that checks any case.

python op_tests/test_causal_conv1d_bwd.py --batch 4 --dim 512 --seqlen 2048 --width 4 --dtype float16,bfloat16 --layout
channel_last
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from conv1d.backward_cases import Case, Inputs, grid, kernels_of, refused, served_by, wrong_gradients
from support.backends import WAYS, device_of, environment, use_backend
from support.cli import choice_of, list_of
from support.observe import launches_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch
import hipconv
from hipconv import reference_training

fn: Any = hipconv.causal_conv1d_fn
convolve: Any = hipconv.causal_conv1d


def test_every_kernel_matches_autograd_through_the_reference(device: torch.device) -> None:
    served = set()
    for case in grid():
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
    """Vectors cut by row ends and starts; x, dout and dx aligned alike and not; poison around inputs, canaries around dx; some
    of the rows of each kind hold packed sequences."""
    names = [name for name in kernels_of(device) if name not in ("naive", "openmp")]
    dtypes = itertools.cycle(DTYPES.values())
    served = set()
    for inner in [
        1,
        2,
        3,
        5,
        7,
        8,
        9,
        15,
        17,
        24,
        31,
        33,
        64,
        65,
        130,
        257,
        128,
        176,
        304,
        *([520, 1100] if width == 4 else []),
    ]:
        outer = 1 + inner % 5 if inner % 2 else 8
        pitch, offset, shift = (inner, 0, 0) if inner % 3 else (inner + inner % 5, inner % 4, inner % 2)
        sizes = (2, outer, inner) if layout == "channel_first" else (2, inner, outer)
        strides = (outer * pitch, pitch, 1) if layout == "channel_first" else (outer * pitch, 1, pitch)
        case = Case(
            *sizes,
            width,
            next(dtypes),
            layout=layout,
            use_silu=inner % 4 > 0,
            has_initial=inner % 5 == 0,
            has_final=inner % 7 == 0,
            has_ids=inner % 16 == 8 or inner % 5 == 2,
        )
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
    expected = {"tile"} if layout == "channel_last" else {"vector"}
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
        x=spread(base.x),
        weight=spread(base.weight),
        bias=spread(base.bias),
        dout=spread(base.dout.mT).mT,
        seq_idx=spread(base.seq_idx),
        initial_states=spread(base.initial_states),
        dfinal_states=spread(base.dfinal_states),
    )
    for ours, theirs in zip(spreads.gradients(), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    expanded = base._replace(dout=torch.ones(1, 1, 1, device=device).expand_as(base.x), dfinal_states=None)
    assert (wrong := wrong_gradients(expanded, expanded.gradients())) is None, wrong


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_in_another_order_than_x(device: torch.device, layout: str) -> None:
    """dout, and the dx that is written, lie along the other dim; `auto` takes a fast kernel, without copies of them."""
    shapes = [(2, 16, 24, 4), (1, 40, 70, 8), (3, 5, 33, 2), (2, 130, 9, 1), (5, 66, 130, 5)]
    for number, (sizes, dtype) in enumerate(itertools.product(shapes, DTYPES.values())):
        has_states = number % 4 == 1
        case = Case(*sizes, dtype, has_ids=number % 3 == 0, has_initial=has_states, has_final=has_states, layout=layout)
        same = case.inputs(device, seed=number)
        other = LAYOUTS[layout == LAYOUTS[0]]
        shape = (case.batch, case.dim, case.seqlen)
        crossed = same._replace(dout=empty_as(other, shape, case.dtype, device).copy_(same.dout))
        for inputs in (same, crossed):
            dx = empty_as(other, shape, case.dtype, device).fill_(torch.nan)
            assert (wrong := wrong_gradients(inputs, inputs.gradients(dx=dx))) is None, f"{case}: {wrong}"
        assert (wrong := wrong_gradients(crossed, crossed.gradients())) is None, f"{case}: {wrong}"


@pytest.mark.parametrize("width", range(1, 9))
def test_x_of_neighbouring_channels_beside_rows(device: torch.device, width: int) -> None:
    """Tokens are neighbours in dout and dx, and rows begin anywhere: x comes by 16 bytes, by 4 or by elements."""
    draw = random.Random(width)
    for number in range(6):
        dtype = [*DTYPES.values()][number % 3]
        dims, lengths = [[32, 64, 72], [50, 66], [33]][number % 5 // 2], [[32, 64], [17, 57], [41, 75], [20]][number % 4]
        sizes = (draw.choice([1, 2, 3]), draw.choice(dims), draw.choice(lengths), width)
        names = ("use_silu", "has_bias", "has_ids", "has_initial", "has_final")
        has: dict[str, Any] = {name: draw.random() < 0.4 for name in names}
        case = Case(*sizes, dtype, draw.choice([dtype, torch.float32]), **has)
        good = case.inputs(device, seed=number)
        pitches = [case.dim + draw.choice([0, 0, 8, 2]), *(case.seqlen + draw.choice([0, 0, 1]) for _ in range(2))]
        x, _ = _strided(good.x, (pitches[0] * case.seqlen, 1, pitches[0]), draw.choice([0, 0, 2, 8]), torch.nan)
        (dout, _), (dx, buffer) = (
            _strided(values, (case.dim * pitch, pitch, 1), draw.choice([0, 1]), fill)
            for values, pitch, fill in (
                (good.dout, pitches[1], torch.nan),
                (torch.full_like(good.dout, torch.nan), pitches[2], 42.0),
            )
        )
        inputs = good._replace(x=x, dout=dout)
        what = f"{case}, x {x.stride()}, dout {dout.stride()}, dx {dx.stride()}"
        assert (wrong := wrong_gradients(inputs, inputs.gradients(dx=dx))) is None, f"{what}: {wrong}"
        dx.fill_(42.0)
        assert (buffer == 42.0).all(), f"{what}: wrote outside dx"


@pytest.mark.parametrize("width", range(1, 9))
def test_whole_rows_of_sequences_and_states(device: torch.device, width: int) -> None:
    """Rows of whole vectors on 16-byte boundaries, with ids, padding, states: one step of lanes, or some."""
    draw = random.Random(width)
    for number, dtype in enumerate(DTYPES.values()):
        for batch, dim, seqlen in [(3, 6, 264), (5, 40, 16), (2, 19, 72), (1, 33, 40)]:
            names = ["use_silu", "has_bias", "has_ids", *([] if width == 1 else ["has_initial", "has_final"])]
            has: dict[str, Any] = {name: draw.random() < 0.6 for name in names}
            case = Case(batch, dim, seqlen, width, dtype, draw.choice([dtype, torch.float32]), layout="channel_first", **has)
            inputs = case.inputs(device, seed=number)
            assert (wrong := wrong_gradients(inputs, inputs.gradients())) is None, f"{case}: {wrong}"


def test_many_short_rows_with_states(device: torch.device) -> None:
    """These have fewer lanes a row than few rows of the same length."""
    for batch, seqlen in ((16, 250), (32, 125)):
        has: dict[str, Any] = {"has_bias": True, "use_silu": True, "has_initial": True}
        case = Case(batch, 128, seqlen, 4, torch.float32, layout="channel_first", **has)
        inputs = case.inputs(device)
        assert (wrong := wrong_gradients(inputs, inputs.gradients())) is None, f"{case}: {wrong}"


@pytest.mark.parametrize("width", range(1, 9))
def test_channels_at_every_alignment(device: torch.device, width: int) -> None:
    """Rows of channels that are not four at a time, each tensor at an address and with gaps of its own: pairs of channels that
    are aligned or not, and one channel in the last lane. dx has the bits that it has where the tensors are dense.
    """
    if "tile" not in kernels_of(device):
        return
    draw = random.Random(width)
    for number in range(5):
        sizes = (draw.choice([1, 2, 3]), draw.choice([5, 18, 34, 66, 130]), draw.choice([9, 33, 57, 131]))
        _, dim, seqlen = sizes
        has: dict[str, Any] = {
            name: draw.random() < 0.4 for name in ("use_silu", "has_bias", "has_ids", "has_initial", "has_final")
        }
        dtype = [*DTYPES.values()][number % 3]
        case = Case(*sizes, width, dtype, draw.choice([dtype, torch.float32]), **has)
        good = case.inputs(device, seed=number)
        step = draw.choice([1, 2])
        (x, _), (dout, _), (dx, buffer) = (
            _strided(values, (pitch * seqlen + draw.choice([0, 4]), 1, pitch), step * draw.choice([0, 1, 3]), fill)
            for values, fill, pitch in (
                (good.x, torch.nan, dim + step * draw.choice([0, 1, 5])),
                (good.dout, torch.nan, dim + step * draw.choice([0, 1, 5])),
                (torch.full_like(good.x, torch.nan), 42.0, dim + step * draw.choice([0, 1, 5])),
            )
        )
        inputs = good._replace(x=x, dout=dout)
        what = f"{case}, x {x.stride()}, dout {dout.stride()}, dx {dx.stride()}"
        found = inputs.gradients("tile", dx)
        assert (wrong := wrong_gradients(inputs, found)) is None, f"{what}: {wrong}"
        found = (found[0].clone(), *found[1:])
        dx.fill_(42.0)
        assert (buffer == 42.0).all(), f"{what}: wrote outside dx"
        dense = inputs._replace(x=x.mT.contiguous().mT, dout=dout.mT.contiguous().mT).gradients("tile")
        assert torch.equal(found[0], dense[0]), f"{what}: other bits than of dense tensors"
        assert not case.has_initial or torch.equal(found[-1], dense[-1]), f"{what}: other states"


@pytest.mark.parametrize("width", range(1, 9))
def test_sequences_in_runs_of_neighbouring_channels(device: torch.device, width: int) -> None:
    """Taps by which dx is completed, where runs, documents and padding end anywhere: ids in vectors of four and not, rows that
    follow each other as one, ids that come again, for lanes of four channels, of pairs and of halves.
    """
    if "tile" not in kernels_of(device):
        return
    draw = random.Random(width)
    for number, (dim, layout, (batch, seqlen)) in enumerate(
        itertools.product([20, 22, 23], ["channel_last"], [(7, 7), (5, 12), (3, 33), (1, 149), (2, 268), (3, 97), (5, 64)])
    ):
        dtype = [torch.bfloat16, torch.float16, torch.bfloat16, torch.float32][number % 4]
        follows = (seqlen < 34 and number % 2 == 0) or seqlen in (64, 97)
        has: dict[str, Any] = {name: not follows and width > 1 and draw.random() < 0.3 for name in ("has_initial", "has_final")}
        case = Case(batch, dim, seqlen, width, dtype, dtype, draw.random() < 0.7, True, layout, True, **has)
        inputs = case.inputs(device, seed=number)
        length = draw.choice([1, 3, 8])
        ids = torch.arange(seqlen, dtype=torch.int32).div(length, rounding_mode="floor").repeat(batch, 1)
        if number % 3 == 0:  # each id comes again, and some tokens are padding
            ids = ids % 3 - (torch.rand(batch, seqlen, generator=torch.Generator().manual_seed(number)) < 0.1).int() * 9
        wide = torch.zeros(batch, seqlen + 1, dtype=torch.int32)
        wide[:, 1:] = ids
        ids = wide[:, 1:] if number % 5 == 4 else ids
        inputs = inputs._replace(seq_idx=None if follows and number % 4 == 0 else ids.to(device))
        assert (wrong := wrong_gradients(inputs, inputs.gradients("tile"))) is None, f"{case}, {number}: {wrong}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 3, 4, 6, 8])
def test_many_short_rows_and_few_channels(device: torch.device, layout: str, width: int) -> None:
    """Rows that a walk goes through one after another, with ids and padding in them; walks that share a block; rows that do
    not follow each other; few channels, and as many as leave the last block's lanes idle.
    """
    draw = random.Random(f"{layout} {width}")
    sizes = [
        (301, 3, 1),
        (150, 8, 2),
        (70, 130, 1),
        (90, 3, 7),
        (67, 8, 17),
        (40, 36, 5),
        (9, 130, 33),
        (33, 12, 48),
        (6, 1, 300),
    ]
    for number, (batch, dim, seqlen) in enumerate(sizes):
        has: dict[str, Any] = {name: draw.random() < 0.7 for name in ("use_silu", "has_bias")}
        case = Case(batch, dim, seqlen, width, list(DTYPES.values())[number % 3], layout=layout, has_ids=number % 2 == 1, **has)
        good = case.inputs(device, seed=number)
        inner, outer = (1, seqlen + number % 2) if layout == "channel_first" else (dim + number % 3 // 2, 1)
        pitch = (dim * outer if layout == "channel_first" else seqlen * inner) + 3 * (number % 5 == 4)
        x, _ = _strided(good.x, (pitch, outer, inner), 0, torch.nan)
        dout, _ = _strided(good.dout, (pitch, outer, inner), 0, torch.nan)
        inputs = good._replace(x=x, dout=dout)
        for kernel in {"auto", *(name for name in kernels_of(device) if name in ("rows", "runs", "tile", "vector"))}:
            dx, buffer = _strided(torch.full_like(good.x, torch.nan), (pitch, outer, inner), 0, 42.0)
            try:
                found = inputs.gradients(kernel, dx)
            except ValueError as error:
                assert kernel != "auto" and refused(error), error
                continue
            assert (wrong := wrong_gradients(inputs, found)) is None, f"{kernel}, {case}: {wrong}"
            found = (found[0].clone(), *found[1:])
            assert all(map(torch.equal, found, inputs.gradients(kernel, dx))), f"{kernel}, {case}: other bits the second time"
            dx.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside dx"


def _anywhere(draw: random.Random, values: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """The values in a view whose tokens or channels are neighbours, with gaps or without, and the buffer around it."""
    _, dim, seqlen = values.shape
    gap, of_batch = draw.choice([0, 0, 1, 2, 8]), draw.choice([0, 0, 1, 5, 16])
    first = draw.random() < 0.5
    pitch = (seqlen if first else dim) + gap
    strides = (pitch * (dim if first else seqlen) + of_batch, pitch if first else 1, 1 if first else pitch)
    return _strided(values, strides, draw.choice([0, 0, 1, 3, 8]), fill)


@pytest.mark.parametrize("width", range(1, 9))
def test_short_rows_in_any_memory(device: torch.device, width: int) -> None:
    """Each tensor in an order, at an address, and with gaps of its own; stages of one and of many rows; some with states and
    ids; rows of a part of the batch get the bits that they have in all of it.
    """
    if "rows" not in kernels_of(device):
        return
    draw = random.Random(width)
    served = 0
    for number in range(20):
        sizes = (
            draw.choice([1, 2, 7, 40]),
            draw.choice([1, 2, 3, 8, 33, 130, 150]),
            draw.choice([1, 1, 1, 2, 3, 5, 7, 8]),
        )
        has: dict[str, Any] = {
            name: draw.random() < 0.5 for name in ("use_silu", "has_bias", "has_ids", "has_initial", "has_final")
        }
        case = Case(*sizes, width, [*DTYPES.values()][number % 3], draw.choice([*DTYPES.values()]), **has)
        good = case.inputs(device, seed=number)
        x, dout = (_anywhere(draw, values, torch.nan)[0] for values in (good.x, good.dout))
        inputs = good._replace(x=x, dout=dout)
        if draw.random() < 0.7:
            inputs = inputs._replace(
                **{
                    name: values.mT.contiguous().mT
                    for name in ("initial_states", "dfinal_states")
                    if (values := getattr(good, name)) is not None
                }
            )
        dx, buffer = _anywhere(draw, torch.full_like(good.x, torch.nan), 42.0)
        if draw.random() < 0.5 and dout.stride(0) > 0:  # as dout lies
            dx, buffer = _strided(torch.full_like(good.x, torch.nan), dout.stride(), int(dout.storage_offset()), 42.0)
        try:
            found = inputs.gradients("rows", dx)
        except ValueError as error:
            assert refused(error), error
            continue
        served += 1
        what = f"{case}, x {x.stride()}, dout {dout.stride()}, dx {dx.stride()}"
        assert (wrong := wrong_gradients(inputs, found)) is None, f"{what}: {wrong}"
        found = (found[0].clone(), *found[1:])
        assert all(map(torch.equal, found, inputs.gradients("rows", dx))), f"{what}: other bits the second time"
        if case.batch > 2:
            rows = slice(case.batch // 2, case.batch - 1)
            part = inputs._replace(
                **{
                    name: getattr(inputs, name)[rows]
                    for name in ("x", "dout", "seq_idx", "initial_states", "dfinal_states")
                    if getattr(inputs, name) is not None
                }
            )
            ours = served_by(part, "rows")  # it may not fit otherwise than all of it
            if ours is not None:
                assert torch.equal(ours[0], found[0][rows]), f"{what}: other bits in a part of the batch"
                assert not case.has_initial or torch.equal(ours[-1], found[-1][rows]), f"{what}: other states in a part"
        dx.fill_(42.0)
        assert (buffer == 42.0).all(), f"{what}: wrote outside dx"
    assert served > 11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_rows_have_the_bits_of_longer_ones(device: torch.device, dtype: torch.dtype) -> None:
    """A row that is cut into parts is served by another kernel than a part of it."""
    if "rows" not in kernels_of(device):
        return
    for number, (width, dim, seqlen) in enumerate(itertools.product(range(1, 9), (8, 40), (1, 5, 8))):
        has: dict[str, Any] = {name: number >> bit & 1 == 1 for bit, name in enumerate(("has_ids", "has_initial", "use_silu"))}
        case = Case(3, dim, seqlen, width, dtype, layout="channel_last", has_final=number % 5 == 0, **has)
        inputs = case.inputs(device, seed=number)
        rows, tile = inputs.gradients("rows"), inputs.gradients("tile")
        assert torch.equal(rows[0], tile[0]), f"{case}: dx"
        if case.has_initial:
            assert torch.equal(rows[-1], tile[-1]), f"{case}: dinitial_states"


@pytest.mark.parametrize("width", range(1, 9))
def test_few_channels_in_any_memory(device: torch.device, width: int) -> None:
    """Runs cut by the ends of rows, tiles of several rows and of a part of one; each tensor in an order, at an address, and
    with gaps of its own, or all alike; some with states and ids, and with infinities. Where `tile` serves a call, both have the
    same bits.
    """
    if "runs" not in kernels_of(device):
        return
    draw = random.Random(width)
    compared = 0
    for number in range(9):
        sizes = (draw.choice([1, 2, 5]), (2, 3, 3, 5, 8, 8, 12, 16)[number % 8], draw.choice([3, 9, 17, 33, 64, 100, 300]))
        has: dict[str, Any] = {
            name: draw.random() < 0.5 for name in ("use_silu", "has_bias", "has_ids", "has_initial", "has_final")
        }
        dtype = [*DTYPES.values()][number % 3]
        case = Case(*sizes, width, dtype, draw.choice([dtype, torch.float32]), **has)
        good = case.inputs(device, seed=number)
        if number % 3 == 0:
            x, dout = (_anywhere(draw, values, torch.nan)[0] for values in (good.x, good.dout))
            dx, buffer = _anywhere(draw, torch.full_like(good.x, torch.nan), 42.0)
        else:
            _, dim, seqlen = sizes
            pitch, offset = dim + draw.choice([0, 0, 1, 8, 64]), draw.choice([0, 0, 1, 8])
            strides = (pitch * seqlen + draw.choice([0, 0, 3]), 1, pitch)
            x, dout = (_strided(values, strides, offset, torch.nan)[0] for values in (good.x, good.dout))
            dx, buffer = _strided(torch.full_like(good.x, torch.nan), strides, offset, 42.0)
        inputs = good._replace(x=x, dout=dout)
        what = f"{case}, x {x.stride()}, dout {dout.stride()}, dx {dx.stride()}"
        found = inputs.gradients("runs", dx)
        assert (wrong := wrong_gradients(inputs, found)) is None, f"{what}: {wrong}"
        found = (found[0].clone(), *found[1:])
        assert all(map(torch.equal, found, inputs.gradients("runs", dx))), f"{what}: other bits the second time"
        dx.fill_(42.0)
        assert (buffer == 42.0).all(), f"{what}: wrote outside dx"
        if (theirs := served_by(inputs, "tile")) is None:
            continue
        compared += 1
        assert torch.equal(found[0], theirs[0]), f"{what}: other bits than tile's"
        assert not case.has_initial or torch.equal(found[-1], theirs[-1]), f"{what}: other states than tile's"
        tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
        for tensor, value in zip(tensors, itertools.cycle((torch.inf, -torch.inf, torch.nan))):
            tensor[tuple(draw.randrange(size) for size in tensor.shape)] = value
        for ours, others in zip(inputs.gradients("runs"), inputs.gradients("tile"), strict=True):
            what_else = f"{what}: infinities reach others than tile's"
            assert torch.allclose(ours.float(), others.float(), rtol=0.02, atol=0.01, equal_nan=True), what_else
    assert compared > 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [4, 9, 16, 40, 130])
def test_wide_filters_over_documents(device: torch.device, layout: str, width: int) -> None:
    """Taps that all tokens of a wave see, that some do, that none does; padding; tiles cut by the ends of rows; states;
    odd dims.
    """
    draw = random.Random(width)
    staged = {"staged"} & {*kernels_of(device)}
    for dim, seqlen, dtype in ((3, 700, torch.float32), (20, 90, torch.bfloat16), (33, 17, torch.float16)):
        for length, has_states in ((None, False), (seqlen, True), (7, False), (50, True)):
            weight_dtype, has_bias = draw.choice([torch.float32, dtype]), draw.random() < 0.7
            case = Case(
                2, dim, seqlen, width, dtype, weight_dtype, length != 50, has_bias, layout, False, has_states, has_states
            )
            inputs = case.inputs(device)
            if length is not None:
                ids = torch.arange(seqlen, device=device, dtype=torch.int32).div(length, rounding_mode="floor").repeat(2, 1)
                ids[1, seqlen - seqlen // 5 :] = -1
                inputs = inputs._replace(seq_idx=ids)
            # Past 8 taps `auto` is `staged`, as the calls without ids see.
            for kernel in staged if staged and width > 8 and length is not None else {"auto", *staged}:
                wrong = wrong_gradients(inputs, inputs.gradients(kernel))
                assert wrong is None, f"{kernel}, {case}, documents of {length}: {wrong}"


@pytest.mark.parametrize("dim, seqlen", [(3, 1100), (37, 70), (72, 300), (20, 6)])
@pytest.mark.parametrize("width", [1, 2, 4, 7, 9, 19, 40])
def test_cpu_serves_every_width_and_stride(width: int, dim: int, seqlen: int) -> None:
    """x, dout and dx each in another order: along tokens, along channels, in steps, with the batch innermost."""
    orders = [
        (dim * seqlen, seqlen, 1),
        (dim * seqlen, 1, dim),
        (3 * dim * seqlen, 3 * seqlen, 3),
        (2 * dim * seqlen, 2, 2 * dim),
        (1, 2, 2 * dim),
    ]
    draw = random.Random(width * dim)
    with environment(**WAYS["cpu"]):
        for number in range(10):
            has: dict[str, Any] = {
                name: draw.random() < 0.5 for name in ("use_silu", "has_bias", "has_ids", "has_initial", "has_final")
            }
            case = Case(2, dim, seqlen, width, list(DTYPES.values())[number % 3], **has)
            inputs = case.inputs(torch.device("cpu"), seed=number)
            same = [draw.choice(orders)] * 3 if number % 2 else draw.choices(orders, k=3)
            x, dout, dx = (
                _strided(t, order, 3, fill)
                for t, order, fill in zip((inputs.x, inputs.dout, inputs.x), same, (torch.nan, torch.nan, 42.0), strict=True)
            )
            dx[0].fill_(torch.nan)
            found = inputs._replace(x=x[0], dout=dout[0]).gradients("simd", dx[0])
            assert (wrong := wrong_gradients(inputs, found)) is None, f"{case}, {same}: {wrong}"
            dx[0].fill_(42.0)
            assert (dx[1] == 42.0).all(), "wrote outside dx"


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


def test_what_one_block_adds_up_needs_no_other_kernel(device: torch.device) -> None:
    """Channels of one piece have their sums stored as gradients; those of several pieces are added up by a second kernel.

    `tile` does not count that kernel when it divides tokens, and gives a row of lanes no fewer than it has to: 24 tokens are
    three rows of eight, which a block has everywhere. (40 at width 8 are two blocks on AMD, where a block has four rows.)
    """
    for layout, width, (sizes, launches) in itertools.product(LAYOUTS, (4, 8), (((1, 64, 24), 1), ((2, 16, 1500), 2))):
        case = Case(*sizes, width, torch.bfloat16, layout=layout)
        inputs = case.inputs(device)
        launched = launches_of(inputs.gradients)
        assert (wrong := wrong_gradients(inputs, inputs.gradients())) is None, f"{case}: {wrong}"
        assert not launched or len(launched) == launches, f"{case}: {launched}"


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="more channels than simt has time for")
@pytest.mark.parametrize("width", range(1, 9))
def test_taps_that_are_made_for_many_channels(width: int) -> None:
    """By a kernel before the others, of ids in any order, with and without vectors of four of them.

    Without a GPU, the tests with sequences run it in waves of 64 lanes; in waves of 32, blocks make the taps of few channels.
    """
    for seqlen, dtype in zip((1020, 1021, 17), DTYPES.values(), strict=True):
        case = Case(
            3 if seqlen > 17 else 300, 2048, seqlen, width, dtype, has_ids=True, has_initial=width > 1 and seqlen == 1021
        )
        inputs = case.inputs(torch.device("cuda"), seed=width)
        found, plain = inputs.gradients("vector"), inputs.gradients("naive")
        for ours, theirs in zip((found[0], *found[3:]), (plain[0], *plain[3:]), strict=True):
            if theirs is not None:
                assert (wrong := mismatch(ours, theirs.double(), may_differ=0.005)) is None, (case, wrong)
        for ours, theirs in zip(found[1:3], plain[1:3], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-2), case


def test_sums_of_many_channels_in_few_rows(device: torch.device) -> None:
    """A block of the kernel that adds up has more columns then."""
    for dim, width in ((8464, 1), (8449, 2), (5640, 5)):
        inputs = Case(40, dim, 1, width, torch.bfloat16, has_initial=width > 1).inputs(device)
        assert (wrong := wrong_gradients(inputs, inputs.gradients())) is None, wrong


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_integers_are_exact(device: torch.device, layout: str) -> None:
    """Sums of them, too: what is rounded is the exact gradient. Rows shorter than the filter are all halo."""
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    sizes = [
        (264, 4, f32, f32), (264, 1, bf16, f32), (3, 4, bf16, f32), (40, 5, f16, f32), (3, 6, bf16, bf16), (83, 6, f32, f32),
        (72, 7, bf16, f32), (6, 7, f32, f16), (264, 8, f16, f32), (1, 8, bf16, f32), (9, 8, bf16, f32),
    ]  # fmt: skip
    for number, (seqlen, width, dtype, weight_dtype) in enumerate(sizes):
        has_states = number % 3 == 1
        case = Case(
            2, 16, seqlen, width, dtype, weight_dtype, False, layout=layout, has_initial=has_states, has_final=has_states
        )
        inputs = case.inputs(device)
        rounded = {
            name: (value * 2).round() for name, value in inputs._asdict().items() if name != "use_silu" and value is not None
        }
        inputs = inputs._replace(**rounded)
        for kernel in kernels_of(device):
            if (found := served_by(inputs, kernel)) is not None:
                for ours, expected in zip(found, inputs.expected(), strict=True):
                    assert expected is None or torch.equal(ours, expected.to(ours.dtype)), (kernel, case)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_without_silu_are_exact(device: torch.device, layout: str) -> None:
    """They have copies of loops, or branches, of their own: at each width, with sequences, states and odd channels."""
    dtypes = itertools.cycle((torch.bfloat16, torch.float32, torch.float16))
    for width, dim in itertools.product(range(1, 9), (16, 22, 35)):
        dtype, has_states = next(dtypes), width > 1 and dim == 22
        sizes = (1 + width % 2, dim, 131 + 2 * width, width, dtype, torch.float32)
        inputs = Case(*sizes, False, True, layout, dim != 16, has_states, has_states).inputs(device, seed=width)
        rounded = {
            name: (value * 2).round()
            for name, value in inputs._asdict().items()
            if name not in ("use_silu", "seq_idx") and value is not None
        }
        inputs = inputs._replace(**rounded)
        expected = inputs.expected()
        for kernel in kernels_of(device):
            if (found := served_by(inputs, kernel)) is not None:
                for ours, wanted in zip(found, expected, strict=True):
                    assert wanted is None or torch.equal(ours, wanted.to(ours.dtype)), (kernel, sizes)


def test_sizes_of_zero(device: torch.device) -> None:
    for shape in ((0, 4, 5), (2, 0, 5), (2, 4, 0)):
        for kernel in ("auto", "naive" if "naive" in kernels_of(device) else "openmp"):
            inputs = Case(*shape, 4, has_initial=True, has_final=True).inputs(device)
            assert (wrong := wrong_gradients(inputs, inputs.gradients(kernel))) is None, wrong
        out, final = fn(inputs.x, inputs.weight, inputs.bias, None, inputs.initial_states, True)
        assert out.shape == shape
        assert torch.equal(
            final, reference_training.causal_conv1d(inputs.x, inputs.weight, initial_states=inputs.initial_states)[1]
        )


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
    """Taps that see nothing are not there: not zero times infinity. Rows of whole vectors,
    and rows that begin and end within one.
    """
    values = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    short, long = (
        itertools.product((2, 5, 16, 21), (False, True), (False, True)),
        itertools.product((520, 523), (False, True), (False,)),
    )
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
    """Also of sums that are finite and times log2(e) are not."""
    above = [20.0, 100.0, 1e6, 1e30, 2.5e38, 3.4e38, torch.inf]
    ends = torch.tensor([*(-end for end in above), *above, torch.nan], device=device)
    for layout, kernel in itertools.product(LAYOUTS, kernels_of(device)):
        x = empty_as(layout, (1, 8, 16 * len(ends)), torch.float32, device).zero_()
        x[..., ::16] = ends
        inputs = Inputs(x, torch.tensor([[0.0, 1.0]], device=device).expand(8, 2), None, torch.ones_like(x))
        if (found := served_by(inputs, kernel)) is not None:
            assert torch.allclose(found[0].double(), inputs.expected()[0], rtol=1e-5, atol=1e-12, equal_nan=True), (
                kernel,
                layout,
            )


# ---- the command -------------------------------------------------------------------------------------------------------------


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
