"""The configuration file: YAML into checked values. Called by the CLI at start.

A wrong file stops the program with a sentence that names the file, the line, what is there and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from exporter.detectors.calibration import Budget
from exporter.detectors.presets import DEFAULT_PRESET, preset_named
from exporter.detectors.registry import NAMES, DetectorPlan
from exporter.exposure import (
    SCOPES,
    ConfigError,
    Tls,
    Tokens,
    TokenSource,
    address,
    check_exposure,
    readable,
    resolve_tokens,
    tls_context,
    tokens_of,
)
from exporter.incidents import Rules
from exporter.links import Links
from exporter.notify.settings import NotifySettings, UrlUnavailable, urls_of
from exporter.policy_file import check_approvals, check_names, compose, read_bounded, read_policy
from exporter.recovery.policy import RecoveryPolicy
from exporter.service.admission import Limits
from exporter.service.gradients import HistogramSettings
from exporter.service.history import Retention
from exporter.service.sinks.settings import InfluxSettings, TokenUnavailable, read_token
from exporter.yaml_lines import Lines

__all__ = [
    "SCOPES",
    "Config",
    "ConfigError",
    "Tls",
    "TokenSource",
    "Tokens",
    "address",
    "check_exposure",
    "load",
    "parse",
    "resolve_tokens",
]


class Detection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all detectors together; options of one are in the section ``detectors``."""

    preset: str = DEFAULT_PRESET
    """Which options the detectors have where the file does not say: a name in ``exporter.detectors.presets``."""
    pages_per_week: float = Budget().pages_per_week
    """False pages that a week of a healthy run may cost."""

    def __post_init__(self) -> None:
        preset_named(self.preset)
        self.budget()

    def budget(self) -> Budget:
        """As the detectors take it. Raises ``ValueError`` where it is none."""
        return Budget(self.pages_per_week)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    listen: str = "127.0.0.1:9464"
    """Address and port; port 0 takes a free one."""
    data_dir: str = ""
    """Folder of the journal; by default ``verl-sentinel`` in the user's state folder."""
    tokens: Tokens = Tokens()
    tls: Tls | None = None
    limits: Limits = Limits()
    incidents: Rules = Rules()
    detection: Detection = Detection()
    detectors: dict[str, dict[str, Any]] = {}
    """Options by detector name; they go before those of the preset."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    histogram: HistogramSettings = HistogramSettings()
    ended_run_grace_seconds: float = 900.0
    """A run that has ended stays in ``/metrics`` for this long."""
    retention: Retention = Retention()
    influxdb: InfluxSettings | None = None
    links: Links = Links()
    notify: NotifySettings = NotifySettings()

    def __post_init__(self) -> None:
        address(self.listen)
        if not 0 <= self.ended_run_grace_seconds < float("inf"):
            raise ValueError(f"ended_run_grace_seconds is {self.ended_run_grace_seconds}: it must be 0 or more")

    def detector_plan(self, preset: str | None = None) -> DetectorPlan:
        """How the detectors of every run are built; with another preset than the file's, where one is named.

        Raises ``ValueError`` for a preset that is not known, or whose options contradict those in the file.
        """
        return DetectorPlan(self.detectors, preset=preset or self.detection.preset, budget=self.detection.budget())


def load(path: Path | None, *, listen: str | None = None, data_dir: str | None = None) -> Config:
    """Read the file (none: the defaults), and look whether the files that it names can be used.

    ``listen`` and ``data_dir`` override it. Raises :class:`ConfigError`.
    """
    config = Config()
    if path is not None:
        config, lines = _parsed(_read(path), str(path))
        _check_files(config, lines)
    if listen is not None:
        try:
            address(listen)
        except ValueError as error:
            raise ConfigError(f"--{error}.") from None
        config = msgspec.structs.replace(config, listen=listen)
    return msgspec.structs.replace(config, data_dir=data_dir or config.data_dir or _default_data_dir())


def parse(text: str, file: str) -> Config:
    """Check the text of a configuration file named ``file``. Raises :class:`ConfigError`."""
    return _parsed(text, file)[0]


def _parsed(text: str, file: str) -> tuple[Config, Lines]:
    reader = Lines(file, Config)
    node = compose(text, file)
    if node is None:
        return Config(), reader
    data = reader.plain(node, "$")
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise reader.explain(error) from None
    for name, options in config.detectors.items():
        try:
            DetectorPlan({name: options}, preset=config.detection.preset)
        except ValueError as error:
            line = reader.line_of_setting(f"$.detectors.{name}", str(error))
            raise ConfigError(f"{file}, line {line}: detectors.{name}: {error}.") from None
    try:
        config.histogram.check_names(NAMES)
    except ValueError as error:
        line = reader.line_of("$.histogram.detectors")
        raise ConfigError(f"{file}, line {line}: histogram.detectors: {error}.") from None
    check_names(config.recovery, reader, "$.recovery")
    check_approvals(config.recovery, reader, "$.recovery")
    if config.recovery.policy_file:
        config = msgspec.structs.replace(config, recovery=_policy_of(config, data["recovery"], reader))
    return config, reader


def _policy_of(config: Config, section: Mapping[str, Any], lines: Lines) -> RecoveryPolicy:
    """The policy in the file that the section names; a relative path is one beside the configuration."""
    others = [name for name in section if name != "policy_file"]
    if others:
        line = lines.line_of(f"$.recovery.{others[0]}")
        sentence = f"recovery.{others[0]} stands beside recovery.policy_file: set it in that file"
        raise ConfigError(f"{lines.file}, line {line}: {sentence}.")
    line = lines.line_of("$.recovery.policy_file")
    path = Path(lines.file).parent / Path(config.recovery.policy_file).expanduser()
    return read_policy(path, f"{lines.file}, line {line}: recovery.policy_file")


def _check_files(config: Config, lines: Lines) -> None:
    """Raise :class:`ConfigError`, with the line, where a token or certificate is not to be had."""
    for scope in SCOPES:
        for index, source in enumerate(getattr(config.tokens, scope)):
            line = lines.line_of(f"$.tokens.{scope}[{index}]")
            tokens_of(source, f"{lines.file}, line {line}: tokens.{scope}", os.environ)
    if config.tls is not None:
        for setting, file in (("cert_file", config.tls.cert_file), ("key_file", config.tls.key_file)):
            readable(file, f"{lines.file}, line {lines.line_of(f'$.tls.{setting}')}: tls.{setting}")
        tls_context(config.tls, f"{lines.file}, line {lines.line_of('$.tls')}: tls")
    if config.influxdb is not None:
        token = config.influxdb.token
        try:
            read_token(token, os.environ)
        except TokenUnavailable as error:
            setting = "file" if token is not None and token.env is None else "env"
            line = lines.line_of(f"$.influxdb.token.{setting}")
            raise ConfigError(f"{lines.file}, line {line}: {error}") from None
        if config.influxdb.ca_file is not None:
            line = lines.line_of("$.influxdb.ca_file")
            readable(config.influxdb.ca_file, f"{lines.file}, line {line}: influxdb.ca_file")
    for name, sources in config.notify.targets.items():
        # Late: what checks addresses takes half a second to import, and most exporters have none.
        from exporter.notify.services import WrongUrl, check_url

        for index, url_source in enumerate(sources):
            line = lines.line_of(f"$.notify.targets.{name}[{index}]")
            where = f"{lines.file}, line {line}: notify.targets.{name}"
            try:
                urls = urls_of(url_source, os.environ)
            except UrlUnavailable as error:
                raise ConfigError(f"{where}: {error}.") from None
            for url in urls:
                try:
                    check_url(url)
                except WrongUrl as error:
                    raise ConfigError(f"{where}: the address in {url_source.origin} {error}.") from None


def _read(path: Path) -> str:
    return read_bounded(path, f"The configuration file {path}")


def _default_data_dir() -> str:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "verl-sentinel")
