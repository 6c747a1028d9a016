"""A recovery policy as text: YAML into a checked :class:`~exporter.recovery.policy.RecoveryPolicy`. Called by
:mod:`exporter.config`, by ``verl-sentinel policy`` and by ``verl-sentinel replay --policy``.

What is wrong is a sentence that names the file, the line, what is there and what was expected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import yaml

from exporter.detectors.options import unknown_name
from exporter.detectors.registry import NAMES
from exporter.exposure import ConfigError, os_reason
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.recovery.rung_settings import matches_any
from exporter.signals import SIGNALS
from exporter.yaml_lines import Lines

MOST_BYTES = 1024 * 1024
"""A policy, or a configuration, has a few kilobytes."""

OF_LIVE_DETECTORS: Final = (
    *("heartbeat", "process", "rollout_requests", "gpu_utilization", "gpu_memory_used", "gpu_temperature"),
    *("gpu_power", "gpu_lost"),
)
"""Signals of findings that are no signals of a step."""
_NAMES_PHASES: Final = "stalled_phase"
"""The signals of its findings are the phases of the trainer, which may have any name."""


class _Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with the section's name above it, as it stands in a configuration."""

    recovery: RecoveryPolicy


def read_policy(path: Path, said_in: str = "") -> RecoveryPolicy:
    """The policy in a file. ``said_in``: where the file is named, for the sentence. Raises :class:`ConfigError`."""
    before = f"{said_in}: " if said_in else ""
    text = read_bounded(path, f"{before}The policy file {path}")
    return msgspec.structs.replace(parse_policy(text, str(path)), policy_file=str(path))


def read_bounded(path: Path, what: str) -> str:
    """The text of a file that a person named; ``what`` begins the sentence. Raises :class:`ConfigError`.

    Only a regular file is read: a pipe would keep the start waiting for ever, a device might never end.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{what} is no regular file, but a pipe or a device: give a file.")
            body = file.read(MOST_BYTES + 1)
        text = body.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be read: {os_reason(error)}.") from None
    except ValueError:
        raise ConfigError(f"{what} cannot be read: its name has a NUL in it.") from None
    if len(body) > MOST_BYTES:
        raise ConfigError(f"{what} is larger than {MOST_BYTES} bytes, which no policy or configuration is.")
    return text


def parse_policy(text: str, file: str) -> RecoveryPolicy:
    """What stands in the section ``recovery``, with or without that name above it. Raises :class:`ConfigError`."""
    node = compose(text, file)
    if node is None:
        raise ConfigError(f"{file}: the file is empty; a policy needs at least a mode.")
    named = isinstance(node, yaml.MappingNode) and [key.value for key, _ in node.value] == ["recovery"]
    lines = Lines(file, _Whole if named else RecoveryPolicy)
    data = lines.plain(node, "$")
    try:
        policy = msgspec.convert(data, _Whole).recovery if named else msgspec.convert(data, RecoveryPolicy)
    except msgspec.ValidationError as error:
        raise lines.explain(error) from None
    at = "$.recovery" if named else "$"
    if policy.policy_file:
        line = lines.line_of(f"{at}.policy_file")
        raise ConfigError(f"{file}, line {line}: policy_file: a policy file names no other.")
    check_names(policy, lines, at)
    check_approvals(policy, lines, at)
    return policy


def compose(text: str, file: str) -> yaml.Node | None:
    """The text as YAML nodes. Raises :class:`ConfigError`."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}, line {mark.line + 1}" if mark is not None else file
        raise ConfigError(f"{place}: this is not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: this is not YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise ConfigError(f"{file}: this is nested too deeply to be read.") from None


def check_names(policy: RecoveryPolicy, lines: Lines, at: str) -> None:
    """Raise :class:`ConfigError` for a detector that there is not, or a signal that no finding is of, whose trigger
    would never fire. ``at``: path of the policy in the file."""
    for path, names in _named(policy, at):
        unknown = next((name for name in names if name not in NAMES), None)
        if unknown is not None:
            setting = path.removeprefix("$").removeprefix(".").partition("[")[0]
            said = unknown_name("detector", unknown, NAMES)
            raise ConfigError(f"{lines.file}, line {lines.line_of(path)}: {setting}: {said}.")
    known = (*SIGNALS, *OF_LIVE_DETECTORS)
    for path, trigger in _triggers(policy, at):
        if _NAMES_PHASES in trigger.detectors:
            continue
        for signal in trigger.signals:
            if not any(matches_any(name, (signal,)) for name in known):
                setting = path.removeprefix("$").removeprefix(".").partition("[")[0]
                why = f"this trigger would never fire: {unknown_name('signal', signal, known)}"
                raise ConfigError(f"{lines.file}, line {lines.line_of(f'{path}.signals')}: {setting}: {why}.")


def check_approvals(policy: RecoveryPolicy, lines: Lines, at: str) -> None:
    """Raise :class:`ConfigError` for approvals that nobody is asked for: the rung acts by itself wherever they hold.

    Where it is only observed they do no harm, for a policy may be tried out so. ``at``: as of :func:`check_names`.
    """
    heirs = [None, *(index for index, rule in enumerate(policy.rules) if rule.approval is None)]
    own = [(index, rule) for index, rule in enumerate(policy.rules) if rule.approval is not None]
    places = [(f"{at}.approval", policy.approval, heirs)]
    places += [(f"{at}.rules[{index}].approval", rule.approval or {}, [index]) for index, rule in own]
    for path, approval, rules in places:
        for rung in approval:
            modes = {policy.of_rule(index).mode_of(rung) for index in rules}
            if "auto" in modes and "approve" not in modes:
                setting = path.removeprefix("$").removeprefix(".").partition("[")[0]
                why = f"approval says who approves the {rung} rung, which is in mode auto, so nobody would be asked"
                mend = f"set modes: {{{rung}: approve}}, or leave it out"
                line = lines.line_of(f"{path}.{rung}")
                raise ConfigError(f"{lines.file}, line {line}: {setting}: {why}: {mend}.")


def _named(policy: RecoveryPolicy, at: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Paths at which detectors are named, and their names."""

    for path, trigger in _triggers(policy, at):
        yield f"{path}.detectors", trigger.detectors
    yield f"{at}.margins", tuple(policy.margins)
    for index, rule in enumerate(policy.rules):
        yield f"{at}.rules[{index}].margins", tuple(rule.margins or {})


def _triggers(policy: RecoveryPolicy, at: str) -> Iterator[tuple[str, Trigger]]:
    """All triggers, with their paths."""
    for index, trigger in enumerate(policy.triggers):
        yield f"{at}.triggers[{index}]", trigger
    for number, rule in enumerate(policy.rules):
        for index, trigger in enumerate(rule.triggers or ()):
            yield f"{at}.rules[{number}].triggers[{index}]", trigger
