"""A recovery policy as text: YAML into a checked :class:`~exporter.recovery.policy.RecoveryPolicy`. Called by
:mod:`exporter.config`, by ``verl-sentinel policy`` and by ``verl-sentinel replay --policy``.

What is wrong is a sentence that names the file, the line, what is there and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from exporter.detectors.options import unknown_name
from exporter.detectors.registry import NAMES
from exporter.exposure import ConfigError, os_reason
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.yaml_lines import Lines

MOST_BYTES = 1024 * 1024
"""A policy has a few kilobytes."""


class _Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with the section's name above it, as it stands in a configuration."""

    recovery: RecoveryPolicy


def read_policy(path: Path, said_in: str = "") -> RecoveryPolicy:
    """The policy in a file. ``said_in``: where the file is named, for the sentence. Raises :class:`ConfigError`."""
    before = f"{said_in}: " if said_in else ""
    try:
        with path.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
        text = body.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{before}The policy file {path} cannot be read: {os_reason(error)}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{before}The policy file {path} is not UTF-8.") from None
    if len(body) > MOST_BYTES:
        raise ConfigError(f"{before}The policy file {path} is larger than {MOST_BYTES} bytes: it is no policy.")
    return msgspec.structs.replace(parse_policy(text, str(path)), policy_file=str(path))


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
    """Raise :class:`ConfigError` for a detector that there is not; ``at``: path of the policy in the file."""
    for path, names in _named(policy, at):
        unknown = next((name for name in names if name not in NAMES), None)
        if unknown is not None:
            setting = path.removeprefix("$").removeprefix(".").partition("[")[0]
            said = unknown_name("detector", unknown, NAMES)
            raise ConfigError(f"{lines.file}, line {lines.line_of(path)}: {setting}: {said}.")


def _named(policy: RecoveryPolicy, at: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Paths at which detectors are named, and their names."""

    def of(triggers: tuple[Trigger, ...], margins: dict[str, int], path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        for index, trigger in enumerate(triggers):
            yield f"{path}.triggers[{index}].detectors", trigger.detectors
        yield f"{path}.margins", tuple(margins)

    yield from of(policy.triggers, policy.margins, at)
    for index, rule in enumerate(policy.rules):
        yield from of(rule.triggers or (), rule.margins or {}, f"{at}.rules[{index}]")
