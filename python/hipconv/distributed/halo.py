"""A shard with what stands around it on other ranks; and the way from whole tensors to shards and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arguments import describe, require_dense
from .exchange import PartsExchange, fetch
from .graphs import outside_of_graphs
from .groups import Group, group_of
from .header import Local, agree, checked_sizes
from .routes import EDGES, LAYOUTS, Chunks, Wants, contiguous, even_sizes, sizes_of, windows, with_halo, zigzag
from .whole import Gather, Shard


@outside_of_graphs
def halo(
    x: Tensor,
    dim: int,
    before: int,
    after: int,
    group: object,
    *,
    edge: str = "zeros",
    sizes: Sequence[int] | None = None,
    validate: bool = True,
) -> Tensor:
    """This rank's shard with the `before` positions that precede it and the `after` that follow it, from whichever ranks hold
    them.

    Args:
        x: this rank's shard, any dtype, any strides. The shards of the group's ranks, in their order, make up the whole axis
            `dim`; they may differ in size there, be empty, or be shorter than the halo, which then comes from several ranks.
        dim: the axis, from -x.dim() on.
        before, after: positions, at least 0.
        group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group. Its ranks need not be those of the
            world.
        edge: what stands before the whole axis and behind its end: "zeros", "first" (the nearest position: the first one
            before, the last one behind) or "wrap" (the other end).
        sizes: of all shards along `dim`, if known. Needed with validate=False.
        validate: let the ranks compare their arguments first, at the cost of a small exchange that the host waits for. It must
            be the same on all ranks. **validate=False is unsafe**: where the ranks then disagree, they hang or compute
            nonsense.

    Returns:
        (..., before + size + after, ...), dense, its axes in memory in the order of x's. Differentiable, any number of times:
        gradients go back to the rank that they belong to, where several meet they are added in float32 in the order of ranks,
        and rounded once (and those of one element that a rank has got many times, before they travel).

    Raises:
        TypeError, ValueError: an argument that does not fit, on every rank the same error (with validate=False on this rank
            alone), no element in the whole axis with "first" or "wrap", or x's other axes, dtype or device that differ from
            other ranks'.
        RuntimeError: a rank is gone (from torch.distributed; with NCCL its watchdog ends the process).

    Every rank of the group must call, and, where one computes gradients, all must: the backward is an exchange, too.
    """

    return begin_halo(x, dim, before, after, group, edge=edge, sizes=sizes, validate=validate).wait()


class PendingHalo:
    """A halo whose exchange is under way."""

    def __init__(self, x: Tensor, axis: int, wants: Wants, group: Group) -> None:
        self._exchange: PartsExchange | None = PartsExchange([x.detach()], [axis], wants, group)
        self._rest = x, axis, wants, group
        self._found: Tensor | None = None

    @outside_of_graphs
    def wait(self) -> Tensor:
        """The result of `halo`. A GPU's current stream waits for it, the host does not (over gloo it does).
        Again and again the same.
        """
        if self._found is None:
            self._found = fetch(*self._rest, begun=self._exchange)
            self._exchange = None
        return self._found


@outside_of_graphs
def begin_halo(
    x: Tensor,
    dim: int,
    before: int,
    after: int,
    group: object,
    *,
    edge: str = "zeros",
    sizes: Sequence[int] | None = None,
    validate: bool = True,
) -> PendingHalo:
    """`halo`, but what its `wait()` returns is still under way: compute what needs no halo in between.

    Arguments and errors are those of `halo`; `x` must not be written before `wait()`. Every rank must call it and, where one
    computes gradients, wait: the backward is an exchange, which is not overlapped.
    """

    def check() -> dict[str, object]:
        for name, value in (("before", before), ("after", after)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: got {describe(value)}, expected an int")
            if not 0 <= value < 2**31:
                raise ValueError(f"{name}: got {value}, expected at least 0")
        check_name("edge", edge, EDGES)
        return {"before": before, "after": after, "edge": edge}

    here, axis, all_sizes = _begin("halo", group, x, dim, check, validate, sizes)
    if edge != "zeros" and before + after and not sum(all_sizes):
        raise ValueError(f"x: got no element along dim {dim} on any rank, expected at least one for edge '{edge}'")
    return PendingHalo(x, axis, with_halo(all_sizes, before, after, edge), here)


@outside_of_graphs
def shard(x: Tensor, dim: int, group: object, *, sizes: Sequence[int] | None = None, layout: str = "contiguous") -> Tensor:
    """This rank's part of a tensor that every rank has whole. Nothing is sent.

    Args:
        x: the whole tensor. dim: the axis to split. group: as for `halo`.
        sizes: of the ranks' parts; by default as even as torch.tensor_split makes them.
        layout: "contiguous", or "zigzag": the axis in twice as many parts as there are ranks, of which rank r has r and, behind
            it, the r-th from the end.

    Returns:
        A copy of the part. The gradient of x is put together from all ranks' parts, so that it is whole on each of them,
        as x is: every rank must compute it.

    Raises:
        TypeError, ValueError: an argument that does not fit.
    """
    here = group_of(group)
    axis = _axis(x, dim)
    chunks = _split(x.shape[axis], here, sizes, layout)
    return Shard.apply(x, axis, chunks, here)


@outside_of_graphs
def gather(
    x: Tensor, dim: int, group: object, *, sizes: Sequence[int] | None = None, layout: str = "contiguous", validate: bool = True
) -> Tensor:
    """The whole tensor, on every rank, from the ranks' shards: the inverse of `shard`.

    Args:
        x: this rank's shard. dim: the split axis. group, sizes, validate: as for `halo`. layout: as for `shard`; with "zigzag"
            the sizes must be those that `shard` makes.

    Returns:
        The whole tensor, dense, its axes in memory in the order of x's. The gradient of x is this rank's part of the gradient
        of the
        whole: what follows is taken to be computed on all ranks alike.

    Raises:
        TypeError, ValueError, RuntimeError: as `halo`.
    """

    def check() -> dict[str, object]:
        check_name("layout", layout, LAYOUTS)
        return {"layout": layout}

    here, axis, all_sizes = _begin("gather", group, x, dim, check, validate, sizes)
    chunks = contiguous(all_sizes) if layout == "contiguous" else zigzag(sum(all_sizes), here.size)
    check_zigzag(layout, all_sizes, chunks)
    return Gather.apply(x, axis, chunks, here)


@outside_of_graphs
def last(
    x: Tensor,
    dim: int,
    count: int,
    group: object,
    *,
    sizes: Sequence[int] | None = None,
    layout: str = "contiguous",
    validate: bool = True,
) -> tuple[Tensor, int]:
    """The last `count` positions of the whole axis, on every rank, with zeros before a shorter one; and its size.
    Differentiable.
    """
    here, axis, all_sizes = _begin("last", group, x, dim, lambda: {"count": count, "layout": layout}, validate, sizes)
    total = sum(all_sizes)
    chunks = contiguous(all_sizes) if layout == "contiguous" else zigzag(total, here.size)
    return fetch(x, axis, windows(chunks, ((total - count, total),) * here.size, "zeros"), here), total


def _begin(
    call: str,
    group: object,
    x: Tensor,
    dim: int,
    check: Callable[[], dict[str, object]],
    validate: object = True,
    sizes: object = None,
) -> tuple[Group, int, tuple[int, ...]]:
    """The group, the axis and the sizes of all shards, once the ranks agree about the call;
    `check` looks at its own arguments.
    """
    here = group_of(group)

    def look() -> Local:
        axis = _axis(x, dim)
        return Local({**_settings(x, axis), **check()}, x.shape[axis])

    all_sizes, _ = agree(f"hipconv.distributed.{call}", here, look, near=x, validate=validate, sizes=sizes)
    return here, _axis(x, dim), all_sizes


# ---- arguments ---------------------------------------------------------------------------------------------------------------


def check_zigzag(layout: str, sizes: tuple[int, ...], chunks: Chunks) -> None:
    """Every rank knows all sizes, so that all raise."""
    expected = sizes_of(chunks, len(sizes))
    if layout == "zigzag" and sizes != expected:
        raise ValueError(
            f"x: got shards of {sizes}, expected {expected} with layout 'zigzag', as hipconv.distributed.shard makes them"
        )


def check_name(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {describe(value)}, expected a string")
    if value not in known:
        raise ValueError(f"{name}: got {describe(value)}, expected one of {', '.join(map(repr, known))}")


def _split(total: int, group: Group, sizes: object, layout: str) -> Chunks:
    check_name("layout", layout, LAYOUTS)
    given = checked_sizes("sizes", sizes, group)
    if layout == "zigzag":
        if given is not None:
            raise ValueError(f"sizes: got {given} with layout 'zigzag', expected None: its parts are as even as they can be")
        return zigzag(total, group.size)
    if given is None:
        return contiguous(even_sizes(total, group.size))
    if sum(given) != total:
        raise ValueError(f"sizes: got {given}, expected ones that make {total}, the size of x there, together")
    return contiguous(given)


def _axis(x: object, dim: object) -> int:
    """The axis `dim` of a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x: got {describe(x)}, expected a torch.Tensor")
    require_dense(x=x)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim: got {describe(dim)}, expected an int")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: got {dim}, expected an axis of x, whose shape is {tuple(x.shape)}")
    return dim % x.dim()


def _settings(x: Tensor, axis: int) -> dict[str, object]:
    shape = ["any" if i == axis else size for i, size in enumerate(x.shape)]
    gradients = torch.is_grad_enabled() and x.requires_grad
    return {"dtype of x": x.dtype, "device of x": x.device.type, "dim": axis, "shape of x": shape, "x requires grad": gradients}
