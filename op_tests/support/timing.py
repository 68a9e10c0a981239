"""Times a call: on a GPU by graph replay, because launches cost more than small kernels, and on the CPU by the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import statistics
import time

import torch


def microseconds(call: Callable[[], object], device: torch.device, budget_s: float = 0.3) -> float:
    """Median time of a call."""
    call()
    if device.type == "cuda":
        return statistics.median(_replays([call] * 20, 10))
    times: list[float] = []
    while not times or (sum(times) < budget_s and len(times) < 100):
        times.append(_seconds(call))
    return statistics.median(times) * 1e6


def time_us(calls: list[Callable[[], object]], device: torch.device) -> float:
    """Time of one of these calls, which do the same on different buffers: of the fastest on the CPU,
    the median of replays on a GPU.
    """
    for call in calls[:3]:
        call()
    if device.type == "cpu":
        return min(_seconds(call) for call in calls * 5) * 1e6
    return statistics.median(_replays(calls, 15)[3:])


def in_turn_us(groups: list[list[Callable[[], object]]], device: torch.device, rounds: int = 9) -> list[float]:
    """As `time_us`, of several groups of calls that take turns, so that a machine's bursts slow all of them."""
    for calls in groups:
        for call in calls[:3]:
            call()
    if device.type == "cpu":
        return [
            min(times) * 1e6
            for times in zip(*[[min(map(_seconds, calls)) for calls in groups] for _ in range(rounds)], strict=True)
        ]
    graphs = [_graph(calls) for calls in groups]
    times: list[list[float]] = [[] for _ in groups]
    for _ in range(rounds):
        for number, graph in enumerate(graphs):
            times[number].append(_replay(graph) / len(groups[number]))
    return [statistics.median(of_group[2:]) for of_group in times]


def host_us(call: Callable[[], object], device: torch.device, calls: int = 200, rounds: int = 50) -> float:
    """Time until a call returns: the fastest of many short rounds, of fewer launches than a queue holds,
    on a core that others may want.
    """
    call()
    times = []
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) / calls)
    return min(times) * 1e6


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _replays(calls: Sequence[Callable[[], object]], count: int) -> list[float]:
    """Microseconds of a call in each of `count` replays of a graph of all the calls."""
    graph = _graph(calls)
    return [_replay(graph) / len(calls) for _ in range(count)]


def _graph(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3
