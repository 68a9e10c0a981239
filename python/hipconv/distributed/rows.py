"""The arithmetic of context parallelism: which pieces of a row a rank convolves, so that each output and each gradient of x is
the one sum that a single device makes.

A chunk is a run of tokens that lie on one rank. Its first width - 1 outputs need the tokens before it, its last width - 1
gradients the outputs' gradients behind it; both are computed from a short row that has those neighbours in it, all others from
the chunk alone. The neighbours' own results in such a row are dropped, so nothing is ever added up twice. For the backward x
and dout of the tokens behind travel, from which the gradient before the activation is made again, in float32, as their own rank
makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .exchange import Exchange, Parcel, PartsExchange, joined
from .groups import Group
from .routes import Chunk, Chunks, Wants, inside

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
        return [chunk for chunk in self.chunks if chunk.rank == self.group.rank]

    def wants(self, find: Callable[[Chunk], tuple[int, int]], everyone: tuple[int, int] | None = None) -> Wants:
        """For each rank the positions that `find` names of each of its chunks, and those of `everyone`."""
        return tuple(
            tuple(
                part
                for chunk in self.chunks
                if chunk.rank == rank and chunk.size
                for part in inside(self.chunks, *self._within(find(chunk)))
            )
            + (inside(self.chunks, *self._within(everyone)) if everyone else ())
            for rank in range(self.group.size)
        )

    def _within(self, positions: tuple[int, int]) -> tuple[int, int]:
        return max(0, positions[0]), min(self.total, positions[1])

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


class Context(NamedTuple):
    """The tokens that stand before a chunk."""

    x: Tensor
    ids: Tensor | None


# ---- forward -----------------------------------------------------------------------------------------------------------------


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, ids: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor | None, list[Context]]:
    """This rank's output, the final states of the whole row, and what stands before this rank's chunks."""
    final_row = (plan.total - plan.past, plan.total) if plan.return_final_states else None
    wants = plan.wants(lambda chunk: (chunk.start - plan.past, chunk.start), final_row)
    exchange = PartsExchange(*_split_alike(x, ids), wants, plan.group)
    out = torch.empty_like(x)

    def run(
        to: Tensor | None, row: Tensor, row_ids: Tensor | None, state: Tensor | None, final_states: Tensor | None = None
    ) -> Tensor:
        to = torch.empty_like(row) if to is None else to
        torch.ops.hipconv.causal_conv1d_states_fwd.default(to, final_states, row, weight, bias, row_ids, state, plan.use_silu)
        return to

    chunks = [chunk for chunk in plan.mine() if chunk.size]
    for chunk in chunks:  # while the exchange is under way
        if not plan.before(chunk):
            run(_cut(out, chunk), _cut(x, chunk), _cut(ids, chunk), initial_states)
        elif chunk.size > HEAD + plan.past:
            rest = chunk.size - HEAD
            run(_cut(out, chunk, HEAD, rest), _cut(x, chunk, HEAD, rest), _cut(ids, chunk, HEAD, rest), None)
    pieces = _Pieces(exchange.wait(), x, ids)
    contexts = []
    for chunk in chunks:
        count = plan.before(chunk)
        context = pieces.take(count)
        contexts.append(context)
        if count:
            head = chunk.size if chunk.size <= HEAD + plan.past else HEAD + plan.past
            state = initial_states if chunk.start == count else None
            row = joined([context.x, _cut(x, chunk, 0, head)], x, 2)
            begin = run(None, row, _join_ids(context.ids, _cut(ids, chunk, 0, head)), state)
            _cut(out, chunk, 0, head).copy_(begin[..., count:])
    if not plan.return_final_states:
        return out, None, contexts
    last = pieces.take(min(plan.past, plan.total))
    final_states = x.new_empty(x.shape[0], plan.past, x.shape[1]).transpose(1, 2)
    run(None, last.x, last.ids, initial_states if plan.total <= plan.past else None, final_states)
    return out, final_states, contexts


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
    behind = final = dx = None
    if wants_rows:  # else what stands behind a chunk has no part in anything
        behind = PartsExchange(
            *_split_alike(x, ids, dout), plan.wants(lambda chunk: (chunk.stop, chunk.stop + plan.past)), plan.group
        )
        final = _send_dfinal_states(dfinal_states, plan)
    dweight, dbias = torch.zeros_like(weight_wide), None if bias_wide is None else torch.zeros_like(bias_wide)
    dinitial = None if initial_states is None else torch.zeros_like(initial_states)

    def run(
        row: Tensor, row_dout: Tensor, row_ids: Tensor | None, state: Tensor | None, dfinal: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        return torch.ops.hipconv.causal_conv1d_bwd.default(
            row, weight_wide, bias_wide, row_dout, row_ids, state, dfinal, state is not None, plan.use_silu
        )

    chunks = [chunk for chunk in plan.mine() if chunk.size]
    for chunk, context in zip(chunks, contexts, strict=True):  # while the exchange is under way
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
        dweight += of_chunk[1]
        if dbias is not None:
            dbias += of_chunk[2]
        if dinitial is not None and chunk.start == 0:
            dinitial.copy_(of_chunk[3])
    if behind is None:
        return Gradients(None, dweight, dbias, None)
    dx = torch.empty_like(x) if dx is None else dx  # of a rank without tokens
    pieces = _Pieces(behind.wait(), x, ids)
    total_dfinal = _sum_of(final, dfinal_states, plan)
    for chunk, context in zip(chunks, contexts, strict=True):  # now the ends, which need what stands behind
        count = plan.behind(chunk)
        follows, follows_dout = pieces.take_with_dout(count)
        has_end = chunk.stop + count == plan.total and total_dfinal is not None
        if not (count or has_end):
            continue
        end = _row_around_end(chunk, context, follows, follows_dout, x, dout, ids, plan.past)
        state = initial_states if end.start == 0 else None
        of_row = run(end.x, end.dout, end.ids, state, total_dfinal if has_end else None)
        again = chunk.size - end.first
        _cut(dx, chunk, end.first, again).copy_(of_row[0][..., end.at : end.at + again])
        if dinitial is not None and chunk.start == 0 and chunk.size < plan.past:
            dinitial.copy_(of_row[3])
    if dinitial is not None and not plan.total and total_dfinal is not None and plan.group.rank == 0:
        dinitial.copy_(total_dfinal)  # the final states are the initial ones
    return Gradients(dx, dweight, dbias, dinitial)


def _send_dfinal_states(dfinal_states: Tensor | None, plan: Plan) -> Exchange | None:
    """Every rank returned the final states; their gradients meet where the tokens are."""
    if dfinal_states is None or plan.group.size == 1:
        return None
    getting, me = plan.gets_dfinal_states(), plan.group.rank
    parcel = Parcel(tuple(dfinal_states.shape), dfinal_states.dtype)
    outgoing = [[dfinal_states] if rank in getting and rank != me else [] for rank in range(plan.group.size)]
    incoming = [[parcel] if me in getting and rank != me else [] for rank in range(plan.group.size)]
    return Exchange(outgoing, incoming, plan.group, dfinal_states.device)


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
            left -= self.found[0][0].shape[-1]
            for pieces, into in zip(self.found, taken, strict=True):
                into.append(pieces.pop(0))
        whole = [joined(pieces, like, like.dim() - 1) for pieces, like in zip(taken, self._likes(), strict=True)]
        ids = None if self.ids is None else whole[1]
        return Context(whole[0], ids), whole[-1] if len(whole) > 1 + (ids is not None) else None

    def _likes(self) -> list[Tensor]:
        likes = [self.x] if self.ids is None else [self.x, self.ids]
        return [*likes, self.x] if len(self.found) > len(likes) else likes


def _split_alike(*tensors: Tensor | None) -> tuple[list[Tensor], list[int]]:
    """Those that there are, and their last axes, which are split."""
    present = [tensor for tensor in tensors if tensor is not None]
    return present, [tensor.dim() - 1 for tensor in present]


def _cut(tensor, chunk: Chunk, begin: int = 0, count: int | None = None):
    """`count` tokens of a chunk from `begin` on, or all of them, of a tensor that may be None."""
    return None if tensor is None else tensor.narrow(-1, chunk.at + begin, chunk.size - begin if count is None else count)


def _join_ids(before: Tensor | None, ids: Tensor | None) -> Tensor | None:
    return None if before is None or ids is None else torch.cat([before, ids], 1)
