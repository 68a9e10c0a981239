"""Winograd's algorithms of conv2d: exact where the arithmetic is, within the bounds of its errors elsewhere, and packed
filters.

    python op_tests/conv2d/test_winograd.py --unit mfma,wmma11 --cases 300

`exact.py` says how exact cases are made and judged. F(2,3) of small integers is exact: its matrices have halves and nothing
smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
import copy
import gc
import os
from pathlib import Path
import pickle
import random
import sys
import threading
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from torch import Tensor

from conv2d.cases import ROUNDED_PLANES, reference_of
from conv2d.cases import Case as RandomCase
from conv2d.exact import HALVES, UNITS_OF_A_RUN, Case, check, is_served, random_cases_command, running_on
from support.backends import EVERYTHING, WAYS, device_of, environment
import hipconv
from hipconv import targets
from hipconv.ops import filters as kept_filters
from hipconv.ops.conv2d import costs, router

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("winograd_f2", "winograd_f4")
OUTPUTS = {"winograd_f2": 2, "winograd_f4": 4}


@pytest.fixture(params=UNITS_OF_A_RUN)
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    with running_on(request.param) as found:
        yield found


@pytest.fixture(params=["simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def place(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device for what does not depend on waves."""
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# ---- exact -------------------------------------------------------------------------------------------------------------------

SPECIAL = {
    "whole tiles": Case((1, 64, 8, 8), (64, 3, 3), padding=(1, 1, 1, 1), bias=True),
    "odd sizes": Case((2, 24, 7, 5), (40, 3, 3), padding=(1, 1, 1, 1), residual=True, activation="relu"),
    "no padding": Case((1, 72, 6, 9), (8, 3, 3)),
    "one output": Case((1, 8, 3, 3), (8, 3, 3)),
    "one pixel": Case((3, 16, 1, 1), (8, 3, 3), padding=(1, 1, 1, 1)),
    "one channel, one filter": Case((2, 1, 5, 6), (1, 3, 3), padding=(1, 1, 1, 1), bias=True),
    "odd channels and filters": Case((1, 7, 6, 9), (13, 3, 3), padding=(1, 1, 1, 1), bias=True, residual=True),
    "channels first": Case(
        (2, 16, 6, 7), (24, 3, 3), padding=(1, 1, 1, 1), x_layout="nchw", weight_layout="kcrs", out_layout="nchw0"
    ),
    "odd strides": Case(
        (2, 16, 5, 6), (12, 3, 3), (1, 1), (1, 1, 1, 1), x_layout="nhwc1", weight_layout="krsc1", out_layout="nhwc1"
    ),
    "more channels than a block has lanes for": Case((1, 520, 4, 4), (8, 3, 3), padding=(1, 1, 1, 1)),
    "uneven padding": Case((1, 16, 6, 7), (16, 3, 3), padding=(0, 2, 3, 1)),
    "much padding": Case((1, 8, 2, 3), (8, 3, 3), padding=(5, 4, 3, 6)),
    "reflect": Case((1, 16, 6, 7), (8, 3, 3), padding=(2, 1, 3, 2), mode="reflect"),
    "replicate": Case((1, 16, 6, 7), (8, 3, 3), padding=(2, 1, 3, 2), mode="replicate", x_layout="nchw"),
    "circular": Case((2, 16, 6, 7), (8, 3, 3), padding=(3, 4, 6, 2), mode="circular", bias=True),
    "f32 out": Case((1, 16, 6, 7), (18, 3, 3), padding=(1, 1, 1, 1), out_dtype=torch.float32, bias=True, residual=True),
    "many images": Case((40, 8, 3, 2), (16, 3, 3), padding=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_small_integers_are_exact(module: Any, name: str) -> None:
    case = SPECIAL[name]._replace(algorithm="winograd_f2")
    for dtype in HALVES if EVERYTHING else HALVES[list(SPECIAL).index(name) % 2 :][:1]:
        check(module, case._replace(dtype=dtype))


def test_every_tile(module: Any) -> None:
    """More tiles of outputs than a tile of the GEMM has, and filters of more than one."""
    case = Case((1, 64, 34, 18), (72, 3, 3), padding=(1, 1, 1, 1), algorithm="winograd_f2")
    common = [(128, 128), (128, 64), (64, 64)]
    served = [tile for tile in ((256, 128), *common) if is_served(module, case, tile)]
    assert served == ([(256, 128), *common] if os.environ["HIPCONV_SIMT_MMA"] == "mma_sync" else common)
    for tile in served if EVERYTHING else common[:2]:
        check(module, case._replace(tile=tile))


def random_case(rng: random.Random) -> Case:
    padding = (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 3))
    height, width = (
        max(3 - padding[0] - padding[1], 1) + rng.randint(0, 9),
        max(3 - padding[2] - padding[3], 1) + rng.randint(0, 9),
    )
    mode = rng.choice(["zeros", "zeros", "zeros", "replicate", "reflect", "circular"])
    if mode in ("reflect", "circular"):
        top, bottom, left, right = (
            min(pad, size - 1) for pad, size in zip(padding, (height, height, width, width), strict=True)
        )
        padding = top, bottom, left, right
        height, width = max(height, 3), max(width, 3)
    layouts = ["nhwc", "nchw", "nhwc1", "nchw0"]
    return Case(
        (rng.randint(1, 3), rng.choice([1, 3, 8, 24, 64, 70, 130]), height, width),
        (rng.choice([1, 4, 8, 20, 64, 80]), 3, 3),
        padding=padding,
        mode=mode,
        dtype=rng.choice(HALVES),
        x_layout=rng.choice(layouts),
        weight_layout=rng.choice(["krsc", "kcrs", "krsc1"]),
        out_layout=rng.choice(layouts),
        out_dtype=rng.choice([None, None, torch.float32]),
        bias=rng.random() < 0.5,
        residual=rng.random() < 0.4,
        activation=rng.choice(["none", "relu"]),
        tile=rng.choice([(128, 128), (128, 64), (64, 64)]),
        algorithm="winograd_f2",
    )


def check_random_cases(module: Any, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        check(module, random_case(rng), number)


def test_random_cases(module: Any) -> None:
    check_random_cases(module, 60 if EVERYTHING else 6, 5)


# ---- errors ------------------------------------------------------------------------------------------------------------------

# rmse over the rms of the result, of a convolution that is rounded once.
ROUNDED_ONCE = {torch.float16: 2.1e-4, torch.bfloat16: 1.67e-3}
LARGEST = 12  # times the rmse: of all errors


def mismatch(out: Tensor, expected: Tensor, rmse_gate: float) -> str | None:
    rms = expected.square().mean().sqrt()
    error = (out.double() - expected).abs() / rms
    rmse, worst = error.square().mean().sqrt().item(), error.max().item()
    half_a_unit = 0.51 * torch.finfo(out.dtype).eps * (expected.abs().max() / rms).item()
    if rmse <= rmse_gate and worst <= max(LARGEST * rmse_gate, half_a_unit + LARGEST / 2 * rmse_gate):
        return None
    return f"rmse {rmse:.2e}, expected {rmse_gate:.1e}; largest error {worst:.2e}"


SHAPES = [(1, 64, 13, 11, 40), (2, 130, 9, 8, 24), (1, 20, 6, 17, 19), (1, 600, 5, 6, 16)]
ON_GPU = [(1, 512, 64, 64, 512), (2, 256, 65, 31, 384), (1, 96, 40, 57, 200), (1, 1100, 17, 9, 260)]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", HALVES, ids=["bf16", "f16"])
def test_errors(device: torch.device, layout: str, dtype: torch.dtype) -> None:
    shapes = (
        [*SHAPES, *ON_GPU]
        if device.type == "cuda"
        else SHAPES
        if EVERYTHING
        else SHAPES[2:3]
        if layout == "nchw"
        else SHAPES[:2]
    )
    for number, (n, c, h, w, k) in enumerate(shapes):
        case = RandomCase(n, c, h, w, k, 3, 3, padding=(1, 1, 0, 2), dtype=dtype, layout=layout, has_residual=number % 2 == 0)
        arguments = case.inputs(device)
        expected = reference_of(arguments)
        for name in NAMES:
            out = hipconv.conv2d(**arguments, algorithm=name)
            problem = mismatch(out, expected, ROUNDED_PLANES[name, dtype] * ROUNDED_ONCE[dtype])
            assert problem is None, f"{name} {case}: {problem}"
            assert out.is_contiguous(memory_format=torch.channels_last if layout == "nhwc" else torch.contiguous_format)


@pytest.mark.parametrize("name", NAMES)
def test_activations(device: torch.device, name: str) -> None:
    for activation in ("gelu", "silu", "hardswish", "leaky_relu") if EVERYTHING else ("silu",):
        case = RandomCase(1, 40, 9, 10, 24, 3, 3, padding=1, layout="nhwc", activation=activation, has_residual=True)
        arguments = case.inputs(device)
        out = hipconv.conv2d(**arguments, algorithm=name, out_dtype=torch.float32)
        assert mismatch(out, reference_of(arguments), 1e-3 if name == "winograd_f2" else 2e-3) is None


@pytest.mark.parametrize("name", NAMES)
def test_powers_of_two_pass_through(device: torch.device, name: str) -> None:
    """Whatever the size of activations and filters, planes of float16 neither overflow nor lose bits."""
    arguments = RandomCase(1, 40, 9, 6, 24, 3, 3, padding=1, layout="nhwc", has_bias=False).inputs(device)
    once = hipconv.conv2d(**arguments, algorithm=name)
    for of_x, of_weight in ((60, 40), (100, -90), (-110, 60)):
        scaled = arguments | {"x": arguments["x"] * 2.0**of_x, "weight": arguments["weight"] * 2.0**of_weight}
        assert torch.equal(hipconv.conv2d(**scaled, algorithm=name), (once.double() * 2.0 ** (of_x + of_weight)).to(once.dtype))
    # The largest sums that a tile and a filter can have.
    for sign in (1.0, -1.0):
        x = torch.full((1, 128, 9, 9), 3e38, device=device).bfloat16()
        x[:, :, ::2, 1::2] *= sign
        out = hipconv.conv2d(x, torch.full((8, 128, 3, 3), 1e-38, device=device).bfloat16(), padding=1, algorithm=name)
        assert out.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_an_outlier_costs_only_its_own_tiles(device: torch.device, name: str) -> None:
    """Infinities and NaN make all outputs of the tiles that see them infinite or NaN, and touch no others."""
    arguments = RandomCase(1, 24, 13, 15, 16, 3, 3, padding=1, layout="nhwc").inputs(device)
    once, outputs = hipconv.conv2d(**arguments, algorithm=name), OUTPUTS[name]
    for odd in (torch.nan, torch.inf, 3e38):
        x = arguments["x"].clone()
        x[0, 7, 6, 9] = odd
        out = hipconv.conv2d(**arguments | {"x": x}, algorithm=name)
        sees = torch.zeros(13, 15, dtype=torch.bool, device=device)
        for row in range(0, 13, outputs):
            for column in range(0, 15, outputs):
                if row - 1 <= 6 <= row + outputs and column - 1 <= 9 <= column + outputs:
                    sees[row : row + outputs, column : column + outputs] = True
        assert torch.equal(out[..., ~sees], once[..., ~sees]), odd
        touched = torch.zeros_like(sees)
        touched[5:8, 8:11] = True  # what a direct convolution's outlier reaches
        assert not (touched & ~sees).any()
        if odd != 3e38:
            assert not out[..., touched].isfinite().any()
        else:
            assert out.isfinite().all()


# ---- chunks, plans, refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_nothing(device: torch.device, name: str) -> None:
    for layout in ("nhwc", "nchw") if EVERYTHING or device.type == "cuda" else ("nhwc",):
        arguments = RandomCase(2, 40, 9, 11, 24, 3, 3, padding=1, layout=layout, has_residual=True).inputs(device)
        whole = hipconv.conv2d(**arguments, algorithm=name)
        plan = hipconv.conv2d_plan(**arguments, algorithm=name)
        needs = plan.workspace + plan.packed_filters
        least = int(_error(arguments, algorithm=name, workspace_limit=1000).split("a workspace of ")[1].split()[0])
        for limit in (needs, needs - 1, (needs + least) // 2, least + 100_000, least):
            assert hipconv.conv2d_plan(**arguments, algorithm=name, workspace_limit=limit).workspace <= limit
            assert torch.equal(hipconv.conv2d(**arguments, algorithm=name, workspace_limit=limit), whole), limit
        _error(arguments, algorithm=name, workspace_limit=least - 1)


def _error(arguments: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValueError, match=r"^algorithm: got") as raised:
        hipconv.conv2d(**arguments, **more)
    return str(raised.value)


def test_what_is_refused() -> None:
    with environment(**WAYS["simt-wave64"]):
        x, weight = torch.randn(1, 8, 9, 9).bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()
        for name in NAMES:
            arguments = {"x": x, "weight": weight}
            for more in ({"stride": 2}, {"dilation": 2}, {"weight": torch.randn(8, 8, 5, 5).bfloat16()},
                         {"weight": weight[:, :4], "groups": 2}):  # fmt: skip
                text = _error(arguments | more, algorithm=name)
                assert f"got '{name}', which serves 3x3 filters of stride 1, without dilation or groups" in text
            assert "serves no float32" in _error({"x": x.float(), "weight": weight.float()}, algorithm=name)


def test_it_is_taken_by_name_alone() -> None:
    """No card was measured with it; and of float16 in and out its errors are several times those of one rounding."""
    x = torch.empty(1, 512, 256, 256, device="meta").contiguous(memory_format=torch.channels_last)
    weight = torch.empty(512, 512, 3, 3, device="meta").contiguous(memory_format=torch.channels_last)
    for target in ("sm_90", "sm_80", "gfx942", "gfx1100"):
        for dtype in HALVES:
            plan = hipconv.conv2d_plan(x.to(dtype), weight.to(dtype), padding=1, target=target)
            assert set(NAMES) <= set(plan.serves)
            assert plan.algorithm not in NAMES, (target, dtype)
        by_name = hipconv.conv2d_plan(x.bfloat16(), weight.bfloat16(), padding=1, target=target, algorithm="winograd_f4")
        assert by_name.algorithm == "winograd_f4" and 0 < by_name.workspace <= router.WORKSPACE_LIMIT


# ---- packed filters ----------------------------------------------------------------------------------------------------------


def _layer(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(1, 24, 7, 9, generator=generator), torch.randn(16, 24, 3, 3, generator=generator)
    return x.to(device).bfloat16(), weight.to(device).bfloat16()


@pytest.mark.parametrize("name", NAMES)
def test_packed_filters_give_the_same_bits(place: torch.device, name: str) -> None:
    x, weight = _layer(place)
    expected = hipconv.conv2d(x, weight, padding=1, algorithm=name)
    packed = hipconv.prepack_conv2d(weight, name)
    assert repr(packed) == f"PackedFilters((16, 24, 3, 3), torch.bfloat16, {weight.device}, channels_last, {name})"
    for filters in (packed, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert torch.equal(hipconv.conv2d(x, filters, padding=1, algorithm=name), expected)
    assert hipconv.conv2d_plan(x, packed, padding=1, algorithm=name).algorithm == name
    with torch.inference_mode():
        made_there = hipconv.prepack_conv2d(weight, name)
    for filters in (made_there, made_there.weight):
        assert torch.equal(hipconv.conv2d(x.clone().requires_grad_(), filters, padding=1, algorithm=name), expected)
    weight.zero_()  # does not reach them
    assert torch.equal(hipconv.conv2d(x, packed, padding=1, algorithm=name), expected)
    for algorithm in ("implicit_gemm", "naive"):
        other = hipconv.conv2d(x, packed, padding=1, algorithm=algorithm)
        assert torch.equal(other, hipconv.conv2d(x, packed.weight, padding=1, algorithm=algorithm))


def test_what_is_kept_follows_the_weight(place: torch.device) -> None:
    x, weight = _layer(place)
    kept_filters.forget()

    def run(filters: Tensor) -> Tensor:
        return hipconv.conv2d(x, filters, padding=1, algorithm="winograd_f4")

    def kept() -> list[int]:
        return [one.filters.data_ptr() for entry in kept_filters._entries.values() for one in entry.by_form.values()]

    once = run(weight)
    first = kept()
    assert torch.equal(run(weight), once) and kept() == first and len(first) == 1
    weight.mul_(2)
    for _ in range(2):
        assert torch.equal(run(weight), 2 * once) and len(kept()) == 1
    weight.data = weight.data / 2  # another memory
    for _ in range(2):
        assert torch.equal(run(weight), once) and len(kept()) == 1
    with torch.no_grad():
        parameter = torch.nn.Parameter(weight)
        assert torch.equal(run(parameter), once) and len(kept()) == 2
    part = torch.cat([weight, weight * 4])
    assert torch.equal(run(part[16:]), 4 * once)  # views come and go
    weight.data.mul_(2)  # which torch does not count
    kept_filters.forget(weight)
    assert torch.equal(run(weight), 2 * once)
    del parameter, weight, part
    gc.collect()
    assert kept() == []
    with torch.inference_mode():
        uncounted = _layer(place)[1]
        assert torch.equal(run(uncounted), once)
        uncounted.mul_(2)
        assert torch.equal(run(uncounted), 2 * once) and kept() == []


def test_what_is_kept_has_a_limit(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = _layer(place)
    weights = [_layer(place)[1] * scale for scale in (1, 2, 4)]
    expected = [hipconv.conv2d(x, weight, algorithm="winograd_f2") for weight in weights]
    size = hipconv.conv2d_plan(x, weights[0], algorithm="winograd_f2").packed_filters
    kept_filters.forget()
    monkeypatch.setattr(kept_filters, "PACKED_LIMIT", 2 * size)
    for _ in range(2):
        for weight, result in zip(weights, expected, strict=True):
            assert torch.equal(hipconv.conv2d(x, weight, algorithm="winograd_f2"), result)
            assert len(kept_filters._entries) <= 2 and kept_filters._size <= 2 * size


def test_threads_share_packed_filters(place: torch.device) -> None:
    x, weight = _layer(place)
    weights = [weight * scale for scale in (1, 2, 4)]
    expected = [hipconv.conv2d(x, each, algorithm="winograd_f4") for each in weights]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(4):
            which = (number + turn) % 3
            filters = weights[which].clone() if turn == 3 else weights[which]
            if not torch.equal(hipconv.conv2d(x, filters, algorithm="winograd_f4"), expected[which]):
                wrong.append(which)

    kept_filters.forget()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_operator_and_compiled_code_take_them(place: torch.device) -> None:
    x, weight = _layer(place)
    packed = hipconv.prepack_conv2d(weight, "winograd_f4")
    expected = hipconv.conv2d(x, weight, algorithm="winograd_f4")
    for filters in (weight, packed):
        compiled = torch.compile(lambda f: hipconv.conv2d(x, f, algorithm="winograd_f4"), backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(filters), expected)
    parameter = torch.nn.Parameter(weight)
    assert torch.equal(hipconv.conv2d(x, parameter, algorithm="winograd_f4"), expected)  # through autograd
    with torch.no_grad():
        parameter.mul_(2)
    assert torch.equal(hipconv.conv2d(x, parameter, algorithm="winograd_f4"), 2 * expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of GPUs")
def test_graphs_of_a_gpu_see_filters_that_change() -> None:
    x, weight = _layer(torch.device("cuda"))
    packed = hipconv.prepack_conv2d(weight, "winograd_f4")
    once = hipconv.conv2d(x, weight, algorithm="winograd_f4")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        of_weight = hipconv.conv2d(x, weight, algorithm="winograd_f4")
        of_packed = hipconv.conv2d(x, packed, algorithm="winograd_f4")
    weight.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(of_weight, 2 * once) and torch.equal(of_packed, once)


def test_what_packing_refuses() -> None:
    weight = torch.randn(8, 8, 3, 3).bfloat16()
    for error, arguments, text in (
        (TypeError, (3,), "weight: got 3, expected a torch.Tensor"),
        (TypeError, (weight.long(),), "weight: got dtype torch.int64, expected torch.float32, torch.float16 or torch.bfloat16"),
        (ValueError, (weight[0],), r"weight: got shape \(8, 3, 3\), expected \(out_channels, "),
        (
            ValueError,
            (weight, "winograd"),
            "algorithm: got 'winograd', expected 'auto' or names of hipconv.conv2d_router.METHODS",
        ),
        (
            ValueError,
            (weight.float(), "winograd_f4"),
            "algorithm: got 'winograd_f4' for weight of shape .* expected 3x3 filters of a 16-bit",
        ),
        (ValueError, (weight[..., :1], ["winograd_f2"]), "algorithm: got 'winograd_f2' for weight"),
    ):
        with pytest.raises(error, match=f"^{text}"):
            hipconv.prepack_conv2d(*arguments)
    assert hipconv.prepack_conv2d(weight).algorithms == ()  # torch convolves CPU tensors
    assert torch.equal(hipconv.conv2d(weight, hipconv.prepack_conv2d(weight)), hipconv.conv2d(weight, weight))


def test_a_layer_follows_its_weight(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPCONV_CONV2D_ALGORITHM", "winograd_f4")
    x, weight = _layer(place)
    layer = hipconv.nn.Conv2d(24, 16, 3, padding=1, bias=False, device=place, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(weight)
        once = layer(x)
        assert torch.equal(once, hipconv.conv2d(x, weight, padding=1, algorithm="winograd_f4"))
        layer.load_state_dict({"weight": 2 * weight})
        assert torch.equal(layer(x), 2 * once)
        assert torch.equal(copy.deepcopy(layer)(x), 2 * once)
        layer.weight = torch.nn.Parameter(weight)
        assert torch.equal(layer(x), once)


def test_the_estimate_knows_the_product_of_the_planes() -> None:
    """The chunks that Python counts are those of csrc/kernels/conv2d/winograd/layout.h: by its workspace."""
    with environment(**WAYS["simt-wave64"]):
        for shape, filters, limit in (
            ((1, 512, 96, 96), 512, 64 << 20),
            ((3, 70, 33, 20), 20, 4 << 20),
            ((1, 64, 9, 9), 64, 1 << 20),
        ):
            x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
            weight = torch.empty(filters, shape[1], 3, 3, device="meta", dtype=torch.bfloat16)
            problem, workspace = _prepared(x, weight, limit)
            planes = costs.of_planes(problem, 4, limit)
            tiles = planes.pixels
            bytes_of = 2 * 36 * (-(-shape[1] // 64) * 64) * (-(-filters // 8) * 8) + tiles * (
                2 * (planes.in_channels + planes.out_channels) + 4
            )
            assert abs(workspace - bytes_of) <= 0.07 * bytes_of + 2048, (shape, workspace, bytes_of)


def _prepared(x: Tensor, weight: Tensor, limit: int) -> tuple[Any, int]:
    """Return what the router knows of a call that transforms its filters itself, and its workspace."""
    from hipconv.ops.conv2d import calls, geometry

    o = geometry.options((3, 3), 1, 1, 1, 1, "zeros", "none")
    kinds = geometry.kind_of(x), geometry.kind_of(weight), None, None, None
    request = calls.Request(None, "winograd_f4", None, limit)
    prepared = calls.prepare(targets.of(torch.device("cpu")), calls.card_named("wave64"), *kinds, o, request)
    return prepared.problem, prepared.workspace


if __name__ == "__main__":
    random_cases_command(__doc__, check_random_cases)
