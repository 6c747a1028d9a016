"""Runs a function right after a module has been imported, without importing it.

The plugin is loaded by ``import verl`` in every process of a run, and importing verl's trainers or engines there
would cost each of them seconds. Used by :mod:`trainer_entry.plugin.activation`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class PostImport(MetaPathFinder):
    """A meta-path finder that lets the other finders find, and then runs the actions.

    An action that raises would break the import of a module of the trainer, so actions must not; ``on_error`` is the
    last line and is told instead.
    """

    def __init__(self, on_error: Callable[[str, Exception], None]) -> None:
        self._waiting: dict[str, list[Action]] = {}
        self._on_error = on_error
        self._asking: set[tuple[int, str]] = set()

    def when_imported(self, name: str, action: Action) -> None:
        """Call ``action(module)`` once ``name`` is imported: now if it already is, else right after its import."""
        module = sys.modules.get(name)
        if module is not None and not _initializing(module):
            self.run(name, module, [action])
            return
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._waiting.setdefault(name, []).append(action)

    def awaits(self, name: str) -> bool:
        """True while the module's import has yet to come."""
        return name in self._waiting

    def remove(self) -> None:
        """Leave the meta path; what is patched stays patched."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that another finder gives, with a loader that runs the actions; None for all other modules."""
        # Another finder of this kind that waits for the same module asks us again from within our own question.
        question = (threading.get_ident(), fullname)
        if fullname not in self._waiting or question in self._asking:
            return None
        self._asking.add(question)
        try:
            return self._found(fullname, path, target)
        finally:
            self._asking.discard(question)

    def _found(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _ThenRun(spec.loader, fullname, self)
                return spec
        return None

    def run(self, name: str, module: ModuleType, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                action(module)
            except Exception as error:  # noqa: BLE001 - nothing of ours may break an import of the trainer
                self._on_error(name, error)

    def imported(self, name: str, module: ModuleType) -> None:
        """Called by the loader when the module is there."""
        self.run(name, module, self._waiting.pop(name, []))


class _ThenRun(Loader):
    """Loads as the module's own loader does, then tells the finder."""

    def __init__(self, loader: Loader, name: str, finder: PostImport) -> None:
        self._loader = loader
        self._name = name
        self._finder = finder

    def __getattr__(self, attribute: str) -> object:
        # find_spec() is also asked by code that only looks (importlib.util.find_spec, inspect): answer as the real one.
        return getattr(self._loader, attribute)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Put the real loader back first: resources, pickling and `inspect` ask the module for it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported(self._name, module)


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
