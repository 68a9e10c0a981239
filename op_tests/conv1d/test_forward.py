"""causal_conv1d_fwd beside the reference, on every backend: shapes, kernels, strides, exact properties, sizes."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv1d.cases import STRIDES, Case, assert_matches, assert_pairs_match, run
from support.observe import launches_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch, mismatch_beside_infinities, strided
import hipconv
from hipconv import jit, reference, reference_training, targets

# ---- everything below with a `device` runs on every backend (conftest.py) ----------------------------------------------------

SHAPES = [
    (1, 1, 1),
    (2, 7, 1),
    (3, 64, 2),
    (1, 100, 3),
    (2, 33, 4),
    (4, 17, 8),
    (3, 65, 129),
    (2, 64, 130),
    (1, 333, 151),
    (2, 16, 1134),
    (1, 8, 4096),
    (2, 1023, 5),
    (300, 3, 7),
    (2, 520, 19),  # several blocks of 16-byte vectors of channels, several runs of tokens
    (3, 24, 2056),  # two blocks of 16-byte vectors of tokens, the second almost empty
]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64]

fn: Any = hipconv.causal_conv1d_fn


def _grid() -> list[Case]:
    """Every pair of dtypes with every layout, activation and bias; shapes and widths drawn so that each occurs."""
    draw = random.Random(0)
    combinations = itertools.product(DTYPES.values(), DTYPES.values(), (True, False), (True, False), LAYOUTS)
    cases = []
    for number, (dtype, weight_dtype, use_silu, has_bias, layout) in enumerate(combinations):
        shape = SHAPES[number % len(SHAPES)]
        cases.append(Case(*shape, draw.choice(WIDTHS), dtype, weight_dtype, use_silu, has_bias, layout))
    for number, (shape, width) in enumerate(itertools.product(SHAPES, (2, 3, 4))):
        dtype = list(DTYPES.values())[number % 3]
        cases.append(Case(*shape, width, dtype, dtype, number % 2 == 0, number % 3 == 0, LAYOUTS[number % 2]))
    return cases


@pytest.mark.parametrize("case", _grid(), ids=lambda case: "-".join(str(field).replace("torch.", "") for field in case))
def test_matches_the_reference(device: torch.device, case: Case) -> None:
    x, weight, bias, out = case.inputs(device)
    hipconv.causal_conv1d_fwd(out, x, weight, bias, case.use_silu)
    assert_matches(out, x, weight, bias, case.use_silu)


def test_every_kernel_can_be_forced_by_name(device: torch.device) -> None:
    names = jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels()
    served = set()
    for name, layout, seqlen in itertools.product(names, LAYOUTS, (130, 5)):
        x, weight, bias, out = Case(2, 33, seqlen, 4, torch.bfloat16, torch.float32, layout=layout).inputs(device)
        try:
            hipconv.causal_conv1d_fwd(out, x, weight, bias, True, kernel=name)
        except ValueError as refusal:
            assert f"kernel: got '{name}', which serves" in str(refusal)
            assert out.isnan().all()
        else:
            served.add(name)
            assert_matches(out, x, weight, bias, True)
    assert names and served == set(names)


# ---- the GPU's kernels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fast_gpu_kernels_at_every_length_and_alignment(device: torch.device, layout: str, width: int) -> None:
    """Vectors cut by row ends and row starts, rows shorter than a vector, x aligned as out is and not; packed rows and rows
    apart; weights that no vector fetches; infinite weights, whose taps before the row must not be taken."""
    names = set(jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels()) - {"naive", "simd", "openmp"}
    combinations = itertools.cycle(itertools.product(DTYPES.values(), DTYPES.values(), (True, False)))
    served: set[str] = set()
    pairs: dict[tuple[str, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for inner in [*range(1, 20), 24, 31, 32, 33, 40, 63, 64, 65, 130, 257, 520, 1100]:  # along vectors: tokens, or channels
        outer = 1 + inner % 7 if inner % 2 else 8 if inner < 70 else 3
        packed = inner % 3 > 0
        pitch, offset, out_shift = (inner, 0, 0) if packed else (inner + inner % 5, inner % 4, inner % 2)
        (dtype, weight_dtype, use_silu), has_bias = next(combinations), inner % 4 > 0
        sizes = (2, outer, inner) if layout == "channel_first" else (2, inner, outer)
        strides = (outer * pitch, pitch, 1) if layout == "channel_first" else (outer * pitch, 1, pitch)
        x, _ = strided(sizes, strides, offset, dtype, device, torch.nan)
        x.copy_(torch.randn(sizes))
        weight = (torch.randn(sizes[1], width) / width**0.5).to(device, weight_dtype)
        if inner % 6 in (3, 5):
            weight[inner % sizes[1], (width - 2) % width] = torch.inf
        if inner % 8 == 7:
            weight = weight.t().contiguous().t()
        bias = torch.randn(sizes[1]).to(device, weight_dtype) if has_bias else None
        expected = reference.causal_conv1d(x, weight, bias, use_silu)
        for kernel in names:
            out, buffer = strided(sizes, strides, offset + out_shift, dtype, device, 42.0)
            try:
                hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, bias, use_silu, kernel=kernel)
            except ValueError as refusal:
                assert f"kernel: got '{kernel}', which serves" in str(refusal)
                continue
            served.add(kernel)
            infinite = ~expected.isfinite()
            assert torch.allclose(out[infinite].double(), expected[infinite], equal_nan=True)
            pairs.setdefault((kernel, dtype), []).append((out[~infinite], expected[~infinite]))
            out.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside out"
    of_other_layout, not_width_1 = {"tile"} if layout == "channel_first" else {"vector", "shared"}, {"tile", "shared"}
    assert names - served <= of_other_layout | (not_width_1 if width == 1 else set())
    assert_pairs_match(pairs.values())


def test_packed_rows_of_every_length(device: torch.device) -> None:
    """Kernel "shared": tiles of 8 to 128 rows, the last cut or moved back; rows that begin and end within a word; a row by one
    thread and by sixteen; several sequences a tile, and sequences that begin anywhere; weights as above."""
    names = jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels()
    generator = torch.Generator().manual_seed(1)
    draw = itertools.cycle(itertools.product(DTYPES.values(), range(2, 9)))
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for seqlen in [*range(2, 71), 85, 100, 129, 171, 255, 300, 509, 511, 512, 513, 778, 1021, 1024]:
        dtype, width = next(draw)
        if seqlen > 512:  # larger tiles
            dtype, width = (torch.bfloat16, torch.float16)[seqlen % 2], 2 + seqlen % 3
        batch, dim = 9 if seqlen < 20 else 2, (8, 24, 136, 200, 7, 133)[seqlen % 6 if seqlen < 100 else seqlen % 2 * 4]
        apart = dim % 8 == 0  # sequences with other memory between them
        sizes, strides = (batch, dim, seqlen), (dim * seqlen * (1 + apart), seqlen, 1)
        x, _ = strided(sizes, strides, 0, dtype, device, torch.nan)
        x.copy_(torch.randn(sizes, generator=generator))
        weight = (torch.randn(dim, width, generator=generator) / width**0.5).to(device)
        if seqlen % 4 == 3:
            weight[dim // 2, seqlen % (width - 1)] = torch.inf
        bias = torch.randn(dim, generator=generator).to(device) if seqlen % 5 else None
        out, buffer = strided(sizes, strides, 0, dtype, device, 42.0)
        hipconv.causal_conv1d_fwd(
            out.fill_(torch.nan), x, weight, bias, seqlen % 2 == 0, kernel="shared" if "shared" in names else "auto"
        )
        expected = reference.causal_conv1d(x, weight, bias, seqlen % 2 == 0)
        infinite = ~expected.isfinite()
        assert torch.allclose(out[infinite].double(), expected[infinite], equal_nan=True)
        pairs.setdefault(dtype, []).append((out[~infinite], expected[~infinite]))
        out.fill_(42.0)
        assert (buffer == 42.0).all(), "wrote outside out"
    assert_pairs_match(pairs.values())


def _sequence_ids(kind: int, batch: int, seqlen: int) -> Tensor:
    """Sequences of one and two tokens; of three, with padding between; ids that come again; long ones; one sequence;
    all padding.
    """
    tokens = torch.arange(seqlen).expand(batch, -1) + torch.arange(batch)[:, None] * 5
    with_padding = torch.where(tokens // 3 % 4 == 2, -3, tokens // 3)
    return [tokens * 2 // 3, with_padding, tokens // 2 % 2, tokens // 21, tokens * 0 + 7, tokens * 0 - 1][kind].int()


@pytest.mark.parametrize("width", range(1, 9))
def test_rows_with_states_and_ids_at_every_length_and_alignment(device: torch.device, width: int) -> None:
    """Vectors that begin anywhere in x, in out and in the ids, and states of any strides;
    what no output may see is NaN or infinite.
    """
    generator = torch.Generator().manual_seed(width)
    draw = itertools.cycle(itertools.product(DTYPES.values(), (True, False)))
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for seqlen in [*range(1, 18), 23, 24, 31, 32, 40, 63, 65, 120, 129, 264, 520, 1100]:
        for form in ("states", "ids", "both"):
            dtype, use_silu = next(draw)
            batch, dim = 2 + seqlen % 2, (1, 3, 8, 5)[seqlen % 4] if seqlen < 100 else 3
            kind = (seqlen + width + (form == "both")) % 6
            sizes, pitch, offset, out_shift = (batch, dim, seqlen), seqlen, 0, 0
            if seqlen % 8 or kind % 2:  # else rows of whole vectors
                pitch, offset, out_shift = seqlen + seqlen % 5, seqlen % 4, kind % 3
            x, _ = strided(sizes, (dim * pitch, pitch, 1), offset, dtype, device, torch.nan)
            x.copy_(torch.randn(sizes, generator=generator))
            weight = (torch.randn(dim, width, generator=generator) / width**0.5).to(device)
            if kind % 3 == 1:
                weight[seqlen % dim, 0] = torch.inf
            bias = torch.randn(dim, generator=generator).to(device) if seqlen % 4 else None
            ids = state = None
            if form != "states":
                ids_strides = (seqlen * 2 + 1, 2) if seqlen % 7 == 3 else (seqlen + kind % 4, 1)
                ids = torch.full((kind + 5 + batch * ids_strides[0] * 2,), 99, dtype=torch.int32)
                ids = ids.to(device).as_strided((batch, seqlen), ids_strides, kind % 4)
                ids.copy_(_sequence_ids(kind, batch, seqlen))
                x.masked_fill_((ids < 0)[:, None], torch.nan)
            if form != "ids":
                past = width - 1
                strides = (dim * past, past, 1) if seqlen % 2 else (dim * past + 1, 1, dim)
                state, _ = strided((batch, dim, past), strides, seqlen % 3, dtype, device, torch.nan)
                state.copy_(torch.randn((batch, dim, past), generator=generator))
            out, buffer = strided(sizes, (dim * pitch, pitch, 1), offset + out_shift, dtype, device, 42.0)
            final = torch.full((batch, dim, width - 1), torch.nan, dtype=dtype, device=device)
            torch.ops.hipconv.causal_conv1d_states_fwd(out.fill_(torch.nan), final, x, weight, bias, ids, state, use_silu)
            expected, expected_final = reference_training.causal_conv1d(x, weight, bias, ids, state, use_silu)
            infinite = ~expected.isfinite()
            same = torch.allclose(out[infinite].double(), expected[infinite], equal_nan=True)
            assert same, f"infinities, {seqlen} tokens, {form}, ids {kind}"
            assert torch.allclose(final, expected_final, rtol=0, atol=0, equal_nan=True)
            wrong = mismatch(out[~infinite].double().float(), expected[~infinite]) if dtype == torch.float32 else None
            assert wrong is None, f"{seqlen} tokens, {form}, ids {kind}: {wrong}"
            pairs.setdefault(dtype, []).append((out[~infinite], expected[~infinite]))
            out.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside out"
    assert_pairs_match(pairs.values())


@pytest.mark.parametrize("form", ["plain", "ids", "states"])
def test_short_rows_of_tokens_that_begin_anywhere(device: torch.device, form: str) -> None:
    """Kernel "tile" where no aligned vector lies in memory: rows of few tokens have several channels a thread up to four taps
    in 16 bits, unless they see states; others have one."""
    generator = torch.Generator().manual_seed(3)
    draw = itertools.cycle(itertools.product(range(1, 9), DTYPES.values(), (True, False)))
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for seqlen, dim in itertools.product((2, 5, 7, 8, 9, 12), (33, 34, 63, 130, 275)):
        width, dtype, use_silu = next(draw)
        batch, offset = 5 - seqlen % 3, dim % 4
        sizes, strides = (batch, dim, seqlen), ((dim + 1) * seqlen, 1, dim + 1)
        x, _ = strided(sizes, strides, offset, dtype, device, torch.nan)
        x.copy_(torch.randn(sizes, generator=generator))
        weight = (torch.randn(dim, width, generator=generator) / width**0.5).to(device, dtype if dim % 2 else torch.float32)
        bias = torch.randn(dim, generator=generator).to(device) if dim % 3 else None
        ids = _sequence_ids(seqlen % 4, batch, seqlen).to(device) if form == "ids" else None
        state = torch.randn((batch, dim, width - 1), generator=generator).to(device, dtype) if form == "states" else None
        out, buffer = strided(sizes, strides, offset, dtype, device, 42.0)
        out.fill_(torch.nan)
        forward = torch.ops.hipconv.causal_conv1d_states_fwd
        launched = launches_of(functools.partial(forward, out, None, x, weight, bias, ids, state, use_silu))
        shifts = dtype != torch.float32 and (width <= 2 or (width <= 4 and seqlen <= 8 and form != "states"))
        way = "tile_checked" if shifts else "tile_single"
        assert all(way in name for name in launched), (launched, dtype, width, seqlen)
        expected, _ = reference_training.causal_conv1d(x, weight, bias, ids, state, use_silu)
        pairs.setdefault(dtype, []).append((out.flatten(), expected.flatten()))  # of a copy: out is not contiguous
        out.fill_(42.0)
        assert (buffer == 42.0).all(), "wrote outside out"
    assert_pairs_match(pairs.values())


def test_chunks_with_states_have_the_bits_of_the_whole(device: torch.device) -> None:
    """Some kernels make them in one pass, with ids and without."""
    if "vector" not in jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels():
        return
    for width, dtype in itertools.product((1, 2, 4, 7, 8), DTYPES.values()):
        x, weight, bias, _ = Case(2, 5, 83, width, dtype, torch.float32).inputs(device)
        ids: Any = (torch.arange(83) // 6).int().expand(2, -1).to(device)
        held: tuple[Any, ...] = (None, ids)
        for seq_idx in held:
            whole = fn(x, weight, bias, seq_idx, activation="silu")
            state = None
            for begin, end in itertools.pairwise([0, 1, 3, 18, 19, 60, 83]):
                of_chunk = None if seq_idx is None else seq_idx[:, begin:end]
                if state is not None and of_chunk is not None and seq_idx[0, begin] != seq_idx[0, begin - 1]:
                    state = None
                out, state = fn(x[..., begin:end], weight, bias, of_chunk, state, True, activation="silu")
                assert torch.equal(out, whole[..., begin:end]), (width, dtype, begin)


# ---- strides, poison, canaries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_strides", STRIDES.values(), ids=STRIDES)
@pytest.mark.parametrize("x_strides", STRIDES.values(), ids=STRIDES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_strides_with_poison_around_inputs_and_canaries_around_out(device, dtype, x_strides, out_strides) -> None:
    shape = (3, 5, 41)
    x, _ = strided(shape, x_strides, 3, dtype, device, torch.nan)
    x.copy_(torch.randn(shape))
    weight, _ = strided((5, 4), (1, 7), 1, dtype, device, torch.nan)
    weight.copy_(torch.randn(5, 4) / 2)
    bias, _ = strided((5,), (3,), 1, dtype, device, torch.nan)
    bias.copy_(torch.randn(5))
    out, buffer = strided(shape, out_strides, 5, dtype, device, 42.0)
    out.fill_(torch.nan)

    hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
    assert_matches(out, x, weight, bias, True)
    out.fill_(42.0)
    assert (buffer == 42.0).all(), "wrote outside out"


def test_expanded_inputs(device: torch.device) -> None:
    x = torch.randn(1, 1, 50, device=device).expand(3, 6, 50)
    weight = torch.randn(1, 4, device=device).expand(6, 4)
    bias = torch.randn(1, device=device).expand(6)
    out = torch.empty(3, 6, 50, device=device)
    hipconv.causal_conv1d_fwd(out, x, weight, bias)
    assert_matches(out, x, weight, bias, False)


def test_halves_of_one_buffer_in_and_out(device: torch.device) -> None:
    """The layout of Mamba's `xz.chunk(2, dim=1)`: out interleaves with x, and shares no byte with it."""
    xz = torch.randn(3, 16, 65, device=device)
    x, z = xz.chunk(2, dim=1)
    kept = x.clone()
    weight = torch.randn(8, 4, device=device) / 2
    hipconv.causal_conv1d_fwd(z, x, weight)
    assert torch.equal(x, kept)
    assert_matches(z, x, weight, None, False)


# ---- exact properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_integers_are_exact(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    x, weight, bias, out = Case(2, 19, 133, 4, dtype, dtype, layout=layout).inputs(device)
    x.copy_(torch.randint(-4, 5, x.shape))
    weight.copy_(torch.randint(-4, 5, weight.shape))
    assert bias is not None
    bias.copy_(torch.randint(-4, 5, bias.shape))
    hipconv.causal_conv1d_fwd(out, x, weight, bias)
    assert torch.equal(out.double(), reference.causal_conv1d(x, weight, bias))


@pytest.mark.parametrize("width", [1, 2, 4, 7, 40])
def test_impulses_give_back_the_weights(device: torch.device, width: int) -> None:
    """A dropped, doubled or swapped tap has nowhere to hide; the first and last positions see the edges."""
    seqlen = 30
    weight = torch.arange(1, width + 1, dtype=torch.float32, device=device).repeat(seqlen, 1)
    x = torch.eye(seqlen, device=device)[None]  # channel d has its impulse at time d
    expected = torch.zeros(1, seqlen, seqlen, device=device)
    for d in range(seqlen):
        for i in range(width):
            if d + width - 1 - i < seqlen:
                expected[0, d, d + width - 1 - i] = i + 1
    assert torch.equal(run(x, weight), expected)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_future_does_not_matter_and_the_past_does_for_width_tokens(device: torch.device, dtype: torch.dtype) -> None:
    width, at = 4, 23
    x, weight, bias, _ = Case(2, 9, 60, width, dtype, dtype).inputs(device)
    clean = run(x, weight, bias, True)
    x[:, :, at] = torch.nan
    poisoned = run(x, weight, bias, True)
    reached = torch.zeros(60, dtype=torch.bool, device=device)
    reached[at : at + width] = True
    assert poisoned[:, :, reached].isnan().all()
    assert torch.equal(poisoned[:, :, ~reached], clean[:, :, ~reached])


def test_padding_is_absence_not_zero(device: torch.device) -> None:
    """An infinite weight that reaches before the sequence must not turn the implied zeros into NaN."""
    weight = torch.tensor([[torch.inf, 1.0]], device=device)
    assert torch.equal(run(torch.tensor([[[2.0]]], device=device), weight), torch.tensor([[[2.0]]], device=device))


@pytest.mark.parametrize("shape", [(2, 16, 40), (2, 5, 41)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinite_weights_reach_no_further_than_the_sequence(
    device, layout: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    width = 4
    x, weight, bias, out = Case(*shape, width, dtype, torch.float32, layout=layout).inputs(device)
    weight[1, 0], weight[2, 1] = torch.inf, torch.nan
    hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
    expected = reference.causal_conv1d(x, weight, bias, True)
    assert torch.equal(out.isfinite(), expected.isfinite()) and not expected[:, 1, width - 1 :].isfinite().any()
    finite = expected.isfinite()
    assert finite[:, 1, : width - 1].all() and finite[:, 2, : width - 2].all()
    assert mismatch(out[finite], expected[finite]) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinities_and_nans_reach_what_they_reach_in_the_reference(device: torch.device, layout: str) -> None:
    """With every kernel, in rows of whole vectors and others; a channel for each place."""
    values = itertools.cycle((torch.inf, -torch.inf, torch.nan))
    for seqlen, use_silu in itertools.product((2, 5, 8, 24, 61, 520), (False, True)):
        x, weight, bias, out = Case(2, 16, seqlen, 4, torch.float32, torch.float32, layout=layout).inputs(device)
        value = next(values)
        for channel, token in enumerate((0, 1, -2, -1)):
            weight[channel, channel], x[0, 4 + channel, token] = value, value
        assert bias is not None
        bias[8] = value
        expected = reference.causal_conv1d(x, weight, bias, use_silu)
        for kernel in jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels():
            try:
                hipconv.causal_conv1d_fwd(out.fill_(42.0), x, weight, bias, use_silu, kernel=kernel)
            except ValueError:
                continue  # it does not serve these
            assert (wrong := mismatch_beside_infinities(out, expected)) is None, f"{kernel}, seqlen {seqlen}, {value}: {wrong}"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_layouts_chunks_and_batches_agree_bit_for_bit(device: torch.device, dtype: torch.dtype) -> None:
    width = 4
    x, weight, bias, _ = Case(3, 21, 90, width, dtype, torch.float32).inputs(device)
    whole = run(x, weight, bias, True)
    channel_last = empty_as("channel_last", (3, 21, 90), dtype, device).copy_(x)
    assert torch.equal(run(channel_last, weight, bias, True), whole)
    assert torch.equal(run(x[[2, 0, 1]], weight, bias, True), whole[[2, 0, 1]])
    assert torch.equal(run(x, weight, bias, True), whole)
    for begin in (width - 1, 17, 64):  # a chunk that is given its history
        chunk = run(x[:, :, begin - (width - 1) :], weight, bias, True)[:, :, width - 1 :]
        assert torch.equal(chunk, whole[:, :, begin:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_value_passes_through_unchanged(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).to(device)[None, None]
    out = run(x, torch.ones(1, 1, device=device))
    assert torch.equal(out.isnan(), x.isnan())
    same = ~x.isnan() & (x != 0)  # the sum starts from +0, so -0 becomes +0
    assert torch.equal(out[same].view(torch.int16), x[same].view(torch.int16))
    assert (out[x == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_to_nearest_even_over_the_whole_range(device: torch.device, dtype: torch.dtype) -> None:
    """The bias alone reaches the store: ties, denormals, overflow, infinities, and NaNs with any payload."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (30000,), generator=generator, dtype=torch.int64).to(torch.int32)
    ties = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32) << 16 | 0x8000
    near = torch.cat([torch.linspace(-70000, 70000, 5001), torch.linspace(-1e-4, 1e-4, 5001), torch.arange(1, 2000) * 2.0**-25])
    # -1 is a NaN with all bits.
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, 0x7F80FFFF, -1, 0x7FC00000], dtype=torch.int32)
    bias = torch.cat([bits.view(torch.float32), ties.view(torch.float32), near, payloads.view(torch.float32)]).to(device)
    dim = bias.numel()
    out = run(torch.zeros(1, dim, 1, dtype=dtype, device=device), torch.ones(dim, 1, device=device), bias)[0, :, 0]
    expected = bias.cpu().to(dtype).to(device)  # torch rounds to nearest even
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out[~out.isnan()], expected[~out.isnan()])


def test_silu_at_its_ends(device: torch.device) -> None:
    x = torch.tensor([-1e30, -1e4, -200.0, -88.0, -1.0, 0.0, 1.0, 88.0, 1e4, 1e30], device=device)[None, None]
    out = run(x, torch.ones(1, 1, device=device), None, True)
    assert torch.allclose(out.double(), F.silu(x.double()), rtol=1e-6, atol=1e-30)


# ---- sizes -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_empty_tensors(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x = torch.empty(shape, dtype=dtype, device=device)
    assert run(x, torch.empty(shape[1], 4, device=device), torch.empty(shape[1], device=device), True).shape == shape


@pytest.mark.parametrize("seqlen", [1, 2, 3])
@pytest.mark.parametrize("width", [4, 100])
def test_sequences_shorter_than_the_window(device: torch.device, seqlen: int, width: int) -> None:
    x, weight, bias, out = Case(2, 5, seqlen, width, torch.float32, torch.float32).inputs(device)
    hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
    assert_matches(out, x, weight, bias, True)


def test_an_empty_bias_means_none(device: torch.device) -> None:
    x, weight, _, _ = Case(2, 5, 9, 4, torch.float32, torch.float32).inputs(device)
    assert torch.equal(run(x, weight, torch.empty(0, device=device)), run(x, weight, None))
