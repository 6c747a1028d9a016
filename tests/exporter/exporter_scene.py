"""A core on a journal in a folder, driven by hand: scripted detectors, a clock that is a number, short batches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.detectors.base import LiveView, Severity, StepSample, Verdict
from exporter.incidents import Rules
from exporter.protocol import PROTOCOL_VERSION, Batch, Run, Sender, Step
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.store import RecoveryStore
from exporter.service.admission import Limits
from exporter.service.core import Core
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.recorder import DirectRecorder

START = 1_000_000.0


class ScriptedStep:
    """Critical while the gradient norm is above 100, a warning above 10, a note above 5."""

    name = "scripted_step"

    def __init__(self) -> None:
        self.seen: list[StepSample] = []
        self.resumes: list[tuple[int, int]] = []

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        self.seen.append(sample)
        value = sample.signals.get("grad_norm", 0.0)
        for limit, severity in ((100.0, Severity.CRITICAL), (10.0, Severity.WARNING), (5.0, Severity.INFO)):
            if value > limit:
                return [verdict(self.name, "grad_norm", severity, sample.step, value)]
        return []

    def resumed(self, step: int, attempt: int) -> None:
        self.resumes.append((step, attempt))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class ScriptedLive:
    """Critical while phase ``gen`` is open for more than 60 s."""

    name = "scripted_live"

    def __init__(self) -> None:
        self.closed: list[tuple[str, float, int]] = []
        self.resumes: list[tuple[int, int]] = []

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        self.closed.append((name, seconds, step))

    def look(self, view: LiveView) -> Sequence[Verdict]:
        age = view.open_phases.get("gen", 0.0)
        return [verdict(self.name, "gen", Severity.CRITICAL, view.step, age)] if age > 60 else []

    def resumed(self, step: int, attempt: int) -> None:
        self.resumes.append((step, attempt))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


@dataclass(frozen=True)
class Scripted:
    step: tuple[ScriptedStep, ...] = field(default_factory=lambda: (ScriptedStep(),))
    live: tuple[ScriptedLive, ...] = field(default_factory=lambda: (ScriptedLive(),))


def verdict(detector: str, signal: str, severity: Severity, step: int, score: float, **more: Any) -> Verdict:
    values: dict[str, Any] = {"onset": step, "threshold": 1.0, "confidence": 1.0, "summary": f"{signal} is {score:g}"}
    return Verdict(detector=detector, signal=signal, severity=severity, step=step, score=score, **{**values, **more})


class Scene:
    """One exporter without HTTP; ``restart`` opens the same files again, as after a kill."""

    def __init__(
        self, folder: Path, *, detectors: Any = Scripted, policy: RecoveryPolicy | None = None, **core: Any
    ) -> None:
        self.folder = folder
        self.now = START
        self._seq = itertools.count(1)
        self._detectors = detectors
        self._policy = policy or RecoveryPolicy()
        self._core_options = {"limits": Limits(), "rules": Rules(), "ended_grace": 900.0, **core}
        self._open()

    def _open(self) -> None:
        self.journal = Journal(self.folder / FILE_NAME)
        self.store = RecoveryStore(self.folder / "recovery.sqlite3")
        self.engine = RecoveryEngine(self.store, self._policy)
        self.core = Core(
            DirectRecorder(self.journal),
            self.engine,
            self._detectors,
            read_snapshot=self.journal.snapshot,
            **self._core_options,
        )
        for _ in self.core.load(self.journal.snapshots(), self.now):
            pass
        watched = self.journal.watched()
        for _ in self.core.replay(self.journal.read(), self.journal.delivered(), watched):
            pass
        if watched:
            self.core.begin(watched, self.now)

    def restart(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.journal.close()
        self.store.close()

    def push(self, **fields: Any) -> Any:
        """Accept one batch; see :func:`batch`."""
        fields.setdefault("seq", next(self._seq))
        return self.core.accept(batch(**fields), self.now)

    def step(self, number: int, run: str = "r", attempt: int = 1, sender: str = "trainer-1", **metrics: float) -> None:
        """One step of a trainer; keys of ``metrics`` are short for verl's, ``grad`` and ``loss``."""
        names = {"grad": "actor/grad_norm", "loss": "actor/loss", "time": "timing_s/step", "val": "val-core/x/mean@1"}
        values = {names[key]: value for key, value in (metrics or {"grad": 1.0}).items()}
        self.push(run=run, attempt=attempt, sender=sender, steps=[Step(step=number, metrics=values)])

    def tick(self, seconds: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.core.tick(self.now)

    def run(self, run: str = "r") -> Any:
        found = self.core.find(run)
        assert found is not None, f"no run {run}"
        return found

    def incidents(self, run: str = "r") -> dict[str, Any]:
        """Open incidents by detector."""
        return {incident.detector: incident for incident in self.run(run).book}


def batch(
    run: str = "r", attempt: int = 1, sender: str = "trainer-1", role: Any = "trainer", seq: int = 1, **fields: Any
) -> Batch:
    fields.setdefault("protocol", PROTOCOL_VERSION)
    return Batch(
        run=Run(run_id=run, attempt=attempt, trainer="ppo_v1", verl_version="0.9.1"),
        sender=Sender(id=sender, role=role),
        seq=seq,
        **fields,
    )
