"""Agreement: which incidents of a run belong together, what came first, and one headline for all of them.

A *situation* is what one fault makes the detectors say: incidents of one attempt whose signals hang together and whose
steps lie close. The service shows it, the alerts are made from it (one page a situation, not one a finding), and
recovery counts its witnesses. Nothing is stored: a situation follows from the incidents of the run, so a replay, and an
exporter that was started again, have the same ones.

Where an incident belongs is decided by what was known when it was said, in the order in which the incidents were said.
So in the attempt that runs a later finding never tears a situation apart nor joins two, and one finding names it for as
long as it lasts: an alert made of it keeps its identity while the situation grows. That is the finding that was said
first; of a critical situation, the first of those that were not over when it became critical: nobody is woken by the
name of what has passed.

The grouping is alarm correlation by time and by known dependencies, as in M. Steinder and A. S. Sethi, A survey of
fault localization techniques in computer networks, Science of Computer Programming 53, 2004. The combined confidence is
a noisy OR: J. Pearl, Probabilistic Reasoning in Intelligent Systems, 1988, section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from exporter.coupling import Kind, hang_together, place, witnesses
from exporter.detectors.base import Severity
from exporter.incidents import Incident, Key, State

WINDOW_STEPS: Final = 50
"""A finding belongs to a situation whose steps, from the first onset to the newest finding, are no further away."""
WINDOW_SECONDS: Final = 900.0
"""The same for a finding on the moment (a hang, an exit): seconds since the situation's newest finding was said."""
CREDIBLE: Final = 0.5
"""An onset counts where its finding has at least this share of the highest confidence; else the step of the finding."""
CAUSE_SLACK_STEPS: Final = 3
"""A learning rate that is off is the likely cause although another onset was estimated to be as much earlier."""
MOST_NAMED: Final = 6
"""Further signals that a headline names."""
MOST_ADVICE: Final = 8


class Group:
    """Incidents of one situation, in the order in which they were said."""

    def __init__(self, first: Incident) -> None:
        self.incidents: list[Incident] = []
        self._kinds: set[Kind] = set()
        self._keys: set[Key] = set()
        self._begin, self._end = _steps(first)
        self._until = -math.inf
        """When the last of them was resolved."""
        self._has_steps = False
        self._add(first)

    @property
    def lead(self) -> Incident:
        """The finding that names it; stays the same while the situation is a page, and while it is none."""
        if self.severity is Severity.CRITICAL:
            became = min((one.paged_at for one in self.incidents if one.paged_at is not None), default=math.inf)
            for one in self.incidents:
                if one.said_at <= became and (one.resolved_at is None or one.resolved_at > became):
                    return one
        return self.incidents[0]

    @property
    def name(self) -> str:
        """Detector and signal of the finding that names it, ``surge/kl``."""
        lead = self.lead
        return f"{lead.detector}/{lead.signal}"

    @property
    def open(self) -> list[Incident]:
        """Those that are not resolved."""
        return [incident for incident in self.incidents if incident.state != "resolved"]

    @property
    def severity(self) -> Severity:
        """The worst that is open; of a situation that is over, the worst of all."""
        return max(incident.severity for incident in self.open or self.incidents)

    def take(self, incident: Incident) -> bool:
        """Take in an incident that was said after those that are here; false where it does not belong to them."""
        if incident.attempt != self.incidents[0].attempt:
            return False
        # A finding that was part of it comes back while it lasts: so two that are open never have one name.
        comes_back = self._until >= incident.said_at and incident.key in self._keys
        if not comes_back and not self._is_near(incident):
            return False
        self._add(incident)
        return True

    def _add(self, incident: Incident) -> None:
        begin, end = _steps(incident)
        self._begin, self._end = min(self._begin, begin), max(self._end, end)
        self._until = max(self._until, math.inf if incident.resolved_at is None else incident.resolved_at)
        self._kinds.add(_kind(incident))
        self._keys.add(incident.key)
        self._has_steps = self._has_steps or incident.kind == "step"
        self.incidents.append(incident)

    def _is_near(self, incident: Incident) -> bool:
        begin, end = _steps(incident)
        gap = max(self._begin - end, begin - self._end)
        if incident.kind == "step" and self._has_steps:
            near = gap <= WINDOW_STEPS
        else:
            # Where no step ends, no step lies between, however long it takes.
            near = gap <= 1 or incident.said_at - self.incidents[-1].said_at <= WINDOW_SECONDS
        kind = _kind(incident)
        return near and any(hang_together(kind, other) for other in self._kinds)


def _kind(incident: Incident) -> Kind:
    return place(incident.detector, incident.signal).kind


def _steps(incident: Incident) -> tuple[int, int]:
    onset, step = incident.said_onset, incident.first_step
    return (onset, step) if onset <= step else (step, onset)


def grouped(incidents: Iterable[Incident]) -> list[Group]:
    """The situations of one run in the order in which they began; ``incidents`` may come in any order."""
    groups: list[Group] = []

    def said(incident: Incident) -> tuple[int, float, int, int, str]:
        rank = place(incident.detector, incident.signal).rank
        return (incident.order, incident.said_at, incident.first_step, rank, incident.id)

    for incident in sorted(incidents, key=said):
        if not any(group.take(incident) for group in reversed(groups)):
            groups.append(Group(incident))
    return groups


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents that belong together, as a person is told of them. Times are Unix seconds of the exporter's clock."""

    id: str
    """Id of the incident that was said first."""
    run_id: str
    attempt: int
    name: str
    """Detector and signal of the finding that names it, ``surge/kl``: the labels of the situation's alert."""
    state: State
    severity: Severity
    """The worst that is open; once all are resolved, the worst there was."""
    onset: int
    """The earliest credible onset."""
    findings: tuple[Incident, ...]
    """What came first is first: by onset, then by when it was said, then in causal order."""
    witnesses: int
    """Signals that agree; see :func:`witnesses`."""
    confidence: float
    """0 to 1: that at least one of the witnesses is right, were they independent."""
    headline: str
    """One sentence."""
    cause: str
    """The most likely cause: what the first finding means, or a learning rate that is off."""
    advice: tuple[str, ...]
    """What to try, in order, each setting once."""
    opened_at: float
    resolved_at: float | None


def situation(group: Group) -> Situation:
    """What is to be said of a group."""
    surest = max(_sure(incident) for incident in group.incidents)

    def onset(incident: Incident) -> int:
        return incident.onset if _sure(incident) >= CREDIBLE * surest else incident.first_step

    def came(incident: Incident) -> tuple[int, int, float, int, str]:
        rank = place(incident.detector, incident.signal).rank
        return (onset(incident), incident.first_step, incident.said_at, rank, incident.id)

    findings = tuple(sorted(group.incidents, key=came))
    first, opened = findings[0], group.incidents[0]
    rates = [
        one for one in findings if _kind(one) == "configuration" and onset(one) <= onset(first) + CAUSE_SLACK_STEPS
    ]
    cause = rates[0] if rates and _kind(first) in ("configuration", "optimisation", "length") else first
    confidence = combined(findings)
    resolved = [incident.resolved_at for incident in group.incidents if incident.resolved_at is not None]
    return Situation(
        id=opened.id,
        run_id=opened.run_id,
        attempt=opened.attempt,
        name=group.name,
        state=_state(group.open),
        severity=group.severity,
        onset=onset(first),
        findings=findings,
        witnesses=witnesses(findings),
        confidence=confidence,
        headline=_headline(group.severity, [(one, onset(one)) for one in findings], confidence),
        cause=cause.meaning or cause.summary,
        advice=merged(line for one in (cause, *findings) for line in one.advice),
        opened_at=opened.said_at,
        resolved_at=None if group.open else max(resolved, default=None),
    )


def situations(incidents: Iterable[Incident]) -> list[Situation]:
    """All situations of one run, as :func:`grouped` has them."""
    return [situation(group) for group in grouped(incidents)]


def combined(findings: Sequence[Incident]) -> float:
    """Confidence that at least one witness is right; a witness is as sure as its surest finding."""
    by_witness: dict[tuple[Kind, str], float] = {}
    for finding in findings:
        witness = place(finding.detector, finding.signal)[:2]
        by_witness[witness] = max(by_witness.get(witness, 0.0), _sure(finding))
    wrong = 1.0
    for sure in by_witness.values():
        wrong *= 1.0 - sure
    return 1.0 - wrong


def _sure(incident: Incident) -> float:
    # Written so that a confidence that is no number is none.
    return min(incident.confidence, 1.0) if incident.confidence > 0.0 else 0.0


def _state(unresolved: Sequence[Incident]) -> State:
    """What is to be done about it: it is acknowledged when every finding is."""
    states = {incident.state for incident in unresolved}
    ordered: tuple[State, ...] = ("opened", "mitigating", "acknowledged")
    return next((state for state in ordered if state in states), "resolved")


def _headline(severity: Severity, came: Sequence[tuple[Incident, int]], confidence: float) -> str:
    first, onset = came[0]
    since: dict[str, int] = {}
    for one, step in came[1:]:
        if one.signal != first.signal:
            since.setdefault(one.signal, step)
    named = [f"{signal} ({step})" for signal, step in since.items()][:MOST_NAMED]
    more = len(since) - len(named)
    then = f"; then {', '.join(named)}{f' and {more} more' if more else ''}" if named else ""
    count = f"{len(came)} findings on {len(since) + 1} signal{'s' if since else ''}, " if len(came) > 1 else ""
    said = first.summary.rstrip(".")
    # Rounded down: only what is certain has a confidence of 1.
    sure = math.floor(confidence * 100) / 100
    return f"{severity.label} since step {onset}: {said} ({first.detector}){then}; {count}confidence {sure:.2f}"


def merged(advice: Iterable[str]) -> tuple[str, ...]:
    """Each piece of advice once, in order; of several on one setting the first.

    >>> merged(["optim.lr: lower it", "data.seed: look", "optim.lr: compare it with the schedule", "data.seed: look"])
    ('optim.lr: lower it', 'data.seed: look')
    """
    found: dict[str, str] = {}
    for line in advice:
        word = line.split(maxsplit=1)[0].rstrip(":,;") if line.strip() else ""
        found.setdefault(word if "." in word else line, line)
    return tuple(found.values())[:MOST_ADVICE]
