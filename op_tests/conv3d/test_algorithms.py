"""hipconv.conv3d: a pytest suite, and a command that checks and times any case.

python op_tests/test_conv3d.py --mode edge random
python op_tests/test_conv3d.py --C 96 --T 4 --H 480 --W 832 --K 96 --cached 2 --dtype bfloat16 --layout both --algorithm
implicit_gemm
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import functools
import itertools
from typing import Any

import pytest
import torch

from conv3d.cases import (
    LAYOUTS,
    MODELS,
    Case,
    check_chunks,
    edge_cases,
    laid_out,
    mismatch_conv3d,
    model_layers,
    random_cases,
    reference_of,
    small_enough,
)  # fmt: skip
from support.backends import EVERYTHING, WAYS, backends, device_of, environment, use_backend
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES
from support.timing import microseconds
import hipconv
from hipconv import conv3d_router

MODES = ("edge", "random", "exact", "models")
SIMT_MACS = 200_000  # of a case: what emulated matrix cores do in a fraction of a second

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["cpu", "simt-wave64", "simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# ---- the modes: what is wrong, a line each -----------------------------------------------------------------------------------


def wrong_cases(cases: list[Case], device: torch.device, algorithm: str = "all") -> list[str]:
    """Each case by one algorithm, or by all that serve it, against the reference."""
    wrong = []
    for case in cases:
        arguments = case.inputs(device)
        expected = reference_of(arguments)
        serves = hipconv.conv3d_plan(**arguments).serves
        for name in serves if algorithm == "all" else [algorithm]:
            if case.saves:
                arguments["cache_out"].fill_(torch.nan)
            result = hipconv.conv3d(**arguments, algorithm=name)
            if problem := mismatch_conv3d(result, arguments, expected):
                wrong.append(f"{name} {case}: {problem}")
            told = case.C > 1 and case.T * case.H * case.W > 1 and result.shape[1] > 1 and result.shape[2:].numel() > 1
            if told and not laid_out(result, case.layout):
                wrong.append(f"{name} {case}: strides {result.stride()}")
    return wrong


def wrong_edge_cases(device: torch.device) -> list[str]:
    return wrong_cases(small_enough(edge_cases(EVERYTHING or device.type == "cuda"), device, SIMT_MACS), device)


def wrong_random_cases(device: torch.device) -> list[str]:
    count = 200 if EVERYTHING or device.type == "cuda" else 40
    return wrong_cases(small_enough(random_cases(count), device, SIMT_MACS // 8), device)


def wrong_exact_sums(device: torch.device) -> list[str]:
    """Small integers, whose sums are exact: a tap that is dropped,
    taken twice or taken from another frame shows in every bit.
    """
    wrong = []
    for case in (
        Case(1, 72, 2, 5, 9, 40, (3, 3, 3), padding=(0, 1, 1), time_padding="first", cached=1, has_bias=False),
        Case(1, 16, 4, 17, 8, 130, (3, 1, 2), padding=(1, 0, 1), has_bias=False),
        Case(1, 72, 2, 15, 17, 3, (3, 3, 3), padding=(0, 1, 1), time_padding="first", cached=1, saves=True, has_bias=False),
    ):
        for layout in LAYOUTS:
            arguments = case._replace(layout=layout).inputs(device)
            generator = torch.Generator().manual_seed(3)
            for name in ("x", "weight", "cache"):
                if name in arguments:
                    arguments[name].copy_(torch.randint(-2, 3, arguments[name].shape, generator=generator).to(device))
            sums = reference_of(arguments)[0]
            for name in hipconv.conv3d_plan(**arguments).serves:
                result = hipconv.conv3d(**arguments, algorithm=name)
                if not torch.equal(result, sums.to(case.dtype)):
                    wrong.append(f"{name} {case} {layout}: not exact")
                if case.K < 8:  # the residual may be the result
                    place = torch.randint_like(result, -9, 9)
                    expected = (sums + place).to(case.dtype)
                    if not torch.equal(hipconv.conv3d(**arguments, residual=place, out=place, algorithm=name), expected):
                        wrong.append(f"{name} {case} {layout}: not exact in place")
    return wrong


def wrong_models(device: torch.device) -> list[str]:
    layers = [case for model in MODELS for case, _ in model_layers(model)]
    if device.type == "cuda":
        layers = [case._replace(H=case.H // 8 + 1, W=case.W // 8 + 3) for case in layers]
    return wrong_cases(small_enough(layers, device, SIMT_MACS), device)


CHECKS = {"edge": wrong_edge_cases, "random": wrong_random_cases, "exact": wrong_exact_sums, "models": wrong_models}


@pytest.mark.parametrize("mode", MODES)
def test_results_are_the_references(request: pytest.FixtureRequest, device: torch.device, mode: str) -> None:
    if mode == "edge" and "wave32" in request.node.name and not EVERYTHING:
        pytest.skip("runs with HIPCONV_TEST_ARCHS=all: the other modes have the same kernels in waves of 32 lanes")
    assert CHECKS[mode](device) == []


@pytest.mark.skipif(not EVERYTHING, reason="runs with HIPCONV_TEST_ARCHS=all")
@pytest.mark.parametrize("unit", ["wmma11", "wmma12"])
def test_rdnas_matrix_units_are_exact(unit: str) -> None:
    """The other ways of simt have CDNA's and NVIDIA's."""
    with environment(**(WAYS["simt-wave32-shuffled"] | {"HIPCONV_SIMT_MMA": unit})):
        assert wrong_exact_sums(torch.device("cpu")) == []


# ---- what a call may say -----------------------------------------------------------------------------------------------------


def test_chunks_with_a_cache_are_the_whole_video(device: torch.device) -> None:
    for time_padding, layout in itertools.product(("zeros", "first"), LAYOUTS):
        case = Case(1, 16, 7, 6, 5, 24, (3, 3, 3), padding=(0, 1, 1), time_padding=time_padding, layout=layout)
        arguments = case.inputs(device)
        check_chunks(arguments, [1, 4, 1, 1])


def test_any_strides(device: torch.device) -> None:
    """Views of every kind: reversed axes, gaps, broadcast samples, a cache in another layout than x, an out in neither."""
    generator = torch.Generator().manual_seed(1)

    def view(*shape: int, order: tuple[int, ...], gap: int = 0) -> torch.Tensor:
        sizes = [shape[axis] + gap for axis in order]
        back = [order.index(axis) for axis in range(5)]
        tensor = torch.randn(sizes, generator=generator).to(device, torch.bfloat16).permute(back)
        return tensor[tuple(slice(0, size) for size in shape)]

    orders = list(itertools.permutations(range(5)))
    for number in range(8 if device.type == "cpu" else 40):
        pick = functools.partial(lambda n, k: orders[(n * 37 + k * 53) % 120], number)
        x = view(2, 16, 3, 6, 9, order=pick(0), gap=number % 3)
        weight = view(8, 16, 3, 3, 3, order=pick(1), gap=number % 2) * 0.1
        cache, saved = view(2, 16, 2, 6, 9, order=pick(2), gap=1), view(2, 16, 2, 6, 9, order=pick(3))
        residual, out = view(2, 8, 3, 6, 9, order=pick(4)), view(2, 8, 3, 6, 9, order=pick(5), gap=number % 2)
        if number % 4 == 3:
            x = x[:1].expand(2, -1, -1, -1, -1)
        arguments: dict[str, Any] = {"x": x, "weight": weight, "bias": None, "padding": (0, 1, 1), "time_padding": "first"}
        arguments |= {"cache": cache, "residual": residual, "cache_out": saved, "out": out}
        for name in hipconv.conv3d_plan(**arguments).serves:
            out.fill_(torch.nan)
            hipconv.conv3d(**arguments, algorithm=name)
            assert mismatch_conv3d(out, arguments) is None, f"{name}, {number}"


def test_three_warpgroups_multiply_a_tile() -> None:
    """Where tiles of 384 pixels leave fewer rounds than smaller ones, on the eight units that simt counts."""
    case = Case(1, 40, 8, 24, 16, 96, (2, 1, 3), padding=(0, 0, 1), time_padding="first", has_residual=True, saves=True)
    with environment(**WAYS["simt-wave32-shuffled"]):
        arguments = case.inputs(torch.device("cpu")) | {"algorithm": "warpgroup_gemm"}
        assert hipconv.conv3d_plan(**arguments).form == "warpgroup_gemm_384x96"
        assert mismatch_conv3d(hipconv.conv3d(**arguments), arguments) is None


@pytest.mark.parametrize("device", ["simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])], indirect=True)
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 72, 2, 18, 19, 8, (3, 3, 3), padding=(0, 1, 1), time_padding="first", padding_mode="replicate", cached=1),
        Case(1, 16, 2, 9, 20, 24, (2, 4, 3), padding=(0, 0, 3, 2, 0, 1), padding_mode="replicate", has_residual=True),
        Case(1, 24, 1, 37, 7, 16, (1, 5, 3), padding=(0, 2, 1), padding_mode="reflect"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_edges_of_patches_are_pixels_of_the_frame(case: Case, layout: str, device: torch.device) -> None:
    """Where rows and columns are not padded with zeros, in tiles at each end of a frame and between."""
    arguments = case._replace(layout=layout, saves=True).inputs(device)
    warpgroups = {"warpgroup_gemm", "relaid_warpgroup_gemm"} & set(hipconv.conv3d_plan(**arguments).serves)
    assert device.type != "cpu" or len(warpgroups) == 1 + (layout == "ndhwc")
    for name in warpgroups:
        arguments["cache_out"].fill_(torch.nan)
        assert mismatch_conv3d(hipconv.conv3d(**arguments, algorithm=name), arguments) is None, name


def test_edges_that_a_patch_does_not_have_are_refused() -> None:
    for mode, padding in (("reflect", 2), ("replicate", 3), ("circular", 1)):
        case = Case(
            1, 16, 3, 9, 9, 16, (3, 3, 3), padding=(0, padding, 1), padding_mode=mode, dtype=torch.float16, layout="ndhwc"
        )
        plan = hipconv.conv3d_plan(**case.inputs(torch.device("cpu")), target="sm_90")
        assert not {"warpgroup_gemm", "relaid_warpgroup_gemm"} & set(plan.serves), plan


def test_frames_alone_reach_a_cache_when_there_is_nothing_to_compute(device: torch.device) -> None:
    x, weight = torch.randn(0, 4, 2, 3, 3, device=device), torch.randn(5, 4, 3, 1, 1, device=device)
    saved = torch.empty(0, 4, 2, 3, 3, device=device)
    assert hipconv.conv3d(x, weight, time_padding="zeros", cache_out=saved).shape == (0, 5, 2, 3, 3)
    x, cache = torch.randn(1, 4, 0, 3, 3, device=device), torch.randn(1, 4, 2, 3, 3, device=device)
    saved = torch.full((1, 4, 2, 3, 3), torch.nan, device=device)
    assert hipconv.conv3d(x, weight, time_padding="zeros", cache=cache, cache_out=saved).shape == (1, 5, 0, 3, 3)
    assert torch.equal(saved, cache)


def test_a_model_of_amd_users_never_gets_naive() -> None:
    """The shapes of video decoders are on matrix cores on every card that has them,
    and need no workspace in channels_last_3d.
    """
    for case, _ in model_layers("wan21_vae_720p"):
        for layout, target in itertools.product(
            LAYOUTS, ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_80", "sm_90")
        ):
            arguments: dict[str, Any] = {
                name: value.to("meta") if isinstance(value, torch.Tensor) else value
                for name, value in case._replace(layout=layout, H=8, W=8).inputs(torch.device("cpu")).items()
            }
            plan = hipconv.conv3d_plan(**arguments, target=target)
            assert plan.algorithm != "naive" and (layout == "ncdhw" or plan.workspace == 0), f"{case} on {target}: {plan}"


FEW = {"few_filters", "few_filters_by_warpgroups"}


def test_few_filters_are_few() -> None:
    """Up to 8 filters of 32 taps altogether, and 128 channels, channels last: whatever else serves such a call."""

    def choices(C: int, K: int, kernel: tuple[int, int, int], **more: Any) -> set[str]:
        inputs = Case(1, C, 4, 20, 20, K, kernel, layout="ndhwc")._replace(**more).inputs(torch.device("cpu"))
        inputs = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        return {hipconv.conv3d_plan(**inputs, target=card).algorithm for card in ("gfx90a", "gfx942", "gfx1100", "sm_90")}

    for C, K, kernel in ((96, 3, (3, 3, 3)), (128, 8, (3, 2, 2)), (8, 1, (1, 8, 4))):
        assert choices(C, K, kernel) == FEW
    for C, K, kernel in ((96, 4, (3, 3, 3)), (136, 3, (3, 3, 3)), (12, 3, (3, 3, 3)), (96, 9, (3, 1, 1)), (96, 3, (4, 3, 3))):
        assert not FEW & choices(C, K, kernel)
    for more in ({"stride": (1, 2, 1)}, {"dilation": (1, 1, 2)}, {"layout": "ncdhw"}, {"dtype": torch.float32}, {"groups": 3}):
        assert not FEW & choices(96, 3, (3, 3, 3), **more)


# ---- the command -------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", type=choice_of(*backends()), default=backends()[-1])
    parser.add_argument("--mode", type=list_of(choice_of(*MODES)), nargs="*", default=[])
    parser.add_argument(
        "--algorithm", default="all", help=f"all that serve the case, or one of {', '.join(conv3d_router.METHODS)}"
    )
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[["bfloat16"]])
    parser.add_argument("--layout", type=choice_of(*LAYOUTS, "both"), default="ndhwc")
    for name, default in (
        ("N", 1),
        ("C", 96),
        ("T", 4),
        ("H", 60),
        ("W", 104),
        ("K", 96),
        ("kt", 3),
        ("kh", 3),
        ("kw", 3),
        ("cached", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # the gates are those of true float32
    device = device_of(options.backend)
    with use_backend(options.backend):
        if options.mode:
            wrong = [line for mode in flattened(options.mode) for line in CHECKS[mode](device)]
            print("\n".join(wrong) or f"{', '.join(flattened(options.mode))}: ok")
            return 1 if wrong else 0
        table = Table([("case", 70), ("form", 26), ("us", 10), ("result", 6)])
        failed = False
        for dtype, layout in itertools.product(
            flattened(options.dtype), LAYOUTS if options.layout == "both" else [options.layout]
        ):
            kernel, padding = (options.kt, options.kh, options.kw), (0, options.kh // 2, options.kw // 2)
            case = Case(
                options.N, options.C, options.T, options.H, options.W, options.K, kernel, padding=padding, time_padding="zeros"
            )
            case = case._replace(cached=min(options.cached, case.history), dtype=DTYPES[dtype], layout=layout, saves=True)
            arguments = case.inputs(device)
            expected = reference_of(arguments)
            names = hipconv.conv3d_plan(**arguments).serves if options.algorithm == "all" else [options.algorithm]
            for name in names:
                call = functools.partial(hipconv.conv3d, **arguments, algorithm=name)
                problem = mismatch_conv3d(call(), arguments, expected)
                failed = failed or problem is not None
                form = hipconv.conv3d_plan(**arguments, algorithm=name).form
                table.row(case, form, f"{microseconds(call, device):.1f}", problem or "ok")
    return 1 if failed else 0
