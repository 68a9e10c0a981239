"""Times of the convolutions over the GPUs of a host, beside one GPU's: 1 M tokens x 4096, and the layers of FLUX.2's decoder at
2048 px.

    torchrun --standalone --nproc-per-node 2 op_tests/bench_distributed.py
    torchrun --standalone --nproc-per-node 2 op_tests/bench_distributed.py --backend gloo --tokens 8192 --dim 64 --pixels 64
    # on a CPU

For each case: one device alone, the group, the group without the exchange (each on its own part), how many times as fast as
one the group is, and when the group's call returns on the slowest rank's host. The exchange's share is what is left between the
second and the third. With --trace, what rank 0's card does in one of the group's calls, and when.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import contextlib
import functools
import json
import os
from pathlib import Path
import statistics
import tempfile
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


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """The medians, of the slowest rank: until the result is there, and until the call returns."""
    times = []
    for _ in range(repeats + 2):
        begin_alike(device)
        began = time.perf_counter()
        call()
        returned = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((1e3 * (time.perf_counter() - began), 1e3 * (returned - began)))
    slowest = torch.tensor([statistics.median(of_kind) for of_kind in zip(*times[2:], strict=True)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest[0].item(), slowest[1].item()


def begin_alike(device: torch.device) -> None:
    """Wait until all ranks and their cards are idle."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()


def trace(call: Callable[[], object], device: torch.device) -> None:
    """Print on rank 0 what its card does in one call, and when, in microseconds from the begin of the call on the host, which
    takes longer for it than without the profiler.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(2):  # the first one has the profiler get ready, too
        begin_alike(device)
        with torch.profiler.profile(activities=activities) if dist.get_rank() == 0 else contextlib.nullcontext() as profile:
            with torch.profiler.record_function("call"):
                call()
            if device.type == "cuda":
                torch.cuda.synchronize()
    if profile is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"]
    (host,) = [event for event in events if event["name"] == "call" and event.get("cat") == "user_annotation"]
    table = Table([("on rank 0", 60), ("stream", 6), ("begin us", 9), ("end us", 9)])
    table.row("the call, on the host", "-", "0.0", f"{host['dur']:.1f}")
    on_card = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for event in sorted(on_card, key=lambda event: event["ts"]):
        begin = event["ts"] - host["ts"]
        stream = event.get("args", {}).get("stream", "-")
        table.row(event["name"][:60], stream, f"{begin:.1f}", f"{begin + event['dur']:.1f}")


def conv2d_calls(
    x: Tensor, filters: Tensor, part: Tensor, rows: list[int], with_sizes: dict[str, Any], backward: bool
) -> list[Callable[[], object]]:
    """Return the calls of the whole image, of the group, and of a part alone."""

    def call(image: Tensor, by: Callable[..., Tensor], **options: Any) -> object:
        if not backward:
            return by(image, filters, padding=1, **options)
        wanted = [image.detach().requires_grad_(), filters.detach().requires_grad_()]
        return torch.autograd.grad(by(*wanted, padding=1, **options), wanted, image)

    split = functools.partial(distributed.conv2d, sizes=rows, **with_sizes)
    return [functools.partial(call, image, by) for image, by in ((x, hipconv.conv2d), (part, split), (part, hipconv.conv2d))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"], help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1 << 20, help="(default: %(default)s)")
    parser.add_argument("--dim", type=int, default=4096, help="(default: %(default)s)")
    parser.add_argument("--pixels", type=int, default=2048, help="side of the image (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print what rank 0's card does in a call of the group, too")
    options = parser.parse_args()
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.backend == "nccl" else "gloo")
    group, size = dist.group.WORLD, dist.get_world_size()
    table = None
    if dist.get_rank() == 0:
        columns = [
            ("case", 60),
            ("one ms", 9),
            ("group ms", 9),
            ("parts ms", 9),
            ("times", 6),
            ("exchange %", 10),
            ("host ms", 8),
        ]
        table = Table(columns)

    def report(case: str, one: Callable[[], object], split: Callable[[], object], part: Callable[[], object]) -> None:
        (alone, _), (together, host), (parts, _) = (milliseconds(call, device, options.repeats) for call in (one, split, part))
        if table is not None:
            numbers = [f"{ms:.3f}" for ms in (alone, together, parts)]
            share = 100 * max(0.0, together - parts) / together
            table.row(case, *numbers, f"{alone / together:.2f}", f"{share:.1f}", f"{host:.3f}")
        if options.trace:
            trace(split, device)

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
        for backward in (False, True):
            case = f"conv2d {channels} channels, {side} x {side}, 3x3{', forward and backward' if backward else ''}"
            report(case, *conv2d_calls(x, filters, part, rows, with_sizes, backward))
    dist.destroy_process_group()
    return 0
