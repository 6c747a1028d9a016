"""Step detector ``learning_rate``: the rate in effect is not the one that was asked for.

Where the configuration is known, the rate logged with a step is compared with its schedule, give or take one update:
verl's versions differ in whether they log the rate before or after the scheduler's step. After a resume two things
are told apart by what explains the difference. If the rate is what the schedule gives with the peak of the attempt
before, the restored optimizer state has won over the changed setting, which is what verl does. If it is what the
schedule gives when counted from the resume, the scheduler was not restored and started over.

Where it is not known (a plain log), the run itself is the measure: see :mod:`exporter.detectors.rate_curve`. There a
resume is compared with the same steps of the attempt before: a warning, since nobody knows what was asked for, and a
page where the rate is twice as high or more, since verl restores the rate whatever is asked for.

Score: relative distance from what was expected, the smallest of the steps that confirm it; threshold ``tolerance``
for a warning, ``page`` for a page.

Reference: verl 0.9.1, ``verl.utils.torch_functional.get_{constant,cosine}_schedule_with_warmup``, and
``FSDPCheckpointManager``, which restores optimizer and scheduler.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.rate_curve import FLOOR, MOST, RateCurve
from exporter.detectors.setup import LrSchedule

FAST: Final = 3.0
"""A rate this far too high is said one step earlier."""
SAID: Final = 10
"""Steps for which a resume that did not go on is told, where no schedule is known."""
ZERO_STEPS: Final = 10

_MEANING: Final = (
    "Updates are larger or smaller than was asked for: too large ones wreck the policy within some steps, too small "
    "ones waste the run."
)
ANOTHER_UNIT: Final = 99.0
"""Relative distance from which on it is more likely that the rate is logged in another unit."""
_RESTORED: Final = "Setting and optimizer disagree: at a resume verl restores the rate that is in the checkpoint."
_NOT_RESTORED: Final = (
    "The scheduler has forgotten where it was: warm-up and decay begin again in the middle of the run."
)


class LearningRate:
    """The learning rate is not what it should be.

    ``tolerance``: relative distance from what is expected that is none. ``page``: distance from which on it is a page.
    ``confirm``: steps in a row that make a finding. ``warmup``: steps of an attempt before anything is judged of which
    no schedule is known.

    >>> detector = LearningRate()
    >>> for step in range(1, 61):
    ...     rate = 1e-6 * min(step / 20, 1.0) * (10.0 if step > 50 else 1.0)
    ...     for v in detector.observe(StepSample(step, 1, 0.0, {"lr": rate})):
    ...         if step < 54:
    ...             print(step, v.severity.label, "since", v.onset, round(v.score, 2))
    52 critical since 51 9.0
    53 critical since 51 9.0
    """

    name = "learning_rate"

    def __init__(self, *, tolerance: float = 0.1, page: float = 0.4, confirm: int = 3, warmup: int = 15) -> None:
        more_than(self.name, "tolerance", tolerance, 0.0)
        more_than(self.name, "page", page, 0.0)
        at_most(self.name, "tolerance", tolerance, page, "page")
        at_least(self.name, "confirm", confirm, 2, whole=True)
        at_least(self.name, "warmup", warmup, 3, whole=True)
        self._options = (tolerance, page, confirm, warmup)
        self._rates = {signal: _Rate(signal, *self._options) for signal in ("lr", "critic_lr")}

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a step without a rate, or one that was seen, says nothing."""
        verdicts = []
        for signal, rate in self._rates.items():
            value = sample.signals.get(signal)
            if value is None or not 0.0 <= value < math.inf:
                continue
            if sample.step < rate.curve.last_step:
                rate.resumed(sample.step - 1)
            if sample.step == rate.curve.last_step:
                continue
            verdict = rate.observe(sample, value, sample.setup.lr if signal == "lr" else sample.setup.critic_lr)
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    def resumed(self, step: int, attempt: int) -> None:
        """Compare what comes with what was."""
        for rate in self._rates.values():
            rate.resumed(step)

    def state_dict(self) -> dict[str, Any]:
        return {signal: rate.state_dict() for signal, rate in self._rates.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for signal in self._rates:
            self._rates[signal] = _Rate(signal, *self._options)
            if signal in state:
                self._rates[signal].load_state_dict(state[signal])


class _Rate:
    """One rate: against its schedule, or against itself."""

    def __init__(self, signal: str, tolerance: float, page: float, confirm: int, warmup: int) -> None:
        self._signal = signal
        self._tolerance, self._page, self._confirm, self._warmup = tolerance, page, confirm, warmup
        self.curve = self._fresh()
        self._before: RateCurve | None = None  # of the attempt before
        self._resumed_at: int | None = None
        self._astray = array("d")  # relative distances from the attempt before, after a resume
        self._first = 0  # first step of this attempt
        self._peak = self._old_peak = 0.0  # configured, now and in the attempt before; 0: not known
        self._off = array("d")  # relative distances from the schedule, of the newest steps in a row
        self._since = 0

    def _fresh(self) -> RateCurve:
        return RateCurve(confirm=self._confirm, tolerance=self._tolerance, warmup=self._warmup)

    def resumed(self, step: int) -> None:
        """A new attempt. One that ended before its warm-up is not what the next is compared with."""
        if self.curve.seen >= self._confirm:
            self._before = self.curve
        self.curve = self._fresh()
        self._resumed_at = step
        self._astray, self._off = array("d"), array("d")

    def observe(self, sample: StepSample, rate: float, schedule: LrSchedule | None) -> Verdict | None:
        curve = self.curve
        if curve.seen == 0:
            self._first = sample.step
        curve.push(sample.step, rate)
        expected = None if schedule is None else _band(schedule, sample.step)
        if schedule is not None and expected is not None:
            curve.accept()
            return self._against_schedule(sample.step, rate, schedule, expected)
        self._off = array("d")
        return self._against_itself(sample.step, rate)

    def _against_schedule(
        self, step: int, rate: float, schedule: LrSchedule, expected: tuple[float, float]
    ) -> Verdict | None:
        if schedule.peak != self._peak:
            self._old_peak, self._peak = self._peak, schedule.peak
        distance = _distance(rate, *expected, FLOOR * schedule.peak)
        if abs(distance) <= self._tolerance:
            self._off = array("d")
            self._old_peak = 0.0
            return None
        if not self._off:
            self._since = step
        self._off = array("d", [*self._off[-self._confirm + 1 :], distance])
        size = min(self._off, key=abs)
        if len(self._off) < self._confirm - (size > FAST):
            return None
        why, meaning, advice = self._cause(step, rate, schedule)
        asked = expected[1] if distance > 0.0 else expected[0]
        summary = (
            f"{self._signal} is {rate:.4g}, the configured schedule gives {asked:.4g}, since step {self._since}{why}"
        )
        return self._verdict(step, size, self._since, summary, meaning, advice)

    def _cause(self, step: int, rate: float, schedule: LrSchedule) -> tuple[str, str, tuple[str, ...]]:
        """What the rate is instead: as text, with its meaning and what to try."""
        key = self._key()
        if self._old_peak:
            factor = self._old_peak / self._peak
            band = _band(schedule, step)
            if band is not None and abs(_distance(rate / factor, *band, FLOOR * schedule.peak)) <= self._tolerance:
                return (
                    f": it still follows the {self._old_peak:.4g} of the attempt before, and the {self._peak:.4g} that "
                    "is configured now has no effect",
                    _RESTORED,
                    (
                        f"{key}.optim.lr: set it back, or take the new rate into effect with the next line",
                        f"{key}.checkpoint.load_contents: without 'extra' the scheduler starts over with the new rate",
                    ),
                )
        if self._resumed_at is not None and step > self._resumed_at > 0:
            band = _band(schedule, step - self._resumed_at + schedule.first_step - 1)
            if band is not None and abs(_distance(rate, *band, FLOOR * schedule.peak)) <= self._tolerance:
                return (
                    f": it is what the schedule gives {step - self._resumed_at} steps after its start; the resume from "
                    f"step {self._resumed_at} did not restore the scheduler",
                    _NOT_RESTORED,
                    (f"{key}.checkpoint.load_contents (and save_contents): must have 'optimizer' and 'extra'",),
                )
        return "", _MEANING, self._advice()

    def _against_itself(self, step: int, rate: float) -> Verdict | None:
        curve = self.curve
        astray = self._after_resume(step, rate)
        if astray is not None:
            return astray
        if curve.steps_off >= self._confirm - (curve.off > FAST):
            way = "risen" if curve.off > 0.0 else "fallen"
            summary = (
                f"{self._signal} has {way} from {curve.reference:.4g} to {rate:.4g} since step {curve.since}, which is "
                "neither warm-up nor decay"
            )
            return self._verdict(step, curve.off, curve.since, summary, _MEANING, self._advice())
        if curve.zero_for >= ZERO_STEPS and curve.peak > 0.0 and curve.seen > self._warmup:
            onset = max(step - curve.zero_for + 1, 0)
            summary = f"{self._signal} has been {rate:.4g} since step {onset}, and the run goes on"
            return self._verdict(step, -1.0, onset, summary, _MEANING, self._advice(), at_most=Severity.WARNING)
        return None

    def _after_resume(self, step: int, rate: float) -> Verdict | None:
        """Of the first steps of an attempt that are not what the attempt before had, or would have had.

        A warning, since nobody knows what was changed on purpose; a page where the rate is twice as high or more, which
        verl never does by itself: it restores the rate, whatever is configured.
        """
        if self._before is None:
            return None
        if self.curve.seen <= self._warmup:
            band = self._before.expected(step)
            if band is not None:
                distance = _distance(rate, *band, FLOOR * self._before.peak)
                self._astray.append(distance if abs(distance) > self._tolerance else 0.0)
        off = [distance for distance in self._astray if distance]
        # All of them, from the first step on: to wait for the warm-up could be ten ruinous updates.
        sure = len(off) >= self._confirm and len(off) == len(self._astray)
        higher = sure and min(off) >= 1.0 and max(off) < ANOTHER_UNIT
        if self.curve.seen < self._warmup and not sure:
            return None
        if len(off) < self._confirm or self.curve.seen > self._warmup + SAID:
            self._before = None
            return None
        size = sorted(off, key=abs)[len(off) // 2]
        summary = (
            f"{self._signal} did not go on where it was: after the resume it was {abs(size):.0%} "
            f"{'above' if size > 0.0 else 'below'} the attempt before in {len(off)} of the first {len(self._astray)} "
            f"steps ({rate:.4g} now)"
        )
        key = self._key()
        advice = (
            f"{key}.optim: compare with the attempt before",
            f"{key}.checkpoint.load_contents (and save_contents): must have 'optimizer' and 'extra'",
        )
        most = Severity.CRITICAL if higher else Severity.WARNING
        return self._verdict(step, size, self._first, summary, _NOT_RESTORED, advice, at_most=most)

    def _verdict(
        self,
        step: int,
        size: float,
        onset: int,
        summary: str,
        meaning: str,
        advice: tuple[str, ...],
        at_most: Severity = Severity.CRITICAL,
    ) -> Verdict:
        score = min(abs(size), MOST)
        critical = score > self._page and at_most is Severity.CRITICAL
        return Verdict(
            detector=self.name,
            signal=self._signal,
            severity=Severity.CRITICAL if critical else Severity.WARNING,
            step=step,
            onset=min(onset, step),
            score=score,
            threshold=self._page if critical else self._tolerance,
            confidence=0.95 if critical else 0.7,
            summary=summary,
            meaning=meaning,
            advice=advice,
        )

    name = LearningRate.name

    def _key(self) -> str:
        return "critic" if self._signal == "critic_lr" else "actor_rollout_ref.actor"

    def _advice(self) -> tuple[str, ...]:
        key = self._key()
        return (
            f"{key}.optim.lr (SFT: optim.lr): compare with what the run logs",
            f"{key}.optim.lr_scheduler_type (FSDP), lr_warmup_steps, total_training_steps: the schedule is made of",
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "curve": self.curve.state_dict(),
            "before": None if self._before is None else self._before.state_dict(),
            "resumed_at": self._resumed_at,
            "astray": list(self._astray),
            "first": self._first,
            "peaks": [self._peak, self._old_peak],
            "off": list(self._off),
            "since": self._since,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.curve.load_state_dict(state["curve"])
        if state["before"] is not None:
            self._before = self._fresh()
            self._before.load_state_dict(state["before"])
        self._resumed_at, self._first, self._since = state["resumed_at"], state["first"], state["since"]
        self._astray, self._off = array("d", state["astray"]), array("d", state["off"])
        self._peak, self._old_peak = (float(peak) for peak in state["peaks"])


def _band(schedule: LrSchedule, step: int) -> tuple[float, float] | None:
    """Lowest and highest rate that may be logged with a step; None where one of them is not known."""
    near = [schedule.logged_with(one) for one in (step - 1, step, step + 1)]
    known = [rate for rate in near if rate is not None]
    return (min(known), max(known)) if len(known) == len(near) else None


def _distance(rate: float, low: float, high: float, floor: float) -> float:
    """Relative distance of a rate from a range, negative below it, 0 within."""
    if rate > high:
        return min((rate - high) / max(high, floor, 1e-300), MOST)
    return (rate - low) / max(low, floor, 1e-300) if rate < low else 0.0
