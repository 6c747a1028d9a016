"""``verl-sentinel runs``: which runs a list has, how it reads at any width, and that what is said of a run is true."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import FileLogger, FollowerProcess, cli, detail, until
from exporter_process import ExporterProcess, push, running

from exporter.cli.run_summary import print_summary
from exporter.cli.showing import show_rows
from exporter.protocol import Batch, Run, RunFinished, Sender, Step, encode

LONG = "".join(chr(ord("a") + number % 26) for number in range(256))
RUNS = {"gsm8k-grpo-a7577b79": "gsm8k", "math-grpo-1c9d": "math", LONG: "math"}


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with running(tmp_path_factory.mktemp("lists")) as exporter:
        for name, project in RUNS.items():
            once(exporter, name, project)
        once(exporter, "math-over", "math", events=[RunFinished(time=0.0, exit_code=0)])
        yield exporter


def once(exporter: ExporterProcess, name: str, project: str, **parts: Any) -> None:
    steps = [Step(step=1, metrics={"actor/loss": 0.5})]
    run = Run(run_id=name, project=project, trainer="ppo_legacy")
    sent = Batch(protocol=1, run=run, sender=Sender(id="s"), seq=1, steps=steps, **parts)
    assert exporter.post("/api/v1/push", encode(sent)).status == 200


def listed(exporter: ExporterProcess, *options: str) -> set[str]:
    answers = set()
    for words in (("runs", "list", *options), ("runs", *options)):
        code, shown = cli(exporter, *words, "--json")
        assert code == 0
        answers.add(frozenset(run["run_id"] for run in json.loads(shown)["runs"]))
    (answer,) = answers
    return set(answer)


def test_runs_are_listed_by_project_and_by_whether_they_are_running(exporter: ExporterProcess) -> None:
    assert listed(exporter) == {*RUNS, "math-over"}
    assert listed(exporter, "--running") == set(RUNS)
    assert listed(exporter, "--project", "math") == {"math-grpo-1c9d", LONG, "math-over"}
    assert listed(exporter, "--project", "math", "--running") == {"math-grpo-1c9d", LONG}
    shown = cli(exporter, "runs", "list", "--project", "gsm8k")[1]
    assert ("gsm8k-grpo" in shown, "math" in shown) == (True, False)
    code, shown = cli(exporter, "runs", "--running", "list")
    assert (code, "--running comes after the command" in shown) == (2, True)


def test_one_long_id_leaves_the_rows_of_others_in_80_columns_and_is_there_in_full(exporter: ExporterProcess) -> None:
    code, shown = cli(exporter, "runs", COLUMNS="80")
    lines = shown.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    for name in RUNS.keys() - {LONG}:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.split()[1:5] == ["ppo_legacy", "1", "running", "1"]
    first = next(index for index, line in enumerate(lines) if line.startswith("abc"))
    folded = [lines[first].split()[0]]
    while (more := lines[first + len(folded)].split()) and len(more) == 1 and len("".join(folded)) < len(LONG):
        folded += more
    assert "".join(folded) == LONG


def test_where_there_is_room_and_in_a_pipe_a_long_id_is_in_one_line(exporter: ExporterProcess) -> None:
    assert f"\n{LONG} " in cli(exporter, "runs", COLUMNS="400")[1]


def test_wide_characters_are_folded_by_their_width_and_none_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "訓練" * 100
    show_rows(("run", "a", "b"), [(name, "x" * 30, "y"), ("short", "x", "why")])
    lines = capsys.readouterr().out.splitlines()
    assert "".join(line.split()[0] for line in lines[1:] if not line.startswith("short")) == name


def test_an_empty_list_is_a_plain_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_rows(("run", "step"), [])
    assert capsys.readouterr().out == "None.\n"


def summary(attempts: list[int], this: int, total: int, incidents: int = 0) -> dict[str, Any]:
    incident = {"id": "i", "severity": "warning", "state": "resolved", "onset": 1, "opened_at": 0.0, "summary": "s"}
    run = {
        **{name: "" for name in ("project", "experiment", "trainer", "verl_version", "exit_summary")},
        **{name: None for name in ("ended_at", "exit_code", "supervisor_heard")},
        **{"run_id": "r", "step": 2, "running": True, "attempt": attempts[-1], "first_seen": 0.0, "last_push": 1.0},
        **{"open_phases": {}, "signals": {}, "steps_this_attempt": this, "steps_total": total},
    }
    empty: dict[str, Any] = {"rollouts": {}, "hooks_missing": {}, "gpus": [], "checkpoints": [], "config": {}}
    known = [{"number": number, "resume_step": None} for number in attempts]
    return {"run": run, "attempts": known, "incidents": [incident] * incidents, **empty}


def printed(capsys: pytest.CaptureFixture[str], answer: dict[str, Any]) -> str:
    print_summary(answer, everything=False)
    return capsys.readouterr().out


def test_steps_say_what_they_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert "steps        6\n" in printed(capsys, summary([1], 6, 6))
    shown = printed(capsys, summary([1], 2, 6))
    assert "2 since the trainer was last started, 6 over all its starts (those done again count again)" in shown
    assert "Attempts" not in shown


def test_attempts_that_are_not_known_are_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, summary([2], 2, 6))
    assert "attempt  resumed from step\n2        not told" in shown
    assert "1 earlier attempt is not listed: this exporter heard nothing of it before a later one began" in shown
    assert "3 earlier attempts are not listed: this exporter heard nothing of them" in printed(
        capsys, summary([2, 5], 1, 2)
    )
    # A number that nobody counted to.
    assert "earlier attempts are not listed" in printed(capsys, summary([2**53 - 1], 1, 1))
    assert "not listed" not in printed(capsys, summary([1, 2], 2, 6))


def test_what_is_one_is_not_called_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Incidents (1 older one with --all)" in printed(capsys, summary([1], 1, 1, incidents=6))
    assert "Incidents (2 older ones with --all)" in printed(capsys, summary([1], 1, 1, incidents=7))
    assert "Attempts (1 older one with --all)" in printed(capsys, summary([1, 2, 3, 4, 5, 6], 1, 1))


def test_an_attempt_that_is_none_is_told_and_nothing_is_written(exporter: ExporterProcess, tmp_path: Path) -> None:
    for form in ("jsonl", "csv"):
        export = ("runs", "export", "math-over", "--format", form)
        code, shown = cli(exporter, *export, "--attempt", "9")
        assert (code, shown) == (
            1,
            "verl-sentinel: Run math-over has no steps of attempt 9: nothing was written.\n",
        )
        assert cli(exporter, *export, "--attempt", "9", "-o", str(tmp_path / "out"))[0] == 1
        assert list(tmp_path.iterdir()) == []
        assert cli(exporter, *export, "--attempt", "1")[0] == 0


def test_a_run_without_steps_is_exported_as_nothing_and_that_is_said(exporter: ExporterProcess) -> None:
    push(exporter, run="nothing yet", seq=1)
    code, shown = cli(exporter, "runs", "export", "nothing yet", "--format", "csv")
    assert (code, shown) == (0, "step\nRun nothing yet has no steps, or none that is kept.\n")


def test_who_forgets_a_run_is_in_the_audit_log(exporter: ExporterProcess) -> None:
    for name, options, who in (("one", ("--who", "ada lovelace"), "ada lovelace"), ("two", (), getpass.getuser())):
        once(exporter, name, "gone", events=[RunFinished(time=0.0, exit_code=0)])
        assert cli(exporter, "runs", "forget", name, "--yes", *options) == (0, f"Run {name} is forgotten.\n")
        lines = json.loads(cli(exporter, "audit", "--json")[1])["audit"]
        assert any(line["run_id"] == name and who in json.dumps(line) for line in lines)


@pytest.mark.parametrize("who", ["%20", "%0a", "a" * 201, ""])
def test_a_name_that_is_none_forgets_nothing(exporter: ExporterProcess, who: str) -> None:
    answer = exporter.request("DELETE", f"/api/v1/runs/math-over?who={who}", None, {})
    assert (answer.status, answer.json["where"]) == (400, "query who")
    assert "Say who decides" in answer.reason
    assert exporter.get("/api/v1/runs/math-over").status == 200


def test_a_followed_file_that_was_truncated_is_shown_with_all_its_attempts_and_after_a_forgetting_as_one_of_several(
    exporter: ExporterProcess, tmp_path: Path
) -> None:
    def steps(count: int) -> bool:
        found = detail(exporter, "followed")
        return found is not None and found["run"]["steps_total"] == count

    def written(*numbers: int) -> None:
        log.write_bytes(b"".join(map(FileLogger.line, numbers)))

    log = tmp_path / "run.jsonl"
    follower = FollowerProcess(tmp_path, log, exporter.url, ("--run-id", "followed"))
    try:
        written(1, 2, 3, 4)
        follower.start()
        until(lambda: steps(4), lambda: follower.log)
        written(1, 2)
        until(lambda: steps(6), lambda: follower.log)
        shown = cli(exporter, "runs", "show", "followed")[1]
        assert "2 since the trainer was last started, 6 over all its starts" in shown
        assert "2        not told         \n1        not told         \n" in shown
        assert follower.stop() == 0
        # Ended, forgotten, and followed again from a place that only the follower knows.
        assert (
            cli(exporter, "follow", str(log), "--once", "--run-id", "followed", "--state-dir", str(tmp_path / "state"))[
                0
            ]
            == 0
        )
        assert cli(exporter, "runs", "forget", "followed", "--yes")[0] == 0
        written(1)
        follower.start()
        until(lambda: steps(1), lambda: follower.log)
        shown = cli(exporter, "runs", "show", "followed")[1]
        assert "state        running, attempt 3, step 1\n  steps        1\n" in shown
        assert "2 earlier attempts are not listed" in shown
        assert follower.stop() == 0
        assert "Stopped. 1 step line was pushed." in follower.log
    finally:
        follower.clean_up()
