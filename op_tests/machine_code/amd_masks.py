"""This follows what AMD machine code does to the lane masks that steer it, as far as it is known.

Divergent code is steered by masks in scalar registers: a comparison makes one, `s_and_saveexec` turns off the lanes that do not
take part and keeps the old mask to restore, `s_cbranch_execz` jumps over what no lane would do. Here all lanes of a wave do the
same, so a mask is all ones (True), all zeros (False), or not known (absent); where the execution mask or a branch would depend
on one that is not known, there are two ways on, and each remembers what it assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import functools
import itertools
import re

from machine_code.amd_code import Instruction

Register = tuple[int, int]  # the numbers of its first and its last 32 bits
State = dict[Register, bool]

SCC = (253, 253)
_NAMED = {
    "vcc": (106, 107),
    "vcc_lo": (106, 106),
    "vcc_hi": (107, 107),
    "exec": (126, 127),
    "exec_lo": (126, 126),
    "exec_hi": (127, 127),
}
_LOGIC: dict[str, Callable[..., bool]] = {
    "mov": lambda a: a,
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "nand": lambda a, b: not (a and b),
    "nor": lambda a, b: not (a or b),
    "xnor": lambda a, b: a == b,
    "and_not1": lambda a, b: a and not b,
    "or_not1": lambda a, b: a or not b,
    "and_not0": lambda a, b: not a and b,
    "or_not0": lambda a, b: not a or b,
}
_OLD_NAMES = {"andn2": "and_not1", "orn2": "or_not1", "andn1": "and_not0", "orn1": "or_not0"}  # before gfx11
_LOGIC_NAME = re.compile(r"s_(?P<operation>\w+?)(?P<exec>_saveexec|_wrexec)?_b(?:32|64)$")
_NO_DESTINATION = re.compile(r"s_(cmp|bitcmp|store|buffer_store|setreg|sendmsg|set_gpr)")
_KEEPS_SCC = re.compile(r"s_(mov|cmov|cselect|mul_i|mul_hi|mul_u|pack|brev|ff|ctz|cls|flbit|sext|bitset|getpc)")
_READS_SCC = re.compile(r"s_(cselect|cmov|addc|subb|add_co_ci|sub_co_ci|cbranch_scc)")
_CARRY_OUT = re.compile(r"v_(add|addc|sub|subb|subrev|subbrev)_co|v_mad_[ui]64|v_div_scale")


@functools.cache
def _register(operand: str) -> Register | None:
    """The scalar register that an operand names."""
    found = re.fullmatch(r"s(?:(\d+)|\[(\d+):(\d+)\])", operand)
    if not found:
        return _NAMED.get(operand)
    return (int(found[1]), int(found[1])) if found[1] else (int(found[2]), int(found[3]))


@functools.cache
def _logic_of(name: str) -> tuple[Callable[..., bool], str | None] | None:
    """Return what an instruction of that name does to masks,
    and `_saveexec` or `_wrexec` if it does it to the execution mask too.
    """
    logic = _LOGIC_NAME.match(name)
    operation = logic and _LOGIC.get(_OLD_NAMES.get(logic["operation"], logic["operation"]))
    return (operation, logic["exec"]) if logic and operation else None


@functools.cache
def _outcomes(operation: Callable[..., bool], values: tuple[bool | None, ...]) -> list[tuple[tuple[bool, ...], bool]]:
    """The results for all that the unknown values may be."""
    outcomes = []
    for guess in itertools.product((True, False), repeat=values.count(None)):
        guesses = iter(guess)
        outcomes.append((guess, operation(*(next(guesses) if value is None else value for value in values))))
    return outcomes


@functools.cache
def _touches(register: Register, writes: frozenset[Register]) -> bool:
    return any(register[0] <= last and first <= register[1] for first, last in writes)


class Masks:
    """The masks of a wave of 64 or 32 lanes."""

    def __init__(self, wave_size: int) -> None:
        self.exec = _NAMED["exec" if wave_size == 64 else "exec_lo"]
        self.vcc = _NAMED["vcc" if wave_size == 64 else "vcc_lo"]
        self.reads_and_writes = functools.cache(self._reads_and_writes)

    def _reads_and_writes(self, instruction: Instruction) -> tuple[frozenset[Register], frozenset[Register]]:
        name, kind = instruction.mnemonic, instruction.kind
        registers = [_register(operand) for operand in instruction.operands]
        written = 1 if kind in ("salu", "smem", "valu") and not _NO_DESTINATION.match(name) else 0
        if _CARRY_OUT.match(name):
            written = 2
        reads, writes = set(registers[written:]), set(registers[:written])
        if "saveexec" in name or "wrexec" in name or name.startswith("v_cmpx"):
            writes.add(self.exec)
        if kind == "salu" and not _KEEPS_SCC.match(name):
            writes.add(SCC)
        if _READS_SCC.match(name):
            reads.add(SCC)
        if name.startswith("s_cbranch_vcc"):
            reads.add(self.vcc)
        return frozenset(r for r in reads if r), frozenset(w for w in writes if w)

    def step(self, instruction: Instruction, state: State) -> Iterator[State]:
        """The states that may follow: several where the execution mask or a branch depends on something unknown."""
        name, operands = instruction.mnemonic, instruction.operands
        writes = self.reads_and_writes(instruction)[1]
        if not writes:
            yield state
            return
        after = {r: v for r, v in state.items() if not _touches(r, writes)}
        if logic := _logic_of(name):
            yield from self._logic(instruction, *logic, state, after)
        elif name.startswith("v_cmpx"):
            yield from (after | {self.exec: passed} for passed in {state[self.exec], False})
        elif name.startswith("v_cmp") and not state[self.exec]:
            yield after | dict.fromkeys(writes, False)  # lanes that are off compare as false
        elif name.startswith("s_cselect"):
            values = {self._value(operands[1], state)} if state.get(SCC, True) else set()
            values |= {self._value(operands[2], state)} if not state.get(SCC, False) else set()
            value = values.pop() if len(values) == 1 else None
            yield after if value is None else after | dict.fromkeys(writes, value)
        elif self.exec in writes:  # an instruction that is not known here
            yield from (after | {self.exec: on} for on in (True, False))
        else:
            yield after

    @staticmethod
    def _value(operand: str, state: State) -> bool | None:
        register = _register(operand)
        return state.get(register) if register else {"-1": True, "0": False}.get(operand)

    def _logic(
        self, instruction: Instruction, operation: Callable[..., bool], on_exec: str | None, state: State, after: State
    ) -> Iterator[State]:
        destination = _register(instruction.operands[0])
        sources = [*instruction.operands[1:], *(["exec" if self.exec == _NAMED["exec"] else "exec_lo"] if on_exec else [])]
        values = [self._value(source, state) for source in sources]
        unknown = [_register(source) for source, value in zip(sources, values, strict=True) if value is None]
        outcomes = _outcomes(operation, tuple(values))
        sets_scc = SCC in self.reads_and_writes(instruction)[1]
        if on_exec or destination in (
            self.exec,
            self.vcc,
        ):  # it steers: each way on assumes what the unknown ones are, for good
            for assumed, result in outcomes:
                done = after | {r: v for r, v in zip(unknown, assumed, strict=True) if r and r != destination}
                if destination:
                    done[destination] = state[self.exec] if on_exec == "_saveexec" else result
                if on_exec:
                    done[self.exec] = result
                yield done | ({SCC: result} if sets_scc else {})
        elif destination and len({result for _, result in outcomes}) == 1:
            yield after | {destination: outcomes[0][1]} | ({SCC: outcomes[0][1]} if sets_scc else {})
        else:
            yield after

    def branch(self, instruction: Instruction, state: State) -> Iterator[tuple[bool, State]]:
        """Tell whether a branch may be taken, with what is known then."""
        condition = re.match(r"s_cbranch_(exec|vcc|scc)(z|nz|0|1)$", instruction.mnemonic)
        if not condition:
            yield True, state
            return
        register = {"exec": self.exec, "vcc": self.vcc, "scc": SCC}[condition[1]]
        for value in (True, False):
            if state.get(register, value) == value:
                yield value == (condition[2] in ("nz", "1")), state | {register: value}
