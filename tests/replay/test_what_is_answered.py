"""What the command writes, and where; its exit codes; its configuration."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import past_files as files
import pytest
from replay_process import Replaying

from exporter.detectors.registry import STEP_DETECTORS

FIELDS = {
    "step": int,
    "detector": str,
    "signal": str,
    "severity": str,
    "onset": int,
    "confidence": float,
    "summary": str,
}


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return files.written(tmp_path / "bad.jsonl", files.jsonl(files.growing_gradient()))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return files.written(tmp_path / "good.jsonl", files.jsonl(files.healthy()))


def test_every_line_of_json_is_a_verdict(bad: Path, replay: Replaying) -> None:
    verdicts = replay(bad).verdicts
    for verdict in verdicts:
        assert {name: type(verdict[name]) for name in FIELDS} == FIELDS
        assert verdict["severity"] in ("info", "warning", "critical")
        assert verdict["onset"] <= verdict["step"]
    steps = [verdict["step"] for verdict in verdicts]
    assert steps == sorted(steps)
    grown = [v["step"] for v in verdicts if (v["detector"], v["severity"]) == ("surge", "critical")]
    assert grown[0] <= 55
    assert len(grown) == len(set(grown)) == grown[-1] - grown[0] + 1  # said at each step while it holds


def test_a_healthy_run_leaves_standard_output_empty(good: Path, replay: Replaying) -> None:
    assert replay(good, "--fail-on", "warning").out == ""


def test_the_table_tells_an_episode_once_and_when_it_becomes_worse(bad: Path, replay: Replaying) -> None:
    answer = replay(bad, output="table")
    heading, *rows = answer.out.partition("\n\n")[0].splitlines()
    assert heading.split() == ["STEP", "SEVERITY", "DETECTOR", "SIGNAL", "ONSET", "WHAT"]
    cells = [row.split()[:5] for row in rows]
    grown = [severity for _, severity, detector, signal, _ in cells if (detector, signal) == ("surge", "grad_norm")]
    assert grown[-1] == "critical"
    assert len(grown) == len(set(grown))
    told = [(severity, detector, signal) for _, severity, detector, signal, _ in cells]
    assert told.count(("critical", "non_finite", "loss")) == 1
    assert f"critical: {sum(severity == 'critical' for severity, _, _ in told)}," in answer.err


def test_findings_that_belong_together_have_one_headline(bad: Path, replay: Replaying) -> None:
    together = replay(bad, output="table").out.partition("\n\n")[2].splitlines()
    assert together[0].split() == ["SAID", "CRITICAL", "FINDINGS", "HEADLINE"]
    (only,) = together[1:]
    findings = {(v["detector"], v["signal"]) for v in replay(bad).verdicts if v["severity"] != "info"}
    assert int(only.split()[2]) == len(findings)
    assert "grad_norm" in only
    assert "loss" in only


def test_a_finding_alone_needs_no_headline(tmp_path: Path, replay: Replaying) -> None:
    steps = [(step, {"train/loss": math.nan if step > 30 else 2.0 + files.wave(step, 0.1)}) for step in range(1, 41)]
    answer = replay(files.written(tmp_path / "run", files.jsonl(steps)), output="table")
    assert "critical: 1," in answer.err
    assert "HEADLINE" not in answer.out


def test_a_table_without_a_finding_says_so(good: Path, replay: Replaying) -> None:
    assert replay(good, output="table").out == "Nothing would have been said.\n"


@pytest.mark.parametrize("output", ["table", "json"])
def test_the_exit_code_is_for_a_pipeline(bad: Path, good: Path, output: str, replay: Replaying) -> None:
    assert replay(bad, output=output).code == 0
    assert replay(bad, "--fail-on", "critical", output=output).code == 1
    assert replay(bad, "--fail-on", "warning", output=output).code == 1
    assert replay(good, "--fail-on", "critical", output=output).code == 0
    assert replay(good, bad, "--fail-on", "critical", output=output).code == 1


def test_a_warning_is_no_page(tmp_path: Path, bad: Path, replay: Replaying) -> None:
    others = [name for name in STEP_DETECTORS if name != "gradient_instability"]
    only = "detectors:\n" + "".join(f"  {name}: {{enabled: false}}\n" for name in others)
    settings = files.written(tmp_path / "exporter.yml", only.encode())
    answer = replay(bad, "--config", settings, "--fail-on", "critical")
    assert {verdict["detector"] for verdict in answer.verdicts} == {"gradient_instability"}
    severities = {verdict["severity"] for verdict in answer.verdicts}
    assert answer.code == ("critical" in severities)
    assert replay(bad, "--config", settings, "--fail-on", "warning").code == 1


def test_the_configuration_of_an_exporter_is_taken_without_its_secrets(
    tmp_path: Path, bad: Path, replay: Replaying
) -> None:
    text = "tokens:\n  push: [{file: /not/here}]\ndetectors:\n  non_finite: {enabled: false}\n"
    settings = files.written(tmp_path / "exporter.yml", text.encode())
    answer = replay(bad, "--config", settings)
    assert answer.code == 0
    assert "non_finite" not in {verdict["detector"] for verdict in answer.verdicts}


def test_a_wrong_name_in_the_configuration_is_refused_with_the_nearest_right_one(
    tmp_path: Path, bad: Path, replay: Replaying
) -> None:
    settings = files.written(tmp_path / "exporter.yml", b"detectors:\n  surge: {facter: 3}\n")
    answer = replay(bad, "--config", settings)
    assert (answer.code, answer.out) == (2, "")
    assert "did you mean 'factor'" in answer.err


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path, bad: Path, replay: Replaying) -> None:
    answer = replay(bad, "--config", tmp_path / "none.yml")
    assert (answer.code, answer.out) == (2, "")
    assert "none.yml cannot be read" in answer.err


def test_keys_that_are_not_known_are_listed_once(tmp_path: Path, replay: Replaying) -> None:
    steps = [(step, metrics | {"my/own": 1.0, "timing_s/gen": 1.0}) for step, metrics in files.healthy()]
    one = files.written(tmp_path / "one", files.jsonl(steps))
    two = files.written(tmp_path / "two", files.jsonl(steps))
    answer = replay(one, two)
    assert answer.code == 0
    assert answer.err.count("my/own") == 1
    assert "train/loss" not in answer.err
    assert "timing_s/gen" not in answer.err


def test_each_file_is_a_run_of_its_own(bad: Path, good: Path, replay: Replaying) -> None:
    alone, after = replay(bad), replay(good, bad)
    assert [v["step"] for v in after.verdicts] == [v["step"] for v in alone.verdicts]
    assert {v["file"] for v in after.verdicts} == {str(bad)}
    assert replay(good, bad, output="table").out.splitlines()[0].split()[0] == "FILE"


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path: Path, replay: Replaying) -> None:
    steps = [(step, metrics | {"\x1b[2Jkey": 1.0}) for step, metrics in files.growing_gradient()]
    path = files.written(tmp_path / "two.csv", files.wandb_chart({"a\x1b[31m": steps, "b": files.healthy()}))
    for output in ("table", "json"):
        answer = replay(path, output=output)
        assert "\x1b" not in answer.out + answer.err


def test_a_file_name_that_is_no_text_can_be_told(tmp_path: Path, bad: Path, replay: Replaying) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))
    bad.rename(odd)
    for output in ("table", "json"):
        answer = replay(odd, output=output)
        assert answer.code == 0
        assert answer.out


def test_a_reader_that_goes_away_is_no_fault(bad: Path) -> None:
    command = [*files.PROGRAM, "replay", "--output", "json", *[str(bad)] * 200]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        err = process.stderr.read()
        process.wait(60)
    assert b"Traceback" not in err
    assert process.returncode == 141
