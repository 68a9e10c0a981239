"""conv2d's algorithm `depthwise`: a channel a group, filters of any shape, in both layouts."""

from __future__ import annotations

import itertools

import pytest
import torch

from conv2d.cases import (
    ACTIVATIONS,
    LAYOUTS,
    TIMM_MODELS,
    Case,
    assert_not_finite_stays,
    depthwise,
    kind_of_layer,
    mismatch_conv2d,
    model_cases,
    of_integers,
    reference_of,
    within,
)
from support.backends import EVERYTHING, WAYS, environment
from support.observe import launches_of
from support.tensors import DTYPES
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")


# Filters that stay in registers (3, 5 or 7 square, stride 1 or 2), and all others. Even and odd channels and widths, images
# smaller than a filter, more rows than a segment has, more channels than a block.
SHAPES = [
    *(
        case
        for taps, stride in itertools.product((3, 5, 7), (1, 2))
        for case in (
            depthwise(6, 9, 8, taps, taps, taps // 2, N=2, stride=(stride, stride)),
            depthwise(5, 7, 7, taps, taps, taps // 2, stride=(stride, stride)),
            depthwise(2, 23, 12, taps, taps, (taps // 2, taps // 2, 1, 2), stride=(stride, stride)),
            depthwise(3, 8, 13, taps, taps, 0, multiplier=2, stride=(stride, stride)),
        )
    ),
    depthwise(66, 14, 14, 3, 3, 1),
    depthwise(34, 4, 3, 7, 7, 3, N=3),
    depthwise(1, 5, 6, 3, 3, 9),
    depthwise(4, 6, 40, 5, 5, 2, multiplier=3),
    depthwise(5, 14, 13, 9, 9, 4),
    depthwise(3, 14, 14, 11, 11, 5, stride=(2, 2)),
    depthwise(6, 9, 17, 1, 7, (0, 3)),
    depthwise(6, 17, 9, 7, 1, (3, 0)),
    depthwise(4, 13, 14, 3, 3, 1, stride=(3, 4)),
    depthwise(4, 13, 14, 3, 5, (2, 4), dilation=(2, 3)),
    depthwise(4, 13, 14, 3, 3, 1, stride=(2, 1)),
    depthwise(40, 3, 30, 2, 4, 1, multiplier=2, stride=(1, 2), dilation=(1, 2)),
    depthwise(3, 1, 70, 1, 90, (0, 45)),  # taps pass through LDS in parts
    depthwise(3, 1, 33, 1, 4, (0, 3)),  # a conv1d
    depthwise(8, 7, 35, 3, 3, (2, 6), dilation=(2, 3)),  # vectors of channels, outputs that lie apart
    depthwise(12, 33, 5, 5, 2, 1, stride=(2, 3), dilation=(4, 2)),  # rows and columns exchanged
    depthwise(36, 12, 11, 9, 9, 4, stride=(3, 3)),  # more taps than LDS has room for
    *(depthwise(5, 8, 9, 3, 4, (3, 2, 4, 1), padding_mode=mode) for mode in ("reflect", "replicate", "circular")),
    depthwise(4, 6, 6, 5, 5, 2, padding_mode="reflect"),
]
# Most outputs see nothing beyond the image: kernels of zeros make them, and another one the frame.
FRAMED = [
    depthwise(5, 20, 23, 3, 3, 1, padding_mode="reflect", has_residual=True),
    depthwise(6, 17, 30, 5, 5, (2, 1, 0, 3), multiplier=2, padding_mode="replicate"),
    depthwise(4, 31, 29, 7, 7, 3, stride=(2, 2), padding_mode="circular"),
    depthwise(3, 26, 24, 4, 2, (2, 1, 1, 0), dilation=(2, 3), padding_mode="reflect"),
    depthwise(3, 1, 70, 1, 9, (0, 8), padding_mode="circular", has_residual=True),
    depthwise(4, 25, 28, 3, 3, 0, padding_mode="reflect"),
]


# With one compute unit, as simt has, these are too many outputs for a row of them a thread: threads walk down x.
WALKED = [
    depthwise(6, 29 * stride, 28 * stride, taps, taps, taps // 2, N=6, stride=(stride, stride))
    for taps, stride in itertools.product((3, 5), (1, 2))
]


def variants(shapes: list[Case]) -> list[Case]:
    """With every dtype and layout; in one run of two, each shape has two of the six."""
    kinds = list(itertools.product(DTYPES.values(), LAYOUTS))
    if EVERYTHING or torch.cuda.is_available():
        return [case._replace(dtype=dtype, layout=layout) for case in shapes for dtype, layout in kinds]
    chosen = [(i, kinds[(2 * i + half) % 6]) for i in range(len(shapes)) for half in (0, 1)]
    return [shapes[i]._replace(dtype=dtype, layout=layout) for i, (dtype, layout) in chosen]


def assert_exact(case: Case, device: torch.device, algorithm: str) -> None:
    arguments = of_integers(case, device)
    out = hipconv.conv2d(**arguments, algorithm=algorithm)
    expected = reference_of(arguments)
    assert torch.equal(out, expected.to(case.dtype)), (
        f"{case}: {(out != expected).nonzero()[:4].tolist()} of {tuple(out.shape)}"
    )


def test_sums_of_small_integers_are_exact(device: torch.device) -> None:
    for case in variants(SHAPES + WALKED + FRAMED):
        assert_exact(case, device, "depthwise")


def test_bands_make_the_same_sums(device: torch.device) -> None:
    """The algorithm `depthwise_banded` serves contiguous images. Sums of small integers are exact."""
    for number, case in enumerate([*(case for case in SHAPES + WALKED if case.padding_mode == "zeros"), *FRAMED]):
        case = case._replace(dtype=(torch.bfloat16, torch.float16)[number % 2], layout="nchw")
        assert_exact(case, device, "depthwise_banded")


def test_rolling_sums_are_the_same(device: torch.device) -> None:
    """The algorithm `depthwise_rolling` serves contiguous images, too: rows of even and of odd length."""
    for number, case in enumerate([*(case for case in SHAPES + WALKED if case.padding_mode == "zeros"), *FRAMED]):
        reaches = [(taps - 1) * dilation + 1 for taps, dilation in zip((case.R, case.S), case.dilation, strict=True)]
        if max(reaches) <= 11 and case.stride in ((1, 1), (2, 2)):
            case = case._replace(dtype=(torch.bfloat16, torch.float16)[number % 2], layout="nchw")
            assert_exact(case, device, "depthwise_rolling")


def test_strips_make_the_same_sums(device: torch.device) -> None:
    """The algorithm `depthwise_strips` serves channels_last images of whole vectors of channels."""
    for number, case in enumerate(SHAPES + WALKED + FRAMED):
        has_more = case.padding_mode != "zeros" or case.has_residual
        taps_fit = case.C == case.K and case.stride in ((1, 1), *([] if has_more else [(2, 2)]))
        if taps_fit and max(case.R, case.S) <= 7 and case.dilation == (1, 1):
            dtype = (torch.bfloat16, torch.float16)[number % 2]
            case = case._replace(C=case.C * 8, K=case.K * 8, groups=case.C * 8, dtype=dtype, layout="nhwc")
            assert_exact(case, device, "depthwise_strips")


NOT_FINITE = [
    depthwise(8, 12, 20, 3, 3, 1, N=2, activation="relu"),
    depthwise(8, 9, 9, 5, 5, 2, N=3, stride=(2, 2), activation="relu"),
]


@pytest.mark.parametrize(
    ("algorithm", "layout"), [("depthwise_banded", "nchw"), ("depthwise_rolling", "nchw"), ("depthwise_strips", "nhwc")]
)
def test_bands_keep_what_is_not_finite_where_it_belongs(device: torch.device, algorithm: str, layout: str) -> None:
    """A band has zeros beside the taps, and a product of one by an infinity would be NaN."""
    cases = [case._replace(dtype=torch.bfloat16, layout=layout) for case in NOT_FINITE]
    assert_not_finite_stays(cases, device, algorithm)


def test_float32_as_tf32_keeps_what_is_not_finite_where_it_belongs(nvidia: torch.device) -> None:
    cases = [case._replace(dtype=torch.float32, layout="nchw") for case in NOT_FINITE]
    assert_not_finite_stays(cases, nvidia, "depthwise_rolling", float32_precision="tf32")


def test_float32_that_is_rounded_to_tf32_is_near(nvidia: torch.device) -> None:
    """Every activation, and residuals, by `depthwise_rolling`: within the gates of TF32, and not of float32."""
    original = depthwise(6, 19, 30, 7, 7, padding=3, dtype=torch.float32, layout="nchw")
    for number, activation in enumerate(ACTIVATIONS):
        case = original._replace(W=30 + number % 2, activation=activation, has_residual=number % 2 == 0)
        arguments = case.inputs(nvidia) | {"float32_precision": "tf32"}
        out = hipconv.conv2d(**arguments, algorithm="depthwise_rolling")
        assert mismatch_conv2d(out, arguments) is None, activation
        assert mismatch_conv2d(out, arguments | {"float32_precision": "ieee"}) is not None, activation


def test_which_float32_layers_roll() -> None:
    """Those that may be rounded to TF32; a plan says so. Few taps and small images stay as they are."""

    def planned(case: Case, allowed: str) -> tuple[str, str | None]:
        arguments = case._replace(dtype=torch.float32, layout="nchw").inputs(torch.device("meta"))
        plan = hipconv.conv2d_plan(**arguments, target="sm_90", float32_precision=allowed)
        return plan.algorithm, plan.float32_precision

    for case in (depthwise(128, 40, 40, 9, 9, 4, N=32), depthwise(96, 56, 56, 7, 7, 3, N=32)):
        assert planned(case, "tf32") == ("depthwise_rolling", "tf32")
        assert planned(case, "ieee")[0] != "depthwise_rolling" and planned(case, "ieee")[1] == "ieee"
    for case in (depthwise(1632, 9, 9, 3, 3, 1, N=32), depthwise(480, 14, 14, 3, 3, 1)):
        assert planned(case, "tf32") == ("depthwise", "ieee")


def test_the_estimate_of_float32_knows_every_kernel() -> None:
    """It has a table of the kernels of `depthwise_rolling` for float32, and finds one wherever the host code does."""
    found = {True: 0, False: 0}
    reaches = ((1, 1), (3, 1), (3, 3), (5, 2), (5, 3), (7, 2), (9, 1), (9, 2), (11, 1), (16, 1), (17, 1))
    strides = tuple(itertools.product((1, 2, 3), (1, 2, 3)))
    for rows, (columns, dilation), stride in itertools.product((1, 3, 5, 8, 11), reaches, strides):
        case = depthwise(8, 60, 60, rows, columns, 0, N=4, stride=stride, dilation=(1, dilation), layout="nchw")
        arguments = case._replace(dtype=torch.float32).inputs(torch.device("meta"))
        plan = hipconv.conv2d_plan(**arguments, target="sm_90", float32_precision="tf32")
        found["depthwise_rolling" in plan.serves] += 1
    assert min(found.values()) > 100, found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_outputs_take_a_row_a_thread_and_many_walk(layout: str) -> None:
    def kernels(case: Case) -> list[str]:
        arguments = of_integers(case._replace(layout=layout), torch.device("cpu"))
        return launches_of(lambda: hipconv.conv2d(**arguments, algorithm="depthwise"))

    with environment(**WAYS["simt-wave64"] | {"HIPCONV_SIMT_ORDER": "none"}):
        assert all(kernels(case) == ["walk"] for case in WALKED)
        assert all(kernels(case) == ["row"] for case in SHAPES[:16])  # of 3x3 and 5x5 filters
        others = [case for case in SHAPES[24:] if case.R % 2 == 0 or max(case.dilation) > 1 or case.padding_mode != "zeros"]
        for case in others:
            has_vectors = case.C % 4 == 0 and case.K == case.C and case.padding_mode == "zeros"
            assert kernels(case) == ["any" if layout == "nchw" else "slide" if has_vectors else "fma_direct"], case
        beside = ["fma_direct" if layout == "nhwc" and case.R in (1, 4) else "frame" for case in FRAMED[:5]]
        assert [kernels(case)[-1] for case in FRAMED] == [*beside, kernels(FRAMED[5]._replace(padding_mode="zeros"))[-1]]


def test_what_follows_the_sum_and_every_dtype_of_it(device: torch.device) -> None:
    """All kernels, words of two elements and single ones."""
    shapes = [
        depthwise(4, 6, 6, 3, 3, 1),
        depthwise(3, 5, 7, 5, 5, 2, multiplier=2),
        depthwise(3, 5, 7, 2, 3),
        depthwise(4, 6, 8, 7, 7, 3),
        depthwise(3, 8, 5, 7, 7, 3),
    ]
    combinations = itertools.product(DTYPES.values(), DTYPES.values(), (None, *DTYPES.values()))
    for number, (dtype, out_dtype, residual_dtype) in enumerate(combinations):
        case = shapes[number % 5]._replace(
            dtype=dtype, layout=LAYOUTS[number // 3 % 2], activation="relu", has_residual=residual_dtype is not None
        )
        arguments = of_integers(case, device)
        if residual_dtype is not None:
            arguments["residual"] = arguments["residual"].to(residual_dtype)
        arguments["bias"] = arguments["bias"].to(out_dtype) if number % 4 else None
        out = hipconv.conv2d(**arguments, out_dtype=out_dtype, algorithm="depthwise")
        assert out.dtype == out_dtype and torch.equal(out, reference_of(arguments).to(out_dtype)), (
            case,
            out_dtype,
            residual_dtype,
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_values_and_every_activation(device: torch.device, layout: str) -> None:
    for number, activation in enumerate(ACTIVATIONS):
        case = depthwise(
            6,
            9,
            10,
            *((3, 3), (5, 5), (7, 7), (4, 2))[number % 4],
            padding=1,
            activation=activation,
            has_residual=number % 2 == 0,
        )
        arguments = case._replace(layout=layout, dtype=list(DTYPES.values())[number % 3]).inputs(device)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise"), arguments)
        assert wrong is None, (activation, wrong)


def test_sums_that_roll_are_activated(device: torch.device) -> None:
    for number, activation in enumerate(ACTIVATIONS):
        case = depthwise(6, 9, 10 + number % 2, 3, 3, padding=1, activation=activation, layout="nchw")
        arguments = case._replace(dtype=(torch.bfloat16, torch.float16)[number % 2]).inputs(device)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise_rolling"), arguments)
        assert wrong is None, (activation, wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_beside_x_is_read_and_nothing_beside_out_written(device: torch.device, layout: str) -> None:
    """At addresses and strides that let two elements be read at once, and at others."""
    kinds = itertools.product(((3, 1), (3, 2), (5, 1), (7, 1), (7, 2), (4, 1)), ((16, 2), (1, 2), (2, 1)))
    for number, ((taps, stride), (offset, gap)) in enumerate(kinds):
        case = depthwise(6, 9, 8, taps, taps, taps // 2, N=2, stride=(stride, stride), layout=layout)
        arguments = of_integers(case._replace(dtype=list(DTYPES.values())[number % 3]), device)
        expected = reference_of(arguments).to(arguments["x"].dtype)
        arguments["x"], _ = within(arguments["x"], torch.nan, offset, gap)
        out, buffer = within(torch.empty_like(hipconv.conv2d(**arguments, algorithm="depthwise")).fill_(7.0), 42.0, offset, gap)
        hipconv.conv2d(**arguments, algorithm="depthwise", out=out)
        assert torch.equal(out, expected), (taps, stride, offset, gap)
        out.fill_(42.0)
        assert (buffer == 42.0).all(), (taps, stride, offset, gap)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity_reach_the_outputs_that_see_them_and_no_others(device: torch.device, layout: str) -> None:
    for (taps, stride), dtype in zip(
        ((3, 1), (3, 2), (5, 1), (7, 1), (6, 1)), (*DTYPES.values(), *DTYPES.values()), strict=False
    ):
        arguments = depthwise(4, 9, 12, taps, taps, 2, stride=(stride, stride), dtype=dtype, layout=layout).inputs(device)
        once = hipconv.conv2d(**arguments, algorithm="depthwise")
        for odd in (torch.nan, torch.inf):
            for at in ((0, 0, 0, 0), (0, 2, 4, 11), (0, 3, 8, 5)):
                x = arguments["x"].clone()
                x[at] = odd
                out, expected = (
                    hipconv.conv2d(**arguments | {"x": x}, algorithm="depthwise"),
                    reference_of(arguments | {"x": x}),
                )
                assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf()), (
                    taps,
                    odd,
                    at,
                )
                assert torch.equal(out[expected.isfinite()], once[expected.isfinite()]), (taps, odd, at)


def test_calls_and_images_do_not_depend_on_each_other(device: torch.device) -> None:
    arguments = depthwise(10, 12, 14, 5, 5, 2, N=3, layout="nhwc").inputs(device)
    together = hipconv.conv2d(**arguments, algorithm="depthwise")
    assert torch.equal(together, hipconv.conv2d(**arguments, algorithm="depthwise"))
    for n in range(3):
        alone = hipconv.conv2d(**arguments | {"x": arguments["x"][n : n + 1]}, algorithm="depthwise")
        assert torch.equal(alone, together[n : n + 1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_depthwise_layer_of_the_models(layout: str) -> None:
    cases = dict.fromkeys(case for model in TIMM_MODELS for case in model_cases(model) if kind_of_layer(case) == "depthwise")
    for case, N in itertools.product(cases, (1, 3)):
        arguments = case._replace(N=N, layout=layout).inputs(torch.device("cuda"))
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm="depthwise"), arguments)
        assert wrong is None, (case, wrong)


# ---- the choice --------------------------------------------------------------------------------------------------------------


def test_it_is_chosen_for_every_depthwise_layer_of_the_models() -> None:
    cases = dict.fromkeys(case for model in TIMM_MODELS for case in model_cases(model) if kind_of_layer(case) == "depthwise")
    assert len(cases) > 80
    for number, case in enumerate(cases):
        layout = torch.channels_last if number % 2 else torch.contiguous_format
        dtype = list(DTYPES.values())[number % 3]
        x = torch.empty(32 if number % 5 else 1, case.C, case.H, case.W, dtype=dtype, device="meta").to(memory_format=layout)
        weight = torch.empty(case.K, 1, case.R, case.S, dtype=dtype, device="meta")
        rest = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
        plan = hipconv.conv2d_plan(x, weight, **rest, target=("sm_90", "gfx942", "gfx1201")[number % 3])
        assert plan.algorithm.startswith("depthwise") and plan.workspace == 0, (case, str(plan))


def test_a_call_with_other_groups_is_refused_by_name() -> None:
    with environment(**WAYS["simt-wave64"]):
        x = torch.randn(1, 8, 6, 6)
        with pytest.raises(
            ValueError,
            match=r"^algorithm: got 'depthwise', which serves a group for each channel of x \(groups == in_channels\)",
        ):
            hipconv.conv2d(x, torch.randn(8, 4, 3, 3), groups=2, algorithm="depthwise")
