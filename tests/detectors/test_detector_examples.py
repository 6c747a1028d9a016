"""The examples in the detectors' docstrings show the exact step of detection: they must stay true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import exporter.detectors

MODULES = [
    "exporter.protocol",
    "exporter.signals.plans",
    *(f"exporter.detectors.{m.name}" for m in pkgutil.iter_modules(exporter.detectors.__path__)),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_detector_has_an_example() -> None:
    from exporter.detectors.registry import LIVE_DETECTORS, STEP_DETECTORS

    for kind in (*STEP_DETECTORS.values(), *LIVE_DETECTORS.values()):
        assert ">>>" in (kind.__doc__ or "")
