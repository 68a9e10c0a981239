"""hipconv.conv2d: a pytest suite, and a command that checks and times any case.

python op_tests/test_conv2d.py --mode edge random
python op_tests/test_conv2d.py --N 1 --C 512 --H 64 --W 64 --K 512 --R 3 --S 3 --padding 1 --dtype bfloat16 --layout both
--algorithm naive
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv2d.cases import (
    ACTIVATIONS,
    LAYOUTS,
    MODELS,
    Case,
    edge_cases,
    exact,
    mismatch_conv2d,
    model_cases,
    random_cases,
    reference_of,
)
from support.backends import EVERYTHING, WAYS, backends, device_of, environment, use_backend
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, untouched
from support.timing import microseconds
import hipconv
from hipconv import conv2d_router, reference
from hipconv.ops.conv2d.activations import ACTIVATIONS as TORCH_ACTIVATIONS

MODES = ("edge", "random", "stability", "activations", "models")
SIMT_MACS = 400_000  # of a case: what emulated matrix cores do in a fraction of a second


@pytest.fixture(params=["cpu", "simt-wave64", "simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the modes: what is wrong, a line each -----------------------------------------------------------------------------------


def wrong_cases(cases: list[Case], device: torch.device, algorithm: str = "all") -> list[str]:
    """Each case by one algorithm, or by all that serve it, against the reference."""
    wrong = []
    for case in cases:
        arguments = case.inputs(device)
        expected = reference_of(arguments)
        serves = hipconv.conv2d_plan(**arguments).serves
        for name in serves if algorithm == "all" else [algorithm]:
            result = hipconv.conv2d(**arguments, algorithm=name)
            if problem := mismatch_conv2d(result, arguments, expected, name):
                wrong.append(f"{name} {case}: {problem}")
            told = case.C > 1 and case.H * case.W > 1 and result.shape[1] > 1 and result.shape[2:].numel() > 1
            if told and result.is_contiguous(memory_format=_format(case.layout)) is False:
                wrong.append(f"{name} {case}: strides {result.stride()}")
    return wrong


def small_enough(cases: list[Case], device: torch.device, macs: int = SIMT_MACS) -> list[Case]:
    """As they are on a GPU; else reduced, without repeats."""
    return cases if device.type == "cuda" else list(dict.fromkeys(case.reduced(macs) for case in cases))


def wrong_edge_cases(device: torch.device) -> list[str]:
    return wrong_cases(small_enough(edge_cases(), device), device)


def wrong_random_cases(device: torch.device) -> list[str]:
    cases = random_cases(200 if EVERYTHING or device.type == "cuda" else 60)
    return wrong_cases(small_enough(cases, device, SIMT_MACS // 8), device)


def wrong_models(device: torch.device) -> list[str]:
    """Every layer of the models, in both layouts and 16-bit dtypes on a GPU, else in turn."""
    cases = [case for model in MODELS for case in model_cases(model)]
    variants = [(layout, DTYPES[dtype]) for layout in LAYOUTS for dtype in ("bfloat16", "float16")]
    if device.type == "cuda":
        every = [case._replace(layout=layout, dtype=dtype) for case in cases for layout, dtype in variants]
    else:
        every = [case._replace(layout=variants[i % 4][0], dtype=variants[i % 4][1]) for i, case in enumerate(cases)]
    return wrong_cases(small_enough(every, device), device)


def wrong_activations(device: torch.device) -> list[str]:
    """Each activation of a sweep of values, through a convolution that changes none, against torch in float64.

    Where torch itself computes, on CPU tensors, its own activation is what is expected: its gelu of infinity is NaN on some
    CPUs.
    """
    sweep = [
        *torch.linspace(-12, 12, 2001 if EVERYTHING or device.type == "cuda" else 501).tolist(),
        *(sign * 10.0**e for sign in (1, -1) for e in range(-7, 5)),
        88.0,
        -88.0,
        0.0,
    ]
    special = [torch.inf, -torch.inf, torch.nan]
    wrong = []
    for dtype, name in itertools.product(DTYPES.values(), ACTIVATIONS):
        x = torch.tensor(sweep + special).to(dtype)[None, None, None].to(device)
        weight = torch.ones(1, 1, 1, 1, dtype=dtype, device=device)
        exact, torchs = TORCH_ACTIVATIONS[name](x.double()), TORCH_ACTIVATIONS[name](x.float()).double()
        for algorithm in hipconv.conv2d_plan(x, weight).serves:
            expected = torchs if algorithm == "torch" else exact
            out = hipconv.conv2d(x, weight, activation=name, algorithm=algorithm)
            plain = expected.isfinite()
            eps = torch.finfo(dtype).eps
            off = (out.double() - expected)[plain].abs() > 0.51 * eps * expected[plain].abs() + 4e-7 * (
                1 + expected[plain].abs()
            )
            if off.any():
                at = int(off.nonzero()[0])
                wrong.append(f"{algorithm} {name} {dtype} of {x[plain][at]}: {out[plain][at]}, expected {expected[plain][at]}")
            if not torch.allclose(out[~plain].double(), expected[~plain], equal_nan=True):
                got = f"{out[~plain].tolist()}, expected {expected[~plain].tolist()}"
                wrong.append(f"{algorithm} {name} {dtype} of {x[~plain].tolist()}: {got}")
    return wrong


def wrong_stability(device: torch.device) -> list[str]:
    """The same bits every time; NaN and infinities where they belong;
    sums beyond float16's range on the way to a result within.
    """
    wrong = []
    channels = 400 if device.type == "cuda" else 144  # several steps of every GEMM
    for layout, dtype in itertools.product(LAYOUTS, DTYPES.values()):
        case = Case(2, 40, 9, 11, 24, 3, 3, padding=1, dtype=dtype, layout=layout)
        arguments = case.inputs(device)
        # Where no output sees two of them: each at each of these places, in one dtype or another.
        touched = arguments["x"].clone()
        turn = [*DTYPES.values()].index(dtype)
        odds = [(torch.nan, torch.inf, -torch.inf)[(turn + place) % 3] for place in range(3)]
        touched[0, 0, 0, 0], touched[1, 7, 4, 10], touched[1, 39, 8, 3] = odds
        reached = reference_of(arguments | {"x": touched})
        for algorithm in exact(hipconv.conv2d_plan(**arguments).serves):
            run = functools.partial(hipconv.conv2d, algorithm=algorithm)
            where = f"{algorithm} {case}"
            once = run(**arguments)
            if not all(torch.equal(once, run(**arguments)) for _ in range(3 if device.type == "cuda" else 1)):
                wrong.append(f"{where}: not the same bits every time")
            out, finite = run(**arguments | {"x": touched}), reached.isfinite()
            infinite = reached.isinf()
            same = torch.equal(out.isnan(), reached.isnan()) and torch.equal(out[infinite].double(), reached[infinite])
            if not same or not torch.equal(out[finite], once[finite]):
                wrong.append(f"{where}: {odds} reach other outputs than those that see them")
            # Products of 9e4, which cancel: half of the channels up, half down.
            level = torch.full((1, channels, 5, 5), 300.0, device=device).to(dtype).contiguous(memory_format=_format(layout))
            signs = (
                torch.where(torch.arange(channels, device=device) < channels // 2, 300.0, -300.0)
                .to(dtype)
                .expand(8, channels)
                .reshape(8, channels, 1, 1)
            )
            large = run(level, signs)
            if not torch.equal(large, torch.zeros_like(large)):
                wrong.append(f"{where}: a sum of products that cancel is {large.flatten()[0]}, expected 0")
            overflow = run(level, signs.abs())
            if dtype == torch.float16 and not (overflow == torch.inf).all():
                wrong.append(f"{where}: a sum beyond the dtype's range is {overflow.flatten()[0]}, expected inf")
            tiny = run(torch.full_like(level, 2.0**-20), torch.full_like(signs, 2.0**-3))
            if dtype != torch.float16 and not torch.equal(tiny, torch.full_like(tiny, channels * 2.0**-23)):
                wrong.append(f"{where}: small values: {tiny.flatten()[0]}")
    return wrong


def _format(layout: str) -> torch.memory_format:
    return torch.channels_last if layout == "nhwc" else torch.contiguous_format


WRONG = {
    "edge": wrong_edge_cases,
    "random": wrong_random_cases,
    "stability": wrong_stability,
    "activations": wrong_activations,
    "models": wrong_models,
}


@pytest.mark.parametrize("mode", MODES)
def test_mode(request: pytest.FixtureRequest, device: torch.device, mode: str) -> None:
    if mode == "edge" and "wave32" in request.node.name and not EVERYTHING:
        pytest.skip("runs with HIPCONV_TEST_ARCHS=all: the other modes have the same kernels in waves of 32 lanes")
    wrong = WRONG[mode](device)
    assert not wrong, "\n".join(wrong)


# ---- invariances -------------------------------------------------------------------------------------------------------------


def integers(*shape: int, limit: int, seed: int = 0) -> Tensor:
    return torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def serving(**arguments: Any) -> list[str]:
    return exact(hipconv.conv2d_plan(**arguments).serves)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_integers_are_exact(device: torch.device, layout: str) -> None:
    """Sums of f32 that are exact, rounded once: bit for bit, whatever the order of the sum."""
    shapes = [
        (2, 64, 9, 8, 40, 3, 3, 1, 1),
        (1, 24, 7, 7, 16, 1, 1, 0, 1),
        (1, 3, 12, 12, 8, 7, 7, 3, 1),
        (2, 30, 6, 6, 20, 3, 3, 1, 2),
    ]
    for dtype, (N, C, H, W, K, R, S, padding, groups) in itertools.product(DTYPES.values(), shapes):
        arguments: dict[str, Any] = {
            "x": integers(N, C, H, W, limit=3).to(device, dtype).contiguous(memory_format=_format(layout)),
            "weight": integers(K, C // groups, R, S, limit=2, seed=1)
            .to(device, dtype)
            .contiguous(memory_format=_format(layout)),
            "bias": integers(K, limit=9, seed=2).to(device, dtype),
            "padding": padding,
            "groups": groups,
            "activation": "relu",
        }
        expected = reference_of(arguments)
        arguments["residual"] = integers(*expected.shape, limit=9, seed=3).to(device, dtype)
        expected = reference_of(arguments)
        for name in serving(**arguments):
            for out_dtype in DTYPES.values():
                out = hipconv.conv2d(**arguments, algorithm=name, out_dtype=out_dtype)
                assert out.dtype == out_dtype and torch.equal(out, expected.to(out_dtype)), (
                    name,
                    dtype,
                    out_dtype,
                    (N, C, H, W, K, R, S),
                )


def test_every_dtype_of_bias_residual_and_result(device: torch.device) -> None:
    for dtype, bias_dtype, residual_dtype, out_dtype in itertools.product(DTYPES.values(), repeat=4):
        arguments = Case(1, 8, 5, 6, 9, 3, 3, padding=1, dtype=dtype, has_residual=True, activation="relu").inputs(device)
        arguments["bias"], arguments["residual"] = arguments["bias"].to(bias_dtype), arguments["residual"].to(residual_dtype)
        for name in serving(**arguments, out_dtype=out_dtype):
            result = hipconv.conv2d(**arguments, out_dtype=out_dtype, algorithm=name)
            wrong = mismatch_conv2d(result, arguments)
            assert result.dtype == out_dtype and wrong is None, f"{name}: {wrong}"


def strided(values: Tensor, order: tuple[int, ...], gap: int, offset: int, fill: float = 42.0) -> tuple[Tensor, Tensor]:
    """These values in memory where the axes follow each other in `order`, the last the densest, `gap` elements apart;
    and all of that.
    """
    strides, step = [0] * values.dim(), gap
    for axis in reversed(order):
        strides[axis] = step
        step *= values.shape[axis] + (gap > 1)
    buffer = torch.full((offset + step + 17,), fill, dtype=values.dtype, device=values.device)
    view = buffer.as_strided(values.shape, strides, offset)
    return view.copy_(values), buffer


ORDERS = {
    "nchw": (0, 1, 2, 3),
    "nhwc": (0, 2, 3, 1),
    "batch inside": (1, 2, 3, 0),
    "rows inside": (0, 1, 3, 2),
    "hwnc": (2, 3, 0, 1),
}


@pytest.mark.parametrize("gap", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_any_strides_give_the_same_result_and_nothing_else_is_written(device: torch.device, order: str, gap: int) -> None:
    arguments = Case(2, 12, 7, 6, 10, 3, 3, padding=1, has_residual=True, dtype=torch.float16).inputs(device)
    expected = reference_of(arguments)
    for change, out_order in itertools.product(("all", "x", "weight", "residual", "out"), ORDERS):
        if change != "all" and out_order not in ("nchw", "nhwc"):
            continue
        changed = dict(arguments)
        for name in ("x", "weight", "residual"):
            if change in ("all", name):
                changed[name] = strided(arguments[name], ORDERS[order], gap, offset=gap)[0]
        if change == "all":
            changed["bias"] = torch.stack([arguments["bias"]] * 3, 1)[:, 1]
        for name in serving(**changed):
            result = hipconv.conv2d(**changed, algorithm=name)
            assert mismatch_conv2d(result, arguments, expected) is None, (name, change)
            out, buffer = strided(torch.full_like(result, torch.nan), ORDERS[out_order], gap, offset=5)
            assert hipconv.conv2d(**changed, algorithm=name, out=out) is out
            assert mismatch_conv2d(out, arguments, expected) is None, (name, change)
            out.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside out"


def test_expanded_inputs_and_views(device: torch.device) -> None:
    whole = torch.randn(3, 1, 9, 1, device=device)
    x, weight = whole.expand(3, 6, 9, 8), torch.randn(8, 1, 1, 3, device=device).expand(8, 6, 3, 3)
    bias, residual = torch.randn(1, device=device).expand(8), torch.randn(3, 1, 1, 1, device=device).expand(3, 8, 7, 6)
    arguments: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "residual": residual, "activation": "none"}
    for name in serving(**arguments):
        assert mismatch_conv2d(hipconv.conv2d(**arguments, algorithm=name), arguments) is None
    wide = torch.randn(2, 20, 9, 9, device=device).contiguous(memory_format=torch.channels_last)
    half: dict[str, Any] = {
        "x": wide[:, 5:17, ::2, 1:],
        "weight": torch.randn(8, 12, 2, 2, device=device),
        "activation": "none",
    }
    for name in serving(**half):
        result = hipconv.conv2d(**half, algorithm=name)
        assert mismatch_conv2d(result, half) is None
        assert result.is_contiguous(memory_format=torch.channels_last)


def test_images_do_not_depend_on_their_batch(device: torch.device) -> None:
    arguments = Case(5, 24, 8, 8, 16, 3, 3, padding=1, layout="nhwc").inputs(device)
    for name in serving(**arguments):
        together = hipconv.conv2d(**arguments, algorithm=name)
        for n in range(5):
            alone = hipconv.conv2d(**arguments | {"x": arguments["x"][n : n + 1]}, algorithm=name)
            assert mismatch_conv2d(alone, arguments | {"x": arguments["x"][n : n + 1]}, together[n : n + 1].double()) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_image_without_a_batch(device: torch.device, layout: str) -> None:
    arguments = Case(1, 6, 8, 9, 4, 3, 3, has_residual=True, layout=layout).inputs(device)
    batched = hipconv.conv2d(**arguments)
    single = arguments | {"x": arguments["x"][0], "residual": arguments["residual"][0]}
    result = hipconv.conv2d(**single)
    assert torch.equal(result, batched[0]) and result.stride() == batched[0].stride()
    out = torch.empty_like(result)
    assert hipconv.conv2d(**single, out=out) is out and torch.equal(out, result)
    assert mismatch_conv2d(result, single) is None


def test_empty_batches_and_channels(device: torch.device) -> None:
    weight, bias = torch.randn(4, 3, 3, 3, device=device), torch.randn(4, device=device)
    assert hipconv.conv2d(torch.empty(0, 3, 8, 8, device=device), weight, bias).shape == (0, 4, 6, 6)
    assert hipconv.conv2d(torch.empty(2, 3, 8, 8, device=device), weight[:0], bias[:0]).shape == (2, 0, 6, 6)
    out = torch.empty(0, 4, 6, 6, device=device)
    assert hipconv.conv2d(torch.empty(0, 3, 8, 8, device=device), weight, bias, out=out) is out
    plan = hipconv.conv2d_plan(torch.empty(0, 3, 8, 8, device=device), weight)
    assert plan.flops == 0 and (plan.algorithm in ("none", "torch"))


def test_the_layout_of_the_result_is_that_of_x_or_where_that_is_open_of_weight(device: torch.device) -> None:
    def result(x: Tensor, weight: Tensor) -> str:
        out = hipconv.conv2d(x, weight)
        assert mismatch_conv2d(out, {"x": x, "weight": weight, "activation": "none"}) is None
        return "nhwc" if out.is_contiguous(memory_format=torch.channels_last) else "nchw"

    image, filters = torch.randn(2, 4, 6, 6, device=device), torch.randn(5, 4, 3, 3, device=device)
    one_channel, its_filters = torch.randn(2, 1, 6, 6, device=device), torch.randn(5, 1, 3, 3, device=device)
    last = functools.partial(torch.Tensor.contiguous, memory_format=torch.channels_last)
    assert [result(x, w) for x in (image, last(image)) for w in (filters, last(filters))] == ["nchw", "nchw", "nhwc", "nhwc"]
    assert result(last(one_channel), last(its_filters)) == "nchw"
    pixel = torch.randn(2, 4, 1, 1, device=device)  # with a result of more than one pixel, whose layout can be seen
    assert [hipconv.conv2d(x, w, padding=2).stride(1) for x in (pixel, last(pixel)) for w in (filters, last(filters))] == [
        9,
        1,
        9,
        1,
    ]
    row = torch.randn(2, 4, 1, 6, device=device)
    assert [hipconv.conv2d(x, filters, padding=1).stride(1) for x in (row, last(row))] == [6, 1]


# ---- far apart ---------------------------------------------------------------------------------------------------------------

FAR = (1 << 31) + 8  # elements: the second of three along an axis lies past 2^31, the third past 2^32


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("far", ["x", "weight", "residual", "out"])
def test_offsets_past_2_32_elements(device: torch.device, far: str, axis: int) -> None:
    """Few elements far apart, in memory that is reserved and hardly touched."""
    if device.type == "cuda" or hipconv.ops.conv2d.operators.on_cpu(torch.empty(0)):
        return  # on a GPU the memory would be real; on the CPU it is torch that computes
    arguments = Case(3, 16, 3, 3, 3, 3, 3, padding=1, has_residual=True, dtype=torch.float16).inputs(device)
    shape = arguments[far].shape if far != "out" else (3, 3, 3, 3)
    sizes = [min(3, size) for size in shape]  # of which three along `axis` are enough
    if axis == 1 and far in ("x", "weight"):
        arguments["x"], arguments["weight"] = arguments["x"][:, :3].contiguous(), arguments["weight"][:, :3].contiguous()
        shape = arguments[far].shape
    strides = [FAR if k == axis else math.prod(shape[k + 1 :]) for k in range(4)]
    view = untouched(tuple(shape) if len(sizes) == 4 else tuple(sizes), tuple(strides), torch.float16)
    if far == "out":
        for name in serving(**arguments):
            hipconv.conv2d(**arguments, out=view.fill_(torch.nan), algorithm=name)
            assert mismatch_conv2d(view, arguments) is None, name
        return
    changed = arguments | {far: view.copy_(arguments[far])}
    for name in serving(**changed):
        assert mismatch_conv2d(hipconv.conv2d(**changed, algorithm=name), arguments) is None, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_2_32_elements(layout: str) -> None:
    device, shape = torch.device("cuda"), (3, 512, 1673, 1673)  # 4.3e9 elements, 8.6 GB each for x and out
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    assert math.prod(shape) > 1 << 32
    x = torch.empty(shape, dtype=torch.bfloat16, device=device, memory_format=_format(layout)).normal_()
    weight = torch.randn(512, 16, 3, 3, device=device, dtype=torch.bfloat16) / 12
    out = hipconv.conv2d(x, weight, padding=1, groups=32)
    assert not any(part.isnan().any() for image in out for part in image.split(64))
    for n, k, row in ((0, 0, 0), (1, 255, 800), (2, 511, 1672), (2, 500, 1600)):
        first, last = max(0, row - 3), min(shape[2], row + 4)
        group = k // 16
        few: dict[str, Any] = {
            "x": x[n : n + 1, 16 * group : 16 * group + 16, first:last],
            "weight": weight[k : k + 1],
            "padding": 1,
        }
        expected = reference.conv2d(**few)[..., row - first, :]
        wrong = (out[n, k, row].double() - expected[0, 0]).abs().max()
        assert wrong < 0.05, (n, k, row, wrong)


# ---- the command -------------------------------------------------------------------------------------------------------------


def measure(case: Case, backend: str, algorithm: str, table: Table) -> bool:
    """Check one case against the reference, time it beside torch's own convolution, print its row; True if right."""
    device = device_of(backend)
    arguments = case.inputs(device)
    with use_backend(backend):
        plan = hipconv.conv2d_plan(**arguments, algorithm=algorithm)
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm=algorithm), arguments)
        ours = microseconds(lambda: hipconv.conv2d(**arguments, algorithm=algorithm), device)
    theirs = None
    if case.padding_mode == "zeros" and not case.has_residual and not isinstance(case.padding, tuple):
        names = ("x", "weight", "bias", "stride", "padding", "dilation", "groups")
        activate = TORCH_ACTIVATIONS[case.activation]
        theirs = microseconds(lambda: activate(F.conv2d(*(arguments[name] for name in names))), device)
    ratio = "" if theirs is None else f"{theirs / ours:.2f}x"
    table.row(case, plan.form, f"{ours:.1f}", f"{plan.flops / ours / 1e6:.3f}", ratio, wrong or "ok")
    return wrong is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", type=list_of(choice_of(*MODES, "all")), nargs="+", help="check these sets of cases")
    for flag, plain in (
        ("N", "1"),
        ("C", "64"),
        ("H", "56"),
        ("W", "56"),
        ("K", "64"),
        ("R", "3"),
        ("S", "3"),
        ("groups", "1"),
    ):
        parser.add_argument(f"--{flag}", type=list_of(int), nargs="+", default=[[int(plain)]])
    parser.add_argument("--stride", type=int, nargs="+", default=[1], help="one number, or height and width")
    parser.add_argument(
        "--padding", nargs="+", default=["0"], help="one number, height and width, top bottom left right, same or valid"
    )
    parser.add_argument("--dilation", type=int, nargs="+", default=[1])
    parser.add_argument("--padding_mode", default="zeros")
    parser.add_argument("--activation", type=list_of(choice_of(*ACTIVATIONS)), nargs="+", default=[["none"]])
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[list(DTYPES)])
    parser.add_argument("--layout", type=choice_of(*LAYOUTS, "both"), default="both")
    parser.add_argument("--algorithm", type=choice_of("auto", "torch", *conv2d_router.METHODS), default="auto")
    parser.add_argument("--residual", action="store_true")
    parser.add_argument("--no_bias", action="store_true")
    parser.add_argument(
        "--backend", type=list_of(choice_of("cpu", "simt", "gpu")), nargs="+", help=f"default: {','.join(backends())}"
    )
    options = parser.parse_args()

    chosen = flattened(options.backend) if options.backend else backends()
    torch.backends.cudnn.allow_tf32 = False  # the gates are those of true float32
    if options.mode:
        modes = MODES if "all" in flattened(options.mode) else flattened(options.mode)
        failures = 0
        for backend, mode in itertools.product(chosen, modes):
            with use_backend(backend):
                wrong = WRONG[mode](device_of(backend))
            print(f"{backend} {mode}: {'ok' if not wrong else f'{len(wrong)} wrong'}", *wrong, sep="\n  ", flush=True)
            failures += len(wrong)
        return 1 if failures else 0

    padding: Any = [int(value) if value.isdigit() else value for value in options.padding]
    padding = padding[0] if len(padding) == 1 else tuple(padding)
    stride, dilation = ((values[0], values[-1]) for values in (options.stride, options.dilation))
    sizes = itertools.product(*(flattened(getattr(options, flag)) for flag in ("N", "C", "H", "W", "K", "R", "S")))
    layouts = LAYOUTS if options.layout == "both" else (options.layout,)
    kinds = itertools.product(flattened(options.groups), flattened(options.dtype), layouts, flattened(options.activation))
    table = Table([("case", 60), ("runs", 28), ("us", 10), ("TFLOP/s", 8), ("vs torch", 8), ("result", 6)])
    right = True
    for size, (groups, dtype, layout, activation) in itertools.product(sizes, list(kinds)):
        case = Case(*size)._replace(
            stride=stride, padding=padding, dilation=dilation, groups=groups, dtype=DTYPES[dtype], layout=layout
        )
        case = case._replace(has_bias=not options.no_bias, activation=activation, has_residual=options.residual)
        for backend in chosen:
            right &= measure(case._replace(padding_mode=options.padding_mode), backend, options.algorithm, table)
    return 0 if right else 1
