"""A rehearsal of ROCm without a GPU: every module through the ROCm branch of torch's extension loader, by three versions of
clang.

It shows what cannot be seen on NVIDIA or on the host: that hipify changes nothing, that the HIP text compiles with AMD's own
headers and compilers, that what they make of it links, that the modules import, and that a launch on a machine without a GPU
raises.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from machine_code.amd_code import PACKAGES, run
from machine_code.compilers import require, require_amd_compiler
from machine_code.rocm_build import CLANGS, LINKED_ONLY, NAMED, RUNTIME, home, modules, names_of
from hipconv import registry

pytestmark = pytest.mark.skipif(
    torch.version.hip is not None or torch.version.cuda is not None, reason="needs a CPU build of torch to rehearse with"
)
BUILDS = [(clang, name) for name in registry.modules() for clang in (*CLANGS, LINKED_ONLY) if name in names_of(clang)]
of_every_build = pytest.mark.parametrize(("clang", "name"), BUILDS)


@pytest.fixture(autouse=True)
def compilers() -> None:
    require_amd_compiler()
    require("hipcc", "g++", str(RUNTIME), remedy=f"Debian: apt-get install {PACKAGES}")


@of_every_build
def test_builds_imports_and_raises_through_the_rocm_branch(clang: int, name: str) -> None:
    module = modules(clang)[name]
    assert module.by_hipify == [], "hipify wrote files, or rewrote ours"
    assert f"--offload-arch={NAMED}" in module.commands
    assert module.loaded_again
    assert module.raised, "a launch without a GPU did not raise"
    op = {"causal_conv1d": "causal_conv1d_fwd"}.get(name, name)
    assert module.raised.startswith(f"RuntimeError: hipconv: {op}: the kernel could not be launched: hipError"), module.raised
    assert not module.out_was_written
    if name == "copy":
        assert module.refused and module.refused.startswith("out: got shape (2, 4, 8)")


def test_nothing_is_written_outside_the_cache() -> None:
    modules(LINKED_ONLY)
    made = {"bin", "include", "lib", "stand", "bindings", "objects", "headers", "nothing.cu", "nothing.hipfb"}
    found = {place.name.partition("-")[0] for place in home().iterdir()}
    assert found == {*made, "cache for cuda"}


# ---- symbols -----------------------------------------------------------------------------------------------------------------


def strong_symbols(object: Path) -> set[str]:
    """Return what an object file defines so that no other one may."""
    lines = run("llvm-nm-19", "--defined-only", "--extern-only", "--format=posix", object).splitlines()
    return {name for name, kind in (line.split()[:2] for line in lines if line) if kind.isupper() and kind not in "WV"}


def shared_symbols(objects: tuple[Path, ...]) -> list[str]:
    counts = Counter(symbol for object in objects for symbol in strong_symbols(object))
    return [symbol for symbol, count in counts.items() if count > 1]


@of_every_build
def test_no_two_objects_of_a_module_define_a_symbol(clang: int, name: str) -> None:
    objects = modules(clang)[name].objects
    assert len(objects) == len(registry.sources(registry.module(name), "rocm"))
    assert not shared_symbols(objects)


@pytest.mark.parametrize(
    ("compiler", "keyword", "shared"), [("clang++-19", "", True), ("clang++-19", "inline", False), ("g++", "inline", False)]
)
def test_the_check_of_symbols_finds_a_specialisation_that_is_not_inline(
    compiler: str, keyword: str, shared: bool, tmp_path: Path
) -> None:
    text = f"template <typename T> {keyword} constexpr bool kIs = false; template <> {keyword} constexpr bool kIs<int> = true;"
    objects = []
    for number in range(2):
        source = tmp_path / f"{number}.cpp"
        source.write_text(f"{text} const bool* at{number}() {{ return &kIs<int>; }}")
        objects.append(source.with_suffix(".o"))
        run(compiler, "-std=c++17", "-c", source, "-o", objects[-1])
    assert bool(shared_symbols(tuple(objects))) is shared
