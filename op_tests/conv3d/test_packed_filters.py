"""Filters that calls of conv3d keep in the order of their algorithm, as those of conv2d do."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from conv3d.cases import Case
from support.backends import WAYS, environment
from support.observe import launches_of
import hipconv
from hipconv.ops import filters

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = {
    "few_filters": ("simt-wave64", Case(1, 16, 2, 6, 7, 3, (3, 3, 3), padding=(0, 1, 1), time_padding="zeros", cached=2)),
    "few_filters_by_warpgroups": (
        "simt-wave32-shuffled",
        Case(1, 16, 1, 6, 7, 3, (3, 3, 3), padding=(0, 1, 1), time_padding="first"),
    ),
    "implicit_gemm": ("simt-wave64", Case(1, 16, 2, 6, 7, 24, (3, 3, 3), padding=1, groups=2, saves=True, has_residual=True)),
    "implicit_gemm, odd channels": ("simt-wave64", Case(2, 6, 2, 6, 7, 8, (1, 3, 3), padding=(0, 1, 1), layout="ncdhw")),
    "warpgroup_gemm": ("simt-wave32-shuffled", Case(1, 16, 2, 6, 7, 24, (3, 3, 3), padding=1)),
    "relaid_warpgroup_gemm": ("simt-wave32-shuffled", Case(1, 12, 2, 6, 8, 24, (2, 3, 3), padding=(0, 1, 1), layout="ncdhw")),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_second_call_packs_nothing(name: str) -> None:
    way, case = LAYERS[name]
    algorithm = name.split(",")[0]
    with environment(**WAYS[way]):
        filters.forget()
        arguments = case.inputs(torch.device("cpu")) | {"algorithm": algorithm}
        arguments["weight"] = arguments["weight"].contiguous()
        results: list[Tensor] = []

        def launches(**changes: Any) -> list[str]:
            return launches_of(lambda: results.append(hipconv.conv3d(**arguments | changes)))

        with torch.inference_mode():
            uncounted = arguments["weight"].clone()
        each, first, second = launches(weight=uncounted), launches(), launches()
        plan = hipconv.conv3d_plan(**arguments)
        assert plan.algorithm == algorithm and plan.packed_filters == filters._size > 0, plan
        assert f"packed filters {plan.packed_filters / 1000:.1f} kB, kept" in str(plan)
        assert each == first and len(second) == len(first) - 1 and not any("pack" in kernel for kernel in second)
        assert all(torch.equal(result, results[0]) for result in results)
        arguments["weight"].mul_(0)
        zeros = torch.zeros_like(uncounted)
        assert torch.equal(hipconv.conv3d(**arguments), hipconv.conv3d(**arguments | {"weight": zeros}))
        del zeros
        arguments["weight"] = arguments["weight"].to(memory_format=torch.channels_last_3d)
        gc.collect()
        assert filters._size == 0
        if case.C % 8 == 0:
            launches()
            assert filters._size == 0 and hipconv.conv3d_plan(**arguments).packed_filters == 0
