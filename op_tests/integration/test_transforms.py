"""torch's transforms apply to every function: derivatives in both directions and of second order, torch.func, vmap, autocast,
lazy negation and tensors of zeros without memory. The reference is the same transform of plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from support.backends import WAYS, device_of, environment
import hipconv
from hipconv import reference_training, serving
from hipconv.ops.conv2d.activations import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("one_thread")


DEVICES = ["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


IDS = torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, -1, -1]], dtype=torch.int32)


def _reference(x: Tensor, *others: Any, use_silu: bool, final: bool = False) -> Any:
    weight, bias, ids, states = (*others, None, None, None)[:4]
    out, state = reference_training.causal_conv1d(x, weight, bias, ids, states, use_silu)
    return (out.to(x.dtype), state) if final else out.to(x.dtype)


class Function(NamedTuple):
    """A function of ours and the same in plain torch, both of tensors of these shapes."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def _ids(x: Tensor) -> Tensor:
    return IDS.to(x.device)[: x.shape[0]]


_CONV1D = ((2, 3, 5), (3, 4), (3,))
_STATES = (*_CONV1D, (2, 3, 3))
_CONV2D = ((2, 4, 5, 4), (6, 2, 3, 3), (6,), (2, 6, 5, 4))
FUNCTIONS = {
    "causal_conv1d": Function(hipconv.causal_conv1d, lambda *a: _reference(*a, use_silu=False), _CONV1D),
    "causal_conv1d silu": Function(
        lambda x, w, b: hipconv.causal_conv1d(x, w, b, "silu"), lambda *a: _reference(*a, use_silu=True), _CONV1D
    ),
    "causal_conv1d_fn": Function(hipconv.causal_conv1d_fn, lambda *a: _reference(*a, use_silu=False), _CONV1D[:2]),
    "causal_conv1d_fn states": Function(
        lambda x, w, b, s: hipconv.causal_conv1d_fn(x, w, b, None, s, True, activation="silu"),
        lambda x, w, b, s: _reference(x, w, b, None, s, use_silu=True, final=True),
        _STATES,
    ),
    "causal_conv1d_fn packed": Function(
        lambda x, w, b, s: hipconv.causal_conv1d_fn(x, w, b, _ids(x), s, True, activation="silu"),
        lambda x, w, b, s: _reference(x, w, b, _ids(x), s, use_silu=True, final=True),
        _STATES,
    ),
    "conv2d": Function(
        lambda x, w, b: hipconv.conv2d(x, w, b, 1, (1, 0, 2, 1), groups=2, padding_mode="circular"),
        lambda x, w, b: F.conv2d(F.pad(x, (2, 1, 1, 0), mode="circular"), w, b, groups=2),
        _CONV2D[:3],
    ),
    **{
        f"conv2d {name}": Function(
            lambda x, w, b, r, name=name: hipconv.conv2d(x, w, b, 1, 1, groups=2, residual=r, activation=name),
            lambda x, w, b, r, name=name: ACTIVATIONS[name](F.conv2d(x, w, b, 1, 1, groups=2) + r),
            _CONV2D,
        )
        for name in ACTIVATIONS
    },
}
SOME = [name for name in FUNCTIONS if not name.startswith("conv2d ")] + ["conv2d relu", "conv2d silu"]


def inputs_of(function: Function, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Any]:
    torch.manual_seed(5)
    return [torch.randn(shape).to(device, dtype) for shape in function.shapes]


def total(results: Any) -> Tensor:
    """One number that depends on every result, not linearly."""
    return sum((result.sin().sum() for result in tree_leaves(results)), torch.zeros(()))


def _all(inputs: list[Tensor]) -> tuple[int, ...]:
    return tuple(range(len(inputs)))


def _directions(inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.full_like(t, 0.5) for t in inputs)


def _per_sample(f: Callable, inputs: list[Tensor]) -> Any:
    x, weight, bias, others = inputs[0], inputs[1], inputs[2:3], inputs[3:]

    def loss(weight: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        return total(f(x[None], weight, *bias, *(other[None] for other in others)))

    return vmap(grad(loss), (None, 0, *[0] * len(others)))(weight, x, *others)


def _ensemble(f: Callable, inputs: list[Tensor]) -> Any:
    x, weight, *others = inputs
    return vmap(f, (None, 1, *[0] * len(others)))(
        x, torch.stack([weight, 2 * weight], 1), *(torch.stack([t, -t]) for t in others)
    )


TRANSFORMS: dict[str, Callable[[Callable, list[Tensor]], Any]] = {
    "grad": lambda f, inputs: grad(lambda *a: total(f(*a)), _all(inputs))(*inputs),
    "vjp": lambda f, inputs: (result := vjp(lambda *a: total(f(*a)), *inputs))[1](torch.ones_like(result[0])),
    "jvp": lambda f, inputs: jvp(f, tuple(inputs), _directions(inputs)),
    "jvp of x": lambda f, inputs: jvp(lambda x: f(x, *inputs[1:]), (inputs[0],), _directions(inputs[:1])),
    "jvp of weight": lambda f, inputs: jvp(lambda w: f(inputs[0], w, *inputs[2:]), (inputs[1],), _directions(inputs[1:2])),
    "jvp of the last": lambda f, inputs: jvp(lambda t: f(*inputs[:-1], t), (inputs[-1],), _directions(inputs[-1:])),
    "jacrev": lambda f, inputs: jacrev(f, (0, 1))(*inputs),
    "jacfwd": lambda f, inputs: jacfwd(f, (0, 1))(*inputs),
    "hessian": lambda f, inputs: hessian(lambda *a: total(f(*a)), _all(inputs))(*inputs),
    "grad of grad": lambda f, inputs: grad(lambda *a: total(grad(lambda *a: total(f(*a)), _all(inputs))(*a)), _all(inputs))(
        *inputs
    ),
    "jvp of jvp": lambda f, inputs: jvp(
        lambda *a: jvp(f, a, _directions(inputs))[1], tuple(inputs), tuple(-t for t in _directions(inputs))
    ),
    "grad of jvp": lambda f, inputs: grad(lambda *a: total(jvp(f, a, _directions(inputs))[1]), _all(inputs))(*inputs),
    "per-sample gradients": _per_sample,
    "vmap of x": lambda f, inputs: vmap(lambda x: f(x, *inputs[1:]), 1, 1)(torch.stack([inputs[0], -inputs[0]], 1)),
    "vmap of all but x": _ensemble,
    "vmap of vmap": lambda f, inputs: vmap(vmap(f, (0, *[None] * (len(inputs) - 1))), (None, *[0] * (len(inputs) - 1)))(
        torch.stack([inputs[0], -inputs[0]]), *(torch.stack([t, -t, 2 * t]) for t in inputs[1:])
    ),
}

# These call each of the kernels; the rest calls them in other orders.
ON_SIMT = ("vjp", "jvp", "per-sample gradients", "vmap of all but x", "vmap of x")


def check_equal(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    ours, theirs = tree_leaves(found), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = max(1.0, b.abs().max().item() if b.numel() else 1.0)
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale), f"off by {(a - b).abs().max():.3g} of {scale:.3g}"


@pytest.mark.parametrize(
    ("device", "transform"),
    [(way, name) for way in DEVICES for name in TRANSFORMS if way != "simt-wave64" or name in ON_SIMT],
    indirect=["device"],
)
@pytest.mark.parametrize("name", SOME)
def test_torch_func(device: torch.device, name: str, transform: str) -> None:
    function = FUNCTIONS[name]
    inputs = inputs_of(function, device)
    if name == "conv2d relu" and transform in ("hessian", "grad of grad"):
        inputs = [t.abs() for t in inputs]  # away from where it has no derivative
    found = TRANSFORMS[transform](function.ours, inputs)
    check_equal(found, TRANSFORMS[transform](function.theirs, inputs))


def test_vmap_of_packed_rows_with_filters_of_their_own(device: torch.device) -> None:
    """The ids of a row are those of all its channels: nothing to fold, each is computed by itself."""
    x, weight, bias, states = inputs_of(FUNCTIONS["causal_conv1d_fn packed"], device)
    weights, ids = torch.stack([weight, 2 * weight]), torch.stack([_ids(x), _ids(x).flip(0)])

    def loss(call: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda x, w, i: total(call(x, w, i))

    def ours(x: Tensor, weight: Tensor, ids: Tensor) -> Any:
        return hipconv.causal_conv1d_fn(x, weight, bias, ids, states, True, activation="silu")

    def theirs(x: Tensor, weight: Tensor, ids: Tensor) -> Any:
        return _reference(x, weight, bias, ids, states, use_silu=True, final=True)

    for mapped in (lambda call: vmap(call, (None, 0, 0)), lambda call: vmap(grad(loss(call), (0, 1)), (None, 0, 0))):
        check_equal(mapped(ours)(x, weights, ids), mapped(theirs)(x, weights, ids))


def test_transforms_are_compiled() -> None:
    with environment(**WAYS["cpu"]):
        for name in ("causal_conv1d silu", "causal_conv1d_fn states", "conv2d silu"):
            function = FUNCTIONS[name]
            inputs = inputs_of(function, torch.device("cpu"))
            for transform in ("grad", "vmap of x", "jvp"):
                compiled = torch.compile(TRANSFORMS[transform], backend="aot_eager")
                check_equal(compiled(function.ours, inputs), TRANSFORMS[transform](function.theirs, inputs))
            torch._dynamo.reset()


def test_autocast_is_compiled() -> None:
    with environment(**WAYS["cpu"]):
        x, weight, bias, residual = inputs_of(FUNCTIONS["conv2d silu"], torch.device("cpu"))

        def layer(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return hipconv.conv2d(x, weight, bias, 1, 1, groups=2, residual=residual, activation="silu")

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), layer(x)) and compiled(x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in SOME])
def test_activations_have_derivatives_in_both_directions_and_of_second_order(name: str) -> None:
    function = FUNCTIONS[name]
    with environment(**WAYS["cpu"]):
        inputs = inputs_of(function, torch.device("cpu"))
        for transform in ("grad", "jvp", "grad of jvp"):
            check_equal(TRANSFORMS[transform](function.ours, inputs), TRANSFORMS[transform](function.theirs, inputs))


@pytest.mark.parametrize("use_silu", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_gradcheck_in_both_directions_and_of_second_order(packed: bool, use_silu: bool) -> None:
    def call(x: Tensor, weight: Tensor, bias: Tensor, states: Tensor) -> Any:
        return hipconv.causal_conv1d_fn(
            x, weight, bias, _ids(x) if packed else None, states, True, activation="silu" if use_silu else None
        )

    with environment(**WAYS["cpu"]):
        inputs = tuple(
            t.double().requires_grad_() for t in inputs_of(FUNCTIONS["causal_conv1d_fn states"], torch.device("cpu"))
        )
        assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, inputs, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("name", ["causal_conv1d silu", "causal_conv1d_fn packed", "conv2d silu"])
def test_a_model_of_two_layers_is_differentiated_twice(device: torch.device, name: str) -> None:
    """By torch.autograd itself, through the way past the dispatcher too."""
    function = FUNCTIONS[name]
    penalties = []
    for call in (function.ours, function.ours, function.theirs):  # the first call may load a module
        leaves = [t.requires_grad_() for t in inputs_of(function, device)]
        first = grad_of(total(call(*leaves)), leaves)
        penalties.append(grad_of(sum(g.square().sum() for g in first), leaves))
    check_equal(penalties[0], penalties[2])
    check_equal(penalties[1], penalties[2])


def grad_of(value: Any, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves, create_graph=True)


def test_modules_are_functions_of_their_parameters(device: torch.device) -> None:
    layer = hipconv.nn.CausalConv1d(6, 4, activation="silu").to(device)
    x = torch.randn(3, 6, 5, device=device)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return total(functional_call(layer, parameters, (x[None],)))

    each = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(3):
        check_equal({name: g[i] for name, g in each.items()}, grad(loss)(parameters, x[i]))


# ---- checkpoints -------------------------------------------------------------------------------------------------------------


def _layer(layer: torch.nn.Module) -> Callable[..., Any]:
    return lambda x, *parameters: tree_leaves(
        functional_call(layer, dict(zip(("weight", "bias"), parameters, strict=False)), (x,))
    )[0]


_CONV3D = ((1, 4, 3, 4, 5), (6, 2, 3, 3, 3), (6,), (1, 6, 3, 4, 5), (1, 4, 2, 4, 5))
CHECKPOINTED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {  # with the shapes of what it takes
    **{name: (function.ours, function.shapes) for name, function in FUNCTIONS.items()},
    **{
        f"conv3d {name}": (
            lambda x, w, b, r, c, name=name: hipconv.conv3d(
                x, w, b, 1, (0, 1, 1), groups=2, cache=c, residual=r, time_padding="zeros", activation=name
            ),
            _CONV3D,
        )
        for name in ("none", "relu", "silu")
    },
    "nn.CausalConv1d": (_layer(hipconv.nn.CausalConv1d(3, 4, activation="silu", device="meta")), ((2, 3, 5), (3, 1, 4), (3,))),
    "nn.ShortConvolution": (
        _layer(hipconv.nn.ShortConvolution(3, 4, activation="silu", device="meta")),
        ((2, 5, 3), (3, 1, 4)),
    ),
    "nn.Conv2d": (_layer(hipconv.nn.Conv2d(4, 6, 3, padding=1, groups=2, activation="silu", device="meta")), _CONV2D[:3]),
    "nn.CausalConv3d": (
        _layer(hipconv.nn.CausalConv3d(4, 6, 3, padding=1, groups=2, activation="silu", device="meta")),
        _CONV3D[:3],
    ),
}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_gradients_through_a_checkpoint_are_those_without(device: torch.device, name: str, use_reentrant: bool) -> None:
    function, shapes = CHECKPOINTED[name]
    torch.manual_seed(5)
    leaves = [torch.randn(shape).to(device).requires_grad_() for shape in shapes]

    def loss(*tensors: Tensor) -> Tensor:
        return total(function(*tensors))

    for _ in range(2):  # the first call may load a module
        expected = torch.autograd.grad(loss(*leaves), leaves)
        again = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        checkpoint(loss, *again, use_reentrant=use_reentrant).backward()
        check_equal([leaf.grad for leaf in again], expected, 1e-6)


# ---- writing behind a call ---------------------------------------------------------------------------------------------------

READ = {  # by the backward, beside x and weight
    **dict.fromkeys(("relu", "relu6", "sigmoid", "tanh", "leaky_relu"), ("result",)),
    **dict.fromkeys(("gelu", "gelu_tanh", "silu", "hardswish"), ("bias", "residual")),
    "none": (),
}


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, activation: str) -> Tensor:
    return hipconv.conv2d(x, weight, bias, 1, 1, groups=2, residual=residual, activation=activation)


def _conv3d(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, activation: str) -> Tensor:
    return hipconv.conv3d(x, weight, bias, 1, 1, groups=2, residual=residual, activation=activation)


@pytest.mark.parametrize("written", ["result", "bias", "residual"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("function", "shapes"), [(_conv2d, _CONV2D), (_conv3d, _CONV3D[:4])], ids=["conv2d", "conv3d"])
def test_what_the_backward_does_not_read_may_be_written(
    device: torch.device, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...], activation: str, written: str
) -> None:
    torch.manual_seed(5)
    leaves = [torch.randn(shape).to(device).requires_grad_() for shape in shapes]

    def gradients(in_place: bool) -> tuple[Tensor, ...]:
        inputs = [leaf.clone() for leaf in leaves]
        result = function(*inputs, activation)
        if written != "result":
            if in_place:
                inputs[2 if written == "bias" else 3].mul_(3)
            return torch.autograd.grad(total(result), leaves)
        return torch.autograd.grad(total(result.mul_(3) if in_place else result * 3), leaves)

    for _ in range(2):  # the first call may load a module
        expected = gradients(False)
        if written in READ[activation]:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradients(True)
        else:
            check_equal(gradients(True), expected, 1e-6)


def test_writing_into_a_result_is_compiled() -> None:
    with environment(**WAYS["cpu"]):
        leaves = [t.requires_grad_() for t in inputs_of(FUNCTIONS["conv2d none"], torch.device("cpu"))]

        def layer(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
            result = _conv2d(x, weight, bias, residual, "none")
            result += x.sum()
            return F.relu(result, inplace=True)

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        check_equal(torch.autograd.grad(total(compiled(*leaves)), leaves), torch.autograd.grad(total(layer(*leaves)), leaves))


# ---- dual tensors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SOME)
def test_dual_tensors(device: torch.device, name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    inputs = inputs_of(function, device, dtype)
    function.ours(*inputs)  # loads the module: from here on a call could go past the operator
    with forward_ad.dual_level():
        results = [function.ours(*(forward_ad.make_dual(t, torch.full_like(t, 0.5)) for t in inputs))]
        tangents = [forward_ad.unpack_dual(result).tangent for result in tree_leaves(results)]
        assert all(tangent is not None and tangent.dtype == dtype for tangent in tangents)
    exact = [t.double().cpu() for t in inputs]
    expected = tree_leaves(jvp(function.theirs, tuple(exact), _directions(exact))[1])
    for tangent, wanted in zip(tangents, expected, strict=True):
        assert torch.allclose(tangent.double().cpu(), wanted, rtol=0.02 if dtype == torch.bfloat16 else 1e-4, atol=0.02)


WRITING_FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {  # of an output, x and weight
    "causal_conv1d_fwd": hipconv.causal_conv1d_fwd,
    "the operator": torch.ops.hipconv.causal_conv1d_fwd,
    "prefill": lambda out, x, w: serving.causal_conv1d_fn(
        x[0], w, None, x.new_zeros(1, 3, 3), torch.tensor([0, 5], device=x.device), out=out[0]
    ),
    "decode": lambda out, x, w: serving.causal_conv1d_update(x[:, :, 0], x.new_zeros(2, 3, 3).detach(), w, out=out[:, :, 0]),
    "conv2d": lambda out, x, w: hipconv.conv2d(
        x[:, :, None], w[:, :, None, None].expand(3, 4, 1, 1)[:, :3], out=out[:, :, None]
    ),
}


@pytest.mark.parametrize("form", WRITING_FORMS)
def test_a_form_that_writes_refuses_what_it_would_lose(device: torch.device, form: str) -> None:
    x, weight = inputs_of(FUNCTIONS["causal_conv1d_fn"], device)
    call, out = WRITING_FORMS[form], torch.full((2, 3, 5), 7.0, device=device)
    call(out.clone(), x, weight)  # loads the module
    with forward_ad.dual_level():
        for tensors in ((forward_ad.make_dual(x, x), weight), (x, forward_ad.make_dual(weight, weight))):
            with pytest.raises(ValueError, match=r"(x|weight): got a dual tensor, expected none"):
                call(out, *tensors)
    with pytest.raises(ValueError, match="x: got a tensor that requires grad"):
        call(out, x.clone().requires_grad_(), weight)
    if form != "the operator":
        with pytest.raises(ValueError, match="x: got a tensor that requires grad"):
            grad(lambda x: (call(out, x, weight), x.sum())[1])(x)
    assert (out == 7).all()


def test_a_step_of_mambas_layers_refuses_what_it_would_lose(device: torch.device) -> None:
    """The step hides gradients by no_grad, so that it runs beside parameters, but not those that torch.func asks for."""
    x, weight = torch.randn(2, 3, device=device), torch.randn(3, 4, device=device)
    state = torch.zeros(2, 3, 3, device=device)

    def step(x: Tensor, weight: Tensor) -> Tensor:
        return hipconv.causal_conv1d_update(x, state, weight).sum()

    step(x, weight.clone().requires_grad_())
    before = state.clone()
    for place, name in enumerate(("x", "weight")):
        with pytest.raises(ValueError, match=f"^{name}: got a tensor that requires grad"):
            grad(step, place)(x, weight)
    with pytest.raises(ValueError, match=r"^x: got a dual tensor"):
        jvp(step, (x, weight), (x, weight))
    assert torch.equal(state, before)


def test_a_call_that_writes_says_what_it_writes_into() -> None:
    x, weight = torch.randn(2, 3), torch.randn(3, 4, requires_grad=True)
    state, starts = torch.zeros(2, 3, 3), torch.tensor([0, 2], dtype=torch.int32)
    video, filters = torch.randn(1, 2, 3, 4, 4), torch.randn(2, 2, 3, 1, 1)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("weight", lambda: serving.causal_conv1d_update(x, state, weight)),
        ("weight", lambda: serving.causal_conv1d_fn(x.T, weight, None, state, starts)),
        (
            "x",
            lambda: hipconv.conv3d(video.requires_grad_(), filters, cache_out=torch.zeros(1, 2, 2, 4, 4), time_padding="zeros"),
        ),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f"^{name}: got a tensor that requires grad") as refused:
            call()
        assert "this call writes into its arguments (out, states or caches) and records no gradient" in str(refused.value)


# ---- lazy negation, zeros without memory -------------------------------------------------------------------------------------


def negated(tensor: Tensor) -> Tensor:
    """The same values, read through the negative bit."""
    return torch._neg_view(-tensor)


@pytest.mark.parametrize("name", SOME)
def test_negated_and_zero_tensors_are_read_as_what_they_mean(device: torch.device, name: str) -> None:
    function = FUNCTIONS[name]
    inputs = inputs_of(function, device)
    for position in range(len(inputs)):
        for other in (negated(inputs[position]), torch._efficientzerotensor(inputs[position].shape, device=device)):
            changed = [*inputs[:position], other, *inputs[position + 1 :]]
            plain = [*inputs[:position], other.clone() * 1, *inputs[position + 1 :]]
            check_equal(function.ours(*changed), function.ours(*plain), 1e-6)
            leaves = [t.requires_grad_() if t is not other else t for t in changed]
            same = [t.requires_grad_() if k != position else t for k, t in enumerate(plain)]
            results = [tree_leaves(function.ours(*tensors)) for tensors in (leaves, same)]
            wanted = [[t for k, t in enumerate(tensors) if k != position] for tensors in (leaves, same)]
            directions = [torch.full_like(result, 0.5) for result in results[0]]
            lazy = [negated(direction) for direction in directions]
            check_equal(
                torch.autograd.grad(results[0], wanted[0], lazy), torch.autograd.grad(results[1], wanted[1], directions), 1e-6
            )  # fmt: skip
            inputs = [t.detach() for t in inputs]
    parameters = [t.requires_grad_() for t in inputs]
    outputs = tree_leaves(function.ours(*parameters))
    nothing = [torch._efficientzerotensor(output.shape, device=device) for output in outputs]
    gradients = torch.autograd.grad(outputs, parameters, nothing)
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("which", ["out", "x", "conv_state", "all"])
def test_serving_with_negated_tensors(device: torch.device, which: str) -> None:
    torch.manual_seed(2)
    x, weight, pool = torch.randn(6, 10), torch.randn(6, 4), torch.randn(3, 6, 3)
    x, weight, pool = x.to(device), weight.to(device), pool.to(device)
    starts, has = torch.tensor([0, 4, 10], device=device), torch.tensor([True, True], device=device)

    def prefill(x: Tensor, pool: Tensor, out: Tensor | None) -> Tensor:
        return serving.causal_conv1d_fn(x, weight, None, pool, starts, None, has, out=out)

    def decode(x: Tensor, pool: Tensor, out: Tensor | None) -> Tensor:
        return serving.causal_conv1d_update(x[:, :3].T, pool, weight, out=None if out is None else out[:, :3].T)

    def maybe(name: str, tensor: Tensor) -> Tensor:
        return negated(tensor) if which in (name, "all") else tensor.clone()

    for call in (prefill, decode):
        state = pool.clone()
        expected = call(x, state, None)
        given = maybe("x", x), maybe("conv_state", pool), maybe("out", torch.zeros_like(x))
        result = call(*given)
        assert torch.equal(result, expected) and torch.equal(given[1], state)
        in_place = maybe("x", x)
        assert torch.equal(call(in_place, maybe("conv_state", pool), in_place), expected)


def test_a_tensor_of_zeros_without_memory_is_not_written(device: torch.device) -> None:
    x, weight = inputs_of(FUNCTIONS["causal_conv1d_fn"], device)
    zeros = torch._efficientzerotensor(x.shape, device=device)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
            hipconv.causal_conv1d_fwd(zeros, x, weight)
        hipconv.causal_conv1d(x, weight)  # loads the module


# ---- autocast ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_autocast_casts_conv2d_as_torch_casts_its_own(device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    x, weight, bias, residual = inputs_of(FUNCTIONS["conv2d silu"], device)
    x, weight = x.to(dtypes[0]), weight.to(dtypes[1])
    cast: list[Any] = [t.to(torch.bfloat16) for t in (x, weight, bias, residual)]
    for _ in range(2):  # the first call may load the module
        with torch.autocast(device.type, torch.bfloat16):
            theirs = F.conv2d(x, weight, bias, groups=2)
            ours = hipconv.conv2d(x, weight, bias, groups=2)
            with_residual = hipconv.conv2d(x, weight, bias, 1, 1, residual=residual, groups=2)
            wide = hipconv.conv2d(x, weight, bias, groups=2, out_dtype=torch.float32)
            out = torch.zeros_like(wide)
            hipconv.conv2d(x, weight, bias, groups=2, out=out)
        assert ours.dtype == theirs.dtype == torch.bfloat16 and torch.allclose(ours, theirs, rtol=0.01, atol=0.01)
        assert torch.equal(ours, hipconv.conv2d(cast[0], cast[1], cast[2], groups=2))
        assert torch.equal(with_residual, hipconv.conv2d(cast[0], cast[1], cast[2], 1, 1, residual=cast[3], groups=2))
        assert wide.dtype == torch.float32 and torch.equal(out, wide)
        assert torch.equal(wide, hipconv.conv2d(cast[0], cast[1], cast[2], groups=2, out_dtype=torch.float32))


def test_autocast_reaches_gradients_in_the_dtypes_of_their_leaves(device: torch.device) -> None:
    leaves = [t.requires_grad_() for t in inputs_of(FUNCTIONS["conv2d silu"], device)]
    with torch.autocast(device.type, torch.bfloat16):
        found = torch.autograd.grad(total(FUNCTIONS["conv2d silu"].ours(*leaves).float()), leaves)
    expected = torch.autograd.grad(total(FUNCTIONS["conv2d silu"].theirs(*leaves)), leaves)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.03 * b.norm()


def test_float32_stays_float32_without_autocast_and_in_a_backward_under_it(device: torch.device) -> None:
    if device.type == "cuda":
        pytest.skip("torch's own backward may take TF32")
    leaves = [t.requires_grad_() for t in inputs_of(FUNCTIONS["conv2d silu"], device)]
    result = FUNCTIONS["conv2d silu"].ours(*leaves)
    check_equal(result, FUNCTIONS["conv2d silu"].theirs(*leaves), 1e-6)
    with torch.autocast(device.type, torch.bfloat16):
        found = torch.autograd.grad(total(result), leaves)
    check_equal(found, torch.autograd.grad(total(FUNCTIONS["conv2d silu"].theirs(*leaves)), leaves), 1e-5)


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_leaves_the_other_functions_alone(device: torch.device, enabled: bool) -> None:
    x, weight, bias, states = inputs_of(FUNCTIONS["causal_conv1d_fn states"], device)
    plain = hipconv.causal_conv1d_fn(x, weight, bias, None, states, True)
    pool = states.clone()
    step = serving.causal_conv1d_update(x[:, :, 0].contiguous(), states.clone(), weight)
    with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
        check_equal(hipconv.causal_conv1d_fn(x, weight, bias, None, states, True), plain, 1e-7)
        check_equal(torch.ops.hipconv.causal_conv1d_fn(x, weight, bias, None, states, True), plain, 1e-7)
        check_equal(serving.causal_conv1d_update(x[:, :, 0].contiguous(), pool, weight), step, 1e-7)
