"""How long a call takes."""

from __future__ import annotations

from collections.abc import Callable
import statistics
import time

import torch


def microseconds(call: Callable[[], object], device: torch.device, budget_s: float = 0.3) -> float:
    """Median time of a call: by graph replay on a GPU, where launches cost more than small kernels; by the clock on the CPU."""
    call()
    if device.type == "cuda":
        return _graph_microseconds(call)
    times: list[float] = []
    while not times or (sum(times) < budget_s and len(times) < 100):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _graph_microseconds(call: Callable[[], object], calls: int = 20, replays: int = 10) -> float:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)
