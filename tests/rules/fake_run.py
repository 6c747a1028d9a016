"""A run as the exporter sees it: a trainer that pushes steps and checkpoints, and a supervisor that takes commands."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import TypeVar

import msgspec

from exporter.protocol import (
    MSGPACK,
    PROTOCOL_VERSION,
    PUSH_PATH,
    AttemptStarted,
    Batch,
    CheckpointSaved,
    Command,
    CommandProgress,
    Event,
    GpuReading,
    PushAnswer,
    Role,
    RolloutCounts,
    Run,
    Sender,
    Step,
    encode,
)

Found = TypeVar("Found")
NAN = float("nan")
DEADLINE_SECONDS = 90.0


def wait_for(what: str, look: Callable[[], Found | None]) -> Found:
    """The first true answer of ``look``; fails the test after a deadline that a busy machine does not reach."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s"
        time.sleep(0.05)


class FakeSender:
    """One process of a run that pushes."""

    def __init__(self, url: str, token: str, run: str, role: Role, project: str = "") -> None:
        self._url, self._token, self._run, self._project = url + PUSH_PATH, token, run, project
        self._sender = Sender(id=f"{run}-{role}", role=role)
        self._seq = 0

    def push(
        self,
        attempt: int,
        *,
        steps: tuple[Step, ...] = (),
        events: tuple[Event, ...] = (),
        gpus: tuple[GpuReading, ...] = (),
        rollout: RolloutCounts | None = None,
    ) -> PushAnswer:
        """Send until it is accepted, as the real sender does: the exporter may be down for a while."""
        self._seq += 1
        batch = Batch(
            protocol=PROTOCOL_VERSION,
            run=Run(run_id=self._run, attempt=attempt, trainer="ppo_v1", project=self._project),
            sender=self._sender,
            seq=self._seq,
            steps=list(steps),
            events=list(events),
            gpus=list(gpus),
            rollout=rollout,
        )
        return wait_for("a push is accepted", lambda: self._try(encode(batch)))

    def _try(self, body: bytes) -> PushAnswer | None:
        headers = {"Content-Type": MSGPACK, "Authorization": f"Bearer {self._token}", "Accept": MSGPACK}
        request = urllib.request.Request(self._url, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return msgspec.msgpack.decode(answer.read(), type=PushAnswer)
        except OSError:
            return None


class FakeRun:
    """Trainer and supervisor of one run."""

    def __init__(self, url: str, token: str, run_id: str, project: str = "") -> None:
        self.run_id = run_id
        self.trainer = FakeSender(url, token, run_id, "trainer", project)
        self.supervisor = FakeSender(url, token, run_id, "supervisor", project)

    def start(self, attempt: int, resume_step: int = 0, command_id: str = "") -> None:
        event = AttemptStarted(time=0.0, pid=1, resume_step=resume_step, command_id=command_id)
        self.supervisor.push(attempt, events=(event,))

    def train(self, attempt: int, *steps: int, loss: float = 0.5) -> None:
        for step in steps:
            metrics = {"actor/pg_loss": loss, "actor/grad_norm": loss, "actor/entropy": 2.0}
            self.trainer.push(attempt, steps=(Step(step=step, metrics=metrics),))

    def save(self, attempt: int, step: int, *, verified: bool = True) -> None:
        event = CheckpointSaved(time=0.0, step=step, path=f"/ckpt/global_step_{step}", verified=verified)
        self.trainer.push(attempt, events=(event,))

    def command(self, attempt: int) -> Command:
        """Beat as a supervisor does until a command comes."""
        return wait_for("a command", lambda: self.supervisor.push(attempt).command)

    def report(self, attempt: int, command: Command, *states: str, target: int | None = None) -> PushAnswer:
        answer = PushAnswer(accepted_seq=0)
        for state in states:
            progress = CommandProgress(time=0.0, command_id=command.id, state=state, target_step=target)  # type: ignore[arg-type]
            answer = self.supervisor.push(attempt, events=(progress,))
        return answer
