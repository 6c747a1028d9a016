"""Reading the files of a directory that somebody else may have broken. Called by all lints of this package.

What cannot be read is a finding and never an exception: too large, not text, no YAML, no JSON, a link that leads out.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from json.decoder import JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import yaml

from exporter.bundle.findings import Report

MOST_BYTES = 4 * 1024 * 1024
"""Of one file. The largest dashboard of this repository has a thirtieth of it."""
MOST_FILES = 2000
"""Of one directory."""
DEEPEST = 8
"""Folders below the directory. No layout of ours is half as deep."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def composed(text: str) -> yaml.Node | None:
    """YAML as nodes, which know their lines; ``None`` for an empty text."""
    node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    return node


class Tree:
    """The files of a directory, without those that a link leads to outside of it.

    Args:
        root: the directory; it has to exist.
        report: takes what cannot be read.
    """

    def __init__(self, root: Path, report: Report) -> None:
        self.root = root
        self.report = report
        self._real = root.resolve()
        self._texts: dict[str, str | None] = {}

    def files(self, folder: str, wanted: Callable[[str], bool]) -> list[str]:
        """Paths below the root, sorted, of the files in and below a folder; none where there is no such folder."""
        found: list[str] = []
        for path in self._walk(self.root / folder, 0):
            if wanted(path.name):
                found.append(path.relative_to(self.root).as_posix())
            if len(found) > MOST_FILES:
                self.report.add(folder, 0, "file", f"More than {MOST_FILES} files: the others are not looked at.")
                break
        return sorted(found[:MOST_FILES])

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        try:
            with os.scandir(folder) as entries:
                below = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            self._unreadable(folder, error)
            return
        for entry in below:
            path = folder / entry.name
            # A link to a folder is not followed: it may lead in circles, and no layout of ours has one.
            if entry.is_dir(follow_symlinks=False):
                if depth >= DEEPEST:
                    self.report.add(self._named(path), 0, "file", f"More than {DEEPEST} folders deep: not looked at.")
                elif not entry.name.startswith((".", "__")):
                    yield from self._walk(path, depth + 1)
            elif not entry.name.startswith("."):
                yield path

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder, by a name that stays inside."""
        try:
            target = (self.root / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return False
        return target == self._real or self._real in target.parents

    def text(self, path: str) -> str | None:
        """A file's text; ``None``, after a finding, where it has none. Each file is read once."""
        if path not in self._texts:
            self._texts[path] = self._read(path)
        return self._texts[path]

    def _read(self, path: str) -> str | None:
        full = self.root / path
        try:
            if full.is_symlink() and not self.has(path):
                raise OSError("it is a link that leads nowhere, in a circle or out of the directory")
            if not stat.S_ISREG(full.stat().st_mode):
                raise OSError("it is not a plain file")
            with full.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, RuntimeError) as error:
            self._unreadable(full, error)
            return None
        if len(content) > MOST_BYTES:
            self.report.add(path, 0, "file", f"It is larger than {MOST_BYTES // 2**20} MiB, so it is not read.")
            return None
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            self.report.add(path, line, "file", "It is no text: a byte here is not UTF-8.")
            return None
        if "\0" in text:
            self.report.add(
                path, text[: text.index("\0")].count("\n") + 1, "file", "It is no text: it has a zero byte."
            )
            return None
        return text

    def yaml(self, path: str) -> yaml.Node | None:
        """A file's YAML as nodes, which know their lines; ``None``, after a finding, where it is none or empty."""
        text = self.text(path)
        if text is None:
            return None
        try:
            node = composed(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            said = ", ".join(part for part in (error.context, error.problem) if part)
            self.report.add(
                path, mark.line + 1 if mark else 1, "file", f"It is no YAML: {said or 'it cannot be read'}."
            )
            return None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.report.add(path, 1, "file", f"It is no YAML: {' '.join(str(error).split())[:200]}.")
            return None
        if node is None:
            self.report.add(path, 1, "file", "It is empty.")
        return node

    def json(self, path: str) -> Any:
        """A file's JSON, each object a :class:`Placed`; ``None``, after a finding, where it is none."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return placed_json(text)
        except json.JSONDecodeError as error:
            self.report.add(path, error.lineno, "file", f"It is no JSON: {error.msg}.")
        except (ValueError, RecursionError) as error:
            self.report.add(path, 1, "file", f"It is no JSON that can be read: {str(error)[:200]}.")
        return None

    def _unreadable(self, path: Path, error: Exception) -> None:
        why = getattr(error, "strerror", None) or str(error)
        self.report.add(self._named(path), 0, "file", f"It cannot be read: {why}.")

    def _named(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


class Placed(dict[str, Any]):
    """An object of a JSON text, with the line where it begins."""

    line: int = 1


def placed_json(text: str) -> Any:
    """JSON as plain data, each object a :class:`Placed`.

    >>> placed_json('{"a":\\n [{"b": 1}]}')["a"][0].line
    2
    """
    lines = [index for index, character in enumerate(text) if character == "\n"]
    decoder: Any = json.JSONDecoder()

    def parse_object(s_and_end: tuple[str, int], *rest: Any) -> tuple[Any, int]:
        from bisect import bisect_left

        value, end = JSONObject(s_and_end, *rest)
        placed = Placed(value)
        placed.line = bisect_left(lines, s_and_end[1] - 1) + 1
        return placed, end

    decoder.parse_object = parse_object
    decoder.scan_once = py_make_scanner(decoder)
    return decoder.decode(text)


def entries(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Keys of a mapping with the nodes of key and value, those of merged mappings (``<<``) too; empty for others."""
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    if not isinstance(node, yaml.MappingNode):
        return found
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if merged is not node:
                    found = {**{name: pair for name, pair in _own(merged).items()}, **found}
    return {**found, **_own(node)}


def _own(node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pair = entries(node).get(key)
    return pair[1] if pair else None


def items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def text_of(node: yaml.Node | None) -> str:
    """A scalar as it is written; empty for anything else."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
