"""How many pages a healthy run may cost, as the detectors that calibrate themselves are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """What a user accepts. ``pages_per_week``: pages that a week of a healthy run may cost, all detectors together."""

    pages_per_week: float = 0.5

    def __post_init__(self) -> None:
        if not 0.001 <= self.pages_per_week <= 1000:
            raise ValueError(f"pages_per_week is {self.pages_per_week!r}: it must be from 0.001 to 1000")
