"""Which fault is asked for, from which step on, and where the processes of the run tell each other about it.

The task runner knows the training step, the workers and the rollout server do not. So it writes the step it begins
into a small file in the run's state directory, which is on the one machine that the demo runs on.

One fault in the first attempt, for the demo; or, for :mod:`bench.recovery`, one in every attempt, in turn, after some
steps of it.
"""

import contextlib
import enum
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FAULT = "VERL_SENTINEL_DEMO_FAULT"
STEP = "VERL_SENTINEL_DEMO_FAULT_STEP"
EACH = "VERL_SENTINEL_DEMO_FAULTS"
"""`name:steps`, with commas: the first after as many steps of attempt 1; after the last one the first comes again."""
ATTEMPT = "VERL_SENTINEL_ATTEMPT"
STATE_DIRECTORY = "VERL_SENTINEL_STATE_DIR"
CHECKPOINTS = "VERL_SENTINEL_DEMO_CHECKPOINTS"


class Fault(str, enum.Enum):
    """What goes wrong."""

    LEARNING_RATE = "learning_rate"
    """The optimizer's rate is multiplied by a large factor: the policy is wrecked."""
    NAN = "nan"
    """One weight of the actor becomes NaN."""
    HANG = "hang"
    """The rollout server accepts requests and never answers them."""
    ROLLOUT_ERRORS = "rollout_errors"
    """A share of the rollout requests fails."""
    CRASH = "crash"
    """The training worker is killed with SIGKILL."""
    SLOW_REWARD = "slow_reward"
    """The reward function takes longer for each answer, from step to step."""
    BLIND_REWARD = "blind_reward"
    """The reward function gives 0 to every answer."""
    SHORT_ANSWERS = "short_answers"
    """The reward function pays for short answers, whatever is in them."""
    CORRUPT_CHECKPOINT = "corrupt_checkpoint"
    """As ``nan``, and the newest checkpoint is damaged on disk."""
    MEMORY_LEAK = "memory_leak"
    """The trainer's process keeps some memory of each step."""


@dataclass(frozen=True)
class Plan:
    """One fault, from one step on."""

    fault: Fault
    step: int
    state_directory: Path
    checkpoints: Path | None = None
    """Where the run saves."""
    attempt: int = 1
    relative: bool = False
    """`step` counts the steps of the attempt, not those of the run."""
    clock: Callable[[], float] = time.time

    @property
    def _step_file(self) -> Path:
        return self.state_directory / "demo-step"

    def begin_step(self, step: int) -> None:
        """Called by the task runner at the start of each training step."""
        known = self._read()
        first = step if known is None else known[1]
        _write_atomically(self._step_file, f"{step} {first} {self.attempt}")

    def current_step(self) -> int:
        """The training step in progress; 0 before the first one of this attempt."""
        known = self._read()
        return 0 if known is None else known[0]

    def due(self) -> bool:
        """Whether the fault's step has come."""
        return self.steps_since() >= 1

    def steps_since(self) -> int:
        """How many steps the fault has lasted: 1 in its first; 0 or less before."""
        known = self._read()
        if known is None:
            return 0
        step, first = known
        return step - (first + self.step if self.relative else self.step) + 1

    def _read(self) -> tuple[int, int] | None:
        """(step in progress, first step) of this attempt; None before it has begun one."""
        try:
            step, first, attempt = (int(word) for word in self._step_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return (step, first) if attempt == self.attempt else None

    @property
    def _record_file(self) -> Path:
        return self.state_directory / (f"fault-{self.attempt}.json" if self.relative else "fault.json")

    def record(self, **more: str) -> None:
        """Writes once, into `fault.json`, when the fault first acted: {"time": seconds, "step": n, "fault": name}.

        Where each attempt has one, into `fault-N.json`.
        """
        told = {"time": self.clock(), "step": self.current_step(), "fault": self.fault.value, **more}
        line = json.dumps(told)
        with contextlib.suppress(FileExistsError), self._record_file.open("x") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())  # the crash fault kills this process next


def plan_from(environment: Mapping[str, str]) -> Plan | None:
    """The plan that `environment` asks for; None when it asks for none, or when this is a later attempt.

    Raises ValueError with a sentence for a fault, a step or a state directory that cannot be used.
    """
    attempt = environment.get(ATTEMPT, "1")
    each = [name for name in environment.get(EACH, "").split(",") if name]
    name, step, variable = environment.get(FAULT, ""), environment.get(STEP, ""), STEP
    if each and attempt.isdecimal():
        name, _, step = each[(int(attempt) - 1) % len(each)].partition(":")
        variable = EACH
    elif not name or attempt != "1":
        return None
    try:
        fault = Fault(name)
    except ValueError:
        known = ", ".join(f.value for f in Fault)
        where = EACH if each else FAULT
        raise ValueError(f"{where} is {name!r}, which is no fault of the demo; it knows {known}.") from None
    if not step.isdecimal() or int(step) < 1:
        raise ValueError(f"{variable} is {step!r}; it must be the training step, 1 or later, at which {name} begins.")
    directory = environment.get(STATE_DIRECTORY, "")
    if not directory or not Path(directory).is_dir():
        raise ValueError(f"{STATE_DIRECTORY} is {directory!r}; a fault needs it to name the run's state directory.")
    checkpoints = environment.get(CHECKPOINTS, "")
    return Plan(
        fault,
        int(step),
        Path(directory),
        Path(checkpoints) if checkpoints else None,
        attempt=int(attempt),
        relative=bool(each),
    )


def _write_atomically(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)
