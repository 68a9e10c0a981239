"""The ranks check halo, shard, gather and the header here: against the same on the whole tensor, which each of them has."""

from __future__ import annotations

import itertools
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
import torch.distributed as dist

from distributed.pool import group_of_ranks
from support.tensors import same_bits
from hipconv import distributed

SHARDS = {
    "even": lambda n: [4] * n,
    "uneven": lambda n: [3 + 5 * (r % 2) + r for r in range(n)],
    "some_empty": lambda n: [0 if r % 2 == 0 else 5 for r in range(n)],
    "last_empty": lambda n: [3] * (n - 1) + [0],
    "short": lambda n: [1 + r % 2 for r in range(n)],
    "one_has_all": lambda n: [9 if r == n // 2 else 0 for r in range(n)],
}


def member(ranks: tuple[int, ...] | None) -> tuple[Any, int, int] | None:
    """(group, rank in it, its size), or None on a rank that is none of the group's."""
    group = group_of_ranks(ranks)
    return None if group is dist.GroupMember.NON_GROUP_MEMBER else (group, dist.get_rank(group), dist.get_world_size(group))


def everyone() -> tuple[Any, int, int]:
    """The same of the group of all ranks, of which each is one."""
    found = member(None)
    assert found is not None
    return found


def gathered(tensor: Tensor, group: Any) -> list[Tensor]:
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def around(whole: Tensor, dim: int, start: int, stop: int, edge: str) -> Tensor:
    """Positions [start, stop) of the whole tensor, one by one."""
    total = whole.shape[dim]
    found = []
    for at in range(start, stop):
        if edge == "wrap":
            at %= total
        elif edge == "first":
            at = min(max(at, 0), total - 1)
        outside = not 0 <= at < total
        found.append(torch.zeros_like(whole.narrow(dim, 0, 1)) if outside else whole.narrow(dim, at, 1))
    return torch.cat(found, dim) if found else whole.narrow(dim, 0, 0)


def halos(ranks: tuple[int, ...] | None, shards: str) -> None:
    found = member(ranks)
    if found is None:
        return
    group, rank, size = found
    sizes = SHARDS[shards](size)
    start = sum(sizes[:rank])
    for edge, (before, after), (dim, dtype) in itertools.product(
        ("zeros", "first", "wrap"), ((1, 0), (3, 2), (0, 11)), ((0, torch.float32), (-1, torch.bfloat16))
    ):
        shape = [2, 3, 2]
        shape[dim] = sum(sizes)
        whole = torch.randn(shape, dtype=dtype)
        x = whole.narrow(dim, start, sizes[rank]).clone().requires_grad_()
        validate = before != 1
        out = distributed.halo(x, dim, before, after, group, edge=edge, sizes=None if validate else sizes, validate=validate)
        axis = dim % 3
        wide = whole.detach().double().requires_grad_()
        expected = [
            around(wide, axis, begin - before, begin + n + after, edge) for begin, n in zip(starts(sizes), sizes, strict=True)
        ]
        case = f"{shards} {edge} {before} {after} dim {dim} {dtype}"
        assert same_bits(out, expected[rank].to(dtype)), case
        directions = [torch.randn(one.shape, dtype=dtype) for one in expected]
        total = sum(((one * direction).sum() for one, direction in zip(expected, directions, strict=True)), wide.sum() * 0)
        (dwhole,) = torch.autograd.grad(total, wide)
        (dx,) = torch.autograd.grad(out, x, directions[rank])
        wanted = dwhole.narrow(dim, start, sizes[rank])
        assert dx.shape == wanted.shape and dx.dtype == dtype
        eps = torch.finfo(dtype).eps  # one rounding of a repeated element's part, and one of the sum
        assert ((dx.double() - wanted).abs() <= 2.5 * eps * (8 + wanted.abs())).all(), case


def halo_of_integers_and_second_derivatives() -> None:
    group, rank, size = everyone()
    whole = torch.arange(3 * size, dtype=torch.int64)
    out = distributed.halo(whole[3 * rank : 3 * rank + 3], 0, 4, 1, group, edge="wrap")
    assert out.tolist() == [at % (3 * size) for at in range(3 * rank - 4, 3 * rank + 4)]
    assert distributed.halo(torch.tensor([rank % 2 == 0]), 0, 1, 0, group).tolist() == [rank % 2 == 1, rank % 2 == 0]
    x = torch.full((2,), 1.0 + rank, requires_grad=True)
    out = distributed.halo(x, 0, 1, 1, group, edge="wrap")
    (dx,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
    assert torch.allclose(dx, 3 * x**2 * 2 if size > 1 else dx)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    assert torch.allclose(ddx, 12 * x)


def views_that_are_negated_or_conjugated() -> None:
    """torch negates and conjugates such views when it reads them; what travels is what they hold then."""
    group, rank, size = everyone()
    whole = torch.randn(3 * size, 2, dtype=torch.complex64)
    x = whole[3 * rank : 3 * rank + 3]
    for view, of_whole in ((x.conj(), whole.conj()), (x.conj().imag, whole.conj().imag), (torch._neg_view(x), -whole)):
        assert view.is_conj() or view.is_neg()
        wanted = around(of_whole.resolve_conj().resolve_neg(), 0, 3 * rank - 2, 3 * rank + 5, "zeros")
        assert same_bits(
            torch.view_as_real(distributed.halo(view, 0, 2, 2, group))
            if wanted.is_complex()
            else distributed.halo(view, 0, 2, 2, group),
            torch.view_as_real(wanted) if wanted.is_complex() else wanted,
        )
        assert torch.equal(distributed.gather(view, 0, group), of_whole)


def a_gather_packs_once() -> None:
    """A rank's data is not copied once for every other rank."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        sent = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "cat" in str(func) or "pad" in str(func):
                self.sent = max(self.sent, out.numel() * out.element_size())
            return out

    group, rank, size = everyone()
    x = torch.randn(1000 + rank)
    with Largest() as largest:
        whole = distributed.gather(x, 0, group)
    assert whole.numel() == sum(1000 + r for r in range(size)) and same_bits(
        whole[sum(1000 + r for r in range(rank)) :][: 1000 + rank], x
    )
    assert largest.sent <= 4 * (1000 + size), largest.sent


def halos_under_way() -> None:
    """Two at once, waited for in the other order; their gradients too."""
    group, rank, size = everyone()
    whole = torch.randn(4 * size, 2)
    leaves = [whole[4 * rank : 4 * rank + 4].clone().requires_grad_() for _ in range(2)]
    pending = [distributed.begin_halo(leaf, 0, 2 + i, 1, group, edge="wrap") for i, leaf in enumerate(leaves)]
    found = [one.wait() for one in pending[::-1]][::-1]
    assert pending[0].wait() is found[0]
    for i, (leaf, out) in enumerate(zip(leaves, found, strict=True)):
        again = leaf.detach().clone().requires_grad_()
        expected = distributed.halo(again, 0, 2 + i, 1, group, edge="wrap")
        direction = torch.randn_like(out)
        assert same_bits(out, expected)
        assert same_bits(torch.autograd.grad(out, leaf, direction)[0], torch.autograd.grad(expected, again, direction)[0])


def laps_travel_once() -> None:
    """A halo of many laps of a small axis brings each position once."""
    group, rank, size = everyone()
    whole = torch.randn(2 * size, 1000)
    x = whole[2 * rank : 2 * rank + 2].clone().requires_grad_()
    lengths: list[int] = []

    def counted(received: Tensor, *arguments: Any, of: Any = dist.all_to_all_single, **options: Any) -> Any:
        lengths.append(received.numel())
        return of(received, *arguments, **options)

    with mock.patch.object(dist, "all_to_all_single", counted):
        out = distributed.halo(x, 0, 10 * size, 0, group, edge="wrap")
        (dx,) = torch.autograd.grad(out.sum(), x)
    assert same_bits(out, around(whole, 0, 2 * rank - 10 * size, 2 * rank + 2, "wrap")) and same_bits(
        dx, torch.full_like(x, 5.0 * size + 1)
    )
    assert lengths == [4 * 1000 * 2 * (size - 1)] * 2, lengths


def layouts_are_kept() -> None:
    group, _, _ = everyone()
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    assert distributed.halo(x, 2, 1, 1, group).is_contiguous(memory_format=torch.channels_last)
    assert distributed.halo(torch.randn(2, 5, 8).mT, 2, 1, 1, group).stride(1) == 1


def shards_and_gathers(ranks: tuple[int, ...] | None) -> None:
    found = member(ranks)
    if found is None:
        return
    group, rank, size = found
    for total, layout in itertools.product((0, 1, 2 * size + 1, 23), ("contiguous", "zigzag")):
        whole = torch.randn(2, total, 3, requires_grad=True)
        x = distributed.shard(whole, 1, group, layout=layout)
        if layout == "contiguous":
            assert same_bits(x, whole.tensor_split(size, 1)[rank])
        else:
            pieces = whole.tensor_split(2 * size, 1)
            assert same_bits(x, torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], 1))
        again = distributed.gather(x, 1, group, layout=layout)
        assert same_bits(again, whole)
        direction = torch.randn_like(again)
        (dwhole,) = torch.autograd.grad(again, whole, direction)
        assert same_bits(dwhole, direction)
    sizes = SHARDS["uneven"](size)
    whole = torch.randn(sum(sizes), 2)
    assert same_bits(distributed.gather(distributed.shard(whole, 0, group, sizes=sizes), 0, group, sizes=sizes), whole)


# ---- what is refused ---------------------------------------------------------------------------------------------------------


def refusal(call: Any) -> str:
    """The error's class and text."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def starts(sizes: list[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))[:-1]


class _Raises(Tensor):
    """Its shape cannot be had."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no shape today")


WRONG: dict[str, Any] = {
    "dtype": lambda rank, x, group: distributed.halo(x.double() if rank == 1 else x, 0, 1, 1, group),
    "shape": lambda rank, x, group: distributed.halo(x[:, :1] if rank == 1 else x, 0, 1, 1, group),
    "before": lambda rank, x, group: distributed.halo(x, 0, 2 if rank == 1 else 1, 1, group),
    "edge": lambda rank, x, group: distributed.halo(x, 0, 1, 1, group, edge="wrap" if rank == 1 else "zeros"),
    "refused": lambda rank, x, group: distributed.halo(x, 0, -1 if rank == 1 else 1, 1, group),
    "kind": lambda rank, x, group: distributed.halo(cast(Tensor, None) if rank == 1 else x, 0, 1, 1, group),
    "sizes": lambda rank, x, group: distributed.halo(x, 0, 1, 1, group, sizes=[2] * 3 if rank == 1 else None),
    "wrong_sizes": lambda rank, x, group: distributed.halo(x, 0, 1, 1, group, sizes=[2, 3, 2]),
    "gradient": lambda rank, x, group: distributed.halo(x.clone().requires_grad_(rank == 1), 0, 1, 1, group),
    "sizes_of_others": lambda rank, x, group: distributed.halo(x, 0, 1, 1, group, sizes=[2, 2] if rank == 1 else None),
    "negative_sizes": lambda rank, x, group: distributed.gather(x, 0, group, sizes=[2, 2, -2] if rank == 1 else None),
    "kind_of_sizes": lambda rank, x, group: distributed.halo(x, 0, 1, 1, group, sizes=cast(Any, 2) if rank == 1 else None),
    "kind_of_validate": lambda rank, x, group: distributed.halo(
        x, 0, 1, 1, group, validate=cast(Any, "no") if rank == 1 else True
    ),
    "another_error": lambda rank, x, group: distributed.halo(_Raises() if rank == 1 else x, 0, 1, 1, group),
    "long_sizes": lambda rank, x, group: distributed.halo(
        x.reshape(2, *[1] * 60, *((1, 2) if rank == 1 else (2, 1))), 0, 1, 1, group
    ),
    "call": lambda rank, x, group: distributed.gather(x, 0, group) if rank == 1 else distributed.halo(x, 0, 1, 1, group),
    "empty": lambda rank, x, group: distributed.halo(x[:0], 0, 1, 1, group, edge="wrap"),
    "zigzag": lambda rank, x, group: distributed.gather(x[rank:], 0, group, layout="zigzag"),
}


def refusals(name: str) -> str:
    """Each rank raises this; a call that fits works before and after it."""
    group, rank, _ = everyone()
    x = torch.randn(2, 2)
    distributed.halo(x, 0, 1, 1, group)
    text = refusal(lambda: WRONG[name](rank, x, group))
    distributed.halo(x, 0, 1, 1, group)
    return text


def grad_mode_counts() -> None:
    """A shard that requires grad on one rank alone is nobody's business where no gradient is recorded."""
    group, rank, _ = everyone()
    x = torch.ones(2, 2, requires_grad=rank == 1)
    with torch.no_grad():
        distributed.halo(x, 0, 1, 1, group)


def compiled() -> None:
    """torch.compile ends its graph before a call, and goes on behind it."""
    group, _, size = everyone()
    whole, weight, image = torch.randn(1, 3, 5 * size), torch.randn(3, 4), torch.randn(1, 2, 3 * size, 4)
    filters = torch.randn(2, 2, 3, 3)

    def model(x: Tensor, image: Tensor) -> Any:
        y: Any = distributed.causal_conv1d(x + 1, weight, group=group, activation="silu")
        around = distributed.halo(y * 2, 2, 1, 1, group).sum()
        rows: Any = distributed.conv2d(image, filters, padding=1, group=group)
        return around + distributed.gather(rows + 1, 2, group).sum() + distributed.shard(whole, 2, group).sum()

    x = distributed.shard(whole, 2, group).requires_grad_()
    mine = distributed.shard(image, 2, group)
    optimised = torch.compile(model, backend="eager")
    expected = model(x, mine)
    for _ in range(2):
        out = optimised(x, mine)
        assert torch.allclose(out, expected)
        (dx,), (wanted,) = torch.autograd.grad(out, x), torch.autograd.grad(model(x, mine), x)
        assert same_bits(dx, wanted)


def a_shape_that_one_rank_has_seen() -> str:
    """Rank 0 repeats a call, rank 1 comes with a new shape."""
    group, rank, _ = everyone()
    for _ in range(3):
        distributed.halo(torch.zeros(2, 4), 0, 1, 1, group)
    return refusal(lambda: distributed.halo(torch.zeros(2, 5 if rank == 1 else 4), 0, 1, 1, group))


def a_call_too_many() -> list[str]:
    """A rank makes a call that the others do not make: none of them can go on with this group."""
    group = dist.new_group()
    rank = dist.get_rank()
    if rank == 2:
        refusal(lambda: distributed.halo(torch.zeros(2), 0, 1, 1, group, validate=False))  # which counts, though it raises
    return [refusal(lambda: distributed.halo(torch.zeros(2), 0, 1, 1, group)) for _ in range(2)]


def local_refusals() -> list[str]:
    group, _, _ = everyone()
    x = torch.zeros(2, 2)
    outsider = group_of_ranks((0,)) if dist.get_rank() else dist.GroupMember.NON_GROUP_MEMBER
    return [
        refusal(lambda: distributed.halo(x, 0, 1, 1, "world")),
        refusal(lambda: distributed.halo(x, 0, 1, 1, outsider)),
        refusal(lambda: distributed.halo(x, 0, 1, 1, group, validate=False)),
        refusal(lambda: distributed.shard(x, 2, group)),
        refusal(lambda: distributed.shard(x, 0, group, sizes=[1, 1, 1])),
    ]


def a_rank_dies(victim: int) -> str:
    """The others get an error from torch.distributed, and no hang."""
    import os
    import signal

    group, rank, _ = everyone()
    distributed.halo(torch.zeros(2), 0, 1, 1, group)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(3):
            distributed.halo(torch.zeros(2), 0, 1, 1, group)
    except RuntimeError as error:
        return type(error).__name__
    raise AssertionError("nothing was raised")


def stuck(who: int) -> None:
    """One rank never answers."""
    import time

    if dist.get_rank() == who:
        time.sleep(600)
