"""What replay says of a verdict, for a program and for a person. Called by ``verl-sentinel replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from exporter.detectors.base import Forecast, Verdict
from exporter.protocol import json_number

if TYPE_CHECKING:
    from exporter.agreement import Situation
    from exporter.recovery.facts import OpenIncident
    from exporter.replay.plans import Decision


def json_line(verdict: Verdict, attempt: int, file: str, run: str) -> str:
    """One JSON object on one line, without its end. What is not finite is "NaN", "Infinity" or "-Infinity".

    ``attempt``: number of the trainer's start in the file, from 1. ``run``: its name, where the file holds several.
    """
    answer: dict[str, Any] = {
        "step": verdict.step,
        "detector": verdict.detector,
        "signal": verdict.signal,
        "severity": verdict.severity.label,
        "onset": verdict.onset,
        "score": json_number(verdict.score),
        "threshold": json_number(verdict.threshold),
        "confidence": json_number(verdict.confidence),
        "summary": verdict.summary,
        "meaning": verdict.meaning,
        "advice": list(verdict.advice),
        "forecast": _forecast(verdict.forecast),
        **_place(attempt, file, run),
    }
    return msgspec.json.encode(answer).decode()


def _place(attempt: int, file: str, run: str) -> dict[str, Any]:
    text = file.encode("utf-8", "backslashreplace").decode()  # a name may hold bytes that are no text
    return {"attempt": attempt, "file": text, "run": run}


def _forecast(forecast: Forecast | None) -> dict[str, Any] | None:
    if forecast is None:
        return None
    return {
        "limit": json_number(forecast.limit),
        "steps": None if forecast.steps is None else json_number(forecast.steps),
        "seconds": None if forecast.seconds is None else json_number(forecast.seconds),
        "interval": None if forecast.interval is None else [json_number(end) for end in forecast.interval],
    }


COLUMNS = ("STEP", "SEVERITY", "DETECTOR", "SIGNAL", "ONSET", "WHAT")
"""Of the table, whose last column is prose."""


def table_row(verdict: Verdict) -> tuple[str, ...]:
    """The cells of :data:`COLUMNS`."""
    return (
        str(verdict.step),
        verdict.severity.label,
        verdict.detector,
        verdict.signal,
        str(verdict.onset),
        verdict.summary,
    )


def plan_line(decision: Decision, file: str, run: str) -> str:
    """One JSON object on one line, without its end: the finding as a verdict has it, and the decision as ``plan``."""
    incident = decision.incident
    answer = {
        **_finding(incident),
        "step": decision.step,
        "score": json_number(incident.score),
        "threshold": json_number(incident.threshold),
        "confidence": json_number(incident.confidence),
        **_place(decision.attempt, file, run),
        "plan": {
            "decision": decision.what,
            "number": int(decision.recovery) if decision.recovery else None,
            "action": decision.action or None,
            "target_step": decision.target_step,
            "not_after_step": decision.not_after_step,
            "reason": decision.reason,
            "time": decision.at,
            "evidence": [_finding(one) for one in decision.evidence],
        },
    }
    return msgspec.json.encode(answer).decode()


def _finding(incident: OpenIncident) -> dict[str, Any]:
    return {
        "step": incident.step,
        "detector": incident.detector,
        "signal": incident.signal,
        "severity": incident.severity.label,
        "onset": incident.onset,
        "summary": incident.summary,
    }


TOGETHER_COLUMNS = ("SAID", "CRITICAL", "FINDINGS", "HEADLINE")


def together_row(situation: Situation) -> tuple[str, ...]:
    """The cells of :data:`TOGETHER_COLUMNS`."""
    pages = [one.paged_step for one in situation.findings if one.paged_step is not None]
    return (
        str(min(one.first_step for one in situation.findings)),
        str(min(pages)) if pages else "",
        str(len(situation.findings)),
        situation.headline,
    )


PLAN_COLUMNS = ("STEP", "PLAN", "DECISION", "TARGET", "DETECTOR", "SIGNAL", "WHY")


def plan_row(decision: Decision) -> tuple[str, ...]:
    """The cells of :data:`PLAN_COLUMNS`."""
    return (
        str(decision.step),
        decision.recovery,
        {"planned": decision.action, "no_trigger": "no trigger"}.get(decision.what, decision.what),
        "" if decision.target_step is None else str(decision.target_step),
        decision.incident.detector,
        decision.incident.signal,
        decision.reason,
    )
