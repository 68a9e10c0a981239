"""Time that calls take on the host before they return, on a few numbers, beside F.silu.

    python op_tests/bench_host.py
    python op_tests/bench_host.py --calls 10000 --json host.json

The calls take turns, so that what slows the machine slows all of them, and a queue is never full: every few rounds the device
is waited for. What is given is the median, and its ratio to that of F.silu.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import statistics
import time

import torch
import torch.nn.functional as F

from benches.measure import heading, origin, parser_for, write_json
from support.backends import device_of
from support.cli import Table, at_least
import hipconv
from hipconv import serving

ROUNDS_AHEAD = 20  # before the device is waited for: a queue holds a thousand launches


def calls_of(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return the calls that are timed, by name; F.silu is the first."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    x, weight, bias, pool = tensor(1, 8, 8), tensor(8, 4), tensor(8), tensor(4, 8, 3)
    out, token, packed = torch.empty_like(x), tensor(1, 8), tensor(8, 8)
    slot = torch.tensor([1], device=device, dtype=torch.int32)
    starts = torch.tensor([0, 8], device=device, dtype=torch.int32)
    fresh = torch.tensor([True], device=device)
    learnt = weight.clone().requires_grad_()
    return {
        "F.silu": lambda: F.silu(x),
        "causal_conv1d_fwd": lambda: hipconv.causal_conv1d_fwd(out, x, weight, bias, True),
        "causal_conv1d": lambda: hipconv.causal_conv1d(x, weight, bias, "silu"),
        "causal_conv1d_fn": lambda: hipconv.causal_conv1d_fn(x, weight, bias, activation="silu"),
        "causal_conv1d_fn, differentiable": lambda: hipconv.causal_conv1d_fn(x, learnt, bias, activation="silu"),
        "serving.causal_conv1d_update": lambda: serving.causal_conv1d_update(
            token, pool, weight, bias, "silu", conv_state_indices=slot
        ),
        "serving.causal_conv1d_fn": lambda: serving.causal_conv1d_fn(packed, weight, bias, pool, starts, slot, fresh, "silu"),
    }


def measure(device: torch.device, rounds: int) -> dict[str, float]:
    """Median microseconds of each call, by name."""
    calls = calls_of(device)
    for call in list(calls.values()) * 20:
        call()
    clock = time.perf_counter_ns
    times: dict[str, list[int]] = {name: [] for name in calls}
    timed = [(call, times[name].append) for name, call in calls.items()]
    for number in range(rounds):
        if device.type == "cuda" and number % ROUNDS_AHEAD == 0:
            torch.cuda.synchronize()
        for call, add in timed:
            begun = clock()
            call()
            add(clock() - begun)
    return {name: statistics.median(found) / 1e3 for name, found in times.items()}


def main() -> int:
    parser, _ = parser_for(__doc__)
    parser.add_argument("--calls", type=at_least(1), default=10_000, help="of each kind; default 10,000")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    device = device_of(options.backend)
    where = origin(device)
    print(f"{heading(where)}; medians of {options.calls} calls")
    times = measure(device, options.calls)
    table = Table([("a call", 34), ("us", 8), ("to F.silu", 9)])
    for name, us in times.items():
        table.row(name, f"{us:.2f}", f"{us / times['F.silu']:.2f}")
    write_json(options.json, {**where, "calls": options.calls, "us": times})
    return 0
