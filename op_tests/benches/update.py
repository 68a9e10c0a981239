"""Speed of causal_conv1d_update beside a copy kernel of the same bytes and the obvious torch code.

    python op_tests/bench_causal_conv1d_update.py
    python op_tests/bench_causal_conv1d_update.py --batch 1 256 1024 --dim 8192 --layout N,3,D --case decode --json results.json

On a GPU a time is that of a kernel in a graph: "cold", each call on buffers of its own, together larger than any cache; and
"warm", all on one set of buffers, as the published figures are. Bytes are those of x, out, the state read and the state
written. Width 4, bias, SiLU, random slots of a pool twice the batch.

    decode        one token a row
    tokens        four tokens a row, (tokens, dim) with query_start_loc
    packed        four tokens a row, (batch, dim, 4) contiguous
    speculative   four tokens a row after any number of accepted ones; the state has 6 columns
    split         one token a row, into q, k and v (dim / 4, dim / 4, dim / 2)
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from pathlib import Path

import torch
from torch import Tensor
import torch.nn.functional as F

from benches.measure import ROTATED_BYTES, copier, heading, origin, parser_for, write_json
from support.backends import device_of
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, mismatch
from support.timing import time_us
from hipconv import reference_update
from hipconv.ops.serving import decode

WIDTH, TOKENS = 4, 4
CASES = ("decode", "tokens", "packed", "speculative", "split")
STATES = ("N,D,3", "N,D,4", "N,3,D")


class Buffers:
    """The tensors that one call works on."""

    def __init__(self, case: str, batch: int, dim: int, state: str, dtype: torch.dtype, device: torch.device) -> None:
        tokens = 1 if case in ("decode", "split") else TOKENS
        columns = WIDTH - 2 + tokens if case == "speculative" else int(state.replace("N", "").replace("D", "").strip(","))
        make = functools.partial(torch.randn, dtype=dtype, device=device)
        self.case, self.tokens, self.dim = case, tokens, dim
        self.x = make(batch * tokens, dim) if case != "packed" else make(batch, dim, tokens)
        self.state = make(2 * batch, columns, dim).mT if state.endswith("D") else make(2 * batch, dim, columns)
        self.out = torch.empty_like(self.x)
        quarter, half = dim // 4, dim // 2
        self.qkv = (make(batch, quarter), make(batch, quarter), make(batch, half)) if case == "split" else None
        self.options: dict = {"conv_state_indices": torch.randperm(2 * batch, device=device)[:batch].int()}
        if case in ("tokens", "speculative"):
            self.options["query_start_loc"] = torch.arange(0, batch * tokens + 1, tokens, device=device, dtype=torch.int32)
        moved = 2 * (WIDTH - 1 if columns == WIDTH - 1 or state.endswith("D") else columns)
        if case == "speculative":
            self.options["num_accepted_tokens"] = torch.randint(1, tokens + 1, (batch,), device=device, dtype=torch.int32)
            moved = 2 * columns if not state.endswith("D") else WIDTH - 1 + columns
        self.bytes = batch * dim * (2 * tokens + moved) * dtype.itemsize

    def call(self, weight: Tensor, bias: Tensor, kernel: str) -> None:
        if self.qkv:
            k, v = self.dim // 4, self.dim // 2
            decode.causal_conv1d_update_split_qkv(
                self.x, self.state, weight, k, v, bias, "silu", out=self.qkv, kernel=kernel, **self.options
            )  # fmt: skip
        else:
            decode.causal_conv1d_update(self.x, self.state, weight, bias, "silu", out=self.out, kernel=kernel, **self.options)

    def result(self) -> Tensor:
        return torch.cat(self.qkv, 1) if self.qkv else self.out

    def torch(self, weight: Tensor, bias: Tensor) -> None:
        """Gather, join, multiply and sum, SiLU, scatter: one token a row, the state as (slots, dim, columns)."""
        slots = self.options["conv_state_indices"].long()
        window = torch.cat([self.state[slots][:, :, : WIDTH - 1], self.x[:, :, None]], 2)
        self.out.copy_(F.silu((window * weight).sum(2) + bias))
        self.state[slots, :, : WIDTH - 1] = window[:, :, 1:]


def bench(case: str, batch: int, dim: int, state: str, dtype: torch.dtype, kernels: list[str], device: torch.device) -> dict:
    """Times in microseconds of one case, by name; `wrong` lists kernels whose results are not the reference's."""
    gpu = device.type == "cuda"
    first = Buffers(case, batch, dim, state, dtype, device)
    copies = min(256, max(8, -(-ROTATED_BYTES // first.bytes))) if gpu else 4
    sets = [first, *(Buffers(case, batch, dim, state, dtype, device) for _ in range(copies - 1))]
    weight, bias = torch.randn(dim, WIDTH, device=device, dtype=dtype) / 2, torch.randn(dim, device=device, dtype=dtype)

    copy = copier(device)
    half = max(16, first.bytes // 2 // 16 * 16)
    raw = [[torch.empty(half, dtype=torch.uint8, device=device).random_() for _ in range(2)] for _ in range(copies)]

    def copied(pair: list[Tensor]) -> None:
        copy(pair[1], pair[0])

    result: dict = {"bytes": first.bytes, "wrong": []}
    result["copy"] = time_us([functools.partial(copied, pair) for pair in raw], device)
    result["copy warm"] = time_us([functools.partial(copied, raw[0])] * 20, device)
    for kernel in kernels:
        before = first.state.clone()
        expected = (
            reference_update.causal_conv1d_update(first.x, before, weight, bias, True, **first.options) if batch <= 64 else None
        )
        first.call(weight, bias, kernel)
        if expected and (mismatch(first.result(), expected.out) or not torch.equal(first.state, expected.conv_state)):
            result["wrong"].append(kernel)
        calls: list[Callable[[], object]] = [functools.partial(buffers.call, weight, bias, kernel) for buffers in sets]
        result[kernel] = time_us(calls, device)
        result[f"{kernel} warm"] = time_us([calls[0]] * 20, device)
    if case == "decode":
        result["torch"] = time_us([functools.partial(buffers.torch, weight, bias) for buffers in sets[:4]], device)
    return result


def main() -> int:
    parser, backend = parser_for(__doc__)
    parser.add_argument("--case", type=list_of(choice_of(*CASES)), nargs="+", default=[list(CASES)])
    parser.add_argument("--batch", type=list_of(int), nargs="+", default=[[1, 256, 1024] if backend == "gpu" else [1, 8, 64]])
    parser.add_argument("--dim", type=list_of(int), nargs="+", default=[[8192]])
    parser.add_argument("--layout", nargs="+", choices=STATES, default=list(STATES), help="of the state")
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[["bfloat16"]])
    parser.add_argument("--kernel", type=list_of(str), nargs="+", default=[["auto"]])
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()

    device = device_of(options.backend)
    where = origin(device)
    print(f"{heading(where)}; width {WIDTH}, bias, SiLU; times in us; GB/s counts x, out and both ways of state")
    columns = [
        ("case", 11),
        ("BxD", 9),
        ("state", 6),
        ("dtype", 8),
        ("kernel", 8),
        ("us", 7),
        ("GB/s", 5),
        ("copy", 7),
        ("x copy", 6),
    ]
    table = Table([*columns, ("warm us", 7), ("warm copy", 9), ("vs torch", 8), ("result", 6)])
    rows = []
    for case in flattened(options.case):
        for dim in flattened(options.dim):
            for batch in flattened(options.batch):
                for dtype in flattened(options.dtype):
                    for state in options.layout if case != "speculative" else [s for s in options.layout if s != "N,D,4"]:
                        kernels = flattened(options.kernel)
                        result = bench(case, batch, dim, state, DTYPES[dtype], kernels, device)
                        rows.append({"case": case, "batch": batch, "dim": dim, "state": state, "dtype": dtype, **result})
                        for kernel in kernels:
                            ours = result[kernel]
                            table.row(
                                case,
                                f"{batch}x{dim}",
                                state,
                                dtype,
                                kernel,
                                f"{ours:.2f}",
                                f"{result['bytes'] / ours / 1e3:.0f}",
                                f"{result['copy']:.2f}",
                                f"{ours / result['copy']:.2f}",
                                f"{result[f'{kernel} warm']:.2f}",
                                f"{result['copy warm']:.2f}",
                                f"{result['torch'] / ours:.1f}x" if "torch" in result else "",
                                "WRONG" if kernel in result["wrong"] else "ok",
                            )
    write_json(options.json, {**where, "rows": rows})
    return 1 if any(row["wrong"] for row in rows) else 0
