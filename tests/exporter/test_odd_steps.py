"""Steps that go backwards, repeat, jump or are missing, and clocks that are wrong: what each means (docs/input.md)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from exporter_scene import Scene

from exporter.protocol import AttemptStarted, OpenPhase, PhaseReport, RolloutCounts, RunFinished, RunStarted, Step
from exporter.service.state import MANY_SENDERS, SILENT_SENDER_SECONDS, RunState


def counted(scene: Scene) -> tuple[int, float, float, int]:
    """Steps, seconds in the histogram, productive and replayed seconds, late parts."""
    state: RunState = scene.run().state
    return (
        state.steps_total,
        round(state.durations.total, 6),
        round(state.goodput.productive + state.goodput.replayed, 6),
        state.late_steps,
    )


def judged(scene: Scene) -> list[int]:
    """Steps that the detectors saw, in order."""
    return [sample.step for sample in scene.run().detectors.step[0].seen]


def test_a_step_that_comes_late_is_counted_in_every_total_but_not_judged(scene: Scene) -> None:
    scene.step(1, time=2.0)
    scene.step(3, time=2.0)
    scene.step(2, time=2.0, grad=900.0)
    assert counted(scene) == (3, 6.0, 6.0, 1)
    assert judged(scene) == [1, 3]
    assert scene.run().state.current == 3
    assert not scene.incidents()


def test_a_part_of_an_older_step_that_was_counted_is_not_counted_again(scene: Scene) -> None:
    scene.step(1, time=2.0)
    scene.step(2, time=2.0)
    scene.step(1, time=2.0)
    scene.step(1, val=0.5)
    assert counted(scene) == (2, 4.0, 4.0, 2)


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5))))
def test_batches_in_any_order_give_the_same_totals(scene: Scene, order: tuple[int, ...]) -> None:
    for seq in order:
        metrics = {"actor/loss": 1.0, "timing_s/step": 2.0, "timing_s/gen": 1.0}
        scene.push(seq=seq, steps=[Step(step=seq, metrics=metrics)], rollout=RolloutCounts(succeeded=8 * seq))
    state = scene.run().state
    assert counted(scene)[:3] == (4, 8.0, 8.0)
    assert state.current == 4
    assert (state.phase_times.totals["gen"].count, state.phase_times.totals["gen"].seconds) == (4, 4.0)
    assert state.rollouts().succeeded == 32


def test_steps_that_jump_ahead_are_taken_as_they_are_and_nothing_is_made_up_between(scene: Scene) -> None:
    scene.step(10, time=2.0)
    scene.step(50, time=2.0)
    assert counted(scene) == (2, 4.0, 4.0, 0)
    assert judged(scene) == [10, 50]
    assert scene.run().state.current == 50


def test_missing_steps_that_come_after_all_fill_the_gap(scene: Scene) -> None:
    for number in (1, 2, 6, 7, 4, 3, 5):
        scene.step(number, time=2.0)
    assert counted(scene) == (7, 14.0, 14.0, 3)
    assert scene.run().state.senders["trainer-1"].logged.upto == 7


def test_a_trainer_that_logs_every_hundredth_step_for_ever_costs_no_memory(scene: Scene) -> None:
    for number in range(100, 30_000, 100):
        scene.step(number)
    state = scene.run().state
    assert state.steps_total == 299
    assert len(state.goodput.done.above) <= 64
    assert len(state.senders["trainer-1"].logged.above) <= 64


def test_a_resume_by_a_newer_attempt_replays_steps_and_each_of_them_took_its_time(scene: Scene) -> None:
    for number in range(1, 6):
        scene.step(number, time=2.0)
    for number in range(3, 8):
        scene.step(number, attempt=2, sender="trainer-2", time=2.0)
    state = scene.run().state
    assert counted(scene) == (10, 20.0, 20.0, 0)
    assert (state.goodput.productive, state.goodput.replayed) == (14.0, 6.0)
    assert scene.run().detectors.step[0].resumes == [(5, 2)]


def test_a_resume_by_another_process_of_the_same_attempt_is_seen_by_its_older_step(scene: Scene) -> None:
    for number in range(1, 6):
        scene.step(number, time=2.0)
    for number in range(3, 8):
        scene.step(number, sender="trainer-2", time=2.0)
    state = scene.run().state
    assert (state.goodput.productive, state.goodput.replayed) == (14.0, 6.0)
    assert scene.run().detectors.step[0].resumes == [(3, 1)]


def test_what_an_attempt_that_is_over_left_on_disk_is_counted_once(scene: Scene) -> None:
    for number in range(1, 4):
        scene.step(number, time=2.0)
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=1, resume_step=3)])
    for number in range(2, 7):
        scene.step(number, time=2.0)
    scene.step(4, attempt=2, sender="trainer-2", time=2.0)
    state = scene.run().state
    assert counted(scene) == (7, 14.0, 14.0, 5)
    assert (state.goodput.productive, state.goodput.replayed) == (12.0, 2.0)
    assert state.current == 4


def test_a_trainer_that_is_new_after_the_end_makes_the_run_run_again(scene: Scene) -> None:
    scene.step(1, time=2.0)
    scene.push(events=[RunFinished(time=0.0, exit_code=0)])
    scene.now += 60
    scene.push(sender="gpus", role="gpu", steps=[Step(step=2, metrics={"actor/loss": 1.0})])
    assert not scene.run().state.running
    scene.restart()
    scene.step(3, sender="trainer-2", time=2.0)
    state = scene.run().state
    assert state.running
    assert (state.ended_at, state.current, state.steps_this_attempt) == (None, 3, 1)


def test_what_the_trainer_that_ended_tells_after_the_end_leaves_it_ended(scene: Scene) -> None:
    scene.push(seq=5, steps=[Step(step=1, metrics={"timing_s/step": 2.0})], events=[RunFinished(time=0.0, exit_code=0)])
    scene.now += 60
    scene.push(seq=4, steps=[Step(step=2, metrics={"timing_s/step": 2.0})])
    assert not scene.run().state.running
    assert counted(scene)[0] == 2


@pytest.mark.parametrize("step", [-1, 2**53])
def test_a_number_that_no_step_has_is_refused(scene: Scene, step: int) -> None:
    with pytest.raises(Exception, match="has to be 0 or more, below 2"):
        scene.push(steps=[Step(step=step, metrics={})])


@pytest.mark.parametrize("said", [0.0, -1e18, 1e300, float("nan"), float("inf"), 4_000_000_000.0])
def test_what_the_senders_clock_says_is_shown_to_nobodys_harm(scene: Scene, said: float) -> None:
    events = [RunStarted(time=said)]
    scene.push(events=events, sent_at=said)
    for number in range(1, 4):
        scene.now += 2
        scene.push(steps=[Step(step=number, metrics={"timing_s/step": 2.0}, time=said)], sent_at=said)
    scene.push(events=[RunFinished(time=said, exit_code=0)])
    state = scene.run().state
    assert counted(scene) == (3, 6.0, 6.0, 0)
    assert state.ended_at == scene.now
    assert [row.at for row in state.recent] == [scene.now - 4, scene.now - 2, scene.now]
    assert state.goodput.wall() == pytest.approx(6.0)


@pytest.mark.parametrize("jump", [-18_000.0, 18_000.0])
def test_a_phase_is_as_old_as_the_trainer_says_when_the_exporters_clock_is_set(scene: Scene, jump: float) -> None:
    scene.push(phase=PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=2.0)]))
    scene.now += jump
    scene.push(phase=PhaseReport(step=3, open=[OpenPhase(name="gen", seconds=3.0)]))
    assert scene.run().state.open_phases(scene.now) == {"gen": 3.0}


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_step_time_that_is_no_duration_is_in_no_histogram(scene: Scene, seconds: float) -> None:
    scene.step(1, time=2.0)
    scene.step(2, time=seconds)
    assert scene.run().state.durations.total == 2.0
    assert sum(scene.run().state.durations.counts) == 1


def worker(scene: Scene, name: str, succeeded: int, attempt: int = 1, **more: Any) -> None:
    scene.push(sender=name, role="worker", attempt=attempt, rollout=RolloutCounts(succeeded=succeeded), **more)


def test_senders_that_were_silent_for_a_week_make_room_and_their_totals_stay(scene: Scene) -> None:
    for number in range(MANY_SENDERS):
        worker(scene, f"old-{number}", 2)
    scene.step(1, attempt=2, sender="trainer-2")
    scene.now += SILENT_SENDER_SECONDS + 1
    worker(scene, "new", 3, attempt=2)
    state = scene.run().state
    assert set(state.senders) == {"new"}
    assert state.rollouts().succeeded == 2 * MANY_SENDERS + 3
    for succeeded in (5, 6, 7):
        worker(scene, "old-7", succeeded)
    assert state.rollouts().succeeded == 2 * MANY_SENDERS + 3, "what it told before is in the total already"


def test_senders_that_are_heard_are_never_forgotten(scene: Scene) -> None:
    for number in range(MANY_SENDERS + 50):
        worker(scene, f"w-{number}", 2)
    assert len(scene.run().state.senders) == MANY_SENDERS + 50
