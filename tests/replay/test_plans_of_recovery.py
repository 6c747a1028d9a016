"""``--policy``: what recovery would have done over a past run, by the code that does it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import past_files as files
import pytest
from in_this_process import answered
from replay_process import Answer

from exporter.replay.settings import SettingsWrong, policy_of

DAY = 86_400.0


# A loss that is NaN is paged at once and taken for certain when it is so again: the plan comes with the second step.


def broken(
    spans: list[tuple[int, int]], last: int, *, seconds: float = 60.0, saved: int | None = 20, key: str = "train/loss"
) -> files.Steps:
    """Healthy, but the loss is NaN in the spans; ``saved``: the log has the time of a save every so many steps."""
    steps = files.healthy(1, last)
    for step, metrics in steps:
        metrics["timing_s/step"] = seconds
        if saved and step % saved == 0:
            metrics["timing_s/save_checkpoint"] = 3.0
        if any(first <= step <= end for first, end in spans):
            metrics[key] = math.nan
    return steps


def asked(tmp_path: Path, steps: files.Steps, policy: str, *options: str, output: str = "json") -> Answer:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(steps))
    file = files.written(tmp_path / "policy.yml", policy.encode())
    return answered(run, "--policy", file, *options, output=output)


def decisions(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return [line for line in answer.verdicts if "plan" in line]


def plans(answer: Answer) -> list[tuple[int, str, int | None]]:
    made = [d for d in decisions(answer) if d["plan"]["decision"] == "planned"]
    return [(d["step"], d["plan"]["action"], d["plan"]["target_step"]) for d in made]


POLICY = "mode: observe\n"


def test_a_plan_goes_back_to_the_newest_checkpoint_before_the_onset(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60), POLICY)
    assert plans(answer) == [(51, "rollback", 40)]
    assert "3 checkpoints, by the save_checkpoint times in the log" in answer.err


def test_the_margin_of_the_policy_counts(tmp_path: Path) -> None:
    steps = broken([(50, 55)], 60)
    assert plans(asked(tmp_path, steps, "margin_steps: 8")) == [(51, "rollback", 40)]
    assert plans(asked(tmp_path, steps, "margin_steps: 9")) == [(51, "rollback", 20)]


def test_without_a_checkpoint_the_run_would_have_been_stopped(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60, saved=None), POLICY)
    assert plans(answer) == [(51, "stop", None)]
    assert "no checkpoint: the log does not say when one was saved" in answer.err


def test_a_save_frequency_stands_in_where_the_log_has_none(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60, saved=None), POLICY, "--save-freq", "15")
    assert plans(answer) == [(51, "rollback", 45)]
    assert "4 checkpoints, assumed by --save-freq" in answer.err


def test_where_the_log_says_when_it_saved_that_counts(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60), POLICY, "--save-freq", "15")
    assert plans(answer) == [(51, "rollback", 40)]
    assert "by the save_checkpoint times in the log" in answer.err


def test_what_goes_on_belongs_to_the_plan_and_what_comes_back_is_a_new_one(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 90), (120, 125)], 140), POLICY)
    assert plans(answer) == [(51, "rollback", 40), (121, "rollback", 100)]


def test_the_cooldown_counts_by_the_time_of_the_run(tmp_path: Path) -> None:
    # The first is over ten steps after step 52. From then on 20 minutes are 20 steps.
    steps = broken([(50, 52), (70, 90)], 140)
    waits = asked(tmp_path, steps, "cooldown_seconds: 1200")
    assert plans(waits) == [(51, "rollback", 40), (82, "rollback", 60)]
    assert [d["step"] for d in decisions(waits) if d["plan"]["decision"] == "cooldown"] == [71]
    assert plans(asked(tmp_path, steps, "cooldown_seconds: 60")) == [(51, "rollback", 40), (71, "rollback", 60)]


def test_the_budget_counts_by_the_time_of_the_run(tmp_path: Path) -> None:
    steps = broken([(50, 51), (80, 81), (110, 111)], 130)
    refused = asked(tmp_path, steps, "budget_per_day: 2")
    assert [step for step, *_ in plans(refused)] == [51, 81]
    (budget,) = [d for d in decisions(refused) if d["plan"]["decision"] == "budget"]
    assert budget["step"] == 111
    assert "2 recoveries in 24 hours" in budget["plan"]["reason"]
    slow = broken([(50, 51), (80, 81), (110, 111)], 130, seconds=DAY / 40)
    assert [step for step, *_ in plans(asked(tmp_path, slow, "budget_per_day: 2"))] == [51, 81, 111]


def test_a_page_that_triggers_nothing_is_told_with_the_reason(tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60), "triggers: [{detectors: [stalled_phase]}]")
    assert plans(answer) == []
    (decision,) = decisions(answer)
    assert decision["plan"]["decision"] == "no_trigger"
    assert "trigger nothing" in decision["plan"]["reason"]


def test_a_restart_in_the_log_leaves_the_checkpoints_of_what_was_left_behind(tmp_path: Path) -> None:
    first = broken([], 70)
    again = [(step, metrics) for step, metrics in broken([(75, 80)], 90, saved=None) if step > 40]
    answer = asked(tmp_path, [*first, *again], POLICY)
    assert plans(answer) == [(76, "rollback", 40)]


def test_lines_without_a_plan_are_the_verdicts_and_nothing_else(tmp_path: Path) -> None:
    steps = broken([(50, 55)], 60)
    with_policy = asked(tmp_path, steps, POLICY)
    without = answered(tmp_path / "run.jsonl")
    assert [line for line in with_policy.verdicts if "plan" not in line] == without.verdicts
    for line in with_policy.verdicts:
        assert {"step", "detector", "signal", "severity", "onset", "summary"} <= line.keys()
    waits, plan = (d["plan"] for d in decisions(with_policy))
    assert (waits["decision"], waits["number"], plan["decision"], plan["number"]) == ("agreement", None, "planned", 1)
    assert [(e["detector"], e["signal"]) for e in plan["evidence"]] == [("non_finite", "loss")]


def test_the_table_of_decisions_follows_that_of_findings(tmp_path: Path) -> None:
    findings, decided = asked(tmp_path, broken([(50, 55)], 60), POLICY, output="table").out.split("\n\n")
    assert findings.split()[:2] == ["STEP", "SEVERITY"]
    heading, waits, row = decided.splitlines()
    assert heading.split() == ["STEP", "PLAN", "DECISION", "TARGET", "DETECTOR", "SIGNAL", "WHY"]
    assert waits.split()[:4] == ["50", "agreement", "non_finite", "loss"]
    assert row.split()[:6] == ["51", "1", "rollback", "40", "non_finite", "loss"]
    healthy = asked(tmp_path, broken([], 60), POLICY, output="table")
    assert healthy.out.endswith("\nRecovery would have had nothing to decide.\n")


def test_the_policy_is_that_of_an_exporters_file_too(tmp_path: Path) -> None:
    whole = "tokens:\n  push: [{file: /not/here}]\nrecovery:\n  margin_steps: 10\n"
    assert plans(asked(tmp_path, broken([(50, 55)], 60), whole)) == [(51, "rollback", 20)]


WRONG = {
    "margin: 3": "line 1: margin is not a known setting; did you mean margins?",
    "mode: auto\nmargin_steps: -1": "line 2: ",
    "triggers: [{detectors: [surg]}]": "did you mean 'surge'?",
    "recovery: {margin: 3}": "margin is not a known setting",
    "": "holds no policy",
    "- a": "holds no policy",
    "a: [": "is not YAML",
    "a: &x [*x]": "",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_policy_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    answer = asked(tmp_path, broken([(50, 55)], 60), text)
    assert (answer.code, answer.out) == (2, "")
    assert WRONG[text] in answer.err
    assert str(tmp_path / "policy.yml") in answer.err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files.written(tmp_path / "noise", b"\xff\xfe\x00")
    for name in ("none", "noise", "."):
        with pytest.raises(SettingsWrong, match="cannot be read"):
            policy_of(tmp_path / name)


def test_a_save_frequency_alone_is_refused(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.healthy()))
    answer = answered(run, "--save-freq", "5")
    assert (answer.code, answer.out) == (2, "")
    assert "--policy" in answer.err
