"""This tests what prefill refuses: arguments of the wrong kind or shape, and with validate_data wrong values."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import random
import re
from typing import Any

import pytest
import torch
from torch import Tensor, zeros

from serving.prefill_cases import CPU, Case, cached_call, check, good_call
from support.backends import WAYS, environment
from support.observe import LookOn
from support.tensors import INTEGERS
from hipconv import serving

BAD_CALLS: dict[str, tuple[Callable[[], dict], type[Exception], list[str]]] = {
    # what is changed from a good call; the error; words of its text: the argument, what it was, what was expected
    "x is a list": (lambda: {"x": [1.0]}, TypeError, ["x:", "[1.0]", "torch.Tensor"]),
    "conv_states is None": (lambda: {"conv_states": None}, TypeError, ["conv_states:", "None,", "torch.Tensor"]),
    "query_start_loc is a list": (
        lambda: {"query_start_loc": [0, 10]},
        TypeError,
        ["query_start_loc:", "[0, 10]", "torch.Tensor"],
    ),
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
    "states of int32": (
        lambda: {"conv_states": zeros(5, 6, 3).int()},
        TypeError,
        ["conv_states:", "torch.int32", "torch.float16"],
    ),
    "states expanded": (
        lambda: {"conv_states": zeros(1, 6, 3).expand(5, 6, 3)},
        ValueError,
        ["conv_states:", "memory of its own"],
    ),
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
    "flags in the place of indices": (
        lambda: {"cache_indices": zeros(2).bool()},
        TypeError,
        ["cache_indices:", "torch.bool", "integers"],
    ),
    "an index": (lambda: {"cache_indices": torch.tensor(1)}, ValueError, ["cache_indices:", "()", "(sequences,)"]),
    "indices are a list": (lambda: {"cache_indices": [1, 2]}, TypeError, ["cache_indices:", "[1, 2]", "torch.Tensor or None"]),
    "bias is a number": (lambda: {"bias": 1.0}, TypeError, ["bias:", "1.0", "torch.Tensor or None"]),
    "pad_slot_id is a bool": (lambda: {"pad_slot_id": True}, TypeError, ["pad_slot_id:", "True", "int or None"]),
    "null_block_id is huge": (lambda: {"null_block_id": 1 << 70}, TypeError, ["null_block_id:", str(1 << 70), "64 bits"]),
    "block size is a float": (lambda: {"block_size_to_align": 1.5}, TypeError, ["block_size_to_align:", "1.5", "an int"]),
    "kernel is None": (lambda: {"kernel": None}, TypeError, ["kernel:", "None,", "a string"]),
    "block_m is a float": (lambda: {"block_m": 2.5}, TypeError, ["block_m:", "2.5", "an int"]),
    "block_m is a dtype": (lambda: {"block_m": torch.int8}, TypeError, ["block_m:", "torch.int8", "an int"]),
    "block size is a dtype": (
        lambda: {"block_size_to_align": torch.int8},
        TypeError,
        ["block_size_to_align:", "torch.int8", "an int"],
    ),
    "block_n is huge": (lambda: {"block_n": 1 << 40}, ValueError, ["block_n:", str(1 << 40), "power of two"]),
    "num_warps is negative": (lambda: {"num_warps": -4}, ValueError, ["num_warps:", "-4", "power of two"]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    good = good_call(device)
    with device:
        arguments = good | make_changes()
    # Shapes and kinds come before values; an operator in between makes no difference.
    for checked, through in ((False, contextlib.nullcontext()), (True, contextlib.nullcontext()), (False, LookOn())):
        with pytest.raises(error) as caught, through:
            serving.causal_conv1d_fn(**arguments, validate_data=checked)
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (good["out"] == 42).all() and (good["conv_states"] == 42).all()


def test_tensors_without_memory_are_refused_alike() -> None:
    """torch.compile and torch.export would otherwise make a graph of what no kernel serves."""
    refused = 0
    for name, (make_changes, error, words) in BAD_CALLS.items():
        changes = make_changes()
        if not changes.keys() <= {"x", "conv_states", "weight", "bias", "out"}:
            continue
        if not all(isinstance(value, Tensor) and value.layout == torch.strided for value in changes.values()):
            continue
        if name.endswith(("requires grad", "another device", "expanded")):
            continue  # which memory, or kernels, tell
        arguments: dict[str, Any] = good_call(CPU) | changes
        for key, value in arguments.items():
            arguments[key] = value.to("meta") if isinstance(value, Tensor) else value
        with pytest.raises(error) as caught:
            serving.causal_conv1d_fn(**arguments)
        assert all(word in str(caught.value) for word in words), f"{name}: {caught.value}"
        refused += 1
    assert refused == 10


@pytest.mark.parametrize("other", ["x", "weight", "bias", "conv_states"])
def test_out_may_not_share_memory_with_an_input(device: torch.device, other: str) -> None:
    buffer = torch.zeros(6, 40, device=device)
    arguments = good_call(device) | {"out": buffer[:, :10]}
    views = {"x": buffer[:, 9:19], "weight": buffer[:, 8:12], "bias": buffer[:, 9], "conv_states": buffer[:, 7:10][None]}
    with pytest.raises(ValueError, match=f"out: shares memory with {other}"):
        serving.causal_conv1d_fn(**(arguments | {other: views[other]}))


@pytest.mark.parametrize("other", ["x", "weight", "bias", "cache_indices", "has_initial_state"])
def test_the_pool_may_not_share_memory_with_an_input(device: torch.device, other: str) -> None:
    """Whose values would change while they are read."""
    arguments = good_call(device)
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
        serving.causal_conv1d_fn(**(good_call(CPU) | forced))
    for text in ("8x", "3x64x4", "-1x64x4", "99999999999x1x1"):
        with (
            environment(HIPCONV_VARLEN_TILE=text),
            pytest.raises(ValueError, match=f"HIPCONV_VARLEN_TILE: got '{text}', expected TOKENSx"),
        ):
            serving.causal_conv1d_fn(**good_call(CPU))


@pytest.mark.parametrize(("k_dim", "v_dim"), [(2, 1), (4, -2), (-1, 8), (3, 1)])
def test_parts_that_do_not_make_the_whole(k_dim: int, v_dim: int) -> None:
    arguments = good_call(CPU)
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
        (
            {"out": zeros(6, 10)},
            TypeError,
            r"out: got a torch.float32 tensor of shape \(6, 10\), expected a tuple of three torch.Tensor",
        ),
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
        (
            {"out": (zeros(10, 2), zeros(10, 2), zeros(9, 2))},
            ValueError,
            r"v: got shape \(9, 2\), expected \(tokens of x, channels\)",
        ),
        (
            {"out": (zeros(10, 2), zeros(10, 2), zeros(2, 10).T)},
            ValueError,
            r"v: got strides \(1, 10\), expected it contiguous",
        ),
        ({"out": [zeros(10, 2)] * 3}, ValueError, "q: shares memory with k"),
    ],
)
def test_bad_input_of_the_split(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    good = good_call(CPU) | {"k_dim": 2, "v_dim": 2, "out": None}
    for through in (contextlib.nullcontext(), LookOn()):
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
    "a slot twice": (
        {"cache_indices": ints(3, 3)},
        "cache_indices[1]: got 3, expected a slot of its own: cache_indices[0] is the same",
    ),
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
    "more sequences than slots": (
        {"cache_indices": None, "conv_states": zeros(1, 6, 3)},
        "cache_indices: got None for 2 sequences",
    ),
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
    (
        "a boundary's slot outside",
        {"cache_indices": table([1, 2, 99, 4], [5, 6, 7, 8])},
        "cache_indices[0, 2]: got 99, expected 0 to 11",
    ),
    (
        "a boundary's slot outside before a null block",
        {"cache_indices": table([1, 2, 99, 0], [5, 6, 7, 8]), "null_block_id": 0},
        "cache_indices[0, 2]: got 99, expected 0 to 11",
    ),
    ("a boundary's slot twice", {"cache_indices": table([1, 2, 3, 4], [5, 3, 7, 8])}, "cache_indices[1, 1]: got 3"),
    (
        "two states of a sequence in one slot",
        {"cache_indices": table([1, 4, 3, 4], [5, 6, 7, 8])},
        "cache_indices[0, 1]: got 4",
    ),
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
    "columns before the first": _BLOCKS
    | {"cache_indices": table([99, 2, 3, 4], [5, 6, 7, 99]), "initial_state_idx": ints(1, 0)},
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
    arguments = good_call(CPU) | {key: value.clone() if isinstance(value, Tensor) else value for key, value in changes.items()}
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
    serving.causal_conv1d_fn(**(good_call(CPU) | changes), validate_data=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_validate_data_accepts_what_is_right_in_every_type(device: torch.device, dtype: torch.dtype) -> None:
    """Random calls whose values the type holds; 300 slots are more than one of 8 bits can count."""
    draw = random.Random(str(dtype))
    for seed in range(8):
        count = draw.randint(1, 6)
        lengths = [draw.choice([0, 1, 2, 5, 9]) for _ in range(count)]
        if seed % 2:
            arguments = cached_call(device, [draw.randint(0, 20) for _ in lengths], lengths, draw.choice([4, 8]), dim=4)
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
