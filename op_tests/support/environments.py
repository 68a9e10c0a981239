"""Environments of chosen distributions, linked from the one that is running: nothing is fetched, and torch is not copied."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from packaging.requirements import Requirement


def distributions(*names: str) -> set[str]:
    """These and what they require, of what is installed here."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            requires = map(Requirement, importlib.metadata.requires(name) or [])
            wanted += [one.name for one in requires if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def environment_of(place: Path, *names: str) -> Path:
    """A folder with these distributions and what they require, for sys.path."""
    place.mkdir()
    for name in distributions(*names):
        for file in importlib.metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (place / top).is_symlink():
                (place / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    return place
