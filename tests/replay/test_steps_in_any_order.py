"""Steps that are repeated, go back, or come late are what a live exporter would take them for."""

from __future__ import annotations

from pathlib import Path

import past_files as files
import pytest
from replay_process import Replaying

from exporter.detectors.registry import build_detectors
from exporter.incidents import Rules
from exporter.replay.past_run import PastRun
from exporter.replay.rows import Row


def fed(rows: list[Row]) -> tuple[PastRun, list[int]]:
    """A run after the rows, and the start of the trainer that each was taken for."""
    run = PastRun(build_detectors, Rules())
    return run, [run.take(row).attempt for row in rows]


def rows(steps: list[int], writer: str = "") -> list[Row]:
    return [Row(step, {"actor/loss": 0.5 + step}, writer) for step in steps]


def test_a_step_that_was_logged_before_is_a_restart() -> None:
    _, starts = fed(rows([1, 2, 3, 4, 2, 3, 4, 5]))
    assert starts == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_step_that_comes_late_is_no_restart() -> None:
    run, starts = fed(rows([1, 2, 4, 3, 5, 6]))
    assert starts == [1] * 6
    assert run.steps == 6


def test_a_step_before_the_first_is_a_restart() -> None:
    _, starts = fed(rows([57, 58, 41, 42]))
    assert starts == [1, 1, 2, 2]


def test_a_step_that_is_repeated_is_one_step_in_two_parts() -> None:
    run, starts = fed(rows([1, 2, 2, 3]))
    assert starts == [1] * 4
    assert run.steps == 3


def test_another_process_is_a_restart_wherever_it_begins() -> None:
    _, starts = fed(rows([1, 2, 3], "TaskRunner pid=7") + rows([3, 4], "TaskRunner pid=9"))
    assert starts == [1, 1, 1, 2, 2]


def test_a_gap_is_no_restart() -> None:
    run, starts = fed(rows([10, 20, 30, 500]))
    assert starts == [1] * 4
    assert run.steps == 4


def test_the_detectors_warm_up_again_after_a_restart(tmp_path: Path, replay: Replaying) -> None:
    higher = [
        (step, metrics | {"train/grad_norm": 30.0 * metrics["train/grad_norm"]}) for step, metrics in files.healthy(31)
    ]
    resumed = files.written(tmp_path / "resumed", files.jsonl(files.healthy() + higher))
    answer = replay(resumed)
    assert answer.pages == []
    assert "90 steps (1 to 60), 1 restart" in answer.err
    went_on = [(step + 30, metrics) for step, metrics in higher]
    assert replay(files.written(tmp_path / "on", files.jsonl(files.healthy() + went_on))).pages


@pytest.mark.parametrize("order", [lambda s: s[::-1], lambda s: s[::2] + s[1::2], lambda s: s + s])
def test_no_order_of_a_healthy_run_pages(order: object, tmp_path: Path, replay: Replaying) -> None:
    steps = order(files.healthy())  # type: ignore[operator]
    answer = replay(files.written(tmp_path / "run", files.jsonl(steps)))
    assert (answer.code, answer.pages) == (0, [])


def test_an_export_of_all_attempts_says_itself_which_is_which(tmp_path: Path, replay: Replaying) -> None:
    lines = files.jsonl(files.healthy(1, 10)).replace(b', "data"', b', "attempt": 1, "data"')
    lines += files.jsonl(files.healthy(11, 20)).replace(b', "data"', b', "attempt": 2, "data"')
    assert "20 steps (1 to 20), 1 restart" in replay(files.written(tmp_path / "run", lines)).err
    sheet = "step,attempt,train/loss\n" + "".join(f"{step},{1 + step // 11},0.5\n" for step in range(1, 21))
    assert "20 steps (1 to 20), 1 restart" in replay(files.written(tmp_path / "run.csv", sheet.encode())).err


def test_a_detector_that_fails_is_told_of_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.detectors.surge import Surge

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Surge, "observe", broken)
    run, _ = fed(rows([1, 2, 3]))
    assert run.faults == {"surge": 3}
    assert run.take(Row(4, {"actor/loss": float("nan")})).verdicts
