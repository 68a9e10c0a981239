"""Packages of others that scripts here run on hipconv. They come from PyPI through pip;
nothing of them is kept in this repository.
"""

from __future__ import annotations

import os
from pathlib import Path
import subprocess
import sys
import tarfile

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def provide(directory: Path, *modules: str, **requirements: str) -> Path:
    """Make modules importable, those of this Python first, else from the folder that it returns, where pip installs what is not
    there.

    A module's distribution has its name, unless `requirements` has another for it.
    """
    tools = directory / "tools"
    wanted = dict.fromkeys(modules) | requirements
    if lacking := [requirement or module for module, requirement in wanted.items() if not (tools / module).exists()]:
        subprocess.run([*PIP, "install", "--no-deps", "--target", str(tools), *lacking], check=True)
    if str(tools) not in sys.path:
        sys.path.append(str(tools))
    return tools


def sdist(directory: Path, requirement: str, skips_build: str) -> Path:
    """The folder of an sdist, unpacked below `directory`; pip is asked only if it is not there.

    skips_build: the environment variable that keeps its setup.py from compiling, or from looking for something compiled.
    """
    folder = directory / requirement.replace("-", "_").replace("==", "-")
    if not folder.exists():
        # pip learns the sdist's name by running its setup.py, which imports them.
        tools = provide(directory, "wheel", "packaging")
        plain = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        environment = os.environ | {"PYTHONPATH": str(tools), skips_build: "TRUE"}
        subprocess.run([*PIP, "download", *plain, "-d", str(directory), requirement], check=True, env=environment)
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    return folder
