"""Run the rollback script of a rung, ``rules/rollback/{checkpoint,config,version,infra}.sh``, as an operator would.

Called by the supervisor for a rollback or restart command. Arguments are passed as words; nothing becomes a shell
string.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trainer_entry
from exporter.protocol import Rung
from trainer_entry.changes import words_of
from trainer_entry.environments.places import DIRECTORY
from trainer_entry.supervisor.commands import CommandRecord
from trainer_entry.supervisor.state import StateDir, StateError

INSTANCE_VARIABLE = "VERL_SENTINEL_SUPERVISOR"
PYTHON_VARIABLE = "VERL_SENTINEL_PYTHON"
SCRIPTS_VARIABLE = "VERL_SENTINEL_ROLLBACK_SCRIPTS"
"""Where the shipped scripts lie, for an edited copy of one that lies elsewhere and sources ``lib.sh``."""
_MAX_LINES = 50
_MAX_LINE = 2000


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The script of that command ended with that code; ``lines`` are the last that it printed."""

    command_id: str
    code: int
    lines: tuple[str, ...]
    cut_short: bool = False
    """We ended it, at its time limit or because its command was over."""

    @property
    def signal(self) -> int:
        """The signal of somebody else's that ended it, or the program that it was running, and 0 where none did.

        It comes from the kernel, short of memory, or from a person who meant another process. Of a program a shell
        says it by a code of 128 and the signal's number.
        """
        number = -self.code if self.code < 0 else self.code - 128
        return number if 0 < number <= signal.SIGRTMAX and not self.cut_short else 0

    @property
    def last_line(self) -> str:
        """The last line, or an empty string."""
        return self.lines[-1] if self.lines else ""


def shipped_scripts() -> Path:
    """The scripts as installed: ``rules`` lies beside ``trainer_entry``, in a checkout and in site-packages."""
    return Path(trainer_entry.__file__).resolve().parent.parent / "rules" / "rollback"


def script_of(rung: Rung, scripts: Path) -> Path:
    """The script of a rung: the site's own where there is one in ``scripts``, else the shipped one."""
    own = scripts / f"{rung}.sh"
    return own if own.is_file() else shipped_scripts() / f"{rung}.sh"


def script_variables(instance: str, environments: Path | None = None) -> dict[str, str]:
    """What a script finds in its environment: the interpreter, the shipped scripts, the folder of environments."""
    found = {PYTHON_VARIABLE: sys.executable, SCRIPTS_VARIABLE: str(shipped_scripts())}
    if instance:
        found[INSTANCE_VARIABLE] = instance
    if environments is not None:
        found[DIRECTORY] = str(environments)
    return found


class ScriptRun:
    """One run of the script, in a process group of its own. ``ended`` is called from a thread."""

    def __init__(
        self,
        scripts: Path,
        state: StateDir,
        record: CommandRecord,
        instance: str,
        *,
        environments: Path,
        limit_seconds: float,
        say: Callable[[str], None],
        ended: Callable[[ScriptEnded], None],
    ) -> None:
        script = script_of(record.rung, scripts)
        words = ["bash", str(script), "--state-dir", str(state.path), "--request-id", record.id]
        if record.asked_step is not None:
            words += ["--target-step", str(record.asked_step)]
        if record.not_after_step is not None:
            words += ["--not-after-step", str(record.not_after_step)]
        if record.reason:
            words += ["--reason", record.reason.replace("\0", " ")[:1000]]
        if record.action == "restart":
            words.append("--save-first")
        words += words_of(record.changes)
        self.command_id = record.id
        self._say = say
        self._ended = ended
        self._cut_short = False
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **script_variables(instance, environments)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: an id from outside with a NUL in it
            why = error.strerror if isinstance(error, OSError) else error
            raise StateError(f"The rollback script {script} cannot be run: {why}.") from error
        self._timer = threading.Timer(limit_seconds, self.kill)
        self._timer.daemon = True
        self._timer.start()
        threading.Thread(target=self._read, name="verl-sentinel-rollback", daemon=True).start()

    def kill(self) -> None:
        """End the script and what it runs; ``ended`` is still called."""
        self._cut_short = True
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        lines: deque[str] = deque(maxlen=_MAX_LINES)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for raw in iter(lambda: output.readline(_MAX_LINE), b""):
                line = "".join(c for c in raw.decode("utf-8", "replace") if c.isprintable())
                if line.strip():
                    lines.append(line)
                    self._say(line)
        code = self._process.wait()
        self._timer.cancel()
        ended = ScriptEnded(self.command_id, code, tuple(lines), self._cut_short)
        if ended.signal:
            # What a killed program had begun, pip for one, would go on beside the next run of the script.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._ended(ended)
