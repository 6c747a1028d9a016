"""Readings of all GPUs of one node, again and again, through driver restarts. Used by the Ray actor and the CLI.

A GPU keeps the index under which it was first seen, known by its UUID: when one falls off the bus and NVML is opened
anew, the driver may number the rest from 0 again, and a series that changes its GPU half-way shows a fault where there
is none.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exporter.protocol import GpuReading
from trainer_entry.gpu.nvml import DeviceValues, Nvml, NvmlUnavailable, SessionOver, load_binding

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
GONE = "the driver does not list this GPU any more"


@dataclass(frozen=True)
class Sample:
    """One look at all GPUs of a node. While NVML cannot be used, ``available`` is false and ``reason`` says why."""

    available: bool
    reason: str = ""
    readings: list[GpuReading] = field(default_factory=list)


@dataclass
class _Xids:
    """Critical Xid events of one GPU since this sampler began."""

    count: int = 0
    newest: int = 0


@dataclass(frozen=True)
class _Identity:
    uuid: str
    name: str


class GpuSampler:
    """Samples the GPUs of ``node``, opening NVML when it is first asked and again after the driver was restarted.

    ``binding`` loads pynvml or what stands in for it; ``clock`` gives monotonic seconds. A failure of NVML is never
    raised: it stands in the sample, and ``report`` gets it as a sentence once, not at every sample.
    """

    def __init__(
        self,
        node: str,
        binding: Callable[[], Any] = load_binding,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.node = node
        self._report = report or say
        self._binding = binding
        self._clock = clock
        self._nvml: Nvml | None = None
        self._identities: dict[int, _Identity] = {}
        """Every GPU ever seen, by the index that its readings carry."""
        self._places: dict[int, int] = {}
        """Index in the open session of the driver, to the index that the readings carry."""
        self._xids: dict[int, _Xids] = {}
        """By the index that the readings carry, of those GPUs whose driver has told of events."""
        self._reason = ""
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._retry_at = 0.0

    @property
    def driver_version(self) -> str:
        """Version of the driver of the open session, or an empty string."""
        return "" if self._nvml is None else self._nvml.driver_version

    def sample(self) -> Sample:
        """Read every GPU once. One that fails gives a reading with its error and hides none of the others.

        While the driver is away, the GPUs that were seen before give readings that carry the reason and no values.
        """
        nvml = self._nvml or self._open()
        if nvml is None:
            return self._away()
        try:
            answers = [nvml.read(index) for index in range(nvml.count())]
        except SessionOver as error:
            self.close()
            self._wait(f"the NVIDIA driver ended the session ({error})")
            return self._away()
        if self._reason:
            self._report(f"GPU sampler on {self.node}: NVML answers again, driver {self.driver_version}")
            self._reason, self._retry_seconds = "", FIRST_RETRY_SECONDS
        self._places = self._recognise(answers)
        readings = [self._reading(self._places[index], answer) for index, answer in enumerate(answers)]
        gone = self._identities.keys() - self._places.values()
        readings += [self._reading(place, DeviceValues(lost=True, error=GONE)) for place in gone]
        return Sample(available=True, readings=sorted(readings, key=lambda reading: reading.index))

    def close(self) -> None:
        """End the session with the driver; :meth:`sample` would open a new one."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = None
        self._places = {}

    def _open(self) -> Nvml | None:
        if self._reason and self._clock() < self._retry_at:
            return None
        try:
            self._nvml = Nvml(self._binding())
        except NvmlUnavailable as error:
            self._wait(str(error))
        return self._nvml

    def _wait(self, reason: str) -> None:
        if reason != self._reason:
            self._report(f"GPU sampler on {self.node} gives no readings: {reason}")
        self._reason = reason
        self._retry_at = self._clock() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def _away(self) -> Sample:
        unread = DeviceValues(error=self._reason)
        readings = [self._reading(place, unread) for place in sorted(self._identities)]
        return Sample(available=False, reason=self._reason, readings=readings)

    def _recognise(self, answers: list[DeviceValues]) -> dict[int, int]:
        """Index that the readings carry for each index of the driver. GPUs not seen before are taken in."""
        places: dict[int, int] = {}
        place_of = {identity.uuid: place for place, identity in self._identities.items() if identity.uuid}
        for index, answer in enumerate(answers):  # those that tell their UUID come first: there is no doubt about them
            if answer.uuid:
                place = place_of.get(answer.uuid)
                if place is None:
                    place = self._place_for_new(index, places)
                self._identities[place] = _Identity(answer.uuid, answer.name)
                places[index] = place
        for index, answer in enumerate(answers):
            if index not in places:
                # One that does not tell (it is lost, mostly) is the GPU that it was earlier in this session, or that
                # had this index, or one of those that are missing; only when none is missing is it another GPU.
                missing = sorted(self._identities.keys() - places.values())
                wanted = [place for place in (self._places.get(index), index) if place in missing]
                place = (wanted or missing or [self._place_for_new(index, places)])[0]
                self._identities.setdefault(place, _Identity("", answer.name))
                places[index] = place
        return places

    def _place_for_new(self, index: int, places: dict[int, int]) -> int:
        """The first index from ``index`` on that is nobody's: not taken in this sample, nor known by a UUID."""
        nobody = _Identity("", "")
        taken = places.values()
        return next(
            place
            for place in itertools.count(index)
            if place not in taken and not self._identities.get(place, nobody).uuid
        )

    def _reading(self, place: int, answer: DeviceValues) -> GpuReading:
        identity = self._identities[place]
        if answer.xids is not None:
            known = self._xids.setdefault(place, _Xids())
            known.count += len(answer.xids)
            known.newest = answer.xids[-1] if answer.xids else known.newest
        xids = self._xids.get(place)  # also of a GPU that cannot be read any more: its last events say why
        return GpuReading(
            node=self.node,
            index=place,
            uuid=identity.uuid,
            name=identity.name,
            memory_used_bytes=answer.memory_used_bytes,
            memory_total_bytes=answer.memory_total_bytes,
            utilization_ratio=answer.utilization_ratio,
            power_watts=answer.power_watts,
            temperature_celsius=answer.temperature_celsius,
            lost=answer.lost,
            error=answer.error,
            xid_errors=None if xids is None else xids.count,
            last_xid=None if xids is None else xids.newest,
        )


def say(sentence: str) -> None:
    """Tell a person: on stderr, because a trainer may have set its logging to anything."""
    print(f"verl-sentinel: {sentence}", file=sys.stderr, flush=True)
