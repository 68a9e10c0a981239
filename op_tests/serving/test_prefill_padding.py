"""Prefill where sequences are padding or empty, where tokens are dead, and where out is x."""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
from typing import Any

import pytest
import torch

from serving.prefill_cases import (
    STATE_LAYOUTS,
    Case,
    cached_call,
    check,
    expected,
    in_place_kernels,
    kernel_names,
    padded_call,
    run_on_copy,
    same_values,
)
from support.observe import cost_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch
from hipconv import serving, targets

# ---- padding, dead tokens, the caller's out ----------------------------------------------------------------------------------


def test_padding_is_zero_in_a_new_tensor(device: torch.device) -> None:
    """Peers leave it uninitialised: torch.empty_like where nobody writes."""
    _, _, live = expected(padded_call(device))
    assert live.sum() == 6 + 1 + 12
    check(padded_call(device))


def test_padding_is_left_alone_in_the_callers_tensor(device: torch.device) -> None:
    arguments = padded_call(device)
    wanted, wanted_pool, live = expected(arguments)
    out = torch.full_like(arguments["x"], 42.0)
    assert serving.causal_conv1d_fn(**arguments, out=out) is out
    assert mismatch(out[:, live], wanted[:, live]) is None and (out[:, ~live] == 42.0).all()
    assert same_values(arguments["conv_states"], wanted_pool)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place(device: torch.device, layout: str) -> None:
    """As separate views of one memory, too. Padding keeps x, whatever it holds."""
    for same in (True, False):
        arguments = padded_call(device)
        arguments["x"] = empty_as(layout, (1, *arguments["x"].shape), torch.bfloat16, device)[0].copy_(arguments["x"])
        before = arguments["x"].clone()
        wanted, wanted_pool, live = expected(arguments)
        out = arguments["x"] if same else arguments["x"][:]
        assert serving.causal_conv1d_fn(**arguments, out=out) is out
        assert mismatch(out[:, live], wanted[:, live]) is None and same_values(out[:, ~live], before[:, ~live])
        assert same_values(arguments["conv_states"], wanted_pool)


def check_in_place(arguments: dict[str, Any], kernels: list[str]) -> None:
    """Where `out` is x, outputs and pool are those that a new tensor gets, and dead tokens are left alone."""
    wanted, wanted_pool = run_on_copy(arguments)
    live = expected(arguments)[2]
    tiles = ({"block_m": 8}, {"block_m": 64, "block_n": 16}, {"block_m": 256})
    for kernel, tile in (("auto", {}), *itertools.product(kernels, tiles)):
        x, pool = arguments["x"].clone(), arguments["conv_states"].clone()
        serving.causal_conv1d_fn(**(arguments | tile | {"x": x, "conv_states": pool}), out=x, kernel=kernel)
        assert same_values(x[:, live], wanted[:, live]) and same_values(x[:, ~live], arguments["x"][:, ~live]), (kernel, tile)
        assert same_values(pool, wanted_pool), (kernel, tile)


@pytest.mark.parametrize("state_layout", STATE_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_in_place_gives_the_same_bits(device: torch.device, dtype: torch.dtype, state_layout: str) -> None:
    """Blocks share inputs, which one of them may overwrite before another one has read them."""
    short = [*range(30), *[1] * 40, 300, 0, *range(9, 0, -1)]
    cases = ((short, 72), ([2100], 8), ([3, 1030, 2, 1100, 5], 16), ([1] * 300, 8), ([1, 2], 264), ([0, 0, 7, 0], 8))
    for (lengths, dim), state_dtype in itertools.product(cases, {dtype, torch.float32}):
        case = Case(lengths, dim, 4, dtype, state_dtype, state_layout=state_layout, dead_tokens=len(lengths) % 3)
        arguments = case.inputs(device)
        arguments["cache_indices"][len(lengths) // 2] = -1
        check_in_place(arguments, in_place_kernels(device))


@pytest.mark.parametrize("width", range(1, 9))
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
            neighbours = layout == "channel_last" and width > 1
            unserved = {"tile"} if neighbours and dim % 8 else set() if neighbours else {"tile", "words"}
            check_in_place(arguments, [name for name in in_place_kernels(device) if name not in unserved])


@pytest.mark.parametrize("width", range(2, 9))
def test_starts_that_are_put_aside_in_place(device: torch.device, width: int) -> None:
    """Sequences as long as a window reaches back, and a token more or less; the places of their first outputs go by tokens
    where most sequences are empty.
    """
    lengths = [width - 1] * 9 + [width] * 5 + [max(1, width - 2)] * 4 + [40, width - 1, 70, width + 1]
    for number, (empty, dtype) in enumerate(itertools.product((0, 12), (torch.bfloat16, torch.float32))):
        with_empty = [length for own in lengths for length in (own, *[0] * empty)]
        case = Case(with_empty, 24, width, dtype, dtype, state_layout=STATE_LAYOUTS[(number + width) % 2])
        check_in_place(case.inputs(device), in_place_kernels(device))


def test_in_place_keeps_the_states_at_boundaries(device: torch.device) -> None:
    """In `tile` and `words`; else by way of a temporary, as those inputs may lie anywhere, and be overwritten."""
    for block in (1, 16, 64):
        arguments = cached_call(device, [0, 3, 16, 31, 15, 0], [33, 70, 1, 2, 16, 600], block, dim=8)
        served = [name for name in in_place_kernels(device) if name in ("tile", "words")]
        check_in_place(arguments, served)
        for kernel in set(in_place_kernels(device)) - set(served):
            with pytest.raises(ValueError, match=f"kernel: got '{kernel}', which serves .*, no states at block boundaries"):
                check_in_place(arguments, [kernel])


@pytest.mark.parametrize("form", ["new", "split", "in_place"])
def test_one_launch_and_no_memory_beside_the_result(device: torch.device, form: str) -> None:
    """In place, two launches, and memory for what blocks share; one launch for few tokens, which a block has alone."""
    for width, lengths in ((4, [50, 7]), (4, [200, 7]), (3, [1, 1, 5]), (6, [9])):
        # GPUs allocate multiples of 512 bytes.
        arguments = Case(lengths, 1024, width, torch.bfloat16, torch.bfloat16).inputs(device)
        x = arguments["x"]
        call: Callable[[], object]
        if form == "split":
            call = functools.partial(serving.causal_conv1d_split_qkv, **arguments, k_dim=256, v_dim=512)
        else:
            call = functools.partial(serving.causal_conv1d_fn, **arguments, out=x if form == "in_place" else None)
        allocated, launches = cost_of(call)
        on_cpu = targets.of(device).backend == "cpu"
        shares = form == "in_place" and not (sum(lengths) <= 64 and len(lengths) <= 2)
        if form == "in_place" and not on_cpu:
            assert 0 < allocated < x.nbytes if shares else allocated == 0
        else:
            assert allocated == x.nbytes
        assert len(launches) == (0 if device.type != "cuda" else 2 if shares else 1), launches


def test_kernels_in_place_say_what_they_serve(device: torch.device) -> None:
    for kernel in in_place_kernels(device):
        arguments = Case([5, 6], 16, 9).inputs(device)
        with pytest.raises(ValueError, match=f"kernel: got '{kernel}', which serves width"):
            serving.causal_conv1d_fn(**arguments, out=arguments["x"], kernel=kernel)
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


# ---- empty things ------------------------------------------------------------------------------------------------------------


def test_empty_sequences_leave_their_state(device: torch.device) -> None:
    arguments = Case([0, 5, 0, 0, 3, 0], 8).inputs(device)
    arguments["has_initial_state"][:] = False
    before = arguments["conv_states"].clone()
    _, pool = check(arguments)
    kept = arguments["cache_indices"][[0, 2, 3, 5]].long()
    assert same_values(pool[kept], before[kept])


@pytest.mark.parametrize(("lengths", "dim", "dead"), [([], 8, 0), ([], 8, 5), ([0, 0], 8, 0), ([0], 8, 3), ([4], 0, 0)])
def test_nothing_to_do(device: torch.device, lengths: list[int], dim: int, dead: int) -> None:
    check(Case(lengths, dim, dead_tokens=dead).inputs(device))
