"""The conv2d of a rank's part of an image, of which the rows that no other rank has a share in are convolved while the others
travel.

They are read where they lie; only the windows around the borders are copied. (Rows stand for columns too, where those are
split.)
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.conv2d import calls, forward, geometry, router
from ..ops.conv2d.activations import read_by_gradient
from ..ops.conv2d.derivatives import convolution_backward, gradient_of_sums
from ..ops.conv2d.geometry import Kind, Options, kind_of
from .beside import Beside
from .exchange import GivingBack, PartsExchange, cut, fetch, give_back, in_memory, joined
from .groups import Group
from .routes import Wants

LARGE = 64 << 20  # bytes of a part whose copy, and exchange, take longer than two more launches, on the host and on the GPU


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

    axis: int
    wants: Wants
    outputs: int  # along the split axis
    interior: Interior
    choice: calls.Choice | None
    out_shape: tuple[int, ...]  # of the whole
    local: Options  # of what is fetched
    choices: dict[str, Any]  # of the operator

    def of(self, fetched: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        with calls.pinned_to(self.choice):
            return self.run(fetched, weight, bias, residual, None)

    def run(self, rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None) -> Tensor:
        """Convolve rows, where the choice is the pin."""
        out_dtype, algorithm = self.choices["out_dtype"], self.choices["algorithm"]
        return forward.run(rows, weight, bias, residual, out, self.local, out_dtype, algorithm, router.WORKSPACE_LIMIT, None)

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


def _pixels(images: Tensor) -> Tensor:
    """Messages have the channels of a pixel inside, as channels_last has them: rows of one image lie in a run then."""
    return images.permute(0, 2, 3, 1)


def _images(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2)


def fetched(x: Tensor, axis: int, wants: Wants, group: Group) -> Tensor:
    """The rows that this rank wants, copied. Differentiable."""
    return _images(fetch(_pixels(x), axis - 1, wants, group))


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, part: Part, group: Group) -> Tensor:
    """This rank's outputs."""
    # The dispatcher would resolve negations as well, below autograd.
    plain = [None if tensor is None else tensor.resolve_neg() for tensor in (x, weight, bias, residual)]
    return _Conv2d.apply(*plain, part, group)


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, part, group):
        beside = Beside(x)
        shape = (*part.out_shape[: part.axis], part.outputs, *part.out_shape[part.axis + 1 :])
        out = geometry.new_result(x, weight, shape, part.choices["out_dtype"])  # type: ignore[arg-type]
        inside = part.interior

        def run(rows: Tensor, start: int, stop: int) -> None:
            to = out.narrow(part.axis, start, stop - start)
            added = None if residual is None else residual.narrow(part.axis, start, stop - start)
            part.run(rows, weight, bias, added, to)

        def begun() -> PartsExchange:
            return PartsExchange([_pixels(x)], [part.axis - 1], part.wants, group, beside.hides)

        exchange = None if beside.hides else begun()
        with calls.pinned_to(part.choice):
            run(part.inner(x), inside.start, inside.stop)
            with beside.running():
                (found,) = (exchange or begun()).wait()
                pieces = [_images(piece) for piece in found]
                for start, stop in part.borders():
                    first = start * inside.step
                    windows = cut(pieces, part.axis, first, first + inside.rows(stop - start))
                    run(joined(windows, x, part.axis), start, stop)
            beside.keep(*pieces)
        ctx.part, ctx.group = part, group
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (bias, residual)]
        read = read_by_gradient(part.local.activation, bias, residual, out)
        ctx.save_for_backward(x, weight, *read, *pieces)  # this rank's own pieces are views of x
        return out

    @staticmethod
    def backward(ctx, dout):
        x, weight, bias, residual, out, *pieces = ctx.saved_tensors
        part, group, wanted = ctx.part, ctx.group, ctx.needs_input_grad[:4]
        wants_x, wants_weight, wants_bias, wants_residual = wanted
        bias_dtype, residual_dtype = ctx.dtypes
        again, o = torch.is_grad_enabled(), part.local  # with create_graph=True, by what can be differentiated again
        around = fetched(x, part.axis, part.wants, group) if again else joined(pieces, x, part.axis)
        choices = {"algorithm": part.choices["algorithm"], "workspace_limit": router.WORKSPACE_LIMIT}
        dsum = gradient_of_sums(SimpleNamespace(options=o, choices=choices), (around, weight, bias, residual, out), dout)
        came_back = dweight = None
        if wants_x:
            dfetched, _ = convolution_backward(dsum, around, weight, *o[:4], o.padding_mode, True, False)
            sent = _pixels(dfetched), part.axis - 1, part.wants, group, x.shape[part.axis]
            came_back = functools.partial(give_back, *sent) if again else GivingBack(*sent, in_place=True).wait
        if wants_weight:  # while the gradients of others' rows travel
            _, dweight = convolution_backward(dsum, around, weight, *o[:4], o.padding_mode, False, True)
        dbias = dsum.sum((0, 2, 3), dtype=bias_dtype) if wants_bias else None
        dresidual = dsum.to(residual_dtype) if wants_residual else None
        return None if came_back is None else _images(came_back()), dweight, dbias, dresidual, None, None
