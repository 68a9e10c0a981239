"""jit_config.json, the registry of modules: data only, checked here, never evaluated.

Each module names globs below csrc/ and compiler flags: `kernels` (HIP, for rocm, cuda and simt), `cpu` (C++, for the cpu
backend), `pybind` (the binding, for all) and `flags`. Without `cpu` files the module is for GPUs (and simt) alone. A file that
several globs match counts for the first: what compiles longest is to start first.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import json
import os
from pathlib import Path
import re
from typing import NamedTuple

from ..errors import BadRegistry, UnknownModule

_KEYS = ("kernels", "cpu", "pybind", "flags")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parent.parent


class Module(NamedTuple):
    """One entry of the registry."""

    name: str
    kernels: list[str]
    cpu: list[str]
    pybind: list[str]
    flags: list[str]


def source_root() -> Path:
    """The directory that holds jit_config.json and csrc/: the package when installed, the repository when run from it."""
    for place in (_PACKAGE, _PACKAGE.parent.parent):
        if (place / "jit_config.json").is_file():
            return place
    raise BadRegistry(f"jit_config.json is neither in {_PACKAGE} nor in {_PACKAGE.parent.parent}; reinstall hipconv")


@functools.cache
def modules() -> dict[str, Module]:
    """Every module, by name."""
    path = source_root() / "jit_config.json"
    return parse(path.read_text(), str(path))


def module(name: str) -> Module:
    """The module called `name`."""
    if name not in modules():
        raise UnknownModule(name, sorted(modules()))
    return modules()[name]


def parse(text: str, where: str) -> dict[str, Module]:
    """Read and check a registry; `where` names it in errors."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise BadRegistry(f"{where}: not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise BadRegistry(f"{where}: expected an object of modules, got {type(entries).__name__}")
    found = {}
    for name, entry in entries.items():
        if not name.isidentifier():  # it becomes part of the extension's name and of its directory's
            raise BadRegistry(f"{where}: module '{name}': expected a name of letters, digits and underscores")
        if not isinstance(entry, dict) or set(entry) != set(_KEYS):
            got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
            raise BadRegistry(f"{where}: module '{name}': got {got}, expected exactly the keys {', '.join(_KEYS)}")
        for key, values in entry.items():
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise BadRegistry(f"{where}: module '{name}': {key}: expected a list of strings, got {values!r}")
            if key != "flags" and any(not value or value.startswith("/") or ".." in value for value in values):
                raise BadRegistry(f"{where}: module '{name}': {key}: expected globs below csrc/, got {values!r}")
        found[name] = Module(name, **entry)
    return found


def serves(module: Module, backend: str) -> bool:
    """Tell whether `module` has kernels for `backend`."""
    return bool(module.cpu if backend == "cpu" else module.kernels)


def sources(module: Module, backend: str) -> list[Path]:
    """The files that `backend` compiles for `module`, relative to the source root, none if it has no kernels for it.

    Compilers start in this order: with the binding, and then as the globs stand, which begin with what takes longest. What runs
    the kernels of simt comes last.
    """
    if not serves(module, backend):
        return []
    root = source_root()

    def matching(patterns: list[str]) -> list[Path]:
        found: list[Path] = []
        for pattern in patterns:
            matches = sorted(match for match in (root / "csrc").glob(pattern) if match.is_file())
            if not matches:
                raise BadRegistry(
                    f"module '{module.name}': no file matches csrc/{pattern} below {root}; reinstall hipconv if they are gone"
                )
            found += [match.relative_to(root) for match in matches]
        return found

    kernels = matching(module.cpu if backend == "cpu" else module.kernels)
    of_backend = sorted((root / "csrc/compat/simt").rglob("*.cpp")) if backend == "simt" else []
    return list(dict.fromkeys([*matching(module.pybind), *kernels, *(file.relative_to(root) for file in of_backend)]))


def include_directories(backend: str) -> list[str]:
    """Return where `backend` looks for headers, relative to the source root. csrc/compat/ never reaches ROCm, nor hipify."""
    return ["csrc/include", *{"cuda": ["csrc/compat/cuda"], "simt": ["csrc/compat/simt"]}.get(backend, [])]


def included_by(file: Path, directories: Sequence[Path]) -> list[Path]:
    """The headers that a file includes and that lie beside it or in one of the directories; no others, such as the system's."""
    found = []
    for name in _INCLUDE.findall(file.read_text(encoding="utf-8", errors="replace")):
        here = next((place / name for place in (file.parent, *directories) if (place / name).is_file()), None)
        if here is not None:
            found.append(Path(os.path.normpath(here)))
    return found


def headers(module: Module, backend: str) -> list[Path]:
    """The headers that `backend` reads for `module`, relative to the source root: what its sources include,
    and what those include.
    """
    root = source_root()
    searched = [root / directory for directory in include_directories(backend)]
    found: dict[Path, None] = {}
    unread = [root / source for source in sources(module, backend)]
    while unread:
        for header in included_by(unread.pop(), searched):
            if header not in found:
                found[header] = None
                unread.append(header)
    return sorted(header.relative_to(root) for header in found)


def staged_names(module: Module, backend: str) -> dict[Path, Path]:
    """Return where each source is compiled, relative to a copy of the source root: kernels are C++ where no GPU compiler takes
    them, and as torch's loader names an object by its file's name alone, a name that another object has begins with its
    directories'.
    """
    on_gpu = backend in ("rocm", "cuda")
    places: dict[Path, Path] = {}
    objects: set[tuple[str, bool]] = set()
    for source in sources(module, backend):
        place = source if on_gpu or source.suffix != ".cu" else source.with_suffix(".cpp")
        parents = [parent.name for parent in source.parents if parent.name]
        while (place.stem, place.suffix == ".cu") in objects:
            place = place.with_name(f"{parents.pop(0)}_{place.name}")
        objects.add((place.stem, place.suffix == ".cu"))
        places[source] = place
    return places
