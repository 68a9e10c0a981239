"""Includes and imports go down a few floors of folders, and no arrow up. docs/architecture.md has them in words."""

from __future__ import annotations

import ast
from pathlib import Path

from support import ROOT
from hipconv.jit.registry import include_directories, included_by

CSRC, PACKAGE = ROOT / "csrc", ROOT / "python" / "hipconv"

# From the ground up. A file includes what lies on its own floor, in its own folder or below, and on lower floors.
INCLUDES = [
    ["include/device"],
    ["compat/simt", "compat/cuda"],
    ["include/matrix", "include/launch"],
    ["include/conv2d"],  # the types of a convolution's padding, activation and epilogue
    ["include"],  # the families' contracts
    ["kernels/causal_conv1d/common", "kernels/conv2d/common", "cpu/simd.h", "cpu/tile.h", "cpu/serial.h", "pybind/common"],
    ["kernels/conv2d/gemm"],
    ["kernels/conv3d/common"],
    ["kernels", "cpu", "pybind"],
]
IMPORTS = [
    ["errors", "arguments"],
    ["jit"],
    ["ops"],
    ["distributed"],
    ["reference", "nn", "drop_in", "hub", "plugins", "serving", "reference_training", "reference_update"],
    ["__init__", "__main__"],
]


def floor_of(name: str, floors: list[list[str]], separator: str) -> int:
    """The floor of the longest name on the list that `name` is or lies in."""
    found = [
        (len(place), number)
        for number, floor in enumerate(floors)
        for place in floor
        if name == place or name.startswith(place + separator)
    ]
    assert found, f"{name} is on no floor"
    return max(found)[1]


# Headers lie here, whichever backend compiles a file.
DIRECTORIES = sorted({ROOT / place for backend in ("cuda", "simt") for place in include_directories(backend)})
SOURCES = sorted(file for file in CSRC.rglob("*") if file.suffix in (".h", ".cu", ".cpp"))
ARROWS = [
    (file.relative_to(CSRC), header.relative_to(CSRC))
    for file in SOURCES
    # a backend's own files find what has one name in both there
    for header in included_by(file, sorted(DIRECTORIES, key=lambda place: not file.is_relative_to(place)))
]


def test_includes_go_down_the_floors() -> None:
    assert len(ARROWS) > 150
    up = []
    for source, header in ARROWS:
        above, below = (floor_of(str(file), INCLUDES, "/") for file in (source, header))
        # simt is what its kernels' <hip/hip_runtime.h> is: the ground floor's fences are in it
        if below > above or (below == above and source.parent != header.parent and source.parts[:2] != header.parts[:2]):
            up.append(f"{source} -> {header}")
    assert not up


def test_no_family_includes_another() -> None:
    """Neither a kernel's folder another kernel's, but for what their family has in common.
    conv3d makes frames of conv2d's parts.
    """
    shared = {"common", "gemm"}
    builds_on = {"conv3d": "conv2d"}
    across = []
    for source, header in ARROWS:
        if header.parts[0] not in ("kernels", "cpu") or header.parent == Path("cpu"):
            continue
        same = header.parts[:2] == source.parts[:2] or builds_on.get(source.parts[1]) == header.parts[1]
        if header.parent != source.parent and not (same and header.parts[2] in shared):
            across.append(f"{source} -> {header}")
    assert not across


def test_the_include_graph_has_no_circle() -> None:
    below: dict[Path, set[Path]] = {}
    for source, header in ARROWS:
        below.setdefault(source, set()).add(header)
    done: set[Path] = set()

    def walk(file: Path, way: tuple[Path, ...]) -> None:
        assert file not in way, " -> ".join(map(str, (*way, file)))
        if file not in done:
            for header in below.get(file, ()):
                walk(header, (*way, file))
            done.add(file)

    for file in below:
        walk(file, ())


def imported_by(file: Path) -> set[str]:
    """The modules of the package that a file imports when it is itself imported, by their names in it."""
    inside = file.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            place = ".".join([*inside[: len(inside) - node.level], *filter(None, [node.module])])
            found |= {place} if node.module else {".".join(filter(None, [place, alias.name])) for alias in node.names}
    return found


def test_imports_go_down_the_floors() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 40
    up = []
    for file in files:
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        for other in imported_by(file):
            if not other.startswith("__") and floor_of(other, IMPORTS, ".") > floor_of(name, IMPORTS, "."):
                up.append(f"{name} -> {other}")
    assert not up
