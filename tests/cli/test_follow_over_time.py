"""What an exporter concludes of a followed run over hours: that it goes on, hangs, is restarted, ends, or is watched no
more. And what is pushed when an exporter is away, loses an answer, or loses everything."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from follow_scene import FollowScene

from exporter.follow.shipping import GiveUp
from exporter.service.admission import Limits

MINUTE = 60.0
HOUR = 3600.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[FollowScene]:
    scene = FollowScene(tmp_path)
    yield scene
    scene.exporter.close()


def log_every(scene: FollowScene, seconds: float, steps: range, start: float = 10.0) -> float:
    """Steps that take so long each; when the last is logged."""
    for index, step in enumerate(steps):
        scene.at(start + index * seconds, lambda step=step: scene.log(step, **{"timing_s/step": seconds}))
    return start + (len(steps) - 1) * seconds


def test_a_run_with_steps_of_twenty_minutes_is_not_silent(scene: FollowScene) -> None:
    last = log_every(scene, 20 * MINUTE, range(1, 5))
    scene.run(last + 19 * MINUTE)
    assert scene.incidents == {}
    assert scene.state.steps_total == 4


def test_a_trainer_that_hangs_is_told_by_its_own_step_time(scene: FollowScene) -> None:
    def told() -> None:
        seen.append({name: it.severity.label for name, it in scene.incidents.items()})

    seen: list[dict[str, str]] = []
    last = log_every(scene, 12 * MINUTE, range(1, 5))
    for minutes in (17, 35, 37):
        scene.at(last + minutes * MINUTE, told)
    scene.run(last + 38 * MINUTE)
    assert seen == [{}, {"stalled_phase": "warning"}, {"stalled_phase": "critical"}]
    assert scene.incidents["stalled_phase"].signal == "step"


def test_a_trainer_that_hangs_is_told_also_when_the_follower_is_started_anew_all_the_time(scene: FollowScene) -> None:
    last = log_every(scene, 10.0, range(1, 7))
    scene.run(last + 1)
    os.utime(scene.file, (scene.started + last, scene.started + last))
    for minute in range(1, 32):
        scene.run(last + minute * MINUTE)
    assert scene.incidents["stalled_phase"].severity.label == "critical"


def test_a_follower_that_is_gone_is_a_silent_run(scene: FollowScene) -> None:
    last = log_every(scene, 10.0, range(1, 7))
    scene.run(last + 5)
    scene.pass_time(last + 130)
    assert scene.incidents["silent_run"].severity.label == "critical"
    scene.run(last + 300)
    assert scene.incidents == {}


def test_loss_that_is_not_a_number_opens_an_incident(scene: FollowScene) -> None:
    log_every(scene, 10.0, range(1, 7))
    for second in (100.0, 110.0, 120.0):
        scene.at(second, lambda step=second: scene.log(int(step), **{"actor/loss": None, "actor/grad_norm": None}))
    scene.run(130.0)
    assert scene.incidents["non_finite"].severity.label == "critical"


def test_a_truncated_file_is_a_new_attempt_before_its_first_step(scene: FollowScene) -> None:
    log_every(scene, 10.0, range(1, 7))
    scene.at(70.0, scene.start_trainer)
    scene.run(75.0)
    assert (scene.state.attempt, scene.state.current) == (2, None)
    scene.at(80.0, lambda: scene.log(4, 5))
    scene.run(85.0)
    assert (scene.state.attempt, scene.state.current, scene.state.steps_this_attempt) == (2, 5, 2)
    assert scene.steps_pushed == [*((1, step) for step in range(1, 7)), (2, 4), (2, 5)]


def test_a_restart_of_the_trainer_while_nobody_followed_is_seen(scene: FollowScene) -> None:
    log_every(scene, 10.0, range(1, 4))
    scene.run(35.0)
    scene.start_trainer()
    scene.log(2, 3, 4, 5, 6)
    scene.run(40.0)
    assert (scene.state.attempt, scene.state.current) == (2, 6)
    assert scene.steps_pushed == [(1, 1), (1, 2), (1, 3), *((2, step) for step in range(2, 7))]


def test_a_restart_of_the_trainer_while_the_exporter_is_away_costs_no_step(scene: FollowScene) -> None:
    log_every(scene, 10.0, range(1, 4))
    scene.at(35.0, lambda: setattr(scene, "down", True))
    scene.at(40.0, lambda: scene.log(4, 5))
    scene.at(50.0, scene.start_trainer)
    scene.at(55.0, lambda: scene.log(4))
    scene.at(500.0, lambda: setattr(scene, "down", False))
    scene.run(600.0)
    assert scene.steps_pushed == [*((1, step) for step in range(1, 6)), (2, 4)]
    assert sum("takes nothing at the moment" in line for line in scene.said) == 1
    assert sum("answers again" in line for line in scene.said) == 1


def test_pauses_between_tries_grow_and_are_bounded(scene: FollowScene) -> None:
    tries: list[float] = []
    scene.post = lambda batch: tries.append(scene.now) or FollowScene.post(scene, batch)  # type: ignore[method-assign,func-returns-value]
    scene.down = True
    scene.log(1)
    scene.run(10 * MINUTE)
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(pauses) <= 30.5


def test_an_answer_that_is_lost_counts_nothing_twice(scene: FollowScene) -> None:
    scene.log(1, 2, 3)
    scene.run(5.0)
    scene.answer_lost = True
    scene.log(4, 5)
    scene.at(10.0, lambda: scene.log(6))
    scene.at(20.0, lambda: setattr(scene, "answer_lost", False))
    scene.run(60.0)
    assert scene.steps_pushed == [(1, step) for step in range(1, 7)]
    assert scene.state.steps_total == 6
    assert scene.state.late_steps == 0


def test_a_place_that_was_not_kept_counts_nothing_twice(scene: FollowScene) -> None:
    """Killed after the exporter took a batch and before that was written down, or the state folder was lost."""
    scene.log(*range(1, 8))
    scene.run(5.0)
    for path in (scene.folder / "state").iterdir():
        path.unlink()
    scene.log(8, 9)
    scene.run(10.0)
    assert scene.steps_pushed == [(1, step) for step in range(1, 10)]
    assert scene.state.late_steps == 0


def test_an_exporter_that_lost_the_run_is_given_all_of_it_again(scene: FollowScene, tmp_path: Path) -> None:
    scene.log(*range(1, 8))
    scene.run(5.0)
    scene.exporter.close()
    (tmp_path / "fresh").mkdir()
    scene.exporter.folder = tmp_path / "fresh"
    scene.exporter._open()
    scene.batches.clear()
    scene.log(8)
    scene.run(10.0)
    assert scene.steps_pushed == [(1, step) for step in range(1, 9)]
    assert scene.state.steps_total == 8


def test_catching_up_takes_few_pushes(scene: FollowScene) -> None:
    scene.log(*range(1, 1001))
    scene.run(5.0)
    assert scene.state.steps_total == 1000
    assert sum(bool(batch.steps) for batch in scene.batches) == 5


def test_from_the_end_only_what_is_new_is_pushed_also_after_a_restart(scene: FollowScene) -> None:
    scene.log(1, 2, 3)
    scene.at(2.0, lambda: scene.log(4))
    scene.run(5.0, from_end=True)
    scene.log(5)
    scene.run(10.0, from_end=True)
    assert scene.steps_pushed == [(1, 4), (1, 5)]


def test_a_step_that_the_exporter_refuses_is_left_out_alone(tmp_path: Path) -> None:
    scene = FollowScene(tmp_path, limits=Limits(metrics_per_step=10))
    scene.log(1, 2)
    scene.log(3, **{f"m{index}": 1.0 for index in range(20)})
    scene.log(4, 5)
    scene.run(10.0)
    assert scene.state.steps_total == 4
    assert sum("The exporter refused step 3" in line for line in scene.said) == 1
    scene.exporter.close()


def test_lines_that_are_no_steps_are_told_once_and_counted(scene: FollowScene) -> None:
    scene.log(1)
    assert scene.logger is not None
    scene.logger.write(b'{"step": 2, "da\n\xff\xfe\n')
    scene.log(3)
    assert "2 lines were no steps" in scene.run(5.0)
    assert sum("is left out" in line for line in scene.said) == 1
    assert [step for _, step in scene.steps_pushed] == [1, 3]


def test_the_last_step_ends_the_run_when_nothing_comes_after_it(scene: FollowScene) -> None:
    last = log_every(scene, 10.0, range(1, 7))
    scene.at(last + 1, lambda: scene.log(6, **{"val/loss": 0.5}))
    assert scene.run(HOUR, last_step=6).startswith("The run is over after step 6.")
    assert last + 10 < scene.now < last + 20
    assert (scene.state.running, scene.state.exit_code, scene.state.signals["val_loss"]) == (False, 0, 0.5)
    scene.pass_time(2 * HOUR)
    assert scene.incidents == {}


def test_a_console_log_tells_its_last_step_by_itself(scene: FollowScene) -> None:
    scene.file.write_text(
        "\x1b[36m(TaskRunner pid=9)\x1b[0m Total training steps: 2\n"
        "\x1b[36m(TaskRunner pid=9)\x1b[0m step:1 - actor/loss:0.5\n"
        "\x1b[36m(TaskRunner pid=9)\x1b[0m step:2 - actor/loss:np.float64(0.25)\n"
    )
    assert scene.run(HOUR).startswith("The run is over after step 2.")
    assert (scene.state.running, scene.state.signals["loss"]) == (False, 0.25)


def test_a_console_log_that_is_rotated_goes_on_in_the_same_attempt(scene: FollowScene) -> None:
    def line(step: int, pid: int = 9) -> str:
        return f"(TaskRunner pid={pid}) step:{step} - actor/loss:0.5\n"

    scene.file.write_text(line(1) + line(2))
    scene.at(5.0, lambda: scene.file.rename(scene.folder / "run.1"))
    scene.at(6.0, lambda: scene.file.write_text(line(3)))
    scene.at(10.0, lambda: scene.file.write_text(line(3, pid=10)))
    scene.run(20.0)
    assert scene.steps_pushed == [(1, 1), (1, 2), (1, 3), (2, 3)]


def test_once_pushes_what_is_there_and_says_that_the_run_is_over(scene: FollowScene) -> None:
    scene.log(1, 2)
    assert scene.logger is not None
    scene.logger.write(scene.logger.line(3).rstrip())
    assert scene.run(HOUR, once=True).endswith("3 step lines were pushed.")
    assert scene.now < MINUTE
    assert (scene.state.running, scene.state.current) == (False, 3)
    assert "0 step lines were pushed" in scene.run(2 * HOUR, once=True)
    assert scene.state.steps_total == 3


def test_a_run_of_which_it_was_said_that_it_is_over_goes_on_when_it_is_followed_again(scene: FollowScene) -> None:
    scene.log(1, 2)
    scene.run(HOUR, once=True)
    assert not scene.state.running
    until = scene.now + 10
    scene.at(scene.now + 5, lambda: scene.log(3))
    scene.run(until)
    assert (scene.state.running, scene.state.attempt, scene.state.current) == (True, 1, 3)


def test_once_gives_up_on_an_exporter_that_is_away(scene: FollowScene) -> None:
    scene.log(1)
    scene.down = True
    with pytest.raises(GiveUp, match="has taken nothing for 30 s: it cannot be reached"):
        scene.run(HOUR, once=True, patience=30.0)
    assert 30 <= scene.now < 2 * MINUTE


@pytest.mark.parametrize("content", [None, b"", b"nothing of verl\n"])
def test_once_without_a_step_makes_no_run(scene: FollowScene, content: bytes | None) -> None:
    if content is not None:
        scene.file.write_bytes(content)
    with pytest.raises(GiveUp, match="nothing was pushed"):
        scene.run(HOUR, once=True)
    assert scene.batches == []


def test_a_file_that_is_not_there_yet_is_waited_for(scene: FollowScene) -> None:
    scene.at(MINUTE, lambda: scene.log(1))
    scene.run(MINUTE - 1)
    assert scene.batches == []
    scene.run(MINUTE + 5)
    assert scene.steps_pushed == [(1, 1)]


def test_a_file_that_is_removed_and_written_anew_is_another_attempt(scene: FollowScene) -> None:
    scene.log(1, 2)
    scene.at(5.0, scene.file.unlink)
    scene.at(10.0, scene.start_trainer)
    scene.at(11.0, lambda: scene.log(1))
    scene.run(20.0)
    assert scene.steps_pushed == [(1, 1), (1, 2), (2, 1)]
    assert any("was removed: waiting for it." in line for line in scene.said)


def test_the_step_times_that_a_detector_learns_are_those_of_the_run(scene: FollowScene) -> None:
    """From what verl says for steps that were there, from the clock where that is longer."""
    scene.log(1, 2, 3, **{"timing_s/step": 40.0})
    scene.at(55.0, lambda: scene.log(4, **{"timing_s/step": 20.0}))
    scene.at(85.0, lambda: scene.log(5, **{"timing_s/step": 0.1}))
    scene.run(90.0)
    closed = [phase.seconds for batch in scene.batches if batch.phase is not None for phase in batch.phase.closed]
    assert closed[:3] == [40.0, 40.0, 40.0]
    assert math.isclose(closed[4], 30.0, abs_tol=1.5)
