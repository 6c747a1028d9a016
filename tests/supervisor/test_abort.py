"""A person calls a command off: nothing further is done, whatever the moment, and the trainer is left as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised_run import SCRIPTS, FakeExporter, Scene, alive, gated, read, until


class Gate:
    """The rollback script, which waits before one of its steps until the test lets it go on."""

    def __init__(self, scene: Scene, step: str) -> None:
        self.arrived, self._open = scene.folder / "arrived", scene.folder / "gate"
        self.scripts = gated(scene.folder / "scripts", step, self.arrived, self._open)

    def open(self) -> None:
        self._open.touch()


@pytest.fixture(autouse=True)
def no_script_waits_for_ever(watched: Scene) -> Iterator[None]:
    """A script whose supervisor was killed would go on waiting at its gate when the test is long over."""
    yield
    (watched.folder / "gate").touch()


def hanging(scene: Scene, *words: str) -> list[str]:
    """A trainer that hangs after its fifteenth step, with checkpoints at 5, 10 and 15."""
    return scene.trainer(*words, hang_at=16, only_first=1)


def halted(watched: Scene, step: str) -> tuple[Gate, subprocess.Popen[str]]:
    """A rollback under way whose script waits before that step."""
    gate = Gate(watched, step)
    supervisor = watched.run(hanging(watched), "--rollback-scripts", str(gate.scripts), wait="1")
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(gate.arrived.exists, "the script to come to its gate")
    return gate, supervisor


def aborted(watched: Scene, name: str = "c1", **fields: Any) -> Any:
    watched.abort(name, **fields)
    assert watched.exporter is not None
    return watched.exporter.final(name)


def record(watched: Scene, name: str = "c1") -> Any:
    return read(watched.state / "commands" / f"{name}.json")


@pytest.mark.parametrize("step", ["choose", "stop"])
def test_before_the_trainer_was_stopped_it_goes_on_as_it_is(watched: Scene, step: str) -> None:
    _, supervisor = halted(watched, step)
    last = aborted(watched)
    assert (last.state, last.running) == ("failed", True)
    assert last.detail == "ada aborted it. Attempt 1 goes on."
    assert alive(watched.starts()[0]["pid"])
    assert supervisor.poll() is None
    assert watched.attempts() == 1
    assert not (watched.state / "stop-request").exists()
    assert read(watched.state / "run.json")["held"] == ""


def test_after_the_stop_it_stays_stopped_and_the_supervisor_says_so(watched: Scene) -> None:
    _, supervisor = halted(watched, "resume")
    last = aborted(watched)
    assert (last.state, last.running) == ("failed", False)
    assert last.detail == "ada aborted it. The trainer is stopped and stays so until a person starts it."
    assert watched.ended(supervisor) == 70
    assert watched.of_attempts() == []
    assert watched.attempts() == 1


def test_a_stop_that_had_begun_is_finished_and_nothing_is_started_after_it(watched: Scene) -> None:
    trainer = watched.trainer(hang_at=16, term="ignore", only_first=1)
    watched.run(trainer, "--rollback-clean-seconds", "0.5")
    watched.output_has(1, "hanging")
    watched.command("c1", reason="surge")  # no hang: it is asked to end, gets SIGTERM after a time, and SIGKILL
    assert watched.exporter is not None
    until(lambda: watched.exporter and "stopping" in watched.exporter.states("c1"), "the stop to begin")
    assert aborted(watched).running is False
    assert watched.exporter.states("c1") == ["accepted", "stopping", "stopped", "failed"]
    assert watched.of_attempts() == []
    assert watched.attempts() == 1


def test_a_new_attempt_that_was_started_is_left_running(watched: Scene) -> None:
    halted(watched, "end")
    watched.started(2)
    last = aborted(watched)
    assert (last.state, last.running) == ("succeeded", True)
    assert last.detail == "ada aborted it. Attempt 2 had been started for it and is left as it is."
    assert alive(watched.starts()[1]["pid"])
    assert watched.attempts() == 2


def test_an_abort_that_comes_before_its_command_keeps_it_from_being_carried_out(watched: Scene) -> None:
    watched.run(hanging(watched))
    watched.output_has(1, "hanging")
    last = aborted(watched)
    assert (last.state, last.detail, last.running) == ("failed", "ada aborted it. Attempt 1 goes on.", True)
    assert watched.exporter is not None
    told = len(watched.exporter.progress("c1"))
    watched.command("c1", reason="hang")  # late, from an exporter that was set back
    until(lambda: watched.exporter and len(watched.exporter.progress("c1")) > told, "the end to be told again")
    assert {p.state for p in watched.exporter.progress("c1")[told:]} == {"failed"}
    assert watched.attempts() == 1


def test_the_same_abort_again_and_again_changes_nothing_more(watched: Scene) -> None:
    halted(watched, "stop")
    aborted(watched)
    before = record(watched)
    assert watched.exporter is not None
    told = len(watched.exporter.progress("c1"))
    watched.abort("c1")
    until(lambda: watched.exporter and len(watched.exporter.progress("c1")) > told + 2, "the end to be told again")
    assert record(watched) == before
    assert watched.said().count("command c1 is called off") == 1


def test_what_a_dead_script_still_asks_for_is_refused(watched: Scene) -> None:
    """The words of a script that was ended may wait in the supervisor's inbox."""
    halted(watched, "stop")
    words = watched.said  # the script knows the instance; we take it from its environment
    pids = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _is_script(p, str(watched.state))]
    environ = dict(
        pair.split("=", 1)
        for pair in (pids[0] / "environ").read_bytes().decode().split("\0")
        if pair.startswith("VERL_SENTINEL_SUPERVISOR=")
    )
    aborted(watched)
    stop = watched.cli("stop", "--for-rollback", "--state-dir", str(watched.state), "--request-id", "c1", **environ)
    assert (stop.returncode, "Its command is over; nothing is stopped." in stop.stderr) == (8, True), words()
    target = str(watched.checkpoints / "global_step_10")
    resume = watched.cli(
        "resume", "--state-dir", str(watched.state), "--request-id", "c1", "--target", target, **environ
    )
    assert (resume.returncode, "Its command is over; nothing is started." in resume.stderr) == (8, True)
    assert alive(watched.starts()[0]["pid"])


def _is_script(process: Path, state: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return words[0] == "bash" and state in words


@pytest.mark.parametrize(("step", "running"), [("choose", True), ("stop", True), ("resume", False)])
def test_a_supervisor_killed_meanwhile_leaves_it_to_the_next_which_asks_before_it_goes_on(
    watched: Scene, step: str, running: bool
) -> None:
    gate, first = halted(watched, step)
    first.kill()
    first.wait()
    watched.abort("c1")
    gate.open()  # the script of the dead supervisor finds nobody who would obey it
    second = watched.run(None, "--rollback-scripts", str(SCRIPTS), wait="1")
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.running) == ("failed", running)
    assert watched.attempts() == 1
    assert alive(watched.starts()[0]["pid"]) is running
    if not running:
        assert watched.ended(second) == 70


def test_a_supervisor_killed_after_it_started_the_new_attempt_leaves_that_running(watched: Scene) -> None:
    _, first = halted(watched, "end")
    watched.started(2)
    first.kill()
    first.wait()
    watched.abort("c1")
    watched.run(None)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    assert alive(watched.starts()[1]["pid"])
    assert watched.attempts() == 2


def test_without_the_exporters_word_half_a_command_is_finished_after_a_while(watched: Scene) -> None:
    gate, first = halted(watched, "resume")
    first.kill()
    first.wait()
    assert watched.exporter is not None
    port = watched.exporter.port
    watched.exporter.close()
    gate.open()
    watched.run(None, "--rollback-scripts", str(SCRIPTS))
    assert watched.started(2)["from"] == 15
    watched.exporter = FakeExporter(port)


def test_a_run_stopped_by_an_abort_is_not_started_by_the_same_words_again(watched: Scene) -> None:
    """As a service manager gives them, an hour later."""
    _, supervisor = halted(watched, "resume")
    aborted(watched)
    assert watched.ended(supervisor) == 70
    for words in (None, hanging(watched)):
        assert watched.ended(watched.run(words)) == 70
        assert "ada aborted it. The trainer is stopped and stays so until a person starts it." in watched.said()
        assert "verl-sentinel-train resume" in watched.said()
    assert watched.attempts() == 1
    watched.run(hanging(watched, "trainer.resume_mode=disable"))  # new words, which say where to start
    assert watched.started(2)["from"] == 0


def test_a_person_starts_it_again_with_resume_and_then_it_is_held_no_more(watched: Scene) -> None:
    _, supervisor = halted(watched, "resume")
    aborted(watched)
    watched.ended(supervisor)
    target = watched.checkpoints / "global_step_10"
    told = watched.cli("resume", "--state-dir", str(watched.state), "--target", str(target))
    assert "The target is recorded" in told.stdout, told.stderr
    watched.run(None)
    assert watched.started(2)["from"] == 10
    run = read(watched.state / "run.json")
    assert (run["held"], run["held_by_person"]) == ("", False)


def test_the_next_command_acts_on_a_held_run(watched: Scene) -> None:
    gate = Gate(watched, "resume")
    watched.run(hanging(watched), "--rollback-scripts", str(gate.scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    until(gate.arrived.exists, "the script to come to its gate")
    aborted(watched)
    gate.open()
    watched.command("c2", reason="hang", not_after_step=12)
    assert watched.exporter is not None
    assert watched.exporter.final("c2").state == "succeeded"
    assert watched.started(2)["from"] == 10


def test_an_abort_of_a_stop_that_is_over_says_that_it_is_over(watched: Scene) -> None:
    supervisor = watched.run(watched.trainer(step_seconds=0.05))
    watched.started()
    watched.command("c1", action="stop", reason="enough")
    assert watched.exporter is not None
    until(lambda: watched.exporter and "stopped" in watched.exporter.states("c1"), "the stop")
    watched.abort("c1", action="stop")
    assert watched.exporter.final("c1").state == "succeeded"
    assert watched.ended(supervisor) == 0
    assert watched.of_attempts() == []


def test_an_abort_waits_for_a_disk_that_is_full_and_nothing_goes_on_meanwhile(watched: Scene) -> None:
    gate, supervisor = halted(watched, "resume")
    commands = watched.state / "commands"
    kept = (commands / "c1.json").read_bytes()
    (commands / "c1.json").unlink()
    commands.rmdir()
    commands.write_text("in the way")  # as a disk that takes nothing
    watched.abort("c1")
    until(lambda: "c1.json cannot be written" in watched.said(), "the fault to be said")
    gate.open()
    commands.unlink()
    commands.mkdir()
    (commands / "c1.json").write_bytes(kept)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").running is False
    assert record(watched)["state"] == "failed"
    assert watched.attempts() == 1
    assert watched.ended(supervisor) == 70
