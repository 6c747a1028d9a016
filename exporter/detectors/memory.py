"""Step detector ``memory``: memory of the GPUs or of the host runs out, and when.

The growth in the window is fitted (:mod:`exporter.detectors.growth`) and carried on to the limit, where the limit is
known: the memory of one GPU, of the host, or what the run's own processes may hold there. It is a page when the steps
to the limit are at most three times those that were seen, is within the horizon, and ends before the run does. Nothing
is carried on further than that: a tooth of a saw looks like a leak until it falls.

What is called growth has to be steady. verl logs running peaks, which climb in a few stairs while the run warms up and
then stay; so there have to be several rises, none of them most of the climb, and the last one not long ago. The climb
has to be larger than any fall of the window, and where validations are regular, one has to pass without taking it back.

A climb that settles is no page either: it may slacken as ``1 - exp(-t)`` does, within what its scatter allows, and the
level where it would then come to rest has to lie beyond the limit.

Without a limit, a steady climb by ``rise`` of the level is a page, half of that a warning. The host's memory is
everybody's: other jobs come and go, caches fill, and real healthy runs grew by a third in 150 steps. So much more is
asked of it, and growth that slackens is left alone. GPU memory that grows together with the responses is a warning.

Score: horizon over steps to the limit (threshold 1, for a warning half of that), or share of the limit in use, or the
climb as a share of the level it began at.

References: see :mod:`exporter.detectors.trend` and :mod:`exporter.detectors.growth`. That a trend test alone (Mann and
Kendall's) cries wolf on memory: F. Machida, A. Andrzejak, R. Matias and E. Vicente, On the effectiveness of
Mann-Kendall test for detection of software aging, ISSRE Workshops 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from exporter.detectors.base import Forecast, Severity, StepSample, Verdict
from exporter.detectors.climb import Climb
from exporter.detectors.growth import Growth
from exporter.detectors.options import at_least, at_most, more_than
from exporter.detectors.setup import RunSetup
from exporter.detectors.trend import NEVER, Arrival, Pace, Trend

LENGTHS_EVERY, LENGTHS = 4, 100
"""Response lengths are kept of every fourth step, and of so many steps."""
SEEN_SHARE, WARNING_SHARE = 1.0 / 3.0, 0.1
"""Steps seen of a growth over steps to the limit, from which on it is a page, or a warning."""
LEAST_SEEN, LEAST_WARNING = 12, 10
GONE = 0.12
"""Share of the way to the limit that a climb has to have gone to be a page; half of it to be a warning."""
UNLIMITED_SEEN, UNLIMITED_MOST, HOST_MOST = 30, 300, 150
"""Steps seen from which on, and up to which, a climb without a limit is a page; twice the climb is one sooner."""
UNLIMITED_WAY = 5.0
"""Times what it has climbed, below which a climb without a limit may settle and be no page."""
LONGEST_PAUSE = 10.0
"""Steps between two fits of a growth at the most; they are an eighth of its age."""
FAILED_PAUSE = 8.0
"""Steps to the next fit after one that found nothing."""
SLACKENS = 0.75
"""Slope now over slope before, below which growth is no page, and without a limit not even a warning."""
LEAST_RISE = 0.01
"""Climbs below this share of the level are nothing."""
LEAST_RISES, PAGE_RISES = 4, 7
LARGEST_RISE, PAGE_LARGEST = 0.45, 0.3
"""Largest share of a climb that may come within two points, and in a page."""
LONGEST_WAIT = 0.35
"""Share of its age that may have passed since its last rise."""
LEAST_TAU = 0.6
OVER_SCATTER = 4.0
TOOTH = 1.5
"""Times the deepest fall of the window that a climb has to be."""
NOT_ITS_LIMIT = 1.02
"""A reading this many times a limit says that the limit is of something else (the log has a sum over GPUs)."""
GIB = 1024.0**3

GPU_ADVICE = (
    "actor_rollout_ref.rollout.gpu_memory_utilization: lower it",
    "actor_rollout_ref.rollout.free_cache_engine: true frees the engine's cache before each update",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu (with use_dynamic_bsz): lower it",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu: lower it",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, where reserved memory grows and allocated memory does not",
    "save a checkpoint and restart the trainer, before it is killed in the middle of a step",
)
_HOST_ADVICE = (
    "ps and ray memory on the host: which process grows? Another job's growth is no fault of this run",
    "data.dataloader_num_workers: lower it; custom reward functions and data sets that keep what they have seen",
    "actor_rollout_ref.actor.fsdp_config.param_offload: it takes host memory",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload: it takes host memory",
    "save a checkpoint and restart the trainer, before the kernel kills it",
)


_RUN_ADVICE = ("ps and ray memory on the trainer's host: which process of the run grows?", *_HOST_ADVICE[1:])


@dataclass(frozen=True, slots=True)
class _Watch:
    signal: str
    what: str
    host: bool
    advice: tuple[str, ...]
    own: bool = False
    """Of the run's own processes; everybody's otherwise."""

    def limit(self, setup: RunSetup) -> float | None:
        if self.own:
            return setup.run_memory_bytes
        return setup.host_memory_bytes if self.host else setup.gpu_memory_bytes


_WATCHES = (
    _Watch("gpu_memory", "GPU memory (reserved)", False, GPU_ADVICE),
    _Watch("gpu_memory_allocated", "GPU memory (allocated)", False, GPU_ADVICE),
    _Watch("host_memory", "host memory", True, _HOST_ADVICE),
    _Watch("run_memory", "memory of the run's processes", True, _RUN_ADVICE, own=True),
)
_MEANING = {
    False: "Every step keeps more GPU memory than the one before. At the limit a worker dies of CUDA out of memory.",
    True: "The host's memory fills up. At its end the kernel kills a process, mostly the largest: the trainer or Ray.",
}


class Memory:
    """Time until GPU or host memory is full.

    ``horizon_steps`` and ``horizon_hours``: a limit reached within either is a page, within twice that a warning.
    ``near``: share of the limit above which growth is a page within twice the horizon. ``rise`` and ``host_rise``:
    growth without a known limit, as a share of the level, that is a page. ``warmup``: first steps of an attempt that
    are not judged.

    >>> detector = Memory()
    >>> card = RunSetup(gpu_memory_bytes=80 * GIB)
    >>> for step in range(1, 81):
    ...     leak = {"gpu_memory": (60.0 + 0.25 * max(0, step - 40)) * GIB, "step_time": 30.0}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, leak, card)):
    ...         if step in (53, 60, 80):
    ...             f = v.forecast
    ...             to_go = f"{f.steps:.0f} steps, {f.seconds / 60:.0f} min"
    ...             print(step, v.severity.label, "since", v.onset, "full in", to_go)
    53 warning since 40 full in 67 steps, 34 min
    60 critical since 40 full in 60 steps, 30 min
    80 critical since 40 full in 40 steps, 20 min
    """

    name = "memory"

    def __init__(
        self,
        *,
        horizon_steps: float = 300.0,
        horizon_hours: float = 2.0,
        near: float = 0.95,
        rise: float = 0.1,
        host_rise: float = 0.3,
        warmup: int = 15,
    ) -> None:
        more_than(self.name, "horizon_steps", horizon_steps, 0.0)
        at_least(self.name, "horizon_hours", horizon_hours, 0.0)
        more_than(self.name, "near", near, 0.0)
        at_most(self.name, "near", near, 1.0, "all of the memory")
        at_least(self.name, "rise", rise, 2.0 * LEAST_RISE)
        at_least(self.name, "host_rise", host_rise, 2.0 * LEAST_RISE)
        at_least(self.name, "warmup", warmup, 0, whole=True)
        self._horizon, self._hours, self._near = horizon_steps, horizon_hours, near
        self._rises = {False: rise, True: host_rise}
        self._warmup = warmup
        self._restart()

    def _restart(self) -> None:
        self._series = {watch.signal: Climb() for watch in _WATCHES}
        self._lengths = Trend(span=LENGTHS, points=LENGTHS // 4)
        self._pace = Pace()
        self._validations = (-1, -1)  # the newest step that had one, and the one before
        self._last = -1

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a verdict is renewed every few steps, and said again in between."""
        if sample.step < self._last:
            self._restart()
        elif sample.step == self._last:
            return [series.said for series in self._series.values() if series.said is not None]
        self._last = sample.step
        signals = sample.signals
        self._pace.push(sample)
        if sample.step % LENGTHS_EVERY == 0 and (length := signals.get("response_length")) is not None:
            self._lengths.push(sample.step, length)
        if "validation_time" in signals or "val_reward" in signals:
            self._validations = (sample.step, self._validations[0])
        said: list[Verdict] = []
        for watch in _WATCHES:
            value = signals.get(watch.signal)
            if value is None or not 0.0 < value < 1e30:
                continue
            series = self._series[watch.signal]
            if series.push(sample.step, value) and series.seen > self._warmup:
                series.said = self._judge(watch, series, sample, value)
            elif series.said is not None:
                series.again(sample.step)
            if series.said is not None and not (said and not watch.host):
                said.append(series.said)
        return said

    def _judge(self, watch: _Watch, series: Climb, sample: StepSample, value: float) -> Verdict | None:
        limit = watch.limit(sample.setup)
        if limit is not None and not 0.0 < value <= NOT_ITS_LIMIT * limit:
            limit = None
        if not self._worth_a_fit(watch, series, value, limit):
            return None
        growth = series.growth(steady)
        series.wait(FAILED_PAUSE if growth is None else min(growth.seen / 8.0, LONGEST_PAUSE))
        if growth is None or not growth.rise > TOOTH * series.deepest_tooth():
            return None
        if limit is None:
            return self._without_limit(watch, growth, series, sample)
        return self._with_limit(watch, growth, series, sample, value, limit)

    def _worth_a_fit(self, watch: _Watch, series: Climb, value: float, limit: float | None) -> bool:
        """A cheap look at the ends of the windows: is there growth, still, and does it matter?"""
        for climb, steps in series.heights():
            if limit is None:
                # Half of what makes a warning: the fit may find the base a little lower.
                worth = climb > 0.25 * self._rises[watch.host] * (value - climb)
            else:
                # Growth may bend upwards, so four times the horizon by the mean slope is generous, not exact.
                way = limit - value
                worth = climb > LEAST_RISE * value and (
                    value > self._near * limit or (way * steps < 4.0 * climb * self._reach() and climb > 0.02 * way)
                )
            if worth:
                return True
        return False

    def _reach(self) -> float:
        """The horizon in steps."""
        seconds = self._pace.seconds()
        return self._horizon if seconds is None else max(self._horizon, 3600.0 * self._hours / seconds)

    def _with_limit(
        self, watch: _Watch, growth: Growth, series: Climb, sample: StepSample, value: float, limit: float
    ) -> Verdict | None:
        when = growth.arrival(limit)
        if when is None:
            return None
        reach, total = self._reach(), sample.setup.total_steps
        gone = growth.rise / max(limit - growth.shape.base, growth.rise)
        used = min(growth.level, value) / limit
        tight = used > self._near and growth.seen >= LEAST_WARNING and when.steps < 2.0 * reach and when.late < NEVER
        page = (
            when.steps < reach
            and (total is None or sample.step + when.steps < total)
            and growth.seen >= max(LEAST_SEEN, SEEN_SHARE * when.steps, WARNING_SHARE * when.late)
            and gone >= GONE
            and growth.rises >= PAGE_RISES
            and growth.largest <= PAGE_LARGEST
            and growth.bending >= SLACKENS
            and not self._may_be_taken_back(growth, when)
            and series.settles_at(growth) > limit
        ) or tight
        if not page and not (
            when.steps < 2.0 * reach
            and (total is None or sample.step + when.early < total)
            and growth.seen >= max(LEAST_WARNING, WARNING_SHARE * when.steps)
            and gone >= 0.5 * GONE
        ):
            return None
        if tight and not when.steps < reach:
            score, threshold = used, self._near
        else:
            score, threshold = min(reach / max(when.steps, 1.0), 1000.0), 1.0 if page else 0.5
        seconds = self._pace.seconds()
        forecast = Forecast(
            limit, when.steps, None if seconds is None else when.steps * seconds, (when.early, when.late)
        )
        at, early, late = (sample.step + round(steps) for steps in when)
        summary = (
            f"{watch.what} grows from {_gib(growth.shape.base)} to {_gib(growth.level)} GiB since step "
            f"{_onset(growth, sample)}; it is at {_gib(limit)} GiB around step {at} ({early} to {late})"
            + ("" if forecast.seconds is None else f", in {_span(forecast.seconds)}")
        )
        width = (when.late - when.early) / max(when.steps, 1.0)
        confidence = max(0.6, 0.95 - 0.1 * width) if page else 0.4
        return self._verdict(watch, growth, sample, page, score, threshold, confidence, summary, forecast)

    def _may_be_taken_back(self, growth: Growth, when: Arrival) -> bool:
        """No validation has passed since the growth began, one is due, and there is time to wait for it."""
        newest, before = self._validations
        if before < 0 or newest >= growth.onset + 1.0:
            return False
        due = newest + (newest - before) - self._last
        return -1.0 <= due < 0.5 * when.early

    def _without_limit(self, watch: _Watch, growth: Growth, series: Climb, sample: StepSample) -> Verdict | None:
        limit = self._rises[watch.host]
        base = growth.shape.base
        if not base > 0.0 or growth.bending < SLACKENS:
            return None
        share = min(growth.rise / base, 1e6)
        enough = UNLIMITED_SEEN if share < 2.0 * limit else LEAST_SEEN
        page = (
            share > limit
            and enough <= growth.seen <= (HOST_MOST if watch.host else UNLIMITED_MOST)
            and growth.rises >= PAGE_RISES
        )
        page = page and growth.largest <= PAGE_LARGEST and (watch.host or not self._with_the_responses(growth, share))
        page = page and series.settles_at(growth) > base + UNLIMITED_WAY * growth.rise
        if not page and not (share > 0.5 * limit and growth.seen >= LEAST_SEEN):
            return None
        summary = (
            f"{watch.what} grows steadily, from {_gib(base)} to {_gib(growth.level)} GiB ({share:+.1%}) since step "
            f"{_onset(growth, sample)}; how much there is in all is not known"
        )
        return self._verdict(
            watch, growth, sample, page, share, limit if page else 0.5 * limit, 0.7 if page else 0.3, summary, None
        )

    def _with_the_responses(self, growth: Growth, share: float) -> bool:
        """Whether responses got longer, in the same time, by half as much at least."""
        xs, ys = self._lengths.series()
        before = [y for x, y in zip(xs, ys, strict=True) if x <= growth.onset][-8:] or ys[:1]
        return len(ys) > 3 and median(ys[-3:]) > (1.0 + 0.5 * share) * max(median(before), 0.0)

    def _verdict(
        self,
        watch: _Watch,
        growth: Growth,
        sample: StepSample,
        page: bool,
        score: float,
        threshold: float,
        confidence: float,
        summary: str,
        forecast: Forecast | None,
    ) -> Verdict:
        return Verdict(
            detector=self.name,
            signal=watch.signal,
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=sample.step,
            onset=_onset(growth, sample),
            score=score,
            threshold=threshold,
            confidence=confidence,
            summary=summary,
            meaning=_MEANING[watch.host],
            advice=watch.advice,
            forecast=forecast,
        )

    def resumed(self, step: int, attempt: int) -> None:
        """A new process has fresh memory: forget everything."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "series": {signal: series.state_dict() for signal, series in self._series.items()},
            "lengths": self._lengths.state_dict(),
            "pace": self._pace.state_dict(),
            "validations": list(self._validations),
            "last": self._last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        for signal, series in self._series.items():
            if signal in state["series"]:
                series.load_state_dict(state["series"][signal])
        self._lengths.load_state_dict(state["lengths"])
        self._pace.load_state_dict(state["pace"])
        newest, before = state["validations"]
        self._validations, self._last = (int(newest), int(before)), int(state["last"])


def steady(growth: Growth) -> bool:
    """A climb in several rises that goes on, above the noise."""
    return (
        growth.rises >= LEAST_RISES
        and growth.largest <= LARGEST_RISE
        and growth.tau >= LEAST_TAU
        and growth.waiting <= LONGEST_WAIT
        and growth.rise > LEAST_RISE * growth.shape.base
        and growth.rise > OVER_SCATTER * growth.scatter
    )


def _onset(growth: Growth, sample: StepSample) -> int:
    return min(max(round(growth.onset), 0), sample.step)


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def _span(seconds: float) -> str:
    return f"{seconds / 3600.0:.1f} h" if seconds >= 5400.0 else f"{seconds / 60.0:.0f} min"
