"""Real verl logs, where they are there: replay says what the detectors say, in every form."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import past_files as files
import pytest
from replay_process import Replaying

from exporter.detectors.base import StepSample
from exporter.detectors.registry import build_detectors
from exporter.follow.parsing import Logged, parse_jsonl
from exporter.signals import canonical

DATA = Path(os.environ.get("VERL_SENTINEL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "verl-runs"
RUNS = sorted(DATA.glob("*.jsonl.gz"))

pytestmark = pytest.mark.skipif(
    not RUNS, reason=f"real verl logs are not part of the repository and not at {DATA} (VERL_SENTINEL_DATA)"
)


def steps_of(path: Path) -> files.Steps:
    with gzip.open(path) as lines:
        found = [one for line in lines for one in parse_jsonl(line)]
    return [(one.step, one.metrics) for one in found if isinstance(one, Logged)]


def test_every_run_is_read_whole_and_costs_next_to_no_page(replay: Replaying) -> None:
    answer = replay(*RUNS, "--fail-on", "critical", output="table")
    assert answer.code in (0, 1)
    summaries = [line for line in answer.err.splitlines() if " steps (" in line]
    assert len(summaries) == len(RUNS)
    assert not any("Left out" in line for line in summaries)
    pages = sum(int(line.partition("critical: ")[2].partition(",")[0]) for line in summaries)
    steps = sum(int(line.partition(": ")[2].partition(" step")[0]) for line in summaries)
    assert 1000.0 * pages / steps <= 0.1


@pytest.mark.parametrize("run", RUNS[::4], ids=[run.name.partition(".")[0] for run in RUNS[::4]])
def test_replay_says_what_the_detectors_say(run: Path, replay: Replaying) -> None:
    detectors = build_detectors().step
    expected = []
    for step, metrics in steps_of(run):
        sample = StepSample(step, 1, float(step), canonical(metrics))
        expected += [(v.step, v.detector, v.signal, v.severity.label) for d in detectors for v in d.observe(sample)]
    said = [(v["step"], v["detector"], v["signal"], v["severity"]) for v in replay(run).verdicts]
    assert said == expected


@pytest.mark.parametrize("form", ["console", "csv"])
def test_a_real_run_in_another_form_is_the_same_run(form: str, tmp_path: Path, replay: Replaying) -> None:
    run = next(run for run in RUNS if "sft-dapo" in run.name)
    steps = steps_of(run)
    content = files.console(steps) if form == "console" else files.wandb_chart({"a run": steps})
    plain, other = replay(run).verdicts, replay(files.written(tmp_path / "run", content)).verdicts
    assert plain
    assert [{**v, "file": "", "run": ""} for v in other] == [{**v, "file": "", "run": ""} for v in plain]
