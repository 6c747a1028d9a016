"""Puts the hooks in place, and says which are. Called by the plugin in every process that imports verl.

Hooks go in lazily: a module that is imported already is patched in place, the others right after their import. "In
place" is therefore judged when the trainer opens its tracking: for each hook, every target that this verl version and
this trainer have must be wrapped, or, where this process has not imported its module (the rollout client of another
process), exist in its source and be awaited.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from exporter.protocol import HookMissing, HooksReported
from trainer_entry.plugin.hooks import HOOKS, Hook, hooks_for
from trainer_entry.plugin.post_import import PostImport
from trainer_entry.plugin.runtime import Runtime, now
from trainer_entry.plugin.wrapping import Target, Version, problem
from trainer_entry.settings import SettingsError, read_settings

OLDEST: Version = (0, 7)


class Plugin:
    """The hooks of one process."""

    def __init__(self, runtime: Runtime, hooks: Sequence[type[Hook]] = HOOKS) -> None:
        self.runtime = runtime
        self.version = parse_version(runtime.verl_version)
        self.hooks = tuple(kind(runtime) for kind in hooks)
        self.imports = PostImport(runtime.failed)
        self._errors: dict[tuple[str, Target], str] = {}
        runtime.at_open.append(self.report)
        runtime.at_open.append(self._sample_gpus)
        self._samplers: list[Any] = []

    def install(self) -> None:
        """Patch what is imported, and wait for the rest."""
        for hook in self.hooks:
            for target in hook.targets:
                if target.applies(self.version):
                    self.imports.when_imported(target.module, self._installer(hook, target))

    def missing(self) -> list[HookMissing]:
        """The hooks that are not in place for this process's trainer, with the reason of each."""
        found = []
        for hook in self.hooks:
            reason = self._reason(hook)
            if reason:
                found.append(HookMissing(name=hook.name, reason=reason))
        return found

    def report(self) -> None:
        """Say, to a person and to the exporter, which hooks are in place. Once, when the trainer opens its tracking."""
        self.runtime.at_open.remove(self.report)
        missing = self.missing()
        absent = {item.name for item in missing}
        installed = [hook.name for hook in self.hooks if hook.name not in absent]
        line = f"{len(installed)} of {len(self.hooks)} hooks in place, verl {self.runtime.verl_version or 'unknown'}"
        if missing:
            line += "; not in place: " + "; ".join(f"{item.name} ({item.reason})" for item in missing)
        self.runtime.report(line)
        self.runtime.send(HooksReported(time=now(), installed=installed, missing=missing))

    def _sample_gpus(self) -> None:
        """Start the GPU samplers of the cluster; they end with their handles."""
        from trainer_entry.gpu.actor import start_samplers

        self.runtime.at_open.remove(self._sample_gpus)
        client = self.runtime.client
        if client is not None:
            self._samplers = start_samplers(self.runtime.settings, client.run)
            self.runtime.at_finish.append(self._samplers.clear)

    def _installer(self, hook: Hook, target: Target) -> Installer:
        return Installer(self, hook, target)

    def installed(self, hook: Hook, target: Target, module: ModuleType) -> None:
        try:
            hook.install(module, target)
        except Exception as error:  # noqa: BLE001 - an unknown verl version may have anything; it is reported at start
            self._errors[(hook.name, target)] = f"{type(error).__name__}: {error}"

    def _reason(self, hook: Hook) -> str:
        trainer = self.runtime.trainer_kind
        if trainer in hook.not_for:
            return hook.not_for[trainer]
        unavailable = hook.unavailable()
        if unavailable:
            return unavailable
        targets = [t for t in hook.targets if t.applies(self.version, trainer) and not t.optional]
        if not targets:
            return f"verl {self.runtime.verl_version} has no place for it"
        for target in targets:
            reason = self._errors.get((hook.name, target)) or problem(
                target, hook.name, self.imports.awaits(target.module)
            )
            if reason:
                return reason
        return ""


class Installer:
    """The action that puts one hook into one module."""

    def __init__(self, plugin: Plugin, hook: Hook, target: Target) -> None:
        self._plugin = plugin
        self._hook = hook
        self._target = target

    def __call__(self, module: ModuleType) -> None:
        self._plugin.installed(self._hook, self._target, module)


def activate(environ: Mapping[str, str]) -> Plugin | None:
    """Put the hooks in place as the environment asks. Never raises: verl would stop, or swallow it without a word."""
    try:
        settings = read_settings(environ)
        if settings is None:
            return None
        version = verl_version()
        runtime = Runtime(settings, version)
        plugin = Plugin(runtime, hooks_for(runtime.changes))
        if plugin.version < OLDEST:
            _say(f"verl {version or 'of unknown version'} is older than 0.7; this run is not watched")
            return None
        plugin.install()
        return plugin
    except SettingsError as error:
        _say(f"{error} This run is not watched.")
    except Exception as error:  # noqa: BLE001 - the boundary to verl's import
        _say(f"the plugin could not be loaded ({type(error).__name__}: {error}); this run is not watched")
    return None


def verl_version() -> str:
    """What verl says of itself while it is being imported, else what its distribution says; empty if neither does."""
    told = getattr(sys.modules.get("verl"), "__version__", None)
    if isinstance(told, str) and told:
        return told
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return ""


def parse_version(text: str) -> Version:
    """The leading numbers of a version.

    >>> parse_version("0.9.1"), parse_version("0.10.0.dev3"), parse_version("")
    ((0, 9, 1), (0, 10, 0), ())
    """
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed, or a terminal that is gone
        print(f"verl-sentinel: {sentence}", file=sys.stderr, flush=True)
