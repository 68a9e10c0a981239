"""hipconv.conv3d multiplies float32 on matrix cores where they have it, rounded to TF32 where torch's settings or the call
allow it, and by FMAs elsewhere: the same convolution with caches, paddings and layouts as in 16 bits.

pytest op_tests/conv3d/test_float32.py
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv3d.cases import LAYOUTS, Case, check_chunks, model_layers, reference_of
from support.backends import EVERYTHING, environment
import hipconv
from hipconv.ops.conv2d import precision

pytestmark = pytest.mark.usefixtures("one_thread")

# In waves of 32 lanes true float32 is FMAs, as it is on RDNA: the other units have the same in nightly runs.
UNITS = {
    "simt-mma_sync": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:3"},
    "simt-mfma": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "shuffled:1"},
}
if EVERYTHING:
    for wave, unit in (("32", "wmma11"), ("32", "wmma12"), ("32", "fma"), ("64", "fma")):
        UNITS[f"simt-wave{wave}-{unit}"] = UNITS["simt-mfma"] | {"HIPCONV_SIMT_WAVE": wave, "HIPCONV_SIMT_MMA": unit}
FORMATS = {"ncdhw": torch.contiguous_format, "ndhwc": torch.channels_last_3d}
GAP = 3  # elements of NaN, or of a canary, behind each row of what a test lays out with gaps


@pytest.fixture(params=[*UNITS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**UNITS.get(request.param, {})):
        yield torch.device("cuda" if request.param == "gpu" else "cpu")


def serving(arguments: dict[str, Any], **options: Any) -> tuple[str, ...]:
    return hipconv.conv3d_plan(**arguments, **options).serves


def with_gaps(tensor: Tensor, layout: str, fill: float, gap: int = GAP) -> Tensor:
    """A copy whose pixels, or rows, lie apart, with `fill` between them, before them and behind them."""
    moved = tensor.movedim(1, -1) if layout == "ndhwc" else tensor
    whole = torch.full((*moved.shape[:-1], moved.shape[-1] + gap), fill, dtype=tensor.dtype, device=tensor.device)
    part = whole[..., : moved.shape[-1]]
    part.copy_(moved)
    return part.movedim(-1, 1) if layout == "ndhwc" else part


def between(part: Tensor, layout: str, gap: int = GAP) -> Tensor:
    """Return what stands between the pixels or rows of such a copy."""
    moved = part.movedim(1, -1) if layout == "ndhwc" else part
    size = (*moved.shape[:-1], gap)
    return moved.as_strided(size, moved.stride(), moved.storage_offset() + moved.shape[-1])


def integers(arguments: dict[str, Any], limits: dict[str, int], keep: int | None = None) -> None:
    """Fill tensors with integers up to these; of the products of an output about `keep` are left."""
    generator = torch.Generator().manual_seed(len(arguments))
    for name, tensor in arguments.items():
        if isinstance(tensor, Tensor) and name != "cache_out":
            limit = limits.get(name, limits["x"])
            tensor.copy_(torch.randint(-limit, limit + 1, tensor.shape, generator=generator))
    if keep is not None:
        weight = arguments["weight"]
        number = torch.arange(weight[0].numel(), device=weight.device).view(weight.shape[1:])
        weight.mul_(number % max(1, weight[0].numel() // keep) == 0)


# ---- exact -------------------------------------------------------------------------------------------------------------------

CUBE = (3, 3, 3)
FIRST: dict[str, Any] = {"padding": (0, 1, 1), "time_padding": "first", "dtype": torch.float32}
SHAPES = {
    "96 filters, a full cache": Case(1, 36, 2, 7, 9, 96, CUBE, **FIRST, cached=2, saves=True),
    "64 filters, half a cache": Case(2, 20, 2, 5, 6, 64, CUBE, **FIRST, cached=1, saves=True, has_residual=True),
    "few filters, no cache": Case(1, 24, 3, 6, 5, 3, CUBE, **FIRST, saves=True),
    "strides, zeros on both sides": Case(1, 8, 5, 9, 14, 40, CUBE, (2, 2, 1), 1, (1, 2, 1), dtype=torch.float32),
    "nothing is aligned": Case(2, 5, 3, 6, 7, 13, (2, 2, 3), padding=(1, 0, 0, 1, 2, 0), dtype=torch.float32),
    "groups, reflected": Case(1, 24, 4, 5, 6, 99, (3, 1, 2), padding=(2, 0, 1), padding_mode="reflect", groups=3)._replace(
        dtype=torch.float32
    ),
    "circular, frames that see padding alone": Case(1, 4, 2, 4, 4, 33, (1, 3, 3), padding=(2, 1, 3), dtype=torch.float32),
}


@pytest.mark.parametrize("name", SHAPES)
def test_sums_are_exact_and_nothing_else_is_read_or_written(device: torch.device, name: str) -> None:
    """Factors of 11 bits in TF32 and of 22 bits in true float32, with NaN between what is read and a canary between what is
    written.
    """
    for layout, asked in itertools.product(LAYOUTS, precision.PRECISIONS):
        case = SHAPES[name]._replace(layout=layout)
        arguments = case.inputs(device)
        if asked == "tf32":
            integers(arguments, {"x": 2047, "weight": 1, "bias": 99, "residual": 99})
        else:
            integers(arguments, {"x": 2**21, "weight": 1, "bias": 99, "residual": 99}, keep=7)
        expected, saved = reference_of(arguments)
        assert torch.equal(expected, expected.float().double()), "the case is exact"
        gap = 4 if layout == "ndhwc" and case.C % 4 == 0 else GAP  # so that vectors are aligned where they can be
        for tensor in ("x", "weight", "cache"):
            if tensor in arguments:
                arguments[tensor] = with_gaps(arguments[tensor], layout, torch.nan, gap)
        out = with_gaps(torch.full_like(expected, torch.nan, dtype=torch.float32), layout, 77.0)
        names = serving(arguments, float32_precision=asked, out=out)
        assert names == ("implicit_gemm", "naive")
        for algorithm in names:
            out.fill_(torch.nan)
            hipconv.conv3d(**arguments, float32_precision=asked, algorithm=algorithm, out=out)
            assert torch.equal(out.double(), expected), (algorithm, layout, asked)
            assert bool((between(out, layout) == 77).all()), (algorithm, layout, asked)
            assert not case.saves or torch.equal(arguments["cache_out"], saved.float()), (algorithm, layout, asked)


def test_rounding_is_to_nearest(device: torch.device) -> None:
    """By bits: up from three quarters of a unit, down from one quarter, and not towards zero."""
    for layout, (value, rounded) in itertools.product(
        LAYOUTS, ((1 + 3 * 2.0**-12, 1 + 2.0**-10), (1 + 2.0**-12, 1.0), (-1 - 3 * 2.0**-12, -1 - 2.0**-10))
    ):
        both = {"x": torch.ones(1, 32, 1, 4, 4, device=device), "weight": torch.ones(8, 32, 1, 1, 1, device=device)}
        ones: dict[str, Any] = {name: tensor.contiguous(memory_format=FORMATS[layout]) for name, tensor in both.items()}
        for name in ones:
            arguments = ones | {name: ones[name] * value}
            plan = hipconv.conv3d_plan(**arguments, float32_precision="tf32")
            out = hipconv.conv3d(**arguments, float32_precision="tf32", algorithm="implicit_gemm")
            expected = 32 * (rounded if plan.float32_precision == "tf32" else value)
            assert bool((out == expected).all()), (layout, value, out.flatten()[0].item() / 32)


# ---- how far off -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "kernel"), [(32, (1, 1, 1)), (147, (1, 1, 1)), (64, (3, 1, 1)), (96, (3, 3, 3))])
def test_errors_of_random_numbers(device: torch.device, channels: int, kernel: tuple[int, int, int]) -> None:
    """True float32 is within twice the error of plain sums in one chain; TF32 has the error of its rounding and no more."""
    case = Case(1, channels, 2, 6, 6, 64, kernel, padding=tuple(taps // 2 for taps in kernel), dtype=torch.float32)
    arguments = case.inputs(device, seed=channels)
    exact = reference_of(arguments)[0]

    def error(algorithm: str, asked: str, given: dict[str, Any] = arguments, of: Tensor = exact) -> float:
        off = hipconv.conv3d(**given, algorithm=algorithm, float32_precision=asked).double() - of
        return (off.square().mean() / of.square().mean()).sqrt().item()

    plain = error("naive", "ieee")
    assert error("implicit_gemm", "ieee") <= 2 * plain and plain < 2e-6
    if hipconv.conv3d_plan(**arguments, float32_precision="tf32").float32_precision == "tf32":
        assert 1.5e-4 < error("implicit_gemm", "tf32") < 4e-4
        held = {name: v.bfloat16().float() if isinstance(v, Tensor) else v for name, v in arguments.items()}
        assert error("implicit_gemm", "tf32", held, reference_of(held)[0]) < 3e-5, "factors that TF32 holds"


def test_chunks_are_the_whole_video(device: torch.device) -> None:
    """In every bit, whatever the precision."""
    for asked, layout in itertools.product(precision.PRECISIONS, LAYOUTS):
        case = Case(1, 12, 6, 5, 6, 40, CUBE, **FIRST, layout=layout, activation="silu")
        arguments = case.inputs(device) | {"float32_precision": asked, "algorithm": "implicit_gemm"}
        check_chunks(arguments, [1, 3, 1, 1])


def test_not_finite_values_stay_where_they_are(device: torch.device) -> None:
    """A NaN or an infinity of x, of the cache or of a filter reaches the outputs that see it, and no other."""
    for layout, asked, (place, odd) in itertools.product(
        LAYOUTS, precision.PRECISIONS, (("x", torch.inf), ("cache", torch.nan), ("weight", -torch.inf), ("weight", torch.nan))
    ):
        tensors = {"x": torch.full((1, 12, 2, 5, 6), 1.25), "cache": torch.full((1, 12, 2, 5, 6), 1.25)}
        tensors["weight"] = torch.full((9, 12, 3, 3, 3), 0.5)
        tensors[place][0, 3, 1, 2, 2] = odd
        arguments: dict[str, Any] = {
            name: t.to(device).contiguous(memory_format=FORMATS[layout]) for name, t in tensors.items()
        }
        frames = torch.cat([arguments["cache"], arguments["x"]], 2)
        padding = (0, 0, 0) if place == "weight" else (0, 1, 1)
        expected = F.conv3d(frames.double(), arguments["weight"].double(), padding=padding).float()
        out = hipconv.conv3d(**arguments, padding=padding, float32_precision=asked, algorithm="implicit_gemm")
        assert torch.allclose(out, expected, rtol=1e-6, equal_nan=True), (layout, asked, place, odd)


def test_results_of_other_types(device: torch.device) -> None:
    """Bias and residual of 16 bits, and a result of them, of float32 sums rounded once."""
    case = Case(1, 20, 2, 5, 6, 40, CUBE, **FIRST, has_residual=True, activation="relu")
    for layout, dtype in itertools.product(LAYOUTS, (torch.bfloat16, torch.float16)):
        arguments = case._replace(layout=layout).inputs(device)
        integers(arguments, {"x": 3, "bias": 9, "residual": 9})
        arguments |= {name: arguments[name].to(dtype) for name in ("bias", "residual")}
        expected = reference_of(arguments)[0].to(dtype)
        for asked in precision.PRECISIONS:
            out = hipconv.conv3d(**arguments, float32_precision=asked, out_dtype=dtype, algorithm="implicit_gemm")
            assert torch.equal(out, expected), (layout, dtype, asked)


# ---- which -------------------------------------------------------------------------------------------------------------------

CARDS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201", "sm_80", "sm_90", "sm_120")


def on_meta(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in arguments.items()}


def test_a_video_decoder_never_gets_naive() -> None:
    """On no card and in no layout; channels_last_3d takes no workspace."""
    for case, _ in model_layers("wan21_vae_720p"):
        for layout, target in itertools.product(LAYOUTS, CARDS):
            inputs = case._replace(layout=layout, H=8, W=8, dtype=torch.float32).inputs(torch.device("cpu"))
            plan = hipconv.conv3d_plan(**on_meta(inputs), target=target)
            assert plan.algorithm == "implicit_gemm" and (layout == "ncdhw" or plan.workspace == 0), f"{target}: {plan}"


def test_tiles_leave_few_filters_empty() -> None:
    for filters, tile in ((3, 32), (32, 32), (33, 64), (64, 64), (96, 96), (128, 64), (192, 96), (384, 96), (512, 64)):
        inputs = Case(1, 32, 2, 16, 16, filters, CUBE, **FIRST).inputs(torch.device("cpu"))
        assert hipconv.conv3d_plan(**on_meta(inputs), target="gfx942").form == f"implicit_gemm_128x{tile}"


def test_plans_name_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(target: str, asked: str | None = None, dtype: torch.dtype = torch.float32) -> str | None:
        inputs = on_meta(Case(1, 96, 4, 60, 104, 96, CUBE, **(FIRST | {"dtype": dtype})).inputs(torch.device("cpu")))
        return hipconv.conv3d_plan(**inputs, target=target, float32_precision=asked).float32_precision

    for arch in CARDS:
        has_tf32 = arch == "gfx942" or arch.startswith("sm_")
        assert planned(arch, "tf32") == ("tf32" if has_tf32 else "ieee") and planned(arch, "ieee") == "ieee", arch
    assert planned("sm_90", "tf32", torch.bfloat16) is None and planned("cpu", "tf32") is None
    for allowed, told in ((True, "tf32"), (False, "ieee")):  # torch's settings, which count on NVIDIA alone
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert planned("sm_90") == told and planned("gfx942") == "ieee"
    inputs = on_meta(Case(1, 8, 4, 6, 6, 8, CUBE, **FIRST).inputs(torch.device("cpu")))
    assert "TF32" in str(hipconv.conv3d_plan(**inputs, target="sm_90", float32_precision="tf32"))


# ---- how it is asked for -----------------------------------------------------------------------------------------------------


def test_operators_graphs_and_layers_take_it(device: torch.device) -> None:
    if not hipconv.conv3d_plan(torch.ones(1, 4, 1, 1, 1, device=device), torch.ones(4, 4, 1, 1, 1, device=device)).serves:
        pytest.skip("torch computes here")
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator).to(device) for shape in ((1, 20, 3, 5, 5), (8, 20, 3, 3, 3)))
    numbers = ([1, 1, 1], [0] * 6, [1, 1, 1], 1)
    results = {asked: hipconv.conv3d(x, weight, float32_precision=asked) for asked in precision.PRECISIONS}
    has_tf32 = hipconv.conv3d_plan(x, weight, float32_precision="tf32").float32_precision == "tf32"
    assert torch.equal(results["tf32"], results["ieee"]) != has_tf32
    for asked, expected in results.items():
        call = (x, weight, None, None, None, *numbers)
        assert torch.equal(torch.ops.hipconv.conv3d(*call, float32_precision=asked), expected)
        out = torch.empty_like(expected)
        torch.ops.hipconv.conv3d_out(out, None, *call, float32_precision=asked)
        assert torch.equal(out, expected)
        compiled = torch.compile(
            lambda a, b, asked=asked: hipconv.conv3d(a, b, float32_precision=asked), fullgraph=True, backend="aot_eager"
        )
        assert torch.equal(compiled(x, weight), expected)
        with_gradient = hipconv.conv3d(x, weight.clone().requires_grad_(), float32_precision=asked)
        assert torch.equal(with_gradient.detach(), expected)
        layer = hipconv.nn.CausalConv3d(20, 8, 3, bias=False, float32_precision=asked, device=device)
        assert f"float32_precision='{asked}'" in repr(layer)
        with torch.no_grad():
            layer.weight.copy_(weight)
            assert torch.equal(layer(x)[:, :, 2:], expected)
            steps = [layer.step(chunk) for chunk in x.split([2, 1], 2)]
            assert torch.equal(torch.cat(steps, 2)[:, :, 2:], expected)


@pytest.mark.parametrize(("wrong", "error"), [("fp32", ValueError), ("", ValueError), (True, TypeError)])
def test_errors_name_the_argument(wrong: Any, error: type[Exception]) -> None:
    x, weight = torch.ones(1, 4, 3, 5, 5), torch.ones(4, 4, 3, 3, 3)
    for call in (
        lambda: hipconv.conv3d(x, weight, float32_precision=wrong),
        lambda: hipconv.conv3d_plan(x, weight, float32_precision=wrong),
        lambda: hipconv.nn.CausalConv3d(4, 4, 3, float32_precision=wrong),
    ):
        with pytest.raises(error, match=r"^float32_precision: got .*, expected 'ieee', 'tf32', or None"):
            call()
