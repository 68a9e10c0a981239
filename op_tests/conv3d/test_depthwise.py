"""hipconv.conv3d with a group for each channel of x: by vectors of channels, of columns, and by elements.

pytest op_tests/conv3d/test_depthwise.py
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from conv3d.cases import Case, check_chunks, mismatch_conv3d, reference_of
from support.backends import EVERYTHING, WAYS, device_of, environment
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CUBE = (3, 3, 3)


@pytest.fixture(params=["simt-wave64", "simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


def depthwise(N: int, C: int, T: int, H: int, W: int, kernel: tuple[int, int, int], K: int = 0, **more: Any) -> Case:
    return Case(N, C, T, H, W, K or C, kernel, groups=C)._replace(**more)


CASES = {
    "causal, a full cache": depthwise(1, 24, 2, 5, 16, CUBE, padding=(0, 1, 1), time_padding="zeros", cached=2, saves=True),
    "causal, first, half a cache": depthwise(
        2, 8, 3, 4, 24, CUBE, padding=(0, 1, 1), time_padding="first", cached=1, saves=True
    ),
    "an issue's 5x5x5": depthwise(1, 16, 3, 6, 8, (5, 5, 5), padding=2),
    "7x7x7, all of LDS": depthwise(1, 64, 2, 7, 8, (7, 7, 7), padding=3),
    "one tap": depthwise(1, 40, 2, 3, 9, (1, 1, 1)),
    "taps across alone, off the middle": depthwise(1, 16, 2, 3, 16, (1, 1, 4), padding=(0, 0, 0, 0, 0, 3)),
    "stride": depthwise(1, 16, 4, 7, 17, CUBE, padding=1, stride=(1, 2, 2)),
    "stride like dilation": depthwise(1, 16, 4, 9, 19, (2, 3, 4), padding=(1, 2, 3), stride=(2, 1, 2), dilation=(1, 2, 2)),
    "reflected": depthwise(1, 8, 4, 5, 8, CUBE, padding=1, padding_mode="reflect"),
    "circular, wide": depthwise(1, 9, 4, 5, 6, (3, 1, 5), padding=(1, 0, 4), padding_mode="circular"),
    "filters of a channel": depthwise(2, 6, 3, 5, 16, CUBE, K=18, padding=1),
    "nothing is aligned": depthwise(2, 13, 2, 5, 7, (2, 2, 3), padding=(1, 0, 1)),
    "a result that is not a vector": depthwise(1, 8, 2, 4, 8, (1, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_references(device: torch.device, name: str) -> None:
    """In exact integers, and, rounded once, with everything that follows the sum."""
    for number, (dtype, layout) in enumerate(itertools.product(DTYPES, ("ncdhw", "ndhwc"))):
        case = CASES[name]._replace(dtype=dtype, layout=layout)
        arguments = case._replace(has_bias=False).inputs(device)
        generator = torch.Generator().manual_seed(number)
        for tensor in ("x", "weight", "cache"):
            if tensor in arguments:
                arguments[tensor].copy_(torch.randint(-1, 2, arguments[tensor].shape, generator=generator))
        expected, saved = reference_of(arguments)
        assert hipconv.conv3d_plan(**arguments).algorithm == "depthwise"
        out = hipconv.conv3d(**arguments)
        assert torch.equal(out.double(), expected), (dtype, layout)
        assert not case.saves or torch.equal(arguments["cache_out"].double(), saved.double()), (dtype, layout)
        if number % 2 == 0 or device.type == "cuda":
            arguments = case._replace(has_residual=True, activation="silu").inputs(device)
            assert mismatch_conv3d(hipconv.conv3d(**arguments), arguments) is None, (dtype, layout)


def test_which_vectors() -> None:
    def form(case: Case, layout: str, dtype: torch.dtype = torch.bfloat16) -> str:
        inputs = case._replace(layout=layout, dtype=dtype).inputs(torch.device("cpu"))
        inputs = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in inputs.items()}
        plan = hipconv.conv3d_plan(**inputs, target="gfx942")
        assert plan.algorithm == "depthwise" and plan.workspace == 0
        return plan.form

    for dtype in DTYPES:
        assert form(CASES["an issue's 5x5x5"], "ndhwc", dtype) == "depthwise_channels"
        assert form(CASES["an issue's 5x5x5"], "ncdhw", dtype) == "depthwise_columns"
        for name in ("stride", "reflected"):
            assert form(CASES[name], "ndhwc", dtype) == "depthwise_channels"
            assert form(CASES[name], "ncdhw", dtype) == "depthwise_elements"
        for layout in ("ncdhw", "ndhwc"):
            assert form(CASES["nothing is aligned"], layout, dtype) == "depthwise_elements"
    for padding in (1, (1, 1, 2)):  # a result of other rows than x
        wide = depthwise(1, 16, 2, 3, 16, CUBE, padding=padding)
        assert form(wide, "ncdhw") == ("depthwise_columns" if padding == 1 else "depthwise_elements")


def test_nothing_else_is_read_or_written(device: torch.device) -> None:
    """With NaN before, between and behind the rows or pixels of x, and a canary around those of the result."""
    for dtype, name in itertools.product(DTYPES, ("causal, a full cache", "stride", "nothing is aligned")):
        for axis in (1, 4):  # gaps of a vector behind the channels of a pixel, or behind the columns of a row
            case = CASES[name]._replace(dtype=dtype, layout="ndhwc" if axis == 1 else "ncdhw")
            arguments = case.inputs(device)
            for tensor in ("x", "cache", "weight"):
                if tensor in arguments:
                    arguments[tensor] = _with_gaps(arguments[tensor], axis, torch.nan)
            whole = _with_gaps(torch.full((case.N, case.K, *case.out_size), torch.nan, dtype=dtype, device=device), axis, 77.0)
            hipconv.conv3d(**arguments, algorithm="depthwise", out=whole)
            assert mismatch_conv3d(whole, arguments) is None, (dtype, name, axis)
            moved = whole.movedim(axis, -1)
            size = (*moved.shape[:-1], 8)
            behind = moved.as_strided(size, moved.stride(), moved.storage_offset() + moved.shape[-1])
            assert bool((behind == 77).all()), (dtype, name, axis)


def _with_gaps(tensor: Tensor, axis: int, fill: float) -> Tensor:
    """A copy whose axis is dense, with eight elements of `fill` behind each of its rows."""
    moved = tensor.movedim(axis, -1)
    whole = torch.full((*moved.shape[:-1], moved.shape[-1] + 8), fill, dtype=tensor.dtype, device=tensor.device)
    whole[..., : moved.shape[-1]] = moved
    return whole[..., : moved.shape[-1]].movedim(-1, axis)


@pytest.mark.skipif(not EVERYTHING and not torch.cuda.is_available(), reason="runs with HIPCONV_TEST_ARCHS=all")
def test_many_places_a_thread(device: torch.device) -> None:
    """More tiles than a launch has blocks for at once."""
    for layout in ("ncdhw", "ndhwc"):
        case = depthwise(3, 256, 3, 64, 64, (1, 3, 3), padding=(0, 1, 1), dtype=torch.float32, layout=layout)
        arguments = case.inputs(device)
        expected = torch.conv3d(arguments["x"], arguments["weight"], arguments["bias"], padding=(0, 1, 1), groups=256)
        assert torch.allclose(hipconv.conv3d(**arguments), expected, atol=1e-5)


def test_chunks_are_the_whole_video(device: torch.device) -> None:
    for layout, dtype in itertools.product(("ncdhw", "ndhwc"), (torch.float32, torch.bfloat16)):
        case = depthwise(1, 16, 6, 4, 16, CUBE, padding=(0, 1, 1), time_padding="first", layout=layout, dtype=dtype)
        arguments = case.inputs(device)
        check_chunks(arguments, [1, 3, 1, 1])
