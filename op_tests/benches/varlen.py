"""Speed of causal_conv1d_fn and causal_conv1d_split_qkv beside a copy kernel that moves the same bytes, states included.

    python op_tests/bench_causal_conv1d_varlen.py
    python op_tests/bench_causal_conv1d_varlen.py --lengths 1x8192 192x1,4000 --form split --block_m 16,32,64 --json
    results.json

Lengths are COUNTxTOKENS or TOKENS, comma-separated. On a GPU a time is that of a kernel: calls are captured into a graph, each
on buffers of its own, together larger than any cache. "wall" is the time of an eager call by the clock, the device kept busy,
so that it is the larger of the host's time and the kernel's. On the CPU a time is the fastest of several calls. Width 4, bias,
SiLU, all sequences with an initial state; slots of a pool twice the size, in random order.

    new        into a new tensor
    split      into q, k and v (dim / 4, dim / 4, dim / 2)
    in_place   over x
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
from pathlib import Path
import time

import torch
from torch import Tensor
import torch.nn.functional as F

from benches.measure import ROTATED_BYTES, WIDTH, copier, heading, origin, parser_for, write_json
from support.backends import device_of
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, mismatch
from support.timing import time_us
from hipconv import reference, serving

MIXES = ["1x8192", "8x1024", "64x128", "192x1,4000,2000,1500,500", "256x32"]
CPU_MIXES = ["1x2048", "8x256", "100x1,1500,448", "2048x1"]
STATE_LAYOUTS = ("dim_last", "dim_first")
FORMS = ("new", "split", "in_place")


def parse_lengths(text: str) -> list[int]:
    """`192x1,4000` -> 192 ones and 4000."""
    lengths: list[int] = []
    for part in text.split(","):
        count, _, tokens = part.rpartition("x")
        lengths += [int(tokens)] * int(count or 1)
    return lengths


def wall_us(calls: list[Callable[[], object]], device: torch.device) -> float:
    """Time of an eager call by the clock, in a row of many."""
    rounds = max(1, 200 // len(calls))
    for call in calls:
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        for call in calls:
            call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e6 / (rounds * len(calls))


def bench(
    lengths: list[int], dim: int, dtype: torch.dtype, state_layout: str, form: str, choices: dict, device: torch.device
) -> dict:
    """Times in microseconds of one case; `bytes` moved; `wrong` says what is, if anything."""
    tokens, count = sum(lengths), len(lengths)
    moved = 2 * tokens * dim * dtype.itemsize + 2 * count * dim * (WIDTH - 1) * dtype.itemsize
    on_gpu = device.type == "cuda"
    copies = max(3, -(-ROTATED_BYTES // moved)) if on_gpu else 2
    weight, bias = torch.randn(dim, WIDTH, device=device, dtype=dtype) / 2, torch.randn(dim, device=device, dtype=dtype)
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    indices = torch.randperm(2 * count, device=device)[:count].int()
    flags = torch.ones(count, dtype=torch.bool, device=device)
    k_dim = dim // 4

    def pool() -> Tensor:
        if state_layout == "dim_first":
            return torch.randn(2 * count, dim, WIDTH - 1, device=device, dtype=dtype)
        return torch.randn(2 * count, WIDTH - 1, dim, device=device, dtype=dtype).transpose(1, 2)

    sets = [(torch.randn(tokens, dim, device=device, dtype=dtype).T, pool()) for _ in range(copies)]

    def run(x: Tensor, states: Tensor) -> object:
        if form == "split":
            return serving.causal_conv1d_split_qkv(
                x, weight, bias, states, starts, k_dim, dim - 2 * k_dim, indices, flags, **choices
            )
        out = x if form == "in_place" else None
        return serving.causal_conv1d_fn(x, weight, bias, states, starts, indices, flags, out=out, **choices)

    x, states = sets[0]
    some = torch.randperm(dim, device=device)[:256]
    wanted, wanted_states, _ = reference.causal_conv1d_varlen(
        x[some], weight[some], bias[some], states[:, some], starts, indices, flags, True
    )
    out = run(x, states)
    whole = torch.cat(out, dim=1).T if isinstance(out, tuple) else out
    assert isinstance(whole, Tensor)
    wrong = mismatch(whole[some], wanted) or (None if torch.equal(states[:, some], wanted_states) else "the states are wrong")
    del out, whole, wanted, wanted_states

    calls: list[Callable[[], object]] = [functools.partial(run, *pair) for pair in sets]
    result: dict = {"bytes": moved, "wrong": wrong, "us": time_us(calls, device), "wall_us": wall_us(calls, device)}
    copy = copier(device)
    half = moved // 2 // 16 * 16
    pairs = [torch.empty(2, half, dtype=torch.uint8, device=device) for _ in range(copies)]

    result["copy_us"] = time_us([functools.partial(copy, *pair) for pair in pairs], device)
    result["silu_us"] = time_us([functools.partial(F.silu, x.T) for x, _ in sets], device)
    return result


def main() -> int:
    parser, _ = parser_for(__doc__)
    parser.add_argument("--lengths", nargs="+", help="mixes of sequences, like 192x1,4000")
    parser.add_argument("--dim", type=list_of(int), nargs="+", help="default 8192, on the CPU 2048")
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[["bfloat16"]])
    parser.add_argument("--state_layout", type=list_of(choice_of(*STATE_LAYOUTS)), nargs="+", default=[list(STATE_LAYOUTS)])
    parser.add_argument("--form", type=list_of(choice_of(*FORMS)), nargs="+", default=[["new", "split"]])
    parser.add_argument("--kernel", default="auto")
    for option in ("block_m", "block_n", "num_warps"):
        parser.add_argument(f"--{option}", type=list_of(int), nargs="+", default=[[0]], help="0: the kernel's own choice")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()

    device = device_of(options.backend)
    where = origin(device)
    print(f"{heading(where)}; width {WIDTH}, bias, SiLU; times in us; TB/s counts tokens and states, in and out")
    columns = [("lengths", 26), ("dim", 5), ("dtype", 8), ("states", 9), ("form", 8), ("tile", 10), ("us", 9), ("TB/s", 6)]
    table = Table([*columns, ("copy us", 9), ("of copy", 7), ("wall us", 9), ("vs silu", 7), ("result", 6)])
    rows = []
    listed = (options.dtype, options.state_layout, options.form, options.block_m, options.block_n, options.num_warps)
    axes = (
        options.lengths or (MIXES if options.backend == "gpu" else CPU_MIXES),
        flattened(options.dim) if options.dim else [8192 if options.backend == "gpu" else 2048],
        *(flattened(axis) for axis in listed),
    )
    for lengths, dim, dtype, state_layout, form, block_m, block_n, num_warps in itertools.product(*axes):
        choices = {"kernel": options.kernel, "block_m": block_m, "block_n": block_n, "num_warps": num_warps}
        result = bench(parse_lengths(lengths), dim, DTYPES[dtype], state_layout, form, choices, device)
        rows.append(
            {"lengths": lengths, "dim": dim, "dtype": dtype, "state_layout": state_layout, "form": form, **choices, **result}
        )
        table.row(
            lengths,
            dim,
            dtype,
            state_layout,
            form,
            f"{block_m}x{block_n}x{num_warps}",
            f"{result['us']:.1f}",
            f"{result['bytes'] / result['us'] / 1e6:.2f}",
            f"{result['copy_us']:.1f}",
            f"{100 * result['copy_us'] / result['us']:.1f} %",
            f"{result['wall_us']:.1f}",
            f"{result['us'] / result['silu_us']:.2f}x",
            result["wrong"] or "ok",
        )
    write_json(options.json, {**where, "rows": rows})
    return 1 if any(row["wrong"] for row in rows) else 0
