"""The two-dimensional convolution of images whose rows, or columns, are split over the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import Any

import torch
from torch import Tensor

from ..arguments import describe, flag
from ..ops.conv2d import calls, geometry, router
from ..ops.conv2d.geometry import Ints, Kind, Options, Padding
from ..ops.transforms import autocast
from . import overlapped
from .exchange import fetch, new_as
from .graphs import outside_of_graphs
from .groups import Group, group_of
from .header import Local, agree, checked_sizes
from .overlapped import Interior, Part
from .routes import Wants, contiguous, even_sizes, lengths, windows
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
        x: (batch, in_channels, height, width), of which this rank has a part of the rows (shard_dim -2) or columns (-1); the parts may
            differ in size and be empty.
        weight, bias, stride, padding, dilation, groups, activation, out_dtype, padding_mode, algorithm: as for `hipconv.conv2d`, of the
            whole image; the same on every rank.
        group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group.
        shard_dim: the split axis of x and of the result: -2 or 2, rows, or -1 or 3, columns.
        sizes: of every rank's part of x, if known. Needed with validate=False.
        out_sizes: of every rank's part of the result; by default as even as torch.tensor_split makes them.
        residual: this rank's part of it, of the shape of this rank's part of the result.
        reduce_gradients: sum the gradients of weight and bias over the group, in float32 and the order of ranks. By default each rank's
            are the part of its own outputs. They are rounded to the dtype of weight and bias before.
        validate: as for `hipconv.distributed.halo`.

    Returns:
        This rank's part of the result, dense, in the layout of `x`. Differentiable as `hipconv.conv2d` is; with reduce_gradients once.

    Raises:
        TypeError, ValueError: an argument that does not fit, on every rank the same error (with validate=False on this rank alone).
        RuntimeError: a rank is gone (from torch.distributed; with NCCL its watchdog ends the process), or a kernel could not be launched.
        hipconv.errors.JitError: the kernels had to be built and could not be.

    What a rank's outputs need of x, wherever it lies, comes in one exchange. Algorithm, tile and split are those of the call on the whole
    image, so that each output is the same sum; where they do not serve the part, or were only taken because a whole image is too large
    for better ones, others are. Autocast casts x, weight, bias and residual to its dtype, before the exchange. On the CPU torch
    computes, whose sums may depend on the size of what it is given.
    """
    here = group_of(group)
    arguments = (stride, padding, dilation, groups, padding_mode, activation)
    tensors: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "residual": residual}

    def look() -> Local:
        axis = _axis(x, shard_dim)
        geometry.check_choices(algorithm, 0)
        _check_places(tensors)
        cast = {name: autocast(tensor) for name, tensor in tensors.items()}
        settings = _settings(cast, axis)
        o = geometry.options(geometry.kernel_size(weight.shape), *arguments)
        calls.check_request(x, out_dtype, algorithm)
        more = {
            "out_dtype": out_dtype, "algorithm": algorithm, router.VARIABLE: os.environ.get(router.VARIABLE),
            "out_sizes": checked_sizes("out_sizes", out_sizes, here), "reduce_gradients": flag("reduce_gradients", reduce_gradients),
        }  # fmt: skip
        return Local({**settings, **o._asdict(), **more}, x.shape[axis], 0 if residual is None else residual.shape[axis])

    all_sizes, residual_sizes = agree("hipconv.distributed.conv2d", here, look, near=x, validate=validate, sizes=sizes)
    axis, o = _axis(x, shard_dim), geometry.options(geometry.kernel_size(weight.shape), *arguments)
    whole_shape = list(x.shape)
    whole_shape[axis] = sum(all_sizes)
    out_shape = geometry.out_shape(whole_shape, weight.shape, o)
    parts = _out_sizes(out_sizes, out_shape[axis], here)
    if residual is not None:
        _check_residual(residual, axis, residual_sizes, parts if validate else parts[here.rank : here.rank + 1], out_shape)
    local, wants, interior = _local_problem(o, axis, all_sizes, parts, weight, here.rank)
    if reduce_gradients:  # before autocast, so that the sums have the dtype of the parameters
        weight, bias = SumGradients.apply(here, weight, bias)
    x, weight, bias, residual = (autocast(tensor) for tensor in (x, weight, bias, residual))
    whole = calls.Whole(_dense(x, whole_shape), None if residual is None else _dense(residual, out_shape), o)
    of_ranks = (
        (_dense_part(x, axis, sum(lengths(wants[rank]))), None if residual is None else _dense_part(residual, axis, size))
        for rank, size in enumerate(parts)
    )
    calls.check_parts(x, weight, bias, whole, of_ranks, local, out_dtype, algorithm)
    choices = {"padding_mode": o.padding_mode, "activation": o.activation, "out_dtype": out_dtype, "algorithm": algorithm}
    part = Part(here, axis, wants, parts[here.rank], interior, whole, local, choices)
    if overlapped.serves(part, x, weight, bias, residual):
        return overlapped.conv2d(x, weight, bias, residual, part)
    fetched = fetch(x, axis, wants, here)
    if part.outputs:
        return part.of(fetched, weight, bias, residual)
    shape = [0 if i == axis else size for i, size in enumerate(out_shape)]
    empty = new_as(x, shape).to(out_dtype or x.dtype)
    for tensor in (fetched, weight, bias, residual):  # their gradients are zeros, and take part in the ranks' exchanges
        empty = empty if tensor is None else empty + tensor.sum().to(empty.dtype)
    return empty


def _local_problem(
    o: Options, axis: int, sizes: tuple[int, ...], parts: tuple[int, ...], weight: Tensor, rank: int
) -> tuple[Options, Wants, Interior]:
    """The convolution of what is fetched, padding along the split axis included; what each rank fetches; this rank's interior."""
    which = axis - 2
    step, dilation = o.stride[which], o.dilation[which]
    span = dilation * (weight.shape[axis] - 1) + 1
    before = o.padding[2 * which]
    ranges = []
    for chunk in contiguous(parts):
        start = chunk.start * step - before
        ranges.append((start, start + (chunk.size - 1) * step + span) if chunk.size else (0, 0))
    wants = windows(contiguous(sizes), tuple(ranges), EDGES[o.padding_mode])
    other = (0, 0, *o.padding[2:]) if which == 0 else (*o.padding[:2], 0, 0)
    own, begin = contiguous(sizes)[rank], ranges[rank][0]
    first = max(0, -(-(own.start - begin) // step))
    stop = max(first, min(parts[rank], (own.stop - begin - span) // step + 1))
    return o._replace(padding=other), wants, Interior(first, stop, first * step + begin - own.start, step, span)


def _out_sizes(given: Sequence[int] | None, total: int, group: Group) -> tuple[int, ...]:
    if given is None:
        return even_sizes(total, group.size)
    if sum(given) != total:
        raise ValueError(f"out_sizes: got {tuple(given)}, expected ones that make {total}, the size of the result, together")
    return tuple(given)


def _check_residual(residual: Tensor, axis: int, found: Sequence[int], parts: Sequence[int], out_shape: Sequence[int]) -> None:
    """Every rank knows all of it, so that all raise."""
    if tuple(found) != tuple(parts):
        raise ValueError(f"residual: got parts of {tuple(found)} along the split axis, expected those of the result, {tuple(parts)}")
    got, expected = ([size if i != axis else "any" for i, size in enumerate(shape)] for shape in (residual.shape, out_shape))
    if got != expected:
        raise ValueError(f"residual: got shape {got}, expected this rank's part of the result, {expected}")


def _dense(like: Tensor, shape: Sequence[int]) -> Kind:
    """A dense tensor of another shape, in the layout of `like`, at an aligned address."""
    on_meta = new_as(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta"), shape)
    return Kind(like.dtype, tuple(shape), on_meta.stride(), 0)


def _dense_part(like: Tensor, axis: int, size: int) -> Kind:
    return _dense(like, [*like.shape[:axis], size, *like.shape[axis + 1 :]])


# ---- arguments -----------------------------------------------------------------------------------------------------------------------


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
            raise TypeError(f"{name}: got {describe(tensor)}, expected a torch.Tensor" + ("" if name in ("x", "weight") else " or None"))
    geometry.check_places(**tensors)


def _settings(tensors: dict[str, Any], axis: int) -> dict[str, Any]:
    """Of tensors as autocast leaves them."""
    x, weight, bias, residual = tensors.values()
    geometry.check_dtypes(x, weight, bias=bias, residual=residual)
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:1]):
        raise ValueError(f"bias: got shape {tuple(bias.shape)}, expected (out_channels,) = ({weight.shape[0]},)")
    if residual is not None and residual.dim() != 4:
        raise ValueError(f"residual: got shape {tuple(residual.shape)}, expected this rank's part of the result, of 4 dimensions")
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    shapes = {f"shape of {name}": [*tensor.shape] for name, tensor in given.items()}
    for name in given.keys() & {"x", "residual"}:
        shapes[f"shape of {name}"][axis] = "any"  # type: ignore[call-overload]
    gradients = torch.is_grad_enabled()
    return {
        "tensors given": ", ".join(given),
        "shard_dim": axis,
        "dtypes": ", ".join(str(tensor.dtype) for tensor in given.values()),
        "device of x": x.device.type,
        **shapes,
        "tensors that require grad": ", ".join(name for name, tensor in given.items() if gradients and tensor.requires_grad),
    }
