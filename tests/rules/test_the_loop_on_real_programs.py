"""Push, scrape, rule, route, webhook, recovery: with the real exporter, Prometheus and Alertmanager on loopback."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_run import NAN, FakeRun, wait_for
from relay import Relay

from demo.client import answers, get_json
from demo.processes import Child
from demo.stack import START_SECONDS, Stack

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]


class RelayedStack(Stack):
    """The demo's stack, with the relay between Alertmanager and the exporter."""

    relay: Relay

    def _alertmanager(self) -> Child:
        child = super()._alertmanager()
        self.relay = Relay(f"{self.exporter_url}/api/v1/alerts")
        path = self.out / "alertmanager.yml"
        config = yaml.safe_load(path.read_text())
        for receiver in config["receivers"]:
            for hook in receiver.get("webhook_configs", []):
                hook["url"] = self.relay.url
        path.write_text(yaml.safe_dump(config))
        return child

    def kill_exporter(self) -> None:
        exporter = self.children[0]
        exporter.send(signal.SIGKILL)
        wait_for("the exporter is dead", lambda: not exporter.running())

    def start_exporter(self) -> None:
        exporter = self.children[0]
        exporter.start()
        exporter.wait_until(lambda: answers(f"{self.exporter_url}/readyz"), START_SECONDS, "it was ready")

    def read(self, path: str) -> list[dict[str, Any]]:
        found = get_json(f"{self.exporter_url}/api/v1/{path}?limit=1000", self.token("operate"))
        return list(found[path]) if found else []

    def recoveries(self, run: FakeRun) -> list[dict[str, Any]]:
        return [entry for entry in self.read("recoveries") if entry["run_id"] == run.run_id]

    def audit_kinds(self, run: FakeRun) -> list[str]:
        return [entry["kind"] for entry in self.read("audit") if entry["run_id"] == run.run_id]

    def in_stage(self, run: FakeRun, stage: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            return next((entry for entry in self.recoveries(run) if entry["stage"] == stage), None)

        return wait_for(f"a recovery of {run.run_id} that is {stage}", look)

    def alerts_at_alertmanager(self, name: str, run: FakeRun) -> list[dict[str, Any]]:
        found = get_json(f"{self.alertmanager_url}/api/v2/alerts") or []
        return [a for a in found if a["labels"].get("alertname") == name and a["labels"].get("run") == run.run_id]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedStack]:
    stack = RelayedStack(tmp_path_factory.mktemp("stack"), recovery={"cooldown_seconds": 1, "no_progress_steps": 0})
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        stack.relay.close()


def broken_run(stack: RelayedStack, name: str, *checkpoints: int) -> FakeRun:
    """A run that trained ten steps and whose weights are NaN from step 11 on."""
    run = FakeRun(stack.exporter_url, stack.token("push"), name)
    run.start(1)
    for step in range(1, 11):
        run.train(1, step)
        if step in checkpoints:
            run.save(1, step)
    run.train(1, 11, 12, loss=NAN)
    return run


def test_steps_of_nan_become_a_page_a_plan_and_a_recovered_run(stack: RelayedStack) -> None:
    run = broken_run(stack, "nan-run", 4, 8, 10)
    command = run.command(1)
    assert (command.action, command.target_step) == ("rollback", 8), "10 lies within the margin"
    page = wait_for("the page", lambda: stack.alerts_at_alertmanager("VerlNonFinite", run))[0]
    assert page["labels"]["action"] == "rollback"
    assert {receiver["name"] for receiver in page["receivers"]} >= {"recovery", "people"}
    run.report(1, command, "accepted", "stopping", "stopped", "starting", target=8)
    run.start(2, 8, command.id)
    assert run.report(2, command, "started", "succeeded", target=8).command is None
    run.train(2, *range(9, 15))
    recovery = stack.in_stage(run, "succeeded")
    assert recovery["first_healthy_step"] == 9
    times = recovery["times"]
    assert times["alert_received"] <= times["command_delivered"] <= times["first_healthy_step"] <= times["succeeded"]
    wait_for("the alert's end is noted", lambda: "alert_resolved" in stack.audit_kinds(run))
    assert len(stack.recoveries(run)) == 1


def all_succeeded(stack: RelayedStack, run: FakeRun, count: int) -> bool:
    return [recovery["stage"] for recovery in stack.recoveries(run)] == ["succeeded"] * count


def test_a_second_fault_of_a_recovered_run_pages_again_and_is_recovered_again(stack: RelayedStack) -> None:
    run = broken_run(stack, "twice-run", 4, 8)
    pages = []
    for attempt, target in ((1, 8), (2, 12)):
        command = run.command(attempt)
        assert (command.attempt, command.target_step) == (attempt, target)
        pages.append(wait_for("the page", lambda: stack.alerts_at_alertmanager("VerlNonFinite", run))[0])
        run.report(attempt, command, "accepted", "stopping", "stopped", "starting", target=target)
        run.start(attempt + 1, target, command.id)
        run.report(attempt + 1, command, "started", "succeeded", target=target)
        run.train(attempt + 1, *range(target + 1, target + 6))
        wait_for("its success", partial(all_succeeded, stack, run, attempt))
        if attempt == 1:
            run.save(2, 12)
            run.train(2, 14, 15, 16, loss=NAN)
    first, second = pages
    assert first["fingerprint"] == second["fingerprint"]
    assert {recovery["attempt"] for recovery in stack.recoveries(run)} == {1, 2}


def test_retries_and_duplicates_of_the_webhook_make_one_recovery(stack: RelayedStack) -> None:
    stack.relay.lose["retried-run"] = 3
    run = broken_run(stack, "retried-run", 8)
    wait_for("Alertmanager has tried again", lambda: len(stack.relay.of_run(run.run_id)) >= 4)
    body = stack.relay.of_run(run.run_id)[0]

    def again(_: int) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {stack.token('alert')}"}
        request = urllib.request.Request(f"{stack.exporter_url}/api/v1/alerts", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        decisions = [alert for answer in pool.map(again, range(16)) for alert in answer["alerts"]]
    assert {decision["outcome"] for decision in decisions} == {"duplicate"}
    assert len(stack.recoveries(run)) == 1
    assert stack.audit_kinds(run).count("alert_planned") == 1


def test_an_exporter_killed_between_alert_and_restart_finishes_the_recovery(stack: RelayedStack) -> None:
    run = broken_run(stack, "killed-run", 8)
    planned = stack.in_stage(run, "commanded")
    stack.kill_exporter()
    stack.start_exporter()
    command = run.command(1)
    assert command.id == planned["id"]
    run.report(1, command, "accepted", "stopping", target=8)
    stack.kill_exporter()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        late = pool.submit(run.report, 1, command, "stopped", "starting", target=8)
        stack.start_exporter()
        assert late.result().command == command, "the command is delivered again, under the same id"
    run.start(2, 8, command.id)
    run.report(2, command, "started", "succeeded", target=8)
    run.train(2, *range(9, 15))
    recovery = stack.in_stage(run, "succeeded")
    assert recovery["times"]["stopping"] is not None
    assert [entry["id"] for entry in stack.recoveries(run)] == [planned["id"]]


def test_without_a_verified_checkpoint_the_run_is_stopped_and_people_are_paged(stack: RelayedStack) -> None:
    run = broken_run(stack, "lost-run", 10)
    command = run.command(1)
    assert (command.action, command.target_step) == ("stop", None)
    run.report(1, command, "accepted", "stopping", "stopped", "succeeded")
    assert "no verified checkpoint" in stack.in_stage(run, "failed")["outcome"]
    wait_for("people are paged", lambda: stack.alerts_at_alertmanager("VerlRecoveryFailed", run))


def test_the_shipped_rules_are_what_ran(stack: RelayedStack) -> None:
    shipped = Path(__file__).resolve().parents[2] / "rules" / "prometheus"

    def evaluated() -> list[dict[str, Any]] | None:
        """Groups, once each of their rules has been evaluated; some are every half a minute only."""
        rules = get_json(f"{stack.prometheus_url}/api/v1/rules")
        groups: list[dict[str, Any]] = rules["data"]["groups"] if rules else []
        return None if any(rule["health"] == "unknown" for group in groups for rule in group["rules"]) else groups

    groups = wait_for("every rule has been evaluated", evaluated)
    assert {Path(group["file"]).name for group in groups} == {file.name for file in shipped.glob("*.rules.yml")}
    assert {rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if "lastError" in rule} == {}
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
