"""conv2d's `fma_direct`: groups of few channels and any number of filters, every stride, dilation and padding, with small
integers, between pages of NaN.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from conv2d.cases import (
    Case,
    assert_activations,
    assert_nothing_beside_is_touched,
    assert_sums_are_exact,
    depthwise,
    in_both_layouts,
    of_integers,
)
from support.backends import WAYS, environment
from support.observe import launches_of
import hipconv
from hipconv.ops.conv2d import fma_direct_tiling
from hipconv.ops.conv2d.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")


CASES = [
    # Four filters see one channel: of a group, of several channels, of several groups in a block.
    depthwise(3, 9, 21, 3, 3, 1, 4, N=2),
    Case(2, 12, 11, 13, 24, 3, 3, padding=1, groups=3),
    Case(1, 24, 20, 9, 16, 5, 5, padding=2, groups=4, stride=(2, 2)),
    Case(2, 17, 7, 10, 8, 1, 1),
    Case(1, 96, 12, 12, 96, 1, 1, groups=24),
    # Each sees its own: vectors of channels, pairs, single ones; more channels than a block's filters see.
    depthwise(40, 14, 17, 3, 3, 1, N=2),
    depthwise(130, 10, 12, 5, 5, 2),
    depthwise(37, 9, 9, 4, 6, (1, 2, 0, 3)),
    # They see channels of several groups.
    depthwise(10, 13, 12, 3, 5, (1, 1, 2, 2), 3, N=2),
    Case(2, 18, 9, 12, 18, 3, 3, padding=1, groups=3),
    Case(1, 20, 8, 9, 70, 3, 2, padding=(1, 0, 1, 1), groups=10),
    Case(2, 6, 10, 11, 3, 7, 7, padding=3),
    # A window slides down columns: of oblong filters, and of images narrower than it.
    depthwise(24, 30, 6, 7, 1, (3, 3, 0, 0), 2),
    depthwise(16, 40, 7, 3, 3, 1),
    # Grids of dilated calls, some outputs of which there are none of; strides with and without a factor in common.
    depthwise(16, 15, 22, 3, 3, 2, dilation=(2, 2)),
    depthwise(8, 19, 20, 3, 3, (5, 4, 3, 2), 2, dilation=(3, 4), stride=(2, 2)),
    depthwise(12, 21, 24, 2, 3, 0, dilation=(4, 6), stride=(2, 4)),
    depthwise(6, 5, 4, 3, 2, (4, 4, 3, 3), dilation=(4, 7), N=3),
    # Rows between those that filters see, where strides are larger, in one step of a block and in several.
    depthwise(192, 49, 12, 3, 3, 1, stride=(4, 4)),
    depthwise(100, 40, 21, 2, 2, 0, 3, stride=(4, 3)),
    Case(1, 64, 33, 9, 64, 1, 3, padding=(0, 0, 1, 1), groups=16, stride=(3, 2)),
    # Many steps, whose rows of x go round in LDS.
    depthwise(256, 45, 10, 3, 3, 1),
    depthwise(200, 33, 9, 7, 3, (3, 3, 1, 1), 2),
    Case(1, 128, 37, 8, 128, 5, 5, padding=2, groups=32),
]


def test_sums_of_small_integers_are_exact(device: torch.device) -> None:
    assert_sums_are_exact(in_both_layouts(CASES, device), device, "fma_direct")


def test_nothing_beside_tensors_is_read_or_written(device: torch.device) -> None:
    assert_nothing_beside_is_touched(in_both_layouts(CASES, device), device, "fma_direct")


def test_every_activation_and_type(device: torch.device) -> None:
    assert_activations(in_both_layouts(CASES, device), device, "fma_direct")


def test_the_estimate_knows_when_lds_has_room() -> None:
    """The router's rules are those of the host code: for the same calls they find no way to cut them."""
    found = {True: 0, False: 0}
    card = {"simt-wave64": "gfx942", "simt-wave32-shuffled": "sm_90"}
    for way, (channels, taps), filters, layout in itertools.product(
        card, itertools.product((1, 4, 24, 130, 512), (1, 3, 7, 31, 63)), (1, 4, 40), ("nhwc", "nchw")
    ):
        memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        for groups in (2, 8):
            x = torch.empty(1, groups * channels, 70, 70, dtype=torch.bfloat16).to(memory_format=memory)
            weight = torch.empty(groups * filters, channels, taps, taps, dtype=torch.bfloat16)
            with environment(**WAYS[way]):
                serves = hipconv.conv2d_plan(x, weight, groups=groups).serves
            sizes = (1, groups * channels, (70, 70), groups * filters, (taps, taps), (71 - taps, 71 - taps))
            problem = Problem(*sizes, (1, 1), (0, 0, 0, 0), (1, 1), groups, "bfloat16", layout)
            fits = fma_direct_tiling.cycles(problem, 1, card[way]) < float("inf")
            assert fits == ("fma_direct" in serves), (way, problem)
            found[fits] += 1
    assert min(found.values()) > 20, found


def test_which_calls_take_it() -> None:
    """Grouped float32, and several filters a channel; not what other kernels are made for."""

    def planned(case: Case) -> str:
        arguments = case.inputs(torch.device("meta"))
        return hipconv.conv2d_plan(**arguments, target="sm_90", float32_precision="ieee").algorithm

    single, half = torch.float32, torch.bfloat16
    grouped = Case(8, 96, 112, 112, 96, 3, 3, padding=1, groups=24, dtype=single, layout="nhwc")
    several = depthwise(96, 64, 64, 3, 5, (1, 1, 2, 2), 4, N=32, stride=(2, 2), dtype=single, layout="nhwc")
    assert planned(grouped) == planned(several) == "fma_direct"
    for layout, dtype in itertools.product(("nhwc", "nchw"), (single, half)):
        assert planned(depthwise(144, 56, 56, 3, 3, 1, N=32, dtype=dtype, layout=layout)) != "fma_direct"
        assert planned(Case(8, 256, 56, 56, 256, 3, 3, padding=1, dtype=dtype, layout=layout)) != "fma_direct"


def kernels_of(case: Case) -> list[str]:
    arguments = of_integers(case, torch.device("cpu"))
    return launches_of(lambda: hipconv.conv2d(**arguments, algorithm="depthwise"))


@pytest.mark.parametrize("way", ("simt-wave64", "simt-wave32-shuffled"))
def test_depthwise_calls_that_read_no_vectors_run_it(way: str) -> None:
    padded = depthwise(8, 5, 5, 3, 5, 2, padding_mode="reflect")
    with environment(**WAYS[way] | {"HIPCONV_SIMT_ORDER": "none"}):
        for case in (depthwise(8, 9, 9, 3, 5, 1, 2), depthwise(10, 9, 9, 3, 5, 1), padded):
            assert kernels_of(case._replace(layout="nhwc")) == ["fma_direct"], case


def test_what_it_does_not_serve() -> None:
    x, weight = torch.zeros(1, 512, 9, 9), torch.zeros(4, 512, 9, 9)
    with environment(**WAYS["simt-wave32-shuffled"]), pytest.raises(ValueError, match="filters of which four, and what they"):
        hipconv.conv2d(x, weight, algorithm="fma_direct")
