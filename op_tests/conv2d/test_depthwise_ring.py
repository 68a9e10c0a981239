"""The kernel `ring` of conv2d's algorithm `depthwise`: many outputs of channels_last images, rows of x by way of LDS."""

from __future__ import annotations

from collections.abc import Iterator
import itertools

import pytest
import torch

from conv2d.cases import ACTIVATIONS, Case, depthwise, mismatch_conv2d, of_integers, reference_of, within
from support.backends import EVERYTHING, WAYS, device_of, environment
from support.observe import launches_of
from support.tensors import DTYPES
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["simt-wave64", "simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# Channels that fill no wave, waves of 8 and of 16 columns, rows and columns of outputs that fill no segment and no lane,
# images narrower than a wave, padding on one side alone and wider than a filter, none. simt's one compute unit has enough
# work by them.
CASES = [
    depthwise(C, H * stride, W * stride, taps, taps, taps // 2 if padding is None else padding, N=N, stride=(stride, stride))
    for (taps, stride), (C, H, W, N, padding) in itertools.product(
        ((3, 1), (3, 2), (5, 2)),
        (
            (120, 9, 14, 3, None),
            (120, 7, 7, 4, (2, 1, 0, 3)),
            (64, 8, 16, 4, None),
            (56, 9, 30, 2, None),
            (200, 11, 5, 6, (6, 5, 0, 4)),
            (184, 13, 17, 2, 0),
        ),
    )
]
# On AMD's cards the other layers of float32 stay with the walking kernel.
TYPES = {case: [dtype for dtype in DTYPES.values() if dtype.itemsize * case.stride[0] < 8] for case in CASES}


def of_device(case: Case, device: torch.device, number: int = 0) -> Case:
    """The case in a type that the kernel has on all cards; for a GPU, of so many images that it has work for all of it."""
    types = list(DTYPES.values()) if device.type == "cuda" else TYPES[case]
    return case._replace(dtype=types[number % len(types)], layout="nhwc", N=case.N * (60 if device.type == "cuda" else 1))


def test_sums_of_small_integers_are_exact(device: torch.device) -> None:
    kinds = range(3) if EVERYTHING or device.type == "cuda" else range(2)
    for (number, original), kind in itertools.product(enumerate(CASES), kinds):
        case = of_device(original, device, number + kind)._replace(activation=("none", "relu")[number % 2])
        arguments = of_integers(case, device)
        out = hipconv.conv2d(**arguments, algorithm="depthwise")
        assert torch.equal(out, reference_of(arguments).to(case.dtype)), case


@pytest.mark.parametrize("way", ("simt-wave64", "simt-wave32-shuffled"))
def test_it_takes_calls_of_many_outputs_with_vectors_of_channels(way: str) -> None:
    def kernels(case: Case, **more: object) -> list[str]:
        arguments = of_integers(case._replace(layout="nhwc"), torch.device("cpu")) | more
        return launches_of(lambda: hipconv.conv2d(**arguments, algorithm="depthwise"))

    with environment(**WAYS[way] | {"HIPCONV_SIMT_ORDER": "none"}):
        assert all(kernels(case._replace(dtype=dtype)) == ["ring"] for case in CASES for dtype in TYPES[case])
        case = CASES[0]._replace(dtype=torch.bfloat16)
        assert kernels(case._replace(N=1, H=2)) == ["row"]
        assert kernels(case._replace(C=124, K=124, groups=124)) == ["walk"]  # 8 elements are a vector
        assert kernels(case._replace(has_residual=True)) == ["walk"]
        assert kernels(case, out_dtype=torch.float32) == ["walk"]
        filters = of_integers(case, torch.device("cpu"))["weight"]
        assert kernels(case, weight=filters.mT.contiguous().mT) == ["walk"]


def test_every_activation(device: torch.device) -> None:
    for number, activation in enumerate(ACTIVATIONS):
        case = of_device(CASES[number * 5 % len(CASES)], device, number)._replace(activation=activation)
        arguments = case.inputs(device)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise"), arguments)
        assert wrong is None, (activation, wrong)


def test_nothing_beside_x_is_read_and_nothing_beside_out_written(device: torch.device) -> None:
    for number, original in enumerate(CASES):
        case = of_device(original, device, number)
        arguments = of_integers(case, device)
        expected = reference_of(arguments).to(case.dtype)
        arguments["x"], _ = within(arguments["x"], torch.nan, 16, 8)
        out, buffer = within(torch.full_like(expected, 7.0), 42.0, 16, 8)
        hipconv.conv2d(**arguments, algorithm="depthwise", out=out)
        assert torch.equal(out, expected), case
        out.fill_(42.0)
        assert (buffer == 42.0).all(), case


def test_nan_and_infinity_reach_the_outputs_that_see_them_and_no_others(device: torch.device) -> None:
    for original, odd in itertools.product(CASES[::3], (torch.nan, torch.inf)):
        arguments = of_device(original, device).inputs(device)
        once, x = hipconv.conv2d(**arguments, algorithm="depthwise"), arguments["x"].clone()
        for at in ((0, 0, 0, 0), (0, 2, x.shape[2] - 1, 5), (1, 55, 6, x.shape[3] - 1)):
            x[at] = odd
        out, expected = hipconv.conv2d(**arguments | {"x": x}, algorithm="depthwise"), reference_of(arguments | {"x": x})
        assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf()), (original, odd)
        assert torch.equal(out[expected.isfinite()], once[expected.isfinite()]), (original, odd)


def test_an_image_alone_has_the_same_bits_by_another_kernel(device: torch.device) -> None:
    for number, original in enumerate(CASES):
        arguments = of_device(original, device, number).inputs(device)
        together = hipconv.conv2d(**arguments, algorithm="depthwise")
        assert torch.equal(together, hipconv.conv2d(**arguments, algorithm="depthwise"))
        alone = hipconv.conv2d(**arguments | {"x": arguments["x"][1:2]}, algorithm="depthwise")
        assert torch.equal(alone, together[1:2]), original
