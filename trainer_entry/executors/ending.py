"""The confirmed end of a job: asked for, waited for, asked for harder. For the shadow, and for a job that it left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from trainer_entry.executors.interface import CannotAsk, Executor, ExecutorError, JobState, Refused
from trainer_entry.executors.record import JobRecord, write_job

FORCE_AFTER_SECONDS = 45.0
"""More than Slurm's KillWait at most sites (30 s), after which Slurm sends SIGKILL by itself."""
ASK_AGAIN_SECONDS = 15.0


def end_job(
    executor: Executor,
    record: JobRecord,
    directory: Path,
    seconds: float,
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> JobState:
    """End every job of this record, and see that they are over; returns how the last one ended.

    Raises CannotAsk where the cluster did not say so within ``seconds``: then a job may be alive.
    """
    deadline = time.monotonic() + seconds
    asked: dict[str, float] = {}
    started = time.monotonic()
    called_off = False
    trouble: ExecutorError | None = None
    while True:
        try:
            if not called_off:
                executor.call_off(record.name, directory, submitted=bool(record.id))
                called_off = True
            ids = _ids(executor, record)
            states = {job: executor.state(job) for job in ids}
            alive = [job for job, state in states.items() if state.alive]
            if not alive:
                return states[ids[-1]] if ids else JobState("unknown", detail="the cluster knows no such job")
            trouble = CannotAsk(f"Job {alive[0]} is still there: {states[alive[0]].detail}.")
            for job in alive:
                if time.monotonic() - asked.get(job, -ASK_AGAIN_SECONDS) >= ASK_AGAIN_SECONDS:
                    asked[job] = time.monotonic()
                    executor.stop(job, force=time.monotonic() - started > FORCE_AFTER_SECONDS)
        except (CannotAsk, Refused) as error:
            trouble = error
        if time.monotonic() >= deadline:
            raise CannotAsk(str(trouble)) from None
        meanwhile()
        time.sleep(min(0.5, executor.poll_seconds))


def end_for_good(executor: Executor, record: JobRecord, directory: Path, seconds: float) -> JobState:
    """The same, noted in the record, so that nobody has to ask again. Raises CannotAsk, StateError."""
    state = end_job(executor, record, directory, seconds)
    write_job(directory, replace(record, stage="over", detail=state.detail))
    return state


def _ids(executor: Executor, record: JobRecord) -> list[str]:
    found = executor.find(record.name)
    return found if not record.id or record.id in found else [record.id, *found]
