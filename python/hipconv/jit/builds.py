"""A build, from the request to the artefact, as one value: what goes into it, and the name by which its artefact is known."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
import re
import sysconfig

import torch

from ..errors import BadRegistry
from . import registry, toolchain
from .targets import Target
from .toolchain import Flags


@dataclasses.dataclass(frozen=True)
class Build:
    """A module for a target. Nothing of it is looked up again on the way."""

    module: str
    target: Target
    purpose: str
    """Why it is wanted, where that is not plain."""
    root: Path
    """The directory that holds jit_config.json and csrc/; the files below are relative to it."""
    sources: dict[Path, Path]
    """And where each is compiled, in a copy of the root."""
    headers: list[Path]
    flags: Flags
    name: str
    """Module, target, and a hash of all that goes into the library but the compiler."""
    compilers: list[list[str | int]] | None
    """By which a change of compiler is noticed; None where one is missing."""

    @classmethod
    def of(cls, name: str, target: Target, purpose: str = "") -> Build:
        """The build of the module called `name`."""
        module = registry.module(name)
        if not registry.serves(module, target.backend):
            raise BadRegistry(f"module '{name}' has no kernels for {target}: expected a target of another backend")
        root = registry.source_root()
        sources = registry.staged_names(module, target.backend)
        headers = registry.headers(module, target.backend)
        flags = toolchain.flags(target, module.flags)
        ingredients = {
            "files": {str(file): hashlib.sha256((root / file).read_bytes()).hexdigest() for file in (*sources, *headers)},
            "flags": flags,
            "torch": [torch.__version__, torch.version.git_version],
            "python": [sysconfig.get_config_var("SOABI"), os.uname().machine],
            "target": target,
        }
        digest = hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()
        return cls(
            module=name,
            target=target,
            purpose=purpose,
            root=root,
            sources=sources,
            headers=headers,
            flags=flags,
            name=f"{name}-{target.backend}-{target.arch}-{digest[:16]}",
            compilers=toolchain.compiler_record(target.backend),
        )

    @property
    def compiler(self) -> str | None:
        """A hash of the compilers, or None where they are not installed: then any build of the same sources will do."""
        return None if self.compilers is None else hashlib.sha256(json.dumps(self.compilers).encode()).hexdigest()[:8]

    @property
    def full_name(self) -> str:
        """The artefact's name."""
        return f"{self.name}-{self.compiler}"

    @property
    def extension(self) -> str:
        """The name of the Python module: pybind11 takes two of one name for one."""
        return re.sub(r"\W", "_", f"hipconv_{self.full_name}")

    @property
    def use(self) -> str:
        """Say what it is for, in messages."""
        return f"for {self.target}{self.purpose and f', {self.purpose}'}"
