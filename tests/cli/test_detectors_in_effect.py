"""``verl-sentinel detectors``: what is in effect, by preset and file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import cli, cli_bytes

from exporter.detectors.calibration import Budget
from exporter.detectors.registry import NAMES


def effect(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole answer, and its detectors by name."""
    result = cli_bytes(None, "detectors", "--output", "json", *arguments)
    assert result.returncode == 0, result.stderr.decode()
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer, {one["name"]: one for one in answer["detectors"]}


def option(detector: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in detector["options"] if one["name"] == name)  # type: ignore[no-any-return]


def test_without_options_it_lists_every_detector_with_its_defaults() -> None:
    answer, detectors = effect()
    assert (answer["preset"], answer["pages_per_week"]) == ("grpo", Budget().pages_per_week)
    assert list(detectors) == list(NAMES)
    k = option(detectors["surge"], "k")
    assert (k["value"], k["default"], k["origin"], k["meaning"]) == (3, 3, "default", k["meaning"])
    assert k["meaning"]


def test_values_of_preset_and_file_say_where_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.yml"
    file.write_text(
        "detection: {preset: manual, pages_per_week: 3}\n"
        "detectors:\n  fixed_limits: {kl_above: 0.5}\n  silent_run: {enabled: false}\n"
        "tokens: {push: [{file: /nowhere/token}]}\n"  # of no matter here
    )
    answer, detectors = effect("--config", str(file))
    assert (answer["preset"], answer["pages_per_week"]) == ("manual", 3.0)
    above, below = option(detectors["fixed_limits"], "kl_above"), option(detectors["fixed_limits"], "kl_below")
    assert (above["value"], above["origin"], below["value"], below["origin"]) == (0.5, "file", 0.01, "preset")
    assert (detectors["silent_run"]["enabled"], detectors["silent_run"]["origin"]) == (False, "file")
    assert (detectors["surge"]["enabled"], detectors["surge"]["origin"]) == (False, "preset")
    other, detectors = effect("--config", str(file), "--preset", "grpo")
    assert other["preset"] == "grpo"
    assert option(detectors["fixed_limits"], "kl_below")["value"] is None
    assert detectors["surge"]["enabled"] is True


def test_the_table_has_a_row_for_each_option_and_says_what_the_budget_is() -> None:
    code, shown = cli(None, "detectors", "--preset", "manual")
    assert code == 0
    rows = [line.split() for line in shown.splitlines()]
    assert ["fixed_limits", "kl_above", "0.3", "preset", "null", "nats"] in [row[:6] for row in rows]
    assert ["surge", "enabled", "false", "preset", "true"] in [row[:5] for row in rows]
    assert f"Preset: manual. Pages that a week of a healthy run may cost: {Budget().pages_per_week:g}." in shown


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("", ("--preset", "manul"), "--preset is 'manul': did you mean 'manual'? Known: grpo, ppo, dapo, sft, manual."),
        ("detection: {preset: dpao}\n", (), "line 1: detection: preset is 'dpao': did you mean 'dapo'?"),
        (
            "\ndetectors: {surge: {facter: 3}}\n",
            (),
            "line 2: detectors.surge: unknown option of detector surge 'facter': did you mean 'factor'?",
        ),
        (
            "detectors: {fixed_limits: {kl_below: 0.4}}\n",
            ("--preset", "manual"),
            "detector fixed_limits: kl_below is 0.4: it must not be above kl_above (0.3).",
        ),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, text: str, arguments: tuple[str, ...], sentence: str) -> None:
    file = tmp_path / "sentinel.yml"
    file.write_text(text)
    code, shown = cli(None, "detectors", "--config", str(file), *arguments)
    assert code == 2
    assert sentence in shown


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    code, shown = cli(None, "detectors", "--config", str(tmp_path / "none.yml"))
    assert code == 2
    assert "cannot be read" in shown
