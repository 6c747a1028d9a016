"""A supervisor that is killed leaves a run that the next one takes over, and two at once are refused."""

from __future__ import annotations

import json
import os
import signal

import pytest
from supervised_run import FakeExporter, Scene, alive, gated, kill, read, until

from trainer_entry.supervisor import processes


def test_the_next_supervisor_takes_the_live_trainer_over_and_learns_its_exit_code(watched: Scene) -> None:
    first = watched.run(watched.trainer(crash_at=100, step_seconds=0.05, children=1))
    trainer = watched.started()["pid"]
    watched.output_has(1, "step:5")
    first.kill()
    first.wait()
    assert alive(trainer)
    second = watched.run(watched.trainer(crash_at=100, step_seconds=0.05, children=1), wait="0")
    until(lambda: "took over attempt 1, which is running" in watched.said(), "the second to take over")
    assert watched.ended(second) == 3
    assert watched.attempts() == 1
    assert watched.of_attempts() == []
    assert watched.exporter is not None
    assert [(a, e.pid) for a, e in watched.exporter.events("attempt_started")] == [(1, trainer)]
    assert [(a, e.exit_code, e.expected) for a, e in watched.exporter.events("attempt_exited")] == [(1, 3, False)]


@pytest.mark.parametrize(("fault", "code"), [({"steps": 30}, 0), ({"crash_at": 30}, 3)])
def test_an_end_that_no_supervisor_saw_is_known_to_the_next(watched: Scene, fault: dict[str, int], code: int) -> None:
    first = watched.run(watched.trainer(step_seconds=0.02, **fault))
    watched.started()
    first.kill()
    first.wait()
    until((watched.state / "attempts/1/exit.json").exists, "the trainer to end")
    second = watched.run(None, wait="0")
    assert watched.ended(second) == code
    assert watched.attempts() == 1
    assert watched.exporter is not None
    [(attempt, event)] = watched.exporter.events("attempt_exited")
    assert (attempt, event.exit_code, event.expected) == (1, code, code == 0)


def test_a_second_supervisor_is_refused_with_a_sentence(scene: Scene) -> None:
    first = scene.run(scene.trainer())
    scene.started()
    second = scene.run(scene.trainer())
    assert scene.ended(second) == 75
    assert f"Another supervisor (process {first.pid}) has the run in {scene.state}" in scene.said()
    assert first.poll() is None
    assert scene.attempts() == 1


@pytest.mark.parametrize("stage", ["choose", "stop", "resume", "end"])
def test_a_rollback_that_was_half_carried_out_is_finished_once(watched: Scene, stage: str) -> None:
    """The supervisor is killed while the script stands still at each of its stages."""
    gate, arrived = watched.folder / "gate", watched.folder / "arrived"
    scripts = gated(watched.folder / "scripts", stage, arrived, gate)
    trainer = watched.trainer(hang_at=12, only_first=1)
    first = watched.run(trainer, "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(arrived.exists, "the script to come to its gate")
    first.kill()
    first.wait()
    gate.touch()  # the script of the dead supervisor goes on, and must not meddle with the next one
    watched.run(trainer)
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, watched.started(2)["from"]) == ("succeeded", 10)
    until(lambda: read(watched.state / "commands" / "c1.json")["state"] == "succeeded", "the record")
    assert watched.attempts() == 2
    assert [a for a, _ in watched.exporter.events("attempt_exited")] == [1]
    assert not alive(watched.starts()[0]["pid"])


def test_an_attempt_whose_supervisor_died_before_starting_it_is_started_by_the_next(scene: Scene) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=6))) == 0
    run = read(scene.state / "run.json")
    (scene.state / "run.json").write_text(json.dumps({**run, "attempt": 2}))
    folder = scene.state / "attempts" / "2"
    folder.mkdir()
    request = read(scene.state / "attempts/1/request.json")
    target = str(scene.checkpoints / "global_step_5")
    request.update(attempt=2, marker="never", resume_step=5, resume_path=target, command_id="c9")
    (folder / "request.json").write_text(json.dumps(request))
    scene.run(None)
    started = scene.started(2)
    assert (started["attempt"], started["from"]) == (3, 5)


def test_the_attempt_process_killed_too_leaves_no_second_trainer_and_nothing_behind(watched: Scene) -> None:
    first = watched.run(watched.trainer(children=1, stop="ignore"))
    started = watched.started()
    attempt = read(watched.state / "attempts/1/attempt.json")
    first.kill()
    first.wait()
    kill(attempt["pid"])
    until(lambda: not alive(attempt["pid"]), "the attempt process to die")
    assert alive(started["pid"])
    second = watched.run(None, "--clean-stop-seconds", "0.1")
    until(lambda: "took over attempt 1, which is running" in watched.said(), "the second to take over")
    second.send_signal(signal.SIGTERM)
    assert watched.ended(second) == 143
    assert [pid for pid in (started["pid"], *started["children"]) if alive(pid)] == []
    assert watched.attempts() == 1
    assert watched.exporter is not None
    [(_, event)] = watched.exporter.events("attempt_exited")
    assert (event.exit_code, event.signal, event.expected) == (None, None, True)


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone(scene: Scene) -> None:
    """As after a reboot or a pid that came round: the record names us, the test itself."""
    assert scene.ended(scene.run(scene.trainer(steps=2))) == 0
    folder = scene.state / "attempts" / "1"
    (folder / "exit.json").unlink()
    record = read(folder / "attempt.json")
    me = processes.identify(os.getpid())
    assert me is not None
    stale = {**record, "pid": me.pid, "trainer_pid": me.pid, "start_ticks": me.start_ticks - 1}
    (folder / "attempt.json").write_text(json.dumps({**stale, "trainer_start_ticks": me.start_ticks - 1}))
    run = read(scene.state / "run.json")
    (scene.state / "run.json").write_text(json.dumps({**run, "reported_exit": 0}))
    assert scene.ended(scene.run(None, wait="0")) == 1
    assert "nobody was there to see with which code" in scene.said()


def test_a_damaged_record_is_a_sentence(scene: Scene) -> None:
    scene.state.mkdir()
    (scene.state / "run.json").write_text('{"run_id": 5}')
    assert scene.ended(scene.run(scene.trainer())) == 71
    assert f"{scene.state / 'run.json'} is damaged" in scene.said()


def test_a_state_directory_of_another_run_is_refused(scene: Scene) -> None:
    assert scene.ended(scene.run(scene.trainer(steps=1))) == 0
    scene.checkpoints = scene.folder / "elsewhere"
    assert scene.ended(scene.run(scene.trainer(steps=1))) == 71
    assert "is of run test-run with checkpoints in" in scene.said()


def test_the_exporters_url_is_remembered_for_a_start_without_a_command_line(watched: Scene) -> None:
    assert watched.ended(watched.run(watched.trainer(steps=2))) == 0
    assert watched.exporter is not None
    url, watched.exporter = watched.exporter.port, None
    watched_again = FakeExporter()
    try:
        run = read(watched.state / "run.json")
        assert run["url"].endswith(str(url))
        (watched.state / "run.json").write_text(json.dumps({**run, "url": watched_again.url}))
        assert watched.ended(watched.run(None, url=False)) == 0
        assert [a for a, _ in watched_again.events("attempt_started")] == [2]
    finally:
        watched_again.close()


def test_options_count_without_a_command_line_too(scene: Scene) -> None:
    scene.exporter = FakeExporter()
    assert scene.ended(scene.run(scene.trainer(steps=2))) == 0
    scene.exporter.close()
    scene.exporter = None
    assert scene.ended(scene.run(None)) == 0
    assert "there is no exporter (--url off)" in scene.said()
    assert scene.ended(scene.run(None, "--checkpoint-dir", "elsewhere")) == 71
    assert f"not of run test-run with {scene.folder / 'elsewhere'}" in scene.said()
    assert scene.attempts() == 2
