"""A pure-Python install: copies csrc/ and jit_config.json into the package. Kernels are compiled at first use,
by hipconv.jit.
"""

from pathlib import Path
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithSources(build_py):
    """An editable install reads csrc/ where it lies; any other carries a copy."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib, "hipconv")
        shutil.rmtree(package / "csrc", ignore_errors=True)  # an earlier build's copy may hold files that are gone
        shutil.copytree(ROOT / "csrc", package / "csrc")
        shutil.copy(ROOT / "jit_config.json", package)


setup(cmdclass={"build_py": BuildWithSources})
