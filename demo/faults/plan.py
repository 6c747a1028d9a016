"""Which fault is asked for, from which step on, and where the processes of the run tell each other about it.

The task runner knows the training step, the workers and the rollout server do not. So it writes the step it begins
into a small file in the run's state directory, which is on the one machine that the demo runs on.
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
ATTEMPT = "VERL_SENTINEL_ATTEMPT"
STATE_DIRECTORY = "VERL_SENTINEL_STATE_DIR"


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


@dataclass(frozen=True)
class Plan:
    """One fault, from one step on."""

    fault: Fault
    step: int
    state_directory: Path
    clock: Callable[[], float] = time.time

    @property
    def _step_file(self) -> Path:
        return self.state_directory / "demo-step"

    def begin_step(self, step: int) -> None:
        """Called by the task runner at the start of each training step."""
        _write_atomically(self._step_file, str(step))

    def current_step(self) -> int:
        """The training step in progress; 0 before the first one."""
        try:
            return int(self._step_file.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def due(self) -> bool:
        """Whether the fault's step has come."""
        return self.current_step() >= self.step

    def steps_since(self) -> int:
        """How many steps the fault has lasted: 1 in its first; 0 or less before."""
        return self.current_step() - self.step + 1

    def record(self) -> None:
        """Writes once, into `fault.json`, when the fault first acted: {"time": seconds, "step": n, "fault": name}."""
        line = json.dumps({"time": self.clock(), "step": self.current_step(), "fault": self.fault.value})
        with contextlib.suppress(FileExistsError), (self.state_directory / "fault.json").open("x") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())  # the crash fault kills this process next


def plan_from(environment: Mapping[str, str]) -> Plan | None:
    """The plan that `environment` asks for; None when it asks for none, or when this is a later attempt.

    Raises ValueError with a sentence for a fault, a step or a state directory that cannot be used.
    """
    name = environment.get(FAULT, "")
    if not name or environment.get(ATTEMPT, "1") != "1":
        return None
    try:
        fault = Fault(name)
    except ValueError:
        known = ", ".join(f.value for f in Fault)
        raise ValueError(f"{FAULT} is {name!r}, which is no fault of the demo; it knows {known}.") from None
    step = environment.get(STEP, "")
    if not step.isdecimal() or int(step) < 1:
        raise ValueError(f"{STEP} is {step!r}; it must be the training step, 1 or later, at which {name} begins.")
    directory = environment.get(STATE_DIRECTORY, "")
    if not directory or not Path(directory).is_dir():
        raise ValueError(f"{STATE_DIRECTORY} is {directory!r}; a fault needs it to name the run's state directory.")
    return Plan(fault, int(step), Path(directory))


def _write_atomically(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)
