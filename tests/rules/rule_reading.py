"""The rule files as data, and what a selector of theirs matches. Used by the tests of this folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parents[2] / "rules"
PROMETHEUS = RULES / "prometheus"
RULE_FILES = sorted(PROMETHEUS.glob("*.rules.yml"))
PRESET_FILES = sorted((PROMETHEUS / "presets").glob("*.rules.yml"))
TEST_FILES = sorted((RULES / "tests").glob("*.yml"))

Rule = Mapping[str, Any]


def rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


ALL = [rule for file in (*RULE_FILES, *PRESET_FILES) for rule in rules_of(file)]
ALERTS = [rule for rule in ALL if "alert" in rule]
RECORDED = [str(rule["record"]) for rule in ALL if "record" in rule]
LOADED_ALERTS = [rule for file in RULE_FILES for rule in rules_of(file) if "alert" in rule]
OF_SITUATIONS = [rule for rule in LOADED_ALERTS if re.search(r"verl_situation_open\{[^}]*severity=", rule["expr"])]
"""Alerts that are made of situations. One of forecasts only looks whether there is one."""


def named(alert: Rule) -> tuple[str, str]:
    """Name and severity, which together are one rule."""
    return alert["alert"], alert["labels"]["severity"]


def of_a_run(alert: Rule) -> bool:
    """Whether it has the label ``run``: its team is that of the run."""
    return "verl_run_info" in alert["labels"].get("team", "")


_SELECTOR = re.compile(r"verl_situation_open\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def takes(alert: Rule, situation: Mapping[str, str]) -> bool:
    """Whether the alert's selector of situations matches these labels."""
    (selector,) = _SELECTOR.findall(alert["expr"])
    return all(_matches(situation.get(name, ""), how, value) for name, how, value in _MATCHER.findall(selector))


def _matches(label: str, how: str, value: str) -> bool:
    same = re.fullmatch(value, label) is not None if "~" in how else label == value
    return same is not how.startswith("!")


@cache
def rule_tests() -> tuple[dict[str, Any], ...]:
    """Every test of the test files; these are long, so they are read once, and only where they are asked for."""
    return tuple(test for file in TEST_FILES for test in yaml.safe_load(file.read_text())["tests"])
