"""The ways of a steady iteration through a loop of AMD machine code.

A compiled loop holds more than its steady state: edges, guards, alternatives chosen by a run-time flag, rare repairs. Counting
what lies between its labels counts all of them at once. Here an iteration is followed instead, from the loop's header back to
it, branch by branch, all lanes doing the same (amd_masks.py): a guard is passed by all of them or by none, one arm of an if is
taken, and what was decided stays decided as long as its mask lives. What happens while the lanes are off is no work.

The steady iteration is taken to be one that

1. does the most work (`work`: bytes stored, say),
2. then the most of what else it is known to do (`also`: wide loads, the exponentials of an activation),
3. then enters the fewest guards, jumps that are taken when no lane is left (`s_cbranch_execz`).

So early ends drop out, guarded loads and stores are done, and edges and repairs that only some lanes of some waves need are
left out. Alternatives with the same effect remain (the type of a parameter, the two arms of an if). No rule can tell the steady
one, so `steady_ways` gives the iteration with the fewest vector instructions and the one with the most; the truth lies between.

Where it errs: arithmetic that lanes are guarded for, apart from any work, is left out (a check of its amount notices); a rare
path that stores as widely as the steady one, in the same loop and in addition to it, counts as if it were always taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import functools
import itertools
import re
from typing import NamedTuple

from machine_code.amd_code import Instruction
from machine_code.amd_masks import Masks, Register, State

Work = Callable[[Instruction], int]
Score = tuple[int, int, int, int]  # work, what else, guards (counted down), vector instructions (counted up or down)
Known = tuple[tuple[Register, bool], ...]  # a state that can be a key


# ---- blocks and loops --------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Instructions that run one after another, and the blocks that may follow."""

    instructions: tuple[Instruction, ...]
    next: int | None  # the address of the block below, if its end can be passed
    target: int | None  # that of its branch

    @property
    def successors(self) -> list[int]:
        return [address for address in dict.fromkeys((self.next, self.target)) if address is not None]


class Loop(NamedTuple):
    """A natural loop, or the whole kernel as if it were the body of one (`is_loop` false)."""

    header: int
    blocks: frozenset[int]
    is_loop: bool = True


def blocks_of(instructions: list[Instruction]) -> dict[int, Block]:
    """The reachable blocks of a kernel by address; the first is its entry."""
    unknown = [i.text for i in instructions if re.match(r"s_(setpc|swappc|call|cbranch_[gij])", i.mnemonic)]
    assert not unknown, f"control flow that is not understood: {unknown[0]}"
    starts = {instructions[0].address} | {i.target for i in instructions if i.target is not None}
    blocks: dict[int, Block] = {}
    current: list[Instruction] = []
    for instruction, below in itertools.zip_longest(instructions, instructions[1:]):
        current.append(instruction)
        if instruction.kind == "branch" or below is None or below.address in starts:
            falls = below is not None and instruction.mnemonic not in ("s_branch", "s_endpgm")
            blocks[current[0].address] = Block(tuple(current), below.address if falls else None, instruction.target)
            current = []
    entry = instructions[0].address
    reached = _reach([entry], lambda block: blocks[block].successors)
    return {address: blocks[address] for address in blocks if address in reached}


def _reach(starts: list[int], successors: Callable[[int], list[int]], but: int | None = None) -> set[int]:
    """Everything that can be reached without passing through `but`."""
    reached: set[int] = set()
    waiting = [start for start in starts if start != but]
    while waiting:
        if (block := waiting.pop()) not in reached:
            reached.add(block)
            waiting.extend(s for s in successors(block) if s not in reached and s != but)
    return reached


def _targets_of_retreats(blocks: dict[int, Block]) -> list[int]:
    """Return where edges of a walk in depth lead back on its way: all headers of loops, and few other blocks."""
    entry = next(iter(blocks))
    # The way has the blocks from the entry to here, in order, with what is left to visit after each.
    way = {entry: iter(blocks[entry].successors)}
    visited, targets = {entry}, set()
    while way:
        address, onward = next(reversed(way.items()))
        for successor in onward:
            if successor in way:
                targets.add(successor)
            elif successor not in visited:
                visited.add(successor)
                way[successor] = iter(blocks[successor].successors)
                break
        else:
            del way[address]
    return [address for address in blocks if address in targets]


def loops_of(blocks: dict[int, Block]) -> list[Loop]:
    """The natural loops, outermost first, after the whole kernel. Loops that share a header are one."""
    entry = next(iter(blocks))
    before: dict[int, list[int]] = {address: [] for address in blocks}
    for address, block in blocks.items():
        for successor in block.successors:
            before[successor].append(address)
    members: dict[int, set[int]] = {}
    for header in _targets_of_retreats(blocks):
        without = _reach([entry], lambda block: blocks[block].successors, but=header)
        latches = [latch for latch in before[header] if latch not in without]  # the header dominates them
        if latches:
            members[header] = {header} | _reach(latches, lambda block: before[block], but=header)
    loops = [Loop(header, frozenset(body)) for header, body in members.items()]
    return [Loop(entry, frozenset(blocks), is_loop=False), *sorted(loops, key=lambda loop: -len(loop.blocks))]


# ---- ways through a loop -----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """One iteration of a loop."""

    work: int
    instructions: tuple[Instruction, ...]  # in order
    nested: bool  # it passes through a loop inside, of which it counts one iteration


Live = dict[int, set[int]]  # by block: the scalar registers, 32 bits each, whose values it or a later one may read


def steady_ways(
    blocks: dict[int, Block], loops: list[Loop], loop: Loop, masks: Masks, live: Live, work: Work, also: Work
) -> tuple[Way, Way] | None:
    """The steady iterations with the fewest and with the most vector instructions; None if no iteration does any work.

    Work is what the loop does itself. Loops inside it that do some are no part of its ways. live: `live_at_entry(blocks,
    masks)`.
    """
    iteration = _Iteration(blocks, loops, loop, masks, live, work, also)
    fewest, most = iteration.best(valu=-1), iteration.best(valu=1)
    return (fewest, most) if fewest and most else None


class _Iteration:
    """The blocks of a loop as a graph without cycles, from the header to the way back to it (of a kernel: to its end)."""

    def __init__(
        self, blocks: dict[int, Block], loops: list[Loop], loop: Loop, masks: Masks, live: Live, work: Work, also: Work
    ) -> None:
        inner = [other for other in loops if other.is_loop and other.blocks < loop.blocks]
        works = {address for address in loop.blocks if any(work(i) for i in blocks[address].instructions)}
        busy = _union(other.blocks for other in inner if other.blocks & works)
        self.loop, self.masks, self.live, self.work, self.also = loop, masks, live, work, also
        self.blocks = {address: blocks[address] for address in loop.blocks - busy}
        self.inside = _union(other.blocks for other in inner)
        self.repeats = {(block, other.header) for other in [*inner, loop] if other.is_loop for block in other.blocks}
        self.stretches = {address: list(self._stretches(block)) for address, block in self.blocks.items()}
        self.through = functools.cache(self._through)  # both bests ask for the same

    def onward(self, address: int) -> list[int]:
        """The blocks that may follow in the same iteration, of this loop and of those inside."""
        return [s for s in self.blocks[address].successors if s in self.blocks and (address, s) not in self.repeats]

    def in_order(self) -> list[int]:
        """The blocks, each after all that may come before it."""
        waiting = dict.fromkeys(_reach([self.loop.header], self.onward), 0)
        for address in waiting:
            for successor in self.onward(address):
                waiting[successor] += 1
        order, ready = [], [self.loop.header]
        while ready:
            order.append(ready.pop())
            for successor in self.onward(order[-1]):
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    ready.append(successor)
        assert len(order) == len(waiting), "a loop that is entered in two places"
        return order

    def best(self, valu: int) -> Way | None:
        """The way with the best score: (see above) the most work, what else and fewest guards, then `valu` times the vector
        instructions.

        For each block and each set of masks known at its start, only the best way up to there is kept.
        """
        if self.loop.header not in self.blocks:
            return None
        reached: dict[int, dict[Known, tuple]] = {address: {} for address in self.blocks}
        # A state has its score, and the blocks so far as a linked list.
        reached[self.loop.header][((self.masks.exec, True),)] = ((0, 0, 0, 0), ())
        finished: list[tuple] = []
        for address in self.in_order():
            onward = self.onward(address)
            for known, ((work, also, guards, vector), trail) in reached[address].items():
                for successor, kept, (more_work, more_also, fewer, more_vector) in self.through(address, known):
                    total = (work + more_work, also + more_also, guards + fewer, vector + valu * more_vector)
                    way = (total, (address, trail))
                    if successor in onward:
                        if kept not in reached[successor] or total > reached[successor][kept][0]:
                            reached[successor][kept] = way
                    elif successor == (self.loop.header if self.loop.is_loop else None):
                        finished.append(way)
        score, trail = max(finished, key=lambda way: way[0], default=((0,), ()))
        if score[0] == 0:
            return None
        addresses: list[int] = []
        while trail:
            addresses.insert(0, trail[0])
            trail = trail[1]
        instructions = tuple(i for address in addresses for i in self.blocks[address].instructions)
        return Way(score[0], instructions, not self.inside.isdisjoint(addresses))

    def _stretches(self, block: Block) -> Iterator[tuple[int, int, int, Instruction | None]]:
        """Work, what else and vector instructions up to each instruction that masks may change in, itself included,
        and of the rest.
        """
        work = also = vector = 0
        for i in block.instructions:
            work, also, vector = work + self.work(i), also + self.also(i), vector + (i.kind == "valu")
            if self.masks.reads_and_writes(i)[1]:
                yield work, also, vector, i
                work = also = vector = 0
        yield work, also, vector, None

    def _through(self, address: int, known: Known) -> list[tuple[int | None, Known, Score]]:
        """Find where a block may lead, None being the kernel's end, with what is known and matters there;
        and the score of the block.
        """
        states: list[tuple[State, tuple[int, int, int]]] = [(dict(known), (0, 0, 0))]
        for more_work, more_also, more_vector, steering in self.stretches[address]:
            following: list[tuple[State, tuple[int, int, int]]] = []
            for before, (work, also, vector) in states:
                on = before[self.masks.exec]
                total = (work + on * more_work, also + on * more_also, vector + more_vector)
                following.extend((after, total) for after in (self.masks.step(steering, before) if steering else (before,)))
            states = following
        ways: dict[tuple[int | None, Known, Score], None] = {}  # without repeats, in order
        for state, (work, also, vector) in states:
            guards = -int(
                state[self.masks.exec] and self.blocks[address].instructions[-1].mnemonic.startswith("s_cbranch_exec")
            )
            for successor, after in self._leave(address, state):
                live = self.live[successor] if successor in self.blocks else set()
                kept = tuple(sorted((r, v) for r, v in after.items() if not live.isdisjoint(range(r[0], r[1] + 1))))
                ways[successor, kept, (work, also, guards, vector)] = None
        return list(ways)

    def _leave(self, address: int, state: State) -> Iterator[tuple[int | None, State]]:
        """Return where a block leads, None being the end of the kernel."""
        block = self.blocks[address]
        if block.target is None:
            yield block.next, state
        else:
            for taken, known in self.masks.branch(block.instructions[-1], state):
                yield (block.target if taken else block.next), known


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)


def live_at_entry(blocks: dict[int, Block], masks: Masks) -> Live:
    """All that a state must keep."""
    read: Live = {}  # before it is written, by block
    written: Live = {}
    always = set(range(masks.exec[0], masks.exec[1] + 1))
    for address, block in blocks.items():
        read[address], written[address] = set(), set()
        for instruction in block.instructions:
            reads, writes = masks.reads_and_writes(instruction)
            read[address] |= {i for first, last in reads for i in range(first, last + 1)} - written[address]
            written[address] |= {i for first, last in writes for i in range(first, last + 1)}
    live: Live = {address: set() for address in blocks}
    changed = True
    while changed:
        changed = False
        for address in reversed(blocks):
            needed = read[address] | set().union(*(live[s] for s in blocks[address].successors)) - written[address] | always
            if needed != live[address]:
                live[address], changed = needed, True
    return live
