"""The drill: restore from a backup into an empty place, train a few steps from it, time each part, leave nothing.

Called by ``checkpoints drill``. The run's own command is used, with everything that would touch the run taken out: its
own checkpoint directory, no save, no validation, no exporter, a state directory of its own. It runs on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_entry import settings
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.copies import Copy
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.restoring import restore
from trainer_entry.checkpoints.tiers.stores import Store

_STEP = re.compile(r"\bstep:([0-9]{1,18}) - ")
_LOOK_SECONDS = 0.2
_SHORT_ENOUGH = 40
"""Characters: Ray's sockets lie below its folder, and a socket's path has at most 107."""


@dataclass(frozen=True, slots=True)
class Drilled:
    """Seconds of each part. ``steps`` are those that were trained after the checkpoint's own."""

    name: str
    step: int
    steps: int
    restore_seconds: float
    first_step_seconds: float
    """From the start of the trainer to the end of its first step: its own start is most of it."""
    train_seconds: float
    total_seconds: float


def drill(
    store: Store,
    copy: Copy,
    argv: Sequence[str],
    cwd: str,
    identities: Sequence[Any],
    pace: Pace,
    *,
    steps: int,
    limit_seconds: float,
    scratch: str | None = None,
    say: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Drilled:
    """Do it. Raises CheckpointError with a sentence where the copy cannot be restored or trained from; Stopped."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="vsd-", dir=scratch))
    try:
        restored = restore(store, copy, folder / "restored", identities, pace, beside=False)
        restore_seconds = time.monotonic() - began
        say(f"restored {restored.bytes} bytes in {restore_seconds:.1f} s; training {steps} steps from it")
        words = drill_words(argv, os.fspath(restored.path), os.fspath(folder / "trained"), restored.step + steps)
        started = time.monotonic()
        first = _train(folder, words, cwd, restored.step, steps, limit_seconds, stop)
        ended = time.monotonic()
        return Drilled(
            name=copy.name,
            step=restored.step,
            steps=steps,
            restore_seconds=restore_seconds,
            first_step_seconds=first - started,
            train_seconds=ended - started,
            total_seconds=ended - began,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drill_words(argv: Sequence[str], restored: str, trained: str, last_step: int) -> list[str]:
    """The trainer's words for a drill: as they are, but for what would touch the run or take long."""
    from trainer_entry.supervisor.overrides import TrainerCommand

    values = {
        "trainer.default_local_dir": trained,
        "trainer.total_training_steps": str(last_step),
        "trainer.total_epochs": "1000000",  # or a checkpoint from the end of a run would train no step
        "trainer.save_freq": "-1",
        "trainer.test_freq": "-1",
        "trainer.logger": "[console]",
    }
    if not any("sft" in word for word in argv[1:4]):
        values["trainer.val_before_train"] = "False"
    words = TrainerCommand(tuple(argv), os.getcwd()).resuming_from(restored)
    kept = [word for index, word in enumerate(words) if index == 0 or _key(word) not in values]
    return [*kept, *(f"++{key}={value}" for key, value in values.items())]


def _train(
    folder: Path, words: list[str], cwd: str, step: int, steps: int, limit_seconds: float, stop: Callable[[], bool]
) -> float:
    """Run the trainer to its end; returns when its first step had ended. Its processes are gone afterwards."""
    from trainer_entry.supervisor.attempts import Attempt, new_marker
    from trainer_entry.supervisor.state import AttemptRequest, StateDir, StateError

    state = StateDir(folder / "state")
    state.create()
    request = AttemptRequest(attempt=1, argv=words, cwd=cwd, marker=new_marker(), created_at=time.time())
    environ = {name: value for name, value in os.environ.items() if name not in settings.VARIABLES}
    environ[settings.URL] = "off"
    environ["HYDRA_FULL_ERROR"] = "1"
    if len(os.fspath(folder)) <= _SHORT_ENOUGH:
        environ["RAY_TMPDIR"] = os.fspath(folder)
    Attempt.prepare(state, request)
    attempt: Attempt | None = None
    try:
        attempt = Attempt.start(state, request, environ)
        log = attempt.directory / "output.log"
        until = time.monotonic() + limit_seconds
        first: float | None = None
        while attempt.exit() is None:
            if stop():
                raise Stopped("The drill was told to stop.")
            if time.monotonic() > until:
                raise CheckpointError(
                    f"The trainer did not finish {steps} steps within {limit_seconds:g} s. "
                    + _said(attempt.last_output())
                )
            if first is None and _steps_in(log, step):
                first = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        seen = _steps_in(log, step)
        ended = attempt.exit()
        code = ended.exit_code if ended is not None else None
        if code != 0 or len(seen) < steps:
            how = f"ended with code {code}" if code is not None else "was ended"
            raise CheckpointError(
                f"The trainer {how} after {len(seen)} of {steps} steps. {_said(attempt.last_output())}", "not_runnable"
            )
        return first if first is not None else time.monotonic()
    except StateError as error:
        raise CheckpointError(f"The trainer could not be started: {error}", "not_runnable") from error
    finally:
        if attempt is not None:
            attempt.wait_until_swept(0.0 if attempt.exit() is None else 15.0)
            attempt.end_leftovers()


def _steps_in(log: Path, after: int) -> set[int]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return {number for number in map(int, _STEP.findall(text)) if number > after}


def _said(lines: Sequence[str]) -> str:
    return f"It said last: {lines[-1]}" if lines else "It said nothing."


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
