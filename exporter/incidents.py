"""Incidents: what the verdicts on one (run, detector, signal) add up to. Called by the service, read by recovery.

Pure data without a clock: time, step and attempt come in with the verdicts, so a replay of the same input gives the
same incidents under the same ids. An incident is opened, may be acknowledged by a person, is mitigating while a
recovery works on it, and is resolved when its verdict has stayed away for long enough or when the recovery has
succeeded. Verdicts of severity ``INFO`` are noted and open nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from exporter.detectors.base import Forecast, Severity, Verdict

State = Literal["opened", "acknowledged", "mitigating", "resolved"]
Kind = Literal["step", "live"]
Key = tuple[str, str]

HISTORY = 200
"""Resolved incidents, and notes, that are remembered for a run."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``incidents`` section of the configuration: when a finding that has gone counts as over."""

    resolve_after_steps: int = 10
    """Steps in a row without the verdict of a step detector."""
    resolve_after_seconds: float = 30.0
    """Seconds in a row without the verdict of a live detector."""

    def __post_init__(self) -> None:
        if self.resolve_after_steps < 1:
            raise ValueError(f"resolve_after_steps is {self.resolve_after_steps}: at least 1 step has to be clear")
        if not 0 <= self.resolve_after_seconds < float("inf"):
            raise ValueError(f"resolve_after_seconds is {self.resolve_after_seconds}: it must be 0 or more")


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident as it is now. Times are Unix seconds of the exporter's clock."""

    id: str
    run_id: str
    detector: str
    signal: str
    kind: Kind
    state: State
    severity: Severity
    """The worst so far in this attempt."""
    attempt: int
    """Attempt of the newest verdict."""
    onset: int
    """First step that belongs to the failure: the earliest estimate in this attempt."""
    first_step: int
    """Step of the first verdict of this attempt."""
    last_step: int
    opened_at: float
    began_at: float | None = None
    """When the first verdict of this attempt came; None: at ``opened_at``."""
    order: int = 0
    """When it was first said in this attempt, counted over all incidents of the run; what is said together has one
    number."""
    first_onset: int | None = None
    """The onset as the first verdict of this attempt estimated it; None: not remembered."""
    paged_at: float | None = None
    """When it first became critical in this attempt, None while it has not."""
    paged_step: int | None = None
    updated_at: float
    """When the newest verdict came (for live detectors: when it last changed)."""
    count: int
    """Verdicts so far (for live detectors: changes of the verdict)."""
    worst_score: float
    score: float
    threshold: float
    confidence: float
    summary: str
    meaning: str = ""
    advice: tuple[str, ...] = ()
    forecast: Forecast | None = None
    """When the signal reaches its limit, where the detector foresees it."""
    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    recovery_id: str = ""
    resolved_at: float | None = None
    resolution: str = ""
    clear_steps: int = 0
    """Steps in a row in which a step detector's verdict stayed away."""
    clear_since: float | None = None
    """Since when a live detector's verdict stays away."""

    @property
    def key(self) -> Key:
        return (self.detector, self.signal)

    @property
    def said_at(self) -> float:
        """When it was first said in this attempt; does not change any more."""
        return self.opened_at if self.began_at is None else self.began_at

    @property
    def said_onset(self) -> int:
        """The onset as it was estimated then; does not change any more."""
        return self.onset if self.first_onset is None else self.first_onset


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one incident. ``after`` is what it is now."""

    what: Literal["opened", "escalated", "reopened", "acknowledged", "mitigating", "resolved"]
    after: Incident


class BookState(msgspec.Struct, kw_only=True):
    """All that an :class:`IncidentBook` remembers, as plain data."""

    open: list[Incident] = []
    numbers: dict[Key, int] = {}
    history: list[Incident] = []
    notes: list[Verdict] = []
    opened: dict[tuple[str, str], int] = {}
    order: int = 0


class IncidentBook:
    """All incidents of one run."""

    def __init__(self, run_id: str, rules: Rules) -> None:
        self.run_id = run_id
        self._rules = rules
        self._open: dict[Key, Incident] = {}
        self._numbers: dict[Key, int] = {}
        self.history: deque[Incident] = deque(maxlen=HISTORY)
        self.notes: deque[Verdict] = deque(maxlen=HISTORY)
        self.opened: dict[tuple[str, str], int] = {}
        """Incidents opened so far by (detector, severity at opening)."""
        self._order = 0

    def __iter__(self) -> Iterator[Incident]:
        """Every incident that is not resolved."""
        return iter(self._open.values())

    def unresolved(self) -> bool:
        """Whether an incident waits for a person, or for its recovery."""
        return any(incident.state in ("opened", "mitigating") for incident in self._open.values())

    def state(self) -> BookState:
        """What :meth:`load` takes; shares nothing that changes with the book."""
        return BookState(
            open=list(self._open.values()),
            numbers=dict(self._numbers),
            history=list(self.history),
            notes=list(self.notes),
            opened=dict(self.opened),
            order=self._order,
        )

    def load(self, state: BookState) -> None:
        """Take over what :meth:`state` gave."""
        self._open = {incident.key: incident for incident in state.open}
        self._numbers = dict(state.numbers)
        self.history = deque(state.history, maxlen=HISTORY)
        self.notes = deque(state.notes, maxlen=HISTORY)
        self.opened = dict(state.opened)
        self._order = state.order

    def find(self, incident_id: str) -> Incident | None:
        """The incident of that id, open or among the resolved that are remembered."""
        return next((i for i in (*self._open.values(), *self.history) if i.id == incident_id), None)

    def observe_step(
        self, verdicts: Sequence[Verdict], *, attempt: int, at: float, whole_step: bool = True
    ) -> list[Change]:
        """Take in what the step detectors said of one step.

        ``whole_step`` is false for a part of a step that came late: its verdicts count, but what is absent from it has
        not stayed away.
        """
        changes = self._take_in(verdicts, "step", attempt, at)
        said = {(v.detector, v.signal) for v in verdicts if v.severity > Severity.INFO}
        for incident in [i for i in self._open.values() if whole_step and i.kind == "step" and i.key not in said]:
            clear = incident.clear_steps + 1
            self._open[incident.key] = msgspec.structs.replace(incident, clear_steps=clear)
            if clear >= self._rules.resolve_after_steps and incident.state != "mitigating":
                changes.append(self._resolve(incident.key, f"the finding stayed away for {clear} steps", at))
        return changes

    def live_would_change(self, verdicts: Sequence[Verdict], *, attempt: int, at: float) -> bool:
        """Whether :meth:`observe_live` with the same arguments would change an incident in more than its numbers."""
        alerting = {(v.detector, v.signal): v for v in verdicts if v.severity > Severity.INFO}
        for key, verdict in alerting.items():
            incident = self._open.get(key)
            if incident is None or incident.clear_since is not None or incident.attempt != attempt:
                return True
            if verdict.severity > incident.severity:
                return True
        for incident in self._open.values():
            if incident.kind != "live" or incident.key in alerting:
                continue
            if incident.clear_since is None or incident.clear_since > at or self._live_is_over(incident, at):
                return True
        return False

    def observe_live(self, verdicts: Sequence[Verdict], *, attempt: int, at: float) -> list[Change]:
        """Take in what the live detectors say of this moment."""
        changes = self._take_in(verdicts, "live", attempt, at)
        said = {(v.detector, v.signal) for v in verdicts if v.severity > Severity.INFO}
        for incident in [i for i in self._open.values() if i.kind == "live" and i.key not in said]:
            # A time that lies ahead was noted before the clock was set back.
            since = at if incident.clear_since is None else min(incident.clear_since, at)
            clear = self._open[incident.key] = msgspec.structs.replace(incident, clear_since=since)
            if self._live_is_over(clear, at):
                quiet = at - since
                changes.append(self._resolve(incident.key, f"the condition has been gone for {quiet:.0f} s", at))
        return changes

    def acknowledge(self, incident_id: str, who: str, at: float) -> list[Change]:
        """A person has seen it. Nothing happens to one that is not in state ``opened``."""
        incident = self._by_id(incident_id)
        if incident is None or incident.state != "opened":
            return []
        return [self._put("acknowledged", incident, state="acknowledged", acknowledged_by=who, acknowledged_at=at)]

    def mitigate(self, incident_ids: Iterable[str], recovery_id: str) -> list[Change]:
        """A recovery works on these incidents."""
        found = (self._by_id(incident_id) for incident_id in incident_ids)
        return [
            self._put("mitigating", incident, state="mitigating", recovery_id=recovery_id)
            for incident in found
            if incident is not None and incident.state != "mitigating"
        ]

    def recovered(self, incident_ids: Iterable[str], reason: str, at: float) -> list[Change]:
        """The recovery has succeeded: these incidents are resolved."""
        found = (self._by_id(incident_id) for incident_id in incident_ids)
        return [self._resolve(incident.key, reason, at) for incident in found if incident is not None]

    def give_back(self, incident_ids: Iterable[str]) -> list[Change]:
        """The recovery has failed or was called off: what it worked on is open again."""
        found = (self._by_id(incident_id) for incident_id in incident_ids)
        return [
            self._put("reopened", incident, state="opened")
            for incident in found
            if incident is not None and incident.state == "mitigating"
        ]

    def _live_is_over(self, incident: Incident, at: float) -> bool:
        if incident.state == "mitigating" or incident.clear_since is None:
            return False
        return at - incident.clear_since >= self._rules.resolve_after_seconds

    def _take_in(self, verdicts: Sequence[Verdict], kind: Kind, attempt: int, at: float) -> list[Change]:
        changes = []
        if verdicts:
            self._order += 1
        for verdict in verdicts:
            if verdict.severity <= Severity.INFO:
                self.notes.append(verdict)
                continue
            before = self._open.get((verdict.detector, verdict.signal))
            if before is None:
                changes.append(self._open_new(verdict, kind, attempt, at))
            else:
                change = self._update(before, verdict, attempt, at)
                changes.extend([change] if change is not None else [])
        return changes

    def _open_new(self, verdict: Verdict, kind: Kind, attempt: int, at: float) -> Change:
        key = (verdict.detector, verdict.signal)
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        tally = (verdict.detector, verdict.severity.label)
        self.opened[tally] = self.opened.get(tally, 0) + 1
        incident = Incident(
            id=f"{self.run_id}:{verdict.detector}:{verdict.signal}:{number}",
            run_id=self.run_id,
            detector=verdict.detector,
            signal=verdict.signal,
            kind=kind,
            state="opened",
            severity=verdict.severity,
            attempt=attempt,
            onset=verdict.onset,
            first_step=verdict.step,
            last_step=verdict.step,
            opened_at=at,
            began_at=at,
            order=self._order,
            first_onset=verdict.onset,
            paged_at=at if verdict.severity is Severity.CRITICAL else None,
            paged_step=verdict.step if verdict.severity is Severity.CRITICAL else None,
            updated_at=at,
            count=1,
            worst_score=verdict.score,
            score=verdict.score,
            threshold=verdict.threshold,
            confidence=verdict.confidence,
            summary=verdict.summary,
            meaning=verdict.meaning,
            advice=verdict.advice,
            forecast=verdict.forecast,
        )
        self._open[key] = incident
        return Change("opened", incident)

    def _update(self, before: Incident, verdict: Verdict, attempt: int, at: float) -> Change | None:
        """A further verdict. One from a newer attempt starts the estimates afresh: the old are of other weights."""
        same = attempt == before.attempt
        state: State = before.state
        if not same and state == "mitigating":
            state = "opened"
        worse = verdict.severity > before.severity
        paged = (before.paged_at, before.paged_step) if same else (None, None)
        if paged[0] is None and verdict.severity is Severity.CRITICAL:
            paged = (at, verdict.step)
        after = msgspec.structs.replace(
            before,
            state=state,
            severity=max(before.severity, verdict.severity) if same else verdict.severity,
            attempt=attempt,
            onset=min(before.onset, verdict.onset) if same else verdict.onset,
            first_step=before.first_step if same else verdict.step,
            began_at=before.began_at if same else at,
            order=before.order if same else self._order,
            first_onset=before.first_onset if same else verdict.onset,
            last_step=verdict.step,
            paged_at=paged[0],
            paged_step=paged[1],
            updated_at=at,
            count=before.count + 1,
            worst_score=_worse(before.worst_score, verdict.score) if same else verdict.score,
            score=verdict.score,
            threshold=verdict.threshold,
            confidence=max(before.confidence, verdict.confidence) if same else verdict.confidence,
            summary=verdict.summary,
            meaning=verdict.meaning,
            advice=verdict.advice,
            forecast=verdict.forecast,
            clear_steps=0,
            clear_since=None,
        )
        self._open[before.key] = after
        if not same:
            return Change("reopened", after)
        return Change("escalated", after) if worse else None

    def _put(
        self,
        what: Literal["acknowledged", "mitigating", "reopened"],
        incident: Incident,
        **fields: str | float | None,
    ) -> Change:
        after = msgspec.structs.replace(incident, **fields)
        self._open[incident.key] = after
        return Change(what, after)

    def _resolve(self, key: Key, reason: str, at: float) -> Change:
        after = msgspec.structs.replace(self._open.pop(key), state="resolved", resolved_at=at, resolution=reason)
        self.history.append(after)
        return Change("resolved", after)

    def _by_id(self, incident_id: str) -> Incident | None:
        return next((i for i in self._open.values() if i.id == incident_id), None)


def _worse(before: float, now: float) -> float:
    """The larger score; a score that is not a number is the worst there is."""
    return before if math.isnan(before) or now <= before else now
