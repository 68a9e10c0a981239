"""Properties between functions, whatever the numbers: linearity, shifts, channels apart, adjoints, chunks, one result by every
name.

The numbers are small integers, whose sums every type here holds exactly: both sides are equal to the last bit, and no tolerance
hides a tap.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch
from torch import Tensor

from support.backends import EVERYTHING
from support.tensors import DTYPES
import hipconv
from hipconv import serving

pytestmark = pytest.mark.usefixtures("one_thread")
often = settings(max_examples=200 if EVERYTHING else 12, deadline=None)


class Problem(NamedTuple):
    """The sizes of a convolution."""

    seed: int
    batch: int
    dim: int
    seqlen: int
    width: int
    dtype: torch.dtype
    channel_last: bool

    def integers(self, device: torch.device, *shape: int, dtype: torch.dtype | None = None, most: int = 2) -> Tensor:
        return torch.randint(-most, most + 1, shape).to(device, dtype or self.dtype)

    def x(self, device: torch.device, batch: int | None = None) -> Tensor:
        batch = self.batch if batch is None else batch
        if self.channel_last:
            return self.integers(device, batch, self.seqlen, self.dim).mT
        return self.integers(device, batch, self.dim, self.seqlen)

    def parameters(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """weight and bias, in float32: sums over tokens pass what 16 bits hold exactly."""
        torch.manual_seed(self.seed)
        weight = self.integers(device, self.dim, self.width, dtype=torch.float32)
        return weight, self.integers(device, self.dim, dtype=torch.float32)


problems = st.builds(
    Problem,
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    dim=st.one_of(st.integers(1, 9), st.sampled_from([16, 40, 64])),
    seqlen=st.one_of(st.integers(0, 9), st.integers(0, 70)),
    width=st.integers(1, 9),
    dtype=st.sampled_from(list(DTYPES.values())),
    channel_last=st.booleans(),
)


def inner(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() * b.detach().double()).sum())


def equal(found: Tensor, expected: Tensor, *where: object) -> None:
    assert found.dtype == expected.dtype and torch.equal(found, expected), where


# ---- the convolution is linear, and the same everywhere ----------------------------------------------------------------------


@given(problems, st.integers(-1, 2), st.integers(-1, 1))
@often
def _linear(device: torch.device, p: Problem, a: int, b: int) -> None:
    weight, bias = p.parameters(device)
    x, y = p.x(device), p.x(device)
    convolve = hipconv.causal_conv1d
    equal(convolve(a * x + b * y, weight), a * convolve(x, weight) + b * convolve(y, weight), p)
    other = p.integers(device, *weight.shape, dtype=torch.float32)
    equal(convolve(x, a * weight + b * other), a * convolve(x, weight) + b * convolve(x, other), p)
    equal(convolve(x, weight, bias), convolve(x, weight) + bias[:, None].to(x.dtype), p)


def test_it_is_linear_in_x_and_in_weight(device: torch.device) -> None:
    _linear(device)


@given(problems, st.integers(1, 20))
@often
def _shift(device: torch.device, p: Problem, by: int) -> None:
    weight, bias = p.parameters(device)
    x = p.x(device)
    later = torch.cat([x.new_zeros(p.batch, p.dim, by), x], 2)
    equal(hipconv.causal_conv1d(later, weight, bias)[..., by:], hipconv.causal_conv1d(x, weight, bias), p)


def test_a_later_row_has_the_same_results_later(device: torch.device) -> None:
    _shift(device)


@given(problems, st.integers(0, 64))
@often
def _channels(device: torch.device, p: Problem, at: int) -> None:
    weight, bias = p.parameters(device)
    x, at = p.x(device), min(at, p.dim)
    parts = [
        hipconv.causal_conv1d(x[:, part], weight[part], bias[part], "silu")
        for part in (slice(at), slice(at, None))
        if x[:, part].shape[1]
    ]
    whole = hipconv.causal_conv1d(x, weight, bias, "silu")
    found = torch.cat(parts, 1)
    assert torch.allclose(found.float(), whole.float(), rtol=2 * torch.finfo(p.dtype).eps, atol=1e-6), p
    weight = weight[:, :1] * 0 + 1  # every kernel gives the bits of x
    parts = [hipconv.causal_conv1d(x[:, part], weight[part]) for part in (slice(at), slice(at, None)) if x[:, part].shape[1]]
    equal(torch.cat(parts, 1), x, p)


def test_channels_do_not_know_of_each_other(device: torch.device) -> None:
    _channels(device)


@given(problems)
@often
def _by_every_name(device: torch.device, p: Problem) -> None:
    """conv2d with images of one row, packed rows, prefill and decode."""
    weight, bias = p.parameters(device)
    x = p.x(device)
    expected = hipconv.causal_conv1d(x, weight, bias)
    ids = torch.arange(p.batch, device=device, dtype=torch.int32).repeat_interleave(p.seqlen)
    packed = x.transpose(0, 1).reshape(p.dim, -1)
    rows, _ = hipconv.causal_conv1d_fn(packed[None], weight, bias, ids[None], None, True)
    equal(rows.reshape(p.dim, p.batch, p.seqlen).transpose(0, 1), expected, p)

    starts = torch.arange(p.batch + 1, device=device) * p.seqlen
    pool = torch.full((p.batch + 1, p.dim, p.width - 1), 7.0, device=device, dtype=p.dtype)
    slots = torch.arange(p.batch, device=device).flip(0)
    has_none = torch.zeros(p.batch, dtype=torch.bool, device=device)
    prefilled = serving.causal_conv1d_fn(packed, weight, bias, pool, starts, slots, has_none, activation=None)
    equal(prefilled.reshape(p.dim, p.batch, p.seqlen).transpose(0, 1), expected, p)

    stepped = torch.zeros_like(pool)
    steps = [
        serving.causal_conv1d_update(x[..., t], stepped, weight, bias, conv_state_indices=slots)
        for t in range(min(p.seqlen, 8))
    ]
    for t, step in enumerate(steps):
        equal(step, expected[..., t], p, t)
    if p.seqlen <= 8:
        equal(stepped[: p.batch], pool[: p.batch] if p.seqlen else stepped[: p.batch] * 0, p)

    if p.seqlen:
        image = hipconv.conv2d(
            x[:, :, None], weight[:, None, None].to(p.dtype), bias.to(p.dtype), padding=(0, 0, p.width - 1, 0), groups=p.dim
        )
        equal(image[:, :, 0], expected, p)


def test_it_is_one_convolution_by_every_name(device: torch.device) -> None:
    _by_every_name(device)


# ---- backward: the adjoint ---------------------------------------------------------------------------------------------------


@given(problems, st.booleans(), st.booleans())
@often
def _adjoint(device: torch.device, p: Problem, has_states: bool, has_ids: bool) -> None:
    weight, bias = (t.requires_grad_() for t in p.parameters(device))
    x = p.x(device).requires_grad_()
    states = p.integers(device, p.batch, p.dim, p.width - 1).requires_grad_() if has_states else None
    ids = torch.randint(-1, 3, (p.batch, p.seqlen)).to(device, torch.int32).sort(1)[0] if has_ids else None
    out, final = hipconv.causal_conv1d_fn(x, weight, None, ids, states, True)
    y, z = p.integers(device, *out.shape), p.integers(device, *final.shape)
    wanted = [t for t in (x, states) if t is not None]
    gradients = torch.autograd.grad([out, final], [*wanted, weight], [y, z])
    value = inner(out, y) + inner(final, z)  # linear in (x, states), whose adjoint the gradient is
    assert value == sum(inner(t, gradient) for t, gradient in zip(wanted, gradients, strict=False)), p
    assert inner(out, y) == inner(weight, gradients[-1]), p  # and in weight, of which final states know nothing
    (dbias,) = torch.autograd.grad(hipconv.causal_conv1d_fn(x, weight, bias, ids, states), bias, y)
    seen = torch.ones_like(y) if ids is None else (ids >= 0)[:, None].to(y.dtype)
    equal(dbias, (y * seen).float().sum((0, 2)), p)


def test_the_backward_of_conv1d_is_its_adjoint(device: torch.device) -> None:
    _adjoint(device)


@given(
    st.integers(0, 10**6), st.integers(1, 2), st.sampled_from([(1, 1, 1), (3, 4, 2), (2, 2, 2), (4, 6, 2)]), st.integers(1, 3),
    st.integers(1, 2), st.integers(1, 2), st.integers(0, 2),
)  # fmt: skip
@often
def _adjoint_2d(
    device: torch.device,
    seed: int,
    batch: int,
    channels: tuple[int, int, int],
    kernel: int,
    stride: int,
    dilation: int,
    padding: int,
) -> None:
    torch.manual_seed(seed)
    into, outof, groups = channels
    into *= groups

    def integers(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape).to(device, torch.float32).requires_grad_()

    x, weight = integers(batch, into, 7, 6), integers(outof, into // groups, kernel, kernel)
    out = hipconv.conv2d(x, weight, None, stride, padding, dilation, groups)
    y = integers(*out.shape).detach()
    dx, dweight = torch.autograd.grad(out, (x, weight), y)
    assert inner(out, y) == inner(x, dx) == inner(weight, dweight)


def test_the_backward_of_conv2d_is_its_adjoint(device: torch.device) -> None:
    _adjoint_2d(device)


# ---- chunks ------------------------------------------------------------------------------------------------------------------


@given(problems, st.lists(st.integers(0, 70), max_size=4))
@often
def _chunks(device: torch.device, p: Problem, cuts: list[int]) -> None:
    """Joined by their states, forward and backward."""
    weight, bias = (t.requires_grad_() for t in p.parameters(device))
    x = p.x(device).requires_grad_()
    y, z = p.integers(device, *x.shape), p.integers(device, p.batch, p.dim, p.width - 1)
    out, final = hipconv.causal_conv1d_fn(x, weight, bias, return_final_states=True)
    whole = torch.autograd.grad([out, final], (x, weight, bias), [y, z])
    pieces, state = [], x.new_zeros(p.batch, p.dim, p.width - 1)
    edges = [0, *sorted(min(cut, p.seqlen) for cut in cuts), p.seqlen]
    for begin, end in itertools.pairwise(edges):
        piece, state = hipconv.causal_conv1d_fn(x[..., begin:end], weight, bias, None, state, True)
        pieces.append(piece)
    joined = torch.cat(pieces, 2)
    equal(joined, out, p, edges)
    equal(state, final, p, edges)
    for found, expected in zip(torch.autograd.grad([joined, state], (x, weight, bias), [y, z]), whole, strict=True):
        equal(found, expected, p, edges)


def test_chunks_are_the_whole_forward_and_backward(device: torch.device) -> None:
    _chunks(device)
