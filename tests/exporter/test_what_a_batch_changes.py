"""What accepted batches make of a run: steps, parts of steps, attempts, counts, phases."""

from __future__ import annotations

import math
from typing import Any

import pytest
from exporter_scene import Scene, batch, verdict

from exporter.detectors.base import Severity
from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    CheckpointSaved,
    ClosedPhase,
    GpuReading,
    HookMissing,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    RunFinished,
    RunStarted,
    Step,
)
from exporter.service.admission import Limits, Refused
from exporter.service.entries import Look


def test_a_step_is_judged_once_with_its_canonical_signals(scene: Scene) -> None:
    scene.step(1, grad=0.5, time=0.7)
    (sample,) = scene.run().detectors.step[0].seen
    assert (sample.step, sample.attempt, sample.time) == (1, 1, scene.now)
    assert sample.signals == {"grad_norm": 0.5, "step_time": 0.7}
    assert scene.run().state.durations.total == 0.7


def test_a_late_part_of_a_step_is_merged_and_judged_only_for_what_is_new_in_it(scene: Scene) -> None:
    scene.step(5, grad=0.5)
    scene.step(5, grad=0.5, val=0.25)
    state = scene.run().state
    assert [dict(sample.signals) for sample in scene.run().detectors.step[0].seen] == [
        {"grad_norm": 0.5},
        {"val_reward": 0.25},
    ]
    assert state.steps_total == 1
    assert state.signals == {"grad_norm": 0.5, "val_reward": 0.25}


def test_the_same_part_twice_is_judged_once(scene: Scene) -> None:
    scene.step(5, grad=500.0)
    scene.step(5, grad=500.0)
    assert len(scene.run().detectors.step[0].seen) == 1
    assert scene.incidents()["scripted_step"].count == 1


def test_validation_before_training_is_no_training_step(scene: Scene) -> None:
    scene.step(0, val=0.1)
    assert scene.run().state.steps_total == 0
    scene.step(1)
    assert scene.run().state.steps_total == 1


def test_nan_spelled_as_a_word_arrives_as_nan(scene: Scene) -> None:
    scene.push(steps=[Step(step=1, metrics={"actor/grad_norm": "NaN", "actor/loss": "-Infinity"})])
    signals = scene.run().state.signals
    assert math.isnan(signals["grad_norm"])
    assert signals["loss"] == -math.inf


def test_an_older_step_of_the_same_trainer_is_left_out_and_counted(scene: Scene) -> None:
    scene.step(7)
    scene.step(6, grad=900.0)
    assert scene.run().state.current == 7
    assert scene.run().state.late_steps == 1
    assert not scene.incidents()


def test_an_older_step_of_another_trainer_is_a_resume_and_detectors_warm_up_again(scene: Scene) -> None:
    scene.step(7)
    scene.step(4, sender="trainer-2", grad=2.0)
    assert scene.run().state.current == 4
    assert scene.run().detectors.step[0].resumes == [(4, 1)]
    assert scene.run().detectors.live[0].resumes == [(4, 1)]


def test_a_new_attempt_tells_detectors_where_it_resumed_once(scene: Scene) -> None:
    scene.step(9)
    started = AttemptStarted(time=0.0, pid=1, resume_step=6)
    scene.push(sender="sup", role="supervisor", attempt=2, events=[started])
    scene.step(7, attempt=2, sender="trainer-2")
    state = scene.run().state
    assert scene.run().detectors.step[0].resumes == [(6, 2)]
    assert (state.attempt, state.current, state.steps_this_attempt, state.steps_total) == (2, 7, 1, 2)
    assert [(a.number, a.resume_step) for a in state.attempts] == [(1, None), (2, 6)]


def test_a_heartbeat_of_the_supervisor_alone_begins_no_attempt(scene: Scene) -> None:
    scene.push(sender="sup", role="supervisor", attempt=3)
    state = scene.run().state
    assert (state.attempt, state.running, state.last_push) == (0, False, 0.0)
    assert state.supervisor_heard == scene.now


def test_what_an_attempt_that_is_over_still_sends_changes_nothing(scene: Scene) -> None:
    scene.step(9)
    scene.step(7, attempt=2, sender="trainer-2")
    scene.step(10, attempt=1, grad=900.0)
    scene.push(attempt=1, phase=PhaseReport(step=10, open=[OpenPhase(name="gen", seconds=500.0)]))
    scene.tick()
    assert scene.run().state.current == 7
    assert not scene.incidents()
    assert scene.run().state.open_phases(scene.now) == {}


def test_rollout_totals_are_summed_over_senders_and_never_shrink(scene: Scene) -> None:
    def counts(sender: str, succeeded: int, failed: int, attempt: int = 1, in_flight: int = 0) -> None:
        given = RolloutCounts(succeeded=succeeded, failed=failed, in_flight=in_flight)
        scene.push(sender=sender, role="worker", attempt=attempt, rollout=given)

    counts("w1", 10, 1, in_flight=3)
    counts("w2", 5, 0)
    counts("w1", 12, 2, in_flight=4)
    counts("w1", 11, 1, in_flight=9)
    total = scene.run().state.rollouts()
    assert (total.succeeded, total.failed, total.in_flight) == (17, 2, 4)
    counts("w3", 1, 0, attempt=2)
    total = scene.run().state.rollouts()
    assert (total.succeeded, total.failed, total.in_flight) == (18, 2, 0)


def test_open_phases_age_by_the_exporters_clock_between_heartbeats(scene: Scene) -> None:
    scene.push(phase=PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=2.0)]))
    scene.now += 30
    assert scene.run().state.open_phases(scene.now) == {"gen": 32.0}
    assert scene.run().state.view(scene.now).step == 3


def test_a_clock_that_is_set_by_hours_makes_no_phase_hang(scene: Scene) -> None:
    for _ in range(6):
        scene.push(phase=PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=2.0)]))
        scene.now += 1
        scene.tick()
    scene.now += 30 * 3600
    # What the sender pushes first need not say anything of its phases.
    scene.push(steps=[Step(step=3, metrics={"actor/grad_norm": 1.0})])
    scene.tick()
    assert scene.run().state.view(scene.now).open_phases["gen"] < 10.0
    assert not scene.incidents()


def test_closed_phases_teach_the_live_detectors(scene: Scene) -> None:
    scene.push(phase=PhaseReport(step=3, closed=[ClosedPhase(name="gen", seconds=2.0)]))
    assert scene.run().detectors.live[0].closed == [("gen", 2.0, 3)]


def test_a_stale_heartbeat_does_not_bring_back_a_phase_that_has_ended(scene: Scene) -> None:
    scene.push(seq=1, steps=[Step(step=1, metrics={})])
    scene.push(seq=5, phase=PhaseReport(step=3))
    scene.push(seq=4, phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=99.0)]))
    assert scene.run().state.open_phases(scene.now) == {}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (AttemptExited(time=0.0, exit_code=0, expected=True), (False, 0, False)),
        (AttemptExited(time=0.0, exit_code=1, last_output=["boom"]), (False, 1, True)),
        (AttemptExited(time=0.0, exit_code=None, signal=9), (False, -9, True)),
    ],
)
def test_the_supervisor_tells_how_an_attempt_ended(scene: Scene, event: Any, expected: Any) -> None:
    scene.step(1)
    scene.push(sender="sup", role="supervisor", events=[event])
    state = scene.run().state
    assert (state.running, state.exit_code, state.exited_unexpectedly) == expected
    assert state.ended_at == scene.now


def test_the_step_in_which_the_trainer_ended_is_still_known_when_it_is_gone(scene: Scene) -> None:
    scene.step(25)
    scene.push(phase=PhaseReport(step=26, open=[OpenPhase(name="gen", seconds=1.0)]))
    scene.push(events=[RunFinished(time=0.0, exit_code=1)])
    scene.push(sender="sup", role="supervisor", events=[AttemptExited(time=0.0, exit_code=1)])
    assert scene.run().state.view(scene.now).step == 26
    scene.push(sender="trainer-2", attempt=2, events=[RunStarted(time=0.0)])
    assert scene.run().state.view(scene.now).step == 0


def test_without_a_supervisor_verls_own_exit_code_counts_and_with_one_it_does_not(scene: Scene) -> None:
    scene.step(1)
    scene.push(events=[RunFinished(time=0.0, exit_code=1)])
    assert scene.run().state.ended_badly(scene.now)
    scene.push(run="s", sender="sup", role="supervisor")
    scene.step(1, run="s")
    scene.push(run="s", events=[RunFinished(time=0.0, exit_code=1)])
    assert not scene.run("s").state.ended_badly(scene.now)
    assert not scene.run("s").state.running


def test_a_second_trainer_in_one_attempt_is_a_restart_by_hand(scene: Scene) -> None:
    scene.push(events=[RunStarted(time=0.0, config={"a": 1})])
    scene.step(3)
    scene.push(events=[RunFinished(time=0.0, exit_code=0)])
    scene.push(sender="trainer-2", events=[RunStarted(time=0.0, config={"a": 2})])
    state = scene.run().state
    assert state.running
    assert state.config == {"a": 2}
    assert state.current is None
    assert scene.run().detectors.step[0].resumes == [(3, 1)]


def test_hooks_checkpoints_and_gpu_readings_are_known(scene: Scene) -> None:
    scene.push(
        gpus=[GpuReading(node="n", index=0, memory_used_bytes=5)],
        events=[
            HooksReported(time=0.0, installed=["a", "b"], missing=[HookMissing(name="c", reason="moved")]),
            CheckpointSaved(time=0.0, step=5, path="/c/5", verified=True),
            CheckpointSaved(time=0.0, step=6, path="/c/6", verified=False, reason="disk full"),
        ],
    )
    state = scene.run().state
    assert state.hooks() == (["a", "b"], {"c": "moved"})
    assert state.last_saved().step == 6
    assert state.last_verified().step == 5
    assert state.gpus[("n", 0)][0].memory_used_bytes == 5


def test_a_detector_that_fails_loses_no_push_and_silences_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.step(1)
    broken = scene.run().detectors.step[0]
    broken.observe = lambda sample: 1 / 0
    scene.step(2, grad=500.0)
    assert scene.run().state.current == 2
    assert scene.run().detector_faults == {"scripted_step": 1}
    assert "scripted_step failed on run r" in caplog.text


def test_the_number_of_runs_is_bounded_and_an_ended_run_makes_room(tmp_path: Any) -> None:
    scene = Scene(tmp_path, limits=Limits(runs=2))
    scene.step(1, run="a")
    scene.step(1, run="b")
    with pytest.raises(Refused, match="at most 2 are") as refused:
        scene.step(1, run="c")
    assert refused.value.status == 429
    assert set(scene.core.runs) == {"a", "b"}
    scene.push(run="a", events=[RunFinished(time=0.0, exit_code=0)])
    scene.now += 901
    scene.step(1, run="c")
    scene.close()


def test_the_answer_names_the_highest_sequence_and_a_duplicate_changes_nothing(scene: Scene) -> None:
    scene.core.accept(batch(seq=7, steps=[Step(step=1, metrics={"actor/grad_norm": 1.0})]), scene.now)
    again = scene.core.accept(batch(seq=7, steps=[Step(step=2, metrics={"actor/grad_norm": 900.0})]), scene.now)
    assert (again.accepted_seq, again.duplicate) == (7, True)
    older = scene.core.accept(batch(seq=3), scene.now)
    assert (older.accepted_seq, older.duplicate) == (7, False)
    assert scene.run().state.current == 1


def test_a_trainer_that_is_silent_is_not_hidden_by_a_gpu_sampler_or_by_what_is_left_of_an_older_attempt(
    scene: Scene,
) -> None:
    scene.step(1, attempt=2)
    heard = scene.now
    scene.tick(times=5)
    scene.push(sender="gpu-1", role="gpu", attempt=2, gpus=[GpuReading(node="n", index=0)])
    scene.push(sender="worker-1", role="worker", attempt=2, rollout=RolloutCounts(succeeded=1))
    scene.push(sender="trainer-0", attempt=1)
    assert scene.run().state.last_push == heard


def test_verls_own_word_counts_when_the_supervisor_dies_before_it_has_said_how_the_trainer_ended(scene: Scene) -> None:
    scene.push(sender="sup", role="supervisor", events=[AttemptStarted(time=0.0, pid=1)])
    scene.step(1)
    scene.tick(times=100)
    scene.push(sender="sup", role="supervisor")
    scene.tick()
    scene.push(events=[RunFinished(time=0.0, exit_code=1)])
    view = scene.run().state.view
    assert not view(scene.now).exited_unexpectedly, "the supervisor will say"
    scene.restart()
    view = scene.run().state.view
    assert not view(scene.now).exited_unexpectedly, "the same after a kill"
    assert view(scene.now + 60).exited_unexpectedly
    scene.push(sender="sup", role="supervisor", events=[AttemptExited(time=0.0, exit_code=1, expected=True)])
    assert not view(scene.now + 60).exited_unexpectedly


def test_what_was_said_of_an_attempt_that_ended_meanwhile_opens_nothing(scene: Scene) -> None:
    scene.step(1)
    scene.step(1, attempt=2, sender="trainer-2")
    found = verdict("scripted_live", "gen", Severity.CRITICAL, 1, 90.0)
    scene.run().apply_look(Look(attempt=1, verdicts=[found]), scene.now)
    assert not scene.incidents()


def test_a_trainer_started_by_hand_after_a_supervised_run_is_watched_though_it_counts_from_one(scene: Scene) -> None:
    scene.step(9)
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=1, resume_step=6)])
    scene.step(7, attempt=2, sender="trainer-2")
    scene.push(sender="trainer-0", attempt=1, events=[RunStarted(time=0.0)])
    scene.step(10, attempt=1, sender="trainer-0")
    assert scene.run().state.current == 7, "while the newest attempt runs, this is an old one that is late"
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptExited(time=0.0, exit_code=1)])
    scene.push(sender="trainer-3", attempt=1, events=[RunStarted(time=0.0)])
    scene.step(5, attempt=1, sender="trainer-3", grad=500.0)
    state = scene.run().state
    assert (state.attempt, state.running, state.current, state.last_push) == (2, True, 5, scene.now)
    saved = CheckpointSaved(time=0.0, step=5, path="/c/global_step_5", verified=True)
    scene.push(sender="trainer-3", attempt=1, events=[saved])
    assert state.checkpoints[-1].attempt == 2
    assert scene.incidents()["scripted_step"].attempt == 2
    scene.restart()
    assert scene.run().state.current == 5
    scene.step(4, attempt=3, sender="trainer-4")
    scene.step(6, attempt=1, sender="trainer-3")
    assert scene.run().state.current == 4, "it is over now, as any older attempt"


def test_long_texts_are_kept_only_as_far_as_anybody_reads_them(scene: Scene) -> None:
    long = "x" * 100_000
    scene.push(events=[RunStarted(time=0.0, config={"template": long, "lr": 1e-6})])
    scene.push(events=[CheckpointSaved(time=0.0, step=1, path="/c", verified=False, reason=long)])
    scene.push(events=[HooksReported(time=0.0, installed=[], missing=[HookMissing(name="phases", reason=long)])])
    state = scene.run().state
    assert len(str(state.config["template"])) < 3000
    assert state.config["lr"] == 1e-6
    assert len(state.checkpoints[-1].reason) < 3000
    assert len(state.hooks()[1]["phases"]) < 3000
    scene.push(events=[RunStarted(time=0.0, config={f"key {i}": "x" * 1000 for i in range(1000)})])
    assert 200 < len(scene.run().state.config) < 400


def test_a_path_that_no_system_has_is_refused(scene: Scene) -> None:
    with pytest.raises(Refused, match="A text has 5000 characters, and the most is 4096") as refused:
        scene.push(events=[CheckpointSaved(time=0.0, step=1, path="/" * 5000, verified=True)])
    assert (refused.value.reason, refused.value.where) == ("text_too_long", "$.events[0].path")
