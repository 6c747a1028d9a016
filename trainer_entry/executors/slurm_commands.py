"""Slurm's own programs, run with limits, and what they print. Used by the Slurm executor.

Nothing here goes through a shell. Options that a program of another version lacks are not used: squeue and scontrol
print what is asked for since Slurm 14, and accounting (sacct) is used where a site has it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer_entry.executors.interface import CannotAsk, JobState, Phase, Refused

SECONDS = 60.0
"""More than the programs' own MessageTimeout at any site that was heard of, so that their own words are seen."""

_MAX_ANSWER = 1024 * 1024
_UNKNOWN_JOB = re.compile(r"invalid job id|job not found|already completed", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"unable to contact|connection|timed out|timeout|communication|configuration source|could not establish|"
    r"resolve|munge|authentication|protocol|not running|slurmctld|temporar|try again",
    re.IGNORECASE,
)

_PHASES: dict[str, Phase] = {
    "PENDING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "RESV_DEL_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "CONFIGURING": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "RESIZING": "running",
    "COMPLETED": "succeeded",
    "CANCELLED": "stopped",
    "REVOKED": "stopped",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "RECONFIG_FAIL": "failed",
    "PREEMPTED": "failed",
    "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one program said."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its complaint, on one line, short."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        text = " ".join(re.sub(r"^\w+: (error|fatal): ", "", line) for line in lines[-3:])
        return text[:300] or f"exit code {self.code}, and no word"


def run(words: Sequence[str], environ: Mapping[str, str], *, seconds: float = SECONDS) -> Answer:
    """Run one program to its end. Raises CannotAsk where it is not there or does not come back."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environ, "LC_ALL": "C"},
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise CannotAsk(
            f"The program {words[0]} is not on this machine; run the supervisor on a login node of the Slurm cluster."
        ) from None
    except subprocess.TimeoutExpired:
        raise CannotAsk(f"Slurm's {words[0]} gave no answer within {seconds:g} s.") from None
    except OSError as error:
        raise CannotAsk(f"Slurm's {words[0]} cannot be run: {error.strerror}.") from None
    return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


def checked(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """The same for a question: its output. Raises CannotAsk where Slurm did not answer, else Refused."""
    answer = run(words, environ)
    if answer.code == 0:
        return answer.out
    raise failure(words[0], answer)


def failure(program: str, answer: Answer) -> CannotAsk | Refused:
    """What a program that failed means."""
    if _NO_ANSWER.search(answer.words):
        return CannotAsk(f"Slurm cannot be asked from this machine; its {program} says: {answer.words}")
    return Refused(f"Slurm refused; its {program} says: {answer.words}")


def jobs_named(name: str, environ: Mapping[str, str]) -> list[str]:
    """Ids of all jobs with that name that Slurm still knows, oldest first, from the queue and from accounting."""
    out = checked(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A"], environ)
    found = {line.strip() for line in out.splitlines()}
    if not found:
        answer = run(["sacct", "--noheader", "-X", "-P", f"--name={name}", "--format=JobIDRaw"], environ)
        found = {line.strip() for line in answer.out.splitlines()} if answer.code == 0 else set()
    return sorted((job for job in found if is_id(job)), key=int)


def is_id(text: str) -> bool:
    """Whether it looks like the number of a job."""
    return text.isascii() and text.isdecimal() and len(text) <= 12


@dataclass(frozen=True, slots=True)
class Shown:
    """A job as the controller has it."""

    state: JobState
    restarts: int = 0
    reason: str = ""


def show(job_id: str, environ: Mapping[str, str]) -> Shown:
    """How a job is: from the controller, else from accounting; ``unknown`` where both have forgotten it."""
    answer = run(["scontrol", "show", "job", "--oneliner", job_id], environ)
    if answer.code == 0:
        return parse_job(answer.out)
    if not _UNKNOWN_JOB.search(answer.words):
        raise failure("scontrol", answer)
    answer = run(["sacct", "--noheader", "-X", "-P", "-j", job_id, "--format=State,ExitCode"], environ)
    line = answer.out.strip().splitlines()[-1:] if answer.code == 0 else []
    if line and line[0].count("|") == 1:
        word, code = line[0].split("|")
        return Shown(_state(word.split(" ")[0], code, ""))
    return Shown(JobState("unknown", detail="Slurm has forgotten the job"))


def parse_job(text: str) -> Shown:
    """``scontrol show job --oneliner``. Fields that a user may fill with anything come after those that are read here.

    >>> parse_job("JobId=7 JobName=r-1-ab JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=3:0").state
    JobState(state='failed', exit_code=3, detail='FAILED (NonZeroExitCode)')
    """
    values: dict[str, str] = {}
    for key in ("JobState", "Reason", "ExitCode", "Restarts"):
        if (found := re.search(rf"(?:^|\s){key}=(\S*)", text)) is not None:
            values[key] = found[1]
    if "JobState" not in values:
        raise CannotAsk("Slurm's scontrol prints jobs in a form that is not understood here.")
    reason = values.get("Reason", "")
    restarts = values.get("Restarts", "0")
    return Shown(
        _state(values["JobState"], values.get("ExitCode", ""), reason),
        int(restarts) if is_id(restarts) else 0,
        reason,
    )


def _state(word: str, exit_code: str, reason: str) -> JobState:
    detail = word if reason in ("", "None", "(null)") else f"{word} ({reason[:100]})"
    phase = _PHASES.get(word.rstrip("+"), "running")
    code: int | None = None
    if phase in ("failed", "succeeded"):
        status, _, number = exit_code.partition(":")
        if is_id(status) and is_id(number):
            code = int(status) or (128 + int(number) if int(number) else 0)
        if phase == "failed":
            code = code or None  # a job that ran into its time limit, say, has no code of its own
    return JobState(phase, code, detail)


def _text(body: bytes) -> str:
    return body[:_MAX_ANSWER].decode("utf-8", "replace")
