"""Calls of the forward that several tests make: random inputs, strides, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor, zeros

from support.tensors import empty_as, mismatch, strided
import hipconv
from hipconv import reference


class Case(NamedTuple):
    """One call: sizes, types, layout."""

    batch: int
    dim: int
    seqlen: int
    width: int
    dtype: torch.dtype
    weight_dtype: torch.dtype
    use_silu: bool = True
    has_bias: bool = True
    layout: str = "channel_first"

    def inputs(self, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """x, weight, bias, and an `out` full of NaN, in the case's layout."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch, self.dim, self.seqlen)
        x, out = (empty_as(self.layout, shape, self.dtype, device) for _ in range(2))
        x.copy_(torch.randn(shape, generator=generator))
        weight = (torch.randn(self.dim, self.width, generator=generator) / self.width**0.5).to(device, self.weight_dtype)
        bias = torch.randn(self.dim, generator=generator).to(device, self.weight_dtype) if self.has_bias else None
        return x, weight, bias, out.fill_(torch.nan)


def run(x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, kernel: str = "auto") -> Tensor:
    """The op into a fresh tensor full of NaN."""
    out = torch.empty_like(x).fill_(torch.nan)
    hipconv.causal_conv1d_fwd(out, x, weight, bias, use_silu, kernel=kernel)
    return out


def assert_matches(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, use_silu: bool) -> None:
    wrong = mismatch(out, reference.causal_conv1d(x, weight, bias, use_silu))
    assert wrong is None, wrong


def assert_pairs_match(groups: Iterable[list[tuple[Tensor, Tensor]]]) -> None:
    """Outputs of one dtype and their references, a group taken together:
    short ones one by one could miss 99.9 % by bad luck.
    """
    for ours_and_expected in groups:
        wrong = mismatch(*map(torch.cat, zip(*ours_and_expected, strict=True)))
        assert wrong is None, wrong


def any_strides(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of axes in any order, the innermost first with or without a step, and with gaps between some."""
    strides, step = [0] * len(shape), draw.choice([1, 1, 1, 2, 3])
    for axis in draw.sample(range(len(shape)), len(shape)):
        strides[axis] = step
        step = step * shape[axis] + draw.choice([0, 0, 0, 0, 1, 2, 3, 8])
    return tuple(strides)


def random_rows(draw: random.Random, device: torch.device) -> tuple[dict[str, Any], Tensor]:
    """Arguments of a call of rows with states and sequence ids, in memory of any pitch and alignment; and the buffer of `out`.

    What is around x is NaN, what is around `out` 42.
    """
    batch, width = draw.choice([1, 2, 3]), draw.choice([*range(1, 9), 9, 16, 17, 40])
    dim, seqlen = (
        draw.choice([1, 2, 3, 4, 5, 8, 16, 33, 64, 130]),
        draw.choice([1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 50, 70, 300]),
    )
    dtype = draw.choice([torch.float32, torch.float16, torch.bfloat16])
    weight_dtype = draw.choice([torch.float32, dtype])
    shape = batch, dim, seqlen
    channel_last = draw.random() < 0.7
    any_order = draw.random() < 0.3
    crossed = draw.random() < 0.2  # x and out

    def rows(fill: float, channel_last: bool = channel_last) -> tuple[Tensor, Tensor]:
        pitch = (dim if channel_last else seqlen) + draw.choice([0, 0, 1, 2, 3, 4])
        strides: tuple[int, ...] = (seqlen * pitch, 1, pitch) if channel_last else (dim * pitch, pitch, 1)
        if any_order:
            strides = any_strides(draw, shape)
        return strided(shape, strides, draw.choice([0, 0, 1, 2, 8]), dtype, device, fill)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    x, (out, buffer) = rows(torch.nan)[0].copy_(normal(*shape)), rows(42.0, channel_last != crossed)
    weight = draw.choice([normal(dim, width), normal(width, dim).mT]) / width**0.5
    bias, past = normal(dim).to(weight_dtype), normal(batch, width - 1, dim).to(dtype)
    documents = (
        torch.arange(seqlen, device=device).div(draw.choice([1, 2, 3, 8, 20]), rounding_mode="floor").expand(batch, seqlen)
    )
    ids_in_any_order = torch.randint(-1, 3, (seqlen, batch), device=device).mT
    return {
        "out": out,
        "final_states_out": draw.choice([None, torch.zeros(batch, dim, width - 1, dtype=dtype, device=device)]),
        "x": x,
        "weight": weight.to(weight_dtype),
        "bias": draw.choice([None, bias, bias]),
        "seq_idx": draw.choice([None, documents.int().contiguous(), ids_in_any_order.int()]),
        "initial_states": draw.choice([None, past.mT, past.mT.contiguous()]),
        "use_silu": draw.random() < 0.7,
    }, buffer


STRIDES = {
    "contiguous": (5 * 41, 41, 1),
    "channel-last": (5 * 41, 1, 5),
    "odd offset and row pitch": (5 * 47, 47, 1),
    "every third token": (5 * 41 * 3, 41 * 3, 3),
    "batch innermost": (1, 3, 3 * 5),
    "channel-last, wide pitch": (50 * 41, 1, 50),
    "channel-last, every second channel": (50 * 41, 2, 50),
    "rows interleaved": (1, 3 * 41, 3),
}

X_SHAPE = (2, 6, 10)
BAD_CALLS: dict[str, tuple[Callable[[], dict], type[Exception], list[str]]] = {
    # what is changed from a good call; the error; words of its text: the argument, what it was, what was expected
    "x is a list": (lambda: {"x": [1.0]}, TypeError, ["x:", "[1.0]", "torch.Tensor"]),
    "out is None": (lambda: {"out": None}, TypeError, ["out:", "None,", "torch.Tensor"]),
    "bias is a float": (lambda: {"bias": 1.0}, TypeError, ["bias:", "1.0", "torch.Tensor or None"]),
    "weight is a string": (lambda: {"weight": "w"}, TypeError, ["weight:", "'w'", "torch.Tensor"]),
    "use_silu is a string": (lambda: {"use_silu": "silu"}, TypeError, ["use_silu:", "'silu'", "bool"]),
    "kernel is a number": (lambda: {"kernel": 3}, TypeError, ["kernel:", "3", "string"]),
    "kernel is unknown": (lambda: {"kernel": "fastest"}, ValueError, ["kernel:", "'fastest'", "'auto'"]),
    "x has two dimensions": (lambda: {"x": zeros(6, 10)}, ValueError, ["x:", "(6, 10)", "3 dimensions (batch, dim, seqlen)"]),
    "weight has three": (lambda: {"weight": zeros(6, 1, 4)}, ValueError, ["weight:", "(6, 1, 4)", "2 dimensions (dim, width)"]),
    "weight of another dim": (lambda: {"weight": zeros(5, 4)}, ValueError, ["weight:", "(5, 4)", "(6, width >= 1)"]),
    "weight without taps": (lambda: {"weight": zeros(6, 0)}, ValueError, ["weight:", "(6, 0)", "width >= 1"]),
    "bias of another dim": (lambda: {"bias": zeros(7)}, ValueError, ["bias:", "(7,)", "(6,)"]),
    "bias with two dimensions": (lambda: {"bias": zeros(6, 1)}, ValueError, ["bias:", "(6, 1)", "(6,)"]),
    "out of another shape": (lambda: {"out": zeros(2, 6, 9)}, ValueError, ["out:", "(2, 6, 9)", "(2, 6, 10)"]),
    "out of another dtype": (lambda: {"out": zeros(*X_SHAPE).half()}, TypeError, ["out:", "torch.float16", "torch.float32"]),
    "x of float64": (lambda: {"x": zeros(*X_SHAPE).double()}, TypeError, ["x:", "torch.float64", "torch.bfloat16"]),
    "x of int32": (lambda: {"x": zeros(*X_SHAPE).int()}, TypeError, ["x:", "torch.int32", "torch.float32"]),
    "x complex": (lambda: {"x": zeros(*X_SHAPE).to(torch.complex64)}, TypeError, ["x:", "torch.complex64", "torch.float32"]),
    "weight of int8": (lambda: {"weight": zeros(6, 4).to(torch.int8)}, TypeError, ["weight:", "torch.int8", "torch.float16"]),
    "bias of float64": (lambda: {"bias": zeros(6).double()}, TypeError, ["bias:", "torch.float64", "torch.float16"]),
    "x sparse": (lambda: {"x": zeros(*X_SHAPE).to_sparse()}, TypeError, ["x:", "layout", "dense"]),
    "weight sparse": (lambda: {"weight": zeros(6, 4).to_sparse()}, TypeError, ["weight:", "layout", "dense"]),
    "x requires grad": (
        lambda: {"x": zeros(*X_SHAPE).requires_grad_()},
        ValueError,
        ["x:", "requires grad", "torch.no_grad()"],
    ),
    "weight requires grad": (lambda: {"weight": zeros(6, 4).requires_grad_()}, ValueError, ["weight:", "requires grad"]),
    "bias requires grad": (lambda: {"bias": zeros(6).requires_grad_()}, ValueError, ["bias:", "requires grad"]),
    "weight on another device": (lambda: {"weight": zeros(6, 4).to("meta")}, ValueError, ["weight:", "meta", "where x is"]),
    "out on another device": (lambda: {"out": zeros(*X_SHAPE).to("meta")}, ValueError, ["out:", "meta", "where x is"]),
    "out expanded": (
        lambda: {"out": zeros(2, 6, 1).expand(X_SHAPE)},
        ValueError,
        ["out:", "strides (6, 1, 0)", "memory of its own"],
    ),
}
