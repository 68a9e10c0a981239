"""This measures a card: how many times longer than estimated each algorithm of conv2d takes, by kinds of problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import functools
import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

from ...jit.targets import Target
from . import calls, geometry, router
from .calls import Request
from .forward import conv2d
from .geometry import kind_of
from .problem import Card, Factors, Problem

ROTATED_BYTES = 400 << 20  # of the tensors of calls after one another: several times the largest cache
MOST_CALLS = 20  # of a graph
LONG_US = 20_000.0  # a call that takes so long is timed once


class Layer(NamedTuple):
    batch: int
    channels: int
    size: int  # rows and columns of x
    filters: int
    taps: int = 3  # in each direction; padded by half of them
    stride: int = 1
    groups: int = 1


LAYERS = (
    # dense
    Layer(1, 512, 64, 512), Layer(1, 256, 128, 256), Layer(1, 128, 256, 128), Layer(32, 64, 56, 64),
    Layer(32, 256, 14, 256),
    Layer(1, 64, 56, 64), Layer(1, 256, 14, 256), Layer(1, 512, 7, 512), Layer(1, 128, 56, 128, 3, 2),
    Layer(1, 256, 28, 256),
    # pointwise
    Layer(32, 64, 56, 256, 1), Layer(32, 512, 28, 128, 1), Layer(32, 1024, 14, 256, 1), Layer(1, 256, 128, 512, 1),
    Layer(1, 256, 56, 64, 1), Layer(1, 576, 1, 54, 1), Layer(32, 216, 1, 54, 1), Layer(1, 1024, 14, 256, 1),
    # few channels or filters
    Layer(32, 3, 224, 64, 7, 2), Layer(1, 3, 512, 128), Layer(1, 128, 1024, 3), Layer(32, 16, 112, 32),
    Layer(32, 96, 56, 24, 1),
    Layer(1, 3, 224, 64, 7, 2), Layer(1, 128, 256, 3), Layer(1, 32, 28, 16, 1), Layer(1, 24, 56, 96, 1),
    # groups
    Layer(32, 128, 56, 128, groups=32), Layer(32, 512, 28, 512, groups=32), Layer(32, 384, 14, 384, groups=6),
    Layer(1, 128, 56, 128, groups=32), Layer(1, 512, 14, 512, groups=32), Layer(1, 384, 14, 384, groups=6),
    # a channel a group
    Layer(32, 96, 56, 96, 7, groups=96), Layer(32, 192, 28, 192, groups=192), Layer(32, 144, 56, 144, 3, 2, 144),
    Layer(1, 96, 56, 96, 7, groups=96), Layer(1, 384, 14, 384, groups=384), Layer(1, 240, 28, 240, 5, 2, 240),
)  # fmt: skip
"""The sweep: of each `Problem.kind`, in each dtype and layout, several."""

PRODUCTS = ((torch.bfloat16, "ieee"), (torch.float32, "ieee"), (torch.float32, "tf32"))
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


class Trial(NamedTuple):
    """A call to be timed: one algorithm on one problem."""

    algorithm: str
    problem: Problem
    layer: Layer
    dtype: torch.dtype
    float32_precision: str
    estimated_us: float


class Found(NamedTuple):
    """This is the result of a sweep."""

    factors: Factors
    problems: int
    timed: int
    left_out: int
    """Calls for which the card's memory did not suffice."""
    changed: int
    """Problems for which the factors change the choice."""
    before: float
    """The estimates' choices take so many times as long as the fastest algorithms: the geometric mean of all problems."""
    after: float
    """The same with the factors."""


def tensors_of(layer: Layer, dtype: torch.dtype, layout: str, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias of a call."""
    new = torch.empty if device == "meta" else torch.randn
    shapes = (
        (layer.batch, layer.channels, layer.size, layer.size),
        (layer.filters, layer.channels // layer.groups, layer.taps, layer.taps),
    )
    x, weight = (new(shape, dtype=dtype, device=device).to(memory_format=LAYOUTS[layout]) for shape in shapes)
    return x, weight, new(layer.filters, dtype=dtype, device=device)


def trials(target: Target, card: Card, layers: Sequence[Layer] = LAYERS) -> list[Trial]:
    """All calls of the sweep that `card` serves and estimates, by the kernels of `target`; none is run.

    What has no estimate, as it is taken where nothing else serves, or by name alone, is not among them.
    """
    found: dict[tuple[str, Problem], Trial] = {}
    for dtype, precision in PRODUCTS:
        for layout in LAYOUTS:
            for layer in layers:
                kinds = [kind_of(tensor) for tensor in tensors_of(layer, dtype, layout, "meta")]
                taps, padding = (layer.taps, layer.taps), layer.taps // 2
                o = geometry.options(taps, layer.stride, padding, 1, layer.groups, "zeros", "none")
                request = Request(None, "auto", None, router.WORKSPACE_LIMIT, precision)
                prepared = calls.prepare(target, card, *kinds, None, None, o, request)
                for name, tiles in prepared.allowed:
                    us = router.ALGORITHMS[name].estimate(prepared.problem, card, tiles, router.WORKSPACE_LIMIT).us
                    if math.isfinite(us):
                        trial = Trial(name, prepared.problem, layer, dtype, prepared.problem.float32_precision, us)
                        found.setdefault((name, prepared.problem), trial)
    return list(found.values())


def sweep(to_time: Iterable[Trial], microseconds: Callable[[Trial], float]) -> Found:
    """Time calls, and compare the times with the estimates.

    A factor is the median of measured by estimated time, of one algorithm's calls of one kind.

    Args:
        microseconds: times a call. Where it raises torch.cuda.OutOfMemoryError, the call is left out.

    Raises ValueError for a time that is none, and where nothing was timed.
    """
    times: dict[Problem, dict[str, tuple[float, float]]] = {}
    left_out = 0
    for trial in to_time:
        try:
            us = microseconds(trial)
        except torch.cuda.OutOfMemoryError:
            left_out += 1
            continue
        if not 0 < us < math.inf:
            raise ValueError(f"{trial.algorithm} for {trial.layer}: measured {us} us, expected a positive time")
        times.setdefault(trial.problem, {})[trial.algorithm] = (us, trial.estimated_us)
    if not times:
        raise ValueError("nothing could be timed")
    ratios: dict[str, dict[str, list[float]]] = {}
    for problem, of_problem in times.items():
        for name, (us, estimated) in of_problem.items():
            ratios.setdefault(name, {}).setdefault(problem.kind, []).append(us / estimated)
    factors = Factors(
        {
            name: {kind: float(f"{statistics.median(each):.4g}") for kind, each in sorted(kinds.items())}
            for name, kinds in sorted(ratios.items())
        }
    )
    before, after, changed = [], [], 0
    for problem, of_problem in times.items():
        by_costs = min(of_problem, key=lambda name: of_problem[name][1])
        by_factors = min(of_problem, key=lambda name: of_problem[name][1] * factors.of(name, problem))
        fastest = min(us for us, _ in of_problem.values())
        before.append(of_problem[by_costs][0] / fastest)
        after.append(of_problem[by_factors][0] / fastest)
        changed += by_costs != by_factors
    return Found(
        factors=factors,
        problems=len(times),
        timed=sum(map(len, times.values())),
        left_out=left_out,
        changed=changed,
        before=statistics.geometric_mean(before),
        after=statistics.geometric_mean(after),
    )


# ---- on a GPU ----------------------------------------------------------------------------------------------------------------


def on_the_card(trial: Trial) -> float:
    """Microseconds of a call on the current GPU: the median of replays of a graph of calls on tensors of their own."""
    first = tensors_of(trial.layer, trial.dtype, trial.problem.layout, "cuda")
    out = _call(trial, first)()
    once = _elapsed_us(_call(trial, first, out))  # compiled and packed what was to be
    if once > LONG_US:
        return once
    copies = max(1, min(MOST_CALLS, ROTATED_BYTES // (first[0].nbytes + out.nbytes)))
    each = [
        _call(trial, (first[0].clone(memory_format=torch.preserve_format), *first[1:]), torch.empty_like(out))
        for _ in range(copies)
    ]
    _elapsed_us(each[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in each:
            call()
    graph.replay()
    return statistics.median(_elapsed_us(graph.replay) for _ in range(9)) / copies


def _call(trial: Trial, tensors: tuple[Tensor, Tensor, Tensor], out: Tensor | None = None) -> Callable[[], Tensor]:
    layer = trial.layer
    precision = trial.float32_precision if trial.dtype == torch.float32 else None
    return functools.partial(
        conv2d, *tensors, layer.stride, layer.taps // 2, 1, layer.groups, algorithm=trial.algorithm, out=out,
        float32_precision=precision,
    )  # fmt: skip


def _elapsed_us(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3
