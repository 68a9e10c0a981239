"""``validate_data=True`` checks these: the values of index tensors, read back from the device, of a call whose shapes and
dtypes are right.

Refused are numbers outside of what they count or index, for which a kernel silently takes a row for padding or leaves something
out, and slots for which rows race. Only what a kernel looks at is looked at: no entry of a block table that no row uses, and
nothing of a row that is empty or padding.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from .options import DecodeTensors, PrefillOptions

_MOST_TOKENS = 2**31 - 1


def refuse_capture(x: Tensor) -> None:
    """Raise ValueError while a graph is captured, which must not wait for the device."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "validate_data: got True while the current stream captures a graph, expected False there: to check values is to "
            "wait for the device. Validate the same call before the capture."
        )


def _refuse(place: str, value: int, expected: str) -> NoReturn:
    raise ValueError(f"{place}: got {value}, expected {expected}")


def _listed(values: Tensor | None) -> list | None:
    """On the host, as Python's integers: numbers of any dtype, compared without wrapping."""
    return None if values is None else values.tolist()


def _starts(query_start_loc: Tensor, tokens: int) -> list[int]:
    """The starts, which must not decrease, and lie within the tokens."""
    starts = query_start_loc.tolist()
    for i, (before, start) in enumerate(itertools.pairwise([0, *starts])):
        if start < before:
            _refuse(f"query_start_loc[{i}]", start, f"at least {before}: starts do not decrease")
        if start > tokens:
            _refuse(f"query_start_loc[{i}]", start, f"at most {tokens}, the tokens of x")
    return starts


class _Table:
    """The slots of all rows, in one column or in several. Without a tensor, row b has slot b."""

    def __init__(self, name: str, values: Tensor | None) -> None:
        self.name, self.two = name, values is not None and values.dim() == 2
        self.columns = values.shape[1] if values is not None and self.two else 1
        self.rows = _listed(values)

    def column(self, name: str, columns: list[int] | None, row: int) -> int:
        """The column that the argument `name` chooses for a row."""
        if columns is None:
            return 0
        if not 0 <= columns[row] < self.columns:
            _refuse(f"{name}[{row}]", columns[row], f"0 to {self.columns - 1}, a column of {self.name}")
        return columns[row]

    def slot(self, row: int, column: int) -> int:
        if self.rows is None:
            return row
        return self.rows[row][column] if self.two else self.rows[row]

    def place(self, row: int, column: int) -> str:
        return f"{self.name}[{row}, {column}]" if self.two else f"{self.name}[{row}]"


class _Use(NamedTuple):
    row: int
    place: str  # as messages name it


class _Pool:
    """The slots of a tensor, and what rows do with them: two rows may read one, and otherwise each slot is one row's."""

    def __init__(self, name: str, slots: int) -> None:
        self.name, self.slots = name, slots
        self.written: dict[int, _Use] = {}
        self.read: list[tuple[int, _Use]] = []

    def require(self, slot: int, place: str, or_padding: str = "") -> None:
        if not 0 <= slot < self.slots:
            _refuse(place, slot, f"0 to {self.slots - 1}, a slot of {self.name}{or_padding}")

    def write(self, slot: int, row: int, place: str) -> None:
        if (other := self.written.setdefault(slot, _Use(row, place))).place != place:
            _refuse(place, slot, f"a slot of its own: {other.place} is the same, and both are written")

    def read_by(self, slot: int, row: int, place: str) -> None:
        self.read.append((slot, _Use(row, place)))

    def check_races(self) -> None:
        for slot, (row, place) in self.read:
            other = self.written.get(slot)
            if other and other.row != row:
                _refuse(place, slot, f"a slot to read that no other row writes: {other.place} is the same")


def _or_padding(numbers: tuple[int | None, ...]) -> str:
    return "".join(f", or {number} for padding" for number in dict.fromkeys(numbers) if number is not None)


def check_prefill_values(x: Tensor, weight: Tensor, conv_states: Tensor, query_start_loc: Tensor, o: PrefillOptions) -> None:
    """Raise ValueError naming the first value that a call of `causal_conv1d_fn` cannot mean. Waits for the device."""
    starts = _starts(query_start_loc, x.shape[1])
    pool = _Pool("conv_states", conv_states.shape[0])
    to_write = _Table("cache_indices", o.cache_indices)
    to_read = to_write if o.cache_indices_in is None else _Table("cache_indices_in", o.cache_indices_in)
    first_columns, last_columns = _listed(o.block_idx_first_scheduled_token), _listed(o.block_idx_last_scheduled_token)
    read_columns, computed, flags = _listed(o.initial_state_idx), _listed(o.num_computed_tokens), _listed(o.has_initial_state)
    or_padding = _or_padding((o.pad_slot_id, o.null_block_id))

    def require(slot: int, table: _Table, b: int, column: int) -> None:
        if table.rows is None and slot >= pool.slots:
            count = len(starts) - 1
            raise ValueError(
                f"cache_indices: got None for {count} sequences, expected indices: conv_states has {pool.slots} slots"
            )
        pool.require(slot, table.place(b, column), or_padding)

    for b, (begin, end) in enumerate(itertools.pairwise(starts)):
        if begin == end:
            continue
        column = to_read.column("initial_state_idx", read_columns, b)
        read = to_read.slot(b, column)
        if read in (o.pad_slot_id, o.null_block_id):
            continue
        last = to_write.column("block_idx_last_scheduled_token", last_columns, b)
        final = to_write.slot(b, last)
        if final == o.pad_slot_id and final != o.null_block_id:
            continue
        require(read, to_read, b, column)
        states = [(final, last)]
        if first_columns is not None and computed is not None:
            first = to_write.column("block_idx_first_scheduled_token", first_columns, b)
            if not 0 <= computed[b] <= _MOST_TOKENS:
                _refuse(f"num_computed_tokens[{b}]", computed[b], f"0 to {_MOST_TOKENS}, a number of tokens")
            block = o.block_size_to_align
            crossed = (computed[b] + end - begin - 1) // block - computed[b] // block  # boundaries before the end
            states += [(to_write.slot(b, c), c) for c in range(last - 1, max(first, last - crossed) - 1, -1)]
        for slot, column_of_state in states:
            if slot not in (o.pad_slot_id, o.null_block_id):
                require(slot, to_write, b, column_of_state)
                if weight.shape[1] > 1:
                    pool.write(slot, b, to_write.place(b, column_of_state))
        if flags and flags[b]:
            pool.read_by(read, b, to_read.place(b, column))
    pool.check_races()


def check_update_values(
    x: Tensor, weight: Tensor, conv_state: Tensor, given: DecodeTensors, max_query_len: int, padding: tuple[int | None, ...]
) -> None:
    """Raise ValueError naming the first value that a call of `causal_conv1d_update` cannot mean. Waits for the device."""
    if given.query_start_loc is None:
        counts = [x.shape[2] if x.dim() == 3 else 1] * x.shape[0]
    else:
        counts = [end - begin for begin, end in itertools.pairwise(_starts(given.query_start_loc, x.shape[0]))]
    past, state_len = weight.shape[1] - 1, conv_state.shape[2]
    pool = _Pool("conv_state", conv_state.shape[0])
    windows = None
    if given.intermediate_conv_window is not None and past:
        windows = _Pool("intermediate_conv_window", given.intermediate_conv_window.shape[0])
    to_write = _Table("conv_state_indices", given.conv_state_indices)
    to_read = to_write if given.conv_state_indices_in is None else _Table("conv_state_indices_in", given.conv_state_indices_in)
    read_columns, write_columns = _listed(given.initial_state_idx), _listed(given.block_idx_last_scheduled_token)
    accepted, window_slots = (
        _listed(given.num_accepted_tokens),
        _Table("intermediate_state_indices", given.intermediate_state_indices),
    )
    links = {
        "retrieve_next_token": _listed(given.retrieve_next_token),
        "retrieve_next_sibling": _listed(given.retrieve_next_sibling),
    }
    numbers: tuple[int | None, ...] = () if given.conv_state_indices is None else padding

    for b, count in enumerate(counts):
        if 0 < max_query_len < count:
            _refuse("max_query_len", max_query_len, f"at least {count}, the tokens of row {b}")
        if count == 0:
            continue
        read_column = to_read.column("initial_state_idx", read_columns, b)
        read = to_read.slot(b, read_column)
        if read in numbers:
            continue
        write_column = to_write.column("block_idx_last_scheduled_token", write_columns, b)
        write = to_write.slot(b, write_column)
        if write in numbers:
            continue
        pool.require(read, to_read.place(b, read_column), _or_padding(numbers))
        pool.require(write, to_write.place(b, write_column), _or_padding(numbers))
        if past and given.retrieve_next_token is None:  # or else no state is written
            pool.write(write, b, to_write.place(b, write_column))
            pool.read_by(read, b, to_read.place(b, read_column))

        if accepted is not None and past:
            kept = state_len - (past - 1)
            if not 1 <= accepted[b] <= kept:
                _refuse(
                    f"num_accepted_tokens[{b}]", accepted[b], f"1 to {kept}, what the {state_len} columns of a state can hold"
                )
            if count > kept:
                raise ValueError(
                    f"query_start_loc: got {count} tokens of row {b}, expected at most {kept}, what a state can hold"
                )
        if windows and given.intermediate_conv_window is not None:
            slot, place = window_slots.slot(b, 0), window_slots.place(b, 0)
            windows.require(slot, place)
            windows.write(slot, b, place)
            if count > given.intermediate_conv_window.shape[1]:
                raise ValueError(
                    f"intermediate_conv_window: got shape {tuple(given.intermediate_conv_window.shape)}, expected (slots, at "
                    f"least {count} tokens, …), the tokens of row {b}"
                )
        for name, values in links.items():
            for t, value in enumerate(values[b] if values else ()):
                if value != -1 and not t < value < count:
                    _refuse(f"{name}[{b}, {t}]", value, f"-1 for none, or a token after {t} of the row's {count}")
    pool.check_races()
