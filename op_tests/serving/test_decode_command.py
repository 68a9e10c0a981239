"""causal_conv1d_update and its q/k/v form: a command that checks and times any case, and its tests.

python op_tests/test_causal_conv1d_update.py
python op_tests/test_causal_conv1d_update.py --batch 256 --dim 8192 --width 4 --state_len 3,4 --dtype bfloat16 --layout N,S,D
python op_tests/test_causal_conv1d_update.py --seqlens 1,1,4 --seqlens 0,2 --dim 4096 --state_len 6 --speculative
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any

import pytest
import torch

from serving.decode_cases import LAYOUTS, check, make_state, make_weights
from support.backends import BACKENDS, backends, device_of, use_backend
from support.cli import Table, at_least, check_state_len, choice_of, flattened, list_of
from support.tensors import DTYPES
from support.timing import microseconds
from hipconv.serving import causal_conv1d_update


def measure(lengths: list[int], options: argparse.Namespace, backend: str, dim: int, width: int, state_len: int, dtype: str,
            layout: str, table: Table) -> bool:  # fmt: skip
    """Check one case against the reference, time it, print its row; True if right."""
    device = device_of(backend)
    torch.manual_seed(0)
    batch = len(lengths)
    x = torch.randn(sum(lengths), dim).to(device, DTYPES[dtype])
    state = make_state(layout, 2 * batch, dim, state_len, DTYPES[options.state_dtype or dtype], device)
    weight, bias = make_weights(dim, width, DTYPES[dtype], device)
    call: dict[str, Any] = {"conv_state_indices": torch.randperm(2 * batch)[:batch].int()}
    if set(lengths) != {1}:
        call["query_start_loc"] = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    if options.speculative:
        call["num_accepted_tokens"] = torch.randint(1, state_len - width + 3, (batch,), dtype=torch.int32)
    call = {name: value.to(device) for name, value in call.items()}
    with use_backend(backend):
        try:
            live = check(x, state, weight, bias, options.use_silu, kernel=options.kernel, **call).live
            padding = sum(not tokens.any() for tokens in live.split(lengths) if len(tokens) > 0)  # too long for state_len
            result = f"ok, but {padding} of {batch} rows are only padding: they need a larger --state_len" if padding else "ok"
        except AssertionError as error:
            result = f"WRONG: {str(error).splitlines()[0]}"
        out = torch.empty_like(x)
        took = microseconds(
            lambda: causal_conv1d_update(x, state, weight, bias, options.use_silu, out=out, kernel=options.kernel, **call),
            device,
        )
    moved = 2 * x.nbytes + 2 * batch * dim * state_len * state.element_size()
    lengths_text = f"{batch}x{lengths[0]}" if len(set(lengths)) == 1 else ",".join(map(str, lengths))
    table.row(
        f"{lengths_text} D{dim} w{width} S{state_len}", dtype, layout, f"{backend}/{options.kernel}", f"{took:.1f}",
        f"{moved / took / 1e3:.2f}", result,
    )  # fmt: skip
    return result.startswith("ok")


def test_the_command_prints_a_row_a_case_and_fails_on_a_mismatch(monkeypatch, capsys) -> None:
    words = "--batch 1,3 --dim 8 --width 4 --state_len 3 --dtype float16 --backend cpu --layout N,D,S"
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split()])
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
    monkeypatch.setattr("serving.decode_cases.mismatch", lambda out, expected: "invented")
    assert main() == 1
    assert "WRONG: invented" in capsys.readouterr().out


_ONE = "--dim 8 --dtype float32 --backend cpu --layout N,S,D"


@pytest.mark.parametrize(
    ("words", "results"),
    [
        ("--batch 2 --width 1,2,6,9", ["ok"] * 8),  # each with the two default state lengths
        ("--seqlens 0,1 --seqlens 0 --width 1,6 --state_len 5 --speculative", ["ok"] * 4),
        ("--seqlens 1,1,7 --speculative", ["ok"] * 2),
        (
            "--seqlens 1,7,7 --speculative --state_len 6",
            ["ok, but 2 of 3 rows are only padding: they need a larger --state_len"],
        ),
    ],
)
def test_the_command_runs_any_lengths_and_sizes(monkeypatch, capsys, words: str, results: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split(), *_ONE.split()])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()[1:-1]
    assert [row.endswith(result) for row, result in zip(rows, results, strict=True)] == [True] * len(rows), rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--width 6 --state_len 4,5", "argument --state_len: got 4, expected at least width - 1 = 5 at --width 6"),
        ("--width 0", "argument --width: got '0', expected an integer of at least 1"),
        ("--seqlens 1,-2", "argument --seqlens: got '-2', expected an integer of at least 0"),
        ("--seqlens ,", "argument --seqlens: got ',', expected one value or several, comma-separated"),
        ("--seqlens 1 --batch 2", "argument --batch: not allowed with argument --seqlens"),
    ],
)
def test_the_command_refuses_what_cannot_be(monkeypatch, capsys, words: str, message: str) -> None:
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d_update.py", *words.split(), *_ONE.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.splitlines()[-1] == f"test_causal_conv1d_update.py: error: {message}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = list_of(at_least(1))
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--batch", type=several, nargs="+", default=[[1, 64]], help="rows of one token; one or several; default 1,64"
    )
    either.add_argument(
        "--seqlens", type=list_of(at_least(0)), action="append", help="tokens of each row, like 1,1,4; may be repeated"
    )
    parser.add_argument("--dim", type=several, nargs="+", default=[[512, 333]], help="one or several; default 512,333")
    parser.add_argument("--width", type=several, nargs="+", default=[[4]], help="one or several; default 4")
    described = "columns of a slot, one or several; default the fewest that serve, and one more"
    parser.add_argument("--state_len", type=list_of(at_least(0)), nargs="+", help=described)
    for option, words, default in (("dtype", DTYPES, DTYPES), ("backend", BACKENDS, backends())):
        described = f"of {', '.join(words)}; default {', '.join(default)}"
        parser.add_argument(f"--{option}", type=list_of(choice_of(*words)), nargs="+", default=[list(default)], help=described)
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=["N,D,S", "N,S,D"], help="of the state")
    parser.add_argument("--state_dtype", type=choice_of(*DTYPES), help="default: the dtype of x")
    parser.add_argument("--kernel", default="auto", help="a kernel's name, or auto (default)")
    parser.add_argument("--speculative", action="store_true", help="with num_accepted_tokens")
    parser.add_argument("--use_silu", action="store_true", help="SiLU after the convolution")
    options = parser.parse_args()
    rows = options.seqlens or [[1] * batch for batch in flattened(options.batch)]

    columns = [("rows", 24), ("dtype", 8), ("state", 6), ("backend/kernel", 14), ("us", 9), ("GB/s", 8), ("result", 6)]
    sizes = []
    for lengths, width in itertools.product(rows, flattened(options.width)):
        fewest = max(width - 1, width - 2 + max(lengths) if options.speculative else 0)
        for state_len in flattened(options.state_len or [[fewest, fewest + 1]]):
            check_state_len(parser, state_len, width)
            sizes.append((lengths, width, state_len))
    table = Table(columns)
    axes = (options.backend, [sizes], options.dim, options.dtype, [options.layout])
    failures = total = 0
    for backend, (lengths, width, state_len), dim, dtype, layout in itertools.product(*(flattened(axis) for axis in axes)):
        try:
            failures += not measure(lengths, options, backend, dim, width, state_len, dtype, layout, table)
        except ValueError as error:
            sys.exit(f"{backend}: {error}")
        total += 1
    print(f"{total - failures} passed, {failures} failed")
    return 1 if failures or not total else 0
