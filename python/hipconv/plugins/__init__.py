"""hipconv in inference engines: each finds its module here by an entry point, and calls its `register` in every process it
starts.

HIPCONV_PLUGINS=0 leaves the engines as they are; =all takes AITER's fused decode too, which is one launch where ours is
several.
"""

from __future__ import annotations

from collections.abc import Iterable
import os
from typing import Any


def wanted() -> tuple[bool, bool]:
    """Tell whether HIPCONV_PLUGINS leaves the engines' functions to hipconv, and whether AITER's."""
    value = os.environ.get("HIPCONV_PLUGINS", "")
    if value not in ("", "0", "1", "all"):
        raise ValueError(f"HIPCONV_PLUGINS: got '{value}', expected 0, 1 or all")
    return value != "0", value == "all"


def cut_to_sequences(arguments: dict[str, Any], of_sequences: Iterable[str]) -> dict[str, Any]:
    """Cut what has an element a sequence to as many as query_start_loc has: the engines pass longer arrays, and read those."""
    starts = arguments.get("query_start_loc")
    if starts is None:
        return arguments
    return arguments | {name: value[: len(starts) - 1] for name in of_sequences if (value := arguments.get(name)) is not None}
