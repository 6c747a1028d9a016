"""Slurm's requeue: the run's earlier job, which is over, is used again for the next attempt. By the Slurm executor.

For sites where a job id carries something that a new job would have to ask for again. The job is put back held, gets
the attempt's name and its excluded nodes, and is released; its script then finds the start file of this attempt. Every
step can be done again, so whoever is killed in between leaves a held job that the next attempt takes, or ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from trainer_entry.executors import slurm_commands as commands
from trainer_entry.executors.interface import CannotAsk, Job, Refused
from trainer_entry.executors.record import read_job, write_job
from trainer_entry.executors.slurm_files import FOLDER, start_file

_SECONDS = 30.0


def requeue(job: Job, exclude: list[str], environ: Mapping[str, str]) -> str:
    """The id of the job that was put back; empty where there is none that could be: then a new one is submitted."""
    earlier = _earlier(job)
    if earlier is None:
        return ""
    job_id, folder = earlier
    shown = commands.show(job_id, environ)
    if shown.state.state in ("unknown", "running") or not folder.is_dir():
        return ""
    # Known as this attempt's from here on, so that a kill at any later point leaves a job that can be found.
    record = read_job(job.directory)
    if record is not None:
        write_job(job.directory, replace(record, id=job_id))
    if not shown.state.alive:
        answer = commands.run(["scontrol", "requeuehold", job_id], environ)
        if answer.code != 0:
            if record is not None:
                write_job(job.directory, record)
            return ""
        shown = _wait_until_held(job_id, environ)
    try:
        os.symlink(folder, job.directory / FOLDER)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused(f"The job's folder cannot be linked: {error.strerror}.") from None
    start_file(job, shown.restarts)
    # Slurm keeps a job that was put back for two minutes, so that no node takes its new start for the one that was
    # revoked. The nodes compare times to the second, so a few seconds are enough where the clocks agree.
    changes = [f"JobId={job_id}", f"JobName={job.name}", f"ExcNodeList={','.join(exclude)}", "StartTime=now+5"]
    for words in (["update", *changes], ["release", job_id]):
        commands.checked(["scontrol", *words], environ)
    return job_id


def _earlier(job: Job) -> tuple[str, Path] | None:
    """Id and folder of the newest job that an earlier attempt of this run had."""
    if not job.directory.name.isdecimal():
        return None
    for number in range(int(job.directory.name) - 1, 0, -1):
        directory = job.directory.parent / str(number)
        record = read_job(directory)
        if record is not None and record.executor == "slurm" and record.id:
            return record.id, (directory / FOLDER).resolve()
    return None


def _wait_until_held(job_id: str, environ: Mapping[str, str]) -> commands.Shown:
    deadline = time.monotonic() + _SECONDS
    while True:
        shown = commands.show(job_id, environ)
        if shown.state.state == "pending":
            return shown
        if time.monotonic() > deadline:
            raise CannotAsk(f"Slurm's job {job_id} was not put back into the queue within {_SECONDS:g} s.")
        time.sleep(0.5)
