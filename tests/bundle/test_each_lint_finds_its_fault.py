"""A copy that is sound but for one thing gives one finding, at its place, that names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sound_folder import found_in, redrawn, replaced, sound, write

R, T = "rules/prometheus/small.rules.yml", "rules/tests/small.yml"
P, A = "rules/prometheus/prometheus.yml", "rules/alertmanager.yml"
D = "grafana/dashboards/verl-small.json"
Break = Callable[[Path], Any]


def edit(name: str, old: str, new: str, count: int = 1) -> Break:
    return partial(replaced, name=name, old=old, new=new, count=count)


def draw(change: Callable[[dict[str, Any]], Any]) -> Break:
    return partial(redrawn, change=change)


def put(name: str, text: str) -> Break:
    return lambda root: write(root, {name: text})


def panel(key: str, value: Any) -> Break:
    return draw(lambda data: data["panels"][0].update({key: value}))


def variable(query: str) -> Break:
    return draw(lambda data: data["templating"]["list"][1].update(query=query))


def target(expr: str) -> Break:
    return panel("targets", [{"expr": expr}])


def left_out(root: Path) -> None:
    other = (root / P).read_text().replace("[small.rules.yml]", "[small.rules.yml, idle.rules.yml]")
    write(root, {"rules/prometheus/idle.rules.yml": "groups: []\n", "rules/prometheus/other.yml": other})


FAULTS: dict[str, tuple[Break, str, str, str]] = {
    "a metric that nobody exports": (
        edit(R, "(verl_loss)", "(verl_los)"),
        R,
        "query",
        "verl_los is exported by nobody",
    ),
    "the name without the counter's ending": (
        target("rate(verl_training_steps[5m])"),
        D,
        "query",
        "verl_training_steps is exported by nobody",
    ),
    "a histogram by its bare name": (
        target("verl_training_step_duration_seconds"),
        D,
        "query",
        "did you mean verl_training_step_duration_seconds_",
    ),
    "a label that the metric does not have": (
        target('verl_loss{node="n"}'),
        D,
        "query",
        "verl_loss has no label node",
    ),
    "by a label that is not there": (
        target("sum by (project) (verl_loss)"),
        D,
        "query",
        "no label project",
    ),
    "a label that a rule has summed away": (
        target('verl:loss:max{instance="a"}'),
        D,
        "query",
        "verl:loss:max has no label instance",
    ),
    "on a label that one side lacks": (
        target("verl_loss * on (run, project) verl_run_info"),
        D,
        "query",
        "left side of * on (run, project)",
    ),
    "a label that the other side cannot bring": (
        target("verl_loss * on (run) group_left (node) verl_run_info"),
        D,
        "query",
        "group_left takes labels from has no",
    ),
    "quantiles without le": (
        target("histogram_quantile(0.9, sum by (run) (rate(verl_training_step_duration_seconds_bucket[5m])))"),
        D,
        "query",
        "no label le",
    ),
    "a value that a label never has": (
        target('verl_run_state{state="finishd"}'),
        D,
        "query",
        "state of verl_run_state is never finishd",
    ),
    "a detector that there is not": (
        target('verl_situation_open{detector="k1"}'),
        D,
        "query",
        "detector of verl_situation_open is never k1",
    ),
    "a value in a pattern that a label never has": (
        target('sum(verl_rollout_requests_total{outcome!~"failed|canceled"})'),
        D,
        "query",
        "outcome of verl_rollout_requests_total is never failed|canceled",
    ),
    "a bucket that the histogram does not have": (
        target('rate(verl_training_step_duration_seconds_bucket{le="31.0"}[5m])'),
        D,
        "query",
        "le of verl_training_step_duration_seconds_bucket is never 31.0",
    ),
    "the rate of a gauge": (
        target("rate(verl_sentinel_runs[5m])"),
        D,
        "query",
        "rate is for a counter, and verl_sentinel_runs is a gauge",
    ),
    "the slope of a counter": (
        target("delta(prometheus_notifications_dropped_total[5m])"),
        D,
        "query",
        "delta is for a gauge, and prometheus_notifications_dropped_total is a counter",
    ),
    "a pattern of names that fits none": (
        target('{__name__=~"verl_nothing_.*"}'),
        D,
        "query",
        "No metric has a name like verl_nothing_.*",
    ),
    "an expression that is none": (target("sum(verl_loss"), D, "query", "cannot be parsed"),
    "an empty query": (target(" "), D, "query", "has an empty query"),
    "a misspelt metric of Prometheus": (
        target("prometheus_notification_dropped_total"),
        D,
        "query",
        "did you mean prometheus_notifications_dropped_total?",
    ),
    "a query in an annotation": (
        edit(R, "verl_training_step{", "verl_training_stepp{"),
        R,
        "query",
        "VerlLoss, in description: verl_training_stepp",
    ),
    "a label in a text that the alert lacks": (
        edit(R, "Run {{ $labels.run }}", "Run {{ $labels.experiment }}"),
        R,
        "template",
        "summary shows label experiment",
    ),
    "no summary": (
        edit(R, "          summary: 'Run {{ $labels.run }}: the loss is high'\n", ""),
        R,
        "annotation",
        "no summary",
    ),
    "no action": (edit(R, "          action: Look at the run.\n", ""), R, "annotation", "VerlLoss has no action"),
    "no severity": (edit(R, "{severity: critical}", "{team: t}"), R, "severity", "VerlLoss has no severity"),
    "a severity that has no route": (edit(R, "severity: critical", "severity: page"), R, "severity", "severity page"),
    "an alert that is there twice": (
        edit(R, "severity: warning", "severity: critical"),
        R,
        "duplicate",
        "with severity critical is there twice",
    ),
    "a series that is recorded twice": (
        edit(R, "      - alert", "      - {record: 'verl:loss:max', expr: max by (run) (verl_loss)}\n      - alert"),
        R,
        "duplicate",
        "verl:loss:max is there twice",
    ),
    "no runbook": (
        lambda root: (root / "rules/runbooks/VerlLoss.md").unlink(),
        R,
        "runbook",
        "VerlLoss has no runbook",
    ),
    "a runbook with another title": (
        edit("rules/runbooks/VerlLoss.md", "# VerlLoss", "# The loss"),
        "rules/runbooks/VerlLoss.md",
        "runbook",
        "# VerlLoss",
    ),
    "a runbook of no alert": (
        put("rules/runbooks/VerlGone.md", "# VerlGone\n"),
        "rules/runbooks/VerlGone.md",
        "runbook",
        "No alert is named VerlGone",
    ),
    "a link to another runbook": (edit(R, "VerlLoss.md", "VerlLost.md"), R, "runbook", "not to VerlLoss.md"),
    "a link to a dashboard that is not there": (
        edit(R, "/d/verl-small", "/d/verl-big"),
        R,
        "link",
        "dashboard verl-big",
    ),
    "a rule file that nobody loads": (
        put("rules/prometheus/idle.rules.yml", "groups: []\n"),
        "rules/prometheus/idle.rules.yml",
        "loading",
        "loads this file",
    ),
    "a rule file that is not there": (
        edit(P, "[small.rules.yml]", "[small.rules.yml, gone.rules.yml]"),
        P,
        "loading",
        "gone.rules.yml is to be loaded",
    ),
    "a test of an alert that is not there": (
        edit(T, "{eval_time: 2m, alertname: VerlLoss,", "{eval_time: 2m, alertname: VerlLos,"),
        T,
        "test",
        "VerlLos is tested",
    ),
    "a route for an alert that is not there": (
        edit(A, "VerlLoss|VerlL.+", "VerlLoss|VerlGpu.+"),
        A,
        "route",
        "No alert is named like VerlGpu.+",
    ),
    "a route for a severity that no alert has": (
        edit(A, "'severity=\"critical\"']}", "'severity=\"critcal\"']}"),
        A,
        "route",
        "did you mean critical?",
    ),
    "a runbook with nothing but its title": (
        put("rules/runbooks/VerlLoss.md", "# VerlLoss\n"),
        "rules/runbooks/VerlLoss.md",
        "runbook",
        "It says nothing under What it means, How to confirm, What to do, When to roll back, Known false positives.",
    ),
    "a section of a runbook without text": (
        edit("rules/runbooks/VerlLoss.md", "Look at the run.", ""),
        "rules/runbooks/VerlLoss.md",
        "runbook",
        "It says nothing under What to do.",
    ),
    "a job that nobody scrapes": (
        edit(P, "job_name: verl-sentinel", "job_name: vs"),
        R,
        "job",
        "VerlDown looks for job verl-sentinel, which rules/prometheus/prometheus.yml does not scrape: it has vs",
    ),
    "a rule file that one configuration leaves out": (
        left_out,
        P,
        "loading",
        "rules/prometheus/idle.rules.yml is loaded elsewhere and not here",
    ),
    "a template that is not defined": (
        edit(A, "- name: people", "- name: people\n    slack_configs: [{text: '{{ template \"verl.titel\" . }}'}]"),
        A,
        "template",
        "Template verl.titel is called and not defined; did you mean verl.title?",
    ),
    "a template that calls one that is not defined": (
        put("rules/templates/more.tmpl", '{{ define "verl.more" }}\n{{ template "verl.les" . }}{{ end }}\n'),
        "rules/templates/more.tmpl",
        "template",
        "Template verl.les is called and not defined",
    ),
    "a mount that is not there": (
        edit("compose/compose.yml", "../rules/prometheus:", "../rules/prometeus:"),
        "compose/compose.yml",
        "mount",
        "Service prometheus mounts ../rules/prometeus, and rules/prometeus is not there",
    ),
    "a mount in the long form that is not there": (
        edit("compose/compose.yml", "source: ./here.yml", "source: ./there.yml"),
        "compose/compose.yml",
        "mount",
        "compose/there.yml is not there",
    ),
    "a unit that Grafana does not know": (
        panel("fieldConfig", {"defaults": {"unit": "secnds"}}),
        D,
        "unit",
        "Panel Loss has unit secnds, which Grafana does not know",
    ),
    "a unit of one series that Grafana does not know": (
        panel(
            "fieldConfig",
            {"defaults": {"unit": "s"}, "overrides": [{"properties": [{"id": "unit", "value": "percentunits"}]}]},
        ),
        D,
        "unit",
        "did you mean percentunit?",
    ),
    "a panel without title": (panel("title", " "), D, "panel", "A panel (timeseries) has no title"),
    "a panel without description": (panel("description", ""), D, "panel", "Panel Loss has no description"),
    "a panel without unit": (panel("fieldConfig", {"defaults": {}}), D, "panel", "Panel Loss has no unit"),
    "a panel in a row without description": (
        draw(lambda data: data["panels"][1]["panels"][0].pop("description")),
        D,
        "panel",
        "Panel Read has no description",
    ),
    "two panels with one id": (panel("id", 3), D, "duplicate", "id 3, as another one has"),
    "a variable that is not there": (target('verl_loss{run="$rum"}'), D, "variable", "uses $rum"),
    "a panel repeated for nothing": (panel("repeat", "gpu"), D, "variable", "is repeated for gpu"),
    "a variable that asks for nothing": (variable(" "), D, "variable", "Variable node has no query"),
    "a variable over a metric that is not there": (
        variable("label_values(verl_gpus, node)"),
        D,
        "query",
        "verl_gpus is exp",
    ),
    "a variable over a label that is not there": (
        variable("label_values(verl_loss, node)"),
        D,
        "label",
        "values of label node",
    ),
    "a variable that is no query": (variable("select * from runs"), D, "variable", "Grafana does not understand"),
    "an annotation over a metric that is not there": (
        draw(lambda data: data["annotations"]["list"][0].update(expr="verl_findings")),
        D,
        "query",
        "Annotation Findings",
    ),
    "a link in a dashboard that leads nowhere": (
        draw(lambda data: data["links"][1].update(url="/d/verl-gone?x")),
        D,
        "link",
        "dashboard verl-gone",
    ),
    "links to tags that no dashboard has": (
        draw(lambda data: data["links"][0].update(tags=["vrel"])),
        D,
        "link",
        "tagged vrel",
    ),
    "a dashboard without title": (draw(lambda data: data.pop("title")), D, "dashboard", "It has no title"),
    "a uid that is taken": (
        lambda root: (root / D).with_name("other.json").write_text((root / D).read_text()),
        D,
        "duplicate",
        "Its uid verl-small is that of grafana/dashboards/other.json",
    ),
}

FOLLOWS = {(R, "test"), (T, "test"), (A, "route")}
"""What may be found besides: an alert that is another one now is not the one that is tested and routed."""


def test_what_is_sound_gives_no_finding(tmp_path: Path) -> None:
    assert found_in(sound(tmp_path)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_at_its_place_and_nothing_else(tmp_path: Path, fault: str) -> None:
    break_it, file, kind, sentence = FAULTS[fault]
    break_it(sound(tmp_path))
    found = found_in(tmp_path)
    about_it = [one for one in found if (one.file, one.check) == (file, kind)]
    assert {(one.file, one.check) for one in found} - FOLLOWS <= {(file, kind)}, found
    # What is said of an alert's texts is said for both of its severities.
    assert about_it, found
    assert all(sentence in one.sentence and one.line > 0 for one in about_it), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{exp_labels: {severity: critical", "{exp_labels: {severity: other", "critical has no test in which it fires"),
        (
            "exp_alerts: []",
            "exp_alerts: [{exp_labels: {severity: warning}}]",
            "warning has no test in which it does not",
        ),
        ("expr: verl:loss:max", "expr: verl_loss", "verl:loss:max has no test in which it has a value"),
        ("../prometheus/small.rules.yml", "../prometheus/other.rules.yml", "has no test in which it fires"),
    ],
)
def test_an_alert_or_a_series_that_no_test_shows_is_found(tmp_path: Path, old: str, new: str, said: str) -> None:
    replaced(sound(tmp_path), T, old, new)
    assert any(said in one.sentence and one.file == R for one in found_in(tmp_path))


def test_the_line_is_that_of_the_fault(tmp_path: Path) -> None:
    replaced(sound(tmp_path), R, "expr: verl:loss:max > 9", "expr: >-\n          verl:loss:maximum > 9")
    (one,) = found_in(tmp_path)
    assert (tmp_path / R).read_text().splitlines()[one.line - 1].strip() == "expr: >-"
    redrawn(sound(tmp_path), lambda data: data["panels"][1]["panels"][0].update(title=""))
    (one,) = found_in(tmp_path)
    assert '"id": 3' in (tmp_path / D).read_text().splitlines()[one.line]


def test_an_alert_that_always_fires_needs_no_test_in_which_it_does_not(tmp_path: Path) -> None:
    replaced(sound(tmp_path), R, "expr: verl:loss:max > 5", "expr: vector(1)")
    replaced(tmp_path, R, "expr: verl:loss:max > 9", "expr: verl_loss > 9")
    replaced(tmp_path, T, "exp_alerts: []", "exp_alerts: [{exp_labels: {severity: warning}}]")
    assert {one.check for one in found_in(tmp_path)} == {"template"}, "it has no run to show, and no test is missing"


def test_a_preset_need_not_be_loaded_but_its_alerts_are_looked_at(tmp_path: Path) -> None:
    write(
        sound(tmp_path),
        {"rules/prometheus/presets/more.rules.yml": "groups:\n  - {name: a, rules: [{alert: B, expr: up}]}\n"},
    )
    assert {one.check for one in found_in(tmp_path)} == {"annotation", "severity", "runbook", "test"}


def test_metrics_of_others_can_be_allowed(tmp_path: Path) -> None:
    import re

    FAULTS["a metric that nobody exports"][0](sound(tmp_path))
    redrawn(tmp_path, lambda data: data["panels"][0].update(targets=[{"expr": 'node_load1{instance="n"}'}]))
    assert len(found_in(tmp_path)) == 2
    assert found_in(tmp_path, allowed=[re.compile("node_.*"), re.compile("verl_los")]) == []


def test_addresses_that_were_never_filled_in_are_found_when_asked_for(tmp_path: Path) -> None:
    sound(tmp_path)
    found = found_in(tmp_path, strict=True)
    assert [(one.file, one.line, one.check) for one in found] == [(R, 13, "address"), (R, 14, "address")]
