"""A trainer in a scene that trains, hangs, dies, and is cut off from the exporter; its clock may be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exporter_scene import Scene

from exporter.protocol import OpenPhase, PhaseReport, RunFinished, RunStarted, Step
from exporter.service.goodput import Goodput

HOUR = 3600.0
TOTALS = ("productive", "replayed", "restart", "stall", "other")


def totals(run: Goodput) -> dict[str, float]:
    """The totals that are not 0, rounded to a tenth of a second."""
    return {name: round(getattr(run, name), 1) for name in TOTALS if round(getattr(run, name), 1)}


@dataclass
class Trainer:
    """A trainer in a scene. ``now`` is true time; what it sends waits while ``offline`` and then comes at once."""

    scene: Scene
    sft: bool = False
    skew: float = 0.0
    """Seconds that the trainer's clock is ahead."""
    name: str = "trainer-1"
    attempt: int = 1
    offline: bool = False
    waiting: list[dict[str, Any]] = field(default_factory=list)

    def send(self, **fields: Any) -> None:
        if not self.offline:
            self.flush()
        batch = {"attempt": self.attempt, "sender": self.name, **fields}
        if self.offline:
            self.waiting.append(batch)
        else:
            self.scene.push(**batch)

    def flush(self) -> None:
        waiting, self.waiting, self.offline = self.waiting, [], False
        for batch in waiting:
            self.scene.push(**batch)

    def start(self, seconds: float) -> None:
        """From the beginning of the process to the beginning of its first step."""
        self.send(events=[RunStarted(time=self.scene.now + self.skew)])
        self.scene.now += seconds

    def step(self, number: int, seconds: float = 20.0, pause: float = 0.0) -> None:
        self.scene.now += seconds
        metrics = {"train/loss": 1.0} if self.sft else {"actor/grad_norm": 1.0, "timing_s/step": seconds}
        if pause:
            metrics["timing_s/save_checkpoint"] = pause
        self.send(steps=[Step(step=number, metrics=metrics, time=self.scene.now + self.skew)])

    def steps(self, first: int, last: int, seconds: float = 20.0) -> None:
        for number in range(first, last + 1):
            self.step(number, seconds)

    def beat(self, number: int, /, **open_phases: float) -> None:
        phases = [OpenPhase(name=name, seconds=seconds) for name, seconds in open_phases.items()]
        self.send(phase=PhaseReport(step=number, open=phases))

    def finish(self) -> None:
        self.send(events=[RunFinished(time=self.scene.now + self.skew, exit_code=0)])

    def next(self) -> Trainer:
        """The trainer of the next attempt, on the same clock."""
        attempt = self.attempt + 1
        return Trainer(self.scene, self.sft, self.skew, f"trainer-{attempt}", attempt, self.offline)

    def goodput(self) -> Goodput:
        found: Goodput = self.scene.run().state.goodput
        return found


def first_step(trainer: Trainer, seconds: float = 20.0) -> float:
    """SFT has no timer: when its first step began is not known, and it counts to the start."""
    return seconds if trainer.sft else 0.0


def run_began(scene: Scene) -> float:
    began: float = scene.run().state.first_seen
    return began
