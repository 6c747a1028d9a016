"""YAML as plain data that remembers its lines. Called by :mod:`exporter.config`.

The text is read as nodes, which know their lines, and the path that msgspec gives for an error is looked up in them.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec
import yaml

from exporter.exposure import ConfigError


class Lines:
    """YAML nodes as plain data, with the line of every path.

    Args:
        file: its name, for the sentences.
        whole: the type that the text is about to be converted to.
    """

    def __init__(self, file: str, whole: type) -> None:
        self.file = file
        self._whole = whole
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
            known = _fields_at(self._whole, path)
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}."
            return ConfigError(
                f"{self.file}, line {self.line_of(f'{path}.{key}')}: {key} is not a known setting; {hint}"
            )
        setting = path.removeprefix("$").removeprefix(".")
        kind = _kind_at(self._whole, path)
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
        if "[...]" in path:
            # msgspec does not say which entry of a mapping it is; where only one has that setting, that is it.
            entry = re.escape(path).replace(re.escape("[...]"), r"\.[^\[\]]+") + rf"\.{re.escape(about)}"
            found = [key for key in self.lines if re.fullmatch(entry, key)]
            if len(found) == 1:
                return self.lines[found[0]]
        while path not in self.lines and path != "$":
            path = re.sub(r"(\.[^.\[\]]+|\[[^\]]*\])$", "", path) or "$"
        return self.lines.get(path, 1)


def _fields_at(whole: type, path: str) -> list[str]:
    """Names of the settings of the section at a path."""
    kind = _kind_at(whole, path)
    return [field.encode_name for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _kind_at(whole: type, path: str) -> Any:
    """msgspec's description of the type that is expected at a path."""
    kind: Any = msgspec.inspect.type_info(whole)
    for name, index in re.findall(r"\.([^.\[\]]+)|(\[[^\]]*\])", path):
        if name and isinstance(kind, msgspec.inspect.StructType):
            kind = next(field.type for field in kind.fields if field.encode_name == name)
        elif index:
            kind = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    return kind
