"""causal_conv1d_fwd past 2^31 and 2^32 elements, and past what a grid dimension holds.

Without a GPU these are few elements far apart, in memory that is reserved and hardly touched.
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools

import pytest
import torch
from torch import Tensor

from conv1d.cases import assert_matches
from support.backends import EVERYTHING, WAYS, environment
from support.marks import needs_gpu
from support.tensors import LAYOUTS, empty_as, mismatch, untouched
import hipconv
from hipconv import jit, reference, targets


@pytest.fixture(params=[way for way in WAYS if "scending" not in way])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with environment(**WAYS[request.param]):
        yield request.param


def kernels() -> list[str]:
    """The names of all kernels of the backend that CPU tensors go to."""
    return jit.module("causal_conv1d", targets.of(torch.device("cpu"))).causal_conv1d_fwd_kernels()


def check(x: Tensor, weight: Tensor, out: Tensor) -> tuple[str, ...]:
    """Every kernel that serves, against the reference; returns their names."""
    x.copy_(torch.randn(x.shape))
    expected = reference.causal_conv1d(x, weight, None, True)
    serves = hipconv.causal_conv1d_plan(x, weight, activation="silu", out=out).serves
    for kernel in serves:
        hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, None, True, kernel=kernel)
        wrong = mismatch(out, expected)
        assert wrong is None, f"{kernel}: {wrong}"
    return serves


# ---- far apart ---------------------------------------------------------------------------------------------------------------

FAR = (1 << 31) + 8  # elements: the second of three along an axis lies past 2^31, the third past 2^32

AXES = {  # a shape, the strides of x and out in elements, and kernels that have to serve them
    "batch, channel-first": ((3, 5, 24), (FAR, 24, 1), {"naive", "vector", "openmp", "simd"}),
    "batch, channel-last": ((3, 16, 200), (FAR, 1, 16), {"naive", "tile", "openmp", "simd"}),
    "dim, channel-first": ((2, 3, 24), (24, FAR, 1), {"naive", "openmp", "simd"}),
    "seqlen, channel-last": ((2, 16, 3), (16, 1, FAR), {"naive", "openmp", "simd"}),
    "batch, neither": ((3, 5, 8), (FAR, 17, 2), {"naive", "openmp", "simd"}),
    "dim, neither": ((2, 3, 8), (17, FAR, 2), {"naive", "openmp", "simd"}),
    "seqlen, neither": ((2, 5, 3), (17, 3, FAR), {"naive", "openmp", "simd"}),
}


@pytest.mark.parametrize("far", [("x",), ("out",), ("x", "out")], ids="+".join)
@pytest.mark.parametrize("axis", AXES)
def test_offsets_past_2_32_elements(way: str, axis: str, far: tuple[str, ...]) -> None:
    shape, strides, have_to_serve = AXES[axis]
    near = tuple(stride if stride < FAR else 3200 for stride in strides)
    weight = torch.randn(shape[1], 4) / 2
    for dtype in (torch.float32, torch.bfloat16):
        x, out = (untouched(shape, strides if name in far else near, dtype) for name in ("x", "out"))
        assert set(check(x, weight, out)) >= have_to_serve & set(kernels())


def test_parameters_past_2_32_elements(way: str) -> None:
    x = torch.randn(2, 3, 24)
    for strides in ((FAR, 1), (1, FAR)):
        weight, bias = untouched((3, 3), strides, torch.float16), untouched((3,), (FAR,), torch.float32)
        weight.copy_(torch.randn(3, 3))
        bias.copy_(torch.randn(3))
        for kernel in hipconv.causal_conv1d_plan(x, weight, bias).serves:
            out = torch.full_like(x, torch.nan)
            hipconv.causal_conv1d_fwd(out, x, weight, bias, kernel=kernel)
            assert_matches(out, x, weight, bias, False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pitches_around_the_limits_of_32_bits(way: str, layout: str) -> None:
    """Rows so far apart that a block's span comes near 2^31 and 2^32 bytes, whatever the block: some serve, all are right."""
    exponents = range(15, 25) if EVERYTHING else range(16, 25, 2)  # in bytes, the two types have all of them between them
    for dtype, exponent, more in itertools.product((torch.float32, torch.bfloat16), exponents, (-32, 0)):
        pitch = (1 << exponent) + more
        shape, strides = ((1, 300, 8), (0, pitch, 1)) if layout == "channel_first" else ((1, 8, 300), (0, 1, pitch))
        assert check(untouched(shape, strides, dtype), torch.randn(shape[1], 4) / 2, untouched(shape, strides, dtype))
    for dtype, exponent in itertools.product((torch.float32, torch.bfloat16), exponents):  # sequences far apart
        inner = (8, 1) if layout == "channel_first" else (1, 8)
        strides = ((1 << exponent) - 32, *inner)
        assert check(untouched((300, 8, 8), strides, dtype), torch.randn(8, 4) / 2, untouched((300, 8, 8), strides, dtype))


# ---- many rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(66000, 2, 1), (1, 70000, 2), (2, 1, 70000)], ids=str)
def test_more_rows_than_a_grid_dimension_holds(way: str, shape: tuple[int, int, int], layout: str) -> None:
    if shape[0] > 65535 and not EVERYTHING and way != "cpu":
        return  # naive makes 17 million threads of it; simt/test_launch_limits.py launches as many blocks, of no threads
    x, out = (empty_as(layout, shape, torch.float16, torch.device("cpu")) for _ in range(2))
    check(x, torch.randn(shape[1], 3), out)


# ---- the real thing ----------------------------------------------------------------------------------------------------------


def check_borders(shape: tuple[int, int, int], layout: str, borders: tuple[int, ...], device: torch.device) -> None:
    """A tensor whose element number `border`, in memory, is right, with all around it; and no element left out."""
    dim, seqlen = shape[1:]
    x, out = (empty_as(layout, shape, torch.bfloat16, device) for _ in range(2))
    x.normal_()
    weight, bias = (torch.randn(size, device=device) / 2 for size in ((dim, 4), (dim,)))
    for kernel in hipconv.causal_conv1d_plan(x, weight, bias, "silu", out=out).serves:
        hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, bias, True, kernel=kernel)
        for sequence in out:
            assert not any(rows.isnan().any() for rows in sequence.split(4096)), f"{kernel}: an output was not written"
        for border in (0, *borders, x.numel() - 1):
            b, within = divmod(border, dim * seqlen)
            d, t = divmod(within, seqlen) if layout == "channel_first" else reversed(divmod(within, dim))
            for channels, begin in ((slice(max(0, d - 2), d + 3), 0), (slice(None), max(0, t - 40))):
                few = x[b : b + 1, channels, begin : t + 41 if begin or channels == slice(None) else None]
                skipped = 3 if begin else 0  # outputs whose window begins before the slice
                expected = reference.causal_conv1d(few, weight[channels], bias[channels], True)[..., skipped:]
                ours = out[b : b + 1, channels, begin : begin + few.shape[2]][..., skipped:]
                wrong = mismatch(ours, expected)
                assert wrong is None, f"{kernel}, near element {border} of memory, {channels}: {wrong}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_check_of_borders_on_a_small_tensor(way: str, layout: str) -> None:
    check_borders((3, 40, 130), layout, (40 * 130 - 1, 40 * 130, 7777), torch.device("cpu"))


@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_2_32_elements(layout: str) -> None:
    shape = (3, 24576, 65600)  # 4.8e9 elements, 9.7 GB each for x and out
    free = torch.cuda.mem_get_info()[0]
    if free < 24 << 30:
        pytest.skip(f"needs 24 GB of GPU memory, {free >> 30} are free")
    assert shape[0] * shape[1] * shape[2] > 1 << 32
    check_borders(shape, layout, ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32), torch.device("cuda"))
    torch.cuda.empty_cache()


@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(17_000_001, 1, 2), (1, 17_000_001, 2), (2_200_001, 33, 1), (3, 70_001, 257), (70_001, 3, 9)], ids=str
)
def test_grids_past_every_limit(shape: tuple[int, int, int], dtype: torch.dtype, layout: str) -> None:
    x, out = (empty_as(layout, shape, dtype, torch.device("cuda")) for _ in range(2))
    x.normal_()
    weight = torch.randn(shape[1], 4, device="cuda") / 2
    expected = reference.causal_conv1d(x, weight, None, True)
    for kernel in hipconv.causal_conv1d_plan(x, weight, activation="silu", out=out).serves:
        hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, None, True, kernel=kernel)
        wrong = mismatch(out, expected)
        assert wrong is None, f"{kernel}: {wrong}"
