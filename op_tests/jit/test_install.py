"""The ways to install: a wheel used from another directory, an sdist, a checkout on PYTHONPATH.
None needs a compiler to import.
"""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys
import zipfile

import pytest

from support import ROOT
from support.backends import EVERYTHING
from support.environments import environment_of
import hipconv

IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".whl", ".hypothesis"
)

CALL = """
import torch, hipconv
x, weight = torch.randn(2, 5, 9), torch.randn(5, 4)
out = torch.empty_like(x)
hipconv.causal_conv1d_fwd(out, x, weight)
assert torch.allclose(out.double(), hipconv.reference.causal_conv1d(x, weight), atol=1e-5)
print(hipconv.__file__)
"""

BUILD = """
import torch, hipconv
from hipconv import jit, targets
x, out = torch.randn(2, 4, 8), torch.empty(2, 4, 8)
jit.module("copy", targets.of(x.device)).copy(out, x, 0)
assert torch.equal(out, x)
print(hipconv.__file__)
"""  # the smallest module


def python(*arguments: str, cwd: Path, path: Path | None = None, **variables: str) -> str:
    """Run this Python somewhere else, `path` before everything that is installed; its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    if path:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, because a build leaves its traces beside them."""
    place = tmp_path_factory.mktemp("checkout") / "hipconv"
    shutil.copytree(ROOT, place, ignore=IGNORED)
    return place


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    python("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", ".", cwd=checkout)
    return next((checkout / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    python("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=site)
    return site


def test_the_wheel_carries_every_source_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("hipconv/") for name in archive.namelist() if name.startswith("hipconv/")}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "csrc").rglob("*") if file.is_file()}
    package = ROOT / "python" / "hipconv"
    modules = {str(file.relative_to(package)) for file in package.rglob("*.py")}
    assert packed == sources | modules | {"jit_config.json", "py.typed"}


def test_a_wheel_builds_and_runs_from_another_directory(installed: Path, tmp_path: Path) -> None:
    output = python("-c", BUILD, cwd=tmp_path, path=installed, HIPCONV_CACHE_DIR=str(tmp_path / "cache"))
    assert Path(output).is_relative_to(installed)
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 1
    assert not list(installed.rglob("*.so")), "built into the installation"


def test_importing_needs_no_compiler(installed: Path, tmp_path: Path) -> None:
    script = "import hipconv; print(hipconv.__version__)"
    version = python("-c", script, cwd=tmp_path, path=installed, PATH="/nonexistent", HIPCONV_CACHE_DIR=str(tmp_path / "cache"))
    assert f"hipconv-{version}.dist-info" in {place.name for place in installed.iterdir()}
    assert not (tmp_path / "cache").exists()


def test_a_checkout_runs_uninstalled(checkout: Path, tmp_path: Path) -> None:
    output = python("-c", CALL, cwd=tmp_path, path=checkout / "python")
    assert Path(output).is_relative_to(checkout)


def test_the_sdist_makes_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    script = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    name = python("-c", script, cwd=checkout).splitlines()[-1]
    python("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", name, cwd=tmp_path)
    again = next((tmp_path / "dist").glob("*.whl"))
    contents = []
    for place in (wheel, again):
        with zipfile.ZipFile(place) as archive:
            contents.append({entry: archive.read(entry) for entry in archive.namelist() if not entry.endswith("RECORD")})
    assert contents[0] == contents[1]


# ---- a clean environment -----------------------------------------------------------------------------------------------------

USER = """
import importlib.metadata, sys
from pathlib import Path
import torch, hipconv
assert Path(hipconv.__file__).is_relative_to(sys.prefix), hipconv.__file__
assert importlib.metadata.version("hipconv") == hipconv.__version__
weight, state = torch.randn(4, 3), torch.zeros(1, 4, 2)
out = hipconv.causal_conv1d(torch.randn(1, 4, 6), weight)
assert out.shape == (1, 4, 6)
points = {group: [point for point in importlib.metadata.entry_points(group=group) if point.dist.name == "hipconv"]
          for group in ("vllm.general_plugins", "sglang.srt.plugins")}
for group, (point,) in points.items():
    point.load()()
    print(group, point.name, point.value)
"""


# The sdist makes the same wheel, which a test above holds it to: installing it is nightly.
@pytest.mark.parametrize("kind", ["wheel", *(["sdist"] if EVERYTHING else [])])
def test_installed_in_a_clean_environment_it_runs_from_another_directory(
    kind: str, checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    """A virtual environment that has torch, what torch and hipconv require, and the distribution that was built."""
    package = wheel
    if kind == "sdist":
        script = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(tmp_path)!r}))"
        package = tmp_path / python("-c", script, cwd=checkout).splitlines()[-1]
    environment = tmp_path / "venv"
    python("-m", "venv", "--without-pip", str(environment), cwd=tmp_path)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "torch.pth").write_text(f"{environment_of(tmp_path / 'packages', 'torch', 'numpy', 'ninja', 'setuptools')}\n")
    clean = environment / "bin" / "python"
    options = ["--no-deps", "--no-index", "--no-build-isolation"]
    python("-m", "pip", "--python", str(clean), "install", "-q", *options, str(package), cwd=tmp_path)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (["-c", USER], ["-m", "hipconv", "list"]):
        done = subprocess.run([str(clean), *command], cwd=elsewhere, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if command[0] == "-c":
            assert done.stdout.split() == [
                "vllm.general_plugins", "hipconv", "hipconv.plugins.vllm:register",
                "sglang.srt.plugins", "hipconv", "hipconv.plugins.sglang:register",
            ]  # fmt: skip
    assert not list(elsewhere.iterdir())


def test_one_version_everywhere() -> None:
    version = hipconv.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert (
        next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")).split()[1] == version
    )


def required(wheel: Path, name: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(archive.read(entry).decode() for entry in archive.namelist() if entry.endswith("METADATA"))
    return [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith(f"Requires-Dist: {name}")]


def test_torch_is_required_from_2_4_on_and_never_pinned(wheel: Path) -> None:
    assert required(wheel, "torch") == ["torch>=2.4"]


def test_what_keeps_torch_from_warning_when_it_is_imported_is_required(wheel: Path) -> None:
    """torch itself does not ask for numpy, and says in a newcomer's first lines that it is not there."""
    assert required(wheel, "numpy") == ["numpy"]
