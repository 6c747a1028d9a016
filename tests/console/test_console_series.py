"""The data of a run's charts: bounded, true to the extremes, with the band that the detectors really had."""

from __future__ import annotations

import json
import math
import urllib.parse
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_fleet import Fleet, steps
from console_visitor import Visitor
from exporter_process import ExporterProcess, running

from exporter.console.picture import MOST_POINTS, extremes, picture
from exporter.console.traces import MOST_ROWS, Gap, Stopped, Traces
from exporter.detectors.base import Expectation, StepSample
from exporter.detectors.setup import UNKNOWN
from exporter.service.history import ArchivedStep
from exporter.service.recent import RecentStep
from exporter.signals import canonical


def asked(exporter: ExporterProcess, run: str, **query: Any) -> dict[str, Any]:
    given = urllib.parse.urlencode({"id": run, **query})
    answer = Visitor(exporter.url).get(f"/console/series?{given}", X_Console_Live="1")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = json.loads(answer.text)
    return found


def chart(data: dict[str, Any], signal: str) -> dict[str, Any]:
    return next(one for one in data["charts"] if one["signal"] == signal)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    """2,600 steps, one of which has a reward like no other, and one a KL that is none."""
    with running(tmp_path_factory.mktemp("long")) as exporter:
        fleet = Fleet(exporter.url)
        rows = list(steps(1, 2600, seed="long"))
        rows[1233]["metrics"]["critic/score/mean"] = 77.0
        rows[1500]["metrics"]["actor/kl_loss"] = "NaN"
        for place in range(0, len(rows), 100):
            fleet.push("long", steps=rows[place : place + 100])
        yield exporter


def test_a_long_run_is_thinned_out_and_keeps_its_extremes(long_run: ExporterProcess) -> None:
    data = asked(long_run, "long", points=200)
    assert (data["rows"], data["complete"]) == (2600, True)
    for one in data["charts"]:
        columns = [one[name] for name in ("rows", "steps", "values", "lower", "upper", "expected") if name in one]
        assert {len(column) for column in columns} == {len(one["rows"])}
        assert len(one["rows"]) <= 200
        assert one["rows"] == sorted(set(one["rows"]))
    reward = chart(data, "reward")
    assert max(reward["values"]) == 77.0
    assert reward["steps"][reward["values"].index(77.0)] == 1234
    assert (reward["steps"][0], reward["steps"][-1]) == (1, 2600)
    assert chart(data, "kl")["lost"] == [[1500, 1501]]
    assert len(data["axis"]["rows"]) <= 501
    assert len(data["phases"]["rows"]) <= 300


@pytest.mark.parametrize("points", ["99999", "100000000000", "-5", "x", "0"])
def test_no_address_gets_more_points_than_there_may_be(long_run: ExporterProcess, points: str) -> None:
    data = asked(long_run, "long", points=points)
    assert all(10 <= len(one["rows"]) <= MOST_POINTS for one in data["charts"] if one["signal"] != "val_reward")


def test_the_newest_steps_are_there_at_once_and_the_whole_run_after_it(long_run: ExporterProcess) -> None:
    recent = asked(long_run, "long", span="recent")
    assert (recent["rows"], recent["complete"], recent["version"]) == (128, False, "")
    whole = asked(long_run, "long")
    assert whole["rows"] == 2600
    again = asked(long_run, "long", known=whole["version"])
    assert again == {"version": whole["version"], "unchanged": True}


def test_what_comes_later_is_added_without_reading_the_run_again(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        fleet = Fleet(exporter.url)
        fleet.steps("r", 1, 60)
        before = asked(exporter, "r")
        fleet.steps("r", 61, 80)
        after = asked(exporter, "r", known=before["version"])
        assert after["rows"] == 80
        reward = chart(after, "reward")
        assert reward["steps"] == list(range(1, 81))
        assert reward["values"][:60] == chart(before, "reward")["values"]


def test_a_run_that_was_rolled_back_is_shown_in_the_order_in_which_it_trained(console: ExporterProcess) -> None:
    data = asked(console, "dapo-14b-restarted")
    assert data["rows"] == 90 + 80
    assert data["starts"] == [[0, 1, 1], [90, 2, 61]]
    assert chart(data, "kl")["steps"] == [*range(1, 91), *range(61, 141)]
    assert data["saves"] == [[59, 60, True]]
    found = [one for one in data["findings"] if one["signal"] == "kl"]
    assert found
    assert all(83 <= one["row"] < 90 for one in found)


def test_a_band_of_the_past_is_what_the_detectors_said_before_the_step(console: ExporterProcess) -> None:
    """The finding lies outside of the band: made afterwards, the band would have grown around it."""
    kl = chart(asked(console, "grpo-qwen2.5-7b/seed-2"), "kl")
    at = kl["steps"].index(145)
    assert kl["upper"][at] is not None
    assert kl["values"][at] > kl["upper"][at]
    assert all(value <= upper for value, upper in zip(kl["values"][60:140], kl["upper"][60:140], strict=True))
    page = Visitor(console.url).get("/metrics").text
    line = next(
        line
        for line in page.splitlines()
        if line.startswith('verl_signal_upper{run="grpo-qwen2.5-7b/seed-1",signal="kl"}')
    )
    traces = replayed("grpo-qwen2.5-7b/seed-1", 260)
    assert traces._next["kl"].upper == pytest.approx(float(line.rpartition(" ")[2]), rel=1e-6)


def replayed(run: str, last: int) -> Traces:
    from exporter.detectors.registry import build_detectors

    traces = Traces(build_detectors().step, UNKNOWN, "ppo_v1", {1: 0})
    parts = (ArchivedStep(one["step"], 1, 0.0, "s", one["metrics"]) for one in steps(1, last, seed=f"{run}1"))
    traces.read(parts, last)
    return traces


def test_an_unknown_run_has_no_charts(console: ExporterProcess) -> None:
    assert Visitor(console.url).get("/console/series?id=nobody", Accept="application/json").status == 404


class Counting:
    """Expects of each step its number among those it saw, so that a band tells when it was made."""

    name = "counting"

    def __init__(self) -> None:
        self.seen: list[StepSample] = []
        self.resumes: list[tuple[int, int]] = []

    def observe(self, sample: StepSample) -> list[Any]:
        self.seen.append(sample)
        if sample.signals.get("reward") == -1.0:
            raise RuntimeError("a fault of a detector")
        return []

    def expected(self) -> dict[str, Expectation]:
        return {"reward": Expectation(float(len(self.seen)), 0.0, 1e300)}

    def resumed(self, step: int, attempt: int) -> None:
        self.resumes.append((step, attempt))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        return None


def part(step: int, attempt: int = 1, sender: str = "a", **metrics: float) -> ArchivedStep:
    return ArchivedStep(step, attempt, 1000.0 + step, sender, {"critic/score/mean": float(step), **metrics})


def recent(step: int, attempt: int = 1) -> RecentStep:
    return RecentStep(step, attempt, 1000.0 + step, canonical({"critic/score/mean": float(step)}))


def made(*parts: ArchivedStep, total: int = 0) -> tuple[Traces, Counting]:
    detector = Counting()
    traces = Traces([detector], UNKNOWN, "ppo_v1", {1: 0, 2: 3})
    traces.read(iter(parts), total or len(parts))
    return traces, detector


def test_what_was_expected_of_a_step_was_said_after_the_step_before() -> None:
    traces, _ = made(part(1), part(2), part(3))
    assert [value for value in traces.bands["reward"].expected if not math.isnan(value)] == [1.0, 2.0]
    assert math.isnan(traces.bands["reward"].upper[2])  # more than a column can hold


def test_parts_of_a_step_are_put_together_and_what_comes_late_is_left_out() -> None:
    later = ArchivedStep(2, 1, 1.0, "a", {"val-core/x/mean@1": 0.5})
    traces, detector = made(part(1), part(2), later, part(1), part(3), part(9, attempt=0))
    assert list(traces.steps) == [1, 2, 3]
    assert traces.values["val_reward"][1] == 0.5
    assert [sorted(sample.signals) for sample in detector.seen] == [["reward"], ["reward"], ["val_reward"], ["reward"]]


def test_a_new_attempt_and_a_restart_by_hand_begin_anew() -> None:
    traces, detector = made(part(1), part(5), part(4, attempt=2), part(5, attempt=2), part(2, attempt=2, sender="b"))
    assert traces.starts == [0, 2, 4]
    assert detector.resumes == [(3, 2), (1, 2)]
    assert [traces.row_of(1, 5), traces.row_of(2, 5), traces.row_of(2, 2), traces.row_of(1, 3)] == [1, 3, 4, 0]
    assert traces.row_of(7, 1) is None


def test_of_a_long_run_only_the_newest_steps_are_judged_again() -> None:
    traces, detector = made(*(part(step) for step in range(1, 11)), total=3006)
    assert traces.judged_from == 6
    assert [sample.step for sample in detector.seen] == [7, 8, 9, 10]


def test_memory_goes_on_where_the_archive_ended_and_a_gap_is_noticed() -> None:
    traces, _ = made(part(1), part(2))
    traces.go_on([recent(1), recent(2), recent(3), recent(4)])
    traces.go_on([recent(3), recent(4)])
    traces.go_on([])
    assert list(traces.steps) == [1, 2, 3, 4]
    with pytest.raises(Gap):
        traces.go_on([recent(8), recent(9)])


def test_rows_are_bounded_and_everything_moves_with_them() -> None:
    traces = Traces([], UNKNOWN, "ppo_v1", {})
    broken = {"critic/score/mean": math.nan}
    for step in range(1, MOST_ROWS + 2):
        metrics = broken if step == MOST_ROWS else {"critic/score/mean": float(step)}
        traces._take(step, 1, 0.0, canonical(metrics), "a", False)
    assert len(traces) <= MOST_ROWS
    assert traces.starts == [0]
    lost = traces.lost["reward"]
    assert [traces.steps[row] for row in lost] == [MOST_ROWS]
    assert traces.values["reward"][-1] == MOST_ROWS + 1


def test_a_detector_that_fails_spoils_no_chart() -> None:
    traces, detector = made(part(1), ArchivedStep(2, 1, 1.0, "a", {"critic/score/mean": -1.0}), part(3))
    assert len(detector.seen) == 3
    assert picture(traces, [], [], 100)["charts"][0]["values"] == [1.0, -1.0, 3.0]


@pytest.mark.parametrize("count", [0, 1, 2, 19, 20, 21, 5000])
def test_extremes_stay_whatever_the_length(count: int) -> None:
    column = array("f", [math.sin(n / 50) for n in range(count)])
    if count > 10:
        column[count // 3], column[count // 2] = 50.0, -50.0
    rows = extremes(column, 20)
    assert len(rows) <= 20
    if count > 10:
        assert {0, count // 3, count // 2, count - 1} <= set(rows)


def test_a_long_reading_ends_with_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.console.traces.WORK_SECONDS", 0.0)
    ends = iter([False, False, True])
    traces = Traces([], UNKNOWN, "ppo_v1", {}, lambda: next(ends))
    with pytest.raises(Stopped):
        traces.read((part(step) for step in range(1, 100)), 100)
    assert 0 < len(traces) < 10
