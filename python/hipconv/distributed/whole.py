"""Whole tensors on every rank, and the ranks' parts of them; each is the other's gradient."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.distributed as dist

from .exchange import bytes_of, fetch, joined
from .groups import Group
from .routes import Chunks, Part, Wants, sizes_of


def gathered(x: Tensor, dim: int, chunks: Chunks, group: Group) -> Tensor:
    """The whole tensor on every rank, from what they have of it. It is packed once,
    where the parts are about as large as each other.
    """
    sizes = sizes_of(chunks, group.size)
    if group.size == 1 or group.size * max(sizes) > 2 * sum(sizes):
        return fetch(x, dim, everything(chunks, group.size), group)
    shapes = [torch.Size((*x.shape[:dim], size, *x.shape[dim + 1 :])) for size in sizes]
    lengths = [shape.numel() * x.element_size() for shape in shapes]
    longest = max(lengths)
    message = bytes_of(x)
    sent = torch.nn.functional.pad(message, (0, longest - message.numel()))
    received = torch.empty(group.size * longest, dtype=torch.uint8, device=x.device)
    if longest:
        dist.all_gather_into_tensor(received, sent, group=group.process_group)
    begins = [rank * longest for rank in range(group.size)]
    found = [
        received[begin : begin + length].view(x.dtype).view(shape)
        for begin, length, shape in zip(begins, lengths, shapes, strict=True)
    ]  # fmt: skip
    return joined([found[chunk.rank].narrow(dim, chunk.at, chunk.size) for chunk in chunks], x, dim)


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
        return gathered(x, dim, chunks, group)

    @staticmethod
    def backward(ctx, dout):
        return Shard.apply(dout, *ctx.rest), None, None, None
