"""Every example in a docstring of the exporter is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import exporter

MODULES = [
    module.name
    for module in pkgutil.walk_packages(exporter.__path__, "exporter.")
    if not module.name.startswith("exporter.detectors") and not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
