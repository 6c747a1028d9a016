"""Step detector ``step_time``: steps take longer than they did, and what they have to do does not explain it.

Three signals, each against its own past: the step's time without its validation and its saving, the throughput, the
model FLOPs utilisation. A step's time follows the length of its answers, so that growth counts only as far as the
time itself and the time a token grew; in the same way a throughput or a utilisation counts as lost only beyond what
shorter answers cost by themselves. What is found: a step change soon (eight steps), a moderate one (twenty-four), a
drift (over two hundred steps, with a forecast of when steps will take twice as long); see
:mod:`exporter.detectors.slowdown`. Beside them, consecutive time-outs: steps in a row that each take
``timeout_factor`` times the usual and far more than the slow steps that the run has always had. Each finding of the
step's time names the phase that grew.

The first step of an attempt is not counted: it compiles, allocates and fills caches.

Score: how many times slower; threshold: how many times are too many.

Reference: the order statistics and the change point of :mod:`exporter.detectors.slowdown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.detectors.base import Forecast, Severity, StepSample, Verdict
from exporter.detectors.calibration import Budget
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.phase_times import ADVICE, ELSEWHERE, Blame, PhaseTimes, net_time
from exporter.detectors.slowdown import KEPT, SETTLED, Slowdown, Slower, Test, safe_exp

_SIGNALS: Final = ("step_time", "throughput", "mfu")
_UNITS: Final = {"throughput": " tokens/s and GPU", "mfu": ""}
_LARGEST: Final = 1e9
_WORSE_THAN_USUAL: Final = 1.5
"""Times the slow steps that a run has always had."""
_DRIFT_OVER: Final = 26
_RECENT: Final = 8
"""Blocks of eight steps."""


class StepTime:
    """Growth of the step's time, and loss of throughput and of utilisation.

    ``warn_factor``, ``page_factor``: of a change that lasts 24 steps. ``fast_factor``: for a page after eight. For a
    drift, both ask for a little more than of a change that lasts. ``timeout_factor``, ``timeouts``: so many steps in a
    row, each so many times the usual. ``least_seconds``: less time lost in a step is no finding.

    >>> detector = StepTime()
    >>> for step in range(1, 80):
    ...     took = 30.0 + step % 3 + (60.0 if step % 10 == 0 else 0.0)  # every tenth step validates
    ...     timers = {"validation_time": 60.0} if step % 10 == 0 else {}
    ...     slow = 2.0 if step >= 50 else 1.0
    ...     timers |= {"step_time": took * slow, "generation_time": 20.0 * slow, "update_actor_time": 8.0}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, timers)):
    ...         print(step, v.severity.label, f"{v.score:.1f} times, since", v.onset)
    ...         break
    ...     if step == 56: break
    55 critical 2.0 times, since 50
    56 critical 2.0 times, since 50
    """

    name = "step_time"

    def __init__(
        self,
        *,
        warn_factor: float = 1.25,
        page_factor: float = 1.4,
        fast_factor: float = 1.6,
        timeout_factor: float = 3.0,
        timeouts: int = 3,
        least_seconds: float = 1.0,
        budget: Budget | None = None,
    ) -> None:
        more_than(self.name, "warn_factor", warn_factor, 1.0)
        more_than(self.name, "page_factor", page_factor, 1.0)
        at_most(self.name, "warn_factor", warn_factor, page_factor, "page_factor")
        more_than(self.name, "fast_factor", fast_factor, 1.0)
        at_most(self.name, "page_factor", page_factor, fast_factor, "fast_factor")
        more_than(self.name, "timeout_factor", timeout_factor, 1.0)
        at_least(self.name, "timeouts", timeouts, 2, whole=True)
        at_least(self.name, "least_seconds", least_seconds, 0.0)
        self._timeout, self._timeouts, self._least = math.log(timeout_factor), timeouts, least_seconds
        between = math.sqrt(warn_factor * page_factor)
        tests = (
            Test(8, _RECENT, max(between, warn_factor * 1.12), fast_factor),
            Test(24, _RECENT, warn_factor, page_factor),
            Test(24, _DRIFT_OVER, warn_factor * 1.04, math.sqrt(page_factor * fast_factor)),
        )
        self._paces = {signal: Slowdown(tests, explanations=2, budget=budget) for signal in _SIGNALS}
        self._last_step = -1
        self._restart()

    def _restart(self) -> None:
        for pace in self._paces.values():
            pace.restart()
        self._phases = PhaseTimes()
        self._first = -1  # step of the attempt that is not counted
        self._work: list[float | None] = [None, None]  # logarithms of tokens and of response length, the newest
        self._row = 0  # steps in a row that timed out
        self._since = 0  # the first of them
        self._calm: list[float] = []  # levels before them, and what slow steps took
        self._ratio = 0.0  # the least of them, times the usual, as a logarithm

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a second part of a step is neither judged nor learned."""
        step, signals = sample.step, sample.signals
        if step < self._last_step:
            self._restart()
        elif step == self._last_step:
            return ()
        paces = self._paces
        usual = paces["step_time"].levels()
        took = net_time(signals, None if usual is None else safe_exp(usual[0]))
        throughput, mfu = signals.get("throughput", 0.0), signals.get("mfu", 0.0)
        if took is None and not throughput > 0.0 and not mfu > 0.0:
            return ()
        self._last_step = step
        if self._first < 0:
            self._first = step
            return ()
        tokens, length = self._explanations(signals)
        found: list[tuple[str, Slower]] = []
        late = None
        if took is not None:
            seconds = math.log(took)
            self._phases.push(signals)
            pace = paces["step_time"]
            worth = pace.push(step, seconds, (tokens, length))
            late = self._late(step, seconds)
            growth = pace.judge() if worth else None
            if growth is not None and growth.now - growth.before >= self._least:
                found.append(("step_time", growth))
            if throughput > 0.0 and took != signals["step_time"]:
                throughput *= signals["step_time"] / took
        for signal, rate in (("throughput", throughput), ("mfu", mfu)):
            if 0.0 < rate < math.inf:
                pace = paces[signal]
                if pace.push(step, -math.log(rate), (-tokens, -length)):
                    growth = pace.judge()
                    if growth is not None and (took is None or took * (1.0 - 1.0 / growth.score) >= self._least):
                        found.append((signal, growth))
        if not found and late is None:
            return ()
        return self._verdicts(sample, found, late)

    def _explanations(self, signals: Mapping[str, float]) -> tuple[float, float]:
        """Logarithms of tokens and response length; the newest known where the step does not tell, 0 if none ever did.

        One that the run begins to log makes another quantity of the time over it, and everything starts anew.
        """
        work = self._work
        for index, signal in enumerate(("tokens", "response_length")):
            value = signals.get(signal)
            if value is not None and 0.0 < value < math.inf:
                if work[index] is None and len(self._paces["step_time"]) + len(self._paces["mfu"]):
                    for pace in self._paces.values():
                        pace.restart()
                    self._phases = PhaseTimes()
                    self._row = 0
                work[index] = math.log(value)
        return work[0] or 0.0, work[1] or 0.0

    def _late(self, step: int, seconds: float) -> Verdict | None:
        """Count consecutive time-outs."""
        pace = self._paces["step_time"]
        if not self._row:
            usual = pace.levels()
            if usual is None or seconds - usual[0] <= self._timeout or len(pace) <= SETTLED:
                return None
            self._calm = list(pace.calm() or ())
        if not self._calm:
            return None
        ratio = pace.beyond(self._calm[:-1])
        high = ratio > self._timeout and seconds > self._calm[-1] + math.log(_WORSE_THAN_USUAL)
        if not high or safe_exp(seconds) - safe_exp(self._calm[0]) < self._least:
            self._row = 0
            return None
        if not self._row:
            self._since, self._ratio = step, ratio
        self._row += 1
        self._ratio = min(ratio, self._ratio)
        if self._row > KEPT:  # by now it is the usual
            self._row = 0
        return None if self._row < 2 else self._timed_out(step, seconds)

    def _timed_out(self, step: int, seconds: float) -> Verdict:
        usual = safe_exp(self._calm[0])
        page = self._row >= self._timeouts
        blame = self._phases.blame(1, -1, safe_exp(seconds) - usual)
        return Verdict(
            detector=self.name,
            signal="step_time",
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=step,
            onset=self._since,
            score=min(safe_exp(self._ratio), _LARGEST),
            threshold=math.exp(self._timeout),
            confidence=0.9 if page else 0.5,
            summary=(
                f"{self._row} steps in a row took {math.exp(min(self._ratio, 20.0)):.1f} times the usual {usual:.3g} s "
                f"or more each, the newest {safe_exp(seconds):.3g} s, since step {self._since}{_of(blame)}"
            ),
            meaning="Steps in a row run into time-outs: something waits for what does not answer, and retries.",
            advice=_advice(blame),
        )

    def _verdicts(
        self, sample: StepSample, found: Sequence[tuple[str, Slower]], late: Verdict | None
    ) -> Sequence[Verdict]:
        """What to say: of each signal, and of rates only what the step's time does not say already."""
        verdicts: list[Verdict] = []
        said = 0
        for signal, growth in found:
            if signal == "step_time":
                said = growth.severity
                if late is None or said > late.severity:
                    verdicts.append(self._slower(sample, growth))
            elif growth.severity > max(said, 0 if late is None else late.severity):
                verdicts.append(self._less(sample, signal, growth))
        if late is not None and late.severity >= said:
            verdicts.append(late)
        return verdicts

    def _slower(self, sample: StepSample, growth: Slower) -> Verdict:
        blame = self._phases.blame(growth.newest, growth.block, growth.now - growth.before)
        forecast = self._forecast(growth) if growth.drift else None
        ahead = "" if forecast is None else f"; at this rate {forecast.limit:.3g} s in {forecast.steps:.0f} steps"
        return Verdict(
            detector=self.name,
            signal="step_time",
            severity=growth.severity,
            step=sample.step,
            onset=growth.onset,
            score=min(growth.score, _LARGEST),
            threshold=growth.threshold,
            confidence=_confidence(growth),
            summary=(
                f"steps take {growth.now:.3g} s without validation and saving, {_times(growth)} the "
                f"{growth.before:.3g} s of before, {'growing' if growth.drift else 'stepwise'} since step "
                f"{growth.onset}, and no more tokens explain it{_of(blame)}{ahead}"
            ),
            meaning=(
                "The same work takes longer: a part of the machine is slower, shared or fails, or a service that the "
                "run waits for is. The policy is not harmed; the time is lost."
            ),
            advice=_advice(blame),
            forecast=forecast,
        )

    def _less(self, sample: StepSample, signal: str, growth: Slower) -> Verdict:
        before, now = 1.0 / growth.before, 1.0 / growth.now
        return Verdict(
            detector=self.name,
            signal=signal,
            severity=growth.severity,
            step=sample.step,
            onset=growth.onset,
            score=min(growth.score, _LARGEST),
            threshold=growth.threshold,
            confidence=_confidence(growth),
            summary=(
                f"{signal} is {now:.3g}{_UNITS[signal]}, {1.0 - now / before:.0%} below the {before:.3g} of before, "
                f"{'falling' if growth.drift else 'stepwise'} since step {growth.onset}, and shorter answers do not "
                f"explain it"
            ),
            meaning=(
                "The GPUs do less of what they are there for: they wait, run at lower clocks, or work in small pieces."
            ),
            advice=ADVICE["update_actor_time"] if signal == "mfu" else ELSEWHERE,
        )

    def _forecast(self, growth: Slower) -> Forecast | None:
        """When steps will take twice what they took before the drift; None once they do."""
        slopes = self._paces["step_time"].slopes(growth.onset)
        limit = 2.0 * growth.before
        if slopes is None or slopes[1] <= 1e-9 or not growth.now < limit < math.inf:
            return None
        left = math.log(limit / growth.now)
        slow, usual, fast = slopes
        latest = left / slow if slow > 1e-9 else 10.0 * left / usual
        steps = left / usual
        return Forecast(limit, steps, (limit - growth.now) / usual, (left / max(fast, usual), max(latest, steps)))

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: another machine may run the new attempt, and its first step is slow."""
        self._last_step = -1
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "paces": {signal: pace.state() for signal, pace in self._paces.items()},
            "phases": self._phases.state(),
            "last_step": self._last_step,
            "first": self._first,
            "work": list(self._work),
            "row": self._row,
            "since": self._since,
            "calm": list(self._calm),
            "ratio": self._ratio,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for signal, pace in self._paces.items():
            pace.load(state["paces"][signal])
        self._phases.load(state["phases"])
        self._last_step, self._first, self._ratio = state["last_step"], state["first"], state["ratio"]
        self._row, self._since = state["row"], state["since"]
        self._work, self._calm = list(state["work"]), list(state["calm"])


def _times(growth: Slower) -> str:
    return f"{min(growth.now / growth.before, _LARGEST):.2f} times"


def _of(blame: Blame | None) -> str:
    if blame is None:
        return ""
    return f"; {blame.phase} grew from {blame.before:.3g} to {blame.now:.3g} s, {blame.share:.0%} of it"


def _advice(blame: Blame | None) -> tuple[str, ...]:
    return ELSEWHERE if blame is None else ADVICE[blame.phase]


def _confidence(growth: Slower) -> float:
    """More for more beyond the threshold; a warning is less sure than a page."""
    base = 0.7 if growth.severity is Severity.CRITICAL else 0.4
    return base + 0.25 * (1.0 - growth.threshold / growth.score)
