"""All rules, the preset's too, on a real Prometheus that scrapes a real exporter once a second.

promtool evaluates made series. Here the series are those of the page, so a label or a name that the exporter spells in
another way is found; and the run's id is as odd as it may be, so that every template has to quote it.
"""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import yaml
from fake_run import NAN, FakeRun, wait_for
from rule_reading import ALERTS, PRESET_FILES, PROMETHEUS, RECORDED, RULE_FILES

from demo.client import get_json
from demo.processes import Child
from demo.stack import Stack
from exporter.links import DEFAULT_GRAFANA
from exporter.protocol import GpuReading, HookMissing, HooksReported, RolloutCounts, Step

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]

ODD = "team/a b\"c'd\\e <script>alert(1)</script> 100% {{ $labels }} `x` ?id=2&var=3#4+5 训练"
PROJECT = '搜索 "p" & {{ q }}'
STEPS = 20
MIB = 1 << 20
A_WEEK_AGO = "verl:weight_sync_share:ratio1h_1w"
"""The one recorded name that cannot have a value here; promtool tests it."""


class EveryRule(Stack):
    """The demo's stack with the preset switched on and every group evaluated once a second."""

    def _prometheus(self) -> Child:
        child = super()._prometheus()
        for file in (self.out / "rules").rglob("*.rules.yml"):
            file.write_text(file.read_text().replace("interval: 30s", "interval: 1s"))
        path = self.out / "prometheus.yml"
        config = yaml.safe_load(path.read_text())
        presets = [str(self.out / "rules" / file.relative_to(PROMETHEUS)) for file in PRESET_FILES]
        config["rule_files"] += presets
        path.write_text(yaml.safe_dump(config, allow_unicode=True))
        return child

    def asked(self, path: str) -> Any:
        found = get_json(f"{self.prometheus_url}/api/v1/{path}")
        return found["data"] if found else None

    def series(self, query: str) -> list[dict[str, Any]]:
        found = self.asked(f"query?query={quote(query)}")
        return list(found["result"]) if found else []


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryRule]:
    stack = EveryRule(tmp_path_factory.mktemp("every-rule"))
    try:
        stack.start()
        stack.wait_until_watching()
        break_a_run(stack)
        yield stack
    finally:
        stack.stop()


def break_a_run(stack: EveryRule) -> None:
    """A run that has a bit of everything, with scrapes between its steps, and at last a loss that is NaN."""
    run = FakeRun(stack.exporter_url, stack.token("push"), ODD, PROJECT)
    run.start(1)
    run.trainer.push(
        1,
        events=(
            HooksReported(time=0.0, installed=["a", "b"], missing=[HookMissing(name="c", reason="not in this verl")]),
        ),
    )
    for step in range(1, STEPS + 1):
        run.trainer.push(
            1,
            steps=(Step(step=step, metrics=metrics_of(step)),),
            gpus=tuple(gpu_of(index) for index in range(2)),
            rollout=RolloutCounts(succeeded=40 * step, failed=min(step, 2)),
        )
        newest = f"verl_training_step{{run={promql(ODD)}}} == {step}"
        wait_for("the step is scraped", lambda newest=newest: stack.series(newest))  # type: ignore[misc]
    run.save(1, 8)
    run.train(1, STEPS + 1, STEPS + 2, loss=NAN)


def metrics_of(step: int) -> dict[str, float]:
    return {
        "actor/pg_loss": 0.5,
        "actor/loss": 0.5,
        "actor/grad_norm": 1.0 + step % 3 / 10,
        "actor/lr": 1e-6,
        "actor/kl_loss": 0.05,
        "actor/entropy": 2.0,
        "perf/max_memory_reserved_gb": 40.0,
        "perf/total_num_tokens": 64000.0,
        "timing_s/step": 32.0,
        "timing_s/update_weights": 2.0,
    }


def gpu_of(index: int) -> GpuReading:
    return GpuReading(
        node="node-1",
        index=index,
        uuid=f"GPU-{index}",
        memory_used_bytes=60_000 * MIB,
        memory_total_bytes=80_000 * MIB,
        utilization_ratio=0.9,
        power_watts=400.0,
        temperature_celsius=60.0,
    )


def promql(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def alert_of(stack: EveryRule, name: str) -> dict[str, Any]:
    """The alert of the run, once it fires."""

    def look() -> dict[str, Any] | None:
        found = stack.asked("alerts") or {"alerts": []}
        of_run = [a for a in found["alerts"] if a["labels"]["alertname"] == name and a["labels"].get("run") == ODD]
        return next((alert for alert in of_run if alert["state"] == "firing"), None)

    return wait_for(f"{name} fires", look)


def test_every_rule_of_every_file_is_evaluated_without_error(stack: EveryRule) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        groups = (stack.asked("rules") or {"groups": []})["groups"]
        unknown = any(rule["health"] == "unknown" for group in groups for rule in group["rules"])
        return None if unknown or not groups else list(groups)

    alert_of(stack, "VerlNonFinite")  # so that templates have been filled in, too
    groups = wait_for("every rule has been evaluated", evaluated)
    assert {Path(group["file"]).name for group in groups} == {file.name for file in (*RULE_FILES, *PRESET_FILES)}
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert len(rules) == len(ALERTS) + len(RECORDED)


@pytest.mark.parametrize("name", sorted({*RECORDED} - {A_WEEK_AGO}))
def test_every_recorded_name_has_a_value_of_the_run(stack: EveryRule, name: str) -> None:
    of = f"project={promql(PROJECT)}" if name.startswith("verl_experiment:") else f"run={promql(ODD)}"
    found = wait_for(f"{name} is recorded", lambda: stack.series(f"{{__name__={promql(name)}, {of}}}"))
    assert name == "loss_trajectory" or all(float(one["value"][1]) >= 0 for one in found), "only the loss is NaN"


def test_a_page_has_the_labels_by_which_it_is_routed_and_silenced(stack: EveryRule) -> None:
    labels = alert_of(stack, "VerlNonFinite")["labels"]
    assert labels == {
        **{"alertname": "VerlNonFinite", "severity": "critical", "action": "rollback", "team": PROJECT},
        **{"run": ODD, "detector": "non_finite", "signal": labels["signal"]},
    }


def test_a_page_has_its_numbers_however_odd_the_id_of_its_run_is(stack: EveryRule) -> None:
    said = alert_of(stack, "VerlNonFinite")["annotations"]
    assert said["summary"].startswith(f"Run {ODD}: ")
    assert f"Newest step {STEPS + 2}." in said["description"]
    assert "Loss NaN." in said["description"]
    assert f"since step {STEPS + 1} (non_finite)" in said["findings"]
    assert not [text for text in said.values() if "error" in text or "<no value>" in text or text.strip() != text]


def test_the_links_of_a_page_lead_to_the_run_itself(stack: EveryRule) -> None:
    said = alert_of(stack, "VerlNonFinite")["annotations"]
    console, dashboard = urlsplit(said["console_url"]), urlsplit(said["dashboard_url"])
    assert (f"{console.scheme}://{console.netloc}", console.path) == (stack.exporter_url, "/console/run")
    assert parse_qs(console.query, strict_parsing=True) == {"id": [ODD]}
    assert (f"{dashboard.scheme}://{dashboard.netloc}", dashboard.path) == (DEFAULT_GRAFANA, "/d/verl-run")
    assert parse_qs(dashboard.query, strict_parsing=True) == {"var-run": [ODD]}
    assert console.fragment == dashboard.fragment == ""


def test_the_runbook_of_a_page_is_served_by_the_exporter(stack: EveryRule) -> None:
    said = alert_of(stack, "VerlNonFinite")["annotations"]
    assert said["runbook_url"] == f"{stack.exporter_url}/runbooks/VerlNonFinite.md"
    with urllib.request.urlopen(said["runbook_url"], timeout=30) as answer:
        assert "VerlNonFinite" in answer.read().decode()


def test_a_ticket_that_waits_is_pending_for_the_run_that_it_is_about_and_for_nothing_else(stack: EveryRule) -> None:
    """A hook is missing; what else is known of this young run is no ground for a ticket."""
    alert_of(stack, "VerlNonFinite")
    active = {
        (alert["labels"]["alertname"], alert["labels"].get("run", ""))
        for alert in stack.asked("alerts")["alerts"]
        if alert["labels"]["severity"] == "warning"
    }
    assert active == {("VerlHooksMissing", ODD)}
