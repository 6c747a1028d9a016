"""The files of a Slurm job in the attempt's folder: its batch script, its start file, and what it writes.

``job/script.sh`` is what sbatch is given; ``job/start-K`` is what the K-th start of that job runs (Slurm counts the
starts of a job from 0), and becomes ``job/started-K-JOBID`` as it begins; ``job.log`` is the trainer's output, and
``job/slurm.log`` what Slurm says itself. Words are quoted; nothing of the trainer's words is seen by a shell.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from trainer_entry.executors.interface import Job

FOLDER = "job"
LOG = "job.log"
MAX_WORDS_OF_SLURM = 4000

_SCRIPT = """\
#!/bin/sh
# One attempt of a run that verl-sentinel supervises. It starts what the start file says, and that only once.
folder={folder}
count=${{SLURM_RESTART_COUNT:-0}}
begun="$folder/started-$count-$SLURM_JOB_ID"
tries=0
# A shared file system may show a new file a little later on another node.
until [ -e "$folder/start-$count" ] || [ -e "$folder/off-start-$count" ] || [ "$tries" -ge 10 ]; do
    tries=$((tries + 1))
    sleep 1
done
if ! [ -d "$folder" ]; then
    echo "verl-sentinel: this node does not see $folder; the state directory must be on a shared file system." >&2
    exit 77
fi
if ! mv "$folder/start-$count" "$begun"; then
    echo "verl-sentinel: this start was called off, or was made before; nothing is started." >&2
    exit 76
fi
. "$begun"
"""


def batch_script(job: Job) -> Path:
    """Write the script for sbatch. Raises OSError."""
    path = job.directory / FOLDER / "script.sh"
    return _write(path, _SCRIPT.format(folder=shlex.quote(os.fspath(job.directory / FOLDER))))


def start_file(job: Job, count: int) -> Path:
    """Write what the start with that count of restarts runs. Raises OSError."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(job.environ.items())]
    lines += [
        f"exec >> {shlex.quote(os.fspath(job.directory / LOG))} 2>&1 < /dev/null",
        f"cd {shlex.quote(job.cwd)} || exit 78",
        f"exec {shlex.join(job.argv)}",
    ]
    return _write(job.directory / FOLDER / f"start-{count}", "\n".join(lines) + "\n")


def start_was_taken(directory: Path) -> bool:
    """Whether a job of this attempt has begun, whatever became of it."""
    return (directory / LOG).exists() or any((directory / FOLDER).glob("started-*"))


def slurms_words(directory: Path) -> str:
    """The end of what Slurm wrote about the job, bounded."""
    try:
        with open(directory / FOLDER / "slurm.log", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_WORDS_OF_SLURM))
            return file.read(MAX_WORDS_OF_SLURM).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o700)
