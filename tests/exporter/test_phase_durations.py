"""How long phases take: each duration is counted once, whether the steps or the heartbeats tell it."""

from __future__ import annotations

import doctest
import math

import pytest
from exporter_scene import Scene

from exporter.protocol import ClosedPhase, PhaseReport, Step
from exporter.service import phases
from exporter.service.phases import MAX_PHASES, PhaseTimes

TIMERS = {"timing_s/gen": 2.0, "timing_s/step": 3.0}


def closed(scene: Scene, sender: str = "trainer-1", attempt: int = 1, **seconds: float) -> None:
    ended = [ClosedPhase(name=name, seconds=value) for name, value in seconds.items()]
    scene.push(sender=sender, attempt=attempt, phase=PhaseReport(step=1, closed=ended))


def logged(scene: Scene, step: int, sender: str = "trainer-1", attempt: int = 1, **metrics: float) -> None:
    values = metrics or {"actor/loss": 1.0, **TIMERS}
    scene.push(sender=sender, attempt=attempt, steps=[Step(step=step, metrics=values)])


def totals(scene: Scene) -> dict[str, tuple[int, float]]:
    times = scene.run().state.phase_times
    return {name: (total.count, total.seconds) for name, total in times.totals.items()}


def test_the_example_is_true() -> None:
    assert doctest.testmod(phases) == (0, 9)


def test_verls_timers_of_each_step_are_summed(scene: Scene) -> None:
    logged(scene, 1)
    logged(scene, 2)
    assert totals(scene) == {"gen": (2, 4.0), "step": (2, 6.0)}


@pytest.mark.parametrize("heartbeat_first", [True, False])
def test_what_steps_and_heartbeats_both_tell_is_counted_once(scene: Scene, heartbeat_first: bool) -> None:
    for step in (1, 2, 3):
        if heartbeat_first:
            closed(scene, gen=2.1, step=3.1)
        logged(scene, step)
        if not heartbeat_first:
            closed(scene, gen=2.1, step=3.1)
    assert totals(scene) == {"gen": (3, 6.0), "step": (3, 9.0)}


def test_sfts_phases_come_from_its_heartbeats(scene: Scene) -> None:
    closed(scene, optimizer_step=0.5, step=1.0)
    logged(scene, 1, **{"train/loss": 1.0})
    closed(scene, optimizer_step=0.5, step=1.5)
    logged(scene, 2, **{"train/loss": 1.0})
    assert totals(scene) == {"optimizer_step": (2, 1.0), "step": (2, 2.5)}


def test_a_trainer_that_died_before_its_first_step_has_its_phases_too(scene: Scene) -> None:
    closed(scene, gen=100.0)
    logged(scene, 1, sender="trainer-2", attempt=2)
    assert totals(scene) == {"gen": (2, 102.0), "step": (1, 3.0)}


def test_a_spooled_step_of_an_attempt_that_is_over_has_its_durations(scene: Scene) -> None:
    logged(scene, 1)
    logged(scene, 2, sender="trainer-2", attempt=2)
    logged(scene, 2)
    assert totals(scene)["gen"] == (3, 6.0)


def test_statistics_that_verl_spells_like_timers_are_no_phases(scene: Scene) -> None:
    logged(scene, 1, **{"timing_s/agent_loop/generate_sequences/mean": 1.0, "timing_s/gen": 2.0, "timing_s/": 1.0})
    assert totals(scene) == {"gen": (1, 2.0)}


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e9])
def test_what_is_no_duration_is_left_out_and_counted(scene: Scene, seconds: float) -> None:
    logged(scene, 1)
    logged(scene, 2, **{"actor/loss": 1.0, "timing_s/gen": seconds, "timing_s/new": seconds})
    assert totals(scene)["gen"] == (1, 2.0)
    assert "new" not in totals(scene)
    assert scene.run().state.phase_times.left_out == 2


def test_the_number_of_phases_is_bounded_and_what_does_not_fit_is_counted(scene: Scene) -> None:
    logged(scene, 1, **{f"timing_s/p{number}": 1.0 for number in range(MAX_PHASES + 5)})
    logged(scene, 2, **{f"timing_s/p{number}": 1.0 for number in range(MAX_PHASES + 5)})
    assert len(totals(scene)) == MAX_PHASES
    assert all(total == (2, 2.0) for total in totals(scene).values())
    assert scene.run().state.phase_times.left_out == 10


def test_the_bound_holds_for_what_waits(scene: Scene) -> None:
    for number in range(MAX_PHASES + 5):
        closed(scene, **{f"p{number}": 1.0})
    assert len(scene.run().state.phase_times.waiting) == MAX_PHASES
    logged(scene, 1, **{"train/loss": 1.0})
    assert len(totals(scene)) == MAX_PHASES
    assert scene.run().state.phase_times.left_out == 5


def test_a_restart_of_the_exporter_keeps_what_waits_and_what_is_counted(scene: Scene) -> None:
    closed(scene, step=1.0)
    scene.restart()
    logged(scene, 1, **{"train/loss": 1.0})
    scene.restart()
    closed(scene, step=1.0)
    assert totals(scene) == {"step": (2, 2.0)}


def test_totals_only_grow_when_a_new_trainer_tells_them_another_way() -> None:
    times = PhaseTimes()
    times.logged([("gen", "timing_s/gen")], TIMERS)
    times.new_trainer()
    times.closed("gen", 1.0)
    assert times.totals["gen"].seconds == 2.0
    times.logged([], {})
    assert times.totals["gen"].seconds == 3.0
