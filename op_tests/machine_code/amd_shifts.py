"""A wrong bit that clang 19 made: shifts of packed halves by two amounts, of which the second half's result is not thrown away.

Bytes of a bf16 were shifted by `v_pk_lshrrev_b16 v37, s63, v45` with s63 = 0x00ff0008: the low half by 8, as meant; the high
half, which nobody had asked for, by 15, which leaves its sign. `v_lshl_or_b32 v36, v37, 24, v36` then used all 32 bits, and bit
8 of the next element was set where that sign was. `leaking_shifts` finds such pairs of instructions in a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import re

from machine_code.amd_code import Instruction

SHIFT = re.compile(r"v_pk_(lshl|lshr|ashr)rev_[bi]16")
_HALVES = re.compile(
    r"v_pk_\w+_[biuf]16|v_\w+_[biuf]16(_\w+)?|(global|flat|buffer)_store_(short|b16)\w*|ds_(write|store)_b16\w*"
)


def _registers(operand: str) -> set[str]:
    """v37 and v38 of v[37:38]; nothing of a constant."""
    if one := re.fullmatch(r"-?\|?([vsa]\d+)\|?", operand):
        return {one[1]}
    if some := re.fullmatch(r"([vsa])\[(\d+):(\d+)\]", operand):
        return {f"{some[1]}{number}" for number in range(int(some[2]), int(some[3]) + 1)}
    return set()


def _constants(instructions: Iterable[Instruction]) -> dict[str, set[int]]:
    """Return what the kernel ever puts into a register as a constant."""
    found: dict[str, set[int]] = {}
    for i in instructions:
        if re.fullmatch(r"[sv]_mov_b32|s_movk_i32", i.mnemonic) and re.fullmatch(r"-?\d+|0x[0-9a-f]+", i.operands[1]):
            value = int(i.operands[1], 0)
            if i.mnemonic == "s_movk_i32" and value >> 15 == 1:  # written as 16 bits, sign-extended
                value -= 1 << 16
            found.setdefault(i.operands[0], set()).add(value & 0xFFFFFFFF)
    return found


def _halves_differ(shift: Instruction, constants: dict[str, set[int]]) -> bool:
    """Tell whether the amounts are constants that are not the same modulo 16 in both halves."""
    amount = shift.operands[1]
    if re.fullmatch(r"\d+", amount):  # a small constant lies in the low half; op_sel_hi:[0,...] takes that for both
        return int(amount) % 16 != 0 and "op_sel_hi:[0," not in shift.text
    values = {int(amount, 16)} if amount.startswith("0x") else constants.get(amount, set())
    return any((value ^ value >> 16) & 15 for value in values)


def leaking_shifts(instructions: Sequence[Instruction]) -> list[tuple[Instruction, Instruction]]:
    """Each packed shift whose halves are shifted by different constants,
    with an instruction that uses the result as 32 bits.
    """
    constants, found = _constants(instructions), []
    for number, shift in enumerate(instructions):
        if not SHIFT.fullmatch(shift.mnemonic) or not _halves_differ(shift, constants):
            continue
        result = shift.operands[0]
        for user in instructions[number + 1 :]:
            reads = user.operands if user.kind == "store" else user.operands[1:]
            if any(result in _registers(operand) for operand in reads) and not _HALVES.fullmatch(user.mnemonic):
                found.append((shift, user))
                break
            if user.kind != "store" and result in _registers(user.operands[0]):
                break
    return found
