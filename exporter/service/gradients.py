"""Gradient histograms of a run: when the trainer is asked for them, and which came. Part of the run's state.

An incident of a detector that is named in the section ``histogram`` asks once. The request goes with the answers to the
trainer's pushes until the first histogram has come, or it is too late for it; all of that is told by what is in the
journal, so an exporter that was restarted asks for the same thing again, under the same id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from exporter.detectors.options import unknown_name
from exporter.incidents import Change
from exporter.protocol import GradientHistogram, HistogramRequest

GIVE_UP_SECONDS = 900.0
"""A trainer that has sent none by then cannot: its engine has no place for it, or its disk is full."""

GIVE_UP_STEPS = 50
"""The same, by steps logged since."""

REMEMBERED = 5
TEXT_CHARACTERS = 300
MOST_STEPS = 100


class HistogramSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``histogram`` section of the configuration: gradients of the next steps by layer, once for an incident."""

    steps: int = 3
    """Optimizer steps that are written; 0 asks for none."""
    detectors: tuple[str, ...] = ("gradient_instability",)
    """Whose incidents ask for it, be they a warning or critical."""

    def __post_init__(self) -> None:
        if not 0 <= self.steps <= MOST_STEPS:
            raise ValueError(f"steps is {self.steps}: it must be from 0 to {MOST_STEPS}")

    def check_names(self, known: Iterable[str]) -> None:
        """Raise ``ValueError`` for a detector that there is not."""
        names = tuple(known)
        for name in self.detectors:
            if name not in names:
                raise ValueError(unknown_name("detector", name, names))


@dataclass(slots=True)
class Wanted:
    """One request."""

    id: str
    steps: int
    reason: str
    attempt: int
    asked_at: float
    """Unix seconds of the exporter's clock."""
    steps_before: int
    """Training steps of the run when it was asked."""


@dataclass(slots=True)
class Histogram:
    """One that was written."""

    step: int
    attempt: int
    at: float
    file: str
    """On the trainer's node."""
    layers: int
    norm: float
    largest_layer: str
    largest_norm: float
    non_finite: int


@dataclass(slots=True)
class Gradients:
    """Of one run.

    >>> seen = Gradients()
    >>> seen.ask("r:gradient_instability:grad_norm:1@2", 3, "why", attempt=2, steps_total=40, at=100.0)
    >>> seen.request(attempt=2, steps_total=41, now=101.0).steps
    3
    >>> seen.written(GradientHistogram(time=0.0, step=42, file="/g/42.npz", layers=9), attempt=2, at=102.0)
    >>> seen.request(attempt=2, steps_total=42, now=103.0), seen.count
    (None, 1)
    """

    count: int = 0
    newest: list[Histogram] = field(default_factory=list)
    """The oldest first."""
    wanted: Wanted | None = None

    def ask_after(
        self, changes: Iterable[Change], settings: HistogramSettings, attempt: int, steps_total: int, at: float
    ) -> None:
        """Ask where one of the changes is an incident that was opened, of a detector for which it is done."""
        for change in changes:
            it = change.after
            if change.what == "opened" and settings.steps and it.detector in settings.detectors:
                # With the time, for an incident's number starts again where the journal has forgotten the run.
                request_id = f"{it.id}@{attempt}@{it.opened_at:.3f}"
                reason = f"Incident {it.id}: {it.summary}"
                self.ask(request_id, settings.steps, reason, attempt=attempt, steps_total=steps_total, at=at)

    def ask(self, request_id: str, steps: int, reason: str, *, attempt: int, steps_total: int, at: float) -> None:
        """Ask for histograms, unless they are asked for already."""
        if self.request(attempt=attempt, steps_total=steps_total, now=at) is None:
            self.wanted = Wanted(request_id, steps, reason[:TEXT_CHARACTERS], attempt, at, steps_total)

    def written(self, event: GradientHistogram, *, attempt: int, at: float) -> None:
        """One has come: the trainer has understood."""
        self.count += 1
        one = Histogram(
            step=event.step,
            attempt=attempt,
            at=at,
            file=event.file[: 4 * TEXT_CHARACTERS],
            layers=event.layers,
            norm=event.norm,
            largest_layer=event.largest_layer[:TEXT_CHARACTERS],
            largest_norm=event.largest_norm,
            non_finite=event.non_finite,
        )
        self.newest = [*self.newest, one][-REMEMBERED:]
        if self.wanted is not None and attempt == self.wanted.attempt:
            self.wanted = None

    def request(self, *, attempt: int, steps_total: int, now: float) -> HistogramRequest | None:
        """What the answer to the trainer's push is to carry."""
        wanted = self.wanted
        if wanted is None or wanted.attempt != attempt or steps_total - wanted.steps_before > GIVE_UP_STEPS:
            return None
        if now - wanted.asked_at > GIVE_UP_SECONDS:
            return None
        return HistogramRequest(id=wanted.id, steps=wanted.steps, reason=wanted.reason)
