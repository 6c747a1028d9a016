"""One post-import finder for the CPU platform and the demo's faults, beside the one of the plugin.

A verl plugin is loaded by `import verl` in every process of a run; importing verl's engines or transformers there would
cost each of them seconds. So what changes a module waits until verl imports it.
"""

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from trainer_entry.plugin.post_import import PostImport


def _raise(name: str, error: Exception) -> None:
    """Unlike the plugin's hooks, these changes cannot be left out: the run would fail later, and darker."""
    raise RuntimeError(f"{name} could not be changed as the CPU platform or the demo asks: {error}") from error


class _Finder(PostImport):
    """A finder that does not ask itself again when the other finder asks it, both waiting for the same module."""

    def __init__(self) -> None:
        super().__init__(_raise)
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            return super().find_spec(fullname, path, target)
        finally:
            self._asking.discard(fullname)


when_imported = _Finder().when_imported
"""Calls `action(module)` once a module is imported: now if it is already, else right after its import."""
