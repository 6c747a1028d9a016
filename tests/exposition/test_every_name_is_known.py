"""docs/metrics.md, the design's names, the rules and the exposition speak of the same metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from exporter_scene import Scene
from pages import everything, rich, samples

from exporter.bundle.values import VALUES
from exporter.detectors.registry import build_detectors
from exporter.service.exposition.families import FAMILIES, SIGNALS
from exporter.service.exposition.text import UNITS
from exporter.signals import SIGNALS as CANONICAL

BUCKETS = "verl_training_step_duration_seconds_bucket"
ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
RULES = sorted((ROOT / "rules" / "prometheus").glob("*.rules.yml"))
ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (gauge|counter|histogram|summary|info) \|([^|]*)\|([^|]*)\| (.+) \|$", re.M)

DESIGN = (
    "verl_training_step_duration_seconds",
    "verl_actor_gpu_memory_bytes",
    "verl_gpu_memory_used_bytes",
    "verl_training_steps_total",
    "verl_kl_divergence",
    "verl_grad_norm",
    "verl_learning_rate",
    "verl_rollout_success_rate",
    "verl_hybrid_engine_comm_cost_ms",
    "verl_step_duration_ms",
    "gpu_utilization",
    "tokens_per_second",
    "memory_usage_mb",
    "training_step_time_s",
    "loss_trajectory",
    "verl_signal_expected",
    "verl_signal_lower",
    "verl_signal_upper",
    "verl_forecast_seconds_to_limit",
    "verl_last_push_timestamp_seconds",
    "verl_phase_duration_seconds",
    "verl_run_info",
)
EXPORTED = {family.sample for family in FAMILIES}


def rules(kind: str) -> dict[str, str]:
    """Names of the recorded series, or of the alerts, with their expressions."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return {rule[kind]: rule["expr"] for group in groups for rule in group["rules"] if kind in rule}


def test_the_document_has_every_metric_with_its_type_and_labels_and_no_other() -> None:
    told = {(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _, _ in ROW.findall(DOCUMENT)}
    assert told == {(family.sample, family.kind, family.labels) for family in FAMILIES}


def test_the_document_gives_the_unit_that_the_name_has() -> None:
    for name, _, _, unit, _ in ROW.findall(DOCUMENT):
        for word in UNITS:
            if name.removesuffix("_total").endswith(f"_{word}"):
                assert unit.strip().startswith({"celsius": "°C"}.get(word, word)), name


def test_the_document_has_every_recorded_name() -> None:
    told = re.findall(r"^\| `([a-z:_0-9]+)` \| `", DOCUMENT, re.M)
    assert sorted(told) == sorted(rules("record"))


@pytest.mark.parametrize("name", DESIGN)
def test_every_name_of_the_design_is_exported_or_recorded(name: str) -> None:
    assert name in EXPORTED | rules("record").keys()


def test_the_rules_and_the_document_use_no_metric_that_is_not_there() -> None:
    known = EXPORTED | rules("record").keys()
    known |= {f"{f.name}{end}" for f in FAMILIES for end in ("_bucket", "_sum", "_count") if f.kind != "gauge"}
    used = set(re.findall(r"\bverl_[a-z_]+\b(?!:)", " ".join((*rules("record").values(), *rules("alert").values()))))
    assert used <= known
    told = set(re.findall(r"\bverl_[a-z_0-9]+[a-z]\b(?![…:])", DOCUMENT))
    assert told - known <= {"verl_version", "verl_sentinel_sink"}


def test_every_signal_is_a_metric_of_its_own_or_the_duration_of_a_phase() -> None:
    assert SIGNALS.keys() <= CANONICAL.keys()
    without = CANONICAL.keys() - SIGNALS.keys()
    assert all(name.endswith("_time") for name in without), "a signal that is no duration has no metric"


def test_names_are_as_prometheus_wants_them() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert re.fullmatch(r"(verl|process)_[a-z0-9_]+", family.name)
        assert not family.name.endswith(("_total", "_info", "_sum", "_count", "_bucket"))
        assert "step" not in family.labels
        assert family.text


@pytest.mark.programs
def test_promtool_finds_nothing_to_mend(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with the package prometheus")
    scene = Scene(tmp_path, detectors=build_detectors)
    rich(scene)
    scene.step(1, run='a"b\\c{d}=,é')
    for step in range(3, 40):
        scene.step(step, grad=1.0, loss=0.5, time=1.0)
    page = everything(scene).render().body
    scene.close()
    assert b"verl_signal_upper" in page
    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (result.returncode, (result.stdout + result.stderr).decode()) == (0, "")


def test_a_run_of_which_everything_is_known_shows_nearly_every_metric(scene: Scene) -> None:
    rich(scene)
    shown = {name for name, _ in samples(everything(scene).render().body.decode())}
    names = {family.name for family in FAMILIES if any(s.startswith(family.name) for s in shown)}
    missing = {family.name for family in FAMILIES} - names
    # What the scripted detectors and the two short runs do not bring about.
    assert missing <= {f.name for f in SIGNALS.values()} | {
        "verl_signal_expected",
        "verl_signal_lower",
        "verl_signal_upper",
        "verl_forecast_seconds_to_limit",
        "verl_run_eta_seconds",
        "verl_recoveries",
        "verl_recovery_stage_seconds",
        "verl_recovery_target_step",
        "verl_recovery_rung",
        "verl_recovery_climbed",
        "verl_sentinel_audit_entries",
        "verl_sentinel_detector_faults",
        "verl_sentinel_notifications",
    }


def test_a_label_with_fixed_values_has_no_others_on_the_page(scene: Scene) -> None:
    """An expression that asks for another value is a finding of ``verl-sentinel check``."""
    rich(scene)
    # The detectors of this scene are made up.
    seen = {
        (name, label, value)
        for name, pairs in samples(everything(scene).render().body.decode())
        for label, value in pairs
    }
    fixed = [(name, label, value) for name, label, value in seen if (name, label) in VALUES and label != "detector"]
    assert {(name, label) for name, label, _ in fixed} >= {
        ("verl_run_state", "state"),
        ("verl_incident_open", "severity"),
    }
    assert [one for one in fixed if one[2] not in VALUES[one[:2]]] == []
    assert {value for name, label, value in fixed if (name, label) == (BUCKETS, "le")} == VALUES[BUCKETS, "le"]
