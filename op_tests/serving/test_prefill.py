"""hipconv.serving.causal_conv1d_fn and causal_conv1d_split_qkv: a pytest suite, and a command that checks and times any case.

python op_tests/test_causal_conv1d_varlen.py
python op_tests/test_causal_conv1d_varlen.py --dim 8192 --seqlens 1,1,4000 --seqlens 1024,1024 --width 4 --state_len 3 --split
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import functools
import itertools
import random
import re
import sys
from typing import Any, NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch
from torch import Tensor, zeros

from support.backends import BACKENDS, WAYS, backends, device_of, environment, use_backend
from support.cli import Table, at_least, check_state_len, choice_of, flattened, list_of
from support.marks import needs_gpu
from support.observe import cost_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch, mismatch_beside_infinities
from support.timing import microseconds
from hipconv import jit, reference, serving, targets

STATE_LAYOUTS = ("dim_first", "dim_last")  # (slots, dim, state_len) in memory, or (slots, state_len, dim)
CPU = torch.device("cpu")


class Case(NamedTuple):
    """One call: the sequences' lengths, sizes, types, layouts."""

    lengths: list[int]
    dim: int
    width: int = 4
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    use_silu: bool = True
    has_bias: bool = True
    layout: str = "channel_last"
    state_layout: str = "dim_last"
    spare_columns: int = 0  # of a slot, after the window
    dead_tokens: int = 0  # after the last sequence

    def inputs(self, device: torch.device, seed: int = 0) -> dict[str, Any]:
        """Arguments by name. Slots are given out at random; those of nobody, and spare columns, hold NaN; so do a few tokens."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        count, tokens = len(self.lengths), sum(self.lengths) + self.dead_tokens
        x = empty_as(self.layout, (1, self.dim, tokens), self.dtype, device)[0]
        x.copy_(normal(self.dim, tokens))
        x[:, sum(self.lengths) :] = torch.nan
        slots, columns = count + 3, self.width - 1 + self.spare_columns
        if self.state_layout == "dim_first":
            pool = torch.full((slots, self.dim, columns), torch.nan, dtype=self.state_dtype, device=device)
        else:
            pool = torch.full((slots, columns, self.dim), torch.nan, dtype=self.state_dtype, device=device).transpose(1, 2)
        mine = torch.randperm(slots, generator=generator)[:count]
        flags = torch.rand(count, generator=generator) < 0.6
        pool[mine[flags].to(device), :, : self.width - 1] = normal(int(flags.sum()), self.dim, self.width - 1).to(device, self.state_dtype)
        return {
            "x": x,
            "weight": (normal(self.dim, self.width) / self.width**0.5).to(device, self.weight_dtype),
            "bias": normal(self.dim).to(device, self.weight_dtype) if self.has_bias else None,
            "conv_states": pool,
            "query_start_loc": torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=device),
            "cache_indices": mine.to(device, torch.int32),
            "has_initial_state": flags.to(device),
            "activation": "silu" if self.use_silu else None,
        }


def expected(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The reference's outputs, pool and live tokens for arguments of `causal_conv1d_fn`."""
    changed = {name: value for name, value in arguments.items() if name not in _NOT_SEMANTIC}
    changed["use_silu"] = bool(changed.pop("activation", "silu"))
    return reference.causal_conv1d_varlen(**changed)


_NOT_SEMANTIC = ("kernel", "block_m", "block_n", "num_warps", "metadata", "seq_lens_cpu", "validate_data")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN included."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def run_on_copy(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output of a call, and a copy of the pool as the call leaves it."""
    pool = arguments["conv_states"].clone()
    return serving.causal_conv1d_fn(**(arguments | {"conv_states": pool})), pool


def check(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Run a call on a copy of the pool; compare outputs, dead tokens, every element of the pool, and that x is what it was."""
    x = arguments["x"].clone()
    out, pool = run_on_copy(arguments)
    wanted, wanted_pool, live = expected(arguments)
    wrong = mismatch(out[:, live], wanted[:, live])
    assert wrong is None, wrong
    assert (out[:, ~live] == 0).all(), "dead tokens of a new tensor are zero"
    assert same_bits(pool, wanted_pool)
    assert same_bits(x, arguments["x"])
    return out, pool


@pytest.fixture(params=[*WAYS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


def kernel_names(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_varlen", targets.of(device)).causal_conv1d_varlen_kernels()


# ---- everything below runs on every backend, the GPU kernels on the host in both wave sizes and three orders of threads --------

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
WIDTHS = [2, 3, 4, 1, 5, 6, 9]  # peers' width 5 loads the state and never multiplies it, and wider ones are not served


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
        cases.append(Case(lengths, dim, width, dtype, state_dtype, weight_dtype, *flags, layout, state_layout, spare, number % 3))
    for number, (lengths, width) in enumerate(itertools.product(LENGTHS, (2, 3, 4, 5, 6))):
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
    for width, name in itertools.product((4, 9), ("tile", "naive", "walk", "strip", "simd", "openmp")):
        arguments = Case([9, 1, 30], 16, width).inputs(device)
        wanted, _, live = expected(arguments)
        with environment(HIPCONV_VARLEN_KERNEL=name):
            call = functools.partial(serving.causal_conv1d_fn, **arguments, out=arguments["x"] if in_place else None)
            if width == 9 and name in here and name not in ("naive", "openmp"):
                with pytest.raises(ValueError, match=f"^HIPCONV_VARLEN_KERNEL: got '{name}', which serves width"):
                    call()
            else:
                assert mismatch(call()[:, live], wanted[:, live]) is None, (width, name)


def test_a_variable_that_names_no_kernel(device: torch.device) -> None:
    with environment(HIPCONV_VARLEN_KERNEL="triton"):
        with pytest.raises(ValueError, match=r"^HIPCONV_VARLEN_KERNEL: got 'triton', expected one of 'auto', .*'strip', .*'openmp'$"):
            serving.causal_conv1d_fn(**_good(device))
        check(Case([9, 1], 16).inputs(device) | {"kernel": kernel_names(device)[0]})  # the call's own keyword goes first


def test_every_pair_of_dtypes_is_served(device: torch.device) -> None:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    for dtype, state_dtype, width in itertools.product(dtypes, dtypes, (4, 5, 6)):
        arguments = Case([9, 1, 30], 16, width, dtype, state_dtype).inputs(device)
        check(arguments)
        if device.type == "cuda" or targets.of(device).backend == "simt":
            if state_dtype in (dtype, torch.float32):
                check(arguments | {"kernel": "tile"})
            else:
                with pytest.raises(ValueError, match=r"kernel: got 'tile', which serves .*, states of x's dtype or float32, and"):
                    check(arguments | {"kernel": "tile"})


@pytest.mark.parametrize("lengths", LENGTHS[3:7], ids=str)
@pytest.mark.parametrize("block_m", [4, 32, 64, 256])
def test_every_tile_gives_the_same_bits(device: torch.device, block_m: int, lengths: list[int]) -> None:
    """Runs of 1 to 32 tokens, which begin anywhere in a sequence."""
    arguments = Case(lengths, 72, 4, torch.bfloat16, torch.float32).inputs(device)
    out, pool = check(arguments)
    for forced in ({"block_m": block_m}, {"block_m": block_m, "block_n": 16, "num_warps": 1}):
        again, pool_again = check(arguments | forced)
        assert torch.equal(again, out) and same_bits(pool_again, pool)
    with environment(HIPCONV_VARLEN_TILE=f"{block_m}x64x2"):
        assert torch.equal(check(arguments)[0], out)


@pytest.mark.parametrize("state_layout", STATE_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_rows_of_several_blocks_on_the_host(dtype: torch.dtype, state_layout: str) -> None:
    """Blocks of channels end within rows, lines within q, k and v; some sequences have no initial state. Every path gives the same bits."""
    for flags, k_dim in ((True, 700), (None, 63)):
        arguments = Case([1, 2, 3, 1, 9, 1, 20, 2], 2121, 4, dtype, dtype, dtype, state_layout=state_layout).inputs(CPU)
        if flags:
            arguments["conv_states"].nan_to_num_(0.5)
            arguments["has_initial_state"][:] = True
        out, pool = check(arguments)
        states = arguments["conv_states"].clone()
        parts = serving.causal_conv1d_split_qkv(**(arguments | {"conv_states": states}), k_dim=k_dim, v_dim=2121 - 2 * k_dim)
        assert torch.equal(torch.cat(parts, dim=1).T, out)
        assert same_bits(states, pool)
        spare = torch.cat([arguments["conv_states"], states[:, :, :1]], dim=2)  # which makes the states ones of uncommon strides
        assert torch.equal(serving.causal_conv1d_fn(**(arguments | {"conv_states": spare})), out)
        assert same_bits(spare[:, :, :3], pool)


# ---- padding, dead tokens, the caller's out --------------------------------------------------------------------------------------


def _padded(device: torch.device) -> dict[str, Any]:
    """Sequences 1 and 3 are padding, and five tokens belong to no sequence."""
    arguments = Case([6, 3, 1, 4, 12], 16, 4, torch.bfloat16, torch.bfloat16, dead_tokens=3).inputs(device)
    arguments["x"].copy_(torch.randn(arguments["x"].shape, generator=torch.Generator().manual_seed(1)))
    arguments["query_start_loc"] += 2  # of the three, two come first now
    arguments["cache_indices"][1] = arguments["cache_indices"][3] = -1
    return arguments


def test_padding_is_zero_in_a_new_tensor(device: torch.device) -> None:
    """Peers leave it uninitialised: torch.empty_like where nobody writes."""
    _, _, live = expected(_padded(device))
    assert live.sum() == 6 + 1 + 12
    check(_padded(device))


def test_padding_is_left_alone_in_the_callers_tensor(device: torch.device) -> None:
    arguments = _padded(device)
    wanted, wanted_pool, live = expected(arguments)
    out = torch.full_like(arguments["x"], 42.0)
    assert serving.causal_conv1d_fn(**arguments, out=out) is out
    assert mismatch(out[:, live], wanted[:, live]) is None and (out[:, ~live] == 42.0).all()
    assert same_bits(arguments["conv_states"], wanted_pool)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place(device: torch.device, layout: str) -> None:
    """As separate views of one memory, too. Padding keeps x, whatever it holds."""
    for same in (True, False):
        arguments = _padded(device)
        arguments["x"] = empty_as(layout, (1, *arguments["x"].shape), torch.bfloat16, device)[0].copy_(arguments["x"])
        before = arguments["x"].clone()
        wanted, wanted_pool, live = expected(arguments)
        out = arguments["x"] if same else arguments["x"][:]
        assert serving.causal_conv1d_fn(**arguments, out=out) is out
        assert mismatch(out[:, live], wanted[:, live]) is None and same_bits(out[:, ~live], before[:, ~live])
        assert same_bits(arguments["conv_states"], wanted_pool)


def check_in_place(arguments: dict[str, Any], kernels: list[str]) -> None:
    """Where `out` is x, outputs and pool are those that a new tensor gets, and dead tokens are left alone."""
    wanted, wanted_pool = run_on_copy(arguments)
    live = expected(arguments)[2]
    tiles = ({"block_m": 8}, {"block_m": 64, "block_n": 16}, {"block_m": 256})
    for kernel, tile in (("auto", {}), *itertools.product(kernels, tiles)):
        x, pool = arguments["x"].clone(), arguments["conv_states"].clone()
        serving.causal_conv1d_fn(**(arguments | tile | {"x": x, "conv_states": pool}), out=x, kernel=kernel)
        assert same_bits(x[:, live], wanted[:, live]) and same_bits(x[:, ~live], arguments["x"][:, ~live]), (kernel, tile)
        assert same_bits(pool, wanted_pool), (kernel, tile)


def in_place_kernels(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_varlen", targets.of(device)).causal_conv1d_varlen_in_place_kernels()


@pytest.mark.parametrize("state_layout", STATE_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_in_place_gives_the_same_bits(device: torch.device, dtype: torch.dtype, state_layout: str) -> None:
    """A block has a strip of channels of its own, and walks through sequences of any length, tile after tile."""
    short = [*range(30), *[1] * 40, 300, 0, *range(9, 0, -1)]
    cases = ((short, 72), ([2100], 8), ([3, 1030, 2, 1100, 5], 16), ([1] * 300, 8), ([1, 2], 264), ([0, 0, 7, 0], 8))
    for (lengths, dim), state_dtype in itertools.product(cases, {dtype, torch.float32}):
        case = Case(lengths, dim, 4, dtype, state_dtype, state_layout=state_layout, dead_tokens=len(lengths) % 3)
        arguments = case.inputs(device)
        arguments["cache_indices"][len(lengths) // 2] = -1
        check_in_place(arguments, in_place_kernels(device))


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_in_place_at_any_width_and_stride(device: torch.device, width: int) -> None:
    """Sequences that begin and end anywhere in a tile, whose first tokens never lie in two of them."""
    for dtype, dim, layout, state_layout in (
        (torch.bfloat16, 24, "channel_last", "dim_first"),
        (torch.float32, 8, "channel_last", "dim_last"),
        (torch.float16, 7, "channel_last", "dim_last"),
        (torch.bfloat16, 11, "channel_first", "dim_first"),
    ):
        for lengths in ([*range(12), 130, 0, 0, 61, 1, 1], [1] * 150, [255, 2, 254, 3, 253, 1]):
            case = Case(lengths, dim, width, dtype, torch.float32, layout=layout, state_layout=state_layout, dead_tokens=2)
            case = case._replace(use_silu=width % 2 == 0 or dim == 8, has_bias=dim != 7)
            arguments = case.inputs(device)
            arguments["cache_indices"][3] = arguments["cache_indices"][-1] = -1
            check_in_place(arguments, [name for name in in_place_kernels(device) if name != "walk"])


def test_in_place_keeps_the_states_at_boundaries(device: torch.device) -> None:
    for block in (1, 16, 64):
        check_in_place(_cached(device, [0, 3, 16, 31, 15, 0], [33, 70, 1, 2, 16, 600], block, dim=8), in_place_kernels(device))


@pytest.mark.parametrize("form", ["new", "split", "in_place"])
def test_one_launch_and_no_memory_beside_the_result(device: torch.device, form: str) -> None:
    for width, lengths in ((4, [50, 7]), (4, [200, 7]), (3, [1, 1, 5]), (6, [9])):
        arguments = Case(lengths, 1024, width, torch.bfloat16, torch.bfloat16).inputs(device)  # GPUs allocate multiples of 512 bytes
        x = arguments["x"]
        call: Callable[[], object]
        if form == "split":
            call = functools.partial(serving.causal_conv1d_split_qkv, **arguments, k_dim=256, v_dim=512)
        else:
            call = functools.partial(serving.causal_conv1d_fn, **arguments, out=x if form == "in_place" else None)
        allocated, launches = cost_of(call)
        temporary = form == "in_place" and targets.of(device).backend == "cpu"
        assert allocated == (0 if form == "in_place" and not temporary else x.nbytes)
        assert len(launches) == (1 if device.type == "cuda" else 0), launches


def test_kernels_in_place_say_what_they_serve(device: torch.device) -> None:
    for kernel, width in (("walk", 3), ("strip", 7)) if in_place_kernels(device) else ():
        arguments = Case([5, 6], 16, width).inputs(device)
        with pytest.raises(ValueError, match=f"kernel: got '{kernel}', which serves width"):
            serving.causal_conv1d_fn(**arguments, out=arguments["x"], kernel=kernel)
        with pytest.raises(ValueError, match=f"kernel: got '{kernel}', expected one of 'auto'"):
            serving.causal_conv1d_fn(**arguments, kernel=kernel)
        nothing = Case([0, 0], 16).inputs(device)
        for out in (nothing["x"], nothing["x"][:]):
            assert serving.causal_conv1d_fn(**nothing, out=out, kernel=kernel) is out, "no tokens, in place"


def test_a_slot_number_marks_padding_not_a_sequence_number(device: torch.device) -> None:
    """Peers compare the number of the sequence with pad_slot_id."""
    arguments = Case([5, 6, 7, 8], 8, dead_tokens=1).inputs(device)
    arguments["cache_indices"][:] = torch.tensor([3, 1, 0, 4])
    arguments["conv_states"].nan_to_num_(0.5)
    for pad in (None, 2, 3):
        _, _, live = expected(arguments | {"pad_slot_id": pad})
        assert live[:5].any() == (pad != 3) and live[11:18].all()
        check(arguments | {"pad_slot_id": pad})


def test_the_null_block(device: torch.device) -> None:
    """vLLM's slot 0: a sequence that reads it is padding."""
    arguments = Case([5, 6, 7], 8).inputs(device)
    arguments["cache_indices"][:] = torch.tensor([3, 0, 1])
    arguments["conv_states"].nan_to_num_(0.5)
    check(arguments)
    _, _, live = expected(arguments | {"null_block_id": 0})
    assert live.tolist() == [True] * 5 + [False] * 6 + [True] * 7
    check(arguments | {"null_block_id": 0})


@pytest.mark.parametrize("index", [5, 1 << 20, 1 << 31, (1 << 32) + 1, 1 << 62, -2, -(1 << 31), -(1 << 63)])
def test_an_index_outside_the_pool_is_padding(device: torch.device, index: int) -> None:
    arguments = Case([4, 3], 8).inputs(device)
    arguments["cache_indices"] = torch.tensor([1, index], device=device)
    arguments["has_initial_state"][:] = False
    _, _, live = expected(arguments)
    assert live.tolist() == [True] * 4 + [False] * 3
    for kernel in kernel_names(device):
        check(arguments | {"kernel": kernel, "null_block_id": 3})


def test_more_sequences_than_slots(device: torch.device) -> None:
    """Peers assert that the pool has a slot for each row of a padded batch, which breaks graph capture."""
    arguments = Case([2] * 9, 8).inputs(device)
    arguments["conv_states"] = arguments["conv_states"][:4].nan_to_num(0.5)
    arguments["cache_indices"][:] = torch.tensor([0, 1, -1, -1, 2, -1, -1, 3, -1])
    check(arguments)
    check(arguments | {"cache_indices": None})  # slot b for sequence b, as far as there are any


def test_starts_that_make_no_sense_lead_nowhere(device: torch.device) -> None:
    """Without validate_data the result is undefined; memory is not."""
    for starts in ([0, 90, 3, 7], [-5, 4, 4, 30], [9, 3, 1, 0], [1 << 40, -(1 << 40), 1 << 40, 4], [25, 25, 25, 25]):
        arguments = Case([8, 8, 8], 16).inputs(device)
        arguments["query_start_loc"] = torch.tensor(starts, device=device)
        spare = set(range(6)) - set(arguments["cache_indices"].tolist())
        for kernel in kernel_names(device):
            serving.causal_conv1d_fn(**arguments, kernel=kernel)
        assert arguments["conv_states"][sorted(spare)].isnan().all()


# ---- empty things --------------------------------------------------------------------------------------------------------------


def test_empty_sequences_leave_their_state(device: torch.device) -> None:
    arguments = Case([0, 5, 0, 0, 3, 0], 8).inputs(device)
    arguments["has_initial_state"][:] = False
    before = arguments["conv_states"].clone()
    _, pool = check(arguments)
    kept = arguments["cache_indices"][[0, 2, 3, 5]].long()
    assert same_bits(pool[kept], before[kept])


@pytest.mark.parametrize(("lengths", "dim", "dead"), [([], 8, 0), ([], 8, 5), ([0, 0], 8, 0), ([0], 8, 3), ([4], 0, 0)])
def test_nothing_to_do(device: torch.device, lengths: list[int], dim: int, dead: int) -> None:
    check(Case(lengths, dim, dead_tokens=dead).inputs(device))


# ---- strides, dtypes and alignment -----------------------------------------------------------------------------------------------


INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)


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
        assert torch.equal(again, out) and same_bits(pool_again, pool)


def test_a_block_table_without_prefix_caching_gives_its_first_column(device: torch.device) -> None:
    arguments = Case([6, 3, 1], 16).inputs(device)
    table = torch.full((3, 4), 1 << 20, device=device)
    table[:, 0] = arguments["cache_indices"]
    assert torch.equal(check(arguments)[0], check(arguments | {"cache_indices": table})[0])


def _strided(values: Tensor, strides: tuple[int, ...], offset: int) -> tuple[Tensor, Tensor]:
    """The values in a view with these strides, amid NaN; and the whole buffer."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True))
    buffer = torch.full((offset + span + 37,), torch.nan, dtype=values.dtype, device=values.device)
    return buffer.as_strided(values.shape, strides, offset).copy_(values), buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["channel-last", "odd offset", "odd pitch", "channel-first", "every third token", "every second channel"])
def test_any_strides_with_poison_around(device: torch.device, shape: str, dtype: torch.dtype) -> None:
    """Of x, out, weight, bias and the pool; peers take the stride of a state's columns for 1, and weights for contiguous."""
    dim, lengths = 16, [13, 1, 2, 30]
    tokens = sum(lengths)
    strides, offset = {
        "channel-last": ((1, dim + 8), 8),
        "odd offset": ((1, dim), 3),
        "odd pitch": ((1, dim + 3), 8),
        "channel-first": ((tokens, 1), 0),
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
        assert mismatch(given, expected(arguments)[0]) is None and same_bits(states, pool)
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
            assert torch.equal(given, out) and same_bits(states, pool)


# ---- states ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
@pytest.mark.parametrize("lengths", [[2] * 5, [300, 1, 200], [1] * 40], ids=str)
def test_read_slots_other_than_write_slots(device: torch.device, lengths: list[int], layout: str) -> None:
    """ATOM's fork: many sequences read one shared prefix's state, and it stays as it is."""
    arguments = Case(lengths, 16, 4, torch.bfloat16, torch.bfloat16, state_layout=layout).inputs(device)
    shared = next(slot for slot in range(len(lengths) + 3) if slot not in arguments["cache_indices"])
    arguments["conv_states"][shared] = torch.randn(16, 3)
    arguments["has_initial_state"][:] = True
    arguments["cache_indices_in"] = torch.full((len(lengths),), shared, device=device)
    _, pool = check(arguments)
    assert torch.equal(pool[shared], arguments["conv_states"][shared])
    arguments["cache_indices_in"][0] = -1  # what it reads tells padding
    check(arguments)


def test_no_flags_mean_no_initial_states(device: torch.device) -> None:
    """vLLM's kernel reads the flags without asking whether there are any."""
    arguments = Case([5, 2, 9], 8).inputs(device)
    out, _ = check(arguments | {"has_initial_state": None})
    assert torch.equal(out, check(arguments | {"has_initial_state": torch.zeros(3, device=device).int()})[0])


def test_state_of_a_shared_slot_survives_its_own_sequence(device: torch.device) -> None:
    """One block reads a slot and others write it, in peers that split a sequence among blocks: the orders of simt would show it."""
    for width in (2, 3, 4, 5, 6):
        arguments = Case([700], 24, width, torch.float16, torch.float16).inputs(device)
        arguments["has_initial_state"][:] = True
        arguments["conv_states"][arguments["cache_indices"].long()] = torch.randn(1, 24, width - 1, device=device).half()
        for block_m in (4, 8, 32):
            check(arguments | {"block_m": block_m})


def test_infinities_and_nans_reach_what_they_reach_in_the_reference(device: torch.device) -> None:
    """With every kernel, a channel a place. They meet no zeros where a sequence has no state; where it has one, they meet that."""
    for value, flag in itertools.product((torch.inf, -torch.inf, torch.nan), (False, True)):
        arguments = Case([1, 2, 3, 5, 9, 40], 32, 4, torch.bfloat16).inputs(device)
        arguments["has_initial_state"][:] = flag
        arguments["conv_states"][:] = 0.5
        for channel in range(4):
            arguments["weight"][channel, channel] = value
            for first, at in ((4, channel), (8, 8 + channel), (12, 20), (16, 56 + channel)):
                arguments["x"][first + channel, at] = value
        arguments["bias"][20] = value
        for column in range(3):
            arguments["conv_states"][:, 21 + column, column] = value
        wanted, wanted_pool, _ = expected(arguments)
        for kernel in kernel_names(device):
            out, pool = run_on_copy(arguments | {"kernel": kernel})
            assert (wrong := mismatch_beside_infinities(out, wanted)) is None, f"{kernel}: {wrong}"
            assert same_bits(pool, wanted_pool), kernel
        assert wanted[0, :1].isfinite().all() != flag


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_small_integers_are_exact(device: torch.device, dtype: torch.dtype) -> None:
    arguments = Case([1, 0, 2, 3, 70, 1, 1, 41], 24, 4, dtype, dtype, dtype, use_silu=False).inputs(device)
    for name in ("x", "weight", "bias", "conv_states"):
        arguments[name].copy_(torch.randint(-4, 5, arguments[name].shape))
    wanted, _, _ = expected(arguments)
    assert torch.equal(check(arguments)[0].double(), wanted)


# ---- prefix caching --------------------------------------------------------------------------------------------------------------


def _cached(device: torch.device, computed: list[int], lengths: list[int], block: int, dim: int = 16, **sizes: Any) -> dict[str, Any]:
    """Chunks that continue after `computed` tokens, as vLLM schedules them: one block of the table for each `block` tokens."""
    arguments = Case(lengths, dim, **sizes).inputs(device)
    count = len(lengths)
    width = arguments["weight"].shape[1]
    columns = max(-(-(c + n) // block) for c, n in zip(computed, lengths, strict=True)) + 1
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(count * columns, generator=generator).reshape(count, columns).to(device) + 1
    pool = torch.full((count * columns + 2, dim, width - 1), torch.nan, device=device)
    ends = torch.tensor([c + n for c, n in zip(computed, lengths, strict=True)], device=device)
    before = torch.tensor(computed, device=device)
    initial = (-(-before // block) - 1).clamp(min=0)
    pool[table[torch.arange(count), initial]] = torch.randn(count, dim, width - 1, generator=generator).to(device)
    return arguments | {
        "conv_states": pool,
        "cache_indices": table,
        "has_initial_state": before > 0,
        "block_idx_first_scheduled_token": before // block,
        "block_idx_last_scheduled_token": (-(-ends // block) - 1).clamp(min=0),
        "initial_state_idx": initial,
        "num_computed_tokens": before,
        "block_size_to_align": block,
        "null_block_id": 0,
    }


def test_a_chunk_shorter_than_the_window_does_not_write_into_its_prefix(device: torch.device) -> None:
    """Peers wrote a short chunk's state into the slot they read, which other requests share."""
    arguments = _cached(device, [16, 32, 16], [1, 2, 3], 16)
    read = arguments["cache_indices"][torch.arange(3), arguments["initial_state_idx"]]
    _, pool = check(arguments)
    assert torch.equal(pool[read], arguments["conv_states"][read])


@pytest.mark.parametrize("computed", [13, 14, 15])
@pytest.mark.parametrize("length", [2, 8, 100])
def test_a_boundary_close_to_the_begin_takes_the_rest_from_the_state(device: torch.device, length: int, computed: int) -> None:
    """Peers take it from the tokens of the sequence before, and forget it in a chunk of at most 8 tokens."""
    check(_cached(device, [0, computed, 5], [50, length, 4], 16))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_states_at_every_boundary(device: torch.device, width: int, block: int) -> None:
    """Blocks of any size, also smaller than the window; the block that is read may be one that is written."""
    arguments = _cached(device, [0, 3, 16, 31, 15, 0], [33, 70, 1, 2, 16, 5], block, width=width)
    check(arguments)
    check(arguments | {"block_m": 8})


def test_states_that_have_no_place_are_not_kept(device: torch.device) -> None:
    arguments = _cached(device, [0, 20], [64, 40], 16)
    arguments["cache_indices"][0, 1] = 0  # the null block, for a boundary
    arguments["cache_indices"][1, 3] = 0  # and for a final state, whose sequence is live nevertheless
    arguments["cache_indices"][1, 2] = 1 << 20
    _, _, live = expected(arguments)
    assert live.all()
    check(arguments)
    for name, value in (("block_idx_last_scheduled_token", 99), ("initial_state_idx", -1), ("initial_state_idx", 1 << 31)):
        changed = arguments[name].clone()
        changed[0] = value
        check(arguments | {name: changed})
    arguments = _cached(device, [32, 20], [64, 40], 16)
    arguments["has_initial_state"][0] = False
    arguments["block_idx_first_scheduled_token"][0] = -(1 << 31)  # boundaries that were not crossed in this call
    check(arguments)


# ---- split -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k_dim", "v_dim"), [(8, 16), (64, 128), (3, 5), (12, 9), (0, 8), (8, 0), (20, 8)], ids=lambda dim: str(dim)
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_split_is_the_whole_cut_into_three(device: torch.device, dtype: torch.dtype, k_dim: int, v_dim: int) -> None:
    """Any k_dim: peers need a multiple of 64 and store tiles that straddle a boundary elsewhere, or nowhere."""
    for layout, width in (("channel_last", 4), ("channel_first", 3), ("channel_last", 5)):
        arguments = Case([6, 3, 1, 0, 12, 30], 2 * k_dim + v_dim, width, dtype, dtype, dtype, layout=layout, dead_tokens=2).inputs(device)
        arguments["cache_indices"][1] = -1
        out, pool = check(arguments)
        states = arguments["conv_states"].clone()
        parts = serving.causal_conv1d_split_qkv(**(arguments | {"conv_states": states}), k_dim=k_dim, v_dim=v_dim)
        for part, channels in zip(parts, (k_dim, k_dim, v_dim), strict=True):
            assert part.shape == (out.shape[1], channels) and part.is_contiguous()
        assert torch.equal(torch.cat(parts, dim=1).T, out)
        assert same_bits(states, pool)


def test_split_writes_into_the_callers_tensors(device: torch.device) -> None:
    """And leaves the tokens of padding and of no sequence alone there."""
    arguments = _padded(device)
    q, k, v = serving.causal_conv1d_split_qkv(**(arguments | {"conv_states": arguments["conv_states"].clone()}), k_dim=5, v_dim=6)
    _, wanted_pool, live = expected(arguments)
    out = (torch.full_like(q, 42.0), torch.full_like(k, 42.0), torch.full_like(v, 42.0))
    given = serving.causal_conv1d_split_qkv(**arguments, k_dim=5, v_dim=6, out=out)
    for part, new, own in zip(given, (q, k, v), out, strict=True):
        assert part is own and torch.equal(own[live], new[live]) and (own[~live] == 42.0).all() and (new[~live] == 0).all()
    assert same_bits(arguments["conv_states"], wanted_pool)


@pytest.mark.parametrize("forced", [{"block_m": 8}, {"block_m": 64, "block_n": 16, "num_warps": 1}, {"block_m": None}], ids=str)
def test_a_tile_may_be_forced_on_a_split(device: torch.device, forced: dict[str, int | None]) -> None:
    """By keyword, as AITER's and ATOM's may (None is their default), or by the environment."""
    arguments = Case([6, 3, 1, 0, 12, 30], 40, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    out, pool = check(arguments)
    text = "x".join(str(forced.get(side) or 32) for side in ("block_m", "block_n", "num_warps"))
    kernel = "tile" if "tile" in kernel_names(device) else "auto"
    for tile, variables in ((forced, {}), ({}, {"HIPCONV_VARLEN_TILE": text})):
        states = arguments["conv_states"].clone()
        with environment(**variables):
            parts = serving.causal_conv1d_split_qkv(
                **(arguments | {"conv_states": states}), k_dim=12, v_dim=16, kernel=kernel, **cast(dict[str, Any], tile)
            )
        assert torch.equal(torch.cat(parts, dim=1).T, out) and same_bits(states, pool)


@pytest.mark.parametrize("activation", [True, "silu", "swish", False, None])
def test_each_name_of_an_activation_and_each_form_of_no_bias(device: torch.device, activation: bool | str | None) -> None:
    arguments = Case([6, 1, 3], 8).inputs(device) | {"activation": activation}
    check(arguments)
    without, _ = check(arguments | {"bias": None})
    assert torch.equal(run_on_copy(arguments | {"bias": arguments["bias"][:0]})[0], without)


def test_split_writes_nothing_beside_its_outputs(device: torch.device) -> None:
    arguments = Case([6, 3, 30], 40, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    for k_dim in (16, 13):
        buffers = [torch.full((39 * size + 32,), 42.0, dtype=torch.bfloat16, device=device) for size in (k_dim, k_dim, 40 - 2 * k_dim)]
        q, k, v = (buffer[16:-16].view(39, -1) for buffer in buffers)
        inputs = [arguments[name] for name in ("conv_states", "x", "weight", "bias", "query_start_loc", "cache_indices")]
        torch.ops.hipconv.causal_conv1d_varlen_split(q, k, v, *inputs, use_silu=True)
        assert all((buffer[:16] == 42.0).all() and (buffer[-16:] == 42.0).all() for buffer in buffers)


# ---- properties ------------------------------------------------------------------------------------------------------------------

_LENGTHS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 70)), min_size=1, max_size=12)
_WAY = st.sampled_from([WAYS["cpu"], WAYS["simt-wave32-shuffled"], WAYS["simt-wave64-descending"]])
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


# Bit for bit, and beside each other only: the reference is for the cases above. A search through cases would find the short one in
# which two elements round the other way.
_quick = settings(max_examples=25, deadline=None)


@_quick
@given(data=st.data(), lengths=_LENGTHS, sizes=_SIZES, way=_WAY, block_m=_TILE)
def test_any_chunking_is_the_whole(data: st.DataObject, lengths: list[int], sizes: dict, way: dict[str, str], block_m: int) -> None:
    """Sequences cut anywhere, their pieces run by one call after another: the same outputs and states, bit for bit."""
    case = Case(lengths, **sizes, state_dtype=sizes["dtype"])
    whole = case.inputs(CPU) | {"block_m": block_m}
    cuts = [sorted(data.draw(st.lists(st.integers(0, length), max_size=2))) for length in lengths]
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
    assert torch.equal(chunked, out) and same_bits(states, pool)


@_quick
@given(data=st.data(), lengths=_LENGTHS, sizes=_SIZES, way=_WAY, block_m=_TILE)
def test_the_order_of_sequences_does_not_matter(data: st.DataObject, lengths: list[int], sizes: dict, way: dict, block_m: int) -> None:
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
    assert torch.equal(again, out[:, tokens]) and same_bits(pool_again, pool)


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
def test_cached_states_are_those_of_a_plain_run(sequences: list, block: int, width: int, way: dict[str, str], block_m: int) -> None:
    """The state kept for a boundary, or the end, is the one that a plain run up to there leaves."""
    computed, lengths = (list(column) for column in zip(*sequences, strict=True))
    arguments = _cached(CPU, computed, lengths, block, dim=8, width=width) | {"block_m": block_m}
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


# ---- bad input -------------------------------------------------------------------------------------------------------------------


def _good(device: torch.device) -> dict[str, Any]:
    with device:
        return {
            "x": zeros(6, 10),
            "weight": zeros(6, 4),
            "bias": zeros(6),
            "conv_states": zeros(5, 6, 3) + 42,
            "query_start_loc": torch.tensor([0, 4, 10]),
            "cache_indices": torch.tensor([1, 2]),
            "has_initial_state": torch.tensor([True, False]),
            "out": zeros(6, 10) + 42,
        }


BAD_CALLS: dict[str, tuple[Callable[[], dict], type[Exception], list[str]]] = {
    # what is changed from a good call; the error; words of its text: the argument, what it was, what was expected
    "x is a list": (lambda: {"x": [1.0]}, TypeError, ["x:", "[1.0]", "torch.Tensor"]),
    "conv_states is None": (lambda: {"conv_states": None}, TypeError, ["conv_states:", "None,", "torch.Tensor"]),
    "query_start_loc is a list": (lambda: {"query_start_loc": [0, 10]}, TypeError, ["query_start_loc:", "[0, 10]", "torch.Tensor"]),
    "out is a string": (lambda: {"out": "x"}, TypeError, ["out:", "'x'", "torch.Tensor"]),
    "pad_slot_id is a float": (lambda: {"pad_slot_id": 1.5}, TypeError, ["pad_slot_id:", "1.5", "int or None"]),
    "activation is unknown": (lambda: {"activation": "relu"}, ValueError, ["activation:", "'relu'", "'silu'"]),
    "x has three dimensions": (lambda: {"x": zeros(1, 6, 10)}, ValueError, ["x:", "(1, 6, 10)", "(dim, tokens)"]),
    "x of float64": (lambda: {"x": zeros(6, 10).double()}, TypeError, ["x:", "torch.float64", "torch.bfloat16"]),
    "x sparse": (lambda: {"x": zeros(6, 10).to_sparse()}, TypeError, ["x:", "layout", "dense"]),
    "weight of another dim": (lambda: {"weight": zeros(5, 4)}, ValueError, ["weight:", "(5, 4)", "(6, width >= 1)"]),
    "weight without taps": (lambda: {"weight": zeros(6, 0)}, ValueError, ["weight:", "(6, 0)", "width >= 1"]),
    "bias of another dim": (lambda: {"bias": zeros(7)}, ValueError, ["bias:", "(7,)", "(6,)"]),
    "states of another dim": (lambda: {"conv_states": zeros(5, 3, 6)}, ValueError, ["conv_states:", "(5, 3, 6)", "6"]),
    "states too short": (lambda: {"conv_states": zeros(5, 6, 2)}, ValueError, ["conv_states:", "(5, 6, 2)", "width - 1 = 3"]),
    "states of int32": (lambda: {"conv_states": zeros(5, 6, 3).int()}, TypeError, ["conv_states:", "torch.int32", "torch.float16"]),
    "states expanded": (lambda: {"conv_states": zeros(1, 6, 3).expand(5, 6, 3)}, ValueError, ["conv_states:", "memory of its own"]),
    "starts of float": (lambda: {"query_start_loc": zeros(3)}, TypeError, ["query_start_loc:", "torch.float32", "integer"]),
    "starts of two dimensions": (lambda: {"query_start_loc": zeros(1, 3).int()}, ValueError, ["query_start_loc:", "(1, 3)"]),
    "no starts": (lambda: {"query_start_loc": zeros(0).int()}, ValueError, ["query_start_loc:", "(0,)", "sequences + 1"]),
    "too few indices": (lambda: {"cache_indices": zeros(1).int()}, ValueError, ["cache_indices:", "(1,)", "2 rows"]),
    "three-dimensional indices": (lambda: {"cache_indices": zeros(2, 1, 1).int()}, ValueError, ["cache_indices:", "(2, 1, 1)"]),
    "flags of float": (lambda: {"has_initial_state": zeros(2)}, TypeError, ["has_initial_state:", "torch.float32", "integer"]),
    "too many flags": (lambda: {"has_initial_state": zeros(3).bool()}, ValueError, ["has_initial_state:", "(3,)", "2 rows"]),
    "caching without a table": (
        lambda: {"block_idx_last_scheduled_token": zeros(2).int()},
        ValueError,
        ["cache_indices:", "one dimension", "block table"],
    ),
    "boundaries without their block size": (
        lambda: (
            dict.fromkeys(
                ("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "num_computed_tokens"),
                torch.zeros(2, dtype=torch.int32),
            )
            | {"cache_indices": zeros(2, 3).int()}
        ),
        ValueError,
        ["block_size_to_align:", "got 0", "at least 1"],
    ),
    "boundaries without the rest": (
        lambda: {"block_idx_first_scheduled_token": zeros(2).int()},
        ValueError,
        ["block_idx_first_scheduled_token:", "num_computed_tokens"],
    ),
    "out of another shape": (lambda: {"out": zeros(6, 9)}, ValueError, ["out:", "(6, 9)", "(6, 10)"]),
    "out of another dtype": (lambda: {"out": zeros(6, 10).half()}, TypeError, ["out:", "torch.float16", "torch.float32"]),
    "out expanded": (lambda: {"out": zeros(6, 1).expand(6, 10)}, ValueError, ["out:", "strides (1, 0)", "memory of its own"]),
    "x requires grad": (lambda: {"x": zeros(6, 10).requires_grad_()}, ValueError, ["x:", "requires grad", "torch.no_grad()"]),
    "kernel is unknown": (lambda: {"kernel": "fastest"}, ValueError, ["kernel:", "'fastest'", "'auto'"]),
    "weight on another device": (lambda: {"weight": zeros(6, 4).to("meta")}, ValueError, ["weight:", "meta", "where x is"]),
    "starts on another device": (
        lambda: {"query_start_loc": zeros(3).int().to("meta")},
        ValueError,
        ["query_start_loc:", "meta", "where x is"],
    ),
    "indices on another device": (
        lambda: {"cache_indices": zeros(2).int().to("meta")},
        ValueError,
        ["cache_indices:", "meta", "where x is"],
    ),
    "out on another device": (lambda: {"out": zeros(6, 10).to("meta")}, ValueError, ["out:", "meta", "where x is"]),
    "starts of bool": (lambda: {"query_start_loc": zeros(3).bool()}, TypeError, ["query_start_loc:", "torch.bool", "integers"]),
    "flags in the place of indices": (lambda: {"cache_indices": zeros(2).bool()}, TypeError, ["cache_indices:", "torch.bool", "integers"]),
    "an index": (lambda: {"cache_indices": torch.tensor(1)}, ValueError, ["cache_indices:", "()", "(sequences,)"]),
    "indices are a list": (lambda: {"cache_indices": [1, 2]}, TypeError, ["cache_indices:", "[1, 2]", "torch.Tensor or None"]),
    "bias is a number": (lambda: {"bias": 1.0}, TypeError, ["bias:", "1.0", "torch.Tensor or None"]),
    "pad_slot_id is a bool": (lambda: {"pad_slot_id": True}, TypeError, ["pad_slot_id:", "True", "int or None"]),
    "null_block_id is huge": (lambda: {"null_block_id": 1 << 70}, TypeError, ["null_block_id:", str(1 << 70), "64 bits"]),
    "block size is a float": (lambda: {"block_size_to_align": 1.5}, TypeError, ["block_size_to_align:", "1.5", "an int"]),
    "kernel is None": (lambda: {"kernel": None}, TypeError, ["kernel:", "None,", "a string"]),
    "block_m is a float": (lambda: {"block_m": 2.5}, TypeError, ["block_m:", "2.5", "an int"]),
    "block_n is huge": (lambda: {"block_n": 1 << 40}, ValueError, ["block_n:", str(1 << 40), "power of two"]),
    "num_warps is negative": (lambda: {"num_warps": -4}, ValueError, ["num_warps:", "-4", "power of two"]),
}


class _LookOn(torch.utils._python_dispatch.TorchDispatchMode):
    """Sends calls through the operator, as torch.compile and a process's first call do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    good = _good(device)
    with device:
        arguments = good | make_changes()
    # Shapes and kinds come before values; an operator in between makes no difference.
    for checked, through in ((False, contextlib.nullcontext()), (True, contextlib.nullcontext()), (False, _LookOn())):
        with pytest.raises(error) as caught, through:
            serving.causal_conv1d_fn(**arguments, validate_data=checked)
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (good["out"] == 42).all() and (good["conv_states"] == 42).all()


@pytest.mark.parametrize("other", ["x", "weight", "bias", "conv_states"])
def test_out_may_not_share_memory_with_an_input(device: torch.device, other: str) -> None:
    buffer = torch.zeros(6, 40, device=device)
    arguments = _good(device) | {"out": buffer[:, :10]}
    views = {"x": buffer[:, 9:19], "weight": buffer[:, 8:12], "bias": buffer[:, 9], "conv_states": buffer[:, 7:10][None]}
    with pytest.raises(ValueError, match=f"out: shares memory with {other}"):
        serving.causal_conv1d_fn(**(arguments | {other: views[other]}))


@pytest.mark.parametrize("other", ["x", "weight", "bias", "cache_indices", "has_initial_state"])
def test_the_pool_may_not_share_memory_with_an_input(device: torch.device, other: str) -> None:
    """Whose values would change while they are read."""
    arguments = _good(device)
    pool = arguments["conv_states"]
    views = {
        "x": pool.view(-1)[:60].view(6, 10),
        "weight": pool.view(-1)[5:29].view(6, 4),
        "bias": pool[1, :, 0],
        "cache_indices": pool.view(torch.int32)[4, :2, 1],
        "has_initial_state": pool.view(torch.uint8).view(-1)[:2],
    }
    with pytest.raises(ValueError, match=f"conv_states: shares memory with {other}"):
        serving.causal_conv1d_fn(**(arguments | {other: views[other]}))
    assert (pool == 42).all()


@pytest.mark.parametrize(
    ("forced", "words"),
    [({"block_m": 3}, "block_m: got 3"), ({"block_n": 7}, "block_n: got 7"), ({"num_warps": 3}, "num_warps: got 3")],
)
def test_a_tile_that_the_kernel_does_not_have(forced: dict[str, int], words: str) -> None:
    with environment(**WAYS["simt-wave64"]), pytest.raises(ValueError, match=words):
        serving.causal_conv1d_fn(**(_good(CPU) | forced))
    with environment(HIPCONV_VARLEN_TILE="8x"), pytest.raises(ValueError, match="HIPCONV_VARLEN_TILE: got '8x', expected TOKENSx"):
        serving.causal_conv1d_fn(**_good(CPU))


@pytest.mark.parametrize(("k_dim", "v_dim"), [(2, 1), (4, -2), (-1, 8), (3, 1)])
def test_parts_that_do_not_make_the_whole(k_dim: int, v_dim: int) -> None:
    arguments = _good(CPU)
    del arguments["out"]
    with pytest.raises(ValueError, match=f"k_dim, v_dim: got {k_dim} and {v_dim}, expected 2 \\* k_dim \\+ v_dim"):
        serving.causal_conv1d_split_qkv(**arguments, k_dim=k_dim, v_dim=v_dim)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"x": None}, TypeError, "x: got None, expected a torch.Tensor"),
        ({"x": zeros(10)}, ValueError, r"x: got shape \(10,\), expected 2 dimensions \(dim, tokens\)"),
        ({"k_dim": 2.0}, TypeError, "k_dim: got 2.0, expected an int"),
        ({"v_dim": None}, TypeError, "v_dim: got None, expected an int"),
        ({"out": zeros(6, 10)}, TypeError, r"out: got a torch.float32 tensor of shape \(6, 10\), expected a tuple of three torch.Tensor"),
        (
            {"out": [zeros(10, 2)] * 2},
            TypeError,
            r"out: got \[a torch.float32 tensor of shape \(10, 2\), a .*\], expected a tuple of three torch.Tensor",
        ),
        (
            {"out": (zeros(10, 2), zeros(10, 2), None)},
            TypeError,
            r"out: got \(a .*, a .* of shape \(10, 2\), None\), expected a tuple of three torch.Tensor",
        ),
        ({"out": (zeros(10, 2), zeros(10, 2), zeros(9, 2))}, ValueError, r"v: got shape \(9, 2\), expected \(tokens of x, channels\)"),
        ({"out": (zeros(10, 2), zeros(10, 2), zeros(2, 10).T)}, ValueError, r"v: got strides \(1, 10\), expected it contiguous"),
        ({"out": [zeros(10, 2)] * 3}, ValueError, "q: shares memory with k"),
    ],
)
def test_bad_input_of_the_split(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    good = _good(CPU) | {"k_dim": 2, "v_dim": 2, "out": None}
    for through in (contextlib.nullcontext(), _LookOn()):
        with pytest.raises(error, match=words), through:
            serving.causal_conv1d_split_qkv(**(good | changes))
    assert (good["conv_states"] == 42).all()


def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def table(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "runs backwards": ({"query_start_loc": ints(0, 7, 6)}, "query_start_loc[2]: got 6, expected at least 7"),
    "starts before": ({"query_start_loc": ints(-1, 7, 8)}, "query_start_loc[0]: got -1, expected at least 0"),
    "ends late": ({"query_start_loc": ints(0, 7, 11)}, "query_start_loc[2]: got 11, expected at most 10"),
    "a slot outside": ({"cache_indices": ints(1, 5)}, "cache_indices[1]: got 5, expected 0 to 4"),
    "a slot below": ({"cache_indices": ints(-2, 9)}, "cache_indices[0]: got -2"),
    "a slot outside in few bits": ({"cache_indices": ints(1, 5, dtype=torch.int8)}, "cache_indices[1]: got 5, expected 0 to 4"),
    "a slot outside in many bits": (
        {"cache_indices": torch.tensor([1, 2**64 - 1], dtype=torch.uint64)},
        f"cache_indices[1]: got {2**64 - 1}, expected 0 to 4",
    ),
    "a slot to read outside": ({"cache_indices_in": ints(1, 9)}, "cache_indices_in[1]: got 9"),
    "a slot twice": ({"cache_indices": ints(3, 3)}, "cache_indices[1]: got 3, expected a slot of its own: cache_indices[0] is the same"),
    "a slot that another sequence writes": (
        {"cache_indices_in": ints(2, 4)},
        "cache_indices_in[0]: got 2, expected a slot to read that no other row writes: cache_indices[1] is the same",
    ),
    "a column outside": (
        {"cache_indices": table([1], [3]), "initial_state_idx": ints(0, 1)},
        "initial_state_idx[1]: got 1, expected 0 to 0, a column of cache_indices",
    ),
    "a column outside of the table that is read": (
        {"cache_indices": table([1, 0], [3, 0]), "cache_indices_in": ints(2, 4), "initial_state_idx": ints(0, 1)},
        "initial_state_idx[1]: got 1, expected 0 to 0, a column of cache_indices_in",
    ),
    "a column outside of the table that is written": (
        {"cache_indices": table([1, 0], [3, 0]), "block_idx_last_scheduled_token": ints(1, 2)},
        "block_idx_last_scheduled_token[1]: got 2, expected 0 to 1, a column of cache_indices",
    ),
    "more sequences than slots": ({"cache_indices": None, "conv_states": zeros(1, 6, 3)}, "cache_indices: got None for 2 sequences"),
}
# Prefix caching: 4 and 6 tokens after 3 and 0, in blocks of 2, so that boundaries are at tokens 1 and 3, and at 2 and 4.
_BLOCKS: dict[str, Any] = {
    "conv_states": zeros(12, 6, 3) + 42,
    "cache_indices": table([1, 2, 3, 4], [5, 6, 7, 8]),
    "block_idx_first_scheduled_token": ints(1, 0),
    "block_idx_last_scheduled_token": ints(3, 2),
    "initial_state_idx": ints(1, 0),
    "num_computed_tokens": ints(3, 0),
    "block_size_to_align": 2,
}
for _case, _changes, _words in (
    ("a boundary's slot outside", {"cache_indices": table([1, 2, 99, 4], [5, 6, 7, 8])}, "cache_indices[0, 2]: got 99, expected 0 to 11"),
    (
        "a boundary's slot outside before a null block",
        {"cache_indices": table([1, 2, 99, 0], [5, 6, 7, 8]), "null_block_id": 0},
        "cache_indices[0, 2]: got 99, expected 0 to 11",
    ),
    ("a boundary's slot twice", {"cache_indices": table([1, 2, 3, 4], [5, 3, 7, 8])}, "cache_indices[1, 1]: got 3"),
    ("two states of a sequence in one slot", {"cache_indices": table([1, 4, 3, 4], [5, 6, 7, 8])}, "cache_indices[0, 1]: got 4"),
    (
        "a first column below",
        {"block_idx_first_scheduled_token": ints(-1, 0)},
        "block_idx_first_scheduled_token[0]: got -1, expected 0 to 3",
    ),
    ("no number of tokens", {"num_computed_tokens": ints(3, -1)}, "num_computed_tokens[1]: got -1, expected 0 to 2147483647"),
):
    BAD_VALUES[_case] = (_BLOCKS | _changes, _words)

# Values that say nothing wrong: of entries that the call does not use, of padding, and of sequences that write nothing.
UNUSED_VALUES: dict[str, dict[str, Any]] = {
    "entries of other columns": {"cache_indices": table([1, 99, -7], [3, 7, 1 << 40])},
    "padding twice": {"cache_indices": ints(-1, -1)},
    "the null block twice": {"cache_indices": ints(0, 0), "null_block_id": 0},
    "the null block for final states": {"cache_indices": ints(0, 0), "cache_indices_in": ints(3, 3), "null_block_id": 0},
    "what padding would write": {"cache_indices": ints(99, 1), "cache_indices_in": ints(-1, 2)},
    "what padding would read": {"cache_indices": ints(-1, 1), "cache_indices_in": ints(99, 2)},
    "what reads the null block": {"cache_indices": ints(99, 1), "cache_indices_in": ints(0, 2), "null_block_id": 0},
    "a sequence without tokens": {"cache_indices": ints(1, 1), "query_start_loc": ints(0, 6, 6)},
    "columns that are read in the other table": {
        "cache_indices": table([1], [2]),
        "cache_indices_in": table([0, 0, 3], [0, 0, 4]),
        "initial_state_idx": ints(2, 2),
    },
    "a slot that is written and not continued from": {"cache_indices_in": ints(3, 1)},
    "one slot read by all": {"cache_indices_in": ints(4, 4), "has_initial_state": ints(1, 1)},
    "no state of a width of one": {"weight": zeros(6, 1), "cache_indices": ints(2, 2)},
    "no boundaries": {"num_computed_tokens": ints(-1, -1)},
    "blocks": _BLOCKS,
    "columns before the first": _BLOCKS | {"cache_indices": table([99, 2, 3, 4], [5, 6, 7, 99]), "initial_state_idx": ints(1, 0)},
    "columns before the boundaries": _BLOCKS
    | {
        "cache_indices": table([99, 2, 3, 4], [99, 6, 7, 8]),
        "block_idx_first_scheduled_token": ints(0, 0),
        "block_idx_last_scheduled_token": ints(3, 3),
        "initial_state_idx": ints(1, 3),
    },
    "columns of boundaries before the first": _BLOCKS
    | {
        "cache_indices": table([1, 99, 3, 4], [5, 99, 7, 8]),
        "block_idx_first_scheduled_token": ints(2, 2),
        "initial_state_idx": ints(0, 0),
    },
    "null blocks at boundaries": _BLOCKS | {"cache_indices": table([1, 2, 0, 4], [5, 0, 0, 8]), "null_block_id": 0},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_validate_data_names_the_first_value_that_is_wrong(name: str) -> None:
    changes, words = BAD_VALUES[name]
    arguments = _good(CPU) | {key: value.clone() if isinstance(value, Tensor) else value for key, value in changes.items()}
    before = arguments["conv_states"].clone()
    with pytest.raises(ValueError, match=re.escape(words)):
        serving.causal_conv1d_fn(**arguments, validate_data=True)
    assert (arguments["out"] == 42).all() and torch.equal(arguments["conv_states"], before)
    del arguments["out"]
    with pytest.raises(ValueError, match=re.escape(words)):
        serving.causal_conv1d_split_qkv(**arguments, k_dim=2, v_dim=2, validate_data=True)


@pytest.mark.parametrize("name", UNUSED_VALUES)
def test_validate_data_does_not_look_at_what_is_not_used(name: str) -> None:
    changes = {key: value.clone() if isinstance(value, Tensor) else value for key, value in UNUSED_VALUES[name].items()}
    serving.causal_conv1d_fn(**(_good(CPU) | changes), validate_data=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_validate_data_accepts_what_is_right_in_every_type(device: torch.device, dtype: torch.dtype) -> None:
    """Random calls whose values the type holds; 300 slots are more than one of 8 bits can count."""
    draw = random.Random(str(dtype))
    for seed in range(8):
        count = draw.randint(1, 6)
        lengths = [draw.choice([0, 1, 2, 5, 9]) for _ in range(count)]
        if seed % 2:
            arguments = _cached(device, [draw.randint(0, 20) for _ in lengths], lengths, draw.choice([4, 8]), dim=4)
        else:
            arguments = Case(lengths, 4, draw.choice([1, 2, 4])).inputs(device, seed)
            slots = torch.tensor(draw.sample(range(100), 2 * count), device=device)
            pool = torch.randn(300, 4, arguments["weight"].shape[1] - 1, device=device)
            arguments |= {"conv_states": pool, "cache_indices": slots[:count]}
            if draw.random() < 0.5:
                arguments["cache_indices_in"] = slots[count:]
            if dtype.is_signed and draw.random() < 0.5:
                arguments["cache_indices"][draw.randrange(count)] = -1
        for name, value in arguments.items():
            if isinstance(value, Tensor) and not value.is_floating_point() and name != "has_initial_state":
                arguments[name] = value.to(dtype)
        check(arguments | {"validate_data": True})


# ---- torch -----------------------------------------------------------------------------------------------------------------------


def _raw(arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    names = ("conv_states", "x", "weight", "bias", "query_start_loc", "cache_indices")
    return [arguments[name] for name in names], {"has_initial_state": arguments["has_initial_state"], "use_silu": True}


def test_opcheck(device: torch.device) -> None:
    arguments = Case([5, 2, 9], 8).inputs(device)
    arguments["conv_states"] = arguments["conv_states"].nan_to_num(0.0)
    positional, named = _raw(arguments)
    torch.library.opcheck(torch.ops.hipconv.causal_conv1d_varlen.default, (torch.zeros_like(arguments["x"]), *positional), named)
    parts = [torch.zeros(16, size, device=device) for size in (3, 3, 2)]
    torch.library.opcheck(torch.ops.hipconv.causal_conv1d_varlen_split.default, (*parts, *positional), named)


def test_compiles_into_one_graph(device: torch.device) -> None:
    arguments = Case([5, 2, 9], 8).inputs(device)

    def step(x: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
        out = serving.causal_conv1d_fn(**(arguments | {"x": x * 2, "conv_states": pool}))
        q, _, v = serving.causal_conv1d_split_qkv(**(arguments | {"x": out, "conv_states": pool}), k_dim=3, v_dim=2)
        doubled = x + x
        return q + 1, v + serving.causal_conv1d_fn(**(arguments | {"x": doubled, "conv_states": pool, "out": doubled}))[:2].T

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    pools = [arguments["conv_states"].clone() for _ in range(2)]
    for ours, plain in zip(compiled(arguments["x"], pools[0]), step(arguments["x"], pools[1]), strict=True):
        assert torch.equal(ours, plain)
    assert same_bits(*pools)


def test_fake_tensors_need_no_kernel() -> None:
    real = Case([5, 2], 8).inputs(CPU)
    arguments: dict[str, Any] = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in real.items()}
    assert serving.causal_conv1d_fn(**arguments).shape == (8, 7)
    assert serving.causal_conv1d_split_qkv(**arguments, k_dim=2, v_dim=4)[2].shape == (7, 4)


def test_autograd_notices_what_a_call_wrote(device: torch.device) -> None:
    """Past the dispatcher as well as through it: a graph that saved one of these tensors must not use it."""
    for first in (True, False):  # the first call of a process loads the module, through the dispatcher
        arguments = _good(device)
        written = [arguments["out"], arguments["conv_states"]]
        versions = [tensor._version for tensor in written]
        serving.causal_conv1d_fn(**arguments)
        assert all(tensor._version > version for tensor, version in zip(written, versions, strict=True)), first


def test_modes_see_the_operator(device: torch.device) -> None:
    seen: list[str] = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Names():
        serving.causal_conv1d_fn(**_good(device))
    assert "hipconv::causal_conv1d_varlen" in seen


def test_metadata_is_accepted_and_not_needed(device: torch.device) -> None:
    arguments = Case([5, 2], 8).inputs(device)
    metadata = serving.compute_causal_conv1d_metadata(arguments["query_start_loc"])
    assert metadata == (None, None, None)
    check(arguments | {"metadata": object()})
    serving.causal_conv1d_fn(**arguments, metadata=metadata, seq_lens_cpu=[5, 2])


# ---- GPU only --------------------------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("kernel", ["auto", "tile", "naive"])
def test_no_host_synchronisation(kernel: str) -> None:
    """Peers read query_start_loc back at every call."""
    arguments = Case([5, 2, 900, 1], 64, 4, torch.bfloat16, torch.bfloat16, dead_tokens=2).inputs(torch.device("cuda"))
    check(arguments | {"kernel": kernel})
    cached = _cached(torch.device("cuda"), [15, 3], [70, 20], 16)
    serving.causal_conv1d_fn(**cached, kernel=kernel)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        serving.causal_conv1d_fn(**arguments, kernel=kernel)
        serving.causal_conv1d_fn(**arguments, kernel=kernel, out=arguments["x"])
        serving.causal_conv1d_fn(**cached, kernel=kernel)
        serving.causal_conv1d_split_qkv(**arguments, k_dim=16, v_dim=32, kernel=kernel)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("kernel", ["auto", "tile", "naive"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_captured_graph_serves_other_lengths_slots_and_flags(kernel: str, in_place: bool) -> None:
    device = torch.device("cuda")
    shapes = [[5, 2, 900, 1, 0, 92], [1000, 0, 0, 0, 0, 0], [1, 1, 1, 1, 500, 400], [3, 300, 3, 300, 3, 300]]
    static = Case(shapes[0], 64, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    x = static["x"].clone()
    pool = static["conv_states"].clone()
    out = static["x"] if in_place else torch.empty_like(x)
    serving.causal_conv1d_fn(**static, kernel=kernel, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        serving.causal_conv1d_fn(**static, kernel=kernel, out=out)
    for number, lengths in enumerate(shapes):
        now = Case(lengths, 64, 4, torch.bfloat16, torch.bfloat16, dead_tokens=1000 - sum(lengths)).inputs(device, seed=number)
        now["cache_indices"][number] = -1
        wanted, wanted_pool, live = expected(now)
        for name in ("x", "conv_states", "query_start_loc", "cache_indices", "has_initial_state", "weight", "bias"):
            static[name].copy_(now[name])
        graph.replay()
        assert mismatch(out[:, live], wanted[:, live]) is None
        assert same_bits(static["conv_states"], wanted_pool)
    assert pool.shape == static["conv_states"].shape


# ---- the command -----------------------------------------------------------------------------------------------------------------


def measure(case: Case, split: bool, backend: str, kernel: str, table: Table) -> bool:
    """Check one case against the reference, time it beside a copy of x, print its row; True if right."""
    device = device_of(backend)
    arguments = case.inputs(device) | {"kernel": kernel}
    k_dim = case.dim // 4
    with use_backend(backend):
        wanted, wanted_pool, live = expected(arguments)
        pool = arguments["conv_states"].clone()
        changed = arguments | {"conv_states": pool}
        if split:
            parts = serving.causal_conv1d_split_qkv(**changed, k_dim=k_dim, v_dim=case.dim - 2 * k_dim)
            out = torch.cat(parts, dim=1).T
        else:
            out = serving.causal_conv1d_fn(**changed)
        wrong = mismatch(out[:, live], wanted[:, live]) or (None if same_bits(pool, wanted_pool) else "the pool is wrong")

        def call() -> object:
            if split:
                return serving.causal_conv1d_split_qkv(**changed, k_dim=k_dim, v_dim=case.dim - 2 * k_dim)
            return serving.causal_conv1d_fn(**changed)

        ours = microseconds(call, device)
    copied = torch.empty_like(arguments["x"])
    copy = microseconds(lambda: copied.copy_(arguments["x"]), device)
    state_bytes = 2 * len(case.lengths) * case.dim * (case.width - 1) * case.state_dtype.itemsize
    moved = 2 * arguments["x"].numel() * case.dtype.itemsize + state_bytes
    lengths = ",".join(map(str, case.lengths))
    table.row(
        f"{lengths if len(lengths) < 24 else lengths[:20] + '…'} x{case.dim} w{case.width}",
        str(case.dtype).removeprefix("torch."),
        case.layout,
        f"{backend}/{kernel}{'/split' if split else ''}",
        f"{ours:.1f}",
        f"{moved / ours / 1e3:.2f}",
        f"{100 * copy / ours:.0f} %",
        f"{(out[:, live].double() - wanted[:, live]).abs().max().item() if live.any() else 0.0:.1e}",
        "ok" if wrong is None else f"WRONG: {wrong}",
    )
    return wrong is None


def test_the_command_prints_a_row_a_case_and_fails_on_a_mismatch(monkeypatch, capsys) -> None:
    sizes = "--dim 3,8 --seqlens 1,1,40 --seqlens 7 --width 3 --state_len 4 --dtype float16 --backend cpu --split"
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_varlen.py", *sizes.split()])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 2 * 2 * len(LAYOUTS) + 1 and rows[-1] == "8 passed, 0 failed"
    monkeypatch.setattr(sys.modules[__name__], "mismatch", lambda out, expected: "invented")
    assert main() == 1
    assert "WRONG: invented" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("--width 1,9 --seqlens 0 --seqlens 3,0", "4 passed, 0 failed"),
        ("--width 2,3 --state_len 2,5 --batch 2 --seqlens 4", "4 passed, 0 failed"),
        ("--state_len 2", "error: argument --state_len: got 2, expected at least width - 1 = 3 at --width 4"),
        ("--seqlens 3,x", "error: argument --seqlens: got 'x', expected an integer of at least 0"),
    ],
)
def test_the_command_runs_any_sizes_or_says_what_cannot_be(monkeypatch, capsys, words: str, last: str) -> None:
    one = "--dim 8 --dtype float32 --layout channel_last --backend cpu"
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_varlen.py", *words.split(), *one.split()])
    if last.startswith("error"):
        with pytest.raises(SystemExit, match="2"):
            main()
        assert capsys.readouterr().err.splitlines()[-1].endswith(last)
    else:
        assert main() == 0
        assert capsys.readouterr().out.splitlines()[-1] == last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = list_of(at_least(1))
    parser.add_argument("--batch", type=several, nargs="+", default=[[1]], help="repeat the sequences so often; default 1")
    parser.add_argument("--dim", type=several, nargs="+", default=[[64, 333]], help="one or several; default 64,333")
    parser.add_argument("--seqlens", type=list_of(at_least(0)), action="append", help="lengths of one call's sequences; may be repeated")
    parser.add_argument("--width", type=several, nargs="+", default=[[4]], help="one or several; default 4")
    parser.add_argument("--state_len", type=list_of(at_least(0)), nargs="+", help="columns of a slot, one or several; default width - 1")
    for option, words, default in (("dtype", DTYPES, DTYPES), ("layout", LAYOUTS, LAYOUTS), ("backend", BACKENDS, backends())):
        described = f"of {', '.join(words)}; default {', '.join(default)}"
        parser.add_argument(f"--{option}", type=list_of(choice_of(*words)), nargs="+", default=[list(default)], help=described)
    parser.add_argument("--state_dtype", type=choice_of(*DTYPES), help="default: the dtype of x")
    parser.add_argument("--state_layout", type=choice_of(*STATE_LAYOUTS), default="dim_last", help="default dim_last")
    parser.add_argument("--kernel", type=list_of(str), nargs="+", default=[["auto"]], help="kernel names, or auto (default)")
    parser.add_argument("--activation", type=choice_of("silu", "none"), default="silu")
    parser.add_argument("--no_bias", action="store_true", help="no bias")
    parser.add_argument("--split", action="store_true", help="causal_conv1d_split_qkv, dim cut 1:1:2")
    options = parser.parse_args()

    columns = [("lengths x dim width", 34), ("dtype", 8), ("layout", 13), ("backend/kernel", 16), ("us", 9), ("GB/s", 8)]
    states = [(width, state_len) for width in flattened(options.width) for state_len in flattened(options.state_len or [[width - 1]])]
    for width, state_len in states:
        check_state_len(parser, state_len, width)
    table = Table([*columns, ("of copy", 7), ("max error", 9), ("result", 6)])
    axes = (options.backend, options.kernel, options.batch, options.dim, [states], options.dtype, options.layout)
    failures = total = 0
    for lengths in options.seqlens or [[1, 1, 40], [0, 129], [1000, 24]]:
        for backend, kernel, batch, dim, (width, state_len), dtype, layout in itertools.product(*(flattened(axis) for axis in axes)):
            state_dtype = DTYPES[options.state_dtype or dtype]
            case = Case(
                lengths * batch, dim, width, DTYPES[dtype], state_dtype, DTYPES[dtype], options.activation == "silu",
                not options.no_bias, layout, options.state_layout, state_len - (width - 1),
            )  # fmt: skip
            try:
                failures += not measure(case, options.split, backend, kernel, table)
            except (ValueError, RuntimeError) as error:  # a kernel that this backend does not have, a state_len too short
                sys.exit(f"{backend}: {error}")
            total += 1
    print(f"{total - failures} passed, {failures} failed")
    return 1 if failures or not total else 0
