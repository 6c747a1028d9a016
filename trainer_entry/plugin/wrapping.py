"""Replacing one attribute of one of verl's modules or classes, so that it can be seen afterwards that it was replaced.

Used by the hooks and by the report of which are in place.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_MARK = "__verl_sentinel__"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A place in verl: ``attribute`` (``Class.method`` or a function) of ``module``.

    ``trainers`` names the trainers that pass there (empty: all); ``since`` and ``before`` bound the verl versions.
    ``optional`` marks one of several engines: patched when it is imported, and not missed when it is not.
    """

    module: str
    attribute: str
    trainers: frozenset[str] = frozenset()
    since: Version = ()
    before: Version | None = None
    optional: bool = False

    def applies(self, version: Version, trainer: str = "") -> bool:
        """Whether this verl version has the place, and the trainer passes there (an unknown trainer may)."""
        in_range = self.since <= version and (self.before is None or version < self.before)
        return in_range and (not trainer or not self.trainers or trainer in self.trainers)


class NotThere(LookupError):
    """The module does not have the attribute."""


def locate(module: ModuleType, attribute: str) -> tuple[Any, str, Any]:
    """The object that holds the attribute, its last name, and its value now. Raises :class:`NotThere`."""
    *outer, last = attribute.split(".")
    owner: Any = module
    for name in outer:
        owner = getattr(owner, name, None)
    if owner is None or not hasattr(owner, last):
        raise NotThere(f"{module.__name__} has no {attribute}")
    return owner, last, getattr(owner, last)


def wrap(module: ModuleType, attribute: str, hook: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of the attribute, once for each hook. Raises :class:`NotThere`."""
    owner, last, original = locate(module, attribute)
    if hook in marks(original):
        return
    replacement = make(original)
    if getattr(replacement, "__wrapped__", None) is None:
        functools.update_wrapper(replacement, original)
    setattr(replacement, _MARK, hook)
    setattr(owner, last, replacement)


def marks(function: Any) -> set[str]:
    """The hooks that wrap a function, whoever else wrapped it between."""
    found: set[str] = set()
    seen = 0
    while function is not None and seen < 32:
        hook = getattr(function, "__dict__", {}).get(_MARK)
        if hook is not None:
            found.add(hook)
        function = getattr(function, "__wrapped__", None)
        seen += 1
    return found


def problem(target: Target, hook: str, awaited: bool) -> str:
    """Why the hook is not in place at the target, as a sentence; empty when it is, or will be on import.

    A module that this process has not imported is not imported for the question: its source is read.
    """
    module = sys.modules.get(target.module)
    if module is not None:
        try:
            _, _, value = locate(module, target.attribute)
        except NotThere as error:
            return str(error)
        return "" if hook in marks(value) else f"{target.module}.{target.attribute} was replaced by something else"
    try:
        spec = importlib.util.find_spec(target.module)
    except (ImportError, AttributeError, ValueError):
        spec = None
    if spec is None:
        return f"there is no module {target.module}"
    if not awaited:
        return f"{target.module} was imported and removed again"
    source = inspect.getattr_static(spec, "origin", None) if spec.origin is None else spec.origin
    if source and source.endswith(".py") and not _defines(source, target.attribute):
        return f"{target.module} has no {target.attribute}"
    return ""


def _defines(path: str, attribute: str) -> bool:
    """Whether a source file defines ``Class.method`` or a function of that name, at the top level."""
    try:
        with open(path, "rb") as file:
            body: list[ast.stmt] = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return True  # nothing is known: the import will show
    for name in attribute.split("."):
        found = [
            node
            for node in body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
        ]
        if not found:
            return False
        body = found[-1].body
    return True
