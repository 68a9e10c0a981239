"""Calls with arguments that are none: each in turn is replaced by things that it cannot be.

A call then fails with a TypeError or a ValueError (or a class of these) that names an argument, in a message of a few lines at
most that prints no tensor, and it has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from integration.forms import Arguments, Form, extension, forms, hip, no, randn, zeros
import hipconv
from hipconv import serving
from hipconv.arguments import describe

FORMS = forms()
TRIED = 3  # wrong tensors, and one more of other wrong values, of each argument of each form


# ---- what is passed instead --------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("has no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("is neither true nor false")


VALUES: dict[str, Callable[[], Any]] = {
    "None": no,
    "-1": lambda: -1,
    "3": lambda: 3,
    "2**70": lambda: 2**70,
    "10**5000": lambda: 10**5000,
    "1.0": lambda: 1.0,
    "nan": lambda: float("nan"),
    "True": lambda: True,
    "'x'": lambda: "x",
    "''": str,
    "a long string": lambda: "x" * 10**5,
    "a surrogate": lambda: "\udc80",
    "['relu']": lambda: ["relu"],
    "[[1]]": lambda: [[1]],
    "many": lambda: [1] * 10**4,
    "()": tuple,
    "a dict": lambda: {"a": 1},
    "a type": lambda: int,
    "an object": object,
    "an unprintable object": Unprintable,
    "an array": lambda: np.ones((2, 3)),
    "a bool of numpy": lambda: np.True_,
    "tensors": lambda: [randn(2, 3)] * 2,
    "a tensor": lambda: randn(40, 40),
    "a dtype": lambda: torch.int8,
}


def wrong_tensors(good: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield things of which no argument can be one that `good` is."""
    yield "no axes", zeros(())
    yield "five axes", zeros(1, 2, 1, 2, 1)
    yield "other sizes", zeros([7 + size for size in good.shape])
    yield "complex", good.to(torch.complex64)
    yield "sparse", good.to_sparse()
    if not good.is_meta:
        yield "elsewhere", good.to("meta")


def is_of_kind(annotation: str, value: Any) -> bool:
    """As the annotation of a parameter says it; a bool passes for an int, as everywhere in Python."""
    is_sequence = isinstance(value, (list, tuple))
    kinds: dict[str, bool] = {
        "None": value is None,
        "Tensor": isinstance(value, Tensor),
        "bool": value is None or isinstance(value, (bool, np.bool_)),
        "int": isinstance(value, (int, np.bool_)),
        "str": isinstance(value, str),
        "Ints": isinstance(value, int) or (is_sequence and all(type(part) is int for part in value)),
        "Padding": isinstance(value, (int, str)) or (is_sequence and all(type(part) is int for part in value)),
        "PackedFilters": False,
        "tuple[Tensor, Tensor, Tensor]": False,
        "Sequence[str]": isinstance(value, dict) or (is_sequence and all(type(part) is str for part in value)),
        "torch.dtype": isinstance(value, torch.dtype),
        "torch.device": False,
    }
    return any(kinds[kind] for kind in annotation.split(" | "))


def tensors_of(arguments: Arguments) -> dict[str, Tensor]:
    listed = {
        f"{name}[{i}]": part for name, value in arguments.items() if isinstance(value, tuple) for i, part in enumerate(value)
    }
    return {name: value for name, value in (arguments | listed).items() if isinstance(value, Tensor) and not value.is_sparse}


def complaint(form: Form, name: str, arguments: Arguments) -> str | None:
    """Say what is wrong with how the call, whose argument `name` is, is refused."""
    value, before = arguments[name], {key: tensor.detach().clone() for key, tensor in tensors_of(arguments).items()}
    fits = is_of_kind(form.kinds[name], value)
    try:
        form.call(arguments)
    except Exception as error:
        text = str(error)
        beginning = text.partition(":")[0].replace(",", " ").partition("[")[0].split()
        if len(text) > 600 or "tensor(" in text or "array(" in text:
            return f"a message of {len(text)} characters: {text[:200]}"
        if isinstance(error, hipconv.errors.UnknownModule):
            return None
        if not isinstance(error, (TypeError, ValueError, NotImplementedError)):
            return f"{type(error).__name__}: {text}"
        if not (isinstance(error, TypeError) or fits or name in ("activation", "stride", "padding", "dilation")):
            return f"no TypeError: {text}"
        if (beginning != [name] if not fits else not {*beginning} <= {*form.make, "q", "k", "v"}) or not re.search(
            "got|shares memory", text
        ):
            return f"no 'argument: got': {text}"
        if error.__context__ is not None and not error.__suppress_context__:
            return f"another exception behind it: {text}"
        for key, tensor in tensors_of(arguments).items():
            if not tensor.is_meta and not torch.equal(tensor.detach(), before[key]):
                return f"{key} is written, and then: {text}"
        return None
    return None if fits and (not isinstance(value, Tensor) or name == form.takes) else "it is taken"


@pytest.mark.parametrize("name", FORMS)
def test_what_an_argument_cannot_be_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # pybind11 prints all arguments before we see its error.
    monkeypatch.setattr(Tensor, "__repr__", lambda tensor: "tensor(...)")
    form = FORMS[name]
    form.call(form.arguments())
    choose = random.Random(name)
    found = []
    for argument, make in form.make.items():
        good = make()
        candidates = choose.sample([(text, value()) for text, value in VALUES.items()], TRIED + 1)
        if isinstance(good, Tensor):
            candidates += choose.sample(list(wrong_tensors(good)), TRIED)
        for text, value in candidates:
            if (text == "elsewhere" and "plan" in name) or (argument == "device" and text in ("-1", "3", "None")):
                continue  # plans do not look at devices, and what devices there are is torch's to say
            if (argument, text) == ("modules", "None"):
                continue  # all of them
            if wrong := complaint(form, argument, form.arguments() | {argument: value}):
                found.append(f"{argument} = {text}: {wrong}")
    assert not found, "\n".join(found)


# ---- by name -----------------------------------------------------------------------------------------------------------------

X, W = randn(2, 8, 16), randn(8, 4)
IMAGE, FILTERS = randn(1, 3, 8, 8), randn(4, 3, 3, 3)
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a list as bias": (
        lambda: hip.causal_conv1d_fn(X, W, [1.0]),
        TypeError,
        r"^bias: got \[1.0\], expected a torch.Tensor or None$",
    ),
    "a number as final states": (
        lambda: hip.causal_conv1d_fn(X, W, final_states_out=3),
        TypeError,
        "^final_states_out: got 3, expected a torch.Tensor or None$",
    ),
    "ids in a list": (
        lambda: hip.causal_conv1d_fn(X, W, seq_idx=[[0] * 16] * 2),
        TypeError,
        r"^seq_idx: got \[\[0, 0, 0, 0, \.\.\.\]",
    ),
    "a tensor as flag": (
        lambda: hip.causal_conv1d_fn(X, W, return_final_states=X),
        TypeError,
        r"^return_final_states: got a torch.float32 tensor of shape \(2, 8, 16\), expected a bool$",
    ),
    "x without axes": (
        lambda: hip.causal_conv1d_fn(zeros(()), W, return_final_states=True),
        ValueError,
        r"^x: got shape \(\), expected 3 dimensions",
    ),
    "a plan's target": (
        lambda: hip.causal_conv1d_plan(X, W, target=3),
        TypeError,
        "^target: got 3, expected a string or None$",
    ),
    "a plan's kernel": (lambda: hip.causal_conv1d_plan(X, W, kernel=3), TypeError, "^kernel: got 3, expected a string$"),
    "conv2d's plan's target": (
        lambda: hip.conv2d_plan(IMAGE, FILTERS, target=3),
        TypeError,
        "^target: got 3, expected a string or None$",
    ),
    "a list as activation": (
        lambda: hip.conv2d(IMAGE, FILTERS, activation=["relu"]),
        ValueError,
        r"^activation: got \['relu'\], expected one of",
    ),
    "a tensor as dtype": (
        lambda: hip.conv2d(IMAGE, FILTERS, out_dtype=FILTERS),
        TypeError,
        r"^out_dtype: got a torch.float32 tensor of shape \(4, 3, 3, 3\), expected",
    ),
    "many groups": (
        lambda: hip.conv2d(IMAGE, FILTERS, groups=2**70),
        ValueError,
        f"^groups: got {2**70}, expected at most 2147483647$",
    ),
    "a bool as stride": (
        lambda: [hip.conv2d(IMAGE, FILTERS), hip.conv2d(IMAGE, FILTERS, stride=True)],
        TypeError,
        "^stride: got True, expected integers$",
    ),
    "bools as strides": (
        lambda: [hip.conv2d(IMAGE, FILTERS, stride=(1, 1)), hip.conv2d(IMAGE, FILTERS, stride=(True, True))],
        TypeError,
        "^stride: got True, expected integers$",
    ),
    "a list of a float as dilation": (
        lambda: [hip.conv2d(IMAGE, FILTERS, dilation=[1]), hip.conv2d(IMAGE, FILTERS, dilation=[1.0])],
        TypeError,
        "^dilation: got 1.0, expected integers$",
    ),
    "a set as padding": (lambda: hip.conv2d(IMAGE, FILTERS, padding={1}), TypeError, r"^padding: got \{1\}, expected"),
    "a workspace of half a byte": (
        lambda: hip.conv2d_plan(IMAGE, FILTERS, workspace_limit=0.5),
        TypeError,
        "^workspace_limit: got 0.5, expected",
    ),
    "one module's name": (
        lambda: hip.warmup("causal_conv1d"),
        TypeError,
        "^modules: got 'causal_conv1d', expected a list of strings",
    ),
    "a long name": (
        lambda: hip.causal_conv1d(X, W, kernel="k" * 999),
        ValueError,
        r"^kernel: got 'k*\.\.\.k*', expected one of the names",
    ),
    "the extension's arguments": (
        lambda: extension.causal_conv1d_update(X, X),
        TypeError,
        "^causal_conv1d_update: got 2 arguments, expected 7 or 8$",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_called_by_its_name(name: str) -> None:
    call, kind, message = CALLS[name]
    with pytest.raises(kind, match=message):
        call()


def test_an_unknown_module_is_found_before_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hipconv.jit, "module", lambda name, target: pytest.fail(f"{name} was built"))
    with pytest.raises(hipconv.errors.UnknownModule, match="unknown module 'typo'"):
        hip.warmup(["causal_conv1d", "typo"])


def test_the_values_of_a_call_are_checked_if_it_says_so_and_only_then() -> None:
    good = {"x": randn(2, 8), "conv_state": zeros(2, 8, 3), "weight": W}
    for function, arguments in (
        (serving.causal_conv1d_update, good),
        (serving.causal_conv1d_fn, FORMS["serving.causal_conv1d_fn"].arguments()),
    ):
        for value in (zeros(3), zeros(()), [], "", "no", 2, object()):
            with pytest.raises(TypeError, match=r"^validate_data: got .*, expected a bool$"):
                function(**arguments | {"validate_data": value})
        for value in (None, 0, np.bool_(False)):
            function(**arguments | {"validate_data": value})


def test_no_x_is_not_what_out_holds() -> None:
    update: Any = serving.causal_conv1d_update
    out, state = torch.ones(2, 8), torch.ones(2, 8, 4)
    calls = (
        lambda: update(None, state, W, out=out),
        lambda: extension.causal_conv1d_update(None, state, W, None, out, True, None, None),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"^x: got None, expected a torch\.Tensor$"):
            call()
    assert (out == 1).all() and (state == 1).all()


# ---- what the fuzzer (fuzz.py) has found -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["causal_conv1d_fwd", "causal_conv1d", "causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_ref",
             "causal_conv1d_cuda.causal_conv1d_bwd", "causal_conv1d_varlen_states", "serving.causal_conv1d_fn",
             "serving.causal_conv1d_update", "serving.causal_conv1d_update, validated", "conv2d",
             "conv2d of an image, by kernels"],
)  # fmt: skip
def test_a_tensor_whose_memory_was_given_back_is_not_read(name: str) -> None:
    form = FORMS[name]
    for argument, value in form.arguments().items():
        if isinstance(value, Tensor):
            gone = value.clone()  # its memory is given back below, as FSDP does with parameters
            gone.untyped_storage().resize_(0)
            with pytest.raises(ValueError, match=rf"^{argument}: got a tensor of shape .* whose memory was given back"):
                form.call(form.arguments() | {argument: gone})


def test_outputs_that_torch_would_write_and_then_refuse_are_refused_before() -> None:
    with torch.inference_mode():
        made_there = randn(2, 8, 3)
    for good in ("causal_conv1d_fn", "causal_conv1d_ref"):
        before = made_there.clone()
        with pytest.raises(ValueError, match=r"^final_states_out: got an inference tensor"):
            FORMS[good].call(FORMS[good].arguments() | {"final_states_out": made_there})
        assert torch.equal(made_there, before)
        with torch.inference_mode():
            FORMS[good].call(FORMS[good].arguments() | {"final_states_out": made_there})
        assert not torch.equal(made_there, before)
    form = FORMS["ShortConvolution, a token a sequence"]
    with torch.inference_mode():
        cache = randn(2, 8, 4)
    before = cache.clone()
    with pytest.raises(ValueError, match=r"^cache: got an inference tensor"):
        form.call(form.arguments() | {"cache": cache})
    assert torch.equal(cache, before)


def test_states_whose_elements_share_memory_are_not_written() -> None:
    """torch does not see through these strides: it would write each element, the last one winning."""
    for name, argument in (("causal_conv1d_fn", "final_states_out"), ("causal_conv1d_ref", "final_states_out")):
        memory = torch.full((40,), 7.0)
        form = FORMS[name]
        with pytest.raises(ValueError, match=f"^{argument}: got strides .*expected each element to have memory of its own"):
            form.call(form.arguments() | {argument: memory.as_strided((2, 8, 3), (8, 1, 1))})
        assert (memory == 7).all()
        interleaved = torch.zeros(400).as_strided((2, 8, 3), (2, 10, 3))  # axes that do not nest, and yet no element twice
        arguments = form.arguments()
        form.call(arguments | {argument: interleaved})
        assert torch.equal(interleaved, form.call(arguments | {argument: randn(2, 8, 3)})[1])


def test_a_residual_in_the_memory_of_the_cache_is_added_as_it_was() -> None:
    form = FORMS["ShortConvolution, a token a sequence"]
    arguments = form.arguments()
    apart = arguments | {
        "residual": arguments["cache"].flatten()[:16].view(1, 2, 8).clone(),
        "cache": arguments["cache"].clone(),
    }
    expected = form.call(apart)[0]
    found = form.call(arguments | {"residual": arguments["cache"].flatten()[:16].view(1, 2, 8)})[0]
    assert torch.equal(found, expected) and torch.equal(arguments["cache"], apart["cache"])


def test_a_dtype_that_a_layer_has_not_is_named() -> None:
    for name in ("ShortConvolution", "ShortConvolution, a token a sequence"):
        form = FORMS[name]
        with pytest.raises(TypeError, match=r"^x: got dtype torch\.float8_e4m3fn, expected"):
            form.call(form.arguments() | {"x": form.arguments()["x"].to(torch.float8_e4m3fn)})
        arguments = form.arguments()
        arguments |= {"residual": arguments["residual"].to(torch.float8_e4m3fn)}
        before = arguments["cache"].clone()
        with pytest.raises(TypeError, match=r"^residual: got dtype torch\.float8_e4m3fn, expected"):
            form.call(arguments)
        assert torch.equal(arguments["cache"], before)


def test_outputs_of_the_extension_that_share_memory_are_refused() -> None:
    form = FORMS["causal_conv1d_cuda.causal_conv1d_bwd"]
    arguments = form.arguments()
    memory = randn(2, 8, 19)
    for states, dx in ((memory[..., :3], memory[..., :16]), (arguments["dx"][..., :3], arguments["dx"])):
        with pytest.raises(ValueError, match=r"^dinitial_states: shares memory with dx"):
            form.call(arguments | {"dinitial_states": states, "dx": dx})
    form.call(arguments | {"dinitial_states": memory[..., :3], "dx": memory[..., 3:]})  # interleaved, and apart


def test_an_inference_tensor_is_no_out_of_conv2d_on_the_cpu() -> None:
    with torch.inference_mode():
        out = torch.ones(2, 4, 8, 9)
    with pytest.raises(ValueError, match=r"^out: got an inference tensor"):
        FORMS["conv2d"].call(FORMS["conv2d"].arguments() | {"out": out})
    assert (out == 1).all()


def test_a_sparse_residual_of_an_unbatched_image_is_named_in_inference_mode() -> None:
    """There torch cannot make views of it."""
    for conv, rank in ((hipconv.conv2d, 2), (hipconv.conv3d, 3)):
        x, weight = torch.ones(4, *[5] * rank), torch.ones(4, 4, *[1] * rank)
        with torch.inference_mode(), pytest.raises(TypeError, match="residual: got a tensor of layout"):
            conv(x, weight, residual=torch.ones(4, *[5] * rank).to_sparse())


def test_a_window_wider_than_buffers_is_left_to_kernels_without_any() -> None:
    x, weight = zeros(1, 1, 3), zeros(1, 1).expand(1, 70_000)
    assert hip.causal_conv1d_plan(x, weight, target="cpu").kernel == "openmp"
    with pytest.raises(ValueError, match="widths up to 65536"):
        hip.causal_conv1d(x, weight, kernel="simd")
    assert (hip.causal_conv1d(x + 1, weight + 1) == torch.tensor([1.0, 2.0, 3.0])).all()


class Index:
    """An integer of a class of its own."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("of", [np.int64, np.uint8, Index])
def test_integers_of_any_class_are_integers(of: Callable[[int], Any]) -> None:
    pair, triple = [of(2), of(1)], (of(1), of(2), of(1))
    x, filters = randn(1, 4, 9, 8), randn(4, 2, 3, 3)
    expected = hip.conv2d(x, filters, None, [2, 1], 1, 2, 2)
    numbers: Any = (None, pair, of(1), of(2), of(2))
    assert torch.equal(hip.conv2d(x, filters, *numbers, workspace_limit=of(9)), expected)
    assert hip.conv2d_plan(x, filters, *numbers, workspace_limit=of(9)).algorithm == "torch"
    assert torch.equal(hip.reference.conv2d(x, filters, *numbers), hip.reference.conv2d(x, filters, None, [2, 1], 1, 2, 2))
    video, blocks = randn(1, 4, 3, 9, 8), randn(4, 2, 3, 3, 3)
    expected = hip.conv3d(video, blocks, None, (1, 2, 1), 1, 1, 2)
    numbers = (None, triple, of(1), of(1), of(2))
    assert torch.equal(hip.conv3d(video, blocks, *numbers, workspace_limit=of(9)), expected)
    assert hip.conv3d_plan(video, blocks, *numbers, workspace_limit=of(9)).algorithm == "torch"
    with pytest.raises(ValueError, match=r"^bias: got shape"):
        hip.conv2d(x, filters, x[0, 0, 0, :3], pair, of(1), of(2), of(2))
    with pytest.raises(TypeError, match=r"^stride: got a torch.int64 tensor"):
        hip.conv2d(x, filters, stride=torch.tensor(1))
    if of is not Index:  # torch's layers take no other classes
        layer = hipconv.nn.Conv2d(of(4), of(4), of(3), of(1), of(1), groups=of(2))
        assert torch.equal(layer(x), hip.conv2d(x, layer.weight, layer.bias, 1, 1, 1, 2))
        causal = hipconv.nn.CausalConv3d(of(4), of(4), of(3), of(1), of(1), groups=of(2))
        assert causal(video).shape == video.shape


# ---- words -------------------------------------------------------------------------------------------------------------------


def test_objects_are_described_in_a_line() -> None:
    many: Any = [2**70] * 99
    value: Any
    for value in (
        "x" * 999,
        10**5000,
        many,
        [many] * 9,
        {"a key": many},
        [randn(50, 50)] * 9,
        np.ones(99),
        Unprintable(),
        iter(many),
    ):
        text = describe(value)
        assert len(text) < 160 and "\n" not in text and "array(" not in text and "tensor(" not in text, text
    for value, text in ((None, "None"), ((1, 2.5), "(1, 2.5)"), ("a\nb", r"'a\nb'"), (torch.int8, "torch.int8")):
        assert describe(value) == text
    assert describe([W.half()]) == "[a torch.float16 tensor of shape (8, 4)]"
