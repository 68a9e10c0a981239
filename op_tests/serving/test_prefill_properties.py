"""Properties of prefill that hold whatever the numbers: chunks, the order of sequences, states kept on the way."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st
import torch
from torch import Tensor

from serving.prefill_cases import CPU, STATE_LAYOUTS, Case, cached_call, run_on_copy, same_values
from support.backends import WAYS, environment
from support.tensors import DTYPES, LAYOUTS
import hipconv
from hipconv import serving

_LENGTHS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 70)), min_size=1, max_size=12)
_WAY = st.sampled_from([WAYS["cpu"], WAYS["simt-wave32-shuffled"], WAYS["simt-wave64"]])
_SIZES = st.fixed_dictionaries(
    {
        "dim": st.sampled_from([1, 6, 16, 40]),
        "width": st.sampled_from([2, 3, 4, 4, 5]),
        "dtype": st.sampled_from(list(DTYPES.values())),
        "layout": st.sampled_from(LAYOUTS),
        "state_layout": st.sampled_from(STATE_LAYOUTS),
    }
)
_TILE = st.sampled_from([0, 8, 32, 128])


def _take(x: Tensor, tokens: list[int]) -> Tensor:
    """These tokens, in the layout of x, which decides on the kernel."""
    return x.T[tokens].T if x.stride(0) == 1 else x[:, tokens]


# Bit for bit, and beside each other only: the reference is for the cases above. A search through cases would find the short one
# in which two elements round the other way.
_quick = settings(max_examples=25, deadline=None)


@st.composite
def _cut(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Sequences' lengths, and where each is cut."""
    return [(length, sorted(draw(st.lists(st.integers(0, length), max_size=2)))) for length in draw(_LENGTHS)]


_NARROW = {"dim": 6, "width": 2, "dtype": torch.float32, "layout": "channel_first", "state_layout": "dim_last"}


@_quick
@given(sequences=_cut(), sizes=_SIZES, way=_WAY, block_m=_TILE)
@example(sequences=[(0, [])] * 3 + [(1, []), (1, [0])], sizes=_NARROW, way=WAYS["cpu"], block_m=0)  # a call of one token
@example(sequences=[(70, [1]), (40, [30, 39])], sizes=_NARROW | {"dim": 40, "width": 4}, way=WAYS["cpu"], block_m=0)
def test_any_chunking_is_the_whole(
    sequences: list[tuple[int, list[int]]], sizes: dict, way: dict[str, str], block_m: int
) -> None:
    """Sequences cut anywhere, their pieces run by one call after another: the same outputs and states, bit for bit."""
    lengths, cuts = [length for length, _ in sequences], [cut for _, cut in sequences]
    case = Case(lengths, **sizes, state_dtype=sizes["dtype"])
    whole = case.inputs(CPU) | {"block_m": block_m}
    starts = whole["query_start_loc"].tolist()
    with environment(**way):
        out, pool = run_on_copy(whole)
        chunked, states = torch.full_like(out, torch.nan), whole["conv_states"].clone()
        begun = torch.zeros(len(lengths), dtype=torch.bool)
        for step in range(3):
            pieces = []
            for start, length, cut in zip(starts[:-1], lengths, cuts, strict=True):
                edges = [0, *cut, *[length] * (3 - len(cut))]
                pieces.append(range(start + edges[step], start + edges[step + 1]))
            tokens = [token for piece in pieces for token in piece]
            part = whole | {
                "x": _take(whole["x"], tokens),
                "query_start_loc": torch.tensor([0, *itertools.accumulate(map(len, pieces))]),
                "has_initial_state": whole["has_initial_state"] | begun,
                "conv_states": states,
            }
            chunked[:, tokens] = serving.causal_conv1d_fn(**part)
            begun |= torch.tensor([len(piece) > 0 for piece in pieces])
    assert torch.equal(chunked, out) and same_values(states, pool)


@_quick
@given(data=st.data(), lengths=_LENGTHS, sizes=_SIZES, way=_WAY, block_m=_TILE)
def test_the_order_of_sequences_does_not_matter(
    data: st.DataObject, lengths: list[int], sizes: dict, way: dict, block_m: int
) -> None:
    arguments = Case(lengths, **sizes).inputs(CPU) | {"block_m": block_m}
    order = data.draw(st.permutations(range(len(lengths))))
    starts = arguments["query_start_loc"].tolist()
    tokens = [token for b in order for token in range(starts[b], starts[b + 1])]
    permuted = arguments | {
        "x": _take(arguments["x"], tokens),
        "query_start_loc": torch.tensor([0, *itertools.accumulate(lengths[b] for b in order)]),
        "cache_indices": arguments["cache_indices"][order],
        "has_initial_state": arguments["has_initial_state"][order],
    }
    with environment(**way):
        out, pool = run_on_copy(arguments)
        again, pool_again = run_on_copy(permuted)
    assert torch.equal(again, out[:, tokens]) and same_values(pool_again, pool)


@_quick
@given(lengths=_LENGTHS, sizes=_SIZES, way=_WAY, spare=st.integers(0, 2))
def test_only_what_is_addressed_matters(lengths: list[int], sizes: dict, way: dict[str, str], spare: int) -> None:
    """NaN in all other slots and columns, and in the states of sequences that do not continue."""
    arguments = Case(lengths, **sizes, spare_columns=spare, dead_tokens=2).inputs(CPU)
    clean = arguments | {"conv_states": arguments["conv_states"].nan_to_num(0.25)}
    with environment(**way):
        assert torch.equal(run_on_copy(arguments)[0], run_on_copy(clean)[0])


@_quick
@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=5),
    block=st.integers(1, 20),
    width=st.sampled_from([2, 3, 4, 5]),
    way=_WAY,
    block_m=_TILE,
)
def test_cached_states_are_those_of_a_plain_run(
    sequences: list, block: int, width: int, way: dict[str, str], block_m: int
) -> None:
    """The state kept for a boundary, or the end, is the one that a plain run up to there leaves."""
    computed, lengths = (list(column) for column in zip(*sequences, strict=True))
    arguments = cached_call(CPU, computed, lengths, block, dim=8, width=width) | {"block_m": block_m}
    starts = arguments["query_start_loc"].tolist()
    with environment(**way):
        _, pool = run_on_copy(arguments)
        for b, (before, length) in enumerate(sequences):
            for column in range(before // block, int(arguments["block_idx_last_scheduled_token"][b]) + 1):
                stop = min((column + 1) * block, before + length) - before
                plain = {name: arguments[name] for name in ("weight", "bias", "activation")}
                read = arguments["cache_indices"][b, arguments["initial_state_idx"][b]]
                states = arguments["conv_states"][read][None].clone()
                serving.causal_conv1d_fn(
                    x=arguments["x"][:, starts[b] : starts[b] + stop],
                    conv_states=states,
                    query_start_loc=torch.tensor([0, stop]),
                    has_initial_state=torch.tensor([before > 0]),
                    **plain,
                )
                assert torch.equal(pool[arguments["cache_indices"][b, column]], states[0])


@_quick
@given(
    lengths=_LENGTHS,
    dim=st.sampled_from([3, 40, 100]),
    width=st.sampled_from([1, 2, 4, 7, 12, 20]),
    dtype=st.sampled_from(list(DTYPES.values())),
    state_dtype=st.sampled_from(list(DTYPES.values())),
    steps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    states=st.sampled_from(STATE_LAYOUTS),
)
def test_the_cpu_has_one_arithmetic_for_all_strides_and_forms(
    lengths: list[int], dim: int, width: int, dtype: torch.dtype, state_dtype: torch.dtype, steps: tuple[int, int], states: str
) -> None:
    """x along the channels or the tokens, in steps; split into q, k and v; by prefill, by decode, and sequence by sequence by
    the forward: the same bits."""
    case = Case(lengths, dim, width, dtype, state_dtype, state_layout=states, dead_tokens=2)
    arguments = case.inputs(CPU)
    x, k_dim = arguments["x"], dim // 3
    with environment(**WAYS["cpu"]):
        out, pool = run_on_copy(arguments)
        for layout in LAYOUTS:
            spread = x.T.repeat_interleave(steps[0], 0).repeat_interleave(steps[1], 1)
            spread = spread.T if layout == "channel_last" else spread.T.contiguous()
            again, states_again = run_on_copy(arguments | {"x": spread[:: steps[1], :: steps[0]]})
            assert torch.equal(again, out) and same_values(states_again, pool), layout
        own_pool = {"conv_states": arguments["conv_states"].clone()}
        split = serving.causal_conv1d_split_qkv(**(arguments | own_pool), k_dim=k_dim, v_dim=dim - 2 * k_dim)
        assert torch.equal(torch.cat(split, 1).T, out)
        parameters = {"weight": arguments["weight"], "bias": arguments["bias"], "activation": "silu"}
        starts = arguments["query_start_loc"].tolist()
        for b, (begin, end) in enumerate(itertools.pairwise(starts)):
            state = arguments["conv_states"][arguments["cache_indices"][b]].clone()[None]
            if not arguments["has_initial_state"][b]:
                state.zero_()
                if end > begin:
                    row = hipconv.causal_conv1d(x[None, :, begin:end], **parameters)[0]
                    assert torch.equal(row, out[:, begin:end])
            if state_dtype in (dtype, torch.float32):  # or tokens would be rounded on their way through the state
                for t in range(begin, end):
                    token = serving.causal_conv1d_update(x[None, :, t], state, *parameters.values())
                    assert torch.equal(token[0], out[:, t])
