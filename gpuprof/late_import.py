"""Runs a function once a module has been imported, without importing it.

The standard library only: this runs at the start of every Python process of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_executed: set[str] = set()
"""Modules that are whole, although the import statement around them has not returned yet."""


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Calls `then` right after the module's first import, or now where it is imported already.

    Args:
        name: The module. A failing import calls nothing.
        then: What to do; whatever it raises is dropped, because it would look like the import's.

    Returns:
        Takes the request back.
    """
    module = sys.modules.get(name)
    if module is not None and (name in _executed or not _is_half_done(module)):
        _quietly(then)
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.remove


def _is_half_done(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _quietly(then: Callable[[], None]) -> None:
    try:
        then()
    except Exception as error:
        import logging

        logging.getLogger("gpuprof").warning("gpuprof: could not start: %s", error)


class _Finder(MetaPathFinder):
    """Finds one module by asking the other finders, and puts a loader around its loader."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then
        self.looking = False

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self.looking:
            return None
        self.looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self.looking = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Any, finder: _Finder) -> None:
        self.inner, self.finder = inner, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if nobody had been here.
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        module.__loader__ = self.inner
        self.inner.exec_module(module)
        self.finder.remove()
        _executed.add(self.finder.name)
        _quietly(self.finder.then)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
