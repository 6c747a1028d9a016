"""Whatever falls off the bus or comes back, a GPU's readings stay under one index, and no two share one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer_entry.gpu.sampler import GpuSampler


class Error(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Binding:
    """In place of pynvml: lists the GPUs of `bus`, by UUID, in order; None is one that is lost and tells nothing."""

    NVMLError = Error

    def __init__(self) -> None:
        self.bus: list[str | None] = []
        self.restarted = False

    def nvmlInit(self) -> None:
        self.restarted = False

    def nvmlShutdown(self) -> None:
        raise Error(1)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "1"

    def nvmlDeviceGetCount(self) -> int:
        if self.restarted:
            raise Error(1)
        return len(self.bus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        uuid = self.bus[index]
        if uuid is None:
            raise Error(15)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> Any:
        return SimpleNamespace(used=sum(handle.encode()), total=1000)


buses = st.lists(st.sampled_from(["a", "b", "c", None, None]), max_size=4).filter(
    lambda bus: len([uuid for uuid in bus if uuid]) == len({uuid for uuid in bus if uuid})
)


@settings(max_examples=150, deadline=None)
@given(st.lists(buses, min_size=1, max_size=4))
@example([["a", None], [None, None, "a"]])  # two that tell nothing, and one place that nobody named
def test_over_driver_restarts_each_gpu_keeps_its_index_and_no_two_share_one(history: list[list[str | None]]) -> None:
    binding, now = Binding(), 0.0
    sampler = GpuSampler("node", binding=lambda: binding, clock=lambda: now, report=lambda sentence: None)
    index_of: dict[str, int] = {}
    for bus in history:
        now += 1000.0
        binding.bus, binding.restarted = bus, True
        sampler.sample()
        now += 1000.0
        readings = sampler.sample().readings
        assert len({reading.index for reading in readings}) == len(readings)
        assert len(readings) >= len(bus)
        alive = {reading.uuid: reading for reading in readings if not reading.lost}
        assert alive.keys() == {uuid for uuid in bus if uuid}
        for uuid, reading in alive.items():
            assert reading.index == index_of.setdefault(uuid, reading.index)
            assert reading.memory_used_bytes == sum(uuid.encode())
        # A GPU that is away is still told of, by the name and the index that it had.
        assert {(uuid, index) for uuid, index in index_of.items()} <= {(r.uuid, r.index) for r in readings}
