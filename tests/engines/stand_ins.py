"""Empty modules in the place of packages that exist for CUDA only: importable, and of no use when called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Names(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = f"{cls.__name__}.{name}"
        setattr(cls, name, value)
        return value


class _Anything:
    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        # As a decorator it leaves alone what it decorates.
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Module(types.ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Names(name, (), {}) if name[:1].isupper() else _Anything()
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*packages: str) -> None:
    """Stands in for these packages, where they are not installed."""
    sys.meta_path.append(_Finder(frozenset(packages)))
