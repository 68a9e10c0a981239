"""Properties of decode that hold whatever the numbers: chunks, drafts, trees, circular states, layouts;
and its split into q, k and v.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch
from torch import Tensor

from serving.decode_cases import LAYOUTS, check, kernels, make_state, make_weights, random_tree
from support.observe import cost_of
from support.tensors import DTYPES, mismatch, same_bits
from hipconv import reference
from hipconv.reference_update import causal_conv1d_update as expected_update
from hipconv.serving import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_update_split_qkv

# ---- properties --------------------------------------------------------------------------------------------------------------

_DIM = 12
quick = settings(max_examples=15, deadline=None)


def _sequence(seed: int, tokens: int, dtype: torch.dtype, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(_DIM, tokens).to(device, dtype), *make_weights(_DIM, width, dtype, device)


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from(list(DTYPES.values())),
    st.integers(1, 7),
)
@quick
def _decoding_in_chunks(device: torch.device, seed: int, chunks: list[int], dtype: torch.dtype, width: int) -> None:
    x, weight, bias = _sequence(seed, sum(chunks), dtype, width, device)
    state = torch.zeros(3, _DIM, width - 1, dtype=dtype, device=device)
    pieces, at = [], 0
    for chunk in chunks:
        pieces.append(causal_conv1d_update(x[None, :, at : at + chunk], state[1:2], weight, bias, True)[0])
        at += chunk
    assert (
        mismatch(torch.cat(pieces, 1).cpu(), reference.causal_conv1d(x[None].cpu(), weight.cpu(), bias.cpu(), True)[0]) is None
    )
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
        expected = expected_update(
            x.cpu(), torch.ones(2, _DIM, 3), weight.cpu(), None if own is not bias else bias.cpu(), bool(activation)
        )
        assert mismatch(outs[-1].cpu(), expected.out) is None
        split = causal_conv1d_update_split_qkv(x, torch.ones_like(state), weight, 4, _DIM - 8, own, activation)
        assert torch.equal(torch.cat(split, 1), outs[-1])
    assert torch.equal(outs[1], outs[2])


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(2, 6),
    st.sampled_from(list(DTYPES.values())),
    st.booleans(),
    st.data(),
)
@quick
def _speculative(
    device: torch.device, seed: int, drafts: int, width: int, dtype: torch.dtype, columns_inside: bool, data
) -> None:
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
    out = causal_conv1d_update(
        x[None],
        state,
        weight,
        bias,
        True,
        intermediate_conv_window=windows,
        retrieve_parent_token=parent,
        retrieve_next_token=child.to(device),
        retrieve_next_sibling=sibling.to(device),
    )[0]
    assert torch.equal(state, before) and parent[0].tolist() == parents
    for t in range(tokens):
        path = [t]
        while path[0]:
            path.insert(0, parents[path[0]])
        alone = before.clone()
        along = causal_conv1d_update(x[None][:, :, path], alone, weight, bias, True)[0]
        assert mismatch(out[:, t].cpu(), along[:, -1].double().cpu()) is None
        assert torch.equal(windows[0, t], alone[0])
        assert "simd" not in kernels(device) or torch.equal(out[:, t], along[:, -1]), "the CPU has one arithmetic"


def test_a_tree_of_drafts_is_each_of_its_paths(device: torch.device) -> None:
    _tree(device)


@pytest.mark.parametrize("seed", range(5))
def test_links_that_lead_nowhere_or_back_are_ignored(device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    links = torch.randint(-3, 12, (2, 3, 9), device=device)
    parent = torch.zeros(3, 9, dtype=torch.int64, device=device)
    check(
        torch.randn(3, 8, 9, device=device),
        make_state("N,D,S", 3, 8, 3, torch.float32, device),
        torch.ones(8, 4, device=device),
        retrieve_next_token=links[0],
        retrieve_next_sibling=links[1],
        retrieve_parent_token=parent,
    )


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
    assert (
        mismatch(torch.cat(pieces, 1).cpu(), reference.causal_conv1d(x[None].cpu(), weight.cpu(), bias.cpu(), True)[0]) is None
    )


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
        # `step` takes no wider weights.
        weight = torch.ones(672, 4, device=device, dtype=dtype if kernel == "step" else torch.float32)
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
            call = functools.partial(
                causal_conv1d_update, x, state, weight, bias, True, out=x if form == "in_place" else None, **options
            )
        allocated, launches = cost_of(call)
        assert allocated == (0 if form == "in_place" else x.nbytes)
        assert len(launches) == (1 if device.type == "cuda" else 0), launches


# ---- q, k, v -----------------------------------------------------------------------------------------------------------------


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
        assert all(torch.equal(mine, part) for mine, part in zip((q, k, v), split, strict=True)), (
            "neighbouring tokens in the outputs"
        )
