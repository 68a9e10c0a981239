"""`python -m hipconv tune` keeps what it measured of a card in a file: how many times longer than estimated algorithms take.

<folder>/conv2d-<arch>-<compute units>.json, where the folder is HIPCONV_CONFIG_DIR, else hipconv below XDG_CONFIG_HOME or
~/.config. It holds numbers alone. What is wrong with it makes a warning, and the card counts as one that nobody has measured.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import math
import os
from pathlib import Path
import tempfile
from typing import Any
import warnings

import torch

from . import costs
from .problem import Factors

VARIABLE = "HIPCONV_CONFIG_DIR"
AGAIN = "`python -m hipconv tune --arch this` on the card measures it again"
_FORMAT = "hipconv conv2d factors 1"


def folder() -> Path | None:
    """The folder of such files; None for a user without a home."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen and not os.path.isabs(chosen) and not chosen.startswith("~"):
        return Path(chosen).absolute()
    return _folder(chosen, os.environ.get("XDG_CONFIG_HOME", ""), os.environ.get("HOME"))


@functools.lru_cache(16)
def _folder(chosen: str, xdg: str, home_of_user: str | None) -> Path | None:
    """The folder by the environment, which every call asks; `home_of_user` is what `~` stands for, where it is set."""
    if chosen:
        if (expanded := os.path.expanduser(chosen)).startswith("~"):
            raise ValueError(f"{VARIABLE}: got '{chosen}', expected a directory: there is no home that '~' could stand for")
        return Path(expanded).absolute()
    if xdg.startswith("/"):
        return Path(xdg, "hipconv")
    home = os.path.expanduser("~")
    return Path(home, ".config", "hipconv") if home.startswith("/") else None


def file_name(arch: str, compute_units: int) -> str:
    """Name the file of a card; cards of one architecture differ in their units."""
    return f"conv2d-{arch}-{compute_units}.json"


def of_card(arch: str, compute_units: int, name: str | None = None) -> Factors | None:
    """Return what was measured of a card, or None. A process reads a file once.

    Args:
        name: the card's, as its driver has it, if one is in the machine: what another card of as many units measured does not
            count.
    """
    place = folder()
    return None if place is None else _found(place / file_name(arch, compute_units), arch, compute_units, name)


@functools.cache
def _found(path: Path, arch: str, compute_units: int, name: str | None) -> Factors | None:
    try:
        return read(path, arch, compute_units, name)
    except (OSError, ValueError, RecursionError) as error:
        if os.path.lexists(path):  # else nobody has measured, or may look
            warnings.warn(
                f"hipconv chooses algorithms of conv2d as if nobody had measured {arch}: {error}. {AGAIN}; or delete {path}.",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


def read(path: Path, arch: str, compute_units: int, name: str | None = None) -> Factors:
    """Return what a file says of this card.

    Raises OSError, or ValueError where the file is broken, of another card, or was measured against other estimates.
    """
    try:
        held: Any = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON: {error}") from None
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        raise ValueError(f'{path}: expected an object whose "format" is "{_FORMAT}"')
    expected = {"arch": arch, "compute_units": compute_units, "card": name, "costs": _costs()}
    for key, value in expected.items():
        if held.get(key) != value and value is not None:
            what = (
                "this version of hipconv estimates otherwise than the one that measured" if key == "costs" else "another card"
            )
            raise ValueError(f"{path}: {key}: got {held.get(key)!r}, expected {value!r} ({what})")
    of_kinds = held.get("factors")
    if not isinstance(of_kinds, dict) or not all(isinstance(kinds, dict) for kinds in of_kinds.values()):
        raise ValueError(f"{path}: factors: expected an object of objects of numbers")
    for algorithm, kinds in of_kinds.items():
        for kind, factor in kinds.items():
            if type(factor) not in (int, float) or not 0 < factor < math.inf:
                raise ValueError(f"{path}: factors: {algorithm}: {kind}: got {factor!r}, expected a positive number")
    return Factors(of_kinds)


def write(place: Path, arch: str, compute_units: int, name: str, problems: int, factors: Factors) -> Path:
    """Write the file of a card into a folder, which is made if it is missing; the file is there whole, or as it was."""
    held = {
        "format": _FORMAT,
        "arch": arch,
        "compute_units": compute_units,
        "card": name,
        "costs": _costs(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "problems": problems,
        "factors": factors.of_kinds,
    }
    place.mkdir(parents=True, exist_ok=True)
    path = place / file_name(arch, compute_units)
    handle, temporary = tempfile.mkstemp(dir=place, prefix=".conv2d-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(held, file, indent=1)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _found.cache_clear()
    return path


@functools.cache
def _costs() -> str:
    """Say by which estimates factors are meant: a digest of the file that makes them."""
    return hashlib.sha256(Path(costs.__file__).read_bytes()).hexdigest()[:16]
