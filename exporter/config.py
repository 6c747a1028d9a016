"""The configuration file: YAML into checked values. Called by the CLI at start.

A wrong file stops the program with a sentence that names the file, the line, what is there and what was expected. So
the YAML is read as nodes, which know their lines, and the path that msgspec gives for an error is looked up in them.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from exporter.detectors.registry import NAMES, build_detectors
from exporter.incidents import Rules
from exporter.recovery.policy import RecoveryPolicy
from exporter.service.admission import Limits

SCOPES = ("push", "alert", "operate")


class ConfigError(Exception):
    """The program cannot start with this configuration; the text is a sentence for a person."""


class TokenSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tokens come from: exactly one of the three."""

    file: str | None = None
    """A file with one token a line; empty lines and lines that start with # do not count."""
    env: str | None = None
    """Name of an environment variable that holds one token."""
    value: str | None = None
    """The token itself."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.file, self.env, self.value)) != 1:
            raise ValueError("a token has exactly one of file, env and value")


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bearer tokens by scope. A scope without any is open to all who can reach the port, which must be loopback."""

    push: tuple[TokenSource, ...] = ()
    alert: tuple[TokenSource, ...] = ()
    operate: tuple[TokenSource, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    listen: str = "127.0.0.1:9464"
    """Address and port; port 0 takes a free one."""
    data_dir: str = ""
    """Folder of the journal; by default ``verl-sentinel`` in the user's state folder."""
    tokens: Tokens = Tokens()
    limits: Limits = Limits()
    incidents: Rules = Rules()
    detectors: dict[str, dict[str, Any]] = {}
    """Options by detector name."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    ended_run_grace_seconds: float = 900.0
    """A run that has ended stays in ``/metrics`` for this long."""

    def __post_init__(self) -> None:
        address(self.listen)
        if not 0 <= self.ended_run_grace_seconds < float("inf"):
            raise ValueError(f"ended_run_grace_seconds is {self.ended_run_grace_seconds}: it must be 0 or more")


def address(listen: str) -> tuple[str, int]:
    """Split ``host:port`` (IPv6 in brackets). Raises ``ValueError`` with a sentence."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(
            f"listen is {listen!r}: an address and a port are expected, such as 127.0.0.1:9464 or [::1]:9464"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def load(path: Path | None, *, listen: str | None = None, data_dir: str | None = None) -> Config:
    """Read the file (none: the defaults); ``listen`` and ``data_dir`` override it. Raises :class:`ConfigError`."""
    config = Config() if path is None else parse(_read(path), str(path))
    if listen is not None:
        try:
            address(listen)
        except ValueError as error:
            raise ConfigError(f"--{error}.") from None
        config = msgspec.structs.replace(config, listen=listen)
    return msgspec.structs.replace(config, data_dir=data_dir or config.data_dir or _default_data_dir())


def parse(text: str, file: str) -> Config:
    """Check the text of a configuration file named ``file``. Raises :class:`ConfigError`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}, line {mark.line + 1}" if mark is not None else file
        raise ConfigError(f"{place}: this is not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: this is not YAML: {str(error).splitlines()[0]}.") from None
    if node is None:
        return Config()
    reader = _Nodes(file)
    data = reader.plain(node, "$")
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise reader.explain(error) from None
    for name, options in config.detectors.items():
        try:
            build_detectors({name: options})
        except ValueError as error:
            line = reader.line_of_setting(f"$.detectors.{name}", str(error))
            raise ConfigError(f"{file}, line {line}: detectors.{name}: {error}.") from None
    for index, trigger in enumerate(config.recovery.triggers):
        unknown = next((name for name in trigger.detectors if name not in NAMES), None)
        if unknown is not None:
            line = reader.line_of(f"$.recovery.triggers[{index}].detectors")
            raise ConfigError(
                f"{file}, line {line}: recovery.triggers: {unknown} is no detector; known here: {', '.join(NAMES)}."
            )
    return config


def resolve_tokens(tokens: Tokens, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The tokens of each scope. Raises :class:`ConfigError` where a file or variable is missing, empty or malformed."""
    return {
        scope: tuple(token for source in getattr(tokens, scope) for token in _tokens_of(source, scope, environment))
        for scope in SCOPES
    }


def check_exposure(listen: str, tokens: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse to be reachable from other machines without tokens. Raises :class:`ConfigError`."""
    host, _ = address(listen)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    open_scopes = [scope for scope in SCOPES if not tokens[scope]]
    if not loopback and open_scopes:
        raise ConfigError(
            f"listen is {listen}, which other machines can reach, but no token is set for {', '.join(open_scopes)}: "
            "set tokens for every scope (tokens: in the configuration file), or listen on 127.0.0.1."
        )


def _tokens_of(source: TokenSource, scope: str, environment: Mapping[str, str]) -> list[str]:
    where = f"tokens.{scope}"
    if source.value is not None:
        found, origin = [source.value], "its value"
    elif source.env is not None:
        origin = f"the environment variable {source.env}"
        if source.env not in environment:
            raise ConfigError(f"{where}: {origin} is not set.")
        found = [environment[source.env].strip()]
    else:
        origin = f"the file {source.file}"
        try:
            text = Path(source.file or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {origin} cannot be read: {_os_reason(error)}.") from None
        found = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not found or not all(found):
        raise ConfigError(f"{where}: {origin} holds no token.")
    for token in found:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ConfigError(f"{where}: {origin} holds a token with spaces or characters outside ASCII.")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {_os_reason(error)}.") from None


def _os_reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"


def _default_data_dir() -> str:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "verl-sentinel")


class _Nodes:
    """YAML nodes as plain data, with the line of every path."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self._seen: set[int] = set()
        self._loader = yaml.SafeLoader("")

    def plain(self, node: yaml.Node, path: str) -> Any:
        """The node's value; notes lines, refuses keys that are repeated or no words, and aliases."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if id(node) in self._seen:
            raise ConfigError(f"{self.file}, line {line}: anchors and aliases are not supported, repeat the value.")
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            try:
                return self._loader.construct_object(node)
            except (yaml.YAMLError, ValueError) as error:
                raise ConfigError(f"{self.file}, line {line}: {node.value!r} cannot be read: {error}.") from None
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, key_line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ConfigError(f"{self.file}, line {key_line}: a key has to be a single word.")
            if key in data:
                first = self.lines[f"{path}.{key}"]
                raise ConfigError(f"{self.file}, line {key_line}: {key} is set twice, first in line {first}.")
            self.lines[f"{path}.{key}"] = key_line
            data[key] = self.plain(value_node, f"{path}.{key}")
        return data

    def explain(self, error: msgspec.ValidationError) -> ConfigError:
        """Turn msgspec's message, which ends with a path, into a sentence with a line."""
        message, _, place = str(error).partition(" - at `")
        path = place.rstrip("`") or "$"
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
        if unknown:
            key = unknown.group(1)
            known = _fields_at(path)
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}."
            return ConfigError(
                f"{self.file}, line {self.line_of(f'{path}.{key}')}: {key} is not a known setting; {hint}"
            )
        setting = path.removeprefix("$").removeprefix(".")
        kind = _kind_at(path)
        if message.startswith("Invalid enum value") and isinstance(kind, msgspec.inspect.LiteralType):
            message += f": expected {', '.join(map(str, kind.values))}"
        message = message.replace("`", "").replace("object", "a section with settings").removesuffix(".")
        named = f"{setting}: " if setting else ""
        return ConfigError(f"{self.file}, line {self.line_of(path, message)}: {named}{message}.")

    def line_of_setting(self, path: str, message: str) -> int:
        """The line of the setting inside ``path`` whose name the message has first, else of ``path``."""
        found: list[tuple[int, str]] = []
        for key in (key for key in self.lines if key.startswith(f"{path}.")):
            named = re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", message)
            found.extend([(named.start(), key)] if named else [])
        return self.lines[min(found)[1]] if found else self.line_of(path)

    def line_of(self, path: str, message: str = "") -> int:
        """The line of the path, or of the nearest above it; a check of a section names the setting it is about."""
        about = message.split(" ", 1)[0]
        if f"{path}.{about}" in self.lines:
            return self.lines[f"{path}.{about}"]
        while path not in self.lines and path != "$":
            path = re.sub(r"(\.[^.\[\]]+|\[[^\]]*\])$", "", path) or "$"
        return self.lines.get(path, 1)


def _fields_at(path: str) -> list[str]:
    """Names of the settings of the section at a path."""
    kind = _kind_at(path)
    return [field.encode_name for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _kind_at(path: str) -> Any:
    """msgspec's description of the type that is expected at a path."""
    kind: Any = msgspec.inspect.type_info(Config)
    for name, index in re.findall(r"\.([^.\[\]]+)|(\[[^\]]*\])", path):
        if name and isinstance(kind, msgspec.inspect.StructType):
            kind = next(field.type for field in kind.fields if field.encode_name == name)
        elif index:
            kind = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    return kind
