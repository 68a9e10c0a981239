"""The arithmetic of context parallelism: which pieces of a row a rank convolves, so that each output and each gradient of x is
the one sum that a single device makes.

A chunk is a run of tokens that lie on one rank. Its first width - 1 outputs need the tokens before it, its last width - 1
gradients the outputs' gradients behind it; both are computed from a short row that has those neighbours in it, all others from
the chunk alone. The neighbours' own results in such a row are dropped, so nothing is ever added up twice. For the backward x
and dout of the tokens behind travel, from which the gradient before the activation is made again, in float32, as their own rank
makes it.

On a GPU the chunk's kernel is launched first, and the exchange and the short rows run beside it. What they give for tokens that
the kernel writes too goes to its place behind both. Tokens travel as (batch, tokens, dim) whatever the layout of x is, so that
those of one channel-last row are sent from where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from .. import jit
from ..jit import targets
from ..ops.dispatch import nobody_looks_on, stream
from .beside import Beside
from .exchange import Exchange, Parcel, PartsExchange, joined
from .groups import Group
from .routes import Chunk, Chunks, Parts, Wants, inside

HEAD = 128  # tokens of a chunk that wait for the exchange; a multiple of every kernel's vectors
STEP = 64  # short rows begin at a multiple of this in their chunk, so that lanes share their tokens out as in the whole


class Plan(NamedTuple):
    """All of a call but its tensors."""

    group: Group
    chunks: Chunks
    past: int  # width - 1
    use_silu: bool
    return_final_states: bool
    reduces: bool  # gradients of parameters, over the group

    @property
    def total(self) -> int:
        return self.chunks[-1].stop

    def mine(self) -> list[Chunk]:
        """The chunks of this rank that have tokens."""
        return [chunk for chunk in self.chunks if chunk.rank == self.group.rank and chunk.size]

    def wants(self, behind: bool) -> Wants:
        """For each rank the tokens before its chunks, and on all ranks of the final states; or those behind its chunks."""
        final_states = self.past if self.return_final_states and not behind else 0
        return _wants(self.chunks, self.group.size, self.past, behind, final_states)

    def before(self, chunk: Chunk) -> int:
        """Tokens before a chunk that it needs."""
        return min(self.past, chunk.start)

    def behind(self, chunk: Chunk) -> int:
        return min(self.past, self.total - chunk.stop)

    def gets_dfinal_states(self) -> list[int]:
        """The ranks whose tokens, or initial states, the final states hold."""
        if not self.total:
            return [0]
        return sorted({chunk.rank for chunk in self.chunks if chunk.size and chunk.stop > self.total - self.past})


@functools.lru_cache(1024)
def _wants(chunks: Chunks, ranks: int, past: int, behind: bool, final: int) -> Wants:
    total = chunks[-1].stop
    everyone = inside(chunks, max(0, total - final), total)

    def of(chunk: Chunk) -> Parts:
        low, high = (chunk.stop, chunk.stop + past) if behind else (chunk.start - past, chunk.start)
        return inside(chunks, max(0, low), min(total, high))

    mine = [[chunk for chunk in chunks if chunk.rank == rank and chunk.size] for rank in range(ranks)]
    return tuple(tuple(part for chunk in own for part in of(chunk)) + everyone for own in mine)


class Context(NamedTuple):
    """The tokens that stand before a chunk."""

    x: Tensor
    ids: Tensor | None


# ---- forward -----------------------------------------------------------------------------------------------------------------


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, ids: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor | None, list[Context]]:
    """This rank's output, the final states of the whole row, and what stands before this rank's chunks."""
    beside = Beside(x)
    out = torch.empty_like(x)
    final_states = x.new_empty(x.shape[0], plan.past, x.shape[1]).transpose(1, 2) if plan.return_final_states else None
    run = functools.partial(_convolve, weight, bias, plan)

    def begun() -> PartsExchange:
        return _exchange(plan, False, beside.hides, x, ids)

    exchange = None if beside.hides else begun()
    chunks = plan.mine()
    for chunk in chunks:
        if not plan.before(chunk):
            run(_cut(out, chunk), None, _cut(x, chunk), _cut(ids, chunk), initial_states)
        elif chunk.size > HEAD + plan.past:
            rest = chunk.size - HEAD
            run(_cut(out, chunk, HEAD, rest), None, _cut(x, chunk, HEAD, rest), _cut(ids, chunk, HEAD, rest), None)
    contexts, heads = [], []
    with beside.running():
        pieces = _Pieces((exchange or begun()).wait(), x, ids)
        for chunk in chunks:
            count = plan.before(chunk)
            context = pieces.take(count)
            contexts.append(context)
            beside.keep(*context)
            if count:
                head = min(chunk.size, HEAD + plan.past)
                state = initial_states if chunk.start == count else None
                row = joined([context.x, _cut(x, chunk, 0, head)], x, 2)
                begin = torch.empty_like(row)
                run(begin, None, row, _join_ids(context.ids, _cut(ids, chunk, 0, head)), state)
                beside.keep(begin)
                heads.append((_cut(out, chunk, 0, head), begin[..., count:]))
        if final_states is not None:
            last = pieces.take(min(plan.past, plan.total))
            state = initial_states if plan.total <= plan.past else None
            run(torch.empty_like(last.x), final_states, last.x, last.ids, state)
    for place, found in heads:
        place.copy_(found)
    return out, final_states, contexts


def _convolve(
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    out: Tensor,
    final_states: Tensor | None,
    row: Tensor,
    ids: Tensor | None,
    state: Tensor | None,
) -> None:
    """One launch, past the operator where nobody looks on: it is what the card waits for."""
    arguments = (out, final_states, row, weight, bias, ids, state, plan.use_silu)
    if nobody_looks_on(row, weight, bias, state):
        jit.module("causal_conv1d", targets.of(row.device)).causal_conv1d_rows_fwd(*arguments, stream(row))
    else:
        torch.ops.hipconv.causal_conv1d_states_fwd.default(*arguments)


# ---- backward ----------------------------------------------------------------------------------------------------------------


class Gradients(NamedTuple):
    dx: Tensor | None
    dweight: Tensor
    dbias: Tensor | None
    dinitial_states: Tensor | None


def backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    ids: Tensor | None,
    contexts: Sequence[Context],
    dout: Tensor,
    dfinal_states: Tensor | None,
    plan: Plan,
    wants_rows: bool,
) -> Gradients:
    """The gradients of this rank's tokens (and of the initial states, if `wants_rows`),
    and its part of those of the parameters.
    """
    if x.stride(1) == 1 and dout.stride(1) != 1:  # one order for both, whose kernel cuts a row into shards without another bit
        dout = torch.empty_like(x).copy_(dout)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    # Wide parameters have wide gradients, whose parts are not rounded before they are added up.
    weight_wide, bias_wide = weight.to(wide), None if bias is None else bias.to(wide)
    dweight = dbias = dx = None
    dinitial = None if initial_states is None else torch.zeros_like(initial_states)
    run = functools.partial(_differentiate, weight_wide, bias_wide, plan)
    beside = Beside(x)

    def begun() -> tuple[PartsExchange, Exchange | None]:
        """Where no gradient of x is wanted, what stands behind a chunk has no part in anything, and does not travel."""
        found = _exchange(plan, True, beside.hides, x, ids, dout)
        return found, _send_dfinal_states(dfinal_states, plan, beside.hides)

    exchanges = begun() if wants_rows and not beside.hides else None
    chunks = plan.mine()
    for chunk, context in zip(chunks, contexts, strict=True):
        count = plan.before(chunk)
        state = initial_states if chunk.start == count else None
        mine, mine_ids, mine_dout = _cut(x, chunk), _cut(ids, chunk), _cut(dout, chunk)
        if count == plan.past and count and ids is None:
            of_chunk = run(mine, mine_dout, None, context.x)
        elif count:  # a copy: with ids, what stands before is of sequences that only a row can tell apart
            row = joined([context.x, mine], x, 2)
            row_dout = joined([torch.zeros_like(context.x), mine_dout], dout, 2)
            of_chunk = run(row, row_dout, _join_ids(context.ids, mine_ids), state)
        else:
            of_chunk = run(mine, mine_dout, mine_ids, state)
        if wants_rows and of_chunk[0].shape == x.shape:
            dx = of_chunk[0]
        elif wants_rows:
            dx = torch.empty_like(x) if dx is None else dx
            _cut(dx, chunk).copy_(of_chunk[0][..., -chunk.size :])
        dweight = of_chunk[1] if dweight is None else dweight + of_chunk[1]
        if bias is not None:
            dbias = of_chunk[2] if dbias is None else dbias + of_chunk[2]
        if dinitial is not None and chunk.start == 0:
            dinitial.copy_(of_chunk[3])
    if dweight is None:  # of a rank without tokens
        dweight, dbias = torch.zeros_like(weight_wide), None if bias_wide is None else torch.zeros_like(bias_wide)
    if not wants_rows:
        return Gradients(None, dweight, dbias, None)
    dx = torch.empty_like(x) if dx is None else dx
    ends: list[tuple[Tensor, Tensor]] = []
    with beside.running():
        behind, final = exchanges or begun()
        pieces = _Pieces(behind.wait(), x, ids)
        total_dfinal = _sum_of(final, dfinal_states, plan)
        for chunk, context in zip(chunks, contexts, strict=True):  # the ends, which need what stands behind
            count = plan.behind(chunk)
            follows, follows_dout = pieces.take_with_dout(count)
            has_end = chunk.stop + count == plan.total and total_dfinal is not None
            if not (count or has_end):
                continue
            end = _row_around_end(chunk, context, follows, follows_dout, x, dout, ids, plan.past)
            state = initial_states if end.start == 0 else None
            of_row = run(end.x, end.dout, end.ids, state, total_dfinal if has_end else None)
            again = chunk.size - end.first
            ends.append((_cut(dx, chunk, end.first, again), of_row[0][..., end.at : end.at + again]))
            if dinitial is not None and chunk.start == 0 and chunk.size < plan.past:
                ends.append((dinitial, of_row[3]))
        if dinitial is not None and not plan.total and total_dfinal is not None and plan.group.rank == 0:
            ends.append((dinitial, total_dfinal))  # the final states are the initial ones
        beside.keep(*(found for _, found in ends))
    for place, found in ends:
        place.copy_(found)
    return Gradients(dx, dweight, dbias, dinitial)


def _differentiate(
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    row: Tensor,
    dout: Tensor,
    ids: Tensor | None,
    state: Tensor | None,
    dfinal: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of row, weight, bias and state, in one launch, past the operator where nobody looks on."""
    tensors = (row, weight, bias, dout, ids, state, dfinal)
    if not nobody_looks_on(*tensors):
        return torch.ops.hipconv.causal_conv1d_bwd.default(*tensors, state is not None, plan.use_silu)
    module = jit.module("causal_conv1d_bwd", targets.of(row.device))
    return module.causal_conv1d_bwd(*tensors, None, state is not None, plan.use_silu, "auto", stream(row))


def _send_dfinal_states(dfinal_states: Tensor | None, plan: Plan, in_order: bool) -> Exchange | None:
    """Every rank returned the final states; their gradients meet where the tokens are."""
    if dfinal_states is None or plan.group.size == 1:
        return None
    getting, me = plan.gets_dfinal_states(), plan.group.rank
    parcel = Parcel(tuple(dfinal_states.shape), dfinal_states.dtype)
    outgoing = [[dfinal_states] if rank in getting and rank != me else [] for rank in range(plan.group.size)]
    incoming = [[parcel] if me in getting and rank != me else [] for rank in range(plan.group.size)]
    return Exchange(outgoing, incoming, plan.group, dfinal_states.device, in_order)


def _sum_of(exchange: Exchange | None, mine: Tensor | None, plan: Plan) -> Tensor | None:
    """In the order of ranks, rounded once."""
    if exchange is None or mine is None:
        return mine
    came = exchange.wait()
    if plan.group.rank not in plan.gets_dfinal_states():
        return None
    came[plan.group.rank] = [mine]
    wide = mine.dtype if mine.dtype == torch.float64 else torch.float32
    total = came[0][0].to(wide)
    for (one,) in came[1:]:
        total = total + one
    return total.to(mine.dtype)


# ---- pieces of rows ----------------------------------------------------------------------------------------------------------


class _RowAroundEnd(NamedTuple):
    """A short row in which the end of a chunk has its neighbours: the gradient of x is made again from its token `first` on."""

    x: Tensor
    dout: Tensor  # zero before that token
    ids: Tensor | None
    start: int  # in the whole row
    first: int  # in the chunk
    at: int  # in this row


def _row_around_end(
    chunk: Chunk,
    context: Context,
    follows: Context,
    follows_dout: Tensor,
    x: Tensor,
    dout: Tensor,
    ids: Tensor | None,
    past: int,
) -> _RowAroundEnd:
    """From `past` tokens or more before those that are made again, to what follows the chunk."""
    first = max(0, chunk.size - past)
    begin = (first - past) // STEP * STEP if first >= past else 0
    no_ids = None if context.ids is None else context.ids[..., :0]
    before = context if first < past else Context(context.x[..., :0], no_ids)
    row = joined([before.x, _cut(x, chunk, begin, chunk.size - begin), follows.x], x, 2)
    at = before.x.shape[2] + first - begin
    unseen = row.new_zeros(()).expand(*row.shape[:2], at)
    row_dout = joined([unseen, _cut(dout, chunk, first, chunk.size - first), follows_dout], dout, 2)
    row_ids = _join_ids(_join_ids(before.ids, _cut(ids, chunk, begin, chunk.size - begin)), follows.ids)
    return _RowAroundEnd(row, row_dout, row_ids, chunk.start + begin - before.x.shape[2], first, at)


def _exchange(plan: Plan, behind: bool, in_order: bool, *tensors: Tensor | None) -> PartsExchange:
    """The exchange of those that there are: rows, whose tokens are the last axis."""
    present = [tensor.mT if tensor.dim() == 3 else tensor for tensor in tensors if tensor is not None]
    return PartsExchange(present, [1] * len(present), plan.wants(behind), plan.group, in_order)


class _Pieces:
    """The tokens that an exchange brought, to be taken one run after another."""

    def __init__(self, found: list[list[Tensor]], x: Tensor, ids: Tensor | None) -> None:
        self.x, self.ids = x, ids
        self.found = [list(pieces) for pieces in found]

    def take(self, count: int) -> Context:
        return self._take(count)[0]

    def take_with_dout(self, count: int) -> tuple[Context, Tensor]:
        context, dout = self._take(count)
        return context, self.x[..., :0] if dout is None else dout

    def _take(self, count: int) -> tuple[Context, Tensor | None]:
        taken: list[list[Tensor]] = [[] for _ in self.found]
        left = count
        while left:
            left -= self.found[0][0].shape[1]
            for pieces, into in zip(self.found, taken, strict=True):
                into.append(pieces.pop(0))
        likes = [self.x, *([] if self.ids is None else [self.ids]), self.x]
        whole = [_whole(pieces, like) for pieces, like in zip(taken, likes, strict=False)]
        ids = None if self.ids is None else whole[1]
        return Context(whole[0], ids), whole[-1] if len(whole) > 1 + (ids is not None) else None


def _whole(pieces: list[Tensor], like: Tensor) -> Tensor:
    """Rows, or ids, of pieces that travelled, one after another."""
    if not pieces:
        return like[..., :0]
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
    return whole.mT if whole.dim() == 3 else whole


def _cut(tensor, chunk: Chunk, begin: int = 0, count: int | None = None):
    """`count` tokens of a chunk from `begin` on, or all of them, of a tensor that may be None."""
    return None if tensor is None else tensor.narrow(-1, chunk.at + begin, chunk.size - begin if count is None else count)


def _join_ids(before: Tensor | None, ids: Tensor | None) -> Tensor | None:
    return None if before is None or ids is None else torch.cat([before, ids], 1)
