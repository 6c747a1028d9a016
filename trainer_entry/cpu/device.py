"""The stand-in for `torch.cuda` that verl gets from the CPU platform: `torch.cpu` plus the calls verl makes unasked.

verl asks its platform for "the device module" and then calls memory and stream functions on it that `torch.cpu` does
not have. They all answer "nothing here", which is what makes verl skip its cache, memory and generator handling.
"""

import types
from typing import Any


def _nothing(*_: object, **__: object) -> None:
    return None


def _zero(*_: object, **__: object) -> int:
    return 0


class CpuDevice(types.ModuleType):
    """A module object (verl type-checks for one in places) that falls back to `torch.cpu` for every other name."""

    def __init__(self) -> None:
        super().__init__("trainer_entry.cpu.device_module")
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            setattr(self, name, _zero)
        for name in ("empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_device"):
            setattr(self, name, _nothing)

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        """False: verl then leaves out its accelerator cache and random-state handling."""
        return False

    def get_device_name(self, *_: object) -> str:
        return "CPU"

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        """Free and total bytes of device memory: there is none."""
        return (0, 0)

    def synchronize(self, *_: object) -> None:
        """CPU kernels have run when they return."""


DEVICE = CpuDevice()
