"""A shard with what stands around it on other ranks; and the way from whole tensors to shards and back."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..arguments import describe, flag, require_dense
from .exchange import fetch
from .groups import group_of
from .header import Local, agree
from .routes import EDGES, LAYOUTS, Chunks, contiguous, even_sizes, sizes_of, windows, with_halo, zigzag
from .whole import Gather, Shard


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
    """This rank's shard with the `before` positions that precede it and the `after` that follow it, from whichever ranks hold them.

    Args:
        x: this rank's shard, any dtype, any strides. The shards of the group's ranks, in their order, make up the whole axis `dim`; they
            may differ in size there, be empty, or be shorter than the halo, which then comes from several ranks.
        dim: the axis, from -x.dim() on.
        before, after: positions, at least 0.
        group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group. Its ranks need not be those of the world.
        edge: what stands before the whole axis and behind its end: "zeros", "first" (the nearest position: the first one before, the
            last one behind) or "wrap" (the other end).
        sizes: of all shards along `dim`, if known. Needed with validate=False.
        validate: let the ranks compare their arguments first, at the cost of a small exchange that the host waits for. It must be the
            same on all ranks. **validate=False is unsafe**: where the ranks then disagree, they hang or compute nonsense.

    Returns:
        (..., before + size + after, ...), dense, its axes in memory in the order of x's. Differentiable, any number of times: gradients
        go back to the rank that they belong to, where several meet they are added in float32 in the order of ranks, and rounded once (and
        those of one element that a rank has got many times, before they travel).

    Raises:
        TypeError, ValueError: an argument that does not fit, on every rank the same error (with validate=False on this rank alone), no
            element in the whole axis with "first" or "wrap", or x's other axes, dtype or device that differ from other ranks'.
        RuntimeError: a rank is gone (from torch.distributed).

    Every rank of the group must call, and, where one computes gradients, all must: the backward is an exchange, too.
    """
    here = group_of(group)
    validate = flag("validate", validate)
    given = checked_sizes(sizes)

    def look() -> Local:
        _require_tensor(x)
        axis = _axis(x, dim)
        for name, value in (("before", before), ("after", after)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: got {describe(value)}, expected an int")
            if not 0 <= value < 2**31:
                raise ValueError(f"{name}: got {value}, expected at least 0")
        check_name("edge", edge, EDGES)
        settings = {**_settings(x, axis), "before": before, "after": after, "edge": edge}
        return Local(settings, x.shape[axis])

    _, all_sizes, _ = agree("hipconv.distributed.halo", here, look, validate, given)
    if edge != "zeros" and before + after and not sum(all_sizes):
        raise ValueError(f"x: got no element along dim {dim} on any rank, expected at least one for edge '{edge}'")
    return fetch(x, _axis(x, dim), with_halo(all_sizes, before, after, edge), here)


def shard(x: Tensor, dim: int, group: object, *, sizes: Sequence[int] | None = None, layout: str = "contiguous") -> Tensor:
    """This rank's part of a tensor that every rank has whole. Nothing is sent.

    Args:
        x: the whole tensor. dim: the axis to split. group: as for `halo`.
        sizes: of the ranks' parts; by default as even as torch.tensor_split makes them.
        layout: "contiguous", or "zigzag": the axis in twice as many parts as there are ranks, of which rank r has r and, behind it,
            the r-th from the end.

    Returns:
        A copy of the part. The gradient of x is put together from all ranks' parts, so that it is whole on each of them,
        as x is: every rank must compute it.

    Raises:
        TypeError, ValueError: an argument that does not fit.
    """
    here = group_of(group)
    _require_tensor(x)
    axis = _axis(x, dim)
    chunks = _split(x.shape[axis], here.size, checked_sizes(sizes), layout)
    return Shard.apply(x, axis, chunks, here)


def gather(
    x: Tensor, dim: int, group: object, *, sizes: Sequence[int] | None = None, layout: str = "contiguous", validate: bool = True
) -> Tensor:
    """The whole tensor, on every rank, from the ranks' shards: the inverse of `shard`.

    Args:
        x: this rank's shard. dim: the split axis. group, sizes, validate: as for `halo`. layout: as for `shard`; with "zigzag" the sizes
            must be those that `shard` makes.

    Returns:
        The whole tensor, dense, its axes in memory in the order of x's. The gradient of x is this rank's part of the gradient of the
        whole: what follows is taken to be computed on all ranks alike.

    Raises:
        TypeError, ValueError, RuntimeError: as `halo`.
    """
    here = group_of(group)
    validate = flag("validate", validate)
    given = checked_sizes(sizes)

    def look() -> Local:
        _require_tensor(x)
        axis = _axis(x, dim)
        check_name("layout", layout, LAYOUTS)
        return Local({**_settings(x, axis), "layout": layout}, x.shape[axis])

    _, all_sizes, _ = agree("hipconv.distributed.gather", here, look, validate, given)
    axis, total = _axis(x, dim), sum(all_sizes)
    chunks = contiguous(all_sizes) if layout == "contiguous" else zigzag(total, here.size)
    check_zigzag(layout, all_sizes, chunks)
    return Gather.apply(x, axis, chunks, here)


def last(x: Tensor, dim: int, count: int, group: object) -> tuple[Tensor, int]:
    """The last `count` positions of the whole axis, on every rank, with zeros before a shorter one; and its size. Differentiable."""
    here = group_of(group)
    _, sizes, _ = agree(
        "hipconv.distributed.last", here, lambda: Local({**_settings(x, _axis(x, dim)), "count": count}, x.shape[dim]), True
    )
    total = sum(sizes)
    return fetch(x, _axis(x, dim), windows(contiguous(sizes), ((total - count, total),) * here.size, "zeros"), here), total


# ---- arguments -----------------------------------------------------------------------------------------------------------------------


def check_zigzag(layout: str, sizes: tuple[int, ...], chunks: Chunks) -> None:
    """Every rank knows all sizes, so that all raise."""
    expected = sizes_of(chunks, len(sizes))
    if layout == "zigzag" and sizes != expected:
        raise ValueError(f"x: got shards of {sizes}, expected {expected} with layout 'zigzag', as hipconv.distributed.shard makes them")


def check_name(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {describe(value)}, expected a string")
    if value not in known:
        raise ValueError(f"{name}: got {describe(value)}, expected one of {', '.join(map(repr, known))}")


def checked_sizes(sizes: object) -> tuple[int, ...] | None:
    """An argument `sizes` as a tuple. What its numbers must be depends on the group."""
    if sizes is None:
        return None
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or any(isinstance(s, bool) or not isinstance(s, int) for s in sizes):
        raise TypeError(f"sizes: got {describe(sizes)}, expected a list of integers, one for each rank of the group, or None")
    return tuple(sizes)


def _split(total: int, ranks: int, sizes: tuple[int, ...] | None, layout: str) -> Chunks:
    check_name("layout", layout, LAYOUTS)
    if layout == "zigzag":
        if sizes is not None:
            raise ValueError(f"sizes: got {sizes} with layout 'zigzag', expected None: its parts are as even as they can be")
        return zigzag(total, ranks)
    if sizes is None:
        return contiguous(even_sizes(total, ranks))
    if len(sizes) != ranks or min(sizes) < 0 or sum(sizes) != total:
        raise ValueError(f"sizes: got {sizes}, expected {ranks} of at least 0, which make {total}, the size of x there, together")
    return contiguous(sizes)


def _require_tensor(x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x: got {describe(x)}, expected a torch.Tensor")
    require_dense(x=x)


def _axis(x: Tensor, dim: int) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim: got {describe(dim)}, expected an int")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: got {dim}, expected an axis of x, whose shape is {tuple(x.shape)}")
    return dim % x.dim()


def _settings(x: Tensor, axis: int) -> dict[str, object]:
    shape = ["any" if i == axis else size for i, size in enumerate(x.shape)]
    return {"dtype of x": x.dtype, "device of x": x.device.type, "dim": axis, "shape of x": shape, "x requires grad": x.requires_grad}
