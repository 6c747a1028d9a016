"""Critical Xid events of the GPUs, as the driver tells them through NVML. Used by the session with the driver.

The driver keeps events for whoever registered before they happened. Each GPU has an event set of its own, so that one
that cannot be watched (an old driver, a MIG slice, a user without the right) or that falls off the bus takes nothing
from the others, and whose event it is needs no asking: a GPU that is lost would not answer.
"""

from __future__ import annotations

from typing import Any

XID_CRITICAL = 8
"""``nvmlEventTypeXidCriticalError``."""
MOST_AT_ONCE = 64
"""Events of one GPU that are taken at one sample; more are taken at the next."""


class XidEvents:
    """Of all GPUs of one session. ``binding`` is pynvml. Whatever the driver answers, nothing is raised."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._sets: dict[int, Any] = {}
        """Event set by the driver's index; None where the GPU's events are not to be had in this session."""

    def watch(self, index: int, handle: Any) -> None:
        """Listen to a GPU from now on, if that was not asked before."""
        if index in self._sets:
            return
        nvml = self._nvml
        self._sets[index] = None
        try:
            events = nvml.nvmlEventSetCreate()
        except (AttributeError, nvml.NVMLError):
            return
        try:
            nvml.nvmlDeviceRegisterEvents(handle, XID_CRITICAL, events)
        except (AttributeError, nvml.NVMLError):
            self._free(events)
            return
        self._sets[index] = events

    def new(self, index: int) -> tuple[int, ...] | None:
        """Codes of the events since the last call, without waiting; None where they are not to be had."""
        events = self._sets.get(index)
        if events is None:
            return None
        codes = []
        try:
            for _ in range(MOST_AT_ONCE):
                event = self._nvml.nvmlEventSetWait_v2(events, 0)
                if event.eventType & XID_CRITICAL:
                    codes.append(int(event.eventData))
        except (AttributeError, self._nvml.NVMLError):
            # Mostly "timeout": there are no more. A GPU that is lost, or a driver that went away, shows in its values.
            pass
        return tuple(codes)

    def close(self) -> None:
        """Before the session ends."""
        for events in self._sets.values():
            if events is not None:
                self._free(events)
        self._sets = {}

    def _free(self, events: Any) -> None:
        try:
            self._nvml.nvmlEventSetFree(events)
        except (AttributeError, self._nvml.NVMLError):
            return
