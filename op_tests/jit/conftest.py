"""The checkouts and the compiler that the tests of the JIT engine are given."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest

from jit.probe import ANSWER, Probe, write_compiler


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_compiler(tmp_path_factory.mktemp("compiler") / "logging-g++")


@pytest.fixture
def probe(tmp_path: Path, compiler: Path) -> Probe:
    """A checkout with nothing built."""
    return Probe(tmp_path, compiler).create()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> Path:
    """A directory with a checkout and a cache that holds its CPU build, to be copied."""
    directory = tmp_path_factory.mktemp("built")
    assert Probe(directory, compiler).create().python(ANSWER) == "42\n"
    return directory


@pytest.fixture
def warm(built: Path, tmp_path: Path, compiler: Path) -> Probe:
    """A checkout with its CPU build in the cache. Nothing is logged yet."""
    for name in ("checkout", "cache"):
        shutil.copytree(built / name, tmp_path / name)
    return Probe(tmp_path, compiler)
