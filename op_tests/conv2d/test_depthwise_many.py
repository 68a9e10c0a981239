"""The kernels of conv2d's algorithm `depthwise` for many outputs, whose x comes to LDS ahead: `ring` for channels_last images,
`planes` for small contiguous ones whose rows begin anywhere, `columns` for other contiguous ones.
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools

import pytest
import torch

from conv2d.cases import (
    ACTIVATIONS,
    Case,
    assert_exact_beside,
    depthwise,
    mismatch_conv2d,
    of_integers,
    padded_otherwise,
    reference_of,
)
from support.backends import EVERYTHING, WAYS, environment
from support.observe import launches_of
from support.tensors import DTYPES
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")


# Channels that fill no wave, waves of 8 and of 16 columns, rows and columns of outputs that fill no segment and no lane,
# images narrower than a wave, padding on one side alone and wider than a filter, none. simt's one compute unit has enough
# work by them.
RING = [
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
# A last block with fewer planes, one segment and several, outputs of other widths than x.
PLANES = [
    *(
        depthwise(C, H, W, 3, 3, padding, N=N)
        for C, H, W, N, padding in (
            (40, 9, 9, 13, 1),
            (24, 7, 7, 26, 1),
            (10, 19, 19, 12, (2, 1, 0, 3)),
            (16, 25, 5, 20, (4, 3, 5, 4)),
            (12, 9, 23, 16, 0),
        )
    ),
    *(
        depthwise(C, H, W, 3, 3, padding, N=N, stride=(2, 2))
        for C, H, W, N, padding in ((40, 9, 9, 66, 1), (24, 18, 14, 42, (0, 1, 0, 1)), (32, 7, 13, 80, (3, 0, 2, 1)))
    ),
]
# Rows that are loaded by 16, 8 and 4 bytes, channels and rows that fill no block, outputs of other widths than x, tiles of
# columns beside each other, whose windows begin outside the image and inside it; then several filters a channel, in one block
# and across blocks.
COLUMNS = [
    depthwise(C, H, W, taps, taps, padding, multiplier, N=N, stride=(stride, stride))
    for (taps, stride, C, H, W, N, padding), multiplier in (
        ((3, 1, 5, 26, 36, 8, 1), 1),
        ((3, 1, 3, 40, 34, 8, (2, 1, 0, 3)), 1),
        ((3, 1, 7, 33, 27, 9, 0), 1),
        ((3, 1, 2, 20, 530, 3, 1), 1),
        ((3, 2, 6, 48, 52, 8, 1), 1),
        ((3, 2, 3, 41, 75, 9, (3, 0, 2, 1)), 1),
        ((5, 1, 6, 15, 20, 9, 2), 1),
        ((5, 1, 11, 12, 14, 9, (4, 3, 5, 0)), 1),
        ((5, 2, 4, 28, 33, 9, (2, 1, 4, 2)), 1),
        ((7, 1, 5, 12, 16, 5, 3), 1),
        ((7, 1, 6, 11, 10, 7, (6, 5, 1, 3)), 1),
        ((7, 2, 3, 21, 18, 8, (5, 0, 6, 3)), 1),
        ((3, 1, 5, 26, 36, 8, 1), 2),
        ((3, 2, 3, 41, 75, 9, (3, 0, 2, 1)), 3),
        ((5, 1, 2, 15, 20, 9, 2), 7),
    )
]
CASES = [
    *((case, "nhwc", "ring") for case in RING),
    *((case, "nchw", "planes") for case in PLANES),
    *((case, "nchw", "columns") for case in COLUMNS),
]


def types_of(case: Case, kernel: str) -> list[torch.dtype]:
    """The types that the kernel has on all cards: AMD's have too little LDS for other channels_last layers of float32."""
    if kernel == "ring":
        return [dtype for dtype in DTYPES.values() if dtype.itemsize * case.stride[0] < 8]
    has_halves = kernel == "planes" or (case.R == 3 and case.stride[0] == 2 and case.W % 2 == 1)
    return list(DTYPES.values()) if has_halves else [torch.float32]


def on_device(device: torch.device, kinds: int = 1) -> Iterator[Case]:
    """Every case, in so many types that the kernel has on all cards; for a GPU, of so many images that all of it has work."""
    on_gpu = device.type == "cuda"
    for (number, (case, layout, kernel)), kind in itertools.product(enumerate(CASES), range(kinds)):
        types = list(DTYPES.values()) if on_gpu and kernel == "ring" else types_of(case, kernel)
        if kind >= len(types):
            continue
        yield case._replace(dtype=types[(number + kind) % len(types)], layout=layout, N=case.N * (64 if on_gpu else 1))


def test_sums_of_small_integers_are_exact(device: torch.device) -> None:
    for number, original in enumerate(on_device(device, 3 if EVERYTHING or device.type == "cuda" else 2)):
        case = original._replace(activation=("none", "relu")[number % 2])
        arguments = of_integers(case, device)
        out = hipconv.conv2d(**arguments, algorithm="depthwise")
        assert torch.equal(out, reference_of(arguments).to(case.dtype)), case


def test_residuals_and_paddings_are_exact(device: torch.device) -> None:
    """Kernels read a residual as they read x, and find rows and columns beside the image elsewhere in it."""
    for number, original in enumerate(on_device(device)):
        case = original._replace(activation=("relu", "none")[number % 2], has_residual=number % 3 != 1)
        if number % 3 != 0:
            case = padded_otherwise(case, number // 3)
        arguments = of_integers(case, device)
        assert_exact_beside(case, arguments, reference_of(arguments).to(case.dtype), "depthwise", 0)


def kernels_of(case: Case, **more: object) -> list[str]:
    arguments = of_integers(case, torch.device("cpu")) | more
    return launches_of(lambda: hipconv.conv2d(**arguments, algorithm="depthwise"))


@pytest.mark.parametrize("way", ("simt-wave64", "simt-wave32-shuffled"))
def test_they_take_calls_of_many_outputs(way: str) -> None:
    with environment(**WAYS[way] | {"HIPCONV_SIMT_ORDER": "none"}):
        for original, layout, kernel in CASES:
            for dtype in types_of(original, kernel):
                if way == "simt-wave64" and kernel == "planes" and dtype == torch.float32:
                    continue  # where LDS has room for too few planes to give all threads work
                case = original._replace(dtype=dtype, layout=layout)
                assert kernels_of(case) == [kernel], case
        half, single = torch.bfloat16, torch.float32
        for original, layout, dtype in ((RING[0], "nhwc", half), (PLANES[0], "nchw", half), (COLUMNS[0], "nchw", single)):
            case = original._replace(dtype=dtype, layout=layout)
            turned = of_integers(case, torch.device("cpu"))["weight"].mT.contiguous().mT
            assert kernels_of(case._replace(N=1, H=2)) == ["row"]
            assert kernels_of(case._replace(has_residual=True)) == kernels_of(case)
            other = single if dtype == half else half
            apart = case._replace(has_residual=True, dtype=other).inputs(torch.device("cpu"))["residual"]
            assert kernels_of(case, residual=apart) == ["walk"]
            assert kernels_of(case, out_dtype=other) == ["walk"]
            assert kernels_of(case, weight=turned) == ["walk"]
        case = RING[0]._replace(dtype=torch.bfloat16, layout="nhwc")
        assert kernels_of(case._replace(padding_mode="reflect")) == ["ring"]
        assert kernels_of(RING[6]._replace(dtype=torch.bfloat16, layout="nhwc", has_residual=True)) == ["walk"]  # stride 2
        assert kernels_of(PLANES[0]._replace(dtype=half, layout="nchw", padding_mode="reflect")) == ["planes", "frame"]
        assert kernels_of(COLUMNS[0]._replace(dtype=single, layout="nchw", padding_mode="circular")) == ["columns", "frame"]
        assert kernels_of(case._replace(C=124, K=124, groups=124)) == ["walk"]  # 8 elements are a vector
        case = PLANES[0]._replace(dtype=torch.bfloat16, layout="nchw")
        assert kernels_of(case._replace(W=10)) == ["walk"]  # rows of whole words
        assert kernels_of(case._replace(N=16, C=41, K=41, groups=41)) == ["walk"]  # channels are no pairs


def test_every_activation(device: torch.device) -> None:
    cases = list(on_device(device))
    for number, activation in enumerate([*ACTIVATIONS, *ACTIVATIONS]):
        arguments = cases[number * 5 % len(cases)]._replace(activation=activation).inputs(device)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise"), arguments)
        assert wrong is None, (activation, wrong)


def test_nothing_beside_x_is_read_and_nothing_beside_out_written(device: torch.device) -> None:
    """Between the rows of small contiguous images nothing may lie, or `planes` serves none."""
    for case, gap in itertools.product(on_device(device), (0, 8)):
        if gap == 0 and case.layout == "nhwc":
            continue
        arguments = of_integers(case, device)
        assert_exact_beside(case, arguments, reference_of(arguments).to(case.dtype), "depthwise", gap)


def test_nan_and_infinity_reach_the_outputs_that_see_them_and_no_others(device: torch.device) -> None:
    for case, odd in itertools.product(itertools.islice(on_device(device), 0, None, 3), (torch.nan, torch.inf)):
        arguments = case.inputs(device)
        once, x = hipconv.conv2d(**arguments, algorithm="depthwise"), arguments["x"].clone()
        for at in ((0, 0, 0, 0), (0, 2, x.shape[2] - 1, 4), (1, x.shape[1] - 1, 5, x.shape[3] - 1)):
            x[at] = odd
        out, expected = hipconv.conv2d(**arguments | {"x": x}, algorithm="depthwise"), reference_of(arguments | {"x": x})
        assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf()), (case, odd)
        assert torch.equal(out[expected.isfinite()], once[expected.isfinite()]), (case, odd)


def test_an_image_alone_has_the_same_bits_by_another_kernel(device: torch.device) -> None:
    for case in on_device(device):
        arguments = case.inputs(device)
        together = hipconv.conv2d(**arguments, algorithm="depthwise")
        assert torch.equal(together, hipconv.conv2d(**arguments, algorithm="depthwise"))
        alone = hipconv.conv2d(**arguments | {"x": arguments["x"][1:2]}, algorithm="depthwise")
        assert torch.equal(alone, together[1:2]), case
