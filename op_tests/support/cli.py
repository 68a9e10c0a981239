"""The table of a command's run, and types of its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


class Table:
    """Rows of one width per column, printed as they come."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self.widths = [max(width, len(title)) for title, width in columns]
        self.row(*(title for title, _ in columns))

    def row(self, *cells: object) -> None:
        texts = (
            str(cell).ljust(w) if i == 0 else str(cell).rjust(w)
            for i, (cell, w) in enumerate(zip(cells, self.widths, strict=True))
        )
        print("  ".join(texts), flush=True)


def list_of(kind: Callable[[str], object]) -> Callable[[str], list]:
    """An argparse type for one value or several, comma-separated: `--width 2,4`."""

    def parse(text: str) -> list:
        items = [kind(item) for item in text.split(",") if item]
        if not items:
            raise argparse.ArgumentTypeError(f"got '{text}', expected one value or several, comma-separated")
        return items

    return parse


def at_least(low: int) -> Callable[[str], int]:
    """An argparse type that accepts integers from `low` on."""

    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"got '{text}', expected an integer of at least {low}")
        return int(text)

    return parse


def check_state_len(parser: argparse.ArgumentParser, state_len: int, width: int) -> None:
    """Leave with an error of `parser` if a state of so many columns cannot hold the window."""
    if state_len < width - 1:
        parser.error(f"argument --state_len: got {state_len}, expected at least width - 1 = {width - 1} at --width {width}")


def choice_of(*allowed: str) -> Callable[[str], str]:
    """An argparse type that accepts the given words only."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"got '{text}', expected one of {', '.join(allowed)}")
        return text

    return parse


def flattened(groups: Sequence[list]) -> list:
    """The values of an option that takes several, each possibly a list."""
    return [item for group in groups for item in group]
