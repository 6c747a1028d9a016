"""What the supervisor asks: is a job of an earlier attempt still there, and is it gone. Called before every start.

The questions go through a short process of their own (``python -m trainer_entry.executors --end …``), so that Ray is
not imported into the supervisor, and a cluster that does not answer cannot hold the supervisor for longer than said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainer_entry.executors.interface import CannotAsk, JobState
from trainer_entry.executors.record import FILE, read_job
from trainer_entry.supervisor.processes import MARKER_VARIABLE

END_SECONDS = 90.0
LOOK_SECONDS = 30.0
_SPARE_SECONDS = 60.0
"""For starting Python and importing Ray, on a loaded machine."""


def confirm_gone(directory: Path, environ: Mapping[str, str] | None = None, seconds: float = END_SECONDS) -> str:
    """See to it that no job of the attempt with this folder is alive, and that none can come to life any more.

    Returns a sentence about a job that had to be ended; an empty one where there was none. Raises CannotAsk where that
    is not certain: then nothing may be started. Raises StateError for a damaged record.
    """
    record = read_job(directory)
    if record is None or record.stage == "over":
        return ""
    answer = _ask("--end", directory, environ, seconds)
    if error := answer.get("error"):
        raise CannotAsk(
            f"It is not certain that job {record.id or record.name} of attempt {directory.name} is over. {error}"
        )
    if not answer.get("ended"):
        return ""
    return f"job {record.id or record.name} of attempt {directory.name} was left behind, and was ended"


def confirm_none_alive(attempts: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The same for all attempts of a run, oldest first. ``attempts`` is the folder that holds theirs."""
    told = []
    numbers = sorted(int(path.parent.name) for path in attempts.glob(f"*/{FILE}") if path.parent.name.isdecimal())
    for number in numbers:
        if sentence := confirm_gone(attempts / str(number), environ):
            told.append(sentence)
    return told


def job_state(
    directory: Path, environ: Mapping[str, str] | None = None, seconds: float = LOOK_SECONDS
) -> JobState | None:
    """How the job of an attempt is; None where it has none. Raises CannotAsk, StateError."""
    record = read_job(directory)
    if record is None:
        return None
    if record.stage == "over":
        return JobState("stopped", record.exit_code, record.detail)
    answer = _ask("--look", directory, environ, seconds)
    if error := answer.get("error"):
        raise CannotAsk(str(error))
    return msgspec.convert(answer, JobState)


def _ask(what: str, directory: Path, environ: Mapping[str, str] | None, seconds: float) -> dict[str, object]:
    environment = {k: v for k, v in (os.environ if environ is None else environ).items() if k != MARKER_VARIABLE}
    words = [sys.executable, "-m", "trainer_entry.executors", what, str(directory), "--seconds", f"{seconds:g}"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=seconds + _SPARE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"The cluster gave no answer within {seconds:g} s."}
    except OSError as error:
        return {"error": f"The process that asks the cluster cannot be started: {error.strerror}."}
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        if isinstance(answer, dict):
            return answer
    except ValueError:
        pass
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
    return {"error": f"The process that asks the cluster failed: {said or done.returncode}"}
