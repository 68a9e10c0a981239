"""hipconv in inference engines: each finds its module here by an entry point, and calls its `register` in every process it
starts.

HIPCONV_PLUGINS=0 leaves the engines as they are; =all takes AITER's fused decode too, which is one launch where ours is
several.
"""

from __future__ import annotations

import os


def wanted() -> tuple[bool, bool]:
    """Tell whether HIPCONV_PLUGINS leaves the engines' functions to hipconv, and whether AITER's."""
    value = os.environ.get("HIPCONV_PLUGINS", "")
    if value not in ("", "0", "1", "all"):
        raise ValueError(f"HIPCONV_PLUGINS: got '{value}', expected 0, 1 or all")
    return value != "0", value == "all"
