"""The conv2d of a rank's part of an image, of which the rows that no other rank has a share in are convolved while the others
travel.

They are read where they lie; only the windows around the borders are copied. (Rows stand for columns too, where those are
split.)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.conv2d import calls, forward, geometry, router
from ..ops.conv2d.derivatives import convolution_backward, gradient_of_sums
from ..ops.conv2d.geometry import Kind, Options, kind_of
from ..ops.conv2d.operators import into
from .exchange import GivingBack, PartsExchange, cut, fetch, in_memory, joined
from .groups import Group
from .routes import Wants

LARGE = 256 << 20  # bytes of a part whose copy takes longer than two more launches, on the host and on the GPU


def dense(like: Tensor, shape: Sequence[int]) -> Kind:
    """A dense tensor of another shape, whose axes lie in memory in the order of `like`'s, at an aligned address."""
    strides, total = [0] * len(shape), 1
    for axis in in_memory(like)[::-1]:
        strides[axis] = total
        total *= shape[axis]
    return Kind(like.dtype, tuple(shape), tuple(strides), 0)


class Interior(NamedTuple):
    """Outputs [start, stop) of a part, which need this rank's own rows alone."""

    start: int
    stop: int
    at: int  # row of this rank where the first one's window begins
    step: int  # rows from one window to the next
    span: int  # rows of a window

    def rows(self, outputs: int) -> int:
        """The rows of so many outputs' windows."""
        return (outputs - 1) * self.step + self.span

    def between(self, rows: int, outputs: int) -> Interior:
        """The same between borders of whole multiples of `rows`, in a part of so many `outputs`; perhaps nothing."""
        start, stop = -(-self.start // rows) * rows, outputs - -(-(outputs - self.stop) // rows) * rows
        return self._replace(start=start, stop=max(start, stop), at=self.at + (start - self.start) * self.step)


class Part(NamedTuple):
    """A call, but for its tensors."""

    group: Group
    axis: int
    wants: Wants
    outputs: int  # along the split axis
    interior: Interior
    choice: calls.Choice | None
    out_shape: tuple[int, ...]  # of the whole
    local: Options  # of what is fetched
    choices: dict[str, Any]  # of the operator

    def of(self, fetched: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        out_dtype, algorithm = self.choices["out_dtype"], self.choices["algorithm"]
        with calls.pinned_to(self.choice):
            return forward.run(
                fetched, weight, bias, residual, None, self.local, out_dtype, algorithm, router.WORKSPACE_LIMIT, None
            )

    def borders(self) -> list[tuple[int, int]]:
        """The other outputs."""
        return [(low, high) for low, high in ((0, self.interior.start), (self.interior.stop, self.outputs)) if low < high]

    def shaped(self, x: Tensor, rows: int) -> Kind:
        """The kind of a tensor of so many rows, copied."""
        return dense(x, [*x.shape[: self.axis], rows, *x.shape[self.axis + 1 :]])

    def inner(self, x: Tensor) -> Tensor:
        """The rows of the interior's windows."""
        return x.narrow(self.axis, self.interior.at, self.interior.rows(self.interior.stop - self.interior.start))


def in_pieces(part: Part, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Part | None:
    """The call with the interior to take, or None where it does not pay, or would change the order of sums. What travels is the
    same either way, so that each rank decides for itself.

    How a sum is split may depend on the rows of a call, as may the passes over LDS in which `direct` takes the channels, and an
    algorithm that is named may refuse a piece of what it serves. A part's own may not serve a piece either: it reads whole
    vectors and patches of pixels, so that borders of two rows are tried where one is too few.
    """
    if x.numel() * x.element_size() < LARGE:
        return None
    choice = part.choice
    if choice and (choice.split_k > 1 or choice.algorithm == "direct" or calls.is_named(part.choices["algorithm"])):
        return None
    for rows in (1, 2):
        found = part._replace(interior=part.interior.between(rows, part.outputs))
        if 2 * (found.interior.stop - found.interior.start) >= part.outputs and _keeps(found, x, weight, bias, residual):
            return found
    return None


def _keeps(part: Part, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> bool:
    """Tell whether what is chosen for the part serves each of its pieces."""
    if part.choice is None:
        return True
    inside = part.interior
    pieces = [(part.shaped(x, inside.rows(stop - start)), start, stop) for start, stop in part.borders()]
    for piece, start, stop in [(kind_of(part.inner(x)), inside.start, inside.stop), *pieces]:
        added = None if residual is None else kind_of(residual.narrow(part.axis, start, stop - start))
        asked = part.local, part.choices["out_dtype"], part.choices["algorithm"]
        if not calls.follows(part.choice, x, weight, bias, piece, added, *asked):
            return False
    return True


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, part: Part) -> Tensor:
    """This rank's outputs."""
    # The dispatcher would resolve negations as well, below autograd.
    plain = [None if tensor is None else tensor.resolve_neg() for tensor in (x, weight, bias, residual)]
    return _Conv2d.apply(*plain, part)


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, part):
        exchange = PartsExchange([x], [part.axis], part.wants, part.group)
        shape = (*part.out_shape[: part.axis], part.outputs, *part.out_shape[part.axis + 1 :])
        out = geometry.new_result(x, weight, shape, part.choices["out_dtype"])  # type: ignore[arg-type]
        inside = part.interior

        def run(rows: Tensor, start: int, stop: int) -> None:
            to = out.narrow(part.axis, start, stop - start)
            added = None if residual is None else residual.narrow(part.axis, start, stop - start)
            out_dtype, algorithm = part.choices["out_dtype"], part.choices["algorithm"]
            into(to, rows, weight, bias, added, part.local, out_dtype, algorithm, router.WORKSPACE_LIMIT, None)

        with calls.pinned_to(part.choice):
            run(part.inner(x), inside.start, inside.stop)
            (pieces,) = exchange.wait()
            for start, stop in part.borders():
                first = start * inside.step
                run(joined(cut(pieces, part.axis, first, first + inside.rows(stop - start)), x, part.axis), start, stop)
        ctx.part = part
        ctx.save_for_backward(x, weight, bias, residual, out, *pieces)  # this rank's own pieces are views of x
        return out

    @staticmethod
    def backward(ctx, dout):
        x, weight, bias, residual, out, *pieces = ctx.saved_tensors
        part, wanted = ctx.part, ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # create_graph=True: by operators that can be differentiated again
            inputs = [tensor for tensor, wants in zip((x, weight, bias, residual), wanted, strict=True) if wants]
            again = part.of(fetch(x, part.axis, part.wants, part.group), weight, bias, residual)
            gradients = iter(torch.autograd.grad(again, inputs, dout, create_graph=True))
            return *(next(gradients) if wants else None for wants in wanted), None
        wants_x, wants_weight, wants_bias, wants_residual = wanted
        fetched, o = joined(pieces, x, part.axis), part.local
        choices = {"algorithm": part.choices["algorithm"], "workspace_limit": router.WORKSPACE_LIMIT}
        dsum = gradient_of_sums(
            SimpleNamespace(saved_tensors=(fetched, weight, bias, residual, out), options=o, choices=choices), dout
        )
        back = dweight = None
        if wants_x:
            dfetched, _ = convolution_backward(dsum, fetched, weight, *o[:4], o.padding_mode, True, False)
            back = GivingBack(dfetched, part.axis, part.wants, part.group, x.shape[part.axis])
        if wants_weight:  # while the gradients of others' rows travel
            _, dweight = convolution_backward(dsum, fetched, weight, *o[:4], o.padding_mode, False, True)
        dbias = dsum.sum((0, 2, 3), dtype=bias.dtype) if wants_bias else None
        dresidual = dsum.to(residual.dtype) if wants_residual else None
        return None if back is None else back.wait(), dweight, dbias, dresidual, None
