"""conv2d's `depthwise_tile`: every filter, stride, dilation, padding and layout of depthwise layers, with small integers,
between pages of NaN.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from conv2d.cases import (
    Case,
    assert_activations,
    assert_not_finite_stays,
    assert_nothing_beside_is_touched,
    assert_sums_are_exact,
    depthwise,
    in_both_layouts,
)
from support.backends import WAYS, environment
import hipconv
from hipconv.ops.conv2d import depthwise_tile_tiling
from hipconv.ops.conv2d.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")


CASES = [
    # Planes of several images in a block, and blocks that have fewer; images lower than what a thread makes, and one row more.
    depthwise(5, 7, 6, 3, 3, 1, N=3),
    depthwise(3, 9, 21, 5, 5, 2, N=2),
    depthwise(37, 17, 9, 7, 7, 3),
    # Blocks of some rows and columns of an image.
    depthwise(2, 70, 40, 9, 9, 4),
    depthwise(3, 20, 150, 3, 11, (1, 1, 5, 5)),
    # One to twenty-five rows of taps, which pass by in turns where they are more than eleven.
    depthwise(4, 12, 14, 1, 5, (0, 0, 2, 2)),
    depthwise(4, 14, 12, 2, 1, (1, 0, 0, 0)),
    depthwise(3, 13, 15, 4, 6, (1, 2, 0, 3)),
    depthwise(3, 16, 11, 6, 2, 1),
    depthwise(2, 20, 12, 8, 3, 2),
    depthwise(2, 15, 15, 10, 10, 5),
    depthwise(2, 16, 13, 11, 11, 5),
    depthwise(2, 30, 10, 12, 3, 1),
    depthwise(2, 40, 12, 25, 2, 7),
    # Several filters a channel.
    depthwise(5, 11, 10, 3, 3, 1, 3, N=2),
    depthwise(8, 9, 8, 5, 5, 2, 4),
    # Strides: phases of rows, of which a filter has fewer taps or none, and of columns.
    depthwise(6, 19, 24, 3, 3, 1, stride=(2, 2)),
    depthwise(4, 25, 26, 9, 9, 4, stride=(3, 4), N=2),
    depthwise(3, 33, 30, 2, 3, 0, 2, stride=(4, 3)),
    depthwise(3, 21, 22, 7, 5, 2, stride=(1, 2)),
    depthwise(3, 22, 21, 5, 1, (2, 2, 0, 0), stride=(2, 5)),
    # Dilation: rows of a class, of which some have one less, and columns that are phases apart; both together.
    depthwise(4, 22, 19, 3, 3, 2, dilation=(2, 2)),
    depthwise(3, 25, 21, 5, 3, (8, 8, 3, 3), dilation=(4, 3), N=2),
    depthwise(3, 29, 24, 3, 3, (3, 2, 3, 2), 2, dilation=(3, 2), stride=(2, 4)),
    depthwise(3, 27, 23, 4, 3, 4, dilation=(4, 3), stride=(6, 2)),
    depthwise(3, 26, 25, 1, 4, (0, 0, 4, 4), dilation=(3, 3), stride=(3, 2)),
    depthwise(2, 5, 4, 3, 2, (4, 4, 3, 3), dilation=(4, 7), N=3),
]


def test_sums_of_small_integers_are_exact(device: torch.device) -> None:
    assert_sums_are_exact(in_both_layouts(CASES, device), device, "depthwise_tile")


def test_nothing_beside_tensors_is_read_or_written(device: torch.device) -> None:
    assert_nothing_beside_is_touched(in_both_layouts(CASES, device), device, "depthwise_tile")


def test_every_activation_and_type(device: torch.device) -> None:
    assert_activations(in_both_layouts(CASES, device), device, "depthwise_tile")


def test_what_is_not_finite_stays_where_it_belongs(device: torch.device) -> None:
    cases = (depthwise(4, 12, 20, 3, 3, 1, N=2), depthwise(3, 13, 11, 3, 3, 2, 2, dilation=(2, 2)))
    assert_not_finite_stays(in_both_layouts(cases, device), device, "depthwise_tile")


def test_the_estimate_knows_when_lds_has_room() -> None:
    """The router's rules are those of the host code: for the same calls they find no way to cut them."""
    found = {True: 0, False: 0}
    card = {"simt-wave64": "gfx942", "simt-wave32-shuffled": "sm_90"}
    for way, taps, spread, layout in itertools.product(
        card, ((1, 1), (7, 7), (31, 5), (63, 63), (90, 90)), ((1, 1), (1, 3), (4, 1), (30, 1), (40, 3)), ("nhwc", "nchw")
    ):
        stride, dilation = spread
        x = torch.empty(1, 8, 300, 300, dtype=torch.bfloat16)
        x = x.to(memory_format=torch.channels_last) if layout == "nhwc" else x
        out_size = tuple((300 - (of - 1) * dilation - 1) // stride + 1 for of in taps)
        with environment(**WAYS[way]):
            weight = torch.empty(16, 1, *taps, dtype=torch.bfloat16)
            serves = hipconv.conv2d_plan(x, weight, groups=8, stride=stride, dilation=dilation).serves
        sizes = (1, 8, (300, 300), 16, taps, (out_size[0], out_size[1]), (stride, stride))
        problem = Problem(*sizes, (0, 0, 0, 0), (dilation, dilation), 8, "bfloat16", layout)
        fits = depthwise_tile_tiling.cycles(problem, 1, card[way]) < float("inf")
        assert fits == ("depthwise_tile" in serves), (way, problem)
        found[fits] += 1
    assert min(found.values()) > 20, found


def test_which_calls_take_it() -> None:
    """Large filters in float32, strides and dilations of these, several filters a channel; not what others are made for."""

    def planned(case: Case, target: str = "sm_90") -> str:
        arguments = case.inputs(torch.device("meta"))
        return hipconv.conv2d_plan(**arguments, target=target, float32_precision="ieee").algorithm

    single, half = torch.float32, torch.bfloat16
    taken = [
        depthwise(128, 40, 40, 9, 9, 4, N=32, dtype=single, layout="nchw"),
        depthwise(1280, 20, 20, 9, 9, 4, 3, N=32, stride=(3, 3), dtype=single, layout="nchw"),
        depthwise(768, 20, 20, 7, 7, 3, N=32, stride=(3, 3), padding_mode="replicate", dtype=single, layout="nhwc"),
        depthwise(672, 80, 13, 7, 7, 3, N=32, padding_mode="reflect", dtype=half, layout="nchw"),
    ]
    assert {planned(case) for case in taken} == {"depthwise_tile"}
    assert planned(taken[0], "gfx942") == "depthwise_tile"
    for layout, dtype, target in itertools.product(("nhwc", "nchw"), (single, half), ("sm_90", "gfx942")):
        assert planned(depthwise(144, 56, 56, 3, 3, 1, N=32, dtype=dtype, layout=layout), target) != "depthwise_tile"
        few = depthwise(96, 56, 56, 5, 5, 2, N=32, stride=(2, 2), dtype=dtype, layout=layout)
        assert planned(few, target) != "depthwise_tile"


def test_what_it_does_not_serve() -> None:
    with environment(**WAYS["simt-wave32-shuffled"]):
        with pytest.raises(ValueError, match="room in LDS"):
            hipconv.conv2d(torch.zeros(1, 1, 200, 200), torch.zeros(1, 1, 150, 150), algorithm="depthwise_tile")
        with pytest.raises(ValueError, match="a group for each channel"):
            hipconv.conv2d(torch.zeros(1, 2, 9, 9), torch.zeros(2, 2, 3, 3), algorithm="depthwise_tile")
