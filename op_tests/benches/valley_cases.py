"""The lattice of bench_valleys.py: the axes of each op, seeded cases of them, and what a case calls, moves and computes.

A value of an axis is met by about as many cases as each other value, and by every form: axes are shuffled by themselves, form
by form.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import random
from typing import Any

import torch
from torch import Tensor

from support.tensors import DTYPES, mismatch
from hipconv import reference, reference_training, serving
from hipconv.ops.serving import decode

Axes = dict[str, list]
Case = dict[str, Any]
SECTOR = 32  # bytes; what a card moves at least
COMMON: Axes = {
    "width": [1, 2, 3, 4, 5, 6, 7, 8],
    "dtype": ["bfloat16", "float16", "float32"],
    "weights": ["same", "same", "float32"],
    "bias": [True, True, False],
    "silu": [True, True, False],
    "megabytes": [0.5, 4, 24, 48, 96],
}
# A (batch, dim, seqlen) tensor lies so in memory. A slice is one of channels of a wider tensor, by pitches that 16 bytes
# divide, if the length or dim is such; a shifted tensor begins one element later, in a tensor that is one element wider.
# `crossed`: the inputs are channel_last, the outputs channel_first.
ROW_LAYOUTS = ["channel_first", "channel_last", "first_slice", "last_slice", "first_shifted", "last_shifted", "crossed"]
ROWS: Axes = {
    **COMMON,
    "layout": ROW_LAYOUTS,
    "dim": [3, 8, 64, 130, 768, 1536, 2048, 4096, 4098, 8192],
    "seqlen": [1, 7, 17, 64, 100, 128, 333, 512, 1021, 2048, 4096, 4098, 16384],
}
PREFILL: Axes = {
    **COMMON,
    "width": [2, 3, 4, 5, 6, 7, 8],
    "layout": ["tokens_last", "slice", "shifted", "channel_first"],
    "states": ["dim_last", "dim_first"],
    "dim": [130, 1024, 2048, 4096, 8192, 8193],
    "mix": ["1", "8", "1-16", "32", "128", "1024", "whole", "ones and long"],
}
DECODE: Axes = {
    **COMMON,
    "width": [2, 3, 4, 5, 6, 7, 8],
    "states": ["dim_last", "dim_first", "dim_last wide", "dim_first wide"],
    "dim": [130, 2048, 4096, 8192],
}
FORMS = {
    "forward": ["plain", "plain", "states", "ids of 8", "ids of 64", "ids of 512"],
    "backward": ["plain", "plain", "states", "ids of 8", "ids of 64", "ids of 512"],
    "prefill": ["new", "in_place", "split"],
    "decode": ["one token", "one token", "three tokens", "tokens by starts", "speculative"],
}
AXES: dict[str, Axes] = {"forward": ROWS, "backward": ROWS, "prefill": PREFILL, "decode": DECODE}


def sample(op: str, count: int, seed: int) -> list[Case]:
    """`count` cases of an op, about as many of each of its forms, and of each form's as many with each value of an axis."""
    order = random.Random(f"{op} {seed}")
    forms = FORMS[op]
    cases: list[Case] = []
    for number, form in enumerate(forms):
        size = (count * (number + 1)) // len(forms) - (count * number) // len(forms)
        columns = {}
        for axis, values in AXES[op].items():
            repeated = (values * (size // len(values) + 1))[: size - size % len(values)] + order.sample(
                values, size % len(values)
            )
            columns[axis] = order.sample(repeated, size)
        cases += [{"op": op, "form": form, **{axis: column[i] for axis, column in columns.items()}} for i in range(size)]
    return cases


@dataclasses.dataclass
class Problem:
    """A case on buffers of its own."""

    call: Callable[[], object]
    bytes_moved: Callable[[], int]  # of the sectors that the call must touch
    operations: float  # of a processor's lanes that the formula needs, at least
    check: Callable[[], str | None]
    """This calls once, compares some channels and rows of the result with the reference, and says what is wrong,
    if anything.
    """
    text: str


def build(case: Case, device: torch.device) -> Problem:
    return {"forward": _rows, "backward": _rows, "prefill": _prefill, "decode": _decode}[case["op"]](case, device)


def sectors(tensor: Tensor | None) -> int:
    """The bytes of the sectors in which a tensor has elements."""
    if tensor is None or tensor.numel() == 0:
        return 0
    size = tensor.element_size()
    dims = sorted((d for d in range(tensor.dim()) if tensor.shape[d] > 1), key=tensor.stride)
    run = 1  # elements that follow each other
    while dims and tensor.stride(dims[0]) == run:
        run *= tensor.shape[dims.pop(0)]
    device = tensor.device
    starts = torch.tensor([tensor.data_ptr()], device=device)
    repeated = 1
    for d in reversed(dims):
        if len(starts) * tensor.shape[d] > 1 << 22:  # the outermost ones are much alike
            repeated *= len(starts)
            starts = starts[:1]
        starts = (starts[:, None] + torch.arange(tensor.shape[d], device=device) * tensor.stride(d) * size).flatten()
    starts = starts.sort().values
    first, last = starts // SECTOR, (starts + run * size - 1) // SECTOR
    new = last[1:] - torch.maximum(first[1:], last[:-1] + 1) + 1
    return SECTOR * repeated * int(last[0] - first[0] + 1 + new.clamp(min=0).sum())


def _place(layout: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of ROW_LAYOUTS full of random numbers."""
    batch, dim, seqlen = shape
    make = functools.partial(torch.empty, dtype=dtype, device=device)
    wide = {"slice": 64, "shifted": 1}.get(layout.rpartition("_")[2], 0)
    if layout in ("channel_first", "first_slice"):
        whole = make(batch, dim + wide, seqlen)[:, wide // 2 : wide // 2 + dim]
    elif layout == "first_shifted":
        whole = make(batch, dim, seqlen + 1)[:, :, 1:]
    else:
        begin = {64: 32, 1: 1, 0: 0}[wide]
        whole = make(batch, seqlen, dim + wide)[:, :, begin : begin + dim].mT
    return whole.normal_()


def _parameters(case: Case, dim: int, device: torch.device) -> tuple[torch.dtype, Tensor, Tensor | None]:
    dtype = DTYPES[case["dtype"]]
    of_weights = torch.float32 if case["weights"] == "float32" else dtype
    weight = torch.randn(dim, case["width"], device=device).div_(2).to(of_weights)
    return dtype, weight, torch.randn(dim, device=device).to(of_weights) if case["bias"] else None


def _forward_operations(width: int, silu: bool) -> float:
    """An output's: its taps, two conversions, and of SiLU two products and a sum beside two results of a unit an eighth
    as wide.
    """
    return max(width + 2 + 3 * silu, 16.0 * silu)


def _backward_operations(width: int, silu: bool) -> float:
    """A token's: three times its taps, three conversions, and the derivative of SiLU, the sum for dbias among them."""
    return max(3 * width + 4 + 7 * silu, 16.0 * silu)


# ---- forward, backward -------------------------------------------------------------------------------------------------------


def _rows(case: Case, device: torch.device) -> Problem:
    dim, seqlen, width, silu = case["dim"], case["seqlen"], case["width"], case["silu"]
    backward = case["op"] == "backward"
    dtype, weight, bias = _parameters(case, dim, device)
    batch = max(1, int(case["megabytes"] * 1e6 / (dim * seqlen * dtype.itemsize * (3 if backward else 2))))
    batch = min(batch, (1 << 20) // 16)
    shape = (batch, dim, seqlen)
    read = "channel_last" if case["layout"] == "crossed" else case["layout"]
    written = "channel_first" if case["layout"] == "crossed" or "first" in case["layout"] else "channel_last"
    x, out = _place(read, shape, dtype, device), _place(written, shape, dtype, device)
    form = case["form"]
    ids = None
    if form.startswith("ids"):
        ids = (
            (torch.arange(seqlen, device=device) // int(form.rpartition(" ")[2]))
            .to(torch.int32)
            .expand(batch, seqlen)
            .contiguous()
        )
    initial = final = None
    if form == "states" and width > 1:
        initial, final = (torch.randn(batch, width - 1, dim, device=device, dtype=dtype).mT for _ in range(2))
    tensors: list[Tensor | None] = [x, out, ids, initial, final, weight, bias]

    some_rows, some = slice(0, 3), torch.randperm(dim, device=device)[:4]

    def part(t: Tensor) -> Tensor:
        return t[some_rows][:, some]

    parameters = (weight[some], None if bias is None else bias[some])
    inputs = (*parameters, None if ids is None else ids[some_rows], None if initial is None else part(initial), silu)
    elements = batch * dim * seqlen
    if not backward:

        def forward() -> None:
            if form == "plain":
                torch.ops.hipconv.causal_conv1d_fwd(out, x, weight, bias, silu)
            else:
                torch.ops.hipconv.causal_conv1d_states_fwd(out, final, x, weight, bias, ids, initial, silu)

        def check_forward() -> str | None:
            out.fill_(torch.nan)
            forward()
            wanted, wanted_final = reference_training.causal_conv1d(part(x), *inputs)
            if final is not None and not torch.equal(part(final), wanted_final):
                return "the final states are wrong"
            return mismatch(part(out), wanted, may_differ=0.01)

        return Problem(
            forward,
            lambda: sum(map(sectors, tensors)),
            elements * _forward_operations(width, silu),
            check_forward,
            f"{batch}x{dim}x{seqlen}",
        )

    dout = _place(written if case["layout"] == "crossed" else read, shape, dtype, device)
    options = {"seq_idx": ids, "initial_states": initial, "dfinal_states": final, "return_dinitial_states": initial is not None}

    def run() -> tuple[Tensor, ...]:
        return torch.ops.hipconv.causal_conv1d_bwd_out(out, x, weight, bias, dout, use_silu=silu, **options)

    def check_backward() -> str | None:
        out.fill_(torch.nan)
        run()
        row = part(x).double().requires_grad_()
        result, last = reference_training.causal_conv1d(row, *inputs)
        results, gradients = [result], [part(dout).double()]
        if final is not None:
            results, gradients = [result, last], [*gradients, part(final).double()]
        wanted = torch.autograd.grad(results, row, gradients)[0]
        eps = torch.finfo(dtype).eps
        scale = 1 + wanted.abs().max().item() if wanted.numel() else 1.0
        return None if torch.allclose(part(out).double(), wanted, rtol=2.5 * eps, atol=4e-6 * scale) else "dx is wrong"

    moved = [*tensors, dout, initial]
    return Problem(
        run,
        lambda: sum(map(sectors, moved)),
        elements * _backward_operations(width, silu),
        check_backward,
        f"{batch}x{dim}x{seqlen}",
    )


# ---- prefill -----------------------------------------------------------------------------------------------------------------


@functools.cache
def _lengths(mix: str, tokens: int) -> list[int]:
    order = random.Random(1)
    if mix == "whole":
        return [tokens]
    if mix == "ones and long":
        ones = min(192, tokens // 2)
        long = tokens - ones
        return [1] * ones + [length for length in (long // 2, long // 4, long - long // 2 - long // 4) if length]
    lengths: list[int] = []
    left = tokens
    while left:
        lengths.append(min(order.randint(1, 16) if mix == "1-16" else int(mix), left))
        left -= lengths[-1]
    return lengths


def _prefill(case: Case, device: torch.device) -> Problem:
    dim, width, silu = case["dim"], case["width"], case["silu"]
    dtype, weight, bias = _parameters(case, dim, device)
    tokens = max(1, int(case["megabytes"] * 1e6 / (2 * dim * dtype.itemsize)))
    lengths = _lengths(case["mix"], tokens)
    count = len(lengths)
    starts = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    indices = torch.randperm(2 * count, device=device)[:count].int()
    flags = torch.ones(count, dtype=torch.bool, device=device)

    def place(layout: str) -> Tensor:
        if layout == "channel_first":
            return torch.randn(dim, tokens, device=device, dtype=dtype)
        begin, wide = {"tokens_last": (0, 0), "slice": (64, 128), "shifted": (1, 1)}[layout]
        return torch.randn(tokens, dim + wide, device=device, dtype=dtype)[:, begin : begin + dim].T

    x = place(case["layout"])
    pool = torch.randn(2 * count, width - 1, dim, device=device, dtype=dtype).mT
    if case["states"] == "dim_first":
        pool = pool.contiguous()
    out = x if case["form"] == "in_place" else place("channel_first" if case["layout"] == "channel_first" else "tokens_last")
    sizes = (dim // 4, dim // 4, dim - 2 * (dim // 4))
    q, k, v = (torch.empty(tokens, size, device=device, dtype=dtype) for size in sizes)

    def run() -> None:
        if case["form"] == "split":
            serving.causal_conv1d_split_qkv(
                x, weight, bias, pool, starts, sizes[0], sizes[2], indices, flags, "silu" if silu else None, out=(q, k, v)
            )
        else:
            serving.causal_conv1d_fn(x, weight, bias, pool, starts, indices, flags, "silu" if silu else None, out=out)

    def check() -> str | None:
        some = torch.randperm(dim, device=device)[:4]
        # One row of all sequences, each behind its state, has every window: the outputs that the formula gives for the columns
        # of states are of no sequence.
        past = width - 1
        ends = starts[1:].long() + past * torch.arange(1, count + 1, device=device)
        last_columns = ends[:, None] + torch.arange(-past, 0, device=device)
        of_states = last_columns - starts.diff()[:, None]
        is_token = torch.ones(tokens + past * count, dtype=torch.bool, device=device)
        is_token[of_states.flatten()] = False
        row = torch.empty(len(some), len(is_token), dtype=dtype, device=device)
        row[:, is_token] = x[some]
        wanted_pool = pool[:, some]
        row[:, of_states] = wanted_pool[indices].transpose(0, 1)
        wanted = reference.causal_conv1d(row[None], weight[some], None if bias is None else bias[some], silu)[0][:, is_token]
        wanted_pool[indices] = row[:, last_columns].transpose(0, 1)
        run()
        whole = torch.cat((q, k, v), 1).T if case["form"] == "split" else out
        return mismatch(whole[some], wanted, may_differ=0.01) or (
            None if torch.equal(pool[:, some], wanted_pool) else "the states are wrong"
        )

    written = [q, k, v] if case["form"] == "split" else [out]
    moved = [x, *written, weight, bias]
    return Problem(
        run,
        lambda: sum(map(sectors, moved)) + 2 * sectors(pool) * count // len(pool),
        tokens * dim * _forward_operations(width, silu),
        check,
        f"{tokens} tokens, {count} sequences, dim {dim}",
    )


# ---- decode ------------------------------------------------------------------------------------------------------------------


def _decode(case: Case, device: torch.device) -> Problem:
    dim, width, silu, form = case["dim"], case["width"], case["silu"], case["form"]
    dtype, weight, bias = _parameters(case, dim, device)
    tokens = 1 if form == "one token" else 3
    columns = width - 2 + tokens if form == "speculative" else width - 1
    columns += 3 * case["states"].endswith("wide")
    kept = width - 2 + tokens if form == "speculative" else width - 1  # of the columns that a call reads and writes
    batch = max(1, int(case["megabytes"] * 1e6 / (dim * dtype.itemsize * (2 * tokens + 2 * kept))))
    by_starts = form in ("tokens by starts", "speculative")
    x = torch.randn(batch * tokens, dim, device=device, dtype=dtype)
    if not by_starts:
        x = x.view(batch, tokens, dim).mT
    pool = torch.randn(2 * batch, columns, dim, device=device, dtype=dtype).mT
    if case["states"].startswith("dim_first"):
        pool = pool.contiguous()
    out = torch.empty_like(x)
    indices = torch.randperm(2 * batch, device=device)[:batch].int()
    options: dict[str, Any] = {"conv_state_indices": indices}
    if by_starts:
        options["query_start_loc"] = torch.arange(0, batch * tokens + 1, tokens, device=device, dtype=torch.int32)
    if form == "speculative":
        options["num_accepted_tokens"] = torch.randint(1, tokens + 1, (batch,), device=device, dtype=torch.int32)

    def run() -> None:
        decode.causal_conv1d_update(x, pool, weight, bias, "silu" if silu else None, out=out, **options)

    def check() -> str | None:
        some, past = torch.randperm(dim, device=device)[:4], width - 1
        new = x[:, some].view(batch, tokens, -1).mT if by_starts else x[:, some]
        wanted_pool = pool[:, some]
        accepted = options.get("num_accepted_tokens", torch.ones_like(indices)).long()
        columns_read = accepted[:, None] - 1 + torch.arange(past, device=device)
        window = wanted_pool[indices].gather(2, columns_read[:, None].expand(-1, len(some), -1))
        rows = torch.cat([window, new], 2)
        wanted = reference.causal_conv1d(rows, weight[some], None if bias is None else bias[some], silu)[..., past:]
        wanted_pool[indices, :, :kept] = rows[..., rows.shape[2] - kept :]
        run()
        found = out[:, some].view(batch, tokens, -1).mT if by_starts else out[:, some]
        return mismatch(found, wanted, may_differ=0.01) or (
            None if torch.equal(pool[:, some], wanted_pool) else "the states are wrong"
        )

    def moved() -> int:
        return sum(map(sectors, (x, out, weight, bias))) + 2 * sectors(pool[:, :, columns - kept :]) * batch // len(pool)

    return Problem(run, moved, batch * tokens * dim * _forward_operations(width, silu), check, f"{batch} rows, dim {dim}")
