"""causal_conv1d, the new-tensor form; who can see a call of either form; kernels forced by HIPCONV_CONV1D_KERNEL."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import itertools
import random
from typing import Any
import warnings

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conv1d.cases import BAD_CALLS, STRIDES, Case, assert_matches, run
from support.backends import WAYS, environment
from support.tensors import DTYPES, LAYOUTS
import hipconv
from hipconv import jit, targets

# ---- the new tensor ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_new_tensor_form_is_the_out_form(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    for number, (activation, has_bias) in enumerate(itertools.product((None, "silu", "swish"), (True, False))):
        x, weight, bias, out = Case(2, 24, 33 + number, 4, dtype, torch.float32, has_bias=has_bias, layout=layout).inputs(
            device
        )
        kept = x.clone()
        hipconv.causal_conv1d_fwd(out, x, weight, bias, activation is not None)
        ours = hipconv.causal_conv1d(x, weight, bias, activation)
        assert torch.equal(ours, out) and torch.equal(x, kept)
        assert (ours.dtype, ours.device, ours.stride()) == (x.dtype, x.device, x.stride())


def _strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.randn(1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))).as_strided(
        shape, strides
    )


def _order(x: Tensor) -> list[int]:
    return sorted(range(3), key=x.stride, reverse=True)


@pytest.mark.parametrize("strides", STRIDES.values(), ids=STRIDES)
def test_result_is_dense_with_its_axes_in_the_order_of_x(device: torch.device, strides: tuple[int, int, int]) -> None:
    x = _strided((3, 5, 41), strides).to(device)
    out = hipconv.causal_conv1d(x, torch.ones(5, 1, device=device))
    assert torch.equal(out, x)
    assert sorted(out.stride()) == [1, out.stride(_order(out)[1]), out.stride(_order(out)[0])] and _order(out) == _order(x)
    span = 1 + sum((size - 1) * stride for size, stride in zip(out.shape, out.stride(), strict=True))
    assert span == out.numel(), "not dense"


OVERLAPPING = {  # strides of x, and of its result
    "batch expanded": ((0, 41, 1), (205, 41, 1)),
    "batch expanded, channel-last": ((0, 1, 5), (205, 1, 5)),
    "dim expanded": ((41, 0, 1), (205, 41, 1)),
    "both expanded": ((0, 0, 1), (205, 41, 1)),
    "windows of one row": ((41, 1, 1), (205, 1, 5)),
}


@pytest.mark.parametrize(("strides", "expected"), OVERLAPPING.values(), ids=OVERLAPPING)
def test_result_of_an_x_that_overlaps_itself(
    cpu_way: None, strides: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    x = _strided((3, 5, 41), strides)
    weight = torch.randn(5, 4)
    out = hipconv.causal_conv1d(x, weight)
    assert out.stride() == expected
    assert_matches(out, x, weight, None, False)


@pytest.fixture
def cpu_way():
    with environment(**WAYS["cpu"]):
        yield


def test_fake_strides_are_the_real_ones() -> None:
    """Return the strides that matter: along axes of more than one element."""
    draw = random.Random(5)
    fake_mode = torch._subclasses.fake_tensor.FakeTensorMode()
    for _ in range(100):
        shape = tuple(draw.randint(1, 5) for _ in range(3))
        x = _strided(shape, tuple(draw.choice([0, 1, 2, 3, 4, 5, 8, 12, 20, 60]) for _ in range(3)))
        real = hipconv.causal_conv1d(x, torch.ones(shape[1], 2))
        with fake_mode:
            fake = hipconv.causal_conv1d(fake_mode.from_tensor(x), torch.ones(shape[1], 2))
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert all(size == 1 or ours == theirs for size, ours, theirs in zip(shape, fake.stride(), real.stride(), strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0)])
def test_empty_x_gives_an_empty_result(device: torch.device, shape: tuple[int, int, int]) -> None:
    assert hipconv.causal_conv1d(torch.empty(shape, device=device), torch.empty(shape[1], 4, device=device)).shape == shape


@pytest.mark.parametrize("activation", ["relu", "SiLU", "", True, False, 1, ["silu"]], ids=repr)
def test_an_unknown_activation_is_refused(activation: Any) -> None:
    with pytest.raises(ValueError) as caught:
        hipconv.causal_conv1d(torch.zeros(1, 2, 3), torch.zeros(2, 4), activation=activation)
    assert str(caught.value) == f"activation: got {activation!r}, expected None, 'silu' or 'swish'"


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_of_the_new_tensor_form_is_refused_by_name(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    with device:
        good = {"x": torch.zeros(2, 6, 10), "weight": torch.zeros(6, 4), "bias": torch.zeros(6)}
        changes = make_changes()
    if changes.keys() & {"out", "use_silu"} or name.endswith("requires grad"):
        return
    if name == "x of float64" and targets.of(device).backend == "cpu":
        return  # which serves it
    with pytest.raises(error) as caught:
        hipconv.causal_conv1d(**(good | changes))
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


@pytest.mark.parametrize("form", [hipconv.causal_conv1d, hipconv.causal_conv1d_fn, torch.ops.hipconv.causal_conv1d])
def test_tensors_without_memory_are_refused_alike(form: Callable[..., Any]) -> None:
    good = {"x": torch.zeros(2, 6, 10), "weight": torch.zeros(6, 4), "bias": torch.zeros(6)}
    form(**{name: tensor.to("meta") for name, tensor in good.items()})
    refused = 0
    for name, (make_changes, error, words) in BAD_CALLS.items():
        changes = make_changes()
        kinds = {type(value) is torch.Tensor and value.layout == torch.strided for value in changes.values()}
        if kinds != {True} or "out" in changes or name.endswith(("requires grad", "another device")):
            continue
        if name == "x of float64" and form is not torch.ops.hipconv.causal_conv1d:
            continue  # served on the CPU
        for with_memory in (False, True):
            call = good | changes
            with pytest.raises(error) as caught:
                form(**call if with_memory else {key: tensor.to("meta") for key, tensor in call.items()})
            assert all(word in str(caught.value) for word in words), f"{name}: {caught.value}"
        refused += 1
    assert refused > 9


@pytest.mark.parametrize("activation", [None, "silu"])
def test_float64_is_served_on_the_cpu_whether_a_gradient_is_recorded_or_not(activation: str | None) -> None:
    x, weight, bias = torch.randn(2, 3, 9).double(), torch.randn(3, 4).double(), torch.randn(3)
    out = hipconv.causal_conv1d(x, weight, bias, activation)
    assert torch.allclose(out, hipconv.reference.causal_conv1d(x, weight, bias, activation is not None), rtol=1e-12, atol=1e-12)
    recorded = hipconv.causal_conv1d(x.requires_grad_(), weight, bias, activation)
    assert recorded.requires_grad and torch.equal(recorded, out)


def test_a_gradient_is_recorded_where_one_is_wanted(device: torch.device) -> None:
    x, weight, bias, _ = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(device)
    parameter = torch.nn.Parameter(weight)
    assert hipconv.causal_conv1d(x, parameter, bias).requires_grad
    with pytest.raises(ValueError, match=r"^kernel: got 'naive' with tensors that require grad, expected 'auto'"):
        hipconv.causal_conv1d(x, parameter, bias, kernel="naive")
    with pytest.raises(ValueError, match=r"^weight: .* requires grad.*: torch.ops.hipconv.causal_conv1d records no gradient"):
        torch.ops.hipconv.causal_conv1d(x, parameter, bias)
    with torch.no_grad():
        out = hipconv.causal_conv1d(x, parameter, bias)
    assert not out.requires_grad
    assert_matches(out, x, weight, bias, False)


def test_writing_into_a_saved_tensor_is_noticed_by_autograd(device: torch.device) -> None:
    weight = torch.ones(2, 2, device=device)
    saved = torch.ones(1, 2, 3, device=device)
    loss = (torch.ones(1, 2, 3, device=device, requires_grad=True) * saved).sum()
    hipconv.causal_conv1d_fwd(saved, torch.ones(1, 2, 3, device=device), weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        out = hipconv.causal_conv1d(torch.ones(1, 2, 3, device=device), weight)
    hipconv.causal_conv1d_fwd(out, torch.ones(1, 2, 3, device=device), weight)  # has no version to count


# ---- torch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(device: torch.device, layout: str) -> None:
    x, weight, bias, _ = Case(2, 6, 20, 4, torch.float32, torch.float32, layout=layout).inputs(device)
    op = torch.ops.hipconv.causal_conv1d.default
    torch.library.opcheck(op, (x, weight, bias, True))
    torch.library.opcheck(op, (x[:, ::2, 1:], weight[::2]), {"kernel_name": "auto"})


def test_compiles_into_one_graph_for_every_length(device: torch.device) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable:
        graphs.append(graph)
        return graph.forward

    def layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return hipconv.causal_conv1d(x * 2, weight, bias, "silu") + 1

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for seqlen in (20, 21, 35):
        x, weight, bias, _ = Case(2, 6, seqlen, 4, torch.float32, torch.float32).inputs(device)
        assert torch.equal(compiled(x, weight, bias), layer(x, weight, bias))
    assert len(graphs) == 1


def test_exports(device: torch.device) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return hipconv.causal_conv1d(x, weight, activation="silu")

    x, weight, _, _ = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(device)
    program = torch.export.export(Layer(), (x, weight))
    assert torch.equal(program.module()(x, weight), hipconv.causal_conv1d(x, weight, activation="silu"))


# ---- a call goes past torch's dispatcher, unless something there would see it ------------------------------------------------


@contextlib.contextmanager
def no_operator_may_run(monkeypatch: pytest.MonkeyPatch):
    """The operators' implementations look their module up here; a call that goes past them does not."""

    def refuse(*_: object) -> None:
        raise AssertionError("came through the operator")

    with monkeypatch.context() as patch:
        patch.setattr(jit, "module", refuse)
        yield


def test_plain_calls_go_past_the_dispatcher(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, out = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(device)
    run(x, weight)  # loads the module
    with no_operator_may_run(monkeypatch):
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
        assert torch.equal(hipconv.causal_conv1d(x, weight, bias, "silu"), out)
        with torch.no_grad():
            hipconv.causal_conv1d(x, torch.nn.Parameter(weight))
        with torch.inference_mode():
            hipconv.causal_conv1d(x, weight)
        with torch.autocast(device.type, torch.bfloat16):
            assert hipconv.causal_conv1d(x, weight).dtype == torch.float32
        with pytest.raises(AssertionError, match="came through the operator"):
            torch.ops.hipconv.causal_conv1d(x, weight)


class _Dispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class _Subclass(Tensor):
    seen: list[str]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        _Subclass.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def _by_mode(mode: type[_Dispatch | _Function], call: Callable[..., object], tensors: list[Tensor]) -> list[str]:
    with mode() as watcher:
        call(*tensors)
    return watcher.seen


def _by_subclass(position: int, call: Callable[..., object], tensors: list[Tensor]) -> list[str]:
    _Subclass.seen = []
    call(*(tensor.as_subclass(_Subclass) if i == position else tensor for i, tensor in enumerate(tensors)))
    return _Subclass.seen


def _by_profiler(call: Callable[..., object], tensors: list[Tensor]) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call(*tensors)
    return [f"{event.key}.default".replace("::", ".") for event in profiler.key_averages()]


def _by_make_fx(call: Callable[..., object], tensors: list[Tensor]) -> list[str]:
    return [str(node.target) for node in make_fx(call)(*tensors).graph.nodes if node.op == "call_function"]


def _by_tracer(call: Callable[..., object], tensors: list[Tensor]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(call, tuple(tensors), check_trace=False)
    return [f"{node.kind()}.default".replace("::", ".") for node in traced.graph.nodes() if "hipconv" in node.kind()]


WATCHERS: dict[str, Callable[[Callable[..., object], list[Tensor]], list[str]]] = {
    "dispatch mode": lambda *call: _by_mode(_Dispatch, *call),
    "function mode": lambda *call: _by_mode(_Function, *call),
    "x of a subclass": lambda *call: _by_subclass(0, *call),
    "weight of a subclass": lambda *call: _by_subclass(1, *call),
    "bias of a subclass": lambda *call: _by_subclass(2, *call),
    "out of a subclass": lambda *call: _by_subclass(3, *call),
    "profiler": _by_profiler,
    "make_fx": _by_make_fx,
    "tracer": _by_tracer,
}


@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("form", ["causal_conv1d_fwd", "causal_conv1d"])
def test_who_looks_on_sees_the_operator(cpu_way: None, form: str, watcher: str) -> None:
    x, weight, bias, out = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(torch.device("cpu"))
    assert bias is not None
    run(x, weight)  # loads the module: from here on a call could go past the operator

    def call(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        if form == "causal_conv1d":
            return hipconv.causal_conv1d(x, weight, bias, "silu")
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
        return out

    expected = [] if (form, watcher) == ("causal_conv1d", "out of a subclass") else [f"hipconv.{form}.default"]
    assert [name for name in WATCHERS[watcher](call, [x, weight, bias, out]) if "hipconv" in name] == expected


def test_lazily_negated_and_zero_tensors_are_read_as_what_they_mean(device: torch.device) -> None:
    x, weight, bias, _ = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(device)
    expected = run(-x, weight, bias)
    assert torch.equal(hipconv.causal_conv1d(torch._neg_view(x), weight, bias), expected)
    assert torch.equal(hipconv.causal_conv1d(-x, torch._neg_view(-weight), bias), expected)
    zeros = torch._efficientzerotensor(2, 6, 20, device=device)
    assert torch.equal(hipconv.causal_conv1d(zeros, weight, bias), run(torch.zeros_like(x), weight, bias))


def test_vmap_is_served(cpu_way: None) -> None:
    x, weight, bias, _ = Case(3, 6, 20, 4, torch.float32, torch.float32).inputs(torch.device("cpu"))
    expected = hipconv.causal_conv1d(x, weight, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it goes one by one
        assert torch.equal(torch.vmap(lambda x: hipconv.causal_conv1d(x[None], weight, bias)[0])(x), expected)


def test_fake_tensors_of_a_gpu_that_is_not_there(cpu_way: None) -> None:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        out = hipconv.causal_conv1d(torch.empty(2, 6, 20, device="cuda"), torch.empty(6, 4, device="cuda"))
    assert out.device.type == "cuda" and out.shape == (2, 6, 20)


# ---- HIPCONV_CONV1D_KERNEL ---------------------------------------------------------------------------------------------------


def _forced(by_variable: str, **call: Any) -> Tensor:
    with environment(HIPCONV_CONV1D_KERNEL=by_variable):
        return hipconv.causal_conv1d(**call)


def test_a_kernel_is_forced_by_environment(cpu_way: None) -> None:
    """The bits tell what ran: in float32 the two kernels round differently somewhere in so many outputs."""
    x, weight, bias, _ = Case(2, 64, 3000, 4, torch.float32, torch.float32).inputs(torch.device("cpu"))
    simd, openmp = (hipconv.causal_conv1d(x, weight, bias, "silu", kernel=kernel) for kernel in ("simd", "openmp"))
    assert not torch.equal(simd, openmp)
    call = {"x": x, "weight": weight, "bias": bias, "activation": "silu"}
    for kernel, expected in (("openmp", openmp), ("simd", simd), ("auto", simd), ("", simd), ("naive", simd)):  # naive: a GPU's
        assert torch.equal(_forced(kernel, **call), expected), kernel
    assert torch.equal(_forced("openmp", **call, kernel="simd"), simd), "the keyword wins"
    out = torch.empty_like(x)
    with environment(HIPCONV_CONV1D_KERNEL="openmp"):
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
        assert torch.equal(out, openmp)
        assert torch.equal(torch.ops.hipconv.causal_conv1d(x, weight, bias, True), openmp)


@pytest.mark.parametrize("shape", [(2, 6, 20), (2, 6, 0)])
def test_a_forced_name_that_no_backend_knows_is_refused(device: torch.device, shape: tuple[int, int, int]) -> None:
    call = {"x": torch.zeros(shape, device=device), "weight": torch.zeros(6, 4, device=device)}
    with pytest.raises(
        ValueError, match=r"^HIPCONV_CONV1D_KERNEL: got 'fastest', expected one of 'auto', .*'naive', 'simd', 'openmp'$"
    ):
        _forced("fastest", **call)
    with pytest.raises(ValueError, match=r"^kernel: got 'fastest'"):
        _forced("fastest", **call, kernel="fastest")


def test_a_forced_kernel_that_cannot_serve_says_which_can(device: torch.device) -> None:
    x, weight = torch.zeros(2, 6, 20, device=device), torch.zeros(6, 40, device=device)
    names = jit.module("causal_conv1d", targets.of(device)).causal_conv1d_fwd_kernels()
    if "openmp" in names:  # the CPU's kernels serve all of these calls
        assert hipconv.causal_conv1d_plan(x, weight).serves == tuple(names)
        return
    others = "'staged', 'naive'"
    for source, call in (
        ("kernel", lambda: hipconv.causal_conv1d(x, weight, kernel=names[0])),
        ("HIPCONV_CONV1D_KERNEL", lambda: _forced(names[0], x=x, weight=weight)),
    ):
        with pytest.raises(ValueError, match=rf"^{source}: got '{names[0]}', which serves .*; this call can have {others}$"):
            call()
    out = torch.full_like(x, 42.0)
    with pytest.raises(ValueError, match="which serves"):
        hipconv.causal_conv1d_fwd(out, x, weight, kernel=names[0])
    assert (out == 42.0).all()
