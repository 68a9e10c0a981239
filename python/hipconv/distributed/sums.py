"""Sums over the ranks of a group, in their order: the same bits on every rank and on every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
import torch.distributed as dist

from .groups import Group


def summed(tensors: Sequence[Tensor | None], group: Group) -> list[Any]:
    """The sums of tensors of one dtype over the ranks. None stays None."""
    present = [tensor for tensor in tensors if tensor is not None]
    if group.size == 1 or not present:
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in present])
    parts = [torch.empty_like(flat) for _ in range(group.size)]
    dist.all_gather(parts, flat, group=group.process_group)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    sums = iter(total.split([tensor.numel() for tensor in present]))
    return [None if tensor is None else next(sums).view(tensor.shape) for tensor in tensors]


class SumGradients(torch.autograd.Function):
    """Parameters as they are; their gradients are summed over the group, in float32."""

    @staticmethod
    def forward(ctx, group, *parameters):
        ctx.group = group
        return tuple(None if parameter is None else parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        wide = [None if gradient is None else gradient.float() for gradient in gradients]
        sums = summed(wide, ctx.group)
        return None, *(None if total is None else total.to(g.dtype) for total, g in zip(sums, gradients, strict=True))
