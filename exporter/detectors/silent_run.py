"""Live detector ``silent_run``: the run should be running, and its trainer's senders say nothing any more.

A trainer that hangs still sends heartbeats, from a thread of their own; one that says nothing is stopped, cut off or
dead without its supervisor having noticed. Time in which the exporter itself did not look (it was down) does not
count: the senders spool and will be back within seconds. Before the first sign of life of an attempt a longer limit
holds, for importing torch, starting Ray and loading a model take minutes.

Score: seconds of silence over the limit; threshold 1, and half of that for a warning.

Reference: a heartbeat with a fixed time-out, the simplest of the failure detectors in T. D. Chandra and S. Toueg,
Unreliable failure detectors for reliable distributed systems, JACM 43, 1996.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporter.detectors.base import LiveView, Severity, Verdict
from exporter.detectors.options import at_least, more_than

WARNING_SHARE = 0.5
LIMIT_SECONDS = 120.0
START_SECONDS = 900.0
"""The limit before the first sign of life of an attempt."""


class SilentRun:
    """Nothing heard from the trainer for longer than a limit.

    ``limit_seconds``: silence that is a page. ``start_seconds``: the same before an attempt's first sign of life.
    ``blind_seconds``: a pause between two looks that means that the exporter was not watching.

    >>> detector = SilentRun(limit_seconds=60)
    >>> for now in range(1000, 1100, 10):
    ...     for v in detector.look(LiveView(float(now), 41, 1, 41, True, last_push=1015.0)):
    ...         print(now, v.severity.label, "since step", v.onset)
    1050 warning since step 41
    1060 warning since step 41
    1070 warning since step 41
    1080 critical since step 41
    1090 critical since step 41
    """

    name = "silent_run"

    def __init__(
        self,
        *,
        limit_seconds: float = LIMIT_SECONDS,
        start_seconds: float = START_SECONDS,
        blind_seconds: float = 30.0,
    ) -> None:
        more_than(self.name, "limit_seconds", limit_seconds, 0.0)
        at_least(self.name, "start_seconds", start_seconds, limit_seconds)
        more_than(self.name, "blind_seconds", blind_seconds, 0.0)
        self._limit, self._start, self._blind = limit_seconds, start_seconds, blind_seconds
        self._attempt: int | None = None
        self._attempt_since = 0.0
        self._watching_since = 0.0
        self._looked = 0.0

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Not needed here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the moment; nothing is said of a run that is not running."""
        if self._attempt != view.attempt or not view.running:
            self._attempt, self._attempt_since = view.attempt, view.now
            self._watching_since = view.now
        elif not 0.0 <= view.now - self._looked <= self._blind:
            self._watching_since = view.now
        self._looked = view.now
        if not view.running:
            return ()
        heard = view.last_push >= self._attempt_since or view.steps_this_attempt > 0
        limit = self._limit if heard else self._start
        silence = view.now - max(view.last_push, self._watching_since)
        score = silence / limit
        if score <= WARNING_SHARE:
            return ()
        page = score > 1.0
        return (
            Verdict(
                detector=self.name,
                signal="heartbeat",
                severity=Severity.CRITICAL if page else Severity.WARNING,
                step=view.step,
                onset=view.step,
                score=score,
                threshold=1.0 if page else WARNING_SHARE,
                confidence=min(0.99, 1.0 - 0.1 / score) if page else 0.3,
                summary=(
                    f"nothing heard from the trainer for {silence:.0f} s (limit {limit:.0f} s"
                    f"{'' if heard else ' while an attempt starts'}), in step {view.step}"
                ),
                meaning="The trainer's machine or its processes are stopped, dead, or cut off from the exporter.",
                advice=(
                    "look whether the trainer's processes live: ps, ray status",
                    "look at the network between trainer and exporter: VERL_SENTINEL_URL",
                ),
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Start to listen anew."""
        self._attempt = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "attempt": self._attempt,
            "attempt_since": self._attempt_since,
            "watching_since": self._watching_since,
            "looked": self._looked,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._attempt = state["attempt"]
        self._attempt_since = state["attempt_since"]
        self._watching_since = state["watching_since"]
        self._looked = state["looked"]
