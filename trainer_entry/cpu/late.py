"""One post-import finder for the CPU platform and the demo's faults, beside the one of the plugin.

A verl plugin is loaded by `import verl` in every process of a run; importing verl's engines or transformers there would
cost each of them seconds. So what changes a module waits until verl imports it.
"""

from trainer_entry.plugin.post_import import PostImport


def _raise(name: str, error: Exception) -> None:
    """Unlike the plugin's hooks, these changes cannot be left out: the run would fail later, and darker."""
    raise RuntimeError(f"{name} could not be changed as the CPU platform or the demo asks: {error}") from error


when_imported = PostImport(_raise).when_imported
"""Calls `action(module)` once a module is imported: now if it is already, else right after its import."""
