"""What the detectors of single signals have in common: a table of series and of the changes in them that matter.

Each is a table (:class:`Series`, :class:`Watch`) over :class:`exporter.detectors.shift.Shift`, and a word on what else
has to be so for a page. A change pages when it is larger than ``page`` and beyond what the run itself has shown (by the
budget of pages), at two steps in a row; it is a warning when it is larger than ``warn`` and beyond a bound that a
healthy run crosses a hundred times as often.

Score: the change over what the run's own past and the budget ask for; threshold 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exporter.detectors.base import Expectation, Forecast, Severity, StepSample, Verdict
from exporter.detectors.beside import KEPT, Beside
from exporter.detectors.calibration import USUAL_STEP_SECONDS, WARNINGS_PER_PAGE, Budget
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.scales import Scale
from exporter.detectors.shift import FEWEST, Change, Shift
from exporter.detectors.trend import arrival, theil_sen

HOLD: Final = 2
"""Steps in a row at which a change must be seen."""
NOISY_WARNING: Final = 0.6
"""Share of a page's size that makes a warning where sizes are told in noise alone."""
SOME_DOZENS: Final = 30
CLEAR: Final = 3.0
"""Units of noise from which on another signal counts as moving."""
LEAST_STEPS: Final = 6
"""Steps that a forecast looks back over at least."""
FARTHEST: Final = 2000.0
"""Steps beyond which nothing is foreseen."""
WELL_PACED: Final = 20
SELDOM_PACED: Final = 10
"""The usual length of a step is followed at every tenth of them, once so many are known."""
_PACE: Final = 0.05
_SIGN_MEMORY: Final = 0.1
"""Share of the newest step in the sign that a series usually has."""
_LESS_RARE: Final = math.log(WARNINGS_PER_PAGE)


@dataclass(frozen=True, slots=True)
class Series:
    """One signal as it is read. ``least_noise``: in the unit of the scale."""

    signal: str
    scale: Scale
    least_noise: float
    signed: bool = False
    """Its scale is of magnitudes, and healthy values are on both sides of 0."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A change of one series, in one direction, that matters. Sizes are in the unit of the series' scale."""

    series: int
    """Place in the table of series."""
    rising: bool
    page: float
    """``inf``: it never pages."""
    warn: float
    name: str
    """What it is called in the summary: ``fell``, ``rose``."""
    meaning: str
    advice: tuple[str, ...]
    noises: float = 0.0
    """A page must also be this many times the noise of a single value, a warning its share of that."""
    before: int = 0
    """Steps by which the cause comes before the step that shows it."""


class ShiftDetector:
    """Base of the detectors of single signals. A subclass gives its name and its tables."""

    name: str = ""

    def __init__(
        self,
        series: Sequence[Series],
        watches: Sequence[Watch],
        *,
        budget: Budget | None,
        window: int,
        warmup: int,
        beside: Sequence[Series] = (),
    ) -> None:
        at_least(self.name, "window", window, 20, whole=True)
        at_least(self.name, "warmup", warmup, 5, whole=True)
        self._series, self._watches = tuple(series), tuple(watches)
        self._budget = budget or Budget()
        self._shifts = [Shift(least_noise=one.least_noise, window=window, warmup=warmup) for one in self._series]
        self._alongside = tuple((one, Beside(one.least_noise)) for one in beside)
        self._held = [[0, 0] for _ in self._watches]  # steps in a row beyond a page, beyond a warning
        self._onsets: list[int | None] = [None] * len(self._watches)
        self._holding = False  # some change is being held
        self._signs = {place: 0.0 for place, one in enumerate(self._series) if one.signed}
        """By series, from -1 to 1: whether the newest values were mostly below or above 0."""
        self._pace = math.log(USUAL_STEP_SECONDS)
        self._paced = 0
        self._rarity, self._least = self._budget.rarity(), self._budget.least()
        self._last_step = -1

    def check_share(self, option: str, value: float) -> None:
        """Raise ``ValueError`` where an option is no share of 1."""
        more_than(self.name, option, value, 0.0)
        at_most(self.name, option, value, 1.0, "the whole")

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a signal that the step does not have is neither judged nor learned."""
        signals = sample.signals
        if sample.step < self._last_step:
            self.resumed(sample.step, sample.attempt)
        if sample.step > self._last_step:
            if self._paced < WELL_PACED or sample.step % SELDOM_PACED == 0:
                self._keep_pace(signals.get("step_time"))
            self._last_step = sample.step
        step = sample.step
        fresh = stirred = False
        for one, shift in zip(self._series, self._shifts):  # noqa: B905 - at every step, and made to be of one length
            value = signals.get(one.signal)
            if value is not None and step > shift.last_step and -math.inf < value < math.inf:
                shift.push(step, one.scale.read(value))
                fresh = True
                stirred = stirred or shift.highest > FEWEST or shift.lowest < -FEWEST
        if not fresh:
            return ()
        for place, sign in self._signs.items():
            value = signals.get(self._series[place].signal)
            if value is not None and value and math.isfinite(value):
                self._signs[place] = sign + _SIGN_MEMORY * (math.copysign(1.0, value) - sign)
        for one, companion in self._alongside:
            value = signals.get(one.signal)
            if value is not None and step > companion.last_step and -math.inf < value < math.inf:
                companion.push(step, one.scale.read(value))
        if not stirred and not self._holding:
            return ()
        verdicts = []
        self._holding = False
        for place, watch in enumerate(self._watches):
            if self._shifts[watch.series].last_step == step:
                verdict = self._judge(place, watch, sample)
                if verdict is not None:
                    verdicts.append(verdict)
            self._holding = self._holding or self._held[place][1] > 0
        return verdicts

    def _keep_pace(self, seconds: float | None) -> None:
        """Follow the usual length of a step, by which a week's budget is shared out."""
        if seconds is None or not 1e-3 < seconds < 1e5:
            return
        self._paced += 1
        self._pace += max(_PACE, 1.0 / self._paced) * (math.log(seconds) - self._pace)
        self._rarity = self._budget.rarity(math.exp(self._pace))

    def _judge(self, place: int, watch: Watch, sample: StepSample) -> Verdict | None:
        shift, held = self._shifts[watch.series], self._held[place]
        noisy = watch.noises * shift.noise
        share = watch.warn / watch.page if watch.page > 0.0 else NOISY_WARNING
        warn = self._least * max(watch.warn, noisy * share)
        warning = shift.change(rising=watch.rising, least=warn, rarity=self._rarity - _LESS_RARE)
        if warning is None:
            held[0] = held[1] = 0
            self._onsets[place] = None
            return None
        pages = shift.changes(rising=watch.rising, least=self._least * max(watch.page, noisy), rarity=self._rarity)
        held[0] = held[0] + 1 if pages else 0
        held[1] += 1
        if held[1] < HOLD:
            return None
        change, allowed = warning, self.allow(watch, warning, Severity.WARNING, sample)
        for page in pages if held[0] >= HOLD else ():
            severity = self.allow(watch, page, Severity.CRITICAL, sample)
            if severity is not None and (allowed is None or severity > allowed):
                change, allowed = page, severity
        if allowed is None:
            return None
        if allowed > Severity.INFO:
            shift.found(rising=watch.rising)
        if self._onsets[place] is None:
            self._onsets[place] = max(shift.onset(change) - watch.before, 0)
        return self._verdict(place, watch, change, allowed, sample)

    def allow(self, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Severity | None:
        """What is left of a finding's severity once other signals are heard; None: nothing is said."""
        return severity

    def forecast(self, place: int, watch: Watch, sample: StepSample) -> Forecast | None:
        """When a limit is reached; None where there is none."""
        return None

    def arrival(self, place: int, limit: float, sample: StepSample) -> Forecast | None:
        """When a series reaches ``limit`` (in the signal's unit) if it goes on as since the onset of the finding."""
        watch, onset = self._watches[place], self._onsets[place]
        if onset is None:
            return None
        line = theil_sen(*self._shifts[watch.series].recent(min(onset, sample.step - LEAST_STEPS)))
        when = None if line is None else arrival(line, self._series[watch.series].scale.read(limit))
        if when is None or when.steps > FARTHEST:
            return None
        seconds = when.steps * math.exp(self._pace) if self._paced else None
        return Forecast(limit, when.steps, seconds, (when.early, when.late))

    def drift(self, beside: int, change: Change) -> float:
        """How a signal moves beside a change, in units of noise; beyond :data:`CLEAR`, or its negative, clearly.

        A short change is compared with the move over some dozens of steps: no other is clear.
        """
        return self._alongside[beside][1].drift(min(max(change.length, SOME_DOZENS), KEPT // 2))

    def tell(self, watch: Watch, mean: float) -> float:
        """A mean of a change in the signal's unit."""
        return self._series[watch.series].scale.tell(mean)

    def age(self, watch: Watch) -> int:
        """Steps of this attempt that its series has seen."""
        return self._shifts[watch.series].count

    def _verdict(self, place: int, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Verdict:
        one = self._series[watch.series]
        value = sample.signals[one.signal]
        onset = self._onsets[place]
        since = sample.step if onset is None else onset
        critical = severity is Severity.CRITICAL
        return Verdict(
            detector=self.name,
            signal=one.signal,
            severity=severity,
            step=sample.step,
            onset=min(since, sample.step),
            score=min(change.score, 1e12),
            threshold=1.0,
            confidence=min(0.95, 1.0 - 0.4 / change.score) if critical else 0.4,
            summary=(
                f"{one.signal} {watch.name} from {one.scale.tell(change.before):.4g} to "
                f"{one.scale.tell(change.now):.4g} (median of {change.length} steps; {value:.4g} now), "
                f"{change.score:.3g} times what this run's own past and the budget of pages allow, since step {since}"
            ),
            meaning=watch.meaning,
            advice=watch.advice,
            forecast=self.forecast(place, watch, sample),
        )

    def expected(self) -> Mapping[str, Expectation]:
        """By signal: the median of its recent past, and the values beyond which one step alone is not believed.

        Of a signal that is only watched upwards the lower end is the least that it can be.
        """
        found = {}
        for place, one in enumerate(self._series):
            directions = {watch.rising for watch in self._watches if watch.series == place}
            band = self._shifts[place].band() if directions else None
            if band is None:
                continue
            middle, tell = one.scale.tell(band[0]), one.scale.tell
            lower, upper = (tell(band[1]), tell(band[2])) if False in directions else one.scale.upto(band[2])
            if one.signed and abs(self._signs[place]) <= 0.5:
                middle = 0.0
            elif one.signed:
                middle = math.copysign(middle, self._signs[place])
            found[one.signal] = Expectation(min(max(middle, lower), upper), lower, upper)
        return found

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: a resume shifts them."""
        for shift in self._shifts:
            shift.restart()
        for _, companion in self._alongside:
            companion.restart()
        self._signs = dict.fromkeys(self._signs, 0.0)
        self._held = [[0, 0] for _ in self._watches]
        self._onsets = [None] * len(self._watches)
        self._holding = False
        self._last_step = -1

    def state_dict(self) -> dict[str, Any]:
        return {
            "shifts": {one.signal: shift.state() for one, shift in zip(self._series, self._shifts, strict=True)},
            "beside": {one.signal: companion.state() for one, companion in self._alongside},
            "signs": list(self._signs.values()),
            "held": [list(held) for held in self._held],
            "onsets": list(self._onsets),
            "pace": [self._pace, self._paced, self._rarity],
            "last_step": self._last_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.resumed(0, 1)
        for one, shift in zip(self._series, self._shifts, strict=True):
            if one.signal in state["shifts"]:
                shift.load(state["shifts"][one.signal])
        for one, companion in self._alongside:
            if one.signal in state["beside"]:
                companion.load(state["beside"][one.signal])
        if len(state.get("signs", ())) == len(self._signs):
            self._signs = dict(zip(self._signs, map(float, state["signs"]), strict=True))
        if len(state["held"]) == len(self._watches):
            self._held = [[int(count) for count in held] for held in state["held"]]
            self._onsets = list(state["onsets"])
            self._holding = any(held[1] for held in self._held)
        self._pace, self._paced, self._rarity = state["pace"]
        self._last_step = state["last_step"]


def fall_to(detector: str, option: str, share: float) -> float:
    """Size, in logarithms, of a fall to ``share`` of what was before. Raises ``ValueError`` where it is no share."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 < share < 1.0:
        raise ValueError(f"detector {detector}: {option} is {share!r}: it must be a number between 0 and 1")
    return -math.log(share)


def rise_to(detector: str, option: str, factor: float) -> float:
    """Size, in logarithms, of a rise to ``factor`` times what was before. Raises ``ValueError`` where it is no rise."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1.0 < factor < math.inf:
        raise ValueError(f"detector {detector}: {option} is {factor!r}: it must be a number above 1")
    return math.log(factor)
