"""Whatever was accepted, a restart at any moment finds the state of a run that was never interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from exporter_scene import Scene, batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.detectors.registry import build_detectors
from exporter.incidents import Rules
from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointSaved,
    ClosedPhase,
    GpuReading,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    RunFinished,
    RunStarted,
    Step,
)
from exporter.service import snapshot
from exporter.service.stored import JournalDamaged

KEYS = (
    "actor/grad_norm",
    "actor/loss",
    "actor/entropy",
    "timing_s/step",
    "timing_s/gen",
    "critic/score/mean",
    "own/one",
)
numbers = st.one_of(st.floats(0.01, 10.0), st.sampled_from([math.nan, math.inf, 0.0, 1e30, 500.0]))


def _parts() -> st.SearchStrategy[dict[str, Any]]:
    """What one push may carry."""
    return st.one_of(
        st.builds(
            lambda step, metrics: {"steps": [Step(step=step, metrics=metrics)]},
            st.integers(0, 60),
            st.dictionaries(st.sampled_from(KEYS), numbers, min_size=1),
        ),
        st.builds(
            lambda first, count, value: {
                "steps": [
                    Step(step=first + i, metrics={"actor/grad_norm": value + i % 3, "timing_s/step": 1.0})
                    for i in range(count)
                ]
            },
            st.integers(1, 60),
            st.integers(1, 30),
            st.floats(0.1, 2.0),
        ),
        st.builds(
            lambda ok, bad: {"rollout": RolloutCounts(succeeded=ok, failed=bad)},
            st.integers(0, 500),
            st.integers(0, 50),
        ),
        st.builds(
            lambda age, took: {
                "phase": PhaseReport(
                    step=5, open=[OpenPhase(name="gen", seconds=age)], closed=[ClosedPhase(name="gen", seconds=took)]
                )
            },
            st.floats(0, 500),
            st.floats(0, 50),
        ),
        st.just({"gpus": [GpuReading(node="n", index=0, memory_used_bytes=5)]}),
        st.sampled_from(
            [
                {"events": [RunStarted(time=0.0, config={"a": 1, "b": "x"})]},
                {"events": [HooksReported(time=0.0, installed=["a"])]},
                {"events": [CheckpointSaved(time=0.0, step=4, path="/c", verified=True)]},
                {"events": [RunFinished(time=0.0, exit_code=1)]},
                {"events": [AttemptStarted(time=0.0, pid=1, resume_step=4)], "role": "supervisor", "sender": "sup"},
                {"events": [AttemptExited(time=0.0, exit_code=1)], "role": "supervisor", "sender": "sup"},
                {},
            ]
        ),
    )


actions = st.lists(
    st.tuples(
        _parts(),
        st.integers(1, 2),
        st.sampled_from(["a", "b"]),
        st.integers(1, 40),
        st.floats(0, 20),
        st.sampled_from(["", "", "", "restart", "snapshot", "snapshot and restart"]),
    ),
    max_size=40,
)


def _all_of(scene: Scene) -> dict[str, bytes]:
    """Every run as bytes, because a NaN is unlike itself; a set has no order."""
    found = {}
    for run_id, run in scene.core.runs.items():
        plain = _with(run)
        plain["state"]["step_signals"].sort()
        plain["metrics"].sort()
        found[run_id] = msgspec.msgpack.encode(plain)
    return found


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions)
def test_restarts_and_snapshots_at_any_moment_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Any]
) -> None:
    calm = Scene(tmp_path_factory.mktemp("calm"), detectors=build_detectors)
    rough = Scene(tmp_path_factory.mktemp("rough"), detectors=build_detectors)
    for part, attempt, sender, seq, seconds, what in actions:
        fields = {"sender": sender, "attempt": attempt, "seq": seq, **part}
        for scene in (calm, rough):
            scene.now += seconds
            scene.push(**fields)
        if "snapshot" in what:
            rough.core.snapshot_all()
        if "restart" in what:
            rough.restart()
    rough.restart()
    # A restart lets the live detectors look at every entry, a run without ticks never does.
    for scene in (calm, rough):
        for run in scene.core.runs.values():
            run.last_look = 0.0
            for detector in run.detectors.live:
                detector.load_state_dict(build_detectors_by_name()[detector.name].state_dict())
    assert _all_of(rough) == _all_of(calm)
    calm.close()
    rough.close()


def build_detectors_by_name() -> dict[str, Any]:
    return {detector.name: detector for detector in build_detectors().all()}


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    scene = Scene(tmp_path, detectors=build_detectors, ended_grace=60.0, rules=Rules())
    yield scene
    scene.close()


def test_only_what_came_after_a_snapshot_is_read_again(scene: Scene) -> None:
    for step in range(1, 30):
        scene.step(step)
    scene.core.snapshot_all()
    scene.journal.delete(0, scene.core.keeper.covered_upto(), batches=True)
    assert scene.journal.count() == 0
    scene.step(30)
    scene.restart()
    assert scene.run().state.steps_total == 30
    assert scene.push(sender="trainer-1", seq=7).duplicate


def test_a_run_that_changed_is_snapshotted_within_minutes_and_a_quiet_one_is_left_alone(scene: Scene) -> None:
    scene.step(1)
    scene.tick(10.0)
    assert scene.core.keeper.covered_upto() == 0
    scene.tick(300.0)
    assert scene.core.keeper.covered_upto() == 1
    before = scene.core.recorder.health.snapshots
    scene.tick(300.0, times=5)
    assert scene.core.recorder.health.snapshots == before


def test_many_runs_are_snapshotted_in_several_ticks_and_the_oldest_change_bounds_what_is_covered(scene: Scene) -> None:
    for number in range(40):
        scene.step(1, run=f"run {number}")
    scene.tick(301.0)
    assert 0 < scene.core.keeper.covered_upto() < 40
    scene.tick(1.0, times=3)
    assert scene.core.keeper.covered_upto() == 40


def test_a_run_nobody_looks_at_any_more_leaves_memory_and_comes_back_when_it_is_asked_for(scene: Scene) -> None:
    scene.step(1)
    scene.push(seq=2, sender="t", events=[RunFinished(time=0.0, exit_code=0)])
    scene.tick(61.0)
    assert not scene.core.runs
    assert scene.core.roster.dormant["r"].step == 1
    scene.restart()
    assert not scene.core.runs
    assert scene.run().state.current == 1
    scene.tick()
    assert not scene.core.runs
    assert scene.push(seq=2, sender="t").duplicate
    assert not scene.push(seq=3, sender="t", events=[RunStarted(time=0.0)]).duplicate
    scene.tick()
    assert "r" in scene.core.runs


def test_a_detector_whose_options_changed_starts_fresh_and_the_rest_is_kept(scene: Scene, caplog: Any) -> None:
    for step in range(1, 40):
        scene.step(step)
    scene.core.snapshot_all()
    scene.close()
    made: Callable[[], Any] = lambda: build_detectors({"silent_run": {"enabled": False}})  # noqa: E731
    scene._detectors = made
    scene._open()
    assert scene.run().state.steps_total == 39
    broken = zstd.compress(msgspec.msgpack.encode(_with(scene.run(), detectors={"non_finite": {"no": "such state"}})))
    run = snapshot.restore(broken, build_detectors, Rules())
    assert "starts fresh" in caplog.text
    fresh = build_detectors_by_name()["non_finite"].state_dict()
    assert next(d for d in run.detectors.step if d.name == "non_finite").state_dict() == fresh


def _with(run: Any, **changed: Any) -> Any:
    plain = msgspec.msgpack.decode(zstd.decompress(snapshot.take(run)))
    return {**plain, **changed}


def test_a_snapshot_of_another_version_or_with_damage_is_never_taken_for_a_run(scene: Scene) -> None:
    scene.step(1)
    good = snapshot.take(scene.run())
    newer = zstd.compress(msgspec.msgpack.encode(_with(scene.run(), version=99)))
    for bad in (newer, good[:-3], b"", b"garbage", zstd.compress(b"\xc0")):
        with pytest.raises(snapshot.SnapshotUnreadable):
            snapshot.restore(bad, build_detectors, Rules())


def test_what_an_older_release_did_not_write_takes_its_default(scene: Scene) -> None:
    scene.step(1)
    plain = _with(scene.run())
    del plain["state"]["durations"], plain["state"]["late_steps"], plain["book"]["notes"]
    run = snapshot.restore(zstd.compress(msgspec.msgpack.encode(plain)), build_detectors, Rules())
    assert run.state.current == 1
    assert run.state.late_steps == 0


def test_a_summary_that_cannot_be_read_stops_the_start_with_a_sentence(scene: Scene) -> None:
    scene.step(1)
    scene.core.snapshot_all()
    scene.journal._db.execute("UPDATE snapshots SET summary = x'c1'")
    scene.close()
    with pytest.raises(JournalDamaged, match="The snapshot of run r cannot be read"):
        scene._open()
    scene._open = lambda: None  # type: ignore[method-assign]


def test_the_same_push_twice_at_once_counts_once_and_both_are_answered(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    held: list[Any] = []
    recorder = scene.core.recorder
    record = recorder.record
    recorder.record = lambda entry, done: held.append((entry, done))  # type: ignore[method-assign]
    answers: list[Any] = []
    for _ in range(3):
        scene.core.submit(batch(seq=1, steps=[Step(step=1, metrics={"a": 1.0})]), scene.now, answers.append)
    assert not answers, "nobody is answered before it is on disk"
    assert len(held) == 1
    record(*held[0])
    assert [answer.duplicate for answer in answers] == [False, True, True]
    assert scene.run().state.steps_total == 1
    scene.close()


def test_a_silence_goes_on_over_a_kill_and_is_not_taken_for_time_in_which_nobody_watched(scene: Scene) -> None:
    scene.step(1)
    scene.tick(1.0, times=200)
    opened = scene.incidents()["silent_run"]
    assert opened.severity.label == "critical"
    scene.restart()
    scene.tick(1.0, times=60)
    assert scene.incidents()["silent_run"].id == opened.id
    scene.restart()
    assert scene.incidents()["silent_run"].score >= opened.score


def test_an_exporter_that_is_killed_every_minute_still_pages_for_a_run_that_is_silent(scene: Scene) -> None:
    scene.step(1)
    for _ in range(4):
        scene.tick(1.0, times=60)
        scene.restart()
    assert scene.incidents()["silent_run"].severity.label == "critical"


def test_time_in_which_the_exporter_was_down_is_no_silence_of_the_run(scene: Scene) -> None:
    scene.step(1)
    scene.tick(1.0, times=5)
    scene.restart()
    scene.now += 3000.0
    scene.tick(1.0, times=20)
    assert not scene.incidents()


def test_nothing_is_told_twice_as_if_it_were_new(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.step(1, grad=math.nan)
    assert "opened (critical): " in caplog.text
    caplog.clear()
    scene.core.recorder.delivered(0)
    scene.restart()
    assert "opened (critical): " not in caplog.text
