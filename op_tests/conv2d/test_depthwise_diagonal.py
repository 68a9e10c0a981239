"""conv2d's `depthwise_diagonal`: channels_last layers of any stride, dilation, padding and number of filters a channel, by
each of its kernels, with small integers, between pages of NaN.
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
    assert_not_finite_stays,
    depthwise,
    mismatch_conv2d,
    of_integers,
    padded_otherwise,
    reference_of,
)
from support.backends import WAYS, environment
import hipconv
from hipconv.ops.conv2d import depthwise_diagonal_tiling
from hipconv.ops.conv2d.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")


CASES = [
    # Three rows of taps: images of less than 16 columns, several of which share a block, and wide ones; one to eight filters a
    # channel, and as many channels as fill no block.
    depthwise(8, 7, 5, 3, 3, 1, N=9),
    depthwise(40, 9, 70, 3, 3, 1, N=2),
    depthwise(72, 6, 13, 2, 4, (1, 0, 2, 1), N=3),
    depthwise(16, 11, 19, 3, 3, 1, 2, N=2),
    depthwise(24, 5, 21, 3, 3, 1, 3),
    depthwise(8, 9, 14, 3, 2, (1, 1, 0, 1), 5, N=2),
    depthwise(8, 6, 9, 3, 3, 1, 8),
    # More rows: of images lower and narrower than the filter, and of some segments.
    depthwise(16, 40, 11, 5, 5, 2, N=3),
    depthwise(16, 3, 4, 5, 6, (4, 4, 5, 5), 4, N=5),
    depthwise(24, 45, 23, 7, 7, 3, N=2),
    depthwise(8, 20, 17, 7, 8, (3, 3, 4, 3), 2),
    depthwise(8, 30, 12, 9, 9, 4, N=2),
    depthwise(8, 14, 15, 11, 11, 5),
    depthwise(8, 12, 30, 1, 12, (0, 0, 6, 5), 3),
    # One or two columns of taps.
    depthwise(24, 33, 10, 7, 1, (3, 3, 0, 0), N=2),
    depthwise(16, 26, 8, 11, 2, (5, 5, 1, 0), 2),
    # Strides, along rows and columns together and apart, with outputs that see rows beside the image alone.
    depthwise(32, 17, 37, 3, 3, 1, stride=(2, 2), N=2),
    depthwise(16, 19, 24, 5, 5, 2, 3, stride=(2, 2)),
    depthwise(8, 23, 26, 7, 7, 3, stride=(2, 1), N=2),
    depthwise(8, 31, 20, 11, 3, (5, 5, 1, 1), stride=(2, 3)),
    depthwise(16, 29, 33, 7, 5, (9, 9, 2, 2), stride=(3, 4)),
    depthwise(8, 26, 25, 8, 9, 4, 2, stride=(3, 2)),
    depthwise(8, 37, 35, 9, 9, 4, stride=(4, 4)),
    # Dilated rows are classes, some of which have a row less; of dilations and strides with a factor in common there are fewer.
    depthwise(16, 22, 19, 3, 3, 2, dilation=(2, 2), N=2),
    depthwise(8, 19, 24, 5, 5, (6, 5, 6, 7), 2, dilation=(3, 3)),
    depthwise(8, 25, 21, 3, 7, (4, 4, 6, 6), dilation=(4, 2), stride=(2, 2)),
    depthwise(16, 24, 16, 5, 3, 2, dilation=(3, 5), stride=(2, 1)),
]


def on_device(device: torch.device) -> Iterator[Case]:
    """Every case, in one or the other type; for a GPU, of so many images that all of it has work."""
    for number, case in enumerate(CASES):
        dtype = (torch.bfloat16, torch.float16)[number % 2]
        yield case._replace(dtype=dtype, layout="nhwc", N=case.N * (32 if device.type == "cuda" else 1))


def test_nothing_beside_tensors_is_read_or_written(nvidia: torch.device) -> None:
    """Sums of small integers are exact, with residuals and paddings of all kinds, of tensors without gaps and with some."""
    for number, original in enumerate(case for case in on_device(nvidia) for _ in range(2)):
        again, of_cases = number % 2, number // 2
        case = original._replace(activation=("none", "relu")[of_cases % 2], has_residual=again == 1, has_bias=of_cases % 5 > 0)
        if again and of_cases % 3:
            case = padded_otherwise(case, of_cases)
        arguments = of_integers(case, nvidia)
        expected = reference_of(arguments).to(case.dtype, memory_format=torch.channels_last)
        assert_exact_beside(case, arguments, expected, "depthwise_diagonal", 8 * (of_cases % 2))


def test_the_same_kernels_serve_blocks_that_stay_on_one_compute_unit(nvidia: torch.device) -> None:
    """Long images, in segments of many steps, whose rows go round in LDS."""
    for number, case in enumerate((depthwise(8, 180, 9, 5, 5, 2, N=8), depthwise(64, 90, 33, 3, 3, 1, 2, N=4))):
        arguments = of_integers(case._replace(dtype=torch.bfloat16, layout="nhwc", has_residual=number == 1), nvidia)
        out = hipconv.conv2d(**arguments, algorithm="depthwise_diagonal")
        assert torch.equal(out, reference_of(arguments).to(out.dtype)), case


def test_every_activation(nvidia: torch.device) -> None:
    cases = list(on_device(nvidia))
    for number, activation in enumerate(ACTIVATIONS):
        arguments = cases[number * 3 % len(cases)]._replace(activation=activation).inputs(nvidia)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise_diagonal"), arguments)
        assert wrong is None, (activation, wrong)


def test_what_is_not_finite_stays_where_it_belongs(nvidia: torch.device) -> None:
    """A diagonal has zeros beside it, and a product of one by an infinity would be NaN."""
    cases = [
        depthwise(8, 12, 20, 3, 3, 1, N=2),
        depthwise(8, 9, 9, 5, 5, 2, 3, N=3, stride=(2, 2)),
        depthwise(16, 14, 12, 6, 6, 2, N=2, padding_mode="reflect"),
        depthwise(8, 13, 11, 3, 3, 2, 8, N=2, dilation=(2, 2)),
    ]
    cases = [case._replace(dtype=torch.bfloat16, layout="nhwc", activation="relu") for case in cases]
    assert_not_finite_stays(cases, nvidia, "depthwise_diagonal")


def test_the_estimate_knows_which_calls_have_a_kernel_and_room_in_lds() -> None:
    """The router's rules are those of the host code: for the same calls they find no way to cut them."""
    found = {True: 0, False: 0}
    taps = ((1, 3), (3, 3), (5, 6), (7, 7), (9, 2), (11, 12), (12, 3))
    with environment(**WAYS["simt-wave32-shuffled"]):
        for kernel, stride, dilation, multiplier in itertools.product(taps, (1, 2, 3, 4), (1, 2, 9, 40), (1, 3, 4)):
            if stride > 2 and dilation == 2:
                continue
            size = 480
            padding = tuple((of - 1) * dilation // 2 for of in kernel)
            out_size = tuple(
                (size + 2 * pad - (of - 1) * dilation - 1) // stride + 1 for of, pad in zip(kernel, padding, strict=True)
            )
            x = torch.empty(1, 32, size, size, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
            weight = torch.empty(32 * multiplier, 1, *kernel, dtype=torch.bfloat16)
            serves = hipconv.conv2d_plan(x, weight, stride=stride, dilation=dilation, padding=padding, groups=32).serves
            top, left = padding
            sizes = (1, 32, (size, size), 32 * multiplier, kernel, (out_size[0], out_size[1]), (stride, stride))
            problem = Problem(*sizes, (top, top, left, left), (dilation, dilation), 32, "bfloat16", "nhwc")
            fits = depthwise_diagonal_tiling.microseconds(problem, 1) is not None
            assert fits == ("depthwise_diagonal" in serves), problem
            found[fits] += 1
    assert min(found.values()) > 20, found


def test_which_calls_take_it() -> None:
    """Several filters a channel, strides and dilations of many taps; not what kernels that are faster are made for."""

    def planned(case: Case) -> str:
        arguments = case._replace(layout="nhwc").inputs(torch.device("meta"))
        return hipconv.conv2d_plan(**arguments, target="sm_90").algorithm

    half = torch.bfloat16
    taken = [
        depthwise(256, 64, 64, 7, 7, 3, N=32, stride=(2, 2), dtype=half),
        depthwise(144, 40, 40, 3, 3, 1, 3, N=32, dtype=half),
        depthwise(160, 56, 56, 5, 5, 4, N=32, dilation=(2, 2), dtype=half),
        depthwise(32, 128, 128, 9, 9, 4, N=32, dtype=half),
        depthwise(128, 112, 112, 9, 9, 4, N=32, stride=(3, 3), dtype=half),
    ]
    assert {planned(case) for case in taken} == {"depthwise_diagonal"}
    others = [
        depthwise(192, 28, 28, 7, 7, 3, N=32, dtype=half),
        depthwise(144, 56, 56, 3, 3, 1, N=32, dtype=half),
        depthwise(144, 56, 56, 3, 3, 1, N=32, stride=(2, 2), dtype=half),
        depthwise(256, 64, 64, 7, 7, 3, N=1, stride=(2, 2), dtype=half),
    ]
    assert "depthwise_diagonal" not in {planned(case) for case in others}
