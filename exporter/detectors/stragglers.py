"""Live detector ``stragglers``: one GPU, or one node, stays away from its peers.

All GPUs of a run do the same work, so a step takes as long as the slowest of them. A GPU that throttles runs hot or
draws little power, one whose process is stuck is idle (or spins) while the others work (or wait). Utilisation,
temperature and power of each GPU are compared with the median over all, at least four of them. A GPU is away when its
distance, smoothed over a minute, is both many times the peers' own spread (robust z, from the median absolute
deviation) and large in itself. Time away is counted up and time among the peers down, so a GPU that is away in one
phase of every step adds up, and one that is away in one step does not: ``seconds`` make a warning, twice that a page,
and the page needs two steps that have passed since.

GPUs may have roles (rollout, trainer, reward model) or a warmer place in the chassis. What was away from the beginning
is a warning at most, and only where heat or power say so; a page is for a GPU that kept with its peers before. A GPU
that the driver has lost is a page at once. Where most GPUs of a node are away, the node is named.

Score: robust z of the worst GPU; threshold ``z``. For a lost GPU: how many are lost, over 0.

Reference: B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, 1993 (the modified z-score); on what a slow
GPU does to a synchronous job: Z. Jiang et al., MegaScale: Scaling large language model training to more than 10,000
GPUs, NSDI 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from exporter.detectors.base import GpuView, LiveView, Severity, Verdict
from exporter.detectors.options import at_least, more_than

PEERS = 4
FRESH_SECONDS = 60.0
UPDATE_SECONDS = 5.0
"""Readings come every few seconds: to look at them more often says nothing new."""
GAP_SECONDS = 60.0
SMOOTH_SECONDS = 60.0
KEEPS_UP = 600.0
"""Seconds among its peers that make a GPU one that kept with them."""
MAD_TO_SIGMA = 1.4826
MOST_COUNTED = 2.5
"""Times ``seconds`` that are counted at the most: a GPU that is back is not held against for a day."""
NAMED = 4
MOST_GPUS = 4096
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class _Gauge:
    """One reading, in its unit."""

    signal: str
    what: str
    spread: float
    """The least spread of peers that is believed."""
    away: float
    share: float
    """Distances below ``away``, and below this share of the median, do not matter."""
    hot: float = -math.inf
    """Only values above it, and above the median, matter."""
    physical: bool = True
    """Heat and power are a fault even where they were so from the beginning."""

    def read(self, gpu: GpuView) -> float | None:
        if self.signal == "gpu_utilization":
            return gpu.utilization
        return gpu.temperature if self.signal == "gpu_temperature" else gpu.power

    def say(self, value: float) -> str:
        if self.signal == "gpu_utilization":
            return f"{value:.0%}"
        return f"{value:.0f} °C" if self.signal == "gpu_temperature" else f"{value:.0f} W"


_GAUGES = (
    _Gauge("gpu_utilization", "utilisation", 0.05, 0.4, 0.0, physical=False),
    _Gauge("gpu_temperature", "temperature", 2.0, 12.0, 0.0, hot=80.0),
    _Gauge("gpu_power", "power", 10.0, 30.0, 0.35),
)
_ADVICE = (
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE on that node: is the clock throttled, and why?",
    "dmesg and nvidia-smi on that node: Xid errors, ECC pages, a second process on the GPU",
    "drain the node and restart from the last checkpoint on another one",
)


@dataclass(slots=True)
class _Track:
    """One gauge of one GPU."""

    value: float
    distance: float = 0.0
    """Smoothed signed distance from the median of all."""
    z: float = 0.0
    away: float = 0.0
    """Seconds away less seconds back."""
    onset: int = 0
    """Step in which that left 0."""
    among: float = 0.0
    """Seconds that it kept with its peers."""


class Stragglers:
    """A GPU away from its peers for ``seconds``, by ``z`` robust deviations, is a warning; for twice that a page.

    >>> detector = Stragglers()
    >>> for now in range(0, 3000, 10):
    ...     hot = 92.0 if now >= 1200 else 61.0
    ...     gpus = tuple(GpuView("a", i, now - 1.0, temperature=hot if i == 5 else 60.0 + i % 3) for i in range(8))
    ...     view = LiveView(float(now), now // 60, 1, now // 60, True, float(now), gpus=gpus)
    ...     for v in detector.look(view):
    ...         if now in (1550, 2000):
    ...             print(now, v.signal, v.severity.label, v.summary)
    1550 gpu_temperature warning GPU a/5 away from its peers for 340 s: temperature 92 °C, median of 8 GPUs 61 °C
    2000 gpu_temperature critical GPU a/5 away from its peers for 750 s: temperature 92 °C, median of 8 GPUs 61 °C
    """

    name = "stragglers"

    def __init__(self, *, seconds: float = 300.0, z: float = 6.0) -> None:
        more_than(self.name, "seconds", seconds, 0.0)
        at_least(self.name, "z", z, 1.0)
        self._seconds, self._z = seconds, z
        self._restart()

    def _restart(self) -> None:
        self._tracks: dict[tuple[str, str, int], _Track] = {}  # signal, node, index
        self._medians: dict[str, float] = {}
        self._updated = math.nan

    def phase_closed(self, name: str, seconds: float, step: int) -> None:
        """Not needed here."""

    def look(self, view: LiveView) -> Sequence[Verdict]:
        """Judge the moment."""
        if not (view.running and view.gpus):
            self._restart()
            return ()
        passed = view.now - self._updated
        if not 0.0 <= passed < UPDATE_SECONDS:
            if not 0.0 <= passed <= GAP_SECONDS:
                self._restart()
                passed = 0.0
            self._updated = view.now
            there = [gpu for gpu in view.gpus[:MOST_GPUS] if view.now - gpu.read_at <= FRESH_SECONDS and not gpu.lost]
            for gauge in _GAUGES:
                self._update(gauge, there, view.step, passed)
        said = [self._lost(view), *(self._away(gauge, view) for gauge in _GAUGES)]
        return [verdict for verdict in said if verdict is not None]

    def _update(self, gauge: _Gauge, there: Sequence[GpuView], step: int, passed: float) -> None:
        values = {
            (gauge.signal, gpu.node, gpu.index): value
            for gpu in there
            if (value := gauge.read(gpu)) is not None and abs(value) < LARGEST
        }
        if len(values) < PEERS:
            values = {}
        for key in [key for key in self._tracks if key[0] == gauge.signal and key not in values]:
            del self._tracks[key]
        if not values:
            return
        middle = self._medians[gauge.signal] = median(values.values())
        gain = 1.0 - math.exp(-passed / SMOOTH_SECONDS)
        tracks = []
        for key, value in values.items():
            track = self._tracks.get(key)
            if track is None:
                track = self._tracks[key] = _Track(value)
            track.value = value
            track.distance += gain * (value - middle - track.distance)
            tracks.append(track)
        spread = max(gauge.spread, MAD_TO_SIGMA * median([abs(track.distance) for track in tracks]))
        least = max(gauge.away, gauge.share * abs(middle))
        for track in tracks:
            track.z = abs(track.distance) / spread
            away = track.z > self._z and abs(track.distance) >= least
            if gauge.hot > -math.inf:
                away = away and track.distance > 0.0 and track.value >= gauge.hot
            if away:
                track.onset = step if track.away == 0.0 else track.onset
                track.away = min(track.away + passed, MOST_COUNTED * self._seconds)
            else:
                track.away = max(track.away - passed, 0.0)
                track.among += passed

    def _away(self, gauge: _Gauge, view: LiveView) -> Verdict | None:
        found = [
            (key[1], key[2], track)
            for key, track in self._tracks.items()
            if key[0] == gauge.signal
            and track.away >= self._seconds
            and track.z > self._z
            and (gauge.physical or (track.among >= KEEPS_UP and view.step > track.onset))
        ]
        if not found:
            return None
        worst = max((track for _, _, track in found), key=lambda track: track.z)
        page = any(
            track.among >= KEEPS_UP and track.away >= 2.0 * self._seconds and view.step >= track.onset + 2
            for _, _, track in found
        )
        peers = sum(key[0] == gauge.signal for key in self._tracks)
        return Verdict(
            detector=self.name,
            signal=gauge.signal,
            severity=Severity.CRITICAL if page else Severity.WARNING,
            step=view.step,
            onset=min(track.onset for _, _, track in found),
            score=min(worst.z, LARGEST),
            threshold=self._z,
            confidence=0.8 if page else 0.3,
            summary=(
                f"{self._named(gauge, found)} away from {'its' if len(found) == 1 else 'their'} peers for "
                f"{max(track.away for _, _, track in found):.0f} s: {gauge.what} {gauge.say(worst.value)}, median of "
                f"{peers} GPUs {gauge.say(self._medians[gauge.signal])}"
            ),
            meaning="Every step waits for the slowest GPU, and one of them does not do what the others do.",
            advice=_ADVICE,
        )

    def _named(self, gauge: _Gauge, found: Sequence[tuple[str, int, _Track]]) -> str:
        """The nodes of which most GPUs are away, else the GPUs, a few of them."""
        nodes = sorted({node for node, _, _ in found})
        sizes = {node: sum(key[0] == gauge.signal and key[1] == node for key in self._tracks) for node in nodes}
        if all(size > 1 and 2 * sum(n == node for n, _, _ in found) > size for node, size in sizes.items()):
            return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:NAMED])}"
        names = [f"{node}/{index}" for node, index, _ in found]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"GPU{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}"

    def _lost(self, view: LiveView) -> Verdict | None:
        lost = [f"{gpu.node}/{gpu.index}" for gpu in view.gpus if gpu.lost]
        if not lost:
            return None
        return Verdict(
            detector=self.name,
            signal="gpu_lost",
            severity=Severity.CRITICAL,
            step=view.step,
            onset=view.step,
            score=float(len(lost)),
            threshold=0.0,
            confidence=0.99,
            summary=f"{len(lost)} of {len(view.gpus)} GPUs lost: {', '.join(lost[:NAMED])}",
            meaning="The GPU is off the bus or needs a reset, says the driver. Its peers hang in the next collective.",
            advice=_ADVICE,
        )

    def resumed(self, step: int, attempt: int) -> None:
        """A new attempt, perhaps on other nodes: forget everything."""
        self._restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "tracks": [
                [*key, track.value, track.distance, track.z, track.away, track.onset, track.among]
                for key, track in self._tracks.items()
            ],
            "medians": dict(self._medians),
            "updated": self._updated if math.isfinite(self._updated) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restart()
        for signal, node, index, value, distance, z, away, onset, among in state["tracks"]:
            track = _Track(float(value), float(distance), float(z), float(away), int(onset), float(among))
            self._tracks[str(signal), str(node), int(index)] = track
        self._medians = {signal: float(middle) for signal, middle in state["medians"].items()}
        self._updated = math.nan if state["updated"] is None else float(state["updated"])
