"""How past runs are judged: the sections of the configuration that matter to a replay, and what is known of the runs.

Called by ``verl-sentinel replay`` before it reads a step. Everything that is wrong raises :class:`SettingsWrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exporter.detectors.presets import DEFAULT_PRESET
from exporter.detectors.registry import DetectorPlan
from exporter.detectors.setup import LrSchedule, RunSetup, Scalar, from_config
from exporter.incidents import Rules

if TYPE_CHECKING:
    from exporter.recovery.policy import RecoveryPolicy

GIB: Final = 1024.0**3
MOST_BYTES: Final = 16 * 1024 * 1024
MOST_SETTINGS: Final = 100_000
"""Of a trainer's configuration: aliases of YAML can make of a small file a huge one."""
MOST_CHARACTERS: Final = 5000
"""Of a setting's name."""


class SettingsWrong(Exception):
    """The text is a sentence."""


@dataclass(frozen=True)
class Judging:
    """How runs are judged."""

    detectors: DetectorPlan
    rules: Rules


def judging(config: Path | None, preset: str | None) -> Judging:
    """What the exporter's configuration file says of detection, detectors and incidents; ``preset`` goes before it.

    What else it names (tokens, certificates) need not be there where a run is replayed.
    """
    if config is None:
        return Judging(_planned(partial(DetectorPlan, preset=preset or DEFAULT_PRESET)), Rules())
    from exporter.config import ConfigError, parse

    try:
        settings = parse(_text(config), str(config))
    except ConfigError as error:
        raise SettingsWrong(str(error)) from None
    return Judging(_planned(partial(settings.detector_plan, preset)), settings.incidents)


def _planned(plan: Callable[[], DetectorPlan]) -> DetectorPlan:
    try:
        return plan()
    except ValueError as error:
        # An option that is wrong was found with its line before; what is left is the preset.
        raise SettingsWrong(f"--{error}.") from None


def policy_of(path: Path) -> RecoveryPolicy:
    """The policy in an exporter's configuration file, or in a file of that section alone."""
    from exporter.config import Config, ConfigError, parse
    from exporter.policy_file import parse_policy

    text = _text(path)
    try:
        content = _yaml(text, path)
        if not isinstance(content, dict) or not content:
            raise SettingsWrong(f"{path} holds no policy: the section recovery, or what stands in it, is expected.")
        if any(name in Config.__struct_fields__ for name in content):
            return parse(text, str(path)).recovery
        return parse_policy(text, str(path))
    except ConfigError as error:
        raise SettingsWrong(str(error)) from None


@dataclass(frozen=True)
class Known:
    """What was said of the runs by options. None is unknown."""

    trainer_config: Path | None = None
    max_steps: int | None = None
    max_response_length: int | None = None
    lr: float | None = None
    lr_warmup_steps: int | None = None
    gpu_memory_gb: float | None = None
    host_memory_gb: float | None = None

    def setup(self) -> RunSetup:
        """As a live run would have told it; an option goes before the trainer's configuration."""
        setup = RunSetup() if self.trainer_config is None else _told_by(self.trainer_config)
        if self.lr_warmup_steps is not None and self.lr is None:
            raise SettingsWrong("--lr-warmup-steps needs --lr, the rate that is warmed up to.")
        if self.max_steps is not None:
            setup = replace(setup, total_steps=self.max_steps)
        if self.max_response_length is not None:
            setup = replace(setup, max_response_length=self.max_response_length)
        if self.lr is not None:
            setup = replace(setup, lr=LrSchedule(self.lr, self.lr_warmup_steps or 0))
        if self.gpu_memory_gb is not None:
            setup = replace(setup, gpu_memory_bytes=self.gpu_memory_gb * GIB)
        if self.host_memory_gb is not None:
            setup = replace(setup, host_memory_bytes=self.host_memory_gb * GIB)
        return setup


def _told_by(path: Path) -> RunSetup:
    content = _yaml(_text(path), path)
    if not isinstance(content, dict) or not content:
        raise SettingsWrong(f"{path} is no configuration of a trainer: a YAML file with its settings is expected.")
    if all(isinstance(part, dict) and "value" in part for name, part in content.items() if name != "wandb_version"):
        content = {name: part["value"] for name, part in content.items() if isinstance(part, dict)}  # W&B's config.yaml
    return from_config(_flattened(content, path))


def _flattened(content: Mapping[Any, Any], path: Path) -> dict[str, Scalar]:
    """The settings by their names with dots."""
    flat: dict[str, Scalar] = {}
    waiting = [("", content)]
    met = 0
    while waiting:
        prefix, section = waiting.pop()
        for name, value in section.items():
            met += 1
            if met > MOST_SETTINGS or len(prefix) > MOST_CHARACTERS:  # a section may hold itself, by an alias
                raise SettingsWrong(f"{path} is no configuration of a trainer: it has too many settings.")
            if isinstance(value, dict):
                waiting.append((f"{prefix}{name}.", value))
            elif value is None or isinstance(value, (str, int, float, bool)):
                flat[f"{prefix}{name}"] = value
    return flat


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise SettingsWrong(f"{path} is not YAML: {' '.join(str(error).split())}.") from None


def _node(text: str) -> Any:
    import yaml

    return yaml.compose(text, Loader=yaml.SafeLoader)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SettingsWrong(f"{path} is larger than {MOST_BYTES >> 20} MiB, which no configuration is.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsWrong(f"The configuration file {path} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsWrong(f"The configuration file {path} cannot be read: {error.strerror or error}.") from None
