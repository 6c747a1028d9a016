"""Attempts where the machine does its worst: processes that do not die, a supervisor killed around a start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from trainer_entry.supervisor import lifecycle, stopping
from trainer_entry.supervisor.attempts import Attempt
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.reporting import NoReporter
from trainer_entry.supervisor.starting import Start
from trainer_entry.supervisor.state import ResumeTarget, RunRecord, StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry, StopLimits, Stopped


def made(folder: Path) -> Lifecycle:
    state = StateDir(folder / "state")
    state.create()
    target = ResumeTarget(step=5, path=str(folder / "global_step_5"))
    run = RunRecord(
        run_id="r", argv=[], cwd=str(folder), checkpoint_dir=str(folder), next_start=target, held="No checkpoint."
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    return Lifecycle(
        state,
        run,
        NoReporter(),
        StopLimits(),
        environ,
        environments=folder / "environments",
        follow=False,
        say=lambda sentence: None,
    )


def test_a_trainer_that_nothing_can_kill_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stuck in a driver, it survives SIGKILL; its attempt has no end then that could be told."""
    life = made(tmp_path)
    life.start(Start((sys.executable, "-c", "import time; time.sleep(600)"), None))
    assert life.attempt is not None
    trainer = life.attempt.trainer()
    assert trainer is not None
    try:
        monkeypatch.setattr(lifecycle, "stop", lambda *args, **kwargs: Stopped("SIGKILL", 1.0, [trainer.pid]))
        with pytest.raises(StateError, match=f"Processes of attempt 1 could not be ended: {trainer.pid}"):
            life.stop(clean=0, save=False, hurry=Hurry())
        assert life.running
    finally:
        monkeypatch.undo()
        life.stop(clean=0, save=False, hurry=Hurry())
    assert not life.running


def test_a_full_disk_does_not_keep_the_trainer_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = made(tmp_path)
    life.start(Start((sys.executable, "-c", "import time; time.sleep(600)"), None))
    assert life.attempt is not None

    def full(*args: object) -> None:
        raise StateError("run.json cannot be written: No space left on device.")

    monkeypatch.setattr(stopping, "write_record", full)
    monkeypatch.setattr(StateDir, "write_run", full)
    with pytest.raises(StateError, match="No space left"):  # told, when it is stopped
        life.stop(clean=60, save=False, hurry=Hurry())
    assert life.attempt.trainer() is None
    assert life.attempt.members() == set()


def test_a_start_that_fails_keeps_what_was_recorded_for_it(tmp_path: Path) -> None:
    life = made(tmp_path)
    before = life.run
    with pytest.raises(StateError, match="The trainer 'no-such-program' cannot be started"):
        life.start(Start(("no-such-program",), None))
    assert (life.run.next_start, life.run.held) == (before.next_start, before.held)
    life.start(Start((sys.executable, "-c", ""), None))
    assert (life.run.attempt, life.run.next_start, life.run.held) == (2, None, "")
    assert life.attempt is not None
    deadline = time.monotonic() + 30
    while life.watch() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert life.ended is not None


def test_whoever_finds_an_attempts_number_finds_what_was_to_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after the number was written: the next supervisor knows where that start was to begin."""

    class Killed(BaseException):
        pass

    life = made(tmp_path)
    state = StateDir(tmp_path / "state")
    write = StateDir.write_run

    def killed(self: StateDir, record: RunRecord) -> None:
        write(self, record)
        raise Killed

    monkeypatch.setattr(StateDir, "write_run", killed)
    with pytest.raises(Killed):
        life.start(Start(("true",), 5, str(tmp_path / "global_step_5")))
    run = state.read_run()
    assert run is not None
    attempt = Attempt.existing(state, run.attempt)
    assert attempt is not None
    assert attempt.request.resume_path == str(tmp_path / "global_step_5")
