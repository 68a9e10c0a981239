"""``python -m hipconv hub-folder``: the package as a repository of Hugging Face's kernel hub, which `kernels` loads.

A variant of the "noarch" kind is Python that runs with any torch of its backend; the kernels are compiled at first use as
everywhere. Each variant is the whole package under relative names. Its operators are in a namespace of its own, so that several
versions, or one beside an installed hipconv, can be loaded into one process.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import tempfile

from .. import __version__
from ..jit import registry

BACKENDS = ("rocm", "cuda", "cpu")  # as `kernels` names them
KERNEL_VERSION = 1  # the hub's: the branch v1 of the repository, for as long as no public name changes its meaning

_PACKAGE = Path(__file__).resolve().parent.parent
_OPERATORS = re.compile(r"""(?<=torch\.ops\.)hipconv\b|(?<=Library\(")hipconv(?=")|(?<=["'])hipconv(?=::)""")

_BY_NAME = '''"""The package one folder up, for versions of `kernels` that import a variant by the kernel's name."""

import importlib.util
from pathlib import Path
import sys

_ID = {id!r}
if _ID not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_ID, Path(__file__).resolve().parent.parent / "__init__.py")
    sys.modules[_ID] = importlib.util.module_from_spec(_spec)
    try:
        _spec.loader.exec_module(sys.modules[_ID])
    except BaseException:
        del sys.modules[_ID]
        raise
globals().update({{_name: _value for _name, _value in vars(sys.modules[_ID]).items() if not _name.startswith("__")}})
'''

_CARD = """---
library_name: kernels
license: mit
tags: [kernels]
---

# hipconv {version}

Causal conv1d of state-space and linear-attention models, and conv2d of image models, compiled at first use on the machine that
loads it: ROCm, CUDA and CPU, any torch from 2.4 on. A first call needs a C++ compiler, `pip install ninja setuptools`, and on
GPUs hipcc or nvcc; what is missing is named. `kernel.warmup()` builds ahead.

```python
from kernels import get_local_kernel
kernel = get_local_kernel("path of this folder")
out = kernel.causal_conv1d(x, weight, bias, activation="silu")  # x (batch, dim, seqlen), weight (dim, width)
```
"""


def write(out: str | os.PathLike[str]) -> list[Path]:
    """Write the folder, whole or not at all.

    Args:
        out: a path that is not there yet, or an empty folder; its parent folder exists.

    Returns:
        The variants, ``out/build/torch-rocm``, ``torch-cuda`` and ``torch-cpu``.

    Raises:
        FileExistsError: there is something at `out`. FileNotFoundError: there is no folder to make it in. Other OSErrors: of
            the disk.
    """
    place = Path(out).expanduser().absolute()
    if place.is_dir() and not place.is_symlink():
        if next(place.iterdir(), None) is not None:
            raise FileExistsError(
                f"OUT: got {place}, which holds files, expected a new or an empty folder; delete it or name another one"
            )
    elif os.path.lexists(place):
        raise FileExistsError(f"OUT: got {place}, which is no folder, expected a new or an empty one")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"OUT: got {place}, expected a path in a folder that exists; make {place.parent} first")
    files = _files()
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as temporary:
        made = Path(temporary, "folder")
        for backend in BACKENDS:
            _write_variant(made / "build" / f"torch-{backend}", backend, files)
        (made / "README.md").write_text(_CARD.format(version=__version__))
        os.rename(made, place)  # onto nothing, or an empty folder
    return [place / "build" / f"torch-{backend}" for backend in BACKENDS]


def _files() -> dict[str, Path]:
    """Return what a variant holds, by its path there: the package's Python, the kernels' sources and the registry."""
    root = registry.source_root()
    found = {str(file.relative_to(_PACKAGE)): file for file in _PACKAGE.rglob("*.py")}
    found |= {str(file.relative_to(root)): file for file in (root / "csrc").rglob("*") if file.is_file()}
    return dict(sorted((found | {"jit_config.json": root / "jit_config.json"}).items()))


def _write_variant(place: Path, backend: str, files: dict[str, Path]) -> None:
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    identity = f"_hipconv_{backend}_{digest.hexdigest()[:12]}"
    for name, file in files.items():
        copy = place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".py":
            text = _OPERATORS.sub(identity, file.read_text())
            copy.write_text(f"{text}\nfrom .hub import layers as layers\n" if name == "__init__.py" else text)
        else:
            shutil.copyfile(file, copy)
    (place / "hipconv").mkdir()
    (place / "hipconv" / "__init__.py").write_text(_BY_NAME.format(id=identity))
    metadata = {
        "id": identity,
        "name": "hipconv",
        "version": KERNEL_VERSION,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": backend},
    }
    (place / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
