"""Take the place of the package causal-conv1d in a running process, where nothing may be installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import importlib
from importlib.machinery import ModuleSpec
import importlib.metadata
import sys
from types import ModuleType
from typing import Any
import warnings

VERSION = "1.7.0+hipconv"

_SUBMODULES = ("causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions")
_NAMES = ("causal_conv1d", "causal_conv1d_cuda")


class _Distribution(importlib.metadata.Distribution):
    """The distribution that importlib.metadata finds: libraries ask whether the package is there, and which version."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: causal-conv1d\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Finds that distribution, and no module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        if context is None or context.name is None or context.name.replace("_", "-").lower() == "causal-conv1d":
            return [_Distribution()]
        return []


def install_as_causal_conv1d() -> list[str]:
    """Register hipconv's functions as the modules ``causal_conv1d`` (with all its submodules) and ``causal_conv1d_cuda``.

    Imports of them that come later find these, also where the original is installed, and `importlib.metadata` knows the
    distribution. In modules that were imported earlier, names that hold the original's functions, or the None that a failed
    import left, are bound anew, and a warning says where. What such a module concluded from that (flags like
    ``is_fast_path_available``) and objects it has built stay as they are, which the warning says too: call this before
    importing models. Modules that hold other functions under these names (wrappers around a choice made on import, as
    transformers has them) keep them, and a warning names those modules.

    Returns:
        The modules where a name was bound anew.
    """
    if getattr(sys.modules.get("causal_conv1d"), "__version__", None) == VERSION:
        return []
    interface, varlen, functions = (importlib.import_module(f"{__package__}.{name}") for name in
                                    ("causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions"))  # fmt: skip
    package = ModuleType("causal_conv1d", "Dao-AILab's causal-conv1d, as hipconv serves it.")
    package.__spec__ = ModuleSpec("causal_conv1d", None, is_package=True)
    package.__path__ = []
    package.__version__ = VERSION  # type: ignore[attr-defined]
    package.causal_conv1d_fn = interface.causal_conv1d_fn  # type: ignore[attr-defined]
    package.causal_conv1d_update = interface.causal_conv1d_update  # type: ignore[attr-defined]
    ours = {"causal_conv1d": package, "causal_conv1d_cuda": importlib.import_module(f"{__package__}.causal_conv1d_cuda")}
    for name in _SUBMODULES:
        module = importlib.import_module(f"{__package__}.{name}")
        setattr(package, name, module)
        ours[f"causal_conv1d.{name}"] = module
    for name in [name for name in sys.modules if name.split(".")[0] in _NAMES]:
        del sys.modules[name]
    sys.modules.update(ours)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

    replacements = {name: vars(module)[name] for module in (varlen, functions, interface) for name in vars(module)
                    if name.startswith("causal_conv1d_") and callable(vars(module)[name])}  # fmt: skip
    bound = sorted({module.__name__ for module in _earlier_modules() if _rebind(module, replacements, ours)})
    kept = sorted({module.__name__ for module in _earlier_modules() if _has_its_own(module, replacements)})
    if bound:
        warnings.warn(
            f"hipconv took the place of causal-conv1d in modules that had already been imported: {', '.join(bound)}. What "
            f"they decided "
            "on import, and the models they have built, may still be without it; call hipconv.install_as_causal_conv1d() "
            "before importing them.",
            stacklevel=2,
        )
    if kept:
        warnings.warn(
            f"modules that had already been imported keep functions of their own in the place of causal-conv1d's: "
            f"{', '.join(kept)}. Call hipconv.install_as_causal_conv1d() before importing them.",
            stacklevel=2,
        )
    return bound


def _earlier_modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.split(".")[0] not in (*_NAMES, __name__.partition(".")[0], "torch"):
            yield module


def _rebind(module: ModuleType, replacements: dict[str, Any], ours: dict[str, ModuleType]) -> bool:
    changed = False
    for name, value in list(vars(module).items()):
        if name in replacements and value is not replacements[name] and (value is None or _is_original(value)):
            setattr(module, name, replacements[name])
            changed = True
        elif isinstance(value, ModuleType) and value.__name__ in ours and value is not ours[value.__name__]:
            setattr(module, name, ours[value.__name__])
            changed = True
    return changed


def _has_its_own(module: ModuleType, replacements: dict[str, Any]) -> bool:
    found = (vars(module).get(name) for name in replacements)
    return any(callable(value) and all(value is not own for own in replacements.values()) for value in found)


def _is_original(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] in _NAMES
