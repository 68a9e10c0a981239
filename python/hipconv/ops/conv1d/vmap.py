"""`torch.vmap` has rules here for ``torch.ops.hipconv.causal_conv1d_fn`` and ``causal_conv1d_bwd``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..dispatch import library
from ..transforms import fold, on_vmap, one_by_one
from . import operators  # noqa: F401  they are defined there


def _unfolded(tensor: Tensor, axis: int, size: int) -> tuple[Tensor, int | None]:
    """A result whose axis was folded, and where vmap finds its own; an empty one stands for nothing."""
    if tensor.dim() == 1 and tensor.numel() == 0:
        return tensor, None
    return tensor.unflatten(axis, (size, tensor.shape[axis] // size if size else 0)), axis


def _fn_on_vmap(
    size, in_dims, x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, use_silu=False
):
    dims = (*in_dims, None, None, None)[:5]

    def call(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.ops.hipconv.causal_conv1d_fn.default(*tensors, return_final_states, use_silu)

    same_filters = dims[1] is None and dims[2] is None
    if not same_filters and dims[3] is not None:  # folded channels have one row of ids
        return one_by_one(call, size, dims, x, weight, bias, seq_idx, initial_states)
    into = 0 if same_filters else 1
    if not same_filters:
        weight, bias = fold(weight, dims[1], size, 0), fold(bias, dims[2], size, 0)
    ids = fold(seq_idx, dims[3], size, 0) if same_filters else seq_idx
    results = call(fold(x, dims[0], size, into), weight, bias, ids, fold(initial_states, dims[4], size, into))
    out, final_states = (_unfolded(result, into, size) for result in results)
    return (out[0], final_states[0]), (out[1], final_states[1])


def _bwd_on_vmap(
    size, in_dims, x, weight, bias, dout, seq_idx=None, initial_states=None, dfinal_states=None, return_dinitial_states=False,
    use_silu=False, *, kernel_name="auto",
):  # fmt: skip
    dims = (*in_dims, None, None, None)[:7]
    tensors = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)

    def call(*tensors: Tensor | None) -> tuple[Tensor, ...]:
        return torch.ops.hipconv.causal_conv1d_bwd.default(*tensors, return_dinitial_states, use_silu, kernel_name=kernel_name)

    if dims[4] is not None:
        return one_by_one(call, size, dims, *tensors)
    axes = (1, 0, 0, 1, None, 1, 1)  # gradients of parameters are sums over the batch, and each one's own
    folded = [t if axis is None else fold(t, dim, size, axis) for t, dim, axis in zip(tensors, dims, axes, strict=True)]
    results = [_unfolded(result, axis, size) for result, axis in zip(call(*folded), (1, 0, 0, 1), strict=True)]
    return tuple(result for result, _ in results), tuple(dim for _, dim in results)


on_vmap(library, "causal_conv1d_fn", _fn_on_vmap)
on_vmap(library, "causal_conv1d_bwd", _bwd_on_vmap)
