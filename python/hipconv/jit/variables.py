"""Environment variables that switch something on or off."""

from __future__ import annotations

import os


def switch(name: str, default: bool) -> bool:
    """Return what HIPCONV_<name> says, or `default` where it is not set."""
    value = os.environ.get(f"HIPCONV_{name}", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"HIPCONV_{name}: got '{value}', expected 0 or 1")
    return value == "1" if value else default
