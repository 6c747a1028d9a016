"""How long the detectors took. Filled by the runs under watch, kept by the core, shown by ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timed:
    """One detector, over all runs and since the start of the exporter."""

    count: int = 0
    """Times that it was asked."""
    seconds: float = 0.0


@dataclass(slots=True)
class DetectorTimes:
    """By name of the detector. No part of a run's state: a restart begins at 0.

    >>> times = DetectorTimes()
    >>> times.add("surge", 0.25)
    >>> times.by_name["surge"]
    Timed(count=1, seconds=0.25)
    """

    by_name: dict[str, Timed] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        timed = self.by_name.get(name)
        if timed is None:
            timed = self.by_name[name] = Timed()
        timed.count += 1
        timed.seconds += seconds
