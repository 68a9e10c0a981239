"""conv2d multiplies float32 rounded to TF32 where torch's settings or the call allow it, as true float32 elsewhere,
by any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from support.backends import environment
import hipconv
from hipconv.ops.conv2d import precision
from hipconv.ops.conv2d.router import ALGORITHMS

pytestmark = pytest.mark.usefixtures("one_thread")

UNITS = {
    "simt-mma_sync": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:3"},
    "simt-mfma": {"HIPCONV_BACKEND": "simt", "HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "shuffled:1"},
}
SPLIT = ("split_warpgroup_gemm", "split_implicit_gemm")
PLAIN = [name for name, algorithm in ALGORITHMS.items() if algorithm.plain]  # nothing is rounded to TF32 where it may be
LAYOUTS = {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}


@pytest.fixture(params=[*UNITS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**UNITS.get(request.param, {})):
        yield torch.device("cuda" if request.param == "gpu" else "cpu")


@pytest.fixture
def settings() -> Iterator[None]:
    """Whatever a test does to torch's settings is undone."""
    read, write = getattr(torch._C, "_get_fp32_precision_getter", None), getattr(torch._C, "_set_fp32_precision_setter", None)
    places = (("generic", "all"), ("cuda", "all"), ("cuda", "conv"), ("cuda", "rnn"))
    allowed = torch.backends.cudnn.allow_tf32
    saved = [read(*place) for place in places] if read else []
    yield
    torch.backends.cudnn.allow_tf32 = allowed
    for place, value in zip(places[: len(saved)], saved, strict=True):
        if write:
            write(*place, value)


def serving(x: Tensor, weight: Tensor, **options: Any) -> tuple[str, ...]:
    return hipconv.conv2d_plan(x, weight, **options).serves


def integers(limit: int, shape: tuple[int, ...], device: torch.device, seed: int, layout: str = "nhwc") -> Tensor:
    values = torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed)).float()
    return values.to(device).contiguous(memory_format=LAYOUTS[layout])


# ---- exact -------------------------------------------------------------------------------------------------------------------

SHAPES = {  # N C H W, K R S, stride, padding, groups
    "3x3": ((2, 40, 9, 11), (24, 3, 3), 1, 1, 1),
    "3x3 in patches": ((1, 36, 16, 16), (40, 3, 3), 1, 1, 1),
    "1x1": ((2, 37, 6, 10), (20, 1, 1), 1, 0, 1),
    "1x1, stride 2": ((2, 68, 7, 9), (40, 1, 1), 2, 0, 1),
    "stem": ((1, 3, 21, 19), (24, 7, 7), 2, 3, 1),
    "groups": ((2, 64, 6, 7), (20, 3, 3), 1, 1, 2),
    "nothing is aligned": ((2, 33, 6, 7), (13, 2, 3), 1, (1, 0), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHAPES)
def test_tf32_holds_11_bits(device: torch.device, name: str, layout: str) -> None:
    """Factors of 11 bits are multiplied as they are, and sums of up to 24 bits are exact."""
    shape, (K, R, S), stride, padding, groups = SHAPES[name]
    x = integers(2047, shape, device, 1, layout)
    weight = integers(1, (K, shape[1] // groups, R, S), device, 2, layout)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups}
    expected = F.conv2d(x.double(), weight.double(), **options).float()
    served = serving(x, weight, **options, float32_precision="tf32")
    assert not set(served) & set(SPLIT)
    for algorithm in served:
        out = hipconv.conv2d(x, weight, **options, float32_precision="tf32", algorithm=algorithm)
        assert torch.equal(out, expected), algorithm


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHAPES)
def test_ieee_holds_24_bits(device: torch.device, name: str, layout: str) -> None:
    """Factors of 22 bits, either of them, with few enough products not to round the sum:
    parts of split factors are where they belong.
    """
    shape, (K, R, S), stride, padding, groups = SHAPES[name]
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups}
    for wide in ("x", "weight") if layout == "nhwc" else ("x",):
        limits = {"x": (2**21, 1), "weight": (1, 2**21)}[wide]
        x = integers(limits[0], shape, device, 1, layout)
        weight = integers(limits[1], (K, shape[1] // groups, R, S), device, 2, layout)
        # Seven of the products of an output are left, so that any order of the sum is exact.
        keep = torch.arange(weight[0].numel(), device=device).view(weight.shape[1:]) % max(1, weight[0].numel() // 7) == 0
        weight = (weight * keep).contiguous(memory_format=LAYOUTS[layout])
        expected = F.conv2d(x.double(), weight.double(), **options)
        assert torch.equal(expected, expected.float().double()), "the case is exact"
        for algorithm in serving(x, weight, **options, float32_precision="ieee"):
            out = hipconv.conv2d(x, weight, **options, float32_precision="ieee", algorithm=algorithm)
            assert torch.equal(out.double(), expected), (algorithm, wide)


def test_rounding_is_to_nearest(device: torch.device) -> None:
    """By bits: up from three quarters of a unit, down from one quarter, and not towards zero."""
    weight = torch.ones(8, 32, 1, 1, device=device).to(memory_format=torch.channels_last)
    for value, rounded in ((1 + 3 * 2.0**-12, 1 + 2.0**-10), (1 + 2.0**-12, 1.0), (-1 - 3 * 2.0**-12, -1 - 2.0**-10)):
        x = torch.full((1, 32, 4, 4), value, device=device).to(memory_format=torch.channels_last)
        for factors in ((x, weight), (torch.ones_like(x), weight * value)):
            for algorithm in serving(*factors, float32_precision="tf32"):
                out = hipconv.conv2d(*factors, float32_precision="tf32", algorithm=algorithm)
                expected = 32 * (value if algorithm in PLAIN else rounded)
                assert bool((out == expected).all()), (algorithm, value, out.flatten()[0].item() / 32)


# ---- how far off -------------------------------------------------------------------------------------------------------------


def rms(error: Tensor, of: Tensor) -> float:
    return (error.double().square().mean() / of.double().square().mean()).sqrt().item()


@pytest.mark.parametrize(("channels", "taps"), [(32, 1), (64, 1), (147, 1), (64, 3), (128, 3), (512, 3)])
def test_errors_of_random_numbers(device: torch.device, channels: int, taps: int) -> None:
    """Split products are within twice the error of plain float32 sums in one chain;
    TF32 has the error of its rounding and no more.
    """
    generator = torch.Generator().manual_seed(channels)
    size = 8 if device.type == "cpu" else 24
    x = torch.randn(1, channels, size, size, generator=generator).to(device).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, channels, taps, taps, generator=generator).to(device).contiguous(memory_format=torch.channels_last)
    options: dict[str, Any] = {"padding": taps // 2}
    exact = F.conv2d(x.double(), weight.double(), **options)
    errors = {
        (asked, algorithm): rms(
            hipconv.conv2d(x, weight, **options, algorithm=algorithm, float32_precision=asked) - exact, exact
        )
        for asked in precision.PRECISIONS
        for algorithm in serving(x, weight, **options, float32_precision=asked)
    }
    for (asked, algorithm), error in errors.items():
        if asked == "tf32" and algorithm not in PLAIN:
            assert 2e-4 < error < 4e-4, f"{algorithm} in {asked}: {error}"
        else:
            assert error <= 2 * errors["ieee", "naive"] and error < 4e-6, (
                f"{algorithm} in {asked}: {error}, naive {errors['ieee', 'naive']}"
            )
    x16, weight16 = (t.to(torch.bfloat16).float() for t in (x, weight))
    for algorithm in serving(x16, weight16, **options, float32_precision="tf32"):
        out = hipconv.conv2d(x16, weight16, **options, algorithm=algorithm, float32_precision="tf32")
        exact16 = F.conv2d(x16.double(), weight16.double(), **options)
        assert rms(out - exact16, exact16) < 3e-5, f"{algorithm}: factors that TF32 holds"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_not_finite_values_stay_where_they_are(device: torch.device, layout: str) -> None:
    """A NaN or an infinity of x or of a filter reaches the outputs that see it, as what it is in plain float32.

    (Of a filter without padding: some kernels multiply its zeros.)
    """
    for place, odd in (("x", torch.inf), ("x", -torch.inf), ("x", torch.nan), ("weight", torch.inf), ("weight", torch.nan)):
        x = torch.ones(1, 36, 9, 10, device=device) * 1.25
        weight = torch.full((9, 36, 3, 3), 0.5, device=device)
        if place == "x":
            x[0, 3, 4, 4] = odd
        else:
            weight[2, 7, 1, 0] = odd
        x, weight = (t.contiguous(memory_format=LAYOUTS[layout]) for t in (x, weight))
        padding = 1 if place == "x" else 0
        expected = F.conv2d(x.double(), weight.double(), padding=padding).float()
        for asked in precision.PRECISIONS:
            for algorithm in serving(x, weight, padding=padding, float32_precision=asked):
                out = hipconv.conv2d(x, weight, padding=padding, float32_precision=asked, algorithm=algorithm)
                assert torch.equal(out.isnan(), expected.isnan()), (algorithm, asked, place, odd)
                seen = ~expected.isnan()
                assert torch.equal(out[seen], expected[seen]), (algorithm, asked, place, odd)


def test_epilogue_split_sums_and_parts_of_16_bits(device: torch.device) -> None:
    """Bias, residual and activation in float32; results of other dtypes; a sum in several parts."""
    x, weight = integers(3, (2, 132, 6, 5), device, 1), integers(2, (24, 132, 3, 3), device, 2)
    bias, residual = integers(9, (24, 1, 1, 1), device, 3).flatten(), integers(9, (2, 24, 6, 5), device, 4)
    expected = (F.conv2d(x.double(), weight.double(), bias.double(), padding=1) + residual).relu()
    for asked in precision.PRECISIONS:
        for algorithm in serving(x, weight, padding=1, float32_precision=asked):
            for dtype in (torch.float32, torch.bfloat16):
                for limit in (0, 1 << 28):  # with no memory for them, sums are not split
                    options: dict[str, Any] = {
                        "padding": 1,
                        "float32_precision": asked,
                        "workspace_limit": limit,
                        "out_dtype": dtype,
                    }
                    if algorithm not in serving(x, weight, **options):
                        continue
                    out = hipconv.conv2d(x, weight, bias, residual=residual, activation="relu", algorithm=algorithm, **options)
                    assert torch.equal(out, expected.to(dtype)), (algorithm, asked, dtype, limit)


# ---- which -------------------------------------------------------------------------------------------------------------------


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype, memory_format=torch.channels_last)


IMAGE, FILTERS = (1, 256, 56, 56), (256, 256, 3, 3)


def planned(target: str, asked: str | None = None, dtype: torch.dtype = torch.float32) -> tuple[str | None, str]:
    found = hipconv.conv2d_plan(
        meta(*IMAGE, dtype=dtype), meta(*FILTERS, dtype=dtype), padding=1, target=target, float32_precision=asked
    )
    return found.float32_precision, found.algorithm


def test_plans_name_the_precision() -> None:
    assert planned("sm_90", "tf32") == ("tf32", "warpgroup_gemm")
    assert planned("sm_90", "ieee") == ("ieee", "split_warpgroup_gemm")
    assert planned("sm_80", "tf32") == ("tf32", "implicit_gemm")
    assert planned("sm_80", "ieee") == ("ieee", "split_implicit_gemm")
    assert planned("gfx942", "tf32") == ("tf32", "implicit_gemm")
    for arch in ("gfx90a", "gfx950", "gfx1100"):  # without instructions for it
        assert planned(arch, "tf32") == planned(arch, "ieee") == planned(arch) == ("ieee", "implicit_gemm")
    assert planned("gfx942") == ("ieee", "implicit_gemm")
    assert planned("sm_90", "tf32", torch.bfloat16)[0] is None
    text = str(hipconv.conv2d_plan(meta(*IMAGE), meta(*FILTERS), padding=1, target="sm_90", float32_precision="tf32"))
    assert "TF32" in text


def test_few_products_are_not_split() -> None:
    """Their plain sums have smaller errors than split products."""
    x, weight = meta(1, 3, 56, 56), meta(64, 3, 3, 3)
    assert hipconv.conv2d_plan(x, weight, target="sm_90", float32_precision="ieee").algorithm == "fma_gemm"


def test_torchs_settings_decide(settings: None) -> None:
    cudnn = torch.backends.cudnn
    cudnn.allow_tf32 = True
    assert precision.of_torch() == planned("sm_90")[0] == "tf32"
    cudnn.allow_tf32 = False
    assert precision.of_torch() == planned("sm_90")[0] == "ieee"
    assert planned("sm_90", "tf32")[0] == "tf32"
    cudnn.allow_tf32 = True
    assert planned("sm_90", "ieee")[0] == "ieee"
    with cudnn.flags(enabled=True, allow_tf32=False):
        assert precision.of_torch() == "ieee"
    assert precision.of_torch() == "tf32"


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch 2.9 and later have these settings")
def test_torchs_newer_settings_decide(settings: None) -> None:
    backends: Any = torch.backends
    backends.cudnn.conv.fp32_precision = "ieee"
    assert precision.of_torch() == "ieee"
    backends.cudnn.conv.fp32_precision = "tf32"
    assert precision.of_torch() == "tf32"
    backends.cudnn.conv.fp32_precision = "none"  # as cudnn's
    backends.cudnn.fp32_precision = "tf32"
    assert precision.of_torch() == "tf32"
    backends.cudnn.fp32_precision = "none"  # as torch's
    backends.fp32_precision = "ieee"
    assert precision.of_torch() == "ieee"
    backends.fp32_precision = "tf32"
    assert precision.of_torch() == "tf32"


def test_torch_before_2_9(settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has `allow_tf32` alone."""
    monkeypatch.setattr(precision, "_setting_of", None)
    torch.backends.cudnn.allow_tf32 = False
    assert precision.of_torch() == "ieee"
    torch.backends.cudnn.allow_tf32 = True
    assert precision.of_torch() == "tf32"


def test_settings_count_where_torch_has_tf32(monkeypatch: pytest.MonkeyPatch, settings: None) -> None:
    """Not on ROCm, not for CPU tensors, not for 16 bits."""
    torch.backends.cudnn.allow_tf32 = True

    class OnGpu:
        is_cuda = True
        dtype = torch.float32

    on_gpu: Any = OnGpu()
    monkeypatch.setattr(precision, "_has_cudnn", True)
    assert precision.of_call(None, on_gpu) == "tf32"
    assert precision.of_call("ieee", on_gpu) == "ieee"
    assert precision.of_call(None, torch.ones(1)) == "ieee"
    on_gpu.dtype = torch.bfloat16
    assert precision.of_call(None, on_gpu) == "ieee"
    on_gpu.dtype = torch.float32
    monkeypatch.setattr(precision, "_has_cudnn", False)
    assert precision.of_call(None, on_gpu) == "ieee"


def test_calls_follow_settings_as_they_change(settings: None) -> None:
    """Also when a call that is alike was prepared before."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: settings do not count for CPU tensors")
    x, weight = torch.randn(1, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    results = []
    for allowed in (True, False, True):
        torch.backends.cudnn.allow_tf32 = allowed
        results.append(hipconv.conv2d(x, weight))
    assert torch.equal(results[0], results[2]) and not torch.equal(results[0], results[1])


def test_operators_and_graphs_take_it(device: torch.device) -> None:
    x, weight = torch.randn(1, 36, 6, 6, device=device), torch.randn(8, 36, 3, 3, device=device)
    rounds = "implicit_gemm"  # which the choice for so small a problem does not
    results = {asked: hipconv.conv2d(x, weight, float32_precision=asked, algorithm=rounds) for asked in precision.PRECISIONS}
    assert hipconv.conv2d_plan(x, weight, float32_precision="tf32").float32_precision == "ieee"
    assert not torch.equal(results["tf32"], results["ieee"])
    for asked, expected in results.items():
        numbers = ([1, 1], [0] * 4, [1, 1], 1)
        assert torch.equal(
            torch.ops.hipconv.conv2d(x, weight, None, None, *numbers, float32_precision=asked, algorithm=rounds), expected
        )
        out = torch.empty_like(expected)
        torch.ops.hipconv.conv2d_out(out, x, weight, None, None, *numbers, float32_precision=asked, algorithm=rounds)
        assert torch.equal(out, expected)
        compiled = torch.compile(
            lambda a, b, asked=asked: hipconv.conv2d(a, b, float32_precision=asked, algorithm=rounds),
            fullgraph=True,
            backend="aot_eager",
        )
        assert torch.equal(compiled(x, weight), expected)
        with_gradient = hipconv.conv2d(x, weight.clone().requires_grad_(), float32_precision=asked, algorithm=rounds)
        assert torch.equal(with_gradient.detach(), expected)
    torch.library.opcheck(torch.ops.hipconv.conv2d.default, (x, weight, None, None, *numbers), {"float32_precision": "tf32"})


@pytest.mark.parametrize(
    ("wrong", "error"), [("fp32", ValueError), ("", ValueError), (True, TypeError), (torch.float32, TypeError)]
)
def test_errors_name_the_argument(wrong: Any, error: type[Exception]) -> None:
    x, weight = torch.ones(1, 4, 5, 5), torch.ones(4, 4, 3, 3)
    for function in (hipconv.conv2d, hipconv.conv2d_plan):
        with pytest.raises(error, match=r"^float32_precision: got .*, expected 'ieee', 'tf32', or None"):
            function(x, weight, float32_precision=wrong)
    refused = pytest.raises(ValueError, match=r"algorithm.*split_implicit_gemm.*float32 that may not be rounded")
    with environment(**UNITS["simt-mma_sync"]), refused:
        hipconv.conv2d(x, weight, algorithm="split_implicit_gemm", float32_precision="tf32")
