"""``make up`` and ``make down`` with all programs: started once, found again, ended alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from local_machine import ROOT, Machine, running, wait_for

from compose import configuration
from compose.local import stack as local_stack
from compose.local.answers import answers, is_free, text_of
from compose.local.service import StackError
from compose.local.services import Settings
from demo.client import watches

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]


def test_up_starts_all_that_is_there_and_they_know_each_other(machine: Machine) -> None:
    told = machine.up()
    for key in ("exporter", "alertmanager", "prometheus"):
        assert machine.url(key) in told
    assert answers(f"{machine.url('exporter')}/readyz")
    wait_for(
        "Prometheus scrapes the exporter and knows its Alertmanager",
        lambda: watches(machine.url("prometheus"), machine.url("exporter").removeprefix("http://")),
    )
    rules = json.loads(text_of(f"{machine.url('prometheus')}/api/v1/rules") or "{}")
    loaded = {Path(group["file"]).name for group in rules["data"]["groups"]}
    assert loaded == {file.name for file in (ROOT / "rules" / "prometheus").glob("*.rules.yml")}


def test_alerts_lead_to_the_pages_of_this_stack(machine: Machine) -> None:
    machine.up()
    groups = json.loads(text_of(f"{machine.url('prometheus')}/api/v1/rules") or "{}")["data"]["groups"]
    alerts = {rule["name"]: rule["annotations"] for group in groups for rule in group["rules"] if "annotations" in rule}
    assert alerts["Watchdog"]["runbook_url"] == f"{machine.url('exporter')}/runbooks/Watchdog.md"
    assert not any("127.0.0.1:9464" in text for one in alerts.values() for text in one.values())


def test_a_second_up_starts_nothing_and_says_what_runs(machine: Machine) -> None:
    machine.up()
    before = machine.pids()
    told = machine.up()
    assert machine.pids() == before
    assert told.count("runs already") == len(before)
    assert "started, process" not in told


def test_after_a_kill_up_starts_what_is_missing_and_leaves_the_rest_alone(machine: Machine) -> None:
    machine.up()
    before = machine.pids()
    os.kill(before["prometheus"], signal.SIGKILL)
    os.kill(before["exporter"], signal.SIGKILL)
    wait_for("both are dead", lambda: not running(before["prometheus"]) and not running(before["exporter"]))
    told = machine.up()
    after = machine.pids()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"prometheus", "exporter"}
    assert told.count("started, process") == 2
    assert answers(f"{machine.url('prometheus')}/-/ready")
    assert answers(f"{machine.url('exporter')}/readyz")


def test_down_ends_all_of_it_and_says_so_also_what_had_crashed(machine: Machine) -> None:
    machine.up()
    pids = machine.pids()
    os.kill(pids["alertmanager"], signal.SIGKILL)
    wait_for("it is dead", lambda: not running(pids["alertmanager"]))
    told = machine.down()
    assert f"prometheus: ended (process {pids['prometheus']})" in told
    assert "alertmanager: had ended before" in told
    assert not any(running(pid) for pid in pids.values())
    assert all(is_free(machine.ports[key]) for key in pids)
    assert "Nothing of a stack" in machine.down()
    # Prometheus was let write what it had, and was not killed.
    assert "See you next time!" in (machine.folder / "logs" / "prometheus.log").read_text()


def test_what_is_changed_in_the_rules_is_read_by_a_second_up_and_an_error_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tmp_path / "rules"
    shutil.copytree(ROOT / "rules", rules)
    monkeypatch.setattr(configuration, "RULES", rules)
    settings = Settings(folder=machine.folder, ports={})
    local_stack.up(settings, machine.ports)
    file = next((rules / "prometheus").glob("*.rules.yml"))
    good = file.read_text()
    file.write_text(
        good.rstrip() + "\n\n  - name: added\n    rules:\n      - record: verl:added\n        expr: vector(1)\n"
    )
    local_stack.up(settings, {})
    groups = json.loads(text_of(f"{machine.url('prometheus')}/api/v1/rules") or "{}")["data"]["groups"]
    assert "added" in {group["name"] for group in groups}
    file.write_text("groups: [{name: broken, rules: [{record: x, expr: 'sum('}]}]\n")
    with pytest.raises(StackError, match=r"(?s)goes on with what it read before.*unclosed left parenthesis"):
        local_stack.up(settings, {})
    assert answers(f"{machine.url('prometheus')}/-/ready")
    # Once it is mended, it is taken again.
    file.write_text(good)
    local_stack.up(settings, {})
