"""The JSON that is checked in is what the code gives, and nothing in it is unknown to the SDK of Grafana 10.1."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard_parts import DASHBOARDS, Json, every_panel

from grafana.__main__ import FOLDER, main
from grafana.against import may_be_empty

needs_the_sdk = pytest.mark.skipif(sys.version_info < (3, 11), reason="the SDK needs Python 3.11")
PROVISIONING = FOLDER.parent / "provisioning"


@needs_the_sdk
def test_each_file_is_what_the_code_gives() -> None:
    from grafana.catalogue import written

    assert {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == written()


@needs_the_sdk
def test_a_file_that_somebody_edited_or_added_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grafana.__main__.FOLDER", tmp_path)
    assert main([]) == 0
    assert main(["--check"]) == 0
    edited = tmp_path / "verl-run.json"
    edited.write_text(edited.read_text().replace("Reward", "Rewards", 1))
    (tmp_path / "verl-old.json").write_text("{}")
    capsys.readouterr()
    assert main(["--check"]) == 1
    assert re.findall(r"verl-\w+\.json", capsys.readouterr().err) == ["verl-old.json", "verl-run.json"]
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_the_seven_dashboards_are_there() -> None:
    assert {one["uid"] for one in DASHBOARDS} == {
        "verl-fleet",
        "verl-run",
        "verl-performance",
        "verl-gpus",
        "verl-incidents",
        "verl-gray-release",
        "verl-exporter",
    }


@needs_the_sdk
def test_the_sdk_of_the_oldest_grafana_knows_every_field(dashboard: Json) -> None:
    """What it does not know it leaves out, and the two differ."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert _missing(dashboard, again) == set()


# Prometheus' own fields of an annotation are in no SDK; the other is of Grafana 10.3 and later, beside the older one.
_NOT_OF_THE_SDK = re.compile(
    r"annotations\.list\.(step|titleFormat|textFormat|tagKeys|useValueForTime)|panels\.options\.tooltip\.mode"
)


def _missing(whole: Any, part: Any, where: str = "") -> set[str]:
    if isinstance(whole, dict) and isinstance(part, dict):
        found: set[str] = set()
        for name, value in whole.items():
            place = f"{where}.{name}".lstrip(".")
            if name in part:
                found |= _missing(value, part[name], place)
            elif not _NOT_OF_THE_SDK.fullmatch(place):
                found.add(place)
        return found
    if isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        return set().union(*(_missing(a, b, where) for a, b in zip(whole, part, strict=True)))
    return set() if whole == part else {where}


def test_what_may_be_empty_is_there() -> None:
    """An excuse for a panel that was renamed excuses nothing, or the wrong one."""
    there = {one["uid"]: one for one in DASHBOARDS}
    for word, entry in may_be_empty().items():
        assert len(entry["reason"]) > 30, word
        for uid, titles in entry["empty"].items():
            board = there[uid]
            letters = {panel["title"]: {t["refId"] for t in panel.get("targets", [])} for panel in every_panel(board)}
            names = {one["name"] for one in board["templating"]["list"] + board["annotations"]["list"]}
            for title, said in titles.items():
                assert title in letters or title in names, f"{word}: {uid} has no {title}"
                assert set(said) <= letters.get(title, set()) | {"*"}, f"{word}: {uid}, {title}"


def test_grafana_is_told_of_the_dashboards_and_of_prometheus() -> None:
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    (prometheus,) = source["datasources"]
    assert source["apiVersion"] == 1
    assert (prometheus["type"], prometheus["url"], prometheus["isDefault"]) == ("prometheus", "${PROMETHEUS_URL}", True)
    from grafana.expanding import SCRAPE_SECONDS

    assert prometheus["jsonData"]["timeInterval"] == f"{SCRAPE_SECONDS}s"
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "verl-sentinel.yml").read_text())["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/var/lib/grafana/dashboards")
