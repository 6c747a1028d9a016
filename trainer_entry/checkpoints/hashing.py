"""Hash a checkpoint in a process of its own, at idle priority.

Started by the plugin's manifest thread for each save, as ``python -m trainer_entry.checkpoints.hashing``. A thread of
the trainer would compete with the training loop for the interpreter lock, and at a low priority it would be preempted
while it holds it; a process shares nothing. It answers with one JSON document on its standard output, and ends with the
trainer.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import get_args

import msgspec

from trainer_entry.checkpoints.files import Cancel, ManifestCancelled
from trainer_entry.checkpoints.priority import end_with_parent, idle_priority
from trainer_entry.checkpoints.problems import CheckpointError, Code
from trainer_entry.checkpoints.resting import Rest, share
from trainer_entry.checkpoints.writing import Hashed, hash_checkpoint

_LOOK_SECONDS = 0.2
MAX_ANSWER_BYTES = 256 * 1024 * 1024


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``hashed``, or the sentence and code of what is wrong."""

    hashed: Hashed | None = None
    sentence: str = ""
    problem: str = "unreadable"


def hash_elsewhere(directory: str, step: int, cancel: Cancel, over: Cancel | None = None) -> Hashed:
    """Hash a finished save in a process of its own, and wait for it. Once training is ``over`` it no longer rests.

    Raises CheckpointError as hashing here would, ManifestCancelled, and OSError where no process can be started.
    """
    words = [sys.executable, "-m", "trainer_entry.checkpoints.hashing", directory, str(step), str(os.getpid())]
    # The trainer's path to its modules is not always in its environment.
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    # Its standard input stays open for as long as something trains; communicate would close it at once.
    trains, process.stdin = process.stdin, None
    try:
        while True:
            if over is not None and over.is_set() and trains is not None:
                trains.close()
            if cancel.is_set():
                raise ManifestCancelled(f"Hashing {directory} was cancelled.", "unfinished")
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(timeout=_LOOK_SECONDS)
                break
    finally:
        if trains is not None:
            trains.close()
        if process.poll() is None:
            process.kill()
            process.communicate()
    return _understood(directory, output, errors, process.returncode)


def _understood(directory: str, output: bytes, errors: bytes, code: int) -> Hashed:
    try:
        answer = msgspec.json.decode(output, type=Answer)
    except msgspec.DecodeError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CheckpointError(
            f"The process that hashes {directory} ended with code {code}: {last[0] if last else 'it said nothing'}."
        ) from None
    if answer.hashed is None:
        code_of: Code = answer.problem if answer.problem in get_args(Code) else "unreadable"  # type: ignore[assignment]
        raise CheckpointError(answer.sentence, code_of)
    return answer.hashed


def main(words: list[str]) -> int:
    """The process: directory, step and the parent's process id in, an :class:`Answer` out."""
    directory, step, parent = words[0], int(words[1]), int(words[2])
    end_with_parent(parent)
    idle_priority()
    rest = Rest(share())
    threading.Thread(target=_when_closed, args=(sys.stdin.fileno(), rest.end), daemon=True).start()
    try:
        hashed = hash_checkpoint(directory, step, flushed=True, progress=lambda count: rest.after_a_piece())
        answer = Answer(hashed=hashed)
    except CheckpointError as error:
        answer = Answer(sentence=str(error), problem=error.problem)
    except OSError as error:
        answer = Answer(sentence=f"{directory} cannot be read: {error.strerror or error}.")
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def _when_closed(descriptor: int, then: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):
            pass
    then()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
