"""Whole tensors on every rank, and the ranks' parts of them; each is the other's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from .exchange import fetch
from .groups import Group
from .routes import Chunks, Part, Wants


def everything(chunks: Chunks, ranks: int) -> Wants:
    """Every rank wants all of it, in the order of the whole axis."""
    return (tuple(Part(chunk.rank, chunk.at, chunk.size) for chunk in chunks if chunk.size),) * ranks


def _mine(x: Tensor, dim: int, chunks: Chunks, group: Group) -> Tensor:
    mine = [chunk for chunk in chunks if chunk.rank == group.rank]
    views = [x.narrow(dim, chunk.start, chunk.size) for chunk in mine]
    return views[0] if len(views) == 1 else torch.cat(views, dim)


class Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, chunks, group):
        ctx.rest = dim, chunks, group
        return _mine(x, dim, chunks, group).clone(memory_format=torch.preserve_format)

    @staticmethod
    def backward(ctx, dout):
        return Gather.apply(dout, *ctx.rest), None, None, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, chunks, group):
        ctx.rest = dim, chunks, group
        return fetch(x, dim, everything(chunks, group.size), group)

    @staticmethod
    def backward(ctx, dout):
        return Shard.apply(dout, *ctx.rest), None, None, None
