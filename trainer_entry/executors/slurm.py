"""Slurm: the attempt as a batch job. Used by the shadow, and by whoever ends a job that it left.

The job runs what its *start file* says, and takes that file away as it begins. So a job starts the trainer at most
once: not a second time when Slurm requeues it after a node failed, not when sbatch was sent twice, and not at all when
the start was called off while sbatch was still under way. For that, and for the log, the state directory must be on a
file system that the nodes share.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainer_entry.executors import slurm_commands as commands
from trainer_entry.executors.configuration import SlurmSettings
from trainer_entry.executors.environment import for_sbatch
from trainer_entry.executors.interface import LOG_PIECE, CannotAsk, ExecutorError, Job, JobState, Refused
from trainer_entry.executors.slurm_files import FOLDER, LOG, batch_script, slurms_words, start_file, start_was_taken
from trainer_entry.supervisor.state import StateError

_LOOK_AGAIN_SECONDS = 30.0


class Slurm:
    """See :class:`trainer_entry.executors.interface.Executor`. ``directory`` is the attempt's folder."""

    name = "slurm"

    def __init__(self, given: SlurmSettings, directory: Path, environ: Mapping[str, str]) -> None:
        self._given = given
        self._directory = directory
        self._environ = for_sbatch(environ)
        self.poll_seconds = given.poll_seconds

    def submit(self, job: Job) -> str:
        """sbatch, or the run's earlier job once more where the settings say ``requeue``."""
        if found := self.find(job.name):
            return found[-1]
        if start_was_taken(job.directory):
            raise Refused(f"The job {job.name} ran already, and Slurm has forgotten it; it is not submitted again.")
        words = list(self._given.sbatch)
        exclude = [*_take_exclude(words), *self._nodes(job.exclude)]
        if self._given.requeue:
            from trainer_entry.executors.slurm_requeue import requeue

            if again := requeue(job, exclude, self._environ):
                return again
        try:
            (job.directory / FOLDER).mkdir(mode=0o700, exist_ok=True)
            script = batch_script(job)
            start_file(job, 0)
        except (OSError, StateError) as error:
            raise Refused(f"The job's files cannot be written: {getattr(error, 'strerror', None) or error}.") from error
        answer = commands.run(["sbatch", *self._options(job, words, exclude), str(script)], self._environ)
        if answer.code == 0:
            job_id = answer.out.strip().split(";")[0]
            if commands.is_id(job_id):
                return job_id
            raise CannotAsk(f"Slurm's sbatch printed no job's number, but: {answer.out.strip()[:100]!r}.")
        failed = commands.failure("sbatch", answer)
        if isinstance(failed, CannotAsk):
            return self._after_lost_answer(job, failed)
        raise failed

    def find(self, name: str) -> list[str]:
        """All jobs with that name, oldest first."""
        return commands.jobs_named(name, self._environ)

    def state(self, job_id: str) -> JobState:
        """As the controller or accounting says; a job whose processes are still being ended counts as running."""
        shown = commands.show(job_id, self._environ)
        begins = self._directory / FOLDER / f"start-{shown.restarts}"
        return replace(shown.state, put_back=shown.state.state == "pending" and not begins.exists())

    def stop(self, job_id: str, *, force: bool = False) -> None:
        """scancel: SIGTERM to all that the job runs, and after the site's KillWait SIGKILL; ``force``: SIGKILL now."""
        words = ["scancel", "--signal=KILL", "--full", job_id] if force else ["scancel", job_id]
        answer = commands.run(words, self._environ)
        if answer.code != 0 and not re.search(r"invalid job id|already complet", answer.words, re.IGNORECASE):
            raise commands.failure("scancel", answer)

    def log(self, job_id: str, offset: int) -> bytes:
        """From the log on the shared file system."""
        try:
            with open(self._directory / LOG, "rb") as file:
                file.seek(offset)
                return file.read(LOG_PIECE)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise CannotAsk(f"The job's log {self._directory / LOG} cannot be read: {error.strerror}.") from None

    def log_ended(self, job_id: str) -> bool:
        """A file has no end mark: what a node wrote last is seen a moment later."""
        return True

    def call_off(self, name: str, directory: Path, *, submitted: bool) -> None:
        """Take the start files away: a job that comes later finds none."""
        folder = directory / FOLDER
        for path in folder.glob("start-*") if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(f"off-{path.name}"))

    def last_words(self) -> str:
        """What Slurm itself wrote about the job: that it was cancelled, ran out of memory, or could not start."""
        return slurms_words(self._directory)

    def close(self) -> None:
        """Nothing is held."""

    def _options(self, job: Job, given: list[str], exclude: list[str]) -> list[str]:
        return [
            *given,
            "--parsable",
            f"--job-name={job.name}",
            f"--chdir={job.cwd}",
            f"--output={_literal(job.directory / FOLDER / 'slurm.log')}",
            "--open-mode=append",
            "--requeue" if self._given.requeue else "--no-requeue",
            *([f"--exclude={','.join(exclude)}"] if exclude else []),
        ]

    def _after_lost_answer(self, job: Job, failed: CannotAsk) -> str:
        """The answer to sbatch was lost, so the job may be there or not: look for it by its name for a while."""
        deadline = time.monotonic() + _LOOK_AGAIN_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(CannotAsk):
                if found := self.find(job.name):
                    return found[-1]
            time.sleep(1.0)
        self.call_off(job.name, job.directory, submitted=False)
        raise failed

    def _nodes(self, machines: tuple[str, ...]) -> list[str]:
        """Slurm's names of machines, which are called by their host names elsewhere. Raises Refused for unknown ones:
        a machine that cannot be left out is a reason not to start.
        """
        if not machines:
            return []
        out = commands.checked(["scontrol", "show", "node", "--oneliner"], self._environ)
        names: dict[str, list[str]] = {}
        for line in out.splitlines():
            name = re.search(r"(?:^|\s)NodeName=(\S+)", line)
            host = re.search(r"(?:^|\s)NodeHostName=(\S+)", line)
            if name is not None:
                for key in {name[1], host[1] if host else name[1]}:
                    names.setdefault(key, []).append(name[1])
        chosen: list[str] = []
        for machine in machines:
            found = [machine] if any(machine in each for each in names.values()) else None
            found = found or names.get(machine) or names.get(machine.split(".")[0])
            if not found:
                raise Refused(f"Slurm knows no node {machine[:100]!r}, so it cannot be left out; nothing is started.")
            chosen += [node for node in found if node not in chosen]
        return chosen


def _take_exclude(words: list[str]) -> list[str]:
    """Take the user's own --exclude out of the words, in any of its spellings: sbatch heeds only the last one."""
    taken: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word in ("--exclude", "-x") and index + 1 < len(words):
            taken.append(words[index + 1])
            del words[index : index + 2]
        elif word.startswith("--exclude="):
            taken.append(word.partition("=")[2])
            del words[index]
        elif word.startswith("-x") and not word.startswith("--"):
            taken.append(word[2:].removeprefix("="))
            del words[index]
        else:
            index += 1
    return [each for each in taken if each]


def _literal(path: Path) -> str:
    """A path that Slurm does not take for a pattern. Raises ExecutorError for one that cannot be written so."""
    text = os.fspath(path)
    if "\\" in text or "\n" in text:
        raise ExecutorError(f"The state directory {text!r} has a character that Slurm cannot have in a path.")
    return text.replace("%", "%%")
