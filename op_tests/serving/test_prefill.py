"""serving.causal_conv1d_fn against its reference: every kernel, tile, shape, stride and type, and its split into q, k and v."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from serving.prefill_cases import (
    CPU,
    STATE_LAYOUTS,
    Case,
    check,
    expected,
    good_call,
    in_place_kernels,
    kernel_names,
    padded_call,
    run_on_copy,
    same_values,
)
from support.backends import environment, use_backend
from support.tensors import DTYPES, INTEGERS, LAYOUTS, mismatch, strided
from hipconv import serving

# ---- kernels, tiles and dtypes, on every backend (conftest.py) ---------------------------------------------------------------

LENGTHS = [
    [1],
    [3],
    [29],
    [1] * 21,
    [2, 3, 1, 5, 4, 1, 1, 2],
    [0, 7, 0, 0, 9, 1, 6, 0, 10, 5, 11, 0],  # runs of 8 tokens begin near the begins of these
    [40, 1, 1, 33, 2, 64, 65],
    [300],
]
WIDTHS = [2, 3, 4, 1, 5, 6, 7, 8, 9]  # peers' width 5 loads the state and never multiplies it, and wider ones are not served


def _grid() -> list[Case]:
    draw = random.Random(0)
    combinations = itertools.product(DTYPES.values(), DTYPES.values(), LAYOUTS, STATE_LAYOUTS)
    cases = []
    for number, (dtype, state_dtype, layout, state_layout) in enumerate(combinations):
        lengths, width = LENGTHS[number % len(LENGTHS)], draw.choice(WIDTHS)
        dim = draw.choice([1, 5, 7, 16, 24, 100, 264])
        weight_dtype = draw.choice([dtype, torch.float32])
        spare = draw.choice([0, 0, 1, 3])
        flags = (number % 3 > 0, number % 4 > 0)
        cases.append(
            Case(lengths, dim, width, dtype, state_dtype, weight_dtype, *flags, layout, state_layout, spare, number % 3)
        )
    for number, (lengths, width) in enumerate(itertools.product(LENGTHS, range(1, 9))):
        dtype = list(DTYPES.values())[number % 3]
        cases.append(Case(lengths, 16 + 8 * (number % 3), width, dtype, dtype, dtype, state_layout=STATE_LAYOUTS[number % 2]))
    return cases


def _name(case: Case) -> str:
    return "-".join(str(field).replace("torch.", "").replace(" ", "") for field in case)


@pytest.mark.parametrize("case", _grid(), ids=_name)
def test_matches_the_reference(device: torch.device, case: Case) -> None:
    check(case.inputs(device))


def test_every_kernel_can_be_forced_by_name(device: torch.device) -> None:
    arguments = Case([9, 1, 30], 16, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    for name in kernel_names(device):
        check(arguments | {"kernel": name})
    with pytest.raises(ValueError, match="kernel: got 'triton', expected one of 'auto'"):
        check(arguments | {"kernel": "triton"})


@pytest.mark.parametrize("in_place", [False, True])
def test_the_variable_forces_a_kernel_where_there_is_one(device: torch.device, in_place: bool) -> None:
    """Nowhere else, because it holds for all backends and forms. Where it forces one, width 9 tells."""
    here = kernel_names(device) + (in_place_kernels(device) if in_place else [])
    for width, name in itertools.product((4, 9), ("tile", "words", "staged", "naive", "simd", "openmp")):
        arguments = Case([9, 1, 30], 16, width).inputs(device)
        wanted, _, live = expected(arguments)
        with environment(HIPCONV_VARLEN_KERNEL=name):
            call = functools.partial(serving.causal_conv1d_fn, **arguments, out=arguments["x"] if in_place else None)
            if width == 9 and name in here and name not in ("naive", "openmp", "simd"):
                with pytest.raises(ValueError, match=f"^HIPCONV_VARLEN_KERNEL: got '{name}', which serves width"):
                    call()
            else:
                assert mismatch(call()[:, live], wanted[:, live]) is None, (width, name)


def test_a_variable_that_names_no_kernel(device: torch.device) -> None:
    with environment(HIPCONV_VARLEN_KERNEL="triton"):
        with pytest.raises(
            ValueError, match=r"^HIPCONV_VARLEN_KERNEL: got 'triton', expected one of 'auto', .*'staged', .*'openmp'$"
        ):
            serving.causal_conv1d_fn(**good_call(device))
        check(Case([9, 1], 16).inputs(device) | {"kernel": kernel_names(device)[0]})  # the call's own keyword goes first


def test_every_pair_of_dtypes_is_served(device: torch.device) -> None:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    for dtype, state_dtype, width in itertools.product(dtypes, dtypes, (4, 5, 6)):
        arguments = Case([9, 1, 30], 16, width, dtype, state_dtype).inputs(device)
        check(arguments)
        if "tile" in kernel_names(device):
            check(arguments | {"kernel": "staged"})
            if state_dtype in (dtype, torch.float32):
                check(arguments | {"kernel": "tile"})
            else:
                with pytest.raises(
                    ValueError, match=r"kernel: got 'tile', which serves widths 2 to 8, .*, states of x's dtype or float32"
                ):
                    check(arguments | {"kernel": "tile"})


@pytest.mark.parametrize("lengths", LENGTHS[3:7], ids=str)
@pytest.mark.parametrize("block_m", [4, 32, 64, 256])
def test_every_tile_gives_the_same_bits(device: torch.device, block_m: int, lengths: list[int]) -> None:
    """Runs of 1 to 32 tokens, or stretches of 64 to 256, which begin anywhere in a sequence."""
    arguments = Case(lengths, 72, 4, torch.bfloat16, torch.float32).inputs(device)
    out, pool = check(arguments)
    tiles = ({"block_m": block_m}, {"block_m": block_m, "block_n": 16, "num_warps": 1})
    for kernel, forced in itertools.product({"tile", "words", "staged"} & set(kernel_names(device)) or {"auto"}, tiles):
        again, pool_again = check(arguments | forced | {"kernel": kernel})
        assert torch.equal(again, out) and same_values(pool_again, pool)
    with environment(HIPCONV_VARLEN_TILE=f"{block_m}x64x2"):
        assert torch.equal(check(arguments)[0], out)


@pytest.mark.parametrize("width", range(2, 9))
def test_channels_at_any_alignment(device: torch.device, width: int) -> None:
    """Rows that begin in the middle of a word, pools whose slots do, and several starts of sequences a row of threads."""
    words, staged = ("words", "staged") if "words" in kernel_names(device) else ("auto", "auto")
    lengths = [1] * 20 + [8] * 4 + [3, 0, 30, 2, 12] + [4] * 3
    for number, (dtype, state_layout) in enumerate(itertools.product(DTYPES.values(), STATE_LAYOUTS)):
        for dim, state_dtype in ((66, dtype), (131, dtype), (3, torch.float32)):
            arguments = Case(lengths, dim, width, dtype, state_dtype, state_layout=state_layout, dead_tokens=2).inputs(device)
            tokens = arguments["x"].shape[1]
            wide = torch.full((tokens, dim + 1 + number % 2), torch.nan, dtype=dtype, device=device)
            wide[:, 1 : dim + 1] = arguments["x"].T
            arguments["x"] = wide[:, 1 : dim + 1].T
            if dim == 131:  # a pool that begins in the middle of a word
                pool = arguments["conv_states"]
                memory = torch.full((pool.numel() + 1,), torch.nan, dtype=dtype, device=device)
                arguments["conv_states"] = memory[1:].as_strided(pool.shape, pool.stride(), 1).copy_(pool)
            other, other_pool = check(arguments | {"kernel": staged})
            for tile in ({}, {"block_m": 512}):
                out, pool = run_on_copy(arguments | {"kernel": words} | tile)
                assert torch.equal(out, other) and same_values(pool, other_pool), (dim, dtype, state_layout, tile)


@pytest.mark.parametrize("width", range(2, 9))
def test_rows_of_any_number_of_lanes(device: torch.device, width: int) -> None:
    """Few channels, whose rows of lanes lie across waves, and runs of 4 to 64 tokens: new tensors, in place, and split."""
    words = "words" if "words" in kernel_names(device) else "auto"
    for number, (dtype, dim) in enumerate(itertools.product(DTYPES.values(), (130, 50))):
        lengths = ([70, 3, 0, 66, 7], [140, 17, 1])[(number + width) % 2]
        layout = STATE_LAYOUTS[(number + width // 2) % 2]
        state_dtype = (dtype, torch.float32)[number % 4 == 3]
        case = Case(lengths, dim, width, dtype, state_dtype, state_layout=layout, dead_tokens=number % 3)
        arguments = case.inputs(device) | {"kernel": words, "block_m": (1024, 0, 512)[(number + width) % 3]}
        wide = torch.full((case.dead_tokens + sum(lengths), dim + number % 2), torch.nan, dtype=dtype, device=device)
        x = wide[:, number % 2 :].T.copy_(arguments["x"])
        arguments["x"] = x
        arguments["cache_indices"][1] = -1
        out, pool = check(arguments)
        states = arguments.pop("conv_states")
        split = states.clone()
        parts = serving.causal_conv1d_split_qkv(
            **arguments, conv_states=split, k_dim=dim // 4 // 2 * 2, v_dim=dim - dim // 4 // 2 * 4
        )
        live = expected(arguments | {"conv_states": states})[2]
        serving.causal_conv1d_fn(**arguments, conv_states=states, out=x)
        assert torch.equal(x[:, live], out[:, live]) and same_values(states, pool), (dtype, dim)
        assert torch.equal(torch.cat(parts, 1).T[:, live], out[:, live]) and same_values(split, pool), (dtype, dim)
    arguments["weight"][dim // 2, 0] = torch.inf  # what comes before a sequence without a state counts for nothing
    states.nan_to_num_(0.5)
    wanted, _, live = expected(arguments | {"conv_states": states})
    assert torch.equal(run_on_copy(arguments | {"conv_states": states})[0].isfinite()[:, live], wanted.isfinite()[:, live])


@pytest.mark.parametrize("width", range(2, 9))
def test_rows_of_many_lanes(device: torch.device, width: int) -> None:
    """A block takes 64 words of many channels in new tensors, if there are 64 tokens."""
    words, staged = ("words", "staged") if "words" in kernel_names(device) else ("auto", "auto")
    for number, dtype in enumerate(DTYPES.values()):
        dim = (2051 if dtype == torch.float32 else 4099) - number % 2 * 2
        lengths = ([3, 40, 0, 27, 1], [30, 6, 19])[(number + width) % 3 == 0]
        case = Case(lengths, dim, width, dtype, dtype, state_layout=STATE_LAYOUTS[(number + width) % 2], dead_tokens=number)
        arguments = case.inputs(device)
        wide = torch.full((arguments["x"].shape[1], dim + 2), torch.nan, dtype=dtype, device=device)
        arguments["x"] = wide[:, 1 : dim + 1].T.copy_(arguments["x"])
        out, pool = check(arguments | {"kernel": words})
        other, other_pool = run_on_copy(arguments | {"kernel": staged})
        assert torch.equal(out, other) and same_values(pool, other_pool), dtype


@pytest.mark.parametrize("state_layout", STATE_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_rows_of_several_blocks_on_the_host(dtype: torch.dtype, state_layout: str) -> None:
    """Blocks of channels end within rows, lines within q, k and v; some sequences have no initial state.
    Every path gives the same bits.
    """
    for flags, k_dim in ((True, 700), (None, 63)):
        arguments = Case([1, 2, 3, 1, 9, 1, 20, 2], 2121, 4, dtype, dtype, dtype, state_layout=state_layout).inputs(CPU)
        if flags:
            arguments["conv_states"].nan_to_num_(0.5)
            arguments["has_initial_state"][:] = True
        out, pool = check(arguments)
        states = arguments["conv_states"].clone()
        parts = serving.causal_conv1d_split_qkv(**(arguments | {"conv_states": states}), k_dim=k_dim, v_dim=2121 - 2 * k_dim)
        assert torch.equal(torch.cat(parts, dim=1).T, out)
        assert same_values(states, pool)
        # This makes the states ones of uncommon strides.
        spare = torch.cat([arguments["conv_states"], states[:, :, :1]], dim=2)
        assert torch.equal(serving.causal_conv1d_fn(**(arguments | {"conv_states": spare})), out)
        assert same_values(spare[:, :, :3], pool)


# ---- strides, dtypes and alignment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_indices_of_any_integer_type_and_stride(device: torch.device, dtype: torch.dtype) -> None:
    """Slots come as `block_table[:, 0]`: peers read such a column as if it were dense, and corrupt other requests' states."""
    arguments = Case([6, 3, 1, 4, 12], 16).inputs(device)
    for name in ("query_start_loc", "cache_indices", "has_initial_state"):
        dense = arguments[name]
        buffer = torch.full((dense.shape[0], 3), 77, device=device).to(dtype)
        buffer[:, 1] = dense.to(dtype)
        arguments[name] = buffer[:, 1]
    check(arguments)
    if dtype == torch.uint64:  # 2^63 and more are outside of any pool
        arguments |= {"cache_indices": torch.tensor([0, -1, -2, -3, 1], device=device), "pad_slot_id": None}
        arguments["conv_states"].nan_to_num_(0.5)
        out, pool = check(arguments)
        huge = torch.tensor([0, 2**64 - 1, 2**63, 2**63 + 1, 1], dtype=dtype, device=device)
        again, pool_again = run_on_copy(arguments | {"cache_indices": huge})
        assert torch.equal(again, out) and same_values(pool_again, pool)


def test_a_block_table_without_prefix_caching_gives_its_first_column(device: torch.device) -> None:
    arguments = Case([6, 3, 1], 16).inputs(device)
    table = torch.full((3, 4), 1 << 20, device=device)
    table[:, 0] = arguments["cache_indices"]
    assert torch.equal(check(arguments)[0], check(arguments | {"cache_indices": table})[0])


def _strided(values: Tensor, strides: tuple[int, ...], offset: int) -> tuple[Tensor, Tensor]:
    """The values in a view with these strides, amid NaN; and the whole buffer."""
    view, buffer = strided(values.shape, strides, offset, values.dtype, values.device, torch.nan)
    return view.copy_(values), buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        "channel-last",
        "odd offset",
        "odd pitch",
        "channel-first",
        "channel-first, odd pitch",
        "every third token",
        "every second channel",
    ],
)
def test_any_strides_with_poison_around(device: torch.device, shape: str, dtype: torch.dtype) -> None:
    """x, out, weight, bias and the pool have any strides; peers take the stride of a state's columns for 1,
    and weights for contiguous.
    """
    dim, lengths = 16, [13, 1, 2, 30, 90]
    tokens = sum(lengths)
    strides, offset = {
        "channel-last": ((1, dim + 8), 8),
        "odd offset": ((1, dim), 3),
        "odd pitch": ((1, dim + 3), 8),
        "channel-first": ((tokens, 1), 0),
        "channel-first, odd pitch": ((tokens + 3, 1), 5),
        "every third token": ((1, 3 * dim), 0),
        "every second channel": ((2, 2 * dim), 1),
    }[shape]
    arguments = Case(lengths, dim, 4, dtype, dtype, spare_columns=1).inputs(device)
    out, pool = check(arguments)
    arguments["x"], _ = _strided(arguments["x"], strides, offset)
    arguments["weight"], _ = _strided(arguments["weight"], (1, 17), 1)
    arguments["bias"], _ = _strided(arguments["bias"], (3,), 1)
    slots, _, columns = pool.shape
    layouts = (
        ((dim * columns, columns, 1), 3),
        ((dim * columns + 5, 1, dim), 3),
        ((1, slots * columns, slots), 3),
        ((columns, slots * columns, 1), 3),
        ((2 * dim * columns, 2, 2 * dim), 8),  # aligned, and yet no vectors
    )
    for number, (pool_strides, pool_offset) in enumerate(layouts):
        states, buffer = _strided(arguments["conv_states"], pool_strides, pool_offset)
        given, given_buffer = _strided(torch.full_like(out, 42.0), strides, offset + number % 2)
        serving.causal_conv1d_fn(**(arguments | {"conv_states": states, "out": given}))
        assert mismatch(given, expected(arguments)[0]) is None and same_values(states, pool)
        assert given_buffer.isnan().sum() == given_buffer.numel() - out.numel(), "wrote outside out"
        assert buffer.isnan().sum() == buffer.numel() - pool.numel() + pool.isnan().sum(), "wrote outside the pool"


def test_offsets_beyond_32_bits() -> None:
    """Peers multiply a token or slot number by its stride in 32 bits. Strided views over memory that is never touched."""
    huge = torch.empty(3 << 31, dtype=torch.int8).view(torch.bfloat16)
    arguments = Case([3, 3], 2, 4, torch.bfloat16, torch.bfloat16).inputs(CPU)
    for backend, kernel in (("cpu", "auto"), ("simt", "auto")):
        with use_backend(backend):
            out, pool = check(arguments | {"kernel": kernel})
            far = arguments | {"x": huge.as_strided((2, 6), (1, 1 << 29)).copy_(arguments["x"])}
            assert torch.equal(check(far)[0], out)
            states = huge.as_strided(pool.shape, (1 << 29, 3, 1), 64).copy_(arguments["conv_states"])
            given = huge.as_strided((2, 6), (1, 1 << 29), 1 << 20)
            serving.causal_conv1d_fn(**(arguments | {"conv_states": states, "out": given}))
            assert torch.equal(given, out) and same_values(states, pool)


# ---- split -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k_dim", "v_dim"), [(8, 16), (64, 128), (3, 5), (12, 9), (0, 8), (8, 0), (20, 8)], ids=lambda dim: str(dim)
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_split_is_the_whole_cut_into_three(device: torch.device, dtype: torch.dtype, k_dim: int, v_dim: int) -> None:
    """Any k_dim: peers need a multiple of 64 and store tiles that straddle a boundary elsewhere, or nowhere."""
    for layout, width in (("channel_last", 4), ("channel_first", 3), ("channel_last", 5)):
        arguments = Case(
            [6, 3, 1, 0, 12, 30], 2 * k_dim + v_dim, width, dtype, dtype, dtype, layout=layout, dead_tokens=2
        ).inputs(device)
        arguments["cache_indices"][1] = -1
        out, pool = check(arguments)
        states = arguments["conv_states"].clone()
        parts = serving.causal_conv1d_split_qkv(**(arguments | {"conv_states": states}), k_dim=k_dim, v_dim=v_dim)
        for part, channels in zip(parts, (k_dim, k_dim, v_dim), strict=True):
            assert part.shape == (out.shape[1], channels) and part.is_contiguous()
        assert torch.equal(torch.cat(parts, dim=1).T, out)
        assert same_values(states, pool)


def test_split_writes_into_the_callers_tensors(device: torch.device) -> None:
    """And leaves the tokens of padding and of no sequence alone there."""
    arguments = padded_call(device)
    q, k, v = serving.causal_conv1d_split_qkv(
        **(arguments | {"conv_states": arguments["conv_states"].clone()}), k_dim=5, v_dim=6
    )
    _, wanted_pool, live = expected(arguments)
    out = (torch.full_like(q, 42.0), torch.full_like(k, 42.0), torch.full_like(v, 42.0))
    given = serving.causal_conv1d_split_qkv(**arguments, k_dim=5, v_dim=6, out=out)
    for part, new, own in zip(given, (q, k, v), out, strict=True):
        assert part is own and torch.equal(own[live], new[live]) and (own[~live] == 42.0).all() and (new[~live] == 0).all()
    assert same_values(arguments["conv_states"], wanted_pool)


@pytest.mark.parametrize("forced", [{"block_m": 8}, {"block_m": 64, "block_n": 16, "num_warps": 1}, {"block_m": None}], ids=str)
def test_a_tile_may_be_forced_on_a_split(device: torch.device, forced: dict[str, int | None]) -> None:
    """By keyword, as AITER's and ATOM's may (None is their default), or by the environment."""
    arguments = Case([6, 3, 1, 0, 12, 30], 40, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    out, pool = check(arguments)
    text = "x".join(str(forced.get(side) or 32) for side in ("block_m", "block_n", "num_warps"))
    kernel = "staged" if "staged" in kernel_names(device) else "auto"
    for tile, variables in ((forced, {}), ({}, {"HIPCONV_VARLEN_TILE": text})):
        states = arguments["conv_states"].clone()
        with environment(**variables):
            parts = serving.causal_conv1d_split_qkv(
                **(arguments | {"conv_states": states}), k_dim=12, v_dim=16, kernel=kernel, **cast(dict[str, Any], tile)
            )
        assert torch.equal(torch.cat(parts, dim=1).T, out) and same_values(states, pool)


@pytest.mark.parametrize("activation", [True, "silu", "swish", False, None])
def test_each_name_of_an_activation_and_each_form_of_no_bias(device: torch.device, activation: bool | str | None) -> None:
    arguments = Case([6, 1, 3], 8).inputs(device) | {"activation": activation}
    check(arguments)
    without, _ = check(arguments | {"bias": None})
    assert torch.equal(run_on_copy(arguments | {"bias": arguments["bias"][:0]})[0], without)


def test_split_writes_nothing_beside_its_outputs(device: torch.device) -> None:
    arguments = Case([6, 3, 30], 40, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    for k_dim in (16, 13):
        buffers = [
            torch.full((39 * size + 32,), 42.0, dtype=torch.bfloat16, device=device) for size in (k_dim, k_dim, 40 - 2 * k_dim)
        ]
        q, k, v = (buffer[16:-16].view(39, -1) for buffer in buffers)
        inputs = [arguments[name] for name in ("conv_states", "x", "weight", "bias", "query_start_loc", "cache_indices")]
        torch.ops.hipconv.causal_conv1d_varlen_split(q, k, v, *inputs, use_silu=True)
        assert all((buffer[:16] == 42.0).all() and (buffer[-16:] == 42.0).all() for buffer in buffers)
