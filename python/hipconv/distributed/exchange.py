"""Moving parts of tensors between the ranks of a group: one all_to_all_single,
which every rank takes part in and which cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
import torch.distributed as dist

from .groups import Group
from .routes import NOBODY, Part, Wants, lengths

ALIGNED = 16  # bytes: each tensor of a message begins at a multiple, where it can be read as what it is


class Parcel(NamedTuple):
    """A tensor that is to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def room(self) -> int:
        return -(-self.bytes // ALIGNED) * ALIGNED


class Exchange:
    """Tensors of any shapes and dtypes on their way: they travel as bytes, in one collective. `wait` gives what came."""

    def __init__(
        self,
        outgoing: Sequence[Sequence[Tensor]],
        incoming: Sequence[Sequence[Parcel]],
        group: Group,
        device: torch.device,
        in_order: bool = False,
    ) -> None:
        """`outgoing` by the rank it goes to, `incoming` by the rank it comes from.
        Every rank of the group makes one at the same time. One that is `in_order` is over for what the current stream is given
        next: torch 2.8 and later run NCCL's kernel on that stream then, with its priority.
        """
        self.incoming = incoming
        self.work: Any = None
        if group.size == 1:
            self.received = torch.empty(0, dtype=torch.uint8, device=device)
            return
        packed = [[_aligned(bytes_of(tensor)) for tensor in tensors] for tensors in outgoing]
        flat = [tensor for tensors in packed for tensor in tensors]
        sent = flat[0] if len(flat) == 1 else torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8, device=device)
        to = [sum(tensor.numel() for tensor in tensors) for tensors in packed]
        comes = [sum(parcel.room for parcel in parcels) for parcels in incoming]
        self.received = torch.empty(sum(comes), dtype=torch.uint8, device=device)
        # A message may be the memory of a tensor of the call, which is not written before the exchange is over.
        self.work = dist.all_to_all_single(self.received, sent, comes, to, group=group.process_group, async_op=not in_order)

    def wait(self) -> list[list[Tensor]]:
        """The tensors by the rank that they come from. A GPU's current stream waits for them, the host does not."""
        if self.work is not None:
            self.work.wait()
        found, at = [], 0
        for parcels in self.incoming:
            tensors = []
            for parcel in parcels:
                tensors.append(self.received[at : at + parcel.bytes].view(parcel.dtype).view(parcel.shape))
                at += parcel.room
            found.append(tensors)
        return found


class PartsExchange:
    """The parts that each rank wants of tensors that are split alike. What a rank wants of its own does not travel, and what it
    wants many times, as laps of a small axis, travels once.
    """

    def __init__(
        self, tensors: Sequence[Tensor], dims: Sequence[int], wants: Wants, group: Group, in_order: bool = False
    ) -> None:
        """`tensors`, each split along its axis of `dims`, have their parts of one place travel one after another."""
        self.tensors, self.dims, self.parts, self.group = tensors, dims, wants[group.rank], group
        outgoing: list[list[Tensor]] = [[] for _ in range(group.size)]
        incoming: list[list[Parcel]] = [[] for _ in range(group.size)]
        for rank, parts in enumerate(wants):
            if rank != group.rank:
                wanted = [part for part in dict.fromkeys(parts) if part.rank == group.rank]
                outgoing[rank] = [self._mine(which, part) for part in wanted for which in range(len(tensors))]
        for part in dict.fromkeys(self.parts):
            if part.rank not in (group.rank, NOBODY):
                incoming[part.rank] += [Parcel(self._shape(which, part.size), t.dtype) for which, t in enumerate(tensors)]
        self.exchange = Exchange(outgoing, incoming, group, tensors[0].device, in_order)

    def wait(self) -> list[list[Tensor]]:
        """For each tensor its parts, in the order in which they are wanted, zeros and repetitions included."""
        came = [iter(tensors) for tensors in self.exchange.wait()]
        of_part: dict[Part, list[Tensor]] = {}
        for part in dict.fromkeys(self.parts):
            for which, tensor in enumerate(self.tensors):
                if part.rank == NOBODY:
                    piece = tensor.new_zeros(self._shape(which, part.size))
                else:
                    piece = self._mine(which, part) if part.rank == self.group.rank else next(came[part.rank])
                    if part.repeat > 1:
                        piece = piece.expand(self._shape(which, part.repeat))
                    elif part.backwards:
                        piece = piece.flip(self.dims[which])
                of_part.setdefault(part, []).append(piece)
        return [[of_part[part][which] for part in self.parts] for which in range(len(self.tensors))]

    def _mine(self, which: int, part: Part) -> Tensor:
        return self.tensors[which].narrow(self.dims[which], part.at, part.size)

    def _shape(self, which: int, size: int) -> tuple[int, ...]:
        shape = list(self.tensors[which].shape)
        shape[self.dims[which]] = size
        return tuple(shape)


class GivingBack:
    """The parts of a rank's `dout` on their way to where they come from. Where several meet they are added in float32, in the
    order of ranks.
    """

    def __init__(self, dout: Tensor, dim: int, wants: Wants, group: Group, size: int, in_place: bool = False) -> None:
        """`size`: of this rank's shard along `dim`. What is added up may be a part of `dout`, where it is `in_place`."""
        self.in_place = in_place
        got: dict[Part, list[Tensor]] = {}
        mine = wants[group.rank]
        for part, piece in zip(mine, dout.split(lengths(mine), dim) if mine else (), strict=True):
            got.setdefault(part, []).append(piece)
        pieces = {part: self._of(part, same, dim) for part, same in got.items()}
        self.like, self.dim, self.rank = dout, dim, group.rank
        self.shape = [*dout.shape[:dim], size, *dout.shape[dim + 1 :]]
        self.places: list[Part] = []
        self.own = [piece for part, piece in pieces.items() if part.rank == group.rank]
        outgoing, incoming = [], []
        for rank, parts in enumerate(wants):
            outgoing.append([] if rank == group.rank else [piece for part, piece in pieces.items() if part.rank == rank])
            here = [part for part in dict.fromkeys(parts) if part.rank == group.rank]
            self.places += here
            shapes = [(*dout.shape[:dim], part.size, *dout.shape[dim + 1 :]) for part in here]
            incoming.append([] if rank == group.rank else [Parcel(shape, dout.dtype) for shape in shapes])
        self.exchange = Exchange(outgoing, incoming, group, dout.device)

    @staticmethod
    def _of(part: Part, same: list[Tensor], dim: int) -> Tensor:
        """The gradient of a part, of which this rank has got so many."""
        piece = same[0]
        if len(same) > 1:
            total = piece.to(_wide(piece.dtype))
            for other in same[1:]:
                total = total + other
            piece = total.to(piece.dtype)
        if part.repeat > 1:
            return piece.sum(dim, keepdim=True, dtype=_wide(piece.dtype)).to(piece.dtype)
        return piece.flip(dim) if part.backwards else piece

    def wait(self) -> Tensor:
        """The gradient of this rank's shard."""
        came = self.exchange.wait()
        came[self.rank] = self.own
        pieces = [(part.at, piece) for part, piece in zip(self.places, (p for ps in came for p in ps), strict=True)]
        return _added(pieces, self.like, self.shape, self.dim, self.in_place)


# ---- differentiable ----------------------------------------------------------------------------------------------------------


class _Fetch(torch.autograd.Function):
    """The parts that a rank wants, joined; its gradient is `_GiveBack`, and the other way round."""

    @staticmethod
    def forward(ctx, x, dim, wants, group, begun):
        ctx.dim, ctx.wants, ctx.group, ctx.size = dim, wants, group, x.shape[dim]
        (pieces,) = (begun or PartsExchange([x], [dim], wants, group)).wait()
        return joined(pieces, x, dim)

    @staticmethod
    def backward(ctx, dout):
        return _GiveBack.apply(dout, ctx.dim, ctx.wants, ctx.group, ctx.size), None, None, None, None


class _GiveBack(torch.autograd.Function):
    """Each part goes back to where it comes from, and is added up there."""

    @staticmethod
    def forward(ctx, dout, dim, wants, group, size):
        ctx.dim, ctx.wants, ctx.group = dim, wants, group
        return GivingBack(dout, dim, wants, group, size).wait()

    @staticmethod
    def backward(ctx, ddx):
        return _Fetch.apply(ddx, ctx.dim, ctx.wants, ctx.group, None), None, None, None, None


def fetch(x: Tensor, dim: int, wants: Wants, group: Group, begun: PartsExchange | None = None) -> Tensor:
    """The parts of `wants` that are this rank's, joined along `dim`. Differentiable, as often as anyone likes. Their exchange
    may have `begun`.
    """
    return _Fetch.apply(x, dim, wants, group, begun)


def give_back(dout: Tensor, dim: int, wants: Wants, group: Group, size: int) -> Tensor:
    """The gradient of this rank's shard, of `size` along `dim`, from that of what it fetched. Differentiable."""
    return _GiveBack.apply(dout, dim, wants, group, size)


def bytes_of(tensor: Tensor) -> Tensor:
    flat = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # one element is contiguous at any stride, and then has no view


def _aligned(message: Tensor) -> Tensor:
    more = -message.numel() % ALIGNED
    return torch.nn.functional.pad(message, (0, more)) if more else message


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def joined(pieces: Sequence[Tensor], like: Tensor, dim: int) -> Tensor:
    """One after another along `dim`, in a tensor whose axes lie in memory in the order of `like`'s."""
    shape = list(like.shape)
    shape[dim] = sum(piece.shape[dim] for piece in pieces)
    joined = new_as(like, shape)
    at = 0
    for piece in pieces:
        joined.narrow(dim, at, piece.shape[dim]).copy_(piece)
        at += piece.shape[dim]
    return joined


def cut(pieces: Sequence[Tensor], dim: int, start: int, stop: int) -> list[Tensor]:
    """Return what of pieces, one after another along `dim`, lies in [start, stop)."""
    found, at = [], 0
    for piece in pieces:
        low, high = max(start, at), min(stop, at + piece.shape[dim])
        if low < high:
            found.append(piece.narrow(dim, low - at, high - low))
        at += piece.shape[dim]
    return found


def in_memory(like: Tensor) -> list[int]:
    """The axes of a tensor in the order in which they lie in memory, the outermost first."""
    strides = like.stride()
    return sorted(range(like.dim()), key=lambda axis: (-strides[axis], axis))


def new_as(like: Tensor, shape: Sequence[int]) -> Tensor:
    """An uninitialised dense tensor whose axes lie in memory in the order of `like`'s."""
    order = in_memory(like)
    return like.new_empty([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(like.dim())])


def _added(pieces: list[tuple[int, Tensor]], like: Tensor, shape: Sequence[int], dim: int, in_place: bool) -> Tensor:
    """The sum of pieces, each at its place along `dim`; every element is rounded once. Where it may be `in_place`, it is a
    contiguous piece that goes all the way, if there is one: only what is added to that is written then.
    """
    whole = [piece for _, piece in pieces if in_place and piece.shape[dim] == shape[dim] and piece.is_contiguous()]
    out = whole[0] if whole else new_as(like, shape)
    bounds = sorted({0, shape[dim], *(at for at, _ in pieces), *(at + piece.shape[dim] for at, piece in pieces)})
    for low, high in itertools.pairwise(bounds):
        here = [piece.narrow(dim, low - at, high - low) for at, piece in pieces if at <= low and high <= at + piece.shape[dim]]
        place = out.narrow(dim, low, high - low)
        if not here:
            place.zero_()
        elif len(here) == 1:
            if not whole:
                place.copy_(here[0])
        else:
            total = here[0].to(_wide(like.dtype))
            for piece in here[1:]:
                total = total + piece
            place.copy_(total)
    return out
