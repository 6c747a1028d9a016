"""A value is put into a YAML text, and all the rest of the text stays as it is."""

from __future__ import annotations

import pytest
import yaml

from exporter.bundle.edits import Edits, at, quoted
from exporter.bundle.reading import items, value_of

HOSTILE = 'it\'s "x": # {{y}} 中 \\ %s, [z]'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a:\n  k: old  # why\n  m: 1\n", "a:\n  k: NEW  # why\n  m: 1\n"),
        ("a:\n  k: >-\n    old\n    text\n\n# why\nb: 1\n", "a:\n  k: NEW\n\n# why\nb: 1\n"),
        ("a: {k: 'o''ld', m: 1} # why\n", "a: {k: NEW, m: 1} # why\n"),
        ("a:\n  m: 1\n  # why\n  n: 2\n", "a:\n  m: 1\n  # why\n  k: NEW\n  n: 2\n"),
        ("a:\n  m: 1\nb: 2\n", "a:\n  k: NEW\n  m: 1\nb: 2\n"),
        ("a: {m: 1}\n", "a: {k: NEW, m: 1}\n"),
        ("a: {}\n", "a: {k: NEW}\n"),
        ("a: &x\n  k: &y old\n  m: *y\n", "a: &x\n  k: &y NEW\n  m: *y\n"),
        ("中: 文 # 中\na: {k: 文字, m: 1}\n", "中: 文 # 中\na: {k: NEW, m: 1}\n"),
    ],
)
def test_a_key_gets_its_value_and_the_rest_stays(text: str, wanted: str) -> None:
    edits = Edits(text)
    edits.set(at(edits.root, "a"), "k", "NEW")
    assert edits.done() == wanted


def test_a_mapping_that_is_repeated_by_an_alias_is_changed_once() -> None:
    edits = Edits("a: &a {m: 1}\nb: *a\n")
    for key in ("a", "b"):
        edits.set(at(edits.root, key), "k", "NEW")
    assert yaml.safe_load(edits.done()) == {"a": {"k": "NEW", "m": 1}, "b": {"k": "NEW", "m": 1}}


def test_several_entries_come_in_their_order_and_lines_can_go() -> None:
    edits = Edits("a:\n  m: 1\n  n: 2\nl:\n  - x\n  - y # why\n  - z\n")
    edits.set(at(edits.root, "a"), "k", "1")
    edits.set(at(edits.root, "a"), "j", "2")
    gone = items(value_of(edits.root, "l"))[1]
    edits.drop_lines(gone, gone)
    assert edits.done() == "a:\n  m: 1\n  k: 1\n  j: 2\n  n: 2\nl:\n  - x\n  - z\n"


def test_whatever_is_quoted_is_read_as_it_was() -> None:
    edits = Edits("a: {k: old}\nb:\n  - k: old\n")
    edits.set(at(edits.root, "a"), "k", quoted(HOSTILE))
    edits.set(items(value_of(edits.root, "b"))[0], "k", quoted(HOSTILE))
    assert yaml.safe_load(edits.done()) == {"a": {"k": HOSTILE}, "b": [{"k": HOSTILE}]}
