"""This tests what decode refuses: arguments of the wrong kind or shape, and with validate_data wrong values."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from serving.decode_cases import check, random_call
from support.observe import LookOn
from support.tensors import INTEGERS
from hipconv.ops.serving.values import refuse_capture
from hipconv.serving import causal_conv1d_update, causal_conv1d_update_split_qkv


def _good() -> dict[str, Any]:
    return {"x": torch.zeros(2, 6, 2), "conv_state": torch.ones(3, 6, 3), "weight": torch.zeros(6, 4), "bias": torch.zeros(6)}


zeros = torch.zeros


def ints(*values: int) -> Tensor:
    return torch.tensor(values)


BAD_CALLS: dict[str, tuple[Callable[[], dict], type[Exception], list[str]]] = {
    "activation": (lambda: {"activation": "relu"}, ValueError, ["activation:", "'relu'", "'silu'"]),
    "x of one dimension": (lambda: {"x": zeros(6)}, ValueError, ["x:", "(6,)", "(batch, dim, seqlen)"]),
    "packed x of three": (
        lambda: {"query_start_loc": ints(0, 1, 2)},
        ValueError,
        ["x:", "(2, 6, 2)", "2 dimensions (tokens, dim)"],
    ),
    "x of float64": (lambda: {"x": zeros(2, 6, 2).double()}, TypeError, ["x:", "torch.float64"]),
    "conv_state of float64": (lambda: {"conv_state": zeros(3, 6, 3).double()}, TypeError, ["conv_state:", "torch.float64"]),
    "conv_state of another dim": (lambda: {"conv_state": zeros(3, 5, 3)}, ValueError, ["conv_state:", "(3, 5, 3)", "6"]),
    "conv_state too short": (lambda: {"conv_state": zeros(3, 6, 2)}, ValueError, ["conv_state:", "(3, 6, 2)", "width - 1 = 3"]),
    "fewer slots than rows": (
        lambda: {"conv_state": zeros(1, 6, 3)},
        ValueError,
        ["conv_state:", "a slot for each of the 2 rows"],
    ),
    "conv_state expanded": (
        lambda: {"conv_state": zeros(3, 6, 1).expand(3, 6, 3)},
        ValueError,
        ["conv_state:", "memory of its own"],
    ),
    "weight of another dim": (lambda: {"weight": zeros(5, 4)}, ValueError, ["weight:", "(5, 4)", "(6, width >= 1)"]),
    "bias of another dim": (lambda: {"bias": zeros(7)}, ValueError, ["bias:", "(7,)", "(6,)"]),
    "out of another shape": (lambda: {"out": zeros(2, 6, 3)}, ValueError, ["out:", "(2, 6, 3)", "(2, 6, 2)"]),
    "out of another dtype": (lambda: {"out": zeros(2, 6, 2).half()}, TypeError, ["out:", "torch.float16", "torch.float32"]),
    "indices of floats": (
        lambda: {"conv_state_indices": zeros(2)},
        TypeError,
        ["conv_state_indices:", "torch.float32", "integers"],
    ),
    "indices of bools": (
        lambda: {"conv_state_indices": zeros(2).bool()},
        TypeError,
        ["conv_state_indices:", "torch.bool", "integers"],
    ),
    "indices of another batch": (
        lambda: {"conv_state_indices": ints(0, 1, 2)},
        ValueError,
        ["conv_state_indices:", "(3,)", "(2,)"],
    ),
    "read slots alone": (lambda: {"conv_state_indices_in": ints(0, 1)}, ValueError, ["conv_state_indices_in:", "with it"]),
    "columns alone": (
        lambda: {"initial_state_idx": ints(0, 0)},
        ValueError,
        ["initial_state_idx:", "conv_state_indices with it"],
    ),
    "speculative and circular": (
        lambda: {"num_accepted_tokens": ints(1, 1), "cache_seqlens": ints(1, 1)},
        ValueError,
        ["num_accepted_tokens:", "cache_seqlens"],
    ),
    "a circular fork": (
        lambda: {"cache_seqlens": ints(1, 1), "conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(0, 1)},
        ValueError,
        ["cache_seqlens:", "slots to read other than those to write"],
    ),
    "a speculative state too short": (
        lambda: {"num_accepted_tokens": ints(1, 1)},
        ValueError,
        ["conv_state:", "state_len >= 4"],
    ),
    "windows of another dtype": (
        lambda: {"intermediate_conv_window": zeros(2, 2, 6, 3).half()},
        TypeError,
        ["intermediate_conv_window:", "torch.float16"],
    ),
    "windows too short": (
        lambda: {"intermediate_conv_window": zeros(2, 1, 6, 3)},
        ValueError,
        ["intermediate_conv_window:", "at least 2 tokens"],
    ),
    "half a tree": (
        lambda: {"retrieve_next_token": zeros(2, 2).int()},
        ValueError,
        ["retrieve_next_token:", "retrieve_next_sibling"],
    ),
    "a parent without a tree": (lambda: {"retrieve_parent_token": zeros(2, 2).int()}, ValueError, ["retrieve_parent_token:"]),
    "kernel is unknown": (lambda: {"kernel": "fastest"}, ValueError, ["kernel:", "'fastest'", "'auto'"]),
    "x requires grad": (lambda: {"x": zeros(2, 6, 2).requires_grad_()}, ValueError, ["x:", "requires grad"]),
    "weight on another device": (lambda: {"weight": zeros(6, 4).to("meta")}, ValueError, ["weight:", "meta", "where x is"]),
    "indices on another device": (
        lambda: {"conv_state_indices": ints(0, 1).to("meta")},
        ValueError,
        ["conv_state_indices:", "meta", "where x is"],
    ),
    "an index": (lambda: {"conv_state_indices": torch.tensor(1)}, ValueError, ["conv_state_indices:", "()", "(2,)"]),
    "no blocks": (
        lambda: {"conv_state_indices": zeros(2, 0).int()},
        ValueError,
        ["conv_state_indices:", "(2, 0)", "at least one block"],
    ),
    "too many accepted tokens": (
        lambda: {"num_accepted_tokens": ints(1, 1, 1), "conv_state": zeros(3, 6, 5)},
        ValueError,
        ["num_accepted_tokens:", "(3,)", "(2,)"],
    ),
    "starts of two dimensions": (
        lambda: {"x": zeros(2, 6), "query_start_loc": ints(0, 1, 2)[None]},
        ValueError,
        ["query_start_loc:", "(1, 3)"],
    ),
    "x is None": (lambda: {"x": None}, TypeError, ["x:", "None,", "torch.Tensor"]),
    "x is a list": (lambda: {"x": [1.0]}, TypeError, ["x:", "[1.0]", "torch.Tensor"]),
    "conv_state is None": (lambda: {"conv_state": None}, TypeError, ["conv_state:", "None,", "torch.Tensor"]),
    "weight is a list": (lambda: {"weight": [1.0]}, TypeError, ["weight:", "[1.0]", "torch.Tensor"]),
    "bias is a number": (lambda: {"bias": 1.0}, TypeError, ["bias:", "1.0", "torch.Tensor or None"]),
    "indices are a list": (
        lambda: {"conv_state_indices": [0, 1]},
        TypeError,
        ["conv_state_indices:", "[0, 1]", "torch.Tensor or None"],
    ),
    "windows are a string": (
        lambda: {"intermediate_conv_window": "w"},
        TypeError,
        ["intermediate_conv_window:", "'w'", "torch.Tensor"],
    ),
    "out is a tuple": (lambda: {"out": (1, 2, 3)}, TypeError, ["out:", "(1, 2, 3)", "torch.Tensor or None"]),
    "pad_slot_id is a float": (lambda: {"pad_slot_id": 1.5}, TypeError, ["pad_slot_id:", "1.5", "int or None"]),
    "pad_slot_id is a bool": (lambda: {"pad_slot_id": True}, TypeError, ["pad_slot_id:", "True", "int or None"]),
    "pad_slot_id is huge": (lambda: {"pad_slot_id": 1 << 70}, TypeError, ["pad_slot_id:", str(1 << 70), "64 bits"]),
    "null_block_id is a bool": (lambda: {"null_block_id": False}, TypeError, ["null_block_id:", "False", "int or None"]),
    "max_query_len is a dtype": (lambda: {"max_query_len": torch.int8}, TypeError, ["max_query_len:", "torch.int8", "an int"]),
    "max_query_len is a float": (lambda: {"max_query_len": 1.5}, TypeError, ["max_query_len:", "1.5", "an int"]),
    "kernel is None": (lambda: {"kernel": None}, TypeError, ["kernel:", "None,", "a string"]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    with device:
        good = _good()
        arguments = good | make_changes()
    # Shapes and kinds come before values; an operator in between makes no difference.
    for checked, through in ((False, contextlib.nullcontext()), (True, contextlib.nullcontext()), (False, LookOn())):
        with pytest.raises(error) as caught, through:
            causal_conv1d_update(**arguments, validate_data=checked)
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (good["conv_state"] == 1).all()


def test_tensors_without_memory_are_refused_alike() -> None:
    """torch.compile and torch.export would otherwise make a graph of what no kernel serves."""
    refused = 0
    for name, (make_changes, error, words) in BAD_CALLS.items():
        changes = make_changes()
        alone = changes.keys() <= {"x", "conv_state", "weight", "bias", "out"} or name == "packed x of three"
        if not alone or not all(isinstance(value, Tensor) for value in changes.values()):
            continue
        if name.endswith(("requires grad", "another device")) or name in ("fewer slots than rows", "conv_state expanded"):
            continue  # which memory, or kernels, tell
        with pytest.raises(error) as caught:
            causal_conv1d_update(**{key: value.to("meta") for key, value in (_good() | changes).items()})
        assert all(word in str(caught.value) for word in words), f"{name}: {caught.value}"
        refused += 1
    assert refused == 10


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"x": None}, TypeError, "x: got None, expected a torch.Tensor"),
        ({"x": zeros(6)}, ValueError, r"x: got shape \(6,\), expected 2 or 3 dimensions"),
        ({"k_dim": 2.0}, TypeError, "k_dim: got 2.0, expected an int"),
        ({"v_dim": None}, TypeError, "v_dim: got None, expected an int"),
        ({"k_dim": 3}, ValueError, r"k_dim, v_dim: got 3 and 2, expected 2 \* k_dim \+ v_dim"),
        (
            {"out": zeros(2, 6)},
            TypeError,
            r"out: got a torch.float32 tensor of shape \(2, 6\), expected a tuple of three torch.Tensor",
        ),
        (
            {"out": (zeros(2, 2), zeros(2, 2))},
            TypeError,
            r"out: got \(a torch.float32 tensor of shape \(2, 2\), a .*\), expected a tuple of three torch.Tensor",
        ),
        (
            {"out": (zeros(2, 2), zeros(2, 2), None)},
            TypeError,
            r"out: got \(a .*, a .* of shape \(2, 2\), None\), expected a tuple of three torch.Tensor",
        ),
        ({"out": (zeros(2, 2), zeros(3, 2), zeros(2, 2))}, ValueError, r"k: got shape \(3, 2\), expected \(tokens, channels\)"),
    ],
)
def test_bad_input_of_the_split(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    good: dict[str, Any] = {"x": zeros(2, 6), "conv_state": torch.ones(3, 6, 3), "weight": zeros(6, 4), "k_dim": 2, "v_dim": 2}
    for through in (contextlib.nullcontext(), LookOn()):
        with pytest.raises(error, match=words), through:
            causal_conv1d_update_split_qkv(**(good | changes))
    assert (good["conv_state"] == 1).all()


def test_memory_that_is_written_twice_is_refused(device: torch.device) -> None:
    buffer = torch.randn(4, 6, 8, device=device)
    before = buffer.clone()
    weight = torch.zeros(6, 4, device=device)
    with pytest.raises(ValueError, match="out: shares memory with conv_state"):
        causal_conv1d_update(torch.zeros(2, 6, device=device), buffer[:2, :, :3], weight, out=buffer[:2, :, 2])
    with pytest.raises(ValueError, match="conv_state: shares memory with x"):
        causal_conv1d_update(buffer[:2, :, 2], buffer[:2, :, :3], weight)
    with pytest.raises(ValueError, match="out: shares memory with x"):
        causal_conv1d_update(buffer[:2, :, :2], torch.zeros(2, 6, 3, device=device), weight, out=buffer[:2, :, 1:3])
    with pytest.raises(ValueError, match="q, k, v: got 7 channels"):
        parts = (torch.zeros(2, n, device=device) for n in (2, 2, 3))
        state = torch.zeros(2, 6, 3, device=device)
        torch.ops.hipconv.causal_conv1d_update_split_qkv(*parts, buffer[:2, :, 0], state, weight, None, False)
    links, parent = (
        torch.full((2, 3, 2), -1, dtype=torch.int32, device=device),
        torch.zeros(2, 3, dtype=torch.int32, device=device),
    )
    tree: dict[str, Any] = {"retrieve_next_token": links[:, :2, 0], "retrieve_next_sibling": links[:, :2, 1]}
    for name, value in (("retrieve_next_token", parent[:, 1:]), ("retrieve_next_sibling", parent[:, :2])):
        with pytest.raises(ValueError, match=f"retrieve_parent_token: shares memory with {name}"):
            causal_conv1d_update(
                buffer[:2, :, :2],
                torch.zeros(2, 6, 3, device=device),
                weight,
                retrieve_parent_token=parent[:, :2],
                **(tree | {name: value}),
            )
    assert (links == -1).all() and not parent.any()
    state = torch.zeros(2, 6, 3, device=device)
    with pytest.raises(ValueError, match="conv_state: shares memory with conv_state_indices"):
        causal_conv1d_update(buffer[:2, :, 0], state, weight, conv_state_indices=state.view(torch.int32)[0, :2, 0])
    with pytest.raises(ValueError, match="k_dim, v_dim: got 2 and 3"):
        causal_conv1d_update_split_qkv(buffer[:2, :, 0], torch.zeros(2, 6, 3, device=device), weight, 2, 3)
    assert torch.equal(buffer, before)


BAD_VALUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a slot outside": ({"conv_state_indices": ints(0, 5)}, ["conv_state_indices[1]: got 5", "0 to 4"]),
    "a slot outside in few bits": (
        {"conv_state_indices": ints(0, -2).to(torch.int8)},
        ["conv_state_indices[1]: got -2", "0 to 4"],
    ),
    "a slot outside in many bits": (
        {"conv_state_indices": torch.tensor([0, 2**64 - 1], dtype=torch.uint64)},
        [f"conv_state_indices[1]: got {2**64 - 1}", "0 to 4"],
    ),
    "a slot twice": ({"conv_state_indices": ints(2, 2)}, ["conv_state_indices[1]: got 2", "conv_state_indices[0] is the same"]),
    "a slot to read outside": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(-2, 1)},
        ["conv_state_indices_in[0]: got -2"],
    ),
    "a slot that another row writes": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(4, 0)},
        ["conv_state_indices_in[1]: got 0", "conv_state_indices[0] is the same"],
    ),
    "a block outside": (
        {"conv_state_indices": ints(0, 1)[:, None], "initial_state_idx": ints(0, 1)},
        ["initial_state_idx[1]: got 1", "0 to 0, a column of conv_state_indices"],
    ),
    "a block outside of the other table": (
        {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(2, 3)[:, None], "initial_state_idx": ints(0, 1)},
        ["initial_state_idx[1]: got 1", "a column of conv_state_indices_in"],
    ),
    "no token accepted": ({"num_accepted_tokens": ints(1, 0)}, ["num_accepted_tokens[1]: got 0", "1 to 2"]),
    "a row whose number is the pad slot's": (
        {"num_accepted_tokens": ints(1, 0), "pad_slot_id": 1},
        ["num_accepted_tokens[1]: got 0"],
    ),
    "too many accepted": ({"num_accepted_tokens": ints(3, 1)}, ["num_accepted_tokens[0]: got 3"]),
    "more drafts than a state holds": (
        {"num_accepted_tokens": ints(1, 1), "query_start_loc": ints(0, 3, 4), "x": zeros(4, 6)},
        ["query_start_loc: got 3 tokens of row 0"],
    ),
    "starts before": ({"query_start_loc": ints(-1, 2, 2)}, ["query_start_loc[0]: got -1", "at least 0"]),
    "runs backwards": ({"query_start_loc": ints(0, 2, 1)}, ["query_start_loc[2]: got 1", "at least 2"]),
    "ends late": ({"query_start_loc": ints(0, 2, 3)}, ["query_start_loc[2]: got 3", "at most 2, the tokens"]),
    "is longer than it says": (
        {"query_start_loc": ints(0, 2, 2), "max_query_len": 1},
        ["max_query_len: got 1", "2, the tokens of row 0"],
    ),
    "is longer than its windows": (
        {"query_start_loc": ints(0, 1, 4), "x": zeros(4, 6), "intermediate_conv_window": zeros(2, 2, 6, 3)},
        ["intermediate_conv_window: got shape (2, 2, 6, 3)", "at least 3 tokens", "row 1"],
    ),
    "a window outside": (
        {"intermediate_conv_window": zeros(2, 2, 6, 3), "intermediate_state_indices": ints(0, 2)},
        ["intermediate_state_indices[1]: got 2"],
    ),
    "a window twice": (
        {"intermediate_conv_window": zeros(2, 2, 6, 3), "intermediate_state_indices": ints(1, 1)},
        ["intermediate_state_indices[1]: got 1", "a slot of its own"],
    ),
    "a link back": (
        {
            "x": zeros(2, 6, 3),
            "retrieve_next_token": ints(1, 2, -1, 1, 1, -1).view(2, 3),
            "retrieve_next_sibling": ints(-1).expand(2, 3),
        },
        ["retrieve_next_token[1, 1]: got 1", "a token after 1 of the row's 3"],
    ),
    "a link to no token": (
        {
            "x": zeros(2, 6, 3),
            "retrieve_next_token": ints(-1).expand(2, 3),
            "retrieve_next_sibling": ints(-1, 3).repeat(3).view(2, 3),
        },
        ["retrieve_next_sibling[0, 1]: got 3"],
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_validate_data_names_the_first_offender(name: str) -> None:
    options, words = BAD_VALUES[name]
    state = torch.ones(5, 6, 4)
    arguments: dict[str, Any] = {"x": zeros(2, 6), "conv_state": state, "weight": zeros(6, 4)} | options
    for call in (causal_conv1d_update, functools.partial(causal_conv1d_update_split_qkv, k_dim=2, v_dim=2)):
        with pytest.raises(ValueError) as caught:
            call(**arguments, validate_data=True)
        for word in words:
            assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert (state == 1).all()


# Values that say nothing wrong: of entries that the call does not use, of padding, and of rows that write nothing.
UNUSED_VALUES: dict[str, dict[str, Any]] = {
    "entries of other blocks": {"conv_state_indices": ints(2, 99, 0, -7).view(2, 2)},
    "padding twice": {"conv_state_indices": ints(-1, -1), "num_accepted_tokens": ints(0, 99)},
    "the null block twice": {"conv_state_indices": ints(0, 0), "null_block_id": 0},
    "what padding would write": {"conv_state_indices": ints(99, 1), "conv_state_indices_in": ints(-1, 2)},
    "what padding would read": {"conv_state_indices": ints(-1, -1), "conv_state_indices_in": ints(99, 2)},
    "a row without tokens": {
        "conv_state_indices": ints(1, 1),
        "query_start_loc": ints(0, 2, 2),
        "num_accepted_tokens": ints(1, 0),
    },
    "starts after some tokens": {"query_start_loc": ints(1, 1, 2)},
    "one slot read by all": {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(4, 4)},
    "rows that read what they write": {"conv_state_indices": ints(0, 1), "conv_state_indices_in": ints(0, 1)},
    "a tree, which writes no state": {
        "x": zeros(2, 6, 1),
        "conv_state_indices": ints(3, 3),
        "retrieve_next_token": ints(-1, -1).view(2, 1),
        "retrieve_next_sibling": ints(-1, -1).view(2, 1),
    },
    "no rows of a tree": {
        "x": zeros(0, 6, 3),
        "retrieve_next_token": zeros(0, 3).int(),
        "retrieve_next_sibling": zeros(0, 3).int(),
    },
    "no windows of a width of one": {
        "weight": zeros(6, 1),
        "conv_state_indices": ints(2, 2),
        "num_accepted_tokens": ints(0, 9),
    },
}


@pytest.mark.parametrize("name", UNUSED_VALUES)
def test_validate_data_does_not_look_at_what_is_not_used(name: str) -> None:
    causal_conv1d_update(
        **({"x": zeros(2, 6), "conv_state": torch.ones(5, 6, 4), "weight": zeros(6, 4)} | UNUSED_VALUES[name]),
        validate_data=True,
    )


def in_random_types(draw: random.Random, options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options, these tensors of them in any integer type that holds their values."""
    changed = dict(options)
    for name in names:
        values = options.get(name)
        if values is not None:
            low, high = (int(values.min()), int(values.max())) if values.numel() else (0, 0)
            fitting = [dtype for dtype in INTEGERS if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max]
            changed[name] = values.to(draw.choice(fitting))
    return changed


def test_validate_data_accepts_what_is_right_in_every_type(device: torch.device) -> None:
    for seed in range(80):
        arguments, options = random_call(random.Random(seed), device)
        slots = arguments[1].shape[0]
        for name in ("conv_state_indices", "conv_state_indices_in"):
            if name in options:
                options[name] = options[name].long().where(options[name] < slots, -1)
        windows = options.get("intermediate_state_indices")
        if windows is not None and (windows < 0).any():
            del options["intermediate_state_indices"]
        options = in_random_types(
            random.Random(seed),
            options,
            (
                "conv_state_indices",
                "conv_state_indices_in",
                "num_accepted_tokens",
                "query_start_loc",
                "block_idx_last_scheduled_token",
                "initial_state_idx",
                "cache_seqlens",
                "intermediate_state_indices",
                "retrieve_next_token",
                "retrieve_next_sibling",
            ),
        )
        check(*arguments, validate_data=True, **options)


def test_validate_data_says_so_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match="validate_data: got True while the current stream captures a graph, expected False"):
        refuse_capture(cast(Tensor, SimpleNamespace(is_cuda=True)))
    causal_conv1d_update(zeros(2, 6), zeros(2, 6, 3), zeros(6, 4), validate_data=True)  # host memory is no part of a graph
