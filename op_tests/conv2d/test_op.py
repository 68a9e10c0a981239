"""hipconv.conv2d as an operator of torch: gradients, compilation, graphs; and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, zeros
import torch.nn.functional as F

from conv2d.cases import ACTIVATIONS, LAYOUTS, Case, mismatch_conv2d
from support.backends import WAYS, device_of, environment
from support.marks import needs_gpu
import hipconv
from hipconv import conv2d_router, jit, targets
from hipconv.ops.conv2d.activations import ACTIVATIONS as TORCH_ACTIVATIONS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# ---- gradients ---------------------------------------------------------------------------------------------------------------

PADDINGS: dict[str, list] = {
    "zeros": [0, (1, 2), (2, 0, 1, 3), "same"],
    "reflect": [(2, 1), (2, 0, 1, 3)],
    "replicate": [(2, 0, 1, 3)],
    "circular": [(1, 2), (2, 0, 1, 4)],
}


def by_torch(case: Case, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """The same from torch's own functions, whose gradients are right."""
    (top, bottom), (left, right) = case.sides
    padded = F.pad(x, (left, right, top, bottom), mode="constant" if case.padding_mode == "zeros" else case.padding_mode)
    result = F.conv2d(padded, weight, bias, case.stride, 0, case.dilation, case.groups)
    return TORCH_ACTIVATIONS[case.activation](result if residual is None else result + residual)


def check_gradients(case: Case, device: torch.device, wanted: tuple[str, ...] = ("x", "weight", "bias", "residual")) -> None:
    arguments = case.inputs(device)
    arguments.setdefault("residual", None)
    inputs = [arguments[name] for name in ("x", "weight", "bias", "residual")]
    leaves = [arguments[name].requires_grad_() for name in wanted if arguments[name] is not None]
    ours, theirs = hipconv.conv2d(**arguments), by_torch(case, *inputs)
    assert torch.allclose(ours, theirs, atol=1e-5), f"{case}: forward"
    direction = torch.randn_like(theirs)
    gradients = (torch.autograd.grad(result, leaves, direction) for result in (ours, theirs))
    for leaf, a, b in zip(leaves, *gradients, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, atol=1e-4), (
            f"{case}: gradient of {tuple(leaf.shape)}"
        )


@pytest.mark.parametrize("mode", PADDINGS)
def test_gradients_are_those_of_torch(device: torch.device, mode: str) -> None:
    for padding, layout, groups in itertools.product(PADDINGS[mode], LAYOUTS, (1, 2)):
        case = Case(2, 4, 6, 7, 6, 3, 2, padding=padding, groups=groups, padding_mode=mode, layout=layout, dtype=torch.float32)
        check_gradients(case, device)
        if padding != "same":
            check_gradients(case._replace(stride=(2, 1), dilation=(1, 2), has_bias=False), device)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_activations_and_of_any_subset_of_inputs(device: torch.device, activation: str) -> None:
    case = Case(2, 4, 5, 5, 3, 3, 3, padding=1, dtype=torch.float32, activation=activation, has_residual=True)
    check_gradients(case, device)
    for wanted in (("x",), ("weight",), ("bias",), ("residual",), ("weight", "bias")):
        check_gradients(case, device, wanted)
    check_gradients(case._replace(has_residual=False, has_bias=False), device, ("x", "weight"))


def test_gradients_in_16_bits_have_the_dtypes_of_their_inputs(device: torch.device) -> None:
    arguments = Case(2, 8, 6, 6, 5, 3, 3, padding=1, dtype=torch.bfloat16, activation="silu", has_residual=True).inputs(device)
    arguments["bias"], arguments["residual"] = arguments["bias"].float(), arguments["residual"].half()
    names = ("x", "weight", "bias", "residual")
    exact = [arguments[name].double().requires_grad_() for name in names]
    leaves = [arguments[name].requires_grad_() for name in names]
    theirs = F.silu(F.conv2d(exact[0], exact[1], exact[2], padding=1) + exact[3])
    ours = hipconv.conv2d(**arguments)
    direction = torch.randn_like(theirs)
    for leaf, a, b in zip(
        leaves,
        torch.autograd.grad(ours, leaves, direction.to(ours.dtype)),
        torch.autograd.grad(theirs, exact, direction),
        strict=True,
    ):
        assert a.dtype == leaf.dtype and (a.double() - b).norm() < 0.01 * b.norm()


@pytest.mark.parametrize("activation", ["none", "silu", "tanh"])
def test_gradients_can_be_differentiated_again(device: torch.device, activation: str) -> None:
    case = Case(1, 2, 4, 4, 2, 3, 3, padding=(1, 0, 0, 1), padding_mode="circular", dtype=torch.float32, activation=activation)
    arguments = case.inputs(device)
    x, weight = arguments["x"].requires_grad_(), arguments["weight"].requires_grad_()
    penalties = []
    for result in (hipconv.conv2d(**arguments), by_torch(case, x, weight, arguments["bias"])):
        (dx,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(dx.square().sum(), (x, weight)))
    for ours, theirs in zip(*penalties, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)


# ---- torch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "activation"), [("nchw", "none"), ("nhwc", "silu")])
def test_opcheck(device: torch.device, layout: str, activation: str) -> None:
    case = Case(
        2,
        4,
        6,
        5,
        6,
        3,
        3,
        (1, 2),
        (1, 1, 0, 2),
        groups=2,
        layout=layout,
        dtype=torch.float32,
        has_residual=activation != "none",
    )
    a = case.inputs(device)
    tensors = [a["x"], a["weight"], a["bias"], a.get("residual")]
    options = ([1, 2], [1, 1, 0, 2], [1, 1], 2)
    out = torch.zeros(2, 6, 6, 3, device=device)
    torch.library.opcheck(torch.ops.hipconv.conv2d_out.default, (out, *tensors, *options), {"activation": activation})
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.hipconv.conv2d.default, (*leaves, *options), {"activation": activation})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_into_one_graph_with_gradients(device: torch.device, layout: str) -> None:
    arguments = Case(2, 4, 6, 5, 6, 3, 3, dtype=torch.float32, layout=layout, has_residual=True, padding="same").inputs(device)
    x, weight, bias, residual = (arguments[name] for name in ("x", "weight", "bias", "residual"))

    def layers(x: Tensor, weight: Tensor) -> Tensor:
        y = hipconv.conv2d(x * 2, weight, bias, padding="same", activation="silu", residual=residual)
        return (
            hipconv.conv2d(y, weight[:, :1].expand(6, 6, 3, 3), stride=[2, 1], padding=(1, 0, 2, 1), padding_mode="reflect") + 1
        )

    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight), layers(x, weight))
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    ours, plain = (torch.autograd.grad(function(*leaves).square().sum(), leaves) for function in (compiled, layers))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(ours, plain, strict=True))


def test_compiles_once_for_any_size_of_image() -> None:
    weight = torch.randn(6, 4, 3, 3)

    def layer(x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], 6, x.shape[2], x.shape[3])
        return hipconv.conv2d(x * 2, weight, padding=1, out=out) + hipconv.conv2d(x, weight, padding="same", activation="relu")

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (6, 9, 11):
        x = torch.randn(2, 4, size, size + 1)
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)


def test_fake_tensors_need_no_kernel() -> None:
    x, weight = torch.empty(2, 6, 20, 20, device="meta"), torch.empty(8, 6, 3, 3, device="meta")
    result = hipconv.conv2d(x.to(memory_format=torch.channels_last), weight, stride=2, out_dtype=torch.float16)
    assert result.shape == (2, 8, 9, 9) and result.dtype == torch.float16 and result.stride(1) == 1
    hipconv.conv2d(x, weight, out=torch.empty(2, 8, 18, 18, device="meta"))


def test_the_way_past_the_dispatcher_gives_what_the_operator_gives(device: torch.device) -> None:
    arguments = Case(2, 4, 6, 5, 6, 3, 3, dtype=torch.float16).inputs(device)
    first = hipconv.conv2d(**arguments)
    with torch.profiler.profile() as watched:
        second = hipconv.conv2d(**arguments)
    assert torch.equal(first, second)
    assert any("hipconv::conv2d" in event.key for event in watched.key_averages())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_result_of_one_column_is_right_at_any_stride(device: torch.device, dtype: torch.dtype) -> None:
    """With AMX, torch 2.13 makes it of memory that nobody wrote in bfloat16."""
    for width, taps, step in ((4, 3, 2), (5, 4, 3), (7, 5, 3), (3, 2, 2)):
        case = Case(2, 16, 9, width, 8, 1, taps, stride=(1, step), dtype=dtype)
        for _ in range(3):
            assert mismatch_conv2d(hipconv.conv2d(**case.inputs(device)), case.inputs(device)) is None, case


def test_a_graph_that_saved_out_notices_that_it_was_written(device: torch.device) -> None:
    x, weight = torch.randn(1, 2, 4, 4, device=device), torch.randn(2, 2, 1, 1, device=device)
    out = torch.randn(1, 2, 4, 4, device=device)
    factor = torch.ones(1, device=device, requires_grad=True)
    for _ in range(2):  # through the operator, then past it
        saved = (factor * out).sum()
        with torch.no_grad():
            hipconv.conv2d(x, weight, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()


def test_warmup_has_nothing_to_build_for_the_cpu() -> None:
    with environment(**WAYS["cpu"]):
        target = targets.of(torch.device("cpu"))
        if not torch.cuda.is_available():
            hipconv.warmup(["conv2d"])
        with pytest.raises(hipconv.errors.BadRegistry, match=r"module 'conv2d' has no kernels for cpu"):
            jit.module("conv2d", target)


@needs_gpu
def test_a_graph_is_captured_after_warmup_and_replays() -> None:
    arguments = Case(1, 256, 14, 14, 256, 3, 3, padding=1, layout="nhwc", activation="relu").inputs(torch.device("cuda"))
    hipconv.warmup(["conv2d"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hipconv.conv2d(**arguments)
    for seed in (1, 2):
        arguments["x"].copy_(torch.randn(arguments["x"].shape, generator=torch.Generator().manual_seed(seed)))
        out.fill_(torch.nan)
        graph.replay()
        assert mismatch_conv2d(out, arguments) is None


@needs_gpu
def test_runs_on_the_current_stream_and_device() -> None:
    arguments = Case(4, 64, 40, 40, 64, 3, 3, padding=1, layout="nhwc").inputs(
        torch.device("cuda", torch.cuda.device_count() - 1)
    )
    hipconv.conv2d(**arguments)
    stream = torch.cuda.Stream(arguments["x"].device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # a launch on another stream would overtake this and read the old x
        arguments["x"].mul_(2)
        out = hipconv.conv2d(**arguments)
    stream.synchronize()
    assert mismatch_conv2d(out, arguments) is None


# ---- refusals ----------------------------------------------------------------------------------------------------------------

_X, _WEIGHT = (2, 6, 8, 9), (4, 3, 3, 3)

BAD: dict[str, tuple[dict[str, Any], type[Exception] | tuple[type[Exception], ...], str]] = {
    "x is no tensor": ({"x": [1.0]}, TypeError, r"^x: got \[1.0\], expected a torch.Tensor"),
    "bias is no tensor": ({"bias": 0.0}, TypeError, r"^bias: got 0.0, expected a torch.Tensor or None"),
    "x of five axes": (
        {"x": zeros(1, *_X)},
        ValueError,
        r"^x: got shape \(1, 2, 6, 8, 9\), expected \(batch, channels, height, width\)",
    ),
    "x of two axes": ({"x": zeros(8, 9)}, ValueError, r"^x: got shape \(8, 9\)"),
    "weight of three axes": (
        {"weight": zeros(4, 3, 3)},
        ValueError,
        r"^weight: got shape \(4, 3, 3\), expected \(out_channels",
    ),
    "channels of weight": (
        {"weight": zeros(4, 6, 3, 3)},
        ValueError,
        r"^weight: got shape \(4, 6, 3, 3\), expected \(out_channels, 3",
    ),
    "no taps": ({"weight": zeros(4, 3, 0, 3)}, ValueError, r"^weight: got shape \(4, 3, 0, 3\).*at least one tap"),
    "no channels": (
        {"x": zeros(2, 0, 8, 9), "weight": zeros(4, 0, 3, 3)},
        ValueError,
        r"^x: got shape \(2, 0, 8, 9\), expected at least",
    ),
    "groups and channels": (
        {"groups": 4},
        ValueError,
        r"^groups: got 4 for x of shape \(2, 6, 8, 9\), expected a divisor of its 6",
    ),
    "groups and filters": (
        {"weight": zeros(5, 3, 3, 3)},
        ValueError,
        r"^groups: got 2 for weight of shape .* divisor of its 5 filters",
    ),
    "no groups": ({"groups": 0}, ValueError, r"^groups: got 0, expected at least 1"),
    "half a group": ({"groups": 1.5}, TypeError, r"^groups: got 1.5, expected an int"),
    "bias": ({"bias": zeros(6)}, ValueError, r"^bias: got shape \(6,\), expected \(out_channels,\) = \(4,\)"),
    "residual": (
        {"residual": zeros(2, 4, 8, 9)},
        ValueError,
        r"^residual: got shape \(2, 4, 8, 9\), expected .* \(2, 4, 6, 7\)",
    ),
    "residual to broadcast": ({"residual": zeros(1, 4, 1, 1)}, ValueError, r"^residual: got shape \(1, 4, 1, 1\)"),
    "out": (
        {"out": zeros(2, 4, 6, 6)},
        ValueError,
        r"^out: got shape \(2, 4, 6, 6\), expected that of the result, \(2, 4, 6, 7\)",
    ),
    "stride": ({"stride": 0}, ValueError, r"^stride: got 0, expected at least 1"),
    "three strides": ({"stride": (1, 1, 1)}, ValueError, r"^stride: got \(1, 1, 1\), expected an int or a pair"),
    "half a stride": ({"stride": 0.5}, TypeError, r"^stride: got 0.5, expected integers"),
    "dilation": ({"dilation": (1, -1)}, ValueError, r"^dilation: got -1, expected at least 1"),
    "negative padding": ({"padding": (0, -1)}, ValueError, r"^padding: got -1, expected at least 0"),
    "three paddings": (
        {"padding": (1, 1, 1)},
        ValueError,
        r"^padding: got \(1, 1, 1\), expected an int or a pair, or \(top, bottom",
    ),
    "padding by name": ({"padding": "full"}, ValueError, r"^padding: got 'full', expected 'same', 'valid'"),
    "same with stride": ({"padding": "same", "stride": 2}, ValueError, r"^padding: got 'same' with stride \(2, 2\)"),
    "reflect too far": (
        {"padding": (0, 8, 0, 0), "padding_mode": "reflect"},
        ValueError,
        r"got 0 and 8 for an x of height 8, .* most 7",
    ),
    "circular too far": (
        {"padding": (0, 0, 10, 0), "padding_mode": "circular"},
        ValueError,
        r"got 10 and 0 for an x of width 9.* most 9",
    ),
    "padding mode": (
        {"padding_mode": "mirror"},
        ValueError,
        r"^padding_mode: got 'mirror', expected one of 'zeros', 'reflect'",
    ),
    "empty result": (
        {"dilation": 4},
        ValueError,
        r"^x: got shape \(2, 6, 8, 9\), whose height with padding is 8, expected at least 9",
    ),
    "empty image": ({"x": zeros(2, 6, 0, 9)}, ValueError, r"^x: got shape \(2, 6, 0, 9\), whose height"),
    "activation": ({"activation": "swish"}, ValueError, r"^activation: got 'swish', expected one of 'none', 'relu'"),
    "activation None": ({"activation": None}, ValueError, r"^activation: got None"),
    "dtype of x": ({"x": zeros(_X).double()}, TypeError, r"^x: got dtype torch.float64, expected torch.float32"),
    "dtype of weight": ({"weight": zeros(_WEIGHT).half()}, TypeError, r"^weight: got dtype torch.float16, expected that of x"),
    "dtype of bias": ({"bias": zeros(4).int()}, TypeError, r"^bias: got dtype torch.int32"),
    "dtype of residual": ({"residual": zeros(2, 4, 6, 7).bool()}, TypeError, r"^residual: got dtype torch.bool"),
    "out_dtype": ({"out_dtype": torch.float64}, TypeError, r"^out_dtype: got torch.float64"),
    "out_dtype and out": (
        {"out": zeros(2, 4, 6, 7), "out_dtype": torch.float16},
        TypeError,
        r"^out: got dtype torch.float32, expected out_dtype, torch.float16",
    ),
    "device": ({"weight": torch.zeros(_WEIGHT, device="meta")}, ValueError, r"^weight: got a tensor on meta, expected it on"),
    "sparse": ({"weight": zeros(_WEIGHT).to_sparse()}, TypeError, r"^weight: got a tensor of layout torch.sparse_coo"),
    "algorithm": ({"algorithm": "fastest"}, ValueError, r"^algorithm: got 'fastest', expected one of 'auto', '"),
    "algorithm's kind": ({"algorithm": None}, TypeError, r"^algorithm: got None, expected a string"),
    "workspace_limit": ({"workspace_limit": -1}, ValueError, r"^workspace_limit: got -1, expected a number of bytes"),
    "out expanded": (
        {"out": zeros(1, 4, 6, 7).expand(2, 4, 6, 7)},
        (ValueError, RuntimeError),
        r"out: got strides|single memory location",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_nothing_is_written(device: torch.device, case: str) -> None:
    changes, kind, message = BAD[case]
    moved = {name: v.to(device) if isinstance(v, Tensor) and not v.is_meta else v for name, v in changes.items()}
    if case == "out expanded":
        moved["out"] = changes["out"][:1].to(device).expand(2, 4, 6, 7)
    out = torch.full((2, 4, 6, 7), 42.0, device=device)
    good: dict[str, Any] = {"x": zeros(_X, device=device), "weight": zeros(_WEIGHT, device=device), "groups": 2, "out": out}
    if "out_dtype" in changes and "out" not in changes:
        del good["out"]
    for _ in range(2):  # a second call comes past the operator
        with pytest.raises(kind, match=message):
            hipconv.conv2d(**good | moved)
        hipconv.conv2d(zeros(1, 1, 1, 1, device=device), zeros(1, 1, 1, 1, device=device))
    assert (out == 42.0).all()


def test_out_may_not_share_memory_with_an_input(device: torch.device) -> None:
    if hipconv.ops.conv2d.operators.on_cpu(torch.empty(0, device=device)):
        x = torch.randn(1, 4, 6, 6)  # computed elsewhere first: fine
        expected = hipconv.conv2d(x, torch.eye(4)[..., None, None])
        assert torch.equal(hipconv.conv2d(x, torch.eye(4)[..., None, None], out=x), expected)
        return
    buffer = torch.randn(4, 8, 6, 6, device=device)
    out, apart = buffer[:2, :4], buffer[:2, 4:]
    good: dict[str, Any] = {
        "x": torch.randn(2, 4, 6, 6, device=device),
        "weight": torch.randn(4, 4, 1, 1, device=device),
        "bias": torch.randn(4, device=device),
        "residual": torch.randn(2, 4, 6, 6, device=device),
    }
    views = {"x": buffer[1:3, :4], "weight": buffer[0, :4, :4, :1, None], "bias": buffer[0, :4, 0, 0], "residual": out}
    before = buffer.clone()
    for name, view in views.items():
        with pytest.raises(ValueError, match=f"out: shares memory with {name}"):
            hipconv.conv2d(**good | {name: view}, out=out)
    assert torch.equal(buffer, before)
    hipconv.conv2d(**good | {"x": apart}, out=out)  # the other half of the same buffer


def test_a_tensor_that_requires_grad_is_refused_with_out(device: torch.device) -> None:
    x, weight = torch.randn(1, 2, 4, 4, device=device), torch.randn(2, 2, 1, 1, device=device, requires_grad=True)
    out = torch.zeros(1, 2, 4, 4, device=device)
    with pytest.raises(ValueError, match="weight: got a tensor that requires grad"):
        hipconv.conv2d(x, weight, out=out)
    assert not out.any()
    with torch.no_grad():
        hipconv.conv2d(x, weight, out=out)
    assert out.any()


@pytest.mark.parametrize("way", ("simt-wave64", "simt-wave32-shuffled"))
def test_all_that_a_plan_says_to_serve_a_call_runs_it(way: str) -> None:
    """Also where a tensor that may be absent begins at any boundary, as all do that torch makes."""
    layers = (
        Case(2, 8, 12, 14, 8, 5, 5, padding=2, groups=8),
        Case(2, 8, 12, 14, 8, 3, 3, padding=1, groups=8),
        Case(2, 16, 6, 6, 32, 1, 1),
        Case(1, 3, 12, 12, 16, 3, 3, stride=(2, 2)),
    )
    with environment(**WAYS[way]):
        for layer, layout, has_residual in itertools.product(layers, LAYOUTS, (False, True)):
            case = layer._replace(layout=layout, has_residual=has_residual)
            arguments = case.inputs(torch.device("cpu"))
            for algorithm in hipconv.conv2d_plan(**arguments).serves:
                hipconv.conv2d(**arguments, algorithm=algorithm)


def test_an_algorithm_is_forced_by_keyword_or_variable(device: torch.device) -> None:
    arguments = Case(1, 8, 6, 6, 8, 3, 3).inputs(device)
    here = hipconv.conv2d_plan(**arguments).serves
    for name in here:
        plan = hipconv.conv2d_plan(**arguments, algorithm=name)
        assert (plan.algorithm, plan.chosen_by) == (name, "algorithm")
        with environment(HIPCONV_CONV2D_ALGORITHM=name):
            plan = hipconv.conv2d_plan(**arguments)
            assert (plan.algorithm, plan.chosen_by) == (name, conv2d_router.VARIABLE)
            assert hipconv.conv2d_plan(**arguments, algorithm=here[0]).chosen_by == "algorithm"  # the keyword goes first
    # Only the other kind of device has this name.
    elsewhere = next(iter(conv2d_router.METHODS)) if "torch" in here else "torch"
    with environment(HIPCONV_CONV2D_ALGORITHM=elsewhere):
        assert hipconv.conv2d_plan(**arguments).chosen_by == "auto"
    hipconv.conv2d(**arguments)  # prepared from now on, and the variable is still asked
    with (
        environment(HIPCONV_CONV2D_ALGORITHM="fastest"),
        pytest.raises(ValueError, match=r"^HIPCONV_CONV2D_ALGORITHM: got 'fastest'"),
    ):
        hipconv.conv2d(**arguments)
