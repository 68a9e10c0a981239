"""Times of the convolutions over the GPUs of a host, beside one GPU's: 1 M tokens x 4096, and the layers of FLUX.2's decoder at
2048 px.

    torchrun --standalone --nproc-per-node 2 op_tests/bench_distributed.py
    torchrun --standalone --nproc-per-node 2 op_tests/bench_distributed.py --backend gloo --tokens 8192 --dim 64 --pixels 64
    # on a CPU

For each case: one device alone, the group, the group without the exchange (each on its own part), and how many times as fast as
one the group is. The exchange's share is what is left between the second and the third.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import functools
import os
import statistics
import time
from typing import Any

import torch
from torch import Tensor
import torch.distributed as dist

from support.cli import Table
import hipconv
from hipconv import distributed

# The decoder's 3x3 convolutions have so many channels, on images whose side is divided by so much.
LAYERS = ((512, 4), (512, 2), (256, 1), (128, 1))


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median, of the slowest rank."""
    times = []
    for _ in range(repeats + 2):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    slowest = torch.tensor(statistics.median(times[2:]), device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def conv2d_calls(
    x: Tensor, filters: Tensor, part: Tensor, rows: list[int], with_sizes: dict[str, Any]
) -> list[Callable[[], object]]:
    """Return the calls of the whole image, of the group, and of a part alone."""
    return [
        lambda: hipconv.conv2d(x, filters, padding=1),
        lambda: distributed.conv2d(part, filters, padding=1, sizes=rows, **with_sizes),
        lambda: hipconv.conv2d(part, filters, padding=1),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"], help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1 << 20, help="(default: %(default)s)")
    parser.add_argument("--dim", type=int, default=4096, help="(default: %(default)s)")
    parser.add_argument("--pixels", type=int, default=2048, help="side of the image (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="(default: %(default)s)")
    options = parser.parse_args()
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.backend == "nccl" else "gloo")
    group, size = dist.group.WORLD, dist.get_world_size()
    table = None
    if dist.get_rank() == 0:
        table = Table([("case", 44), ("one ms", 9), ("group ms", 9), ("parts ms", 9), ("times", 6), ("exchange %", 10)])

    def report(case: str, one: Callable[[], object], split: Callable[[], object], part: Callable[[], object]) -> None:
        alone, together, parts = (milliseconds(call, device, options.repeats) for call in (one, split, part))
        if table is not None:
            share = 100 * max(0.0, together - parts) / together
            table.row(case, f"{alone:.3f}", f"{together:.3f}", f"{parts:.3f}", f"{alone / together:.2f}", f"{share:.1f}")

    with_sizes: dict[str, Any] = {"group": group, "validate": False}
    tokens = options.tokens // size * size
    sizes = [tokens // size] * size
    whole = torch.randn(1, tokens, options.dim, dtype=torch.bfloat16, device=device).mT.requires_grad_()
    weight = torch.randn(options.dim, 4, dtype=torch.bfloat16, device=device, requires_grad=True)
    mine = distributed.shard(whole.detach(), 2, group).requires_grad_()

    def conv1d_one(x, backward):
        out = hipconv.causal_conv1d_fn(x, weight, activation="silu")
        return torch.autograd.grad(out, [x, weight], x.detach()) if backward else out

    def conv1d_split(x, backward):
        out = distributed.causal_conv1d(x, weight, activation="silu", sizes=sizes, **with_sizes)
        return torch.autograd.grad(out, [x, weight], x.detach()) if backward else out

    for backward in (False, True):
        case = f"conv1d {tokens} x {options.dim}, forward{' and backward' if backward else ''}"
        calls = ((conv1d_one, whole), (conv1d_split, mine), (conv1d_one, mine))
        report(case, *(functools.partial(call, x, backward) for call, x in calls))
    del whole, mine
    for channels, part_of_side in LAYERS:
        side = options.pixels // part_of_side // size * size
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        x = torch.randn(1, channels, side, side, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        filters = torch.randn(channels, channels, 3, 3, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        part = distributed.shard(x, 2, group)
        rows = [side // size] * size
        report(f"conv2d {channels} channels, {side} x {side}, 3x3", *conv2d_calls(x, filters, part, rows, with_sizes))
    dist.destroy_process_group()
    return 0
