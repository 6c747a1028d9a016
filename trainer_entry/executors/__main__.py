"""``python -m trainer_entry.executors``: the shadow of a job, and short questions about a job that was left.

--executor NAME [--settings FILE] -- TRAINER WORDS     run one attempt as a job; by the supervisor only
--end ATTEMPT_DIRECTORY                                end its job for good; says how, as one line of JSON
--look ATTEMPT_DIRECTORY                               how its job is, as one line of JSON
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import msgspec

from exporter.protocol import Changes
from trainer_entry import settings
from trainer_entry.executors.configuration import read_ray, read_slurm
from trainer_entry.executors.ending import end_for_good
from trainer_entry.executors.environment import travelling
from trainer_entry.executors.following import NOT_SUBMITTED, Shadow, to_output
from trainer_entry.executors.interface import Executor, ExecutorError, Job
from trainer_entry.executors.record import JobRecord, read_job
from trainer_entry.supervisor.processes import MARKER_VARIABLE
from trainer_entry.supervisor.state import StateError

CHANGES = "VERL_SENTINEL_CHANGES"


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code. Every foreseen error is one sentence on standard output."""
    parser = argparse.ArgumentParser(prog="python -m trainer_entry.executors", description="The shadow of a job.")
    parser.add_argument("--executor", choices=("ray", "slurm"), help="the cluster's kind")
    parser.add_argument("--settings", default="", metavar="FILE", help="as --executor-settings of the supervisor")
    parser.add_argument("--end", type=Path, metavar="DIR", help="end the job of the attempt with this folder")
    parser.add_argument("--look", type=Path, metavar="DIR", help="how the job of that attempt is")
    parser.add_argument("--seconds", type=float, default=90.0, help="limit for --end (default: 90)")
    parser.add_argument("trainer", nargs=argparse.REMAINDER, help="the trainer's words, after --")
    parsed = parser.parse_args(arguments)
    directory = parsed.end or parsed.look
    if directory is not None:
        return _answer(directory, end=parsed.end is not None, seconds=parsed.seconds)
    words = parsed.trainer[1:] if parsed.trainer[:1] == ["--"] else parsed.trainer
    if not parsed.executor or not words:
        parser.error("give --executor and the trainer's words after --")
    try:
        job = _job(words)
        executor = open_executor(parsed.executor, parsed.settings, job.directory)
        return Shadow(executor, job, parsed.settings, to_output).run()
    except (ExecutorError, StateError) as error:
        to_output(f"verl-sentinel: {error}\n".encode("utf-8", "replace"))
        return NOT_SUBMITTED


def open_executor(name: str, settings_file: str, directory: Path) -> Executor:
    """The executor of that name, for one attempt. Raises ExecutorError for settings that cannot be used."""
    if name == "ray":
        from trainer_entry.executors.ray_jobs import RayJobs

        return RayJobs(read_ray(settings_file))
    if name == "slurm":
        from trainer_entry.executors.slurm import Slurm

        return Slurm(read_slurm(settings_file), directory, os.environ)
    raise ExecutorError(f"There is no executor {name!r}; there are local, ray and slurm.")


def _job(words: list[str]) -> Job:
    environ = os.environ
    missing = [
        n for n in (settings.STATE_DIR, settings.ATTEMPT, settings.RUN_ID, MARKER_VARIABLE) if not environ.get(n)
    ]
    if missing:
        raise ExecutorError(f"{missing[0]} is not set: this is started by verl-sentinel-train run --executor only.")
    run, attempt = environ[settings.RUN_ID], environ[settings.ATTEMPT]
    directory = Path(environ[settings.STATE_DIR]) / "attempts" / attempt
    return Job(
        name=f"{run[:80]}-{attempt}-{environ[MARKER_VARIABLE][:8]}",
        argv=tuple(words),
        cwd=os.getcwd(),
        directory=directory,
        environ=travelling(environ, directory),
        exclude=_excluded(environ.get(CHANGES, "")),
        labels={"verl_sentinel_run": run, "verl_sentinel_attempt": attempt},
    )


def _excluded(text: str) -> tuple[str, ...]:
    """Machines that the changes in force leave out; of a single GPU, which no cluster can leave out, its machine."""
    if not text:
        return ()
    try:
        changes = msgspec.json.decode(text, type=Changes)
    except msgspec.DecodeError as error:
        raise ExecutorError(f"{CHANGES} cannot be read ({error}), so it is not known what to leave out.") from None
    return tuple(dict.fromkeys(each.node for each in changes.exclude if each.node))


def _answer(directory: Path, *, end: bool, seconds: float) -> int:
    try:
        record = read_job(directory)
        if record is None:
            raise ExecutorError(f"There is no job in {directory}.")
        executor = open_executor(record.executor, record.settings, directory)
        try:
            answer = _end(executor, record, directory, seconds) if end else _look(executor, record)
        finally:
            executor.close()
    except (ExecutorError, StateError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


def _end(executor: Executor, record: JobRecord, directory: Path, seconds: float) -> dict[str, object]:
    ids = executor.find(record.name) if not record.id else [record.id]
    alive = any(executor.state(job).alive for job in ids)
    state = end_for_good(executor, record, directory, seconds)
    return {"ended": alive, "state": state.state, "detail": state.detail}


def _look(executor: Executor, record: JobRecord) -> dict[str, object]:
    ids = [record.id] if record.id else executor.find(record.name)
    if not ids:
        return {"state": "unknown", "detail": "the cluster knows no such job"}
    state = executor.state(ids[-1])
    return {"state": state.state, "exit_code": state.exit_code, "detail": state.detail}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
