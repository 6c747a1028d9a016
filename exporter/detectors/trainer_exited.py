"""Live detector ``trainer_exited``: the trainer's process is gone, and nobody asked it to go.

Certain, since the supervisor saw it. The failure belongs to the step in progress: what was logged before it is sound,
so the newest checkpoint is a target.

Score: 1 when the process is gone unexpectedly; threshold 0.

Reference: ``waitpid(2)`` for what an exit code and a signal say; verl 0.9.1 ends with 1 when a worker has died, and
with 134 after a SIGTERM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import LiveView, Severity, Verdict


class TrainerExited:
    """The trainer ended by itself, without success.

    >>> view = LiveView(100.0, 41, 1, 41, False, 99.0, exit_code=1, exited_unexpectedly=True)
    >>> [(v.step, v.severity.label, v.onset, v.confidence) for v in TrainerExited().look(view)]
    [(41, 'critical', 41, 1.0)]
    """

    name = "trainer_exited"

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Not needed here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Say it for as long as no new attempt runs."""
        if not view.exited_unexpectedly or view.running:
            return ()
        code = "without an exit code" if view.exit_code is None else f"with exit code {view.exit_code}"
        last_words = f": {view.exit_summary}" if view.exit_summary else ""
        return (
            Verdict(
                detector=self.name,
                signal="process",
                severity=Severity.CRITICAL,
                step=view.step,
                onset=view.step,
                score=1.0,
                threshold=0.0,
                confidence=1.0,
                summary=f"the trainer ended unexpectedly {code} in step {view.step}{last_words}",
                meaning=(
                    "A worker, the driver or the machine died. With one worker gone, verl ends the whole run with exit "
                    "code 1; 137, or signal 9, is most often the kernel's or the cluster's memory limit."
                ),
                advice=(
                    "the last lines of the attempt's output, and Ray's logs of the worker that died first",
                    "actor_rollout_ref.rollout.gpu_memory_utilization: lower it, where memory ran out",
                    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu: lower it, where memory ran out",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Nothing to forget."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to take over."""
