"""The command checks and times any case of causal_conv1d_fwd.

python op_tests/test_causal_conv1d.py
python op_tests/test_causal_conv1d.py --batch 4 --dim 512 --seqlen 2048 --width 4 --dtype float16 bfloat16 --use_silu --layout
channel_last
"""

from __future__ import annotations

import argparse
import itertools
import sys

from torch import Tensor
import torch.nn.functional as F

from conv1d.cases import Case
from support.backends import BACKENDS, backends, device_of, use_backend
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, LAYOUTS, mismatch
from support.timing import microseconds
import hipconv
from hipconv import reference


def measure(case: Case, backend: str, kernel: str, table: Table) -> bool:
    """Check one case against the reference, time it beside a copy and torch's own convolution, print its row; True if right."""
    device = device_of(backend)
    x, weight, bias, out = case.inputs(device)
    with use_backend(backend):
        hipconv.causal_conv1d_fwd(out, x, weight, bias, case.use_silu, kernel=kernel)
        expected = reference.causal_conv1d(x, weight, bias, case.use_silu)
        wrong = mismatch(out, expected)
        error = (out.double() - expected).abs().max().item() if out.numel() else 0.0
        ours = microseconds(lambda: hipconv.causal_conv1d_fwd(out, x, weight, bias, case.use_silu, kernel=kernel), device)
    copy = microseconds(lambda: out.copy_(x), device)
    torch_weight = weight.to(x.dtype)[:, None]
    torch_bias = None if bias is None else bias.to(x.dtype)

    def torch_conv() -> Tensor:
        y = F.conv1d(x, torch_weight, torch_bias, padding=case.width - 1, groups=case.dim)[..., : case.seqlen]
        return F.silu(y) if case.use_silu else y

    theirs = microseconds(torch_conv, device)
    moved = 2 * x.numel() * x.element_size() + sum(t.numel() * t.element_size() for t in (weight, bias) if t is not None)
    table.row(
        f"{case.batch}x{case.dim}x{case.seqlen} w{case.width}",
        str(case.dtype).removeprefix("torch."),
        case.layout,
        f"{backend}/{kernel}",
        f"{'silu' if case.use_silu else '-'}{' bias' if case.has_bias else ''}",
        f"{ours:.1f}",
        f"{moved / ours / 1e3:.2f}",
        f"{100 * copy / ours:.0f} %",
        f"{error:.1e}",
        f"{theirs / ours:.1f}x",
        "ok" if wrong is None else f"WRONG: {wrong}",
    )
    return wrong is None


def test_the_command_prints_a_row_a_case_and_fails_on_a_mismatch(monkeypatch, capsys) -> None:
    sizes = "--batch 1 --dim 3,8 --seqlen 5 --width 2 --dtype float16 --backend cpu --use_silu --no_bias"
    monkeypatch.setattr(sys, "argv", ["test_causal_conv1d.py", *sizes.split()])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 2 * len(LAYOUTS) + 1 and rows[-1] == "4 passed, 0 failed"
    assert len({len(row) for row in rows[:-1]}) == 1, "the rows are not aligned"
    monkeypatch.setattr(sys.modules[__name__], "mismatch", lambda out, expected: "invented")
    assert main() == 1
    assert "WRONG: invented" in capsys.readouterr().out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, sizes in (("batch", [2]), ("dim", [64, 333]), ("seqlen", [1, 129, 1024]), ("width", [2, 4])):
        parser.add_argument(
            f"--{option}", type=list_of(int), nargs="+", default=[sizes], help=f"one or several; default {sizes}"
        )
    for option, words, default in (("dtype", DTYPES, DTYPES), ("layout", LAYOUTS, LAYOUTS), ("backend", BACKENDS, backends())):
        described = f"of {', '.join(words)}; default {', '.join(default)}"
        parser.add_argument(f"--{option}", type=list_of(choice_of(*words)), nargs="+", default=[list(default)], help=described)
    parser.add_argument("--weight_dtype", type=choice_of(*DTYPES), help="default: the dtype of x")
    parser.add_argument("--kernel", type=list_of(str), nargs="+", default=[["auto"]], help="kernel names, or auto (default)")
    parser.add_argument("--use_silu", action="store_true", help="SiLU after the convolution")
    parser.add_argument("--no_bias", action="store_true", help="no bias")
    options = parser.parse_args()

    columns = [
        ("BxDxL width", 18),
        ("dtype", 8),
        ("layout", 13),
        ("backend/kernel", 14),
        ("epilogue", 9),
        ("us", 9),
        ("GB/s", 8),
    ]
    table = Table([*columns, ("of copy", 7), ("max error", 9), ("vs torch", 8), ("result", 6)])
    axes = (
        options.backend,
        options.kernel,
        options.batch,
        options.dim,
        options.seqlen,
        options.width,
        options.dtype,
        options.layout,
    )
    failures = total = 0
    for backend, kernel, batch, dim, seqlen, width, dtype, layout in itertools.product(*(flattened(axis) for axis in axes)):
        weight_dtype = DTYPES[options.weight_dtype or dtype]
        case = Case(batch, dim, seqlen, width, DTYPES[dtype], weight_dtype, options.use_silu, not options.no_bias, layout)
        try:
            failures += not measure(case, backend, kernel, table)
        except ValueError as error:  # a kernel that this backend does not have
            sys.exit(f"{backend}: {error}")
        total += 1
    print(f"{total - failures} passed, {failures} failed")
    return 1 if failures or not total else 0
