"""What replay says of a verdict, for a program and for a person. Called by ``verl-sentinel replay``."""

from __future__ import annotations

from typing import Any

import msgspec

from exporter.detectors.base import Forecast, Verdict
from exporter.protocol import json_number


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
        "attempt": attempt,
        "file": file.encode("utf-8", "backslashreplace").decode(),  # a name may hold bytes that are no text
        "run": run,
    }
    return msgspec.json.encode(answer).decode()


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
