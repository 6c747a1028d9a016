"""Runs a function right after a module has been imported, without importing it.

A verl plugin is loaded by `import verl` in every process of a run; importing verl's engines or transformers there would
cost each of them seconds. Used by the CPU platform and by the demo's faults.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _ThenLoader(Loader):
    """Loads as the module's own loader does, then runs the actions."""

    def __init__(self, loader: Loader, actions: list[Action]) -> None:
        self._loader = loader
        self._actions = actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Put the real loader back first: resources, pickling and `inspect` ask the module for it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._waiting: dict[str, list[Action]] = {}

    def add(self, name: str, action: Action) -> None:
        self._waiting.setdefault(name, []).append(action)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        actions = self._waiting.pop(fullname, None)
        if actions is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenLoader(spec.loader, actions)
                return spec
        self._waiting[fullname] = actions  # not found this time; the path may change
        return None


_finder = _Finder()


def when_imported(name: str, action: Action) -> None:
    """Calls `action(module)` once `name` is imported: now if it is already, else right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.add(name, action)
