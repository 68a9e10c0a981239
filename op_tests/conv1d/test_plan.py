"""causal_conv1d_plan: says what a call runs, and runs nothing."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from conv1d.cases import STRIDES, Case, assert_matches
from support.backends import WAYS, environment
from support.tensors import LAYOUTS, empty_as, strided
import hipconv
from hipconv import jit, targets


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("width", [1, 2, 4, 8, 9])
def test_exactly_the_kernels_said_to_serve_do_and_the_one_chosen_is_among_them(device: torch.device, width: int) -> None:
    names = jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels()
    weight = torch.randn(5, width, device=device)
    for x_strides, out_strides in itertools.product(STRIDES.values(), STRIDES.values()):
        x, out = (
            strided((3, 5, 41), strides, 0, torch.float32, device, 0.0)[0].normal_() for strides in (x_strides, out_strides)
        )
        plan = hipconv.causal_conv1d_plan(x, weight, out=out)
        assert plan.kernel in plan.serves and plan.chosen_by == "auto" and plan.form.startswith(plan.kernel)
        assert list(plan.serves) == [name for name in names if name in plan.serves]
        for name in names:
            if name in plan.serves:
                forced = hipconv.causal_conv1d_plan(x, weight, out=out, kernel=name)
                assert (forced.kernel, forced.chosen_by) == (name, "kernel")
                hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, kernel=name)
                assert_matches(out, x, weight, None, False)
            else:
                with pytest.raises(
                    ValueError, match=f"kernel: got '{name}', which serves .*; this call can have '{plan.serves[0]}'"
                ):
                    hipconv.causal_conv1d_plan(x, weight, out=out, kernel=name)


def test_the_plan_is_what_runs() -> None:
    """The bits tell what ran: in float32 the two kernels round differently somewhere in so many outputs."""
    for layout in LAYOUTS:
        x, weight, bias, _ = Case(2, 64, 3000, 4, torch.float32, torch.float32, layout=layout).inputs(torch.device("cpu"))
        by_name = {kernel: hipconv.causal_conv1d(x, weight, bias, "silu", kernel=kernel) for kernel in ("simd", "openmp")}
        assert not torch.equal(*by_name.values())
        for variable in ("", "openmp"):
            with environment(HIPCONV_CONV1D_KERNEL=variable):
                plan = hipconv.causal_conv1d_plan(x, weight, bias, "silu")
                assert torch.equal(hipconv.causal_conv1d(x, weight, bias, "silu"), by_name[plan.kernel])
            assert plan.chosen_by == ("HIPCONV_CONV1D_KERNEL" if variable else "auto")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_meta_tensors_have_the_plan_of_real_ones(device: torch.device, layout: str) -> None:
    target = targets.of(device).arch
    for shape in ((2, 24, 40), (1, 7, 3), (3, 64, 1), (1, 1, 5)):
        x, weight, bias, _ = Case(*shape, 4, torch.float16, torch.float32, layout=layout).inputs(device)
        on_meta = (
            empty_as(layout, shape, x.dtype, torch.device("meta")),
            weight.to("meta"),
            None if bias is None else bias.to("meta"),
        )
        assert hipconv.causal_conv1d_plan(*on_meta, target=target) == hipconv.causal_conv1d_plan(x, weight, bias)


@pytest.mark.parametrize("shape", [(3, 1, 40), (1, 1, 40), (3, 24, 1), (1, 24, 1), (1, 24, 40), (3, 1, 1), (1, 1, 1)], ids=str)
def test_strides_of_axes_of_one_element_do_not_matter(device: torch.device, shape: tuple[int, int, int]) -> None:
    weight = torch.randn(shape[1], 4, device=device)
    plans: dict[str, set[hipconv.ops.conv1d.plan.Conv1dPlan]] = {layout: set() for layout in LAYOUTS}
    for layout, odd in itertools.product(LAYOUTS, (None, 0, 1, 7, 1000)):
        x, out = (empty_as(layout, shape, torch.float32, device) for _ in range(2))
        strides = [odd if size == 1 and odd is not None else stride for size, stride in zip(shape, x.stride(), strict=True)]
        x.normal_()
        x, out = x.as_strided(shape, strides), out.as_strided(shape, strides[::-1] if shape == (1, 1, 1) else strides)
        plans[layout].add(hipconv.causal_conv1d_plan(x, weight, out=out))
        hipconv.causal_conv1d_fwd(out, x, weight)
        assert_matches(out, x, weight, None, False)
    assert all(len(found) == 1 for found in plans.values())
    if shape != (1, 24, 40):  # the two layouts are one
        assert plans[LAYOUTS[0]] == plans[LAYOUTS[1]]
    fast = {"tile", "vector", "shared", "simd"}
    if shape[1:] == (1, 40):
        fast = {"vector", "simd"}  # its vectors would be one channel wide
    elif shape[1:] == (24, 1):
        fast = {"tile", "simd"}  # … one token long
    assert all(plan.kernel in fast for found in plans.values() for plan in found)


def test_plans_for_gpus_and_sizes_that_are_not_here() -> None:
    x, weight = meta(64, 8192, 1 << 20), meta(8192, 4)
    plans = {target: hipconv.causal_conv1d_plan(x, weight, target=target) for target in ("gfx942", "gfx1100", "sm_90")}
    assert {target: plan.target for target, plan in plans.items()} == {
        "gfx942": "rocm gfx942",
        "gfx1100": "rocm gfx1100",
        "sm_90": "cuda sm_90",
    }
    assert all(plan.kernel == "vector" for plan in plans.values())
    assert hipconv.causal_conv1d_plan(x.mT.contiguous().mT, weight, target="gfx942").kernel == "tile"
    assert hipconv.causal_conv1d_plan(x, weight, out=x.mT.contiguous().mT, target="gfx942").kernel == "lines"
    on_cpu = hipconv.causal_conv1d_plan(x, weight, target="cpu")
    assert (on_cpu.kernel, on_cpu.form, on_cpu.serves) == ("simd", "simd_along_tokens", ("simd", "openmp"))
    assert on_cpu.target == f"cpu {targets.host_isa()}"


@pytest.mark.parametrize(
    ("dtype", "seqlen", "kernel"),
    [
        (torch.bfloat16, 2, "shared"),
        (torch.bfloat16, 7, "shared"),
        (torch.bfloat16, 8, "vector"),
        (torch.bfloat16, 9, "shared"),
        (torch.bfloat16, 24, "vector"),
        (torch.bfloat16, 64, "vector"),
        (torch.bfloat16, 509, "shared"),
        (torch.bfloat16, 4095, "vector"),
        (torch.float32, 3, "shared"),
        (torch.float32, 4, "vector"),
        (torch.float32, 509, "shared"),
    ],
    ids=str,
)
def test_channel_first_rows_of_any_length_go_where_they_are_fastest(dtype: torch.dtype, seqlen: int, kernel: str) -> None:
    x, weight = meta(4, 1024, seqlen, dtype=dtype), meta(1024, 4, dtype=dtype)
    assert all(
        hipconv.causal_conv1d_plan(x, weight, target=target).kernel == kernel for target in ("gfx942", "gfx1100", "sm_90")
    )


@pytest.mark.parametrize(
    ("seqlen", "kernel"), [(8, "vector"), (16, "vector"), (24, "shared"), (520, "shared"), (1032, "vector")]
)
def test_many_rows_of_an_odd_number_of_vectors_are_made_out_of_lds(seqlen: int, kernel: str) -> None:
    assert hipconv.causal_conv1d_plan(meta(64, 8192, seqlen), meta(8192, 4), target="gfx942").kernel == kernel


def test_rows_of_one_token_are_one_row_and_short_ones_along_few_channels_are_lines() -> None:
    def kernel(x: torch.Tensor) -> str:
        return hipconv.causal_conv1d_plan(x, meta(x.shape[1], 4), target="sm_90").kernel

    assert kernel(meta(65536, 8, 8)[:, :, 1:]) == "lines"
    assert kernel(meta(1464, 8192, 1)) == kernel(meta(1464, 1, 8192).mT) == kernel(meta(1464, 1, 8193)[..., 1:].mT) == "tile"
    assert kernel(meta(1464, 8192, 2)[:, :, 1:]) == "tile"  # channels lie apart, but not far
    assert kernel(meta(1464, 8192, 5)[:, :, 4:]) == "lines"
    assert kernel(meta(65536, 8, 8)) == "vector"  # whole vectors
    assert kernel(meta(65536, 8, 7)) == "shared"
    assert kernel(meta(65536, 7, 8).mT) == kernel(meta(2, 256, 1)) == "tile"


def test_rows_of_more_than_512_tokens_are_made_out_of_lds_where_they_are_many() -> None:
    def kernel(batch: int, seqlen: int, dtype: torch.dtype = torch.bfloat16, width: int = 4) -> str:
        x, weight = meta(batch, 8192, seqlen, dtype=dtype), meta(8192, width, dtype=dtype)
        return hipconv.causal_conv1d_plan(x, weight, target="sm_90").kernel

    assert [kernel(1, 512 - 3), kernel(1, 512 + 1), kernel(2, 512 + 1), kernel(2, 1023)] == [
        "shared",
        "vector",
        "shared",
        "shared",
    ]
    assert kernel(2, 1025) == kernel(2, 513, torch.float32) == "vector"
    assert kernel(2, 513, width=5) == "lines"


def test_a_result_is_planned_with_the_layout_it_will_have() -> None:
    with environment(**WAYS["cpu"]):
        x = empty_as("channel_last", (2, 64, 200), torch.float32, torch.device("cpu"))
        weight = torch.zeros(64, 4)
        assert hipconv.causal_conv1d_plan(x, weight).form == "simd_along_channels"
        assert hipconv.causal_conv1d_plan(x, weight, out=torch.zeros(2, 64, 200)).form == "simd_along_channels"
        assert hipconv.causal_conv1d_plan(torch.zeros(2, 64, 200), weight).form == "simd_along_tokens"


def test_bytes_and_operations_are_those_of_the_formula() -> None:
    plan = hipconv.causal_conv1d_plan(meta(4, 512, 2048), meta(512, 4), meta(512, dtype=torch.float32), "silu")
    assert plan.bytes_moved == 2 * (4 * 512 * 2048 * 2) + 512 * 4 * 2 + 512 * 4
    assert plan.flops == 2 * 4 * 4 * 512 * 2048
    expanded = hipconv.causal_conv1d_plan(meta(1, 512, 2048).expand(4, -1, -1), meta(1, 4).expand(512, -1))
    assert expanded.bytes_moved == 5 * (512 * 2048 * 2) + 4 * 2


def test_an_empty_call_launches_nothing() -> None:
    plan = hipconv.causal_conv1d_plan(meta(4, 0, 2048), meta(0, 4))
    assert (plan.kernel, plan.serves, plan.bytes_moved, plan.flops) == ("none", (), 0, 0)
    str(plan)


def test_a_plan_reads_like_a_sentence_and_cannot_be_changed() -> None:
    plan = hipconv.causal_conv1d_plan(meta(4, 4096, 4096), meta(4096, 4), target="gfx942")
    assert str(plan).startswith(
        "vector on rocm gfx942, chosen by auto; kernels that serve: vector, lines, staged, naive; 536.9 MFLOP, 2.0 a byte; "
    )
    assert str(plan).endswith("floor: a copy kernel's time for 268.5 MB, read and written together")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.kernel = "naive"  # type: ignore[misc]


BAD_PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "weight": ({"weight": meta(5, 4)}, r"^weight: got shape \(5, 4\)"),
    "out": ({"out": meta(2, 6, 9)}, r"^out: got shape \(2, 6, 9\)"),
    "activation": ({"activation": "relu"}, r"^activation: got 'relu'"),
    "kernel": ({"kernel": "fastest"}, r"^kernel: got 'fastest'"),
    "kernel of another backend": ({"kernel": "tile", "target": "cpu"}, r"^kernel: got 'tile', expected one of 'auto', 'simd'"),
    "target": ({"target": "gpu"}, r"^target: got 'gpu', expected gfx<digits>"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_bad_input_is_refused_by_name(name: str) -> None:
    changes, message = BAD_PLANS[name]
    with pytest.raises(ValueError, match=message):
        hipconv.causal_conv1d_plan(**({"x": meta(2, 6, 10), "weight": meta(6, 4)} | changes))


@pytest.mark.parametrize("name", ["x", "weight", "bias", "out"])
def test_what_is_no_tensor_is_refused_by_name(name: str) -> None:
    arguments: dict[str, Any] = {"x": meta(2, 6, 10), "weight": meta(6, 4)}
    with pytest.raises(TypeError, match=rf"^{name}: got \[1.0\], expected a torch.Tensor"):
        hipconv.causal_conv1d_plan(**(arguments | {name: [1.0]}))
