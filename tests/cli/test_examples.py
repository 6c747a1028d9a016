"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "exporter.cli.run_summary",
    "exporter.cli.showing",
    "exporter.follow.lives",
    "exporter.follow.naming",
    "exporter.follow.parsing",
    "exporter.follow.tail",
    "exporter.service.export",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
