"""What is passed to public functions by mistake: each argument in turn is replaced by things that it cannot be.

A call then fails with a TypeError or a ValueError (or a class of these) that names an argument, in a message of a few lines at most that
prints no tensor, and it has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import inspect
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.backends import use_backend
import hipconv
from hipconv import nn, serving
from hipconv.arguments import describe
from hipconv.drop_in import causal_conv1d_cuda, causal_conv1d_interface, causal_conv1d_varlen, cpp_functions

randn, zeros = torch.randn, torch.zeros
TRIED = 3  # wrong tensors, and one more of other wrong values, of each argument of each form


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


# ---- good calls --------------------------------------------------------------------------------------------------------------------


Arguments = dict[str, Any]
hip: Any = hipconv  # whatever the annotations say
extension: Any = causal_conv1d_cuda


class Form:
    """A function, and what makes arguments that it takes."""

    def __init__(
        self,
        function: Callable,
        make: Arguments,
        *,
        behind: Callable | None = None,  # the function behind one that takes its arguments by position
        takes: str = "",  # the argument for which any tensor will do, such as one that is not needed
        grad: bool = True,
        backend: str = "cpu",
    ) -> None:
        self.function, self.make, self.by_position, self.takes, self.grad, self.backend = function, make, bool(behind), takes, grad, backend
        annotated: Any = behind or (function.__init__ if inspect.isclass(function) else function)  # type: ignore[misc]
        self.kinds: dict[str, str] = annotated.__annotations__

    def arguments(self) -> Arguments:
        return {name: make() for name, make in self.make.items()}

    def call(self, arguments: Arguments) -> None:
        with use_backend(self.backend), contextlib.nullcontext() if self.grad else torch.no_grad():
            if self.by_position:
                self.function(*(arguments[name] for name in self.kinds if name != "return"))
            else:
                self.function(**arguments)


def no() -> None:
    return None


def table() -> Tensor:
    return ints([[0, 1], [2, 3]])


def only(names: Callable, arguments: Arguments) -> Arguments:
    """Those that a function has."""
    return {name: make for name, make in arguments.items() if name in names.__annotations__}


rows: Arguments = {"x": lambda: randn(2, 8, 16), "weight": lambda: randn(8, 4), "bias": lambda: randn(8)}
states: Arguments = {"seq_idx": lambda: zeros(2, 16, dtype=torch.int32), "initial_states": lambda: randn(2, 8, 3)}
final: Arguments = {"final_states_out": lambda: randn(2, 8, 3)}
names: Arguments = {"activation": lambda: "silu", "kernel": lambda: "auto"}
silu: Arguments = {"silu_activation": lambda: True}
out: Arguments = {"out": rows["x"]}
fn: Arguments = rows | states | final | {"return_final_states": lambda: True, "activation": lambda: "silu"}
without: Arguments = {"seq_idx": no, "initial_states": no, "return_final_states": lambda: False}
backward: Arguments = rows | states | silu | {"dout": rows["x"], "dfinal_states": lambda: randn(2, 8, 3), "dx": rows["x"]}
gradients: Arguments = {"dweight": rows["weight"], "dbias": rows["bias"], "dinitial_states": lambda: randn(2, 8, 3)}
step: Arguments = rows | {"x": lambda: randn(2, 8), "conv_state": lambda: randn(2, 8, 4), "activation": lambda: "silu"}
step |= {"cache_seqlens": lambda: ints([0, 1]), "conv_state_indices": lambda: ints([1, 0])}
lengths: Arguments = {"x": lambda: randn(12, 6), "cu_seqlens": lambda: ints([0, 5, 12]), "state_len": lambda: 3}

blocks: Arguments = {"block_idx_last_scheduled_token": lambda: ints([0, 0]), "initial_state_idx": lambda: ints([0, 0])}
choices: Arguments = names | {"pad_slot_id": lambda: -1, "null_block_id": no, "validate_data": lambda: False}
validated: Arguments = {"validate_data": lambda: True, "out": no}
varlen: Arguments = rows | blocks | choices | {
    "x": lambda: randn(8, 12), "conv_states": lambda: randn(5, 8, 4), "query_start_loc": lambda: ints([0, 5, 12]), "cache_indices": table,
    "has_initial_state": lambda: torch.tensor([True, False]), "block_idx_first_scheduled_token": lambda: ints([0, 0]),
    "num_computed_tokens": lambda: ints([0, 0]), "block_size_to_align": lambda: 64, "cache_indices_in": table, "out": lambda: randn(8, 12),
    "block_m": no, "block_n": no, "num_warps": no,
}  # fmt: skip
parts: Arguments = {"k_dim": lambda: 3, "v_dim": lambda: 2, "out": lambda: tuple(randn(12, n) for n in (3, 3, 2))}
decode: Arguments = rows | blocks | choices | {
    "x": lambda: randn(2, 8, 2), "conv_state": lambda: randn(5, 8, 5), "conv_state_indices": table, "conv_state_indices_in": table,
    "max_query_len": lambda: -1, "intermediate_conv_window": lambda: randn(2, 2, 8, 3), "out": lambda: randn(2, 8, 2),
    "intermediate_state_indices": lambda: ints([0, 1]), "retrieve_next_token": lambda: ints([[-1, -1]] * 2),
    "retrieve_next_sibling": lambda: ints([[-1, -1]] * 2), "retrieve_parent_token": lambda: ints([[0, 0]] * 2),
}  # fmt: skip
packed: Arguments = {name: make for name, make in decode.items() if not name.startswith("retrieve")} | parts
packed |= {"x": lambda: randn(12, 8), "query_start_loc": lambda: ints([0, 1, 3]), "num_accepted_tokens": lambda: ints([1, 1])}

heads: Arguments = {"num_actual_tokens": lambda: 2, "num_k_heads": lambda: 1, "num_v_heads": lambda: 2}
heads |= {"head_k_dim": lambda: 2, "head_v_dim": lambda: 2, "qkvz_layout": lambda: "interleaved"}
gated: Arguments = rows | blocks | heads | {
    "x": lambda: randn(2, 12), "ba": lambda: randn(2, 4), "z_out": lambda: randn(3, 2, 2), "core_attn_out": lambda: randn(3, 2, 2),
    "conv_state": lambda: randn(5, 8, 3), "activation": lambda: "silu", "conv_state_indices": table, "num_accepted_tokens": no,
    "query_start_loc": no, "max_query_len": lambda: -1, "pad_slot_id": lambda: -1, "validate_data": lambda: False,
}  # fmt: skip

images: Arguments = {
    "x": lambda: randn(2, 6, 8, 9), "weight": lambda: randn(4, 3, 3, 3), "bias": lambda: randn(4), "stride": lambda: 1,
    "padding": lambda: 1, "dilation": lambda: 1, "groups": lambda: 2, "activation": lambda: "relu",
    "residual": lambda: randn(2, 4, 8, 9), "out_dtype": lambda: torch.float32, "padding_mode": lambda: "zeros",
    "algorithm": lambda: "auto", "out": lambda: randn(2, 4, 8, 9), "workspace_limit": lambda: 1 << 20,
}  # fmt: skip
image: Arguments = images | {"x": lambda: randn(6, 8, 9), "residual": lambda: randn(4, 8, 9), "out": no}

causal, short = nn.CausalConv1d(8, 4, activation="silu"), nn.ShortConvolution(8, 4)
parameters: Arguments = {"bias": lambda: True, "activation": lambda: "silu", "device": lambda: "meta", "dtype": lambda: torch.float32}
tokens: Arguments = {"x": lambda: randn(2, 16, 8), "residual": lambda: randn(2, 16, 8), "mask": lambda: torch.ones(2, 16)}
tokens |= {"cache": lambda: randn(2, 8, 4), "output_final_state": lambda: True, "cu_seqlens": no}
one: Arguments = tokens | {"x": lambda: randn(2, 1, 8), "residual": lambda: randn(2, 1, 8), "mask": lambda: torch.ones(2, 1)}
sequences: Arguments = tokens | {"x": lambda: randn(1, 2, 8), "residual": lambda: randn(1, 2, 8), "mask": no}
sequences |= {"cu_seqlens": lambda: ints([0, 1, 2])}

interface, varlen_states = causal_conv1d_interface, causal_conv1d_varlen
FORMS: dict[str, Form] = {
    "causal_conv1d_fwd": Form(hip.causal_conv1d_fwd, rows | out | {"use_silu": lambda: True, "kernel": lambda: "auto"}),
    "causal_conv1d": Form(hip.causal_conv1d, rows | names),
    "causal_conv1d_plan": Form(hip.causal_conv1d_plan, rows | names | out | {"target": lambda: "cpu"}),
    "causal_conv1d_fn": Form(hip.causal_conv1d_fn, fn),
    "causal_conv1d_fn of rows": Form(hip.causal_conv1d_fn, fn | without, takes="final_states_out"),
    "causal_conv1d_fn with gradients": Form(
        hip.causal_conv1d_fn, fn | {"weight": lambda: randn(8, 4, requires_grad=True), "final_states_out": no}
    ),
    "causal_conv1d_ref": Form(interface.causal_conv1d_ref, fn),
    "causal_conv1d_update": Form(hip.causal_conv1d_update, step),
    "causal_conv1d_update_ref": Form(interface.causal_conv1d_update_ref, only(interface.causal_conv1d_update_ref, step)),
    "causal_conv1d_update_ref, shifted": Form(
        interface.causal_conv1d_update_ref, only(interface.causal_conv1d_update_ref, step) | {"cache_seqlens": no}
    ),
    "causal_conv1d_fwd_function": Form(cpp_functions.causal_conv1d_fwd_function, rows | states | final | silu),
    "causal_conv1d_bwd_function": Form(cpp_functions.causal_conv1d_bwd_function, backward | {"return_dinitial_states": lambda: True}),
    "causal_conv1d_update_function": Form(
        cpp_functions.causal_conv1d_update_function, only(cpp_functions.causal_conv1d_update_function, step | silu)
    ),
    "causal_conv1d_cuda.causal_conv1d_fwd": Form(
        extension.causal_conv1d_fwd, rows | states | final | silu | out, behind=extension._fwd_into
    ),
    "causal_conv1d_cuda.causal_conv1d_bwd": Form(extension.causal_conv1d_bwd, backward | gradients, behind=extension._bwd_into),
    "causal_conv1d_cuda.causal_conv1d_update": Form(
        extension.causal_conv1d_update,
        only(extension._update_into, step | silu | {"out": lambda: randn(2, 8)}),
        behind=extension._update_into,
    ),
    "causal_conv1d_varlen_states": Form(varlen_states.causal_conv1d_varlen_states, lengths, takes="x"),
    "causal_conv1d_varlen_states_ref": Form(varlen_states.causal_conv1d_varlen_states_ref, lengths, takes="x"),
    "serving.causal_conv1d_fn": Form(serving.causal_conv1d_fn, varlen),
    "serving.causal_conv1d_fn, validated": Form(serving.causal_conv1d_fn, varlen | validated),
    "serving.causal_conv1d_split_qkv": Form(serving.causal_conv1d_split_qkv, varlen | parts),
    "serving.causal_conv1d_update": Form(serving.causal_conv1d_update, decode),
    "serving.causal_conv1d_update, validated": Form(serving.causal_conv1d_update, decode | validated),
    "serving.causal_conv1d_update_split_qkv": Form(serving.causal_conv1d_update_split_qkv, packed),
    "serving.fused_reshape_causal_conv1d_update_single_token": Form(serving.fused_reshape_causal_conv1d_update_single_token, gated),
    "conv2d": Form(hip.conv2d, images),
    "conv2d of an image, by kernels": Form(hip.conv2d, image, backend="simt"),
    "conv2d_plan": Form(hip.conv2d_plan, images | {"target": lambda: "cpu"}),
    "conv2d_plan for simt": Form(hip.conv2d_plan, images | {"target": lambda: "wave64"}),
    "warmup": Form(hip.warmup, {"modules": lambda: ["causal_conv1d"]}),
    "CausalConv1d()": Form(nn.CausalConv1d, parameters | {"dim": lambda: 8, "width": lambda: 4}),
    "CausalConv1d": Form(causal.forward, only(causal.forward, fn), grad=False),
    "CausalConv1d.step": Form(causal.step, only(causal.step, step), grad=False),
    "ShortConvolution()": Form(nn.ShortConvolution, parameters | {"hidden_size": lambda: 8, "kernel_size": lambda: 4}),
    "ShortConvolution": Form(short.forward, tokens),
    "ShortConvolution, a token a row": Form(short.forward, one, grad=False),
    "ShortConvolution, a token a sequence": Form(short.forward, sequences, grad=False),
}


# ---- what is passed instead --------------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("has no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("is neither true nor false")


VALUES: dict[str, Callable[[], Any]] = {
    "None": no, "-1": lambda: -1, "3": lambda: 3, "2**70": lambda: 2**70, "10**5000": lambda: 10**5000, "1.0": lambda: 1.0,
    "nan": lambda: float("nan"), "True": lambda: True, "'x'": lambda: "x", "''": str, "a long string": lambda: "x" * 10**5,
    "a surrogate": lambda: "\udc80", "['relu']": lambda: ["relu"], "[[1]]": lambda: [[1]], "many": lambda: [1] * 10**4, "()": tuple,
    "a dict": lambda: {"a": 1}, "a type": lambda: int, "an object": object, "an unprintable object": Unprintable,
    "an array": lambda: np.ones((2, 3)), "tensors": lambda: [randn(2, 3)] * 2, "a tensor": lambda: randn(40, 40),
    "a dtype": lambda: torch.int8,
}  # fmt: skip


def wrong_tensors(good: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of which no argument can be one that `good` is."""
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
        "bool": value is None or isinstance(value, bool),
        "int": isinstance(value, int),
        "str": isinstance(value, str),
        "Ints": isinstance(value, int) or (is_sequence and all(type(part) is int for part in value)),
        "Padding": isinstance(value, (int, str)) or (is_sequence and all(type(part) is int for part in value)),
        "tuple[Tensor, Tensor, Tensor]": False,
        "Sequence[str]": isinstance(value, dict) or (is_sequence and all(type(part) is str for part in value)),
        "torch.dtype": isinstance(value, torch.dtype),
        "torch.device": False,
    }
    return any(kinds[kind] for kind in annotation.split(" | "))


def tensors_of(arguments: Arguments) -> dict[str, Tensor]:
    listed = {f"{name}[{i}]": part for name, value in arguments.items() if isinstance(value, tuple) for i, part in enumerate(value)}
    return {name: value for name, value in (arguments | listed).items() if isinstance(value, Tensor) and not value.is_sparse}


def complaint(form: Form, name: str, arguments: Arguments) -> str | None:
    """What is wrong with how the call, whose argument `name` is, is refused."""
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
    monkeypatch.setattr(Tensor, "__repr__", lambda tensor: "tensor(...)")  # (pybind11 prints all arguments before we see its error)
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


# ---- by name -----------------------------------------------------------------------------------------------------------------------

X, W = randn(2, 8, 16), randn(8, 4)
IMAGE, FILTERS = randn(1, 3, 8, 8), randn(4, 3, 3, 3)
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a list as bias": (lambda: hip.causal_conv1d_fn(X, W, [1.0]), TypeError, r"^bias: got \[1.0\], expected a torch.Tensor or None$"),
    "a number as final states": (
        lambda: hip.causal_conv1d_fn(X, W, final_states_out=3),
        TypeError,
        "^final_states_out: got 3, expected a torch.Tensor or None$",
    ),
    "ids in a list": (lambda: hip.causal_conv1d_fn(X, W, seq_idx=[[0] * 16] * 2), TypeError, r"^seq_idx: got \[\[0, 0, 0, 0, \.\.\.\]"),
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
    "a plan's target": (lambda: hip.causal_conv1d_plan(X, W, target=3), TypeError, "^target: got 3, expected a string or None$"),
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
    "a set as padding": (lambda: hip.conv2d(IMAGE, FILTERS, padding={1}), TypeError, r"^padding: got \{1\}, expected"),
    "a workspace of half a byte": (
        lambda: hip.conv2d_plan(IMAGE, FILTERS, workspace_limit=0.5),
        TypeError,
        "^workspace_limit: got 0.5, expected",
    ),
    "one module's name": (lambda: hip.warmup("causal_conv1d"), TypeError, "^modules: got 'causal_conv1d', expected a list of strings"),
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


def test_objects_are_described_in_a_line() -> None:
    many: Any = [2**70] * 99
    value: Any
    for value in ("x" * 999, 10**5000, many, [many] * 9, {"a key": many}, [randn(50, 50)] * 9, np.ones(99), Unprintable(), iter(many)):
        text = describe(value)
        assert len(text) < 160 and "\n" not in text and "array(" not in text and "tensor(" not in text, text
    for value, text in ((None, "None"), ((1, 2.5), "(1, 2.5)"), ("a\nb", r"'a\nb'"), (torch.int8, "torch.int8")):
        assert describe(value) == text
    assert describe([W.half()]) == "[a torch.float16 tensor of shape (8, 4)]"
