"""The two-dimensional convolution of images whose rows, or columns, are split over the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import describe, flag
from ..jit import targets
from ..ops.conv2d import calls, geometry, precision, router
from ..ops.conv2d.geometry import Ints, Kind, Options, Padding, kind_of
from ..ops.transforms import autocast, autocast_dtype
from . import overlapped
from .exchange import new_as
from .graphs import outside_of_graphs
from .groups import group_of
from .header import Local, agree, checked_sizes
from .overlapped import Interior, Part, dense
from .routes import Wants, contiguous, even_sizes, lengths, windows
from .seen import once, signature
from .sums import SumGradients

EDGES = {"zeros": "zeros", "replicate": "first", "circular": "wrap", "reflect": "reflect"}


@outside_of_graphs
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    group: object,
    shard_dim: int = -2,
    sizes: Sequence[int] | None = None,
    out_sizes: Sequence[int] | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    padding_mode: str = "zeros",
    algorithm: str = "auto",
    reduce_gradients: bool = False,
    validate: bool = True,
) -> Tensor:
    """`hipconv.conv2d` of images whose rows or columns are split over the ranks of a group.

    Args:
        x: (batch, in_channels, height, width), of which this rank has a part of the rows (shard_dim -2) or columns (-1); the
            parts may differ in size and be empty.
        weight, bias, stride, padding, dilation, groups, activation, out_dtype, padding_mode, algorithm: as for
            `hipconv.conv2d`, of the whole image; the same on every rank.
        group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group.
        shard_dim: the split axis of x and of the result: -2 or 2, rows, or -1 or 3, columns.
        sizes: of every rank's part of x, if known. Needed with validate=False.
        out_sizes: of every rank's part of the result; by default as even as torch.tensor_split makes them.
        residual: this rank's part of it, of the shape of this rank's part of the result.
        reduce_gradients: sum the gradients of weight and bias over the group, in float32 and the order of ranks. By default
            each rank's are the part of its own outputs. They are rounded to the dtype of weight and bias before.
        validate: as for `hipconv.distributed.halo`.

    Returns:
        This rank's part of the result, dense, in the layout of `x`. Differentiable as `hipconv.conv2d` is; with
        reduce_gradients once.

    Raises:
        TypeError, ValueError: an argument that does not fit, on every rank the same error (with validate=False on this rank
            alone).
        RuntimeError: a rank is gone (from torch.distributed; with NCCL its watchdog ends the process), or a kernel could not be
            launched.
        hipconv.errors.JitError: the kernels had to be built and could not be.

    What a rank's outputs need of x, wherever it lies, comes in one exchange, beside which the interior of a large part is
    convolved (`overlapped.LARGE`). Algorithm, tile and split are those of the call on the whole image, so that each output is
    the same sum; where they do not serve the part, or were only taken because a whole image is too large for better ones,
    others are. Autocast casts x, weight, bias and residual to its dtype, before the exchange. On the CPU torch computes, whose
    sums may depend on the size of what it is given.
    """
    here = group_of(group)
    arguments = (stride, padding, dilation, groups, padding_mode, activation)
    tensors: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    variable = os.environ.get(router.VARIABLE)
    o: Any = None

    def check() -> tuple[Local, Options]:
        axis = _axis(x, shard_dim)
        geometry.check_choices(algorithm, 0)
        _check_places(tensors)
        settings = _settings(tensors, axis)
        o = geometry.cached_options(geometry.kernel_size(weight.shape), *arguments)
        calls.check_request(x, out_dtype, algorithm)
        more = {
            "out_dtype": out_dtype,
            "algorithm": algorithm,
            router.VARIABLE: variable,
            "out_sizes": checked_sizes("out_sizes", out_sizes, here),
            "reduce_gradients": flag("reduce_gradients", reduce_gradients),
        }
        return Local({**settings, **o._asdict(), **more}, x.shape[axis], 0 if residual is None else residual.shape[axis]), o

    def look() -> Local:
        nonlocal o
        rest = (out_dtype, algorithm, out_sizes, reduce_gradients, here.size, variable, torch.is_grad_enabled())
        local, o = once(signature(tensors, "conv2d", shard_dim, *arguments, *rest), check)
        return local

    all_sizes, residual_sizes = agree("hipconv.distributed.conv2d", here, look, near=x, validate=validate, sizes=sizes)
    axis = _axis(x, shard_dim)
    parts = _parts_of(tuple(x.shape), tuple(weight.shape), o, axis, all_sizes, None if out_sizes is None else tuple(out_sizes))
    if residual is not None:
        of_ranks = parts.sizes if validate else parts.sizes[here.rank : here.rank + 1]
        _check_residual(residual, axis, residual_sizes, of_ranks, parts.out_shape)
    if reduce_gradients:  # before autocast, so that the sums have the dtype of the parameters
        weight, bias = SumGradients.apply(here, weight, bias)
    x, weight, bias, residual = (autocast(tensor) for tensor in (x, weight, bias, residual))

    def plan() -> tuple[Part, Part | None]:
        choice = _choice(x, weight, bias, residual, parts, here.rank, out_dtype, algorithm)
        choices = {"padding_mode": o.padding_mode, "activation": o.activation, "out_dtype": out_dtype, "algorithm": algorithm}
        mine = (parts.wants, parts.sizes[here.rank], parts.interiors[here.rank])
        part = Part(axis, *mine, choice, parts.out_shape, parts.local, choices)
        return part, overlapped.in_pieces(part, x, weight, bias, residual) if part.outputs else None

    kinds = [None if tensor is None else kind_of(tensor) for tensor in (x, weight, bias, residual)]
    asked = (out_dtype, algorithm, variable, precision.of_call(None, x))
    part, pieces = once((*kinds, x.device, targets.of(x.device), o, axis, all_sizes, parts.sizes, here.rank, *asked), plan)
    if pieces:
        return overlapped.conv2d(x, weight, bias, residual, pieces, here)
    fetched = overlapped.fetched(x, axis, part.wants, here)
    if part.outputs:
        return part.of(fetched, weight, bias, residual)
    shape = [0 if i == axis else size for i, size in enumerate(part.out_shape)]
    empty = new_as(x, shape).to(out_dtype or x.dtype)
    for tensor in (fetched, weight, bias, residual):  # their gradients are zeros, and take part in the ranks' exchanges
        empty = empty if tensor is None else empty + tensor.sum().to(empty.dtype)
    return empty


class _Parts(NamedTuple):
    """Say how an image is shared out, as every rank knows it."""

    out_shape: tuple[int, ...]  # of the whole
    shape: tuple[int, ...]  # of the whole image
    axis: int
    options: Options  # of the whole
    local: Options  # of what a rank fetches, padding along the split axis included
    sizes: tuple[int, ...]  # of the parts of the result
    wants: Wants
    interiors: tuple[Interior, ...]


@functools.lru_cache(1024)
def _parts_of(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    o: Options,
    axis: int,
    sizes: tuple[int, ...],
    out_sizes: tuple[int, ...] | None,
) -> _Parts:
    """Share out shards of `sizes`, of which x is one, and of results of `out_sizes`;
    ValueError where something does not fit.
    """
    shape = (*x[:axis], sum(sizes), *x[axis + 1 :])
    out_shape = geometry.out_shape(shape, weight, o)
    if out_sizes is None:
        out_sizes = even_sizes(out_shape[axis], len(sizes))
    if sum(out_sizes) != out_shape[axis]:
        raise ValueError(
            f"out_sizes: got {out_sizes}, expected ones that make {out_shape[axis]}, the size of the result, together"
        )
    which = axis - 2
    step, dilation = o.stride[which], o.dilation[which]
    span = dilation * (weight[axis] - 1) + 1
    ranges, interiors = [], []
    for chunk, own in zip(contiguous(out_sizes), contiguous(sizes), strict=True):
        begin = chunk.start * step - o.padding[2 * which]
        ranges.append((begin, begin + (chunk.size - 1) * step + span) if chunk.size else (0, 0))
        first = max(0, -(-(own.start - begin) // step))
        stop = max(first, min(chunk.size, (own.stop - begin - span) // step + 1))
        interiors.append(Interior(first, stop, first * step + begin - own.start, step, span))
    wants = windows(contiguous(sizes), tuple(ranges), EDGES[o.padding_mode])
    local = o._replace(padding=(0, 0, *o.padding[2:]) if which == 0 else (*o.padding[:2], 0, 0))
    return _Parts(out_shape, shape, axis, o, local, out_sizes, wants, tuple(interiors))


def _choice(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    parts: _Parts,
    rank: int,
    out_dtype: Any,
    algorithm: str,
) -> calls.Choice | None:
    """Return what convolves this rank's part. Where an algorithm is named, the parts of all ranks are looked at,
    so that all raise.
    """
    whole = calls.Whole(dense(x, parts.shape), None if residual is None else dense(residual, parts.out_shape), parts.options)
    found = None
    for each in range(len(parts.sizes)) if calls.is_named(algorithm) else (rank,):
        if parts.sizes[each]:
            shape = list(parts.shape)
            shape[parts.axis] = sum(lengths(parts.wants[each]))
            choice = calls.choice_of_part(x, weight, bias, whole, dense(x, shape), parts.local, out_dtype, algorithm)
            found = choice if each == rank else found
    return found


def _check_residual(residual: Tensor, axis: int, found: Sequence[int], parts: Sequence[int], out_shape: Sequence[int]) -> None:
    """Every rank knows all of it, so that all raise."""
    if tuple(found) != tuple(parts):
        raise ValueError(
            f"residual: got parts of {tuple(found)} along the split axis, expected those of the result, {tuple(parts)}"
        )
    got, expected = ([size if i != axis else "any" for i, size in enumerate(shape)] for shape in (residual.shape, out_shape))
    if got != expected:
        raise ValueError(f"residual: got shape {got}, expected this rank's part of the result, {expected}")


# ---- arguments ---------------------------------------------------------------------------------------------------------------


def _axis(x: object, shard_dim: object) -> int:
    if not isinstance(x, Tensor):
        raise TypeError(f"x: got {describe(x)}, expected a torch.Tensor")
    if x.dim() != 4:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected (batch, channels, height, width)")
    if isinstance(shard_dim, bool) or not isinstance(shard_dim, int):
        raise TypeError(f"shard_dim: got {describe(shard_dim)}, expected an int")
    if shard_dim not in (-2, -1, 2, 3):
        raise ValueError(f"shard_dim: got {shard_dim}, expected -2 or 2 (rows), or -1 or 3 (columns)")
    return shard_dim % 4


def _check_places(tensors: dict[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name in ("x", "weight")):
            raise TypeError(
                f"{name}: got {describe(tensor)}, expected a torch.Tensor" + ("" if name in ("x", "weight") else " or None")
            )
    geometry.check_places(**tensors)


def _settings(tensors: dict[str, Any], axis: int) -> dict[str, Any]:
    """Return what all ranks must have alike, of tensors with the dtypes that autocast gives them."""
    x, weight, bias, residual = tensors.values()
    dtypes = {name: autocast_dtype(tensor) for name, tensor in tensors.items() if tensor is not None}
    geometry.check_dtypes(**{name: Kind(dtype, (), (), 0) for name, dtype in dtypes.items()})
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:1]):
        raise ValueError(f"bias: got shape {tuple(bias.shape)}, expected (out_channels,) = ({weight.shape[0]},)")
    if residual is not None and residual.dim() != 4:
        raise ValueError(
            f"residual: got shape {tuple(residual.shape)}, expected this rank's part of the result, of 4 dimensions"
        )
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    shapes = {f"shape of {name}": [*tensor.shape] for name, tensor in given.items()}
    for name in given.keys() & {"x", "residual"}:
        shapes[f"shape of {name}"][axis] = "any"  # type: ignore[call-overload]
    gradients = torch.is_grad_enabled()
    return {
        "tensors given": ", ".join(given),
        "shard_dim": axis,
        "dtypes": ", ".join(map(str, dtypes.values())),
        "device of x": x.device.type,
        **shapes,
        "tensors that require grad": ", ".join(name for name, tensor in given.items() if gradients and tensor.requires_grad),
    }
