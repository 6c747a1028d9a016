"""Step detector ``dead_run``: steps go by and nothing is learned, or nothing is even measured.

Three ways to be dead. The gradient is exactly 0, and the advantages with it where they are logged: every answer of a
group has the same reward, or the loss does not reach the weights. The advantages are 0 and the gradient is not: only a
KL or entropy term moves the policy. Or metrics that used to change with every step repeat themselves bit by bit: the
logger, or the trainer, goes in a circle.

Single steps without an advantage are normal, and late in a run they become common. So how long a streak must be depends
on how often such steps were there before: a streak of n is judged by ``p ** n``, where p is their share so far. A
metric counts as repeating itself only if it changed in nine of ten steps before. A gradient that is 0 is no repetition.

Score: steps in a row; threshold: the most that are no finding.

Reference: the length of the longest run of successes, P. Erdős and A. Rényi, On a new law of large numbers, Journal
d'Analyse Mathématique 23, 1970; zero advantages of groups of one reward: Q. Yu et al., DAPO, 2025 (dynamic sampling).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporter.detectors.base import Severity, StepSample, Verdict
from exporter.detectors.options import at_least, at_most

LEARNING: Final = (
    "loss",
    "pg_loss",
    "grad_norm",
    "entropy",
    "ppo_kl",
    "kl",
    "reward",
    "response_length",
    "pg_clipfrac",
    "critic_loss",
    "critic_grad_norm",
)
"""What changes with every batch."""
NONE: Final = 1e-12
"""Share of the largest gradient of late below which there is none."""
MOST_AT_ONCE = 100.0
"""Times the largest gradient so far that a step may make it at the most."""
FADING: Final = 0.99
SURE: Final = (math.log(1e9), math.log(1e4))
"""Logarithm of how rare a streak must be, to be a page and a warning."""
LONGEST: Final = 60
"""A streak that is a page, however common such steps were."""
KNOWN_STEPS: Final = 10
STAYS: Final = 0.1
"""Share of the steps that may leave a metric as it is, of one that changes with every step."""
MEMORY: Final = 200
"""Steps after which the oldest count for half."""
CERTAIN: Final = 3
"""Metrics that repeat themselves together from which on ``stuck`` steps are enough."""
ALONE: Final = 3
"""Times as many for a metric that is the only one."""

_ADVANTAGE: Final = "advantage_spread"
_GRADIENT: Final = "grad_norm"


class DeadRun:
    """Nothing is learned, or measured, any more.

    ``warn``, ``page``: steps in a row without a gradient that are a warning and a page; more where single ones are
    common. ``stuck``: steps in a row that repeat the one before, for a page. ``warmup``: steps of an attempt before
    anything is judged.

    >>> detector = DeadRun()
    >>> for step in range(1, 60):
    ...     dead = step > 40
    ...     signals = {"grad_norm": 0.0 if dead else 0.5 + step % 7 / 10, "advantage_spread": 0.0 if dead else 2.0}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, signals)):
    ...         if v.score in (6, 12):
    ...             print(step, v.severity.label, "since", v.onset)
    46 warning since 41
    52 critical since 41
    """

    name = "dead_run"

    def __init__(self, *, warn: int = 6, page: int = 12, stuck: int = 4, warmup: int = 15) -> None:
        at_least(self.name, "warn", warn, 2, whole=True)
        at_least(self.name, "page", page, 2, whole=True)
        at_most(self.name, "warn", warn, page, "page")
        at_least(self.name, "stuck", stuck, 2, whole=True)
        at_least(self.name, "warmup", warmup, 1, whole=True)
        self._warn, self._page, self._stuck, self._warmup = warn, page, stuck, warmup
        self._restart()

    def _restart(self) -> None:
        self._last_step = -1
        self._seen = 0
        self._largest = 0.0  # gradient of late
        self._gradient = _Streak()
        self._advantage = _Streak()
        self._values: dict[str, float] = {}  # of the step before
        self._pairs = 0  # steps that had one before
        self._since: dict[str, int] = {}  # by signal: pairs when it came
        self._unchanged: dict[str, int] = {}  # by signal: pairs that did not change it
        self._repeated = _Streak()
        self._repeating = ""  # the signal that stands for those that repeat themselves

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; one that has none of the signals, or was seen, counts for nothing."""
        if sample.step < self._last_step:
            self._restart()
        if sample.step == self._last_step:
            return ()
        signals = sample.signals
        spread, gradient = signals.get(_ADVANTAGE), signals.get(_GRADIENT)
        if spread is None and signals.keys().isdisjoint(LEARNING):
            return ()
        self._last_step = sample.step
        self._seen += 1
        repeats = self._count_repeats(sample.step, signals)
        if gradient is not None and math.isfinite(gradient):
            # One wild step must not make all ordinary ones look like nothing.
            size = abs(gradient) if self._largest == 0.0 else min(abs(gradient), MOST_AT_ONCE * self._largest)
            self._largest = max(size, FADING * self._largest)
            self._gradient.push(sample.step, abs(gradient) <= NONE * self._largest)
        if spread is not None and math.isfinite(spread):
            self._advantage.push(sample.step, spread == 0.0)
        if self._seen < self._warmup:
            return ()
        if self._gradient.length >= self._warn or self._advantage.length >= self._warn:
            without = self._without(sample.step)
            if without is not None:
                return (without,)
        if repeats and self._repeated.length >= self._stuck - 1:
            stuck = self._stuck_verdict(sample.step, repeats)
            return () if stuck is None else (stuck,)
        return ()

    def _without(self, step: int) -> Verdict | None:
        """Of steps without a gradient, else of steps without an advantage."""
        streak, signal, times = self._gradient, _GRADIENT, 1
        if streak.length < self._advantage.length and streak.length < self._warn:
            # Something moves the policy, if only a KL term: twice the patience.
            streak, signal, times = self._advantage, _ADVANTAGE, 2
        page = times * streak.asked(self._page, SURE[0])
        warn = times * streak.asked(self._warn, SURE[1])
        if streak.length < warn:
            return None
        critical = streak.length >= page
        both = signal == _GRADIENT and self._advantage.length >= streak.length
        what = "the gradient and all advantages are" if both else "the gradient is"
        what = what if signal == _GRADIENT else "all advantages are"
        common = streak.share()
        return self._verdict(
            signal,
            step,
            streak,
            page if critical else warn,
            critical,
            f"{what} exactly 0 for {streak.length} steps, since step {streak.since}; before, {common:.1%} of the steps "
            "were so",
            "Every answer of each group gets the same reward, so no update changes anything: the tasks are all solved "
            "or all too hard, the reward function fails, or the loss does not reach the weights.",
            (
                "reward.custom_reward_function: look at the scores of single answers",
                "data.train_files: are the tasks too easy, or too hard, for all?",
                "actor_rollout_ref.rollout.n: raise it; temperature: raise it",
                "algorithm.filter_groups.enable: True (DAPO's dynamic sampling)",
            ),
        )

    def _count_repeats(self, step: int, signals: Mapping[str, float]) -> int:
        """How many metrics that used to change repeat themselves, if that is enough to mean something; else 0."""
        before, since = self._values, self._since
        now: dict[str, float] = {}
        same = []
        for name in LEARNING:
            value = signals.get(name)
            if value is None or not -math.inf < value < math.inf:
                continue
            now[name] = value
            if before.get(name) == value:
                same.append(name)
            elif name not in since:
                since[name] = self._pairs
        self._values = now
        repeats = 0
        if same or self._repeated.length:
            varying = [name for name in now if name in before and self._varies(name) and (now[name] or before[name])]
            repeating = [name for name in varying if name in same]
            if len(repeating) >= CERTAIN or (repeating and len(repeating) == len(varying)):
                repeats = len(repeating)
            if self._repeated.length == 0:
                self._repeating = repeating[0] if repeating else ""
        if same and not repeats:
            for name in same:
                self._unchanged[name] = self._unchanged.get(name, 0) + 1
        self._repeated.push(step, repeats > 0)
        self._pairs += 1
        return repeats

    def _varies(self, name: str) -> bool:
        """Whether nearly every step changed a metric, so far."""
        steps = self._pairs - self._since.get(name, self._pairs)
        return steps >= KNOWN_STEPS and self._unchanged.get(name, 0) <= STAYS * steps

    def _stuck_verdict(self, step: int, repeats: int) -> Verdict | None:
        streak = self._repeated
        page = self._stuck if repeats >= CERTAIN else self._stuck + 1 if repeats > 1 else ALONE * self._stuck
        if streak.length < page - 1:
            return None
        others = f" and {repeats - 1} other metrics are" if repeats > 1 else " is"
        return self._verdict(
            self._repeating,
            step,
            streak,
            page if streak.length >= page else page - 1,
            streak.length >= page,
            f"{self._repeating}{others} the same bit by bit for {streak.length} steps, since step {streak.since}; "
            "before, every step changed that",
            "No two batches give the same numbers: the trainer repeats one batch without learning, or the log repeats "
            "itself while the run stands.",
            (
                "data.train_files: does the data loader give new batches?",
                "trainer.logger: is what is logged what was computed?",
                "actor_rollout_ref.actor.optim.lr: is it above 0?",
            ),
        )

    def _verdict(
        self,
        signal: str,
        step: int,
        streak: _Streak,
        asked: int,
        critical: bool,
        summary: str,
        meaning: str,
        advice: tuple[str, ...],
    ) -> Verdict:
        return Verdict(
            detector=self.name,
            signal=signal,
            severity=Severity.CRITICAL if critical else Severity.WARNING,
            step=step,
            onset=streak.since,
            score=float(streak.length),
            threshold=float(asked - 1),
            confidence=0.95 if critical else 0.6,
            summary=summary[0].upper() + summary[1:],
            meaning=meaning,
            advice=advice,
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Begin anew."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_step": self._last_step,
            "seen": self._seen,
            "largest": self._largest,
            "gradient": self._gradient.state(),
            "advantage": self._advantage.state(),
            "repeated": self._repeated.state(),
            "repeating": self._repeating,
            "values": dict(self._values),
            "pairs": self._pairs,
            "came": dict(self._since),
            "unchanged": dict(self._unchanged),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        self._last_step, self._seen, self._largest = state["last_step"], state["seen"], float(state["largest"])
        for name in ("gradient", "advantage", "repeated"):
            getattr(self, f"_{name}").load(state[name])
        self._repeating = state["repeating"]
        self._values = {name: float(value) for name, value in state["values"].items()}
        self._pairs, self._since, self._unchanged = state["pairs"], dict(state["came"]), dict(state["unchanged"])


class _Streak:
    """Steps in a row that are so, and how common they were before."""

    def __init__(self) -> None:
        self.length = 0
        self.since = 0
        self._so = 0.0  # steps that were so, those of the streak left out
        self._steps = 0.0

    def push(self, step: int, so: bool) -> None:
        if so:
            self.since = self.since if self.length else max(step, 0)
            self.length += 1
            return
        self._so += self.length
        self._steps += self.length + 1
        self.length = 0
        if self._steps > MEMORY:
            self._so /= 2.0
            self._steps /= 2.0

    def share(self) -> float:
        """Of the steps before the streak that were so."""
        return self._so / max(self._steps, 1)

    def asked(self, least: int, rarity: float) -> int:
        """Steps in a row that are rarer than ``exp(-rarity)``, at least ``least``."""
        common = (self._so + 0.5) / (self._steps + 20.0)
        return min(max(math.ceil(rarity / -math.log(common)), least), max(LONGEST, least))

    def state(self) -> list[float]:
        return [self.length, self.since, self._so, self._steps]

    def load(self, state: Sequence[float]) -> None:
        self.length, self.since = int(state[0]), int(state[1])
        self._so, self._steps = float(state[2]), float(state[3])
