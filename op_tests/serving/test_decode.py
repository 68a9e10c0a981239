"""causal_conv1d_update against its reference: every kernel, shape, stride and type."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from serving.decode_cases import LAYOUTS, check, kernels, make_state, make_weights, random_call
from support.backends import WAYS, environment
from support.tensors import DTYPES, INTEGERS, mismatch, mismatch_beside_infinities, same_bits
from hipconv import targets
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_update

# ---- values, and lengths of rows ---------------------------------------------------------------------------------------------


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
    """The rows have 16-bit channels in whole vectors of 16 bytes, the last strip not full:
    some cards copy these past the registers.
    """
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


# ---- which kernel ------------------------------------------------------------------------------------------------------------


def test_the_variable_forces_a_kernel_where_there_is_one(device: torch.device) -> None:
    """Nowhere else, because it holds for all backends. Where it forces one, width 9 tells."""
    for width, name in itertools.product(
        (4, 9), ("auto", "step", "vector", "wave", "turn", "pair", "channel", "naive", "simd", "openmp")
    ):
        x, state = torch.randn(2, 16, device=device), make_state("N,S,D", 2, 16, width - 1, torch.float32, device)
        weight, bias = make_weights(16, width, torch.float32, device)
        with environment(HIPCONV_UPDATE_KERNEL=name):
            if width == 9 and name in kernels(device) and name not in ("naive", "openmp", "simd"):
                others = "; this call can have 'naive'$"
                with pytest.raises(ValueError, match=f"^HIPCONV_UPDATE_KERNEL: got '{name}', which serves .*{others}"):
                    causal_conv1d_update(x, state, weight, bias)
            else:
                check(x, state, weight, bias)


def test_a_variable_that_names_no_kernel(device: torch.device) -> None:
    x, state = torch.randn(2, 16, device=device), make_state("N,D,S", 2, 16, 3, torch.float32, device)
    weight, bias = make_weights(16, 4, torch.float32, device)
    before = state.clone()
    with environment(HIPCONV_UPDATE_KERNEL="triton"):
        with pytest.raises(
            ValueError, match=r"^HIPCONV_UPDATE_KERNEL: got 'triton', expected one of 'auto', 'step', .*'openmp'$"
        ):
            causal_conv1d_update(x, state, weight, bias)
        assert same_bits(state, before)
        check(x, state, weight, bias, kernel=kernels(device)[-1])  # the call's own keyword goes first


# ---- random calls ------------------------------------------------------------------------------------------------------------


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


# ---- shapes, strides, types --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["N,D,S", "N,S,D"])
@pytest.mark.parametrize("state_len", [3, 4, 6])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_each_state_layout_over_several_strips(device: torch.device, dtype: torch.dtype, state_len: int, layout: str) -> None:
    """Several strips of vectors, the last one partial; rows, one of them padding; one token, four,
    and more than are loaded ahead.
    """
    dim = 4 * 128 + 4 * 37
    indices = torch.tensor([4, -1, 0], device=device, dtype=torch.int32)
    for tokens, inside, kernel in itertools.product((1, 4, 5, 8), (False, True), kernels(device)):
        torch.manual_seed(tokens)
        x = torch.randn(3, dim, tokens).to(device, dtype)
        x = x if inside else x.mT.contiguous().mT
        weight, bias = make_weights(dim, 4, dtype, device)
        state = make_state(layout, 5, dim, state_len, dtype, device)
        begin_in_vectors = tokens == 1 or (not inside and dtype == torch.float32)
        refused = {
            "step": tokens > 1 or (layout == "N,D,S" and state_len > 4),
            "vector": inside and tokens == 5,
            "wave": layout == "N,S,D" or not begin_in_vectors,
            "turn": inside and tokens > 1,
        }
        if refused.get(kernel, False):
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
def test_four_columns_are_vectors_only_where_slots_begin_like_them(
    device: torch.device, offset: int, gap: int, kernel: str
) -> None:
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


def test_step_takes_parameters_of_any_width_beside_16_bits(device: torch.device) -> None:
    """Other calls fall to the next kernel."""
    dim, indices = 136, torch.tensor([2, 0], device=device, dtype=torch.int32)
    for dtype, wide, columns in itertools.product((torch.bfloat16, torch.float32), ("weight", "bias", "both"), (3, 4)):
        x, state = torch.randn(2, dim).to(device, dtype), make_state("N,D,S", 3, dim, columns, dtype, device)
        other = torch.float16 if dtype == torch.float32 else torch.float32
        weight, bias = make_weights(dim, 4, dtype, device)
        weight, bias = weight.to(dtype if wide == "bias" else other), bias.to(dtype if wide == "weight" else other)
        served = targets.of(device).backend == "cpu" or (dtype == torch.bfloat16 and columns == 3)
        check(x, state, weight, bias, conv_state_indices=indices)
        check(
            x,
            state,
            weight,
            bias,
            conv_state_indices=indices,
            kernel="auto" if targets.of(device).backend == "cpu" or not served else "step",
        )
        if not served:
            with pytest.raises(ValueError, match=r"got .step., .* of 16 bits at widths 1 to 8"):
                causal_conv1d_update(x, state, weight, bias, True, indices, kernel="step")


@pytest.mark.parametrize("width", range(2, 9))
def test_rows_of_even_numbers_of_channels_in_pairs(device: torch.device, width: int) -> None:
    """Blocks of several rows, the last one not full, with padding among them; several strips; slots read and written;
    one token, several, more than come ahead, and drafts.
    """
    if targets.of(device).backend == "cpu":
        pytest.skip("these kernels are for GPUs")
    for dtype, dim in itertools.product((torch.bfloat16, torch.float32), (6, 130, 770)):
        rows = {6: 130, 130: 11, 770: 2}[dim]
        slots = torch.randperm(2 * rows, device=device)[:rows]
        slots[rows // 2] = -1
        others = torch.where(slots < 0, -1, torch.arange(rows, device=device) + 2 * rows)
        weight, bias = make_weights(dim, width, torch.float32 if dim == 130 else dtype, device)
        options: dict[str, Any] = {"conv_state_indices": slots, "pad_slot_id": -1}
        x = torch.randn(rows, dim + 2).to(device, dtype)[:, 2:]
        for layout in ("N,D,S", "N,S,D"):
            state = make_state(layout, 3 * rows, dim, width - 1, dtype, device)
            check(x, state, weight, bias if dim > 6 else None, silu=dim != 770, kernel="step", **options)
            check(x, state, weight, bias, conv_state_indices_in=others, kernel="step", **options)

        lengths = torch.randint(0, 7, (rows,))
        starts = torch.tensor([0, *lengths], device=device).cumsum(0)
        x = torch.randn(int(starts[-1]) + 3, dim).to(device, dtype)
        state = make_state("N,S,D", 3 * rows, dim, width + 4, dtype, device)
        options |= {"query_start_loc": starts, "kernel": "vector"}
        check(x, state, weight, bias, conv_state_indices_in=others, **options)
        accepted = torch.randint(1, 8, (rows,), device=device)
        check(x, state, weight, None, silu=False, num_accepted_tokens=accepted, **options)


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("tokens", [1, 5])
def test_each_width_by_vectors_and_by_channels(device: torch.device, tokens: int, width: int) -> None:
    """Integers, whose sums are exact, and parameters of any type; a partial wave and strip; a row of padding; other slots read.

    Then all of it a little to the side, where nothing is aligned, and another state's type.
    """
    on_cpu = targets.of(device).backend == "cpu"
    table = torch.tensor([[4, 5], [-1, 1], [0, 2]], device=device, dtype=torch.int32)
    for (dtype, layout), fork in itertools.product(itertools.product(DTYPES.values(), ("N,D,S", "N,S,D")), (False, True)):
        torch.manual_seed(width)
        narrow, packed = dtype != torch.float32, layout == "N,D,S"
        fast = "step" if tokens == 1 and (narrow or width == 4) else "vector"
        if on_cpu or (fast == "vector" and not 1 < width <= (4 if packed or not narrow else 8)):
            fast = "auto"
        channel, pair = ("auto", "auto") if on_cpu else ("channel" if width <= 6 else "pair", "pair")
        alike = not fork or not narrow or width % 2 == 1  # all slots lie as far behind a multiple of 16 bytes
        wave = "wave" if packed and width > 2 and tokens == 1 and alike and not on_cpu else "auto"
        wide = 4 * 128 + 4 * 37
        for dim, kernel in ((wide, fast), (wide, channel), (wide, pair), (515, pair), (wide, wave)):
            state_dtype = torch.float32 if dim == 515 and kernel == pair else dtype
            x = torch.randint(-4, 5, (3, tokens, dim)).to(device, dtype).mT
            state = make_state(layout, 6, dim, width - 1, state_dtype, device)
            state.copy_(torch.randint(-4, 5, state.shape))
            options: dict[str, Any] = {"conv_state_indices": table[:, 0]} | (
                {"conv_state_indices_in": table[:, 1]} if fork else {}
            )
            for weight_dtype in DTYPES.values() if width in (3, 8) and narrow else (dtype,):
                weight, bias = (torch.randint(-4, 5, s).to(device, weight_dtype) for s in ((dim, width), (dim,)))
                expected = check(x, state.clone(), weight, bias, silu=False, kernel=kernel, **options)
                out = causal_conv1d_update(x, state.clone(), weight, bias, False, kernel=kernel, **options)
                assert torch.equal(out.cpu().double(), expected.out)


@pytest.mark.parametrize(("layout", "width"), [("N,D,S", 8), ("N,S,D", 2), ("padded", 3)])
def test_blocks_of_many_channels(device: torch.device, layout: str, width: int) -> None:
    """Smaller calls have a channel a lane. Tokens come in stretches, from a side where nothing is aligned,
    or one after the other.
    """
    rows, dim, dtype = 440, 601, torch.bfloat16
    slots = torch.randperm(rows + 5, device=device)[:rows]
    slots[torch.rand(rows) < 0.1] = -1
    state, (weight, bias) = (
        make_state(layout, rows + 5, dim, width - 1, dtype, device),
        make_weights(dim, width, torch.float32, device),
    )
    for tokens in (1, 3, 6):
        stretch = torch.randn(rows * dim * tokens + 1).to(device, dtype)[1:].view(rows, dim, tokens)
        for x in (stretch, stretch.mT.contiguous().mT) if tokens > 1 else (stretch,):
            check(x, state, weight, bias, conv_state_indices=slots, pad_slot_id=-1)


@pytest.mark.parametrize(("layout", "width", "tokens", "columns"), [("N,S,D", 3, 6, 2), ("N,D,S", 2, 3, 6)])
def test_rows_of_few_channels_share_blocks(device: torch.device, layout: str, width: int, tokens: int, columns: int) -> None:
    """Rows at addresses of their own, of which some are padding, some longer than others, and some drafts."""
    rows, dim, dtype = 2100, 6, torch.float16
    slots = torch.randperm(rows + 50, device=device)[:rows]
    slots[torch.rand(rows, device=device) < 0.1] = -1
    state = make_state(layout, rows + 50, dim, columns, dtype, device)
    weight, bias = make_weights(dim, width, dtype, device)
    lengths = torch.randint(0, 2 * tokens, (rows,)).clamp(max=columns - width + 2 if columns == 6 else 2 * tokens)
    options: dict[str, Any] = {"conv_state_indices": slots, "query_start_loc": torch.tensor([0, *lengths]).cumsum(0).to(device)}
    if columns == 6:
        options["num_accepted_tokens"] = torch.randint(1, columns - width + 3, (rows,), device=device)
    x = torch.randn(int(lengths.sum()) + 3, dim).to(device, dtype)
    kernel = "auto" if targets.of(device).backend == "cpu" else "wave"
    check(x, state, weight, bias, pad_slot_id=-1, kernel=kernel, **options)


@pytest.mark.parametrize(
    ("layout", "dim", "width", "columns"),
    [("N,D,S", 130, 6, 5), ("N,S,D", 130, 3, 8), ("padded", 67, 4, 5), ("N,D,S", 6, 8, 9), ("N,S,D", 6, 2, 4)],
)
def test_blocks_take_turns_where_rows_are_many(device: torch.device, layout: str, dim: int, width: int, columns: int) -> None:
    """The last turns have fewer rows. Some rows are padding, some have no tokens, some have drafts, or more than come ahead."""
    rows = 1000 if dim == 6 else 70
    kernel = "auto" if targets.of(device).backend == "cpu" else "pair"
    slots = torch.randperm(rows + 9, device=device)[:rows]
    slots[torch.rand(rows, device=device) < 0.1] = -1
    others = torch.where(slots < 0, 0, (slots + 1) % (rows + 9))
    kept = columns - (width - 2)
    for dtype, form in itertools.product((torch.bfloat16, torch.float32), ("one", "by starts", "drafts", "fork")):
        state_dtype = torch.float32 if form == "by starts" else dtype
        state = make_state(layout, rows + 9, dim, columns, state_dtype, device)
        weight, bias = make_weights(dim, width, dtype, device)
        options: dict[str, Any] = {"conv_state_indices": slots, "pad_slot_id": -1, "kernel": kernel}
        x = torch.randn(rows, dim).to(device, dtype)
        if form in ("by starts", "drafts"):
            lengths = torch.randint(0, 7, (rows,)).clamp(max=kept if form == "drafts" else 7)
            options["query_start_loc"] = torch.tensor([0, *lengths], device=device).cumsum(0)
            x = torch.randn(int(lengths.sum()) + 3, dim).to(device, dtype)
        if form == "drafts":
            options["num_accepted_tokens"] = torch.randint(1, kept + 1, (rows,), device=device)
        if form == "fork":
            state = make_state(layout, 2 * rows + 18, dim, columns, state_dtype, device)
            options["conv_state_indices_in"] = torch.where(slots < 0, -1, others + rows + 9)
        check(x, state, weight, bias, **options)


@pytest.mark.parametrize(
    ("layout", "dim", "width", "columns"),
    [
        ("N,D,S", 130, 6, 5),
        ("N,D,S", 98, 4, 8),
        ("N,S,D", 66, 8, 9),
        ("N,D,S", 6, 2, 4),
        ("N,D,S", 424, 3, 4),
        ("N,D,S", 50, 7, 8),
        ("N,D,S", 42, 2, 1),
        ("N,S,D", 2, 5, 6),
    ],
)
@pytest.mark.parametrize("kernel", ["wave", "turn"])
def test_rows_at_any_word(device: torch.device, kernel: str, layout: str, dim: int, width: int, columns: int) -> None:
    """Integers, whose sums are exact. Slots and rows of x begin at any multiple of 4 bytes, between gaps that stay NaN;
    the last rows and the last strip are not full; some rows are padding, have no tokens, or more than LDS has room for.
    """
    on_cpu = targets.of(device).backend == "cpu"
    rows = {2: 900, 6: 900, 50: 120, 424: 9}.get(dim, 37)
    slots = rows + 4
    table = torch.randperm(slots, device=device)[:rows]
    table[torch.rand(rows, device=device) < 0.1] = -1
    kept = columns - (width - 2)

    def between_gaps(count: int, size: int, gap: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The whole, and `count` runs of integers in it, of `size` elements."""
        whole = torch.full((count, size + gap), torch.nan, dtype=dtype, device=device)
        runs = whole[:, gap:]
        return whole, runs.copy_(torch.randint(-4, 5, runs.shape))

    for dtype, form in itertools.product(DTYPES.values(), ("one", "three", "by starts", "drafts")):
        whole, runs = between_gaps(slots, dim * columns, 2, dtype)
        state = runs.unflatten(1, (dim, columns)) if layout == "N,D,S" else runs.unflatten(1, (columns, dim)).mT
        weight, bias = (torch.randint(-4, 5, s).to(device, dtype) for s in ((dim, width), (dim,)))
        options: dict[str, Any] = {"conv_state_indices": table, "pad_slot_id": -1, "kernel": "auto" if on_cpu else kernel}
        if form == "one":
            x = between_gaps(rows, dim, 2, dtype)[1]
        elif form == "three":
            x = torch.randint(-4, 5, (rows, 3, dim)).to(device, dtype).mT
        else:
            lengths = torch.randint(0, 7, (rows,)).clamp(max=kept if form == "drafts" else 7)
            options["query_start_loc"] = torch.tensor([1, *lengths], device=device).cumsum(0)
            x = torch.randint(-4, 5, (int(lengths.sum()) + 4, dim)).to(device, dtype)
        if form == "drafts":
            options["num_accepted_tokens"] = torch.randint(1, kept + 1, (rows,), device=device)
        before = state.clone()
        expected = check(x, state, weight, bias, silu=False, **options)
        assert whole.isnan().sum() == 2 * slots, "a gap was written"
        out = causal_conv1d_update(x, before, weight, bias, False, **options)
        assert torch.equal(out.cpu().double(), expected.out)


def test_views_that_only_look_aligned(device: torch.device) -> None:
    """One tensor at a time begins or steps where no vector of channels, tokens or columns does; the pool's gaps stay NaN."""

    def view(values: Tensor, offset: int, gap: int) -> Tensor:
        """The same values and order of axes in memory that begins at `offset` and skips `gap` elements after each
        outermost step.
        """
        order = sorted(range(values.dim()), key=values.stride, reverse=True)
        dense = values.permute(order)
        room = torch.full(
            (dense.shape[0] * (dense[0].numel() + gap) + offset + 8,), torch.nan, dtype=values.dtype, device=device
        )
        placed = room[offset:].as_strided(dense.shape, (dense[0].numel() + gap, *dense.stride()[1:]))
        return placed.copy_(dense).permute([order.index(axis) for axis in range(values.dim())])

    dim = 24
    for form, layout, name, (offset, gap) in itertools.product(
        ("one", "tokens", "inside"),
        ("N,D,S", "N,S,D"),
        ("x", "state", "weight", "bias", "out"),
        ((1, 0), (2, 0), (4, 0), (0, 1), (0, 2)),
    ):
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
        with environment(**WAYS[way]):
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
