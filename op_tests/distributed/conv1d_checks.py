"""The ranks check causal_conv1d here: against hipconv.causal_conv1d_fn on the whole rows, which each of them computes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from distributed.halo_checks import SHARDS, everyone, gathered, member, refusal
from distributed.two_streams import order_on_two_streams, two_streams
from support.tensors import same_bits
import hipconv
from hipconv import distributed


class Case(NamedTuple):
    """One call."""

    shards: str = "uneven"  # or "zigzag_<tokens>"
    width: int = 4
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    channel_last: bool = False
    ids: str | None = None  # "documents", "any", "padded", "cu_seqlens"
    initial: bool = False
    final: bool = False
    activation: str | None = "silu"
    bias: bool = True
    reduces: bool = False
    validate: bool = True
    dim: int = 5
    bits_of_dx: bool = True
    expanded: bool = False  # the output's gradient, as that of a sum is


CASES = {
    "plain": Case(),
    "wide": Case(width=7, activation=None, bias=False),
    "width_1": Case(width=1, initial=True, final=True),
    "half": Case("even", dtype=torch.bfloat16, weight_dtype=torch.bfloat16, channel_last=True, reduces=True),
    "mixed": Case("some_empty", dtype=torch.float16, channel_last=True, initial=True, final=True),
    "double": Case("short", dtype=torch.float64, weight_dtype=torch.float64, initial=True, final=True),
    "short": Case("short", width=6, initial=True, final=True),
    "short_documents": Case("short", ids="documents", final=True, initial=True),
    "any_ids": Case("uneven", ids="any", initial=True, final=True),
    "padding": Case("uneven", ids="padded", channel_last=True),
    "cu_seqlens": Case("some_empty", ids="cu_seqlens", reduces=True, validate=False),
    "one_has_all": Case("one_has_all", initial=True, final=True),
    "last_empty": Case("last_empty", width=8, initial=True, final=True, activation=None),
    "none": Case("none", initial=True, final=True),
    "long": Case("long", channel_last=True, initial=True, final=True, dim=3),
    "long_documents": Case("long", ids="documents", final=True, dim=3),
    "expanded": Case(channel_last=True, expanded=True, dim=8, final=True),
    "expanded_channel_first": Case("short", expanded=True, initial=True),
    "zigzag": Case("zigzag_50", initial=True, final=True),
    "zigzag_short": Case("zigzag_9", ids="any", initial=True, final=True, width=5),
    "zigzag_long": Case("zigzag_2001", channel_last=True, ids="documents", dim=2),
}


def sizes_of(shards: str, size: int) -> list[int]:
    if shards == "none":
        return [0] * size
    if shards == "large":
        return [30000 + 7 * r for r in range(size)]
    return [300 + 7 * r if r % 2 else 131 + r for r in range(size)] if shards == "long" else SHARDS[shards](size)


def ids_of(case: Case, batch: int, tokens: int) -> Tensor | None:
    if case.ids is None:
        return None
    ids = torch.randint(0, max(2, tokens // 3), (batch, tokens), dtype=torch.int32)
    if case.ids in ("documents", "cu_seqlens", "padded"):
        ids = ids.sort(1)[0]
    if case.ids == "padded":
        ids = torch.where(torch.rand(batch, tokens) < 0.2, -1, ids).int()
    return ids


def run(case: Case, ranks: tuple[int, ...] | None) -> None:
    found = member(ranks)
    if found is None:
        return
    group, rank, size = found
    layout = "zigzag" if case.shards.startswith("zigzag") else "contiguous"
    sizes = None if layout == "zigzag" else sizes_of(case.shards, size)
    tokens = int(case.shards.split("_")[1]) if sizes is None else sum(sizes)
    batch = 1 if case.ids == "cu_seqlens" else 2
    past = case.width - 1

    def rows() -> Tensor:
        whole = torch.randn(batch, case.dim, tokens).to(case.dtype)
        return whole.mT.contiguous().mT if case.channel_last else whole

    def mine(whole: Tensor, dim: int = 2) -> Tensor:
        part = distributed.shard(whole.detach(), dim, group, sizes=sizes, layout=layout)
        return part.mT.contiguous().mT if case.channel_last and part.dim() == 3 else part

    x, dout = rows(), rows()
    weight, bias = (torch.randn(case.dim, case.width).to(case.weight_dtype), torch.randn(case.dim).to(case.weight_dtype))
    ids = ids_of(case, batch, tokens)
    initial = torch.randn(batch, case.dim, past).to(case.dtype) if case.initial else None
    dfinal = torch.randn(size, batch, case.dim, past).to(case.dtype)

    def leaves(x: Tensor) -> list[Any]:
        return [
            None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            for t in (x, weight, bias if case.bias else None, initial)
        ]

    whole = leaves(x)
    expected: Any = hipconv.causal_conv1d_fn(
        whole[0], whole[1], whole[2], ids, whole[3], case.final, activation=case.activation
    )
    local = leaves(mine(x))
    options: dict[str, Any] = {"cu_seqlens": None, "seq_idx": None}
    if case.ids == "cu_seqlens":
        assert ids is not None
        options["cu_seqlens"] = torch.cat([ids.new_zeros(1), (ids[0].bincount(minlength=1)).cumsum(0)]).to(torch.int32)
    elif ids is not None:
        options["seq_idx"] = mine(ids, 1)
    if not case.validate:
        options |= {"sizes": sizes, "validate": False}
    out: Any = distributed.causal_conv1d(
        *local[:3],
        group=group,
        initial_states=local[3],
        return_final_states=case.final,
        activation=case.activation,
        layout=layout,
        reduce_gradients=case.reduces,
        **options,
    )
    results, references = ([out], [expected]) if not case.final else (out, expected)
    if case.expanded:
        dout = dout[:1, :1, :1].expand(dout.shape)
    directions = [mine(dout) if not case.expanded else dout[0, 0, 0].expand(results[0].shape)] + (
        [dfinal[rank]] if case.final else []
    )
    whole_directions = [dout] + ([dfinal.double().sum(0).to(case.dtype)] if case.final else [])
    if case.final:  # one rank's alone, so that no order of a sum matters; other sums are below
        directions[1], whole_directions[1] = (dfinal[0] if rank == 0 else torch.zeros_like(dfinal[0])), dfinal[0]
    assert same_bits(results[0], mine(references[0])), "output"
    assert results[0].stride() == local[0].stride() or not results[0].numel(), "memory layout"
    if case.final:
        assert same_bits(results[1], references[1]), "final states"
    wanted = [leaf for leaf in local if leaf is not None]
    gradients = dict(zip(_names(local), torch.autograd.grad(results, wanted, directions), strict=True))
    wholes = dict(
        zip(_names(whole), torch.autograd.grad(references, [w for w in whole if w is not None], whole_directions), strict=True)
    )
    if case.bits_of_dx:
        assert same_bits(gradients["x"], mine(wholes["x"])), "dx"
    else:
        assert torch.allclose(gradients["x"], mine(wholes["x"]), rtol=1e-5, atol=1e-5), "dx"
    if case.initial:
        parts = gathered(gradients["initial_states"], group)
        total = torch.stack(parts).sum(0)
        assert (same_bits if case.bits_of_dx else torch.allclose)(total, wholes["initial_states"]), "dinitial_states"
    for name in ("weight", "bias")[: 1 + case.bias]:
        parts = gathered(gradients[name].double(), group)
        total = parts[0] if case.reduces else torch.stack(parts).sum(0)
        assert all(same_bits(part, parts[0]) for part in parts) or not case.reduces
        eps = torch.finfo(case.weight_dtype).eps
        size_of_sums = (batch * tokens) ** 0.5 if tokens > 10_000 else 10.0  # on their way
        error = (total - wholes[name].double()).abs() / (eps * (size_of_sums + wholes[name].double().abs()))
        assert error.max() <= 20, f"{name}: {error.max():.1f} roundings of its sums"
    again = dict(
        zip(_names(local), torch.autograd.grad(_again(case, local, group, layout, options), wanted, directions), strict=True)
    )
    assert all(same_bits(again[name], gradients[name]) for name in again), "twice the same"


on_two_streams = functools.partial(order_on_two_streams, run)


def launched_first() -> None:
    """The kernel of a long part is launched before anything is sent, in the forward and in the backward."""
    group, _, size = everyone()
    x, weight = torch.randn(1, 300, 8).mT, torch.randn(8, 4)
    with two_streams(stand_in=not x.is_cuda) as order:
        mine = x.clone().requires_grad_()
        out: Any = distributed.causal_conv1d(mine, weight, group=group, sizes=[300] * size, validate=False)
        forward = order[:2]
        order.clear()
        out.sum().backward()
    assert forward == order[:2] == ["kernel", "exchange"], (forward, order)


def _again(case: Case, local: list[Any], group: Any, layout: str, options: dict[str, Any]) -> Any:
    out: Any = distributed.causal_conv1d(
        *local[:3],
        group=group,
        initial_states=local[3],
        return_final_states=case.final,
        activation=case.activation,
        layout=layout,
        reduce_gradients=case.reduces,
        **options,
    )
    return out if case.final else [out]


def _names(leaves: list[Any]) -> list[str]:
    return [name for name, leaf in zip(("x", "weight", "bias", "initial_states"), leaves, strict=True) if leaf is not None]


def final_states_of_many_ranks() -> None:
    """Each rank has a gradient for the final states: they add up, in the order of ranks."""
    group, rank, size = everyone()
    x, weight, dfinal = torch.randn(2, 2 * size, 3).mT, torch.randn(3, 4), torch.randn(size, 2, 3, 3)
    whole = x.clone().requires_grad_()
    _, final = hipconv.causal_conv1d_fn(whole, weight, return_final_states=True)
    total = dfinal[0]
    for one in dfinal[1:]:
        total = total + one
    (expected,) = torch.autograd.grad(final, whole, total)
    mine = x[..., 2 * rank : 2 * rank + 2].clone().requires_grad_()
    _, final = distributed.causal_conv1d(mine, weight, group=group, return_final_states=True)
    (dx,) = torch.autograd.grad(final, mine, dfinal[rank])
    assert same_bits(dx, expected[..., 2 * rank : 2 * rank + 2])


def checkpointed() -> None:
    """Gradients through a checkpoint are those without."""
    group, _, _ = everyone()
    tensors = torch.randn(2, 3, 5), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3, 3)

    def loss(x: Tensor, weight: Tensor, bias: Tensor, states: Tensor) -> Tensor:
        options: dict[str, Any] = {"initial_states": states, "activation": "silu", "group": group}
        return cast(Tensor, distributed.causal_conv1d(x, weight, bias, **options)).sin().sum()

    found = []
    for way in (None, False, True):
        leaves = [t.clone().requires_grad_() for t in tensors]
        (loss(*leaves) if way is None else checkpoint(loss, *leaves, use_reentrant=way)).backward()
        found.append([cast(Tensor, leaf.grad) for leaf in leaves])
    for gradients in found[1:]:
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(gradients, found[0], strict=True))


def gradients_that_nobody_wants() -> None:
    """Where x and the initial states need no gradient, nothing travels in the backward; where parameters do not,
    nothing is summed.
    """
    import torch.distributed as dist

    group, rank, size = everyone()
    whole, weight, bias = torch.randn(1, 4 * size, 3).mT, torch.randn(3, 4), torch.randn(3)
    sent: list[str] = []

    def counted(name: str) -> Any:
        of = getattr(dist, name)

        def call(*arguments: Any, **options: Any) -> Any:
            sent.append(name)
            return of(*arguments, **options)

        return call

    names = ("all_to_all_single", "all_gather")
    with mock.patch.multiple(dist, **{name: counted(name) for name in names}):
        for wanted, calls in (
            ((1, 2), ["all_gather"]),
            ((0,), ["all_to_all_single"]),
            ((0, 1), ["all_to_all_single", "all_gather"]),
        ):
            alone = [t.clone().requires_grad_(i in wanted) for i, t in enumerate((whole, weight, bias))]
            mine = [distributed.shard(whole, 2, group).requires_grad_(0 in wanted)]
            mine += [t.clone().requires_grad_(i in wanted) for i, t in enumerate((weight, bias), 1)]
            out: Any = distributed.causal_conv1d(*mine, group=group, reduce_gradients=True)
            sent.clear()
            out.sum().backward()
            assert sent == calls, (wanted, sent)
            whole_out: Any = hipconv.causal_conv1d_fn(alone[0], alone[1], alone[2])
            whole_out.sum().backward()
            for i in wanted:
                got, expected = mine[i].grad, alone[i].grad
                assert got is not None and expected is not None
                if i == 0:
                    assert same_bits(got, expected[..., 4 * rank : 4 * rank + 4])
                else:
                    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


WRONG: dict[str, Any] = {
    "width": lambda rank, x, w, group: distributed.causal_conv1d(x, w[:, : 3 if rank == 1 else 4], group=group),
    "dim": lambda rank, x, w, group: distributed.causal_conv1d(
        x[:, : 2 if rank == 1 else 3], w[: 2 if rank == 1 else 3], group=group
    ),
    "fits_not": lambda rank, x, w, group: distributed.causal_conv1d(x[:, :2] if rank == 1 else x, w, group=group),
    "activation": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, activation="gelu" if rank == 1 else None
    ),
    "silu": lambda rank, x, w, group: distributed.causal_conv1d(x, w, group=group, activation="silu" if rank == 1 else None),
    "seq_idx": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, seq_idx=torch.zeros(1, 4 - rank, dtype=torch.int32)
    ),
    "both": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, seq_idx=torch.zeros(1, 4, dtype=torch.int32), cu_seqlens=torch.tensor([0, 12])
    ),
    "states": lambda rank, x, w, group: distributed.causal_conv1d(x, w, group=group, initial_states=torch.zeros(1, 3, 2)),
    "some_states": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, initial_states=torch.zeros(1, 3, 3) if rank == 1 else None
    ),
    "layout": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, layout="zigzag" if rank == 1 else "contiguous"
    ),
    "reduce_gradients": lambda rank, x, w, group: distributed.causal_conv1d(
        x, w, group=group, reduce_gradients=cast(Any, "no") if rank == 1 else False
    ),
    "sizes": lambda rank, x, w, group: distributed.causal_conv1d(x, w, group=group, sizes=[4, 4] if rank == 1 else None),
    # of one rank's tokens alone
    "served": lambda rank, x, w, group: distributed.causal_conv1d(x[..., : 4 if rank == 1 else 0], w.double(), group=group),
    "gradient": lambda rank, x, w, group: distributed.causal_conv1d(x, w.clone().requires_grad_(rank == 1), group=group),
}


def refusals(name: str) -> str:
    group, rank, _ = everyone()
    x, weight = torch.randn(1, 3, 4), torch.randn(3, 4)
    text = refusal(lambda: WRONG[name](rank, x, weight, group))
    distributed.causal_conv1d(x, weight, group=group)
    return text
