"""hipconv.conv3d as an operator of torch: gradients, compilation, graphs; and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv3d.cases import Case, mismatch_conv3d, reference_of
from support.backends import WAYS, device_of, environment
from support.marks import needs_gpu
import hipconv
from hipconv.ops.conv2d.activations import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# ---- derivatives -------------------------------------------------------------------------------------------------------------

NAMES = ("x", "weight", "bias", "residual", "cache")
F32 = Case(2, 4, 3, 5, 6, 6, (3, 2, 3), dtype=torch.float32)
CASES = {
    "as torch": F32._replace(padding=1, stride=(1, 2, 1)),
    "six sides": F32._replace(padding=(1, 0, 2, 1, 0, 1), groups=2),
    "causal": F32._replace(padding=(0, 1, 1), time_padding="zeros", cached=1, layout="ncdhw"),
    "first": F32._replace(padding=(0, 0, 2), time_padding="first", cached=1, activation="silu", has_residual=True),
    "first without a cache": F32._replace(time_padding="first", dilation=(2, 1, 1)),
    "cache as frames": F32._replace(cached=2, stride=(2, 1, 1), activation="gelu"),
    "reflect": F32._replace(padding=(2, 1, 2), padding_mode="reflect", has_residual=True),
    "replicate": F32._replace(padding=(1, 2, 0, 1, 3, 2), padding_mode="replicate", cached=1, activation="tanh"),
    "circular": F32._replace(padding=(1, 2, 1), padding_mode="circular", groups=2),
    "edges": F32._replace(padding=(1, 1, 2), time_padding="edges"),
    "uneven edges": F32._replace(padding=(2, 1, 0, 1, 1, 0), time_padding="edges", padding_mode="reflect", stride=(2, 1, 1)),
}


def by_torch(
    case: Case, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, cache: Tensor | None
) -> Tensor:
    """The same from torch's own functions, whose gradients are right: cat, pad, convolve, activate."""
    frames = x if cache is None else torch.cat([cache, x], 2)
    sides = [s for side in case.padding for s in (side, side)] if len(case.padding) == 3 else list(case.padding)
    if case.time_padding == "edges":
        frames = F.pad(frames, [0, 0, 0, 0, sides[0], sides[1]], mode="replicate")
        sides[:2] = 0, 0
    elif case.time_padding:
        front = case.history - (frames.shape[2] - x.shape[2])
        missing = frames[:, :, :1].expand(-1, -1, front, -1, -1)
        frames = torch.cat([missing if case.time_padding == "first" else torch.zeros_like(missing), frames], 2)
    mode = "constant" if case.padding_mode == "zeros" else case.padding_mode
    frames = F.pad(frames, [sides[4], sides[5], sides[2], sides[3], sides[0], sides[1]], mode=mode)
    result = F.conv3d(frames, weight, bias, case.stride, 0, case.dilation, case.groups)
    return ACTIVATIONS[case.activation](result if residual is None else result + residual)


def tensors_of(case: Case, device: torch.device) -> tuple[dict[str, Any], list[Any]]:
    arguments = case.inputs(device)
    return arguments, [arguments.get(name) for name in NAMES]


def plain(case: Case) -> Case:
    return case._replace(padding=(case.padding,) * 3 if isinstance(case.padding, int) else case.padding)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(device: torch.device, name: str) -> None:
    case = plain(CASES[name])
    arguments, tensors = tensors_of(case, device)
    leaves = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    ours, theirs = hipconv.conv3d(**arguments), by_torch(case, *tensors)
    assert torch.allclose(ours, theirs, atol=1e-5)
    direction = torch.randn_like(theirs)
    both = [torch.autograd.grad(result, leaves, direction, create_graph=True) for result in (ours, theirs)]
    for leaf, a, b in zip(leaves, *both, strict=True):
        assert a.shape == leaf.shape and torch.allclose(a, b, atol=1e-4)
    again = [torch.autograd.grad(torch.stack([g.square().sum() for g in gradients]).sum(), leaves[:2]) for gradients in both]
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*again, strict=True))


@pytest.mark.parametrize("name", ["six sides", "first", "cache as frames", "edges"])
def test_forward_mode_and_vmap_are_those_of_torch(device: torch.device, name: str) -> None:
    case = plain(CASES[name])
    arguments, tensors = tensors_of(case, device)
    there = [position for position, tensor in enumerate(tensors) if tensor is not None]
    rest: dict[str, Any] = {name: value for name, value in arguments.items() if name not in NAMES}

    def ours(*given: Tensor) -> Tensor:
        return hipconv.conv3d(**(rest | dict(zip((NAMES[i] for i in there), given, strict=True))))

    def theirs(*given: Tensor) -> Tensor:
        every: list[Any] = [None] * len(NAMES)
        for position, tensor in zip(there, given, strict=True):
            every[position] = tensor
        return by_torch(case, *every)

    primals = tuple(tensors[i] for i in there)
    tangents = tuple(torch.randn_like(p) for p in primals)
    results = [torch.func.jvp(function, primals, tangents) for function in (ours, theirs)]
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*results, strict=True))
    stacked = tuple(torch.stack([p, p.flip(0), 2 * p]) for p in primals)
    for in_dims in (0, tuple(None if NAMES[i] in ("weight", "bias") else 0 for i in there)):
        mapped = tuple(s if in_dims == 0 or in_dims[k] == 0 else s[0] for k, s in enumerate(stacked))  # type: ignore[index]
        both = [torch.vmap(function, in_dims)(*mapped) for function in (ours, theirs)]
        assert torch.allclose(both[0], both[1], atol=1e-5)


# ---- torch -------------------------------------------------------------------------------------------------------------------


def test_opcheck(device: torch.device) -> None:
    case = Case(2, 4, 3, 5, 4, 6, (3, 2, 2), time_padding="zeros", cached=1, dtype=torch.float32, has_residual=True, saves=True)
    a = case.inputs(device)
    tensors = [a["x"], a["weight"], a["bias"], a["residual"], a["cache"]]
    options = ([1, 1, 1], [0] * 6, [1, 1, 1], 1)
    keywords = {"time_padding": "zeros", "activation": "silu"}
    out = torch.zeros(2, 6, *case.out_size, device=device)
    cache_out = a["cache_out"].zero_()
    torch.library.opcheck(torch.ops.hipconv.conv3d_out.default, (out, cache_out, *tensors, *options), keywords)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.hipconv.conv3d.default, (*leaves, *options), keywords)
    options = ([1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1], 1)
    torch.library.opcheck(torch.ops.hipconv.conv3d.default, (*leaves[:3], None, None, *options), {"time_padding": "edges"})


def test_compiles_into_one_graph_with_caches_and_gradients(device: torch.device) -> None:
    case = Case(1, 4, 2, 5, 6, 4, (3, 3, 3), padding=(0, 1, 1), time_padding="first", dtype=torch.float32)
    arguments = case.inputs(device)
    x, weight = arguments["x"], arguments["weight"]
    rest: dict[str, Any] = {"padding": (0, 1, 1), "time_padding": "first"}

    def layers(x: Tensor, weight: Tensor) -> Tensor:
        return (
            hipconv.conv3d(
                hipconv.conv3d(x * 2, weight, activation="silu", **rest), weight, padding=1, padding_mode="replicate"
            )
            + 1
        )

    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight), layers(x, weight))
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    ours, expected = (torch.autograd.grad(function(*leaves).square().sum(), leaves) for function in (compiled, layers))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(ours, expected, strict=True))

    def step(x: Tensor, weight: Tensor, cache: Tensor, cache_out: Tensor) -> Tensor:
        return hipconv.conv3d(x + 1, weight, cache=cache, cache_out=cache_out, **rest)

    cache, saved = (torch.randn(1, 4, 2, 5, 6, device=device) for _ in range(2))
    result = step(x, weight, cache, torch.empty_like(saved))
    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(x, weight, cache, saved), result)
    assert torch.equal(saved, x + 1)


def test_a_result_of_one_column_is_right_at_any_stride(device: torch.device) -> None:
    """With AMX, torch 2.13 makes it of memory that nobody wrote in bfloat16."""
    for width, taps, step in ((4, 3, 2), (5, 4, 3), (7, 5, 3)):
        case = Case(2, 16, 3, 5, width, 8, (1, 3, taps), stride=(1, 1, step), dtype=torch.bfloat16)
        for _ in range(3):
            assert mismatch_conv3d(hipconv.conv3d(**case.inputs(device)), case.inputs(device)) is None, case


def test_fake_tensors_need_no_kernel() -> None:
    x, weight = torch.empty(1, 6, 4, 20, 20, device="meta"), torch.empty(8, 6, 3, 3, 3, device="meta")
    result = hipconv.conv3d(x.to(memory_format=torch.channels_last_3d), weight, stride=(1, 2, 2), out_dtype=torch.float16)
    assert result.shape == (1, 8, 2, 9, 9) and result.dtype == torch.float16 and result.stride(1) == 1
    assert hipconv.conv3d(x[0], weight, padding=(0, 1, 1), time_padding="first").shape == (8, 4, 20, 20)


def test_autocast_casts_the_cache_too(device: torch.device) -> None:
    arguments = Case(1, 8, 2, 5, 5, 4, (3, 3, 3), time_padding="zeros", cached=2, dtype=torch.float32).inputs(device)
    with torch.autocast(device.type, torch.bfloat16):
        result = hipconv.conv3d(**arguments)
    cast = {name: value.bfloat16() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    assert result.dtype == torch.bfloat16 and mismatch_conv3d(result, cast, reference_of(cast)) is None


@needs_gpu
def test_a_graph_is_captured_after_warmup_and_replays() -> None:
    case = Case(1, 96, 2, 20, 20, 96, (3, 3, 3), padding=(0, 1, 1), time_padding="zeros", cached=2, saves=True)
    arguments = case.inputs(torch.device("cuda"))
    hipconv.warmup(["conv3d"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hipconv.conv3d(**arguments)
    for seed in (1, 2):
        arguments["x"].copy_(torch.randn(arguments["x"].shape, generator=torch.Generator().manual_seed(seed)))
        out.fill_(torch.nan)
        graph.replay()
        assert mismatch_conv3d(out, arguments) is None


# ---- what is refused ---------------------------------------------------------------------------------------------------------

X, WEIGHT = torch.randn(1, 4, 3, 5, 5), torch.randn(6, 4, 3, 3, 3)
SHARED = torch.randn(1, 4, 8, 5, 5)
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "x of four axes too many": (
        lambda: hipconv.conv3d(X[None], WEIGHT),
        ValueError,
        r"^x: got shape \(1, 1, 4, 3, 5, 5\), expected",
    ),
    "weight of conv2d": (
        lambda: hipconv.conv3d(X, WEIGHT[:, :, 0]),
        ValueError,
        r"^weight: got shape \(6, 4, 3, 3\), expected",
    ),
    "a time_padding that is not known": (
        lambda: hipconv.conv3d(X, WEIGHT, time_padding="last"),
        ValueError,
        r"^time_padding: got 'last', expected one of None, 'zeros', 'first'",
    ),
    "padding of frames beside time_padding": (
        lambda: hipconv.conv3d(X, WEIGHT, padding=1, time_padding="zeros"),
        ValueError,
        r"^padding: got 1 with time_padding 'zeros'",
    ),
    "a cache of too many frames": (
        lambda: hipconv.conv3d(X, WEIGHT, cache=X, time_padding="zeros"),
        ValueError,
        r"^cache: got shape .* at most 2 frames",
    ),
    "a cache of another size": (
        lambda: hipconv.conv3d(X, WEIGHT, cache=X[:, :, :2, 1:], time_padding="zeros"),
        ValueError,
        r"^cache: got shape",
    ),
    "a cache beside edges": (
        lambda: hipconv.conv3d(X, WEIGHT, padding=1, cache=X[:, :, :2], time_padding="edges"),
        ValueError,
        r"^cache: got a tensor with time_padding 'edges', expected None",
    ),
    "a cache_out beside edges": (
        lambda: hipconv.conv3d(X, WEIGHT, padding=1, cache_out=torch.empty(1, 4, 2, 5, 5), time_padding="edges"),
        ValueError,
        r"^cache_out: got a tensor with time_padding 'edges', expected None",
    ),
    "a cache of another dtype": (
        lambda: hipconv.conv3d(X, WEIGHT, cache=X[:, :, :2].half()),
        TypeError,
        r"^cache: got dtype torch.float16, expected that of x",
    ),
    "a cache_out that is too short": (
        lambda: hipconv.conv3d(X, WEIGHT, cache_out=torch.empty(1, 4, 1, 5, 5)),
        ValueError,
        r"^cache_out: got shape .* 2 frames",
    ),
    "a cache_out that is x": (
        lambda: hipconv.conv3d(X, WEIGHT, cache_out=X[:, :, 1:]),
        ValueError,
        r"^cache_out: shares memory with x",
    ),
    "a cache_out that is the cache": (
        lambda: hipconv.conv3d(X, WEIGHT, cache=SHARED[:, :, :2], cache_out=SHARED[:, :, 1:3]),
        ValueError,
        r"^cache_out: shares memory with cache",
    ),
    "a gradient beside cache_out": (
        lambda: hipconv.conv3d(X, WEIGHT.clone().requires_grad_(), cache_out=torch.empty(1, 4, 2, 5, 5)),
        ValueError,
        r"^weight: got a tensor that requires grad",
    ),
    "too few frames": (
        lambda: hipconv.conv3d(X[:, :, :2], WEIGHT),
        ValueError,
        r"^x: got shape .* whose frames with padding are 2",
    ),
    "no frame to repeat before the first one": (
        lambda: hipconv.conv3d(X[:, :, :0], WEIGHT, padding=(0, 1, 1), time_padding="first"),
        ValueError,
        r"^x: got shape \(1, 4, 0, 5, 5\), expected at least a frame, or a cache, with time_padding 'first', which repeats it",
    ),
    "no frame to repeat at the edges": (
        lambda: hipconv.conv3d(X[:, :, :0], WEIGHT, padding=1, time_padding="edges"),
        ValueError,
        r"^x: got shape \(1, 4, 0, 5, 5\), expected at least a frame, with time_padding 'edges', which repeats it",
    ),
    "an algorithm that is not known": (
        lambda: hipconv.conv3d(X, WEIGHT, algorithm="winograd"),
        ValueError,
        r"^algorithm: got 'winograd', expected one of 'auto'",
    ),
    "padding that is too wide to reflect": (
        lambda: hipconv.conv3d(X, WEIGHT, padding=(0, 5, 0), padding_mode="reflect"),
        ValueError,
        r"^padding: got 5 and 5 .* at most 4",
    ),
}


@pytest.mark.parametrize(("name", "backend"), list(itertools.product(REFUSED, ["cpu", "simt-wave64"])))
def test_what_is_refused_names_the_argument(name: str, backend: str) -> None:
    call, kind, text = REFUSED[name]
    with environment(**WAYS[backend]), pytest.raises(kind, match=text):
        call()


def test_an_algorithm_that_does_not_serve_says_what_does() -> None:
    with (
        environment(**WAYS["simt-wave64"]),
        pytest.raises(ValueError, match=r"'few_filters', which serves x of 16-bit types; .*'implicit_gemm', 'naive'"),
    ):
        hipconv.conv3d(X, WEIGHT, algorithm="few_filters")
