"""hipconv.serving.causal_conv1d_fn and causal_conv1d_split_qkv: a command that checks and times any case, and its tests.

python op_tests/test_causal_conv1d_varlen.py
python op_tests/test_causal_conv1d_varlen.py --dim 8192 --seqlens 1,1,4000 --seqlens 1024,1024 --width 4 --state_len 3 --split
"""

from __future__ import annotations

import argparse
import itertools
import sys

import pytest
import torch

from serving.prefill_cases import STATE_LAYOUTS, Case, expected, same_values
from support.backends import BACKENDS, backends, device_of, use_backend
from support.cli import Table, at_least, check_state_len, choice_of, flattened, list_of
from support.tensors import DTYPES, LAYOUTS, mismatch
from support.timing import microseconds
from hipconv import serving


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
        wrong = mismatch(out[:, live], wanted[:, live]) or (None if same_values(pool, wanted_pool) else "the pool is wrong")

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
    parser.add_argument(
        "--seqlens", type=list_of(at_least(0)), action="append", help="lengths of one call's sequences; may be repeated"
    )
    parser.add_argument("--width", type=several, nargs="+", default=[[4]], help="one or several; default 4")
    parser.add_argument(
        "--state_len", type=list_of(at_least(0)), nargs="+", help="columns of a slot, one or several; default width - 1"
    )
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
    states = [
        (width, state_len) for width in flattened(options.width) for state_len in flattened(options.state_len or [[width - 1]])
    ]
    for width, state_len in states:
        check_state_len(parser, state_len, width)
    table = Table([*columns, ("of copy", 7), ("max error", 9), ("result", 6)])
    axes = (options.backend, options.kernel, options.batch, options.dim, [states], options.dtype, options.layout)
    failures = total = 0
    for lengths in options.seqlens or [[1, 1, 40], [0, 129], [1000, 24]]:
        for backend, kernel, batch, dim, (width, state_len), dtype, layout in itertools.product(
            *(flattened(axis) for axis in axes)
        ):
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
