"""Which of the supervisor's variables go with a job, and how its tokens do. Called by the shadow.

Ray shows the variables of a job to whoever may look at its dashboard, and Slurm keeps them on its controller, so the
exporter's token never goes as a variable: it goes as a file that only the user can read, in the attempt's folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from trainer_entry import settings
from trainer_entry.executors.interface import ExecutorError
from trainer_entry.handing_on import EXTERNAL_MODULES, PLUGIN
from trainer_entry.supervisor.processes import MARKER_VARIABLE

PREFIX = "VERL_SENTINEL_"
TOKEN_NAME = "push-token"


def travelling(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """What the job needs to be this attempt of this run. Raises ExecutorError where the token cannot be put down."""
    # The marker stays: by it processes on this machine are ended, and a job is ended by its cluster.
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX) and value and name not in (settings.TOKEN, MARKER_VARIABLE)
    }
    if PLUGIN in environ.get(EXTERNAL_MODULES, ""):
        kept[EXTERNAL_MODULES] = environ[EXTERNAL_MODULES]
    if token := environ.get(settings.TOKEN, ""):
        kept[settings.TOKEN_FILE] = str(_put_down(token, directory / TOKEN_NAME))
    return kept


def for_sbatch(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that sbatch runs in, and hands on: ours, but for secrets and for what an outer job left in it."""
    return {
        name: value
        for name, value in environ.items()
        if name not in (settings.TOKEN, MARKER_VARIABLE)
        and (name == "SLURM_CONF" or not name.startswith(("SLURM_", "SLURMD_")))
    }


def _put_down(token: str, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        os.replace(temporary, path)
    except OSError as error:
        raise ExecutorError(f"The exporter's token cannot be put into {path}: {error.strerror}.") from error
    return path
