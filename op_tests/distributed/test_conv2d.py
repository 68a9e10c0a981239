"""conv2d of images that are split over processes is that of the whole image; with the kernels of GPUs, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
import re

import pytest
import torch

from distributed.conv2d_checks import CASES, WRONG, Case
from distributed.pool import end_all, pool_of
from distributed.worlds import OVER_GPUS, OVER_NCCL
from support.backends import EVERYTHING, WAYS


@pytest.fixture(scope="module", autouse=True)
def worlds() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_convolution_of_the_whole_image(name) -> None:
    pool_of(3).run("conv2d_checks", "run", CASES[name], None)


@pytest.mark.parametrize(("size", "ranks"), [(2, None), (4, (2, 3)), (7, (1, 4, 6))])
def test_it_is_in_groups_of_any_ranks(size, ranks) -> None:
    for name in ("stride", "more_ranks_than_rows"):
        pool_of(size).run("conv2d_checks", "run", CASES[name], ranks)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.overlapped])
def test_it_is_where_the_exchange_is_beside_the_kernel(name) -> None:
    orders = pool_of(3).run("conv2d_checks", "on_two_streams", CASES[name])
    assert any("joined" in order for order in orders)


def test_the_kernel_is_launched_before_the_exchange() -> None:
    pool_of(2).run("conv2d_checks", "launched_first")


EXACT = {
    "gemm": Case(channels_last=True, dtype=torch.bfloat16, activation="silu", residual=True, exact=True),
    "stride": Case(stride=2, dtype=torch.float16, exact=True),
    "f32": Case("short", padding=(3, 1), dilation=(2, 1), exact=True),
    "overlapped": Case(channels_last=True, dtype=torch.bfloat16, activation="silu", residual=True, exact=True, overlapped=True),
    "overlapped_stride": Case(stride=2, dtype=torch.float16, exact=True, overlapped=True),
    "split_sums": Case(channels=512, channels_last=True, exact=True),  # parts alone would be split otherwise
    "naive": Case(algorithm="naive", groups=2, mode="reflect", padding=2, kernel=(5, 5), exact=True),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_has_the_bits_of_one_device_from_the_kernels_of_gpus(name) -> None:
    pool_of(2, **WAYS["simt-wave64"]).run("conv2d_checks", "run", EXACT[name], None)


EXPECTED = {
    "stride": r"ValueError: stride: got \(2, 2\) on rank 1 of the group, expected \(1, 1\)",
    "filter": r"ValueError: shape of weight: got \[2, 3, 3, 3\] on rank 1 of the group, expected \[4, 3, 3, 3\]",
    "shard_dim": r"ValueError: rank 1 of the group refuses its arguments: shard_dim: got 1, expected -2 or 2 \(rows\), or -1",
    "residual": r"ValueError: residual: got parts of \(5, 6, 7\) along the split axis, expected those of the result, \(4, 3, "
    r"3\)",
    "channels": r"ValueError: weight: got shape \(4, 3, 3, 3\), expected \(out_channels, 2, height, width\)",
    "too_small": r"ValueError: x: got shape \(1, 3, 0, 7\), whose height with padding is 0, expected at least 3",
    "out_sizes": r"ValueError: out_sizes: got \(1, 1, 1\), expected ones that make 10",
    "out_sizes_of_others": r"ValueError: rank 1 of the group refuses its arguments: out_sizes: got \(5, 5\), expected one of "
    r"at least 0",
    "kind_of_out_sizes": "TypeError: rank 1 of the group refuses its arguments: out_sizes: got '10', expected a list of "
    "integers",
    "reduce_gradients": "TypeError: rank 1 of the group refuses its arguments: reduce_gradients: got 'no', expected a bool",
    "out_dtype": "TypeError: rank 0 of the group refuses its arguments: out_dtype: got torch.int32, expected None, "
    "torch.float32",
    "algorithm": "ValueError: rank 0 of the group refuses its arguments: algorithm: got 'magic', expected one of 'auto', "
    "'torch'",
    "variable": "ValueError: rank 0 of the group refuses its arguments: HIPCONV_CONV2D_ALGORITHM: got 'magic', expected one of",
    "other_variable": "ValueError: HIPCONV_CONV2D_ALGORITHM: got torch on rank 1 of the group, expected None",
    "served": "TypeError: rank 0 of the group refuses its arguments: x: got dtype torch.float64, expected",
    "shape_of_residual": r"ValueError: residual: got shape \[1, 4, 'any', 6\], expected this rank's part of the result, \[1, "
    r"4, 'any', 5\]",
}


@pytest.mark.parametrize("name", WRONG)
def test_every_rank_raises_the_same_error(name) -> None:
    texts = pool_of(3).run("conv2d_checks", "refusals", name)
    assert len(set(texts)) == 1, texts
    assert re.match(EXPECTED[name], texts[0]), texts[0]


def test_pieces_follow_the_plan_of_their_part_or_are_not_made() -> None:
    pool_of(2, **WAYS["simt-wave64"]).run("conv2d_checks", "pieces_that_the_plan_does_not_serve")


@pytest.mark.parametrize(("layout", "border"), [(torch.contiguous_format, 2), (torch.channels_last, 1)])
def test_pieces_have_the_bits_of_the_whole_from_warpgroups(layout, border) -> None:
    pool_of(2, **WAYS["simt-wave32-shuffled"]).run("conv2d_checks", "gathered_in_pieces", layout, border)


def test_what_the_kernels_of_gpus_refuse_every_rank_raises() -> None:
    texts = pool_of(2, **WAYS["simt-wave64"]).run("conv2d_checks", "refusals_of_kernels")
    assert texts[0] == texts[1]
    assert texts[0][0].startswith(
        "ValueError: rank 0 of the group refuses its arguments: algorithm: got 'magic', expected one of"
    ), texts
    assert texts[0][1].startswith("ValueError: algorithm: got 'warpgroup_gemm', which serves"), texts


def test_second_derivatives_of_overlapped_parts() -> None:
    pool_of(3).run("conv2d_checks", "overlapped_second_derivatives")


def test_what_the_backward_of_overlapped_parts_does_not_read_may_be_written() -> None:
    pool_of(3).run("conv2d_checks", "written_behind")


@pytest.mark.parametrize("overlapped", [False, True])
def test_gradients_through_a_checkpoint_are_those_without(overlapped) -> None:
    pool_of(3).run("conv2d_checks", "checkpointed", overlapped)


def test_it_follows_autocast() -> None:
    pool_of(3).run("conv2d_checks", "autocast")


@pytest.mark.parametrize("size", [2, 3] if EVERYTHING else [2])  # each rank imports DTensor, which takes seconds
def test_a_model_under_parallelize_module_is_the_model(size) -> None:
    pool_of(size).run("conv2d_checks", "styles")


LARGE = {  # for the warpgroups of sm_90, and tiles of many blocks
    "warpgroups": Case(
        "even", channels=128, filters=128, scale=8, channels_last=True, dtype=torch.bfloat16, residual=True, activation="silu"
    ),
    "warpgroups_stride": Case("uneven", channels=128, filters=128, scale=8, stride=2, channels_last=True, dtype=torch.float16),
    "warpgroups_gather": Case("even", channels=128, filters=128, scale=16, dtype=torch.bfloat16),
    "warpgroups_split": Case("even", channels=1024, filters=128, scale=2, channels_last=True, dtype=torch.bfloat16),
    "warpgroups_1x1": Case(
        "even", channels=256, filters=256, kernel=(1, 1), padding=0, scale=8, channels_last=True, dtype=torch.bfloat16
    ),
    "few_channels": Case("even", channels=3, filters=64, scale=16, dtype=torch.bfloat16),
}
OVERLAPPED = {f"{name}_overlapped": case._replace(overlapped=True) for name, case in LARGE.items() if "split" not in name}
LARGE["columns"] = Case("even", shard_dim=-1, channels=128, filters=128, scale=16, dtype=torch.bfloat16)


@OVER_GPUS
@pytest.mark.parametrize("name", [*CASES, *EXACT, *LARGE, *OVERLAPPED])
def test_it_has_them_on_gpus(size, backend, name) -> None:
    case = {**CASES, **EXACT, **LARGE, **OVERLAPPED}[name]
    pool_of(size, backend, "cuda").run("conv2d_checks", "run", case._replace(exact=True), None)


@OVER_GPUS
def test_every_rank_raises_the_same_error_on_gpus(size, backend) -> None:
    for name in WRONG:
        assert len(set(pool_of(size, backend, "cuda").run("conv2d_checks", "refusals", name))) == 1, name


@OVER_GPUS
@pytest.mark.parametrize("check", ["autocast", "overlapped_second_derivatives", "launched_first"])
def test_the_rest_on_gpus(size, backend, check) -> None:
    pool_of(size, backend, "cuda").run("conv2d_checks", check)


@OVER_NCCL  # the processes end where DTensors on GPUs meet gloo
def test_a_model_under_parallelize_module_on_gpus(size, backend) -> None:
    pool_of(size, backend, "cuda").run("conv2d_checks", "styles")
