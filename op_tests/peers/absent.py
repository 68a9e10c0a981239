"""Empty stand-ins for third-party packages that an engine imports and this machine lacks, so that the engine's own modules
import.

A name in such a package is a class that can be subclassed, called, subscripted and used as a decorator, and computes nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _empty(name: str) -> Any:
    def new(cls: Any, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and callable(arguments[0]) and cls.__dict__.get("_is_empty"):
            return arguments[0]  # as a decorator
        return object.__new__(cls)

    return _Anything(name, (), {"__new__": new, "__init__": lambda self, *a, **k: None, "_is_empty": True,
                                "__init_subclass__": classmethod(lambda cls, **k: None),
                                "__get_pydantic_core_schema__": classmethod(lambda cls, source, handler: {"type": "any"}),
                                "__call__": lambda self, *a, **k: a[0] if len(a) == 1 and callable(a[0]) else self,
                                "__getattr__": _of_instance})  # fmt: skip


def _of_instance(self: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _empty(name)


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: what the modules of `own` import and nothing else finds is empty. `made` has the packages.

    Those of `without` stay absent: their presence would say that there is some device.
    """

    def __init__(self, own: str, without: frozenset[str]) -> None:
        self.own, self.without, self.made = own, without, set[str]()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        there = top == self.own or top in self.without or top in sys.modules or top in sys.stdlib_module_names
        if top not in self.made and (there or not self._asked_by_them()):
            return None
        self.made.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _asked_by_them(self) -> bool:
        """Tell whether one of the engine's modules imports: what other packages try to import may be absent, and they know."""
        frame = sys._getframe(2)
        while frame and (frame.f_globals.get("__name__") or "").startswith(("importlib", "_frozen_importlib")):
            frame = frame.f_back  # type: ignore[assignment]
        return bool(frame) and str(frame.f_globals.get("__name__")).partition(".")[0] == self.own

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        module.__version__, module.__file__ = "0", __file__  # type: ignore[attr-defined]
        module.__getattr__ = lambda name: _missing(module, name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _missing(module: ModuleType, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    setattr(module, name, value := _empty(name))
    return value
