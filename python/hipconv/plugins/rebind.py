"""Another function in the place of a module's own, wherever that is held by name, and also where the module is imported later.

Nothing is imported for it: most models have no convolution, and importing an engine's kernels early could settle what it wants
to settle later. A function that cannot be replaced is left alone, with a warning: the engine goes on with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import importlib.abc
import importlib.util
import inspect
import logging
import sys
import threading
from types import ModuleType
from typing import Any, NamedTuple

_LOG = logging.getLogger("hipconv")
_MARK = "__hipconv_in_place_of__"


class Replacement(NamedTuple):
    """One function of a module, and what takes its place."""

    module: str
    name: str
    parameters: frozenset[str]  # those that `call` knows, by the engine's names
    call: Callable[..., Any]  # (original, arguments by name) -> result


def rebind(replacements: Iterable[Replacement]) -> None:
    """Put these in place: now where their modules are imported, else when they are. A second time does nothing."""
    for replacement in replacements:
        known = _finder.wanted.setdefault(replacement.module, {})
        known[replacement.name] = replacement
        module = sys.modules.get(replacement.module)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _replace(module, replacement)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _replace(module: ModuleType, replacement: Replacement) -> None:
    original = vars(module).get(replacement.name)
    if original is None or hasattr(original, _MARK):
        return
    if why := _why_not(original, replacement):
        _LOG.warning("%s.%s stays the engine's own: %s", replacement.module, replacement.name, why)
        return
    ours = _bound(original, replacement.call)
    holders = [
        other.__name__
        for other in list(sys.modules.values())
        if isinstance(other, ModuleType) and _rebind_in(other, original, ours)
    ]
    _LOG.info("%s.%s is hipconv's, in %s", replacement.module, replacement.name, ", ".join(sorted(holders)))


def _why_not(original: Any, replacement: Replacement) -> str | None:
    if not inspect.isfunction(original):
        return f"it is {type(original).__name__}, not a plain function"
    if original.__module__ != replacement.module:
        return f"it comes from {original.__module__}, for another platform"
    named = [p.name for p in inspect.signature(original).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if unknown := sorted(set(named) - replacement.parameters):
        return f"it takes {', '.join(unknown)}, which this version of hipconv does not know"
    return None


def _bound(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with the original's own names, order and defaults of arguments, whatever version of the engine it is of."""
    parameters = inspect.signature(original).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def ours(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > len(names):
            return original(*arguments, **named)  # which raises the engine's TypeError
        given = dict(zip(names, arguments, strict=False))
        if given.keys() & named.keys():
            return original(*arguments, **named)
        return call(original, defaults | given | named)

    ours.__name__, ours.__qualname__, ours.__doc__ = original.__name__, original.__qualname__, original.__doc__
    ours.__module__ = original.__module__
    ours.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    setattr(ours, _MARK, original)
    return ours


def _rebind_in(module: ModuleType, original: Any, ours: Any) -> bool:
    """Under whatever name a module holds the original."""
    names = [name for name, value in list(vars(module).items()) if value is original]
    for name in names:
        setattr(module, name, ours)
    return bool(names)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: the specs of wanted modules, which others find,
    get a loader that replaces functions after the import.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, dict[str, Replacement]] = {}
        self.asking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in self.wanted or getattr(self.asking, "others", False):
            return None
        self.asking.others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.wanted[name])
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, and replacements once the module is there."""

    def __init__(self, loader: Any, replacements: dict[str, Replacement]) -> None:
        self._loader, self._replacements = loader, replacements

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for replacement in self._replacements.values():
            _replace(module, replacement)


_finder = _Finder()
