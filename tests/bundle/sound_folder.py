"""A small directory in which nothing is wrong, for tests that break one thing of it; and what a check says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporter.bundle.check import check
from exporter.bundle.findings import Finding, Report

R = "rules/prometheus/small.rules.yml"

RULES = """\
groups:
  - name: small
    rules:
      - record: verl:loss:max
        expr: max by (run) (verl_loss)
      - alert: VerlLoss
        expr: verl:loss:max > 9
        labels: {severity: critical}
        annotations: &said
          summary: 'Run {{ $labels.run }}: the loss is high'
          description: '{{ with printf `verl_training_step{run=%q}` .Labels.run | query }}{{ len . }}{{ end }}'
          action: Look at the run.
          dashboard_url: http://127.0.0.1:3000/d/verl-small?var-run={{ $labels.run | urlquery }}
          runbook_url: http://127.0.0.1:9464/runbooks/VerlLoss.md
      - alert: VerlLoss
        expr: verl:loss:max > 5
        labels: {severity: warning}
        annotations: *said
      - alert: VerlDown
        expr: up{job="verl-sentinel"} == 0
        labels: {severity: warning}
        annotations:
          summary: The exporter is down
          description: Nothing is watched.
          action: Start it.
          dashboard_url: http://127.0.0.1:3000/d/verl-small
          runbook_url: http://127.0.0.1:9464/runbooks/VerlDown.md
"""

TESTS = """\
rule_files: [../prometheus/small.rules.yml]
evaluation_interval: 1m
tests:
  - name: high, higher, low
    interval: 1m
    input_series:
      - {series: 'verl_loss{run="r"}', values: '10 6 1'}
    promql_expr_test:
      - expr: verl:loss:max
        eval_time: 0m
        exp_samples: [{labels: 'verl:loss:max{run="r"}', value: 10}]
    alert_rule_test:
      - eval_time: 0m
        alertname: VerlLoss
        exp_alerts:
          - {exp_labels: {severity: critical, run: r}, exp_annotations: &said {summary: 'Run r: the loss is high', \
description: '', action: Look at the run., dashboard_url: 'http://127.0.0.1:3000/d/verl-small?var-run=r', \
runbook_url: 'http://127.0.0.1:9464/runbooks/VerlLoss.md'}}
          - {exp_labels: {severity: warning, run: r}, exp_annotations: *said}
      - eval_time: 1m
        alertname: VerlLoss
        exp_alerts: [{exp_labels: {severity: warning, run: r}, exp_annotations: *said}]
      - {eval_time: 2m, alertname: VerlLoss, exp_alerts: []}
      - {eval_time: 2m, alertname: VerlDown, exp_alerts: []}
  - name: down
    interval: 1m
    input_series:
      - {series: 'up{job="verl-sentinel"}', values: '0'}
    alert_rule_test:
      - eval_time: 0m
        alertname: VerlDown
        exp_alerts:
          - exp_labels: {severity: warning, job: verl-sentinel}
            exp_annotations: {summary: The exporter is down, description: Nothing is watched., action: Start it., \
dashboard_url: 'http://127.0.0.1:3000/d/verl-small', runbook_url: 'http://127.0.0.1:9464/runbooks/VerlDown.md'}
"""

PROMETHEUS = """\
global: {scrape_interval: 5s}
rule_files: [small.rules.yml]
scrape_configs:
  - job_name: verl-sentinel
    static_configs: [{targets: ["127.0.0.1:9464"]}]
"""

ALERTMANAGER = """\
route:
  receiver: people
  routes:
    - {receiver: people, matchers: ['severity="critical"']}
inhibit_rules:
  - source_matchers: ['alertname=~"VerlLoss|VerlL.+"', 'severity="critical"']
    target_matchers: ['severity="warning"']
    equal: [run]
receivers:
  - name: people
templates: [templates/*.tmpl]
"""

TEMPLATES = '{{ define "verl.title" }}{{ template "slack.default.title" . }}{{ end }}\n'

COMPOSE = """\
services:
  prometheus:
    volumes:
      - data:/prometheus
      - /etc/hosts:/etc/hosts:ro
      - ../rules/prometheus:/etc/prometheus/rules:ro
      - ./secrets/token:/token:ro
      - {type: bind, source: ./here.yml, target: /here.yml}
      - {type: volume, source: data, target: /data}
"""

RUNBOOK = """\
# VerlLoss

## What it means

The loss is high.

## How to confirm

Look at it.

## What to do

Look at the run.

## When to roll back

Never.

## Known false positives

- None.
"""


def dashboard() -> dict[str, Any]:
    """A dashboard with every kind of query."""
    return {
        "title": "Small",
        "uid": "verl-small",
        "tags": ["verl"],
        "links": [{"type": "dashboards", "tags": ["verl"]}, {"type": "link", "url": "/d/verl-small"}],
        "templating": {
            "list": [
                {"name": "run", "type": "query", "query": {"query": "label_values(verl_run_info, run)"}},
                {
                    "name": "node",
                    "type": "query",
                    "query": 'label_values(verl_gpu_utilization_ratio{run="$run"}, node)',
                },
            ]
        },
        "annotations": {"list": [{"name": "Findings", "expr": 'verl_incident_onset_step{run="$run"}'}]},
        "panels": [
            {
                "id": 1,
                "type": "timeseries",
                "title": "Loss",
                "description": "The loss.",
                "fieldConfig": {"defaults": {"unit": "none"}, "overrides": []},
                "targets": [
                    {"expr": 'verl_loss{run=~"${run:regex}"}'},
                    {"expr": "rate(verl_training_steps_total[$__range])"},
                ],
            },
            {
                "id": 2,
                "type": "row",
                "title": "More",
                "panels": [
                    {
                        "id": 3,
                        "type": "text",
                        "title": "Read",
                        "description": "What this is.",
                        "options": {"content": ""},
                    }
                ],
            },
        ],
    }


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def sound(root: Path) -> Path:
    """Write the directory."""
    write(
        root,
        {
            "rules/prometheus/small.rules.yml": RULES,
            "rules/prometheus/prometheus.yml": PROMETHEUS,
            "rules/tests/small.yml": TESTS,
            "rules/runbooks/VerlLoss.md": RUNBOOK,
            "rules/runbooks/VerlDown.md": RUNBOOK.replace("VerlLoss", "VerlDown"),
            "rules/templates/small.tmpl": TEMPLATES,
            "compose/compose.yml": COMPOSE,
            "compose/here.yml": "{}\n",
            "rules/alertmanager.yml": ALERTMANAGER,
            "grafana/dashboards/verl-small.json": json.dumps(dashboard(), indent=1),
        },
    )
    return root


def replaced(root: Path, name: str, old: str, new: str, count: int = 1) -> None:
    """Break a file in one place."""
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{name} does not have {old}"
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def redrawn(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Break the dashboard."""
    data = dashboard()
    change(data)
    (root / "grafana/dashboards/verl-small.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def report_of(root: Path, **options: Any) -> Report:
    """What is found without the programs."""
    return check(root, **{"without": ("promtool", "amtool"), **options})


def found_in(root: Path, **options: Any) -> list[Finding]:
    return report_of(root, **options).sorted()
