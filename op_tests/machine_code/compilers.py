"""The compilers that tests of machine code need: without them a test fails in CI and is skipped elsewhere."""

from __future__ import annotations

import os

import pytest

from machine_code.amd_code import PACKAGES, TOOLS, missing


def require(*tools: str, remedy: str) -> None:
    """Fail in CI, skip elsewhere, if one of these commands or files is missing."""
    if lacking := missing(*tools):
        reason = f"{', '.join(lacking)} not found; {remedy}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def require_amd_compiler() -> None:
    require(*TOOLS, remedy=f"Debian: apt-get install {PACKAGES}")
