"""Calls of the backward of the causal conv1d, and what is wrong with their gradients."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch
from hipconv import jit, reference_training, targets


class Case(NamedTuple):
    """One call: sizes, types, layout, and what the rows hold."""

    batch: int
    dim: int
    seqlen: int
    width: int
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    use_silu: bool = True
    has_bias: bool = True
    layout: str = "channel_first"
    has_ids: bool = False
    has_initial: bool = False
    has_final: bool = False

    def inputs(self, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        shape, state = (self.batch, self.dim, self.seqlen), (self.batch, self.dim, self.width - 1)
        x, dout = (empty_as(self.layout, shape, self.dtype, device).copy_(normal(*shape)) for _ in range(2))
        ids = torch.randint(-1, 4, (self.batch, self.seqlen), generator=generator, dtype=torch.int32).sort(1)[0].roll(1, 1)
        return Inputs(
            x,
            (normal(self.dim, self.width) / self.width**0.5).to(device, self.weight_dtype),
            normal(self.dim).to(device, self.weight_dtype) if self.has_bias else None,
            dout,
            ids.to(device) if self.has_ids else None,
            normal(*state).to(device, self.dtype) if self.has_initial else None,
            normal(*state).to(device, self.dtype) if self.has_final else None,
            self.use_silu,
        )


class Inputs(NamedTuple):
    """The tensors of a call of the backward."""

    x: Tensor
    weight: Tensor
    bias: Any
    dout: Tensor
    seq_idx: Any = None
    initial_states: Any = None
    dfinal_states: Any = None
    use_silu: bool = True

    def expected(self) -> tuple[Any, ...]:
        """dx, dweight, dbias and dinitial_states by autograd through the reference, in float64."""
        named: tuple[Any, ...] = (self.x, self.weight, self.bias, self.initial_states)
        leaves: list[Any] = [None if t is None else t.detach().double().requires_grad_() for t in named]
        x, weight, bias, initial = leaves
        out, final = reference_training.causal_conv1d(x, weight, bias, self.seq_idx, initial, self.use_silu)
        loss = (out * self.dout.double()).sum()
        if self.dfinal_states is not None:
            loss = loss + (final * self.dfinal_states.double()).sum()
        wanted = [t for t in (x, weight, bias, initial) if t is not None]
        found = dict(zip(map(id, wanted), torch.autograd.grad(loss, wanted, allow_unused=True), strict=True))
        return tuple(
            None if t is None else found[id(t)] if found[id(t)] is not None else t * 0 for t in (x, weight, bias, initial)
        )

    def gradients(self, kernel: str = "auto", dx: Tensor | None = None) -> tuple[Tensor, ...]:
        x, weight, bias, dout, ids, initial, dfinal, silu = self
        inputs = (x, weight, bias, dout, ids, initial, dfinal, initial is not None, silu)
        if dx is None:
            return torch.ops.hipconv.causal_conv1d_bwd(*inputs, kernel_name=kernel)
        return (dx, *torch.ops.hipconv.causal_conv1d_bwd_out(dx, *inputs, kernel_name=kernel))


_last: list[Any] = [None, ()]  # inputs, and what is expected of them: one kernel after the other has the same ones


def wrong_gradients(inputs: Inputs, found: tuple[Tensor, ...]) -> str | None:
    """None if the gradients are those of the reference, else what is wrong.
    Sums over tokens may be off by f32 rounding of each term.
    """
    if _last[0] is not inputs:
        _last[:] = inputs, inputs.expected()
    terms = inputs.x.shape[0] * inputs.x.shape[2] * 10  # of a magnitude of a few units
    for name, ours, expected in zip(("dx", "dweight", "dbias", "dinitial_states"), found, _last[1], strict=True):
        if expected is None:
            continue
        if name in ("dx", "dinitial_states"):
            wrong = mismatch(ours, expected, may_differ=0.005)  # f32 sums of f32 products of sums cancel now and then
        else:
            eps = torch.finfo(ours.dtype).eps
            bound = eps * (1 + expected.abs()) + 1e-6 * (10 + terms**0.5)
            off = ~((ours.double() - expected).abs() <= bound)
            wrong = (
                f"{int(off.sum())} sums are off, by up to {(ours.double() - expected).abs().max():.3g}" if off.any() else None
            )
            wrong = wrong or (f"shape {ours.shape}" if ours.shape != expected.shape else None)
        if wrong:
            return f"{name}: {wrong}"
    return None


def kernels_of(device: torch.device) -> list[str]:
    return jit.module("causal_conv1d_bwd", targets.of(device)).causal_conv1d_bwd_kernels()


def refused(error: ValueError) -> bool:
    return "which serves" in str(error)


def served_by(inputs: Inputs, kernel: str) -> tuple[Tensor, ...] | None:
    try:
        return inputs.gradients(kernel)
    except ValueError as error:
        assert refused(error), error
        return None


# ---- everything below with a `device` runs on every backend (conftest.py) ----------------------------------------------------

SHAPES = [(1, 1, 1), (2, 7, 2), (3, 8, 3), (2, 33, 9), (1, 8, 131), (2, 3, 270), (2, 40, 20), (20, 4, 7), (1, 140, 18)]


def grid() -> list[Case]:
    """Each dtype with each layout and all that rows may hold; the rest drawn so that each value occurs."""
    draw = random.Random(0)
    cases = []
    combinations = itertools.product(DTYPES.values(), LAYOUTS, itertools.product((False, True), repeat=3))
    for number, (dtype, layout, contents) in enumerate(combinations):
        width, weight_dtype = draw.choice([1, 2, 3, 4, 4, 5, 6, 7, 8, 11]), draw.choice([*DTYPES.values()])
        use_silu, has_bias = draw.random() < 0.7, draw.random() < 0.7
        cases.append(Case(*SHAPES[number % len(SHAPES)], width, dtype, weight_dtype, use_silu, has_bias, layout, *contents))
    return cases
