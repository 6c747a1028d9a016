"""Changes of a YAML text that leave all the rest of it, comments too, as it is. Called by what fills in values.

Nodes know where they stand in the text. Changes are collected and made at once, so that places stay true meanwhile.
"""

from __future__ import annotations

import json
import re

import yaml

from exporter.bundle.reading import composed, entries, value_of


def quoted(value: str) -> str:
    r"""A text in YAML, whatever is in it.

    >>> print(quoted('say "yes": # no'))
    "say \"yes\": # no"
    """
    return json.dumps(value, ensure_ascii=False)


class Edits:
    """Changes of one text.

    Args:
        text: YAML that can be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = composed(text)
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._changes: dict[tuple[int, int], str] = {}
        self._set: set[tuple[int, str]] = set()

    def _at(self, mark: yaml.Mark) -> int:
        return self._starts[mark.line] + mark.column

    def span(self, node: yaml.Node) -> tuple[int, int]:
        """Where a node stands, without the blank lines and comments behind it."""
        start, end = self._at(node.start_mark), self._at(node.end_mark)
        last = node
        while isinstance(last, (yaml.MappingNode, yaml.SequenceNode)) and not last.flow_style and last.value:
            # A block ends for the parser where the next thing begins; its last entry knows better.
            last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
            end = self._at(last.end_mark)
        return start, start + len(self.text[start:end].rstrip())

    def replace(self, node: yaml.Node, written: str) -> None:
        """Put something else in a node's place; ``written`` is YAML. An anchor stays, and with it what refers to it."""
        start, end = self.span(node)
        anchor = re.match(r"&[^\s,\[\]{}]+\s+", self.text[start:end])
        self._changes[start + (anchor.end() if anchor else 0), end] = written

    def set(self, mapping: yaml.Node | None, key: str, written: str) -> None:
        """Give a key of a mapping a value: in the place of its old one, or as an entry behind its first."""
        if (id(mapping), key) in self._set:
            return  # an alias: what it refers to has been changed
        self._set.add((id(mapping), key))
        pair = entries(mapping).get(key)
        if pair is not None:
            self.replace(pair[1], written)
        elif not isinstance(mapping, yaml.MappingNode) or not mapping.value:
            if mapping is not None:
                self.replace(mapping, f"{{{key}: {written}}}")
        elif mapping.flow_style or len(mapping.value) == 1:
            first = mapping.value[0][0].start_mark
            between = ", " if mapping.flow_style else "\n" + " " * first.column
            self.insert(self._at(first), f"{key}: {written}{between}")
        else:
            second = mapping.value[1][0]
            self.before(second, " " * second.start_mark.column + f"{key}: {written}\n")

    def insert(self, place: int, written: str) -> None:
        """Put something at a place of the text, behind what was put there before."""
        self._changes[place, place] = self._changes.get((place, place), "") + written

    def before(self, node: yaml.Node, lines: str) -> None:
        """Put whole lines before the line on which a node begins."""
        self.insert(self._starts[node.start_mark.line], lines)

    def drop_lines(self, first: yaml.Node, last: yaml.Node) -> None:
        """Take out all lines from that of one node to that on which another ends."""
        end = self.span(last)[1]
        newline = self.text.find("\n", end)
        stop = len(self.text) if newline < 0 else newline + 1
        self._changes[self._starts[first.start_mark.line], stop] = ""

    def done(self) -> str:
        """The changed text."""
        text = self.text
        for (start, end), written in sorted(self._changes.items(), reverse=True):
            text = text[:start] + written + text[end:]
        return text


def at(node: yaml.Node | None, *keys: str) -> yaml.Node | None:
    """The value behind a path of keys, ``None`` where there is none."""
    for key in keys:
        node = value_of(node, key)
    return node
