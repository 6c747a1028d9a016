"""What NVML says of one GPU, through the real pynvml, and what its errors mean. Called by the sampler.

pynvml (distribution ``nvidia-ml-py``) is imported late: a machine without it, or without the NVIDIA driver, must be
able to import everything here. An error is one of four things, and something else follows from each: the value is not
to be had (absent), the GPU is lost (a reading that says so), the session with the driver is over (open a new one), or,
for any other code, this call failed this time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainer_entry.gpu.events import XidEvents

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26

NOT_TO_BE_HAD = frozenset(
    {INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
"""This GPU, driver or user does not have the value, which is no fault of the GPU."""

LOST = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""No call on this GPU works until somebody resets it or the machine."""

SESSION_OVER = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
"""The driver was unloaded or replaced under the session."""

MEMORY_V2 = 0x02000028
"""``nvmlMemory_v2``: unlike version 1, ``used`` leaves out what the driver keeps for itself, as nvidia-smi does."""

SENSOR_GPU = 0


class NvmlUnavailable(Exception):
    """NVML cannot be opened in this process now; the text is the sentence to show."""


class SessionOver(Exception):
    """The driver went away under an open session; the text is the driver's own."""


@dataclass(frozen=True)
class DeviceValues:
    """What one GPU says now: bytes, a ratio from 0 to 1, watts, degrees Celsius; None where it does not have the value.

    A GPU that answers with an error has no values and the driver's words in ``error``.
    """

    uuid: str = ""
    name: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_ratio: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    lost: bool = False
    error: str = ""
    xids: tuple[int, ...] | None = None
    """Codes of the critical Xid events since the last reading; None where the driver or the GPU does not tell."""


def load_binding() -> Any:
    """Import pynvml; raises :class:`NvmlUnavailable` where that is not possible."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(
            f"the Python module pynvml is missing ({error}); install it with: pip install nvidia-ml-py"
        ) from error


class Nvml:
    """One session with the driver. The constructor opens it, and raises :class:`NvmlUnavailable` where it cannot."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        try:
            binding.nvmlInit()
        except binding.NVMLError as error:
            raise NvmlUnavailable(_opening_sentence(error.value, str(error))) from None
        self._events = XidEvents(binding)
        self.driver_version = _text(_Calls(binding).first(binding.nvmlSystemGetDriverVersion))

    def close(self) -> None:
        """End the session. It is given up also where the driver, gone already, answers with an error."""
        self._events.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def count(self) -> int:
        """Number of GPUs that the driver lists. Raises :class:`SessionOver`, also for errors that name no such reason:
        without this number there is nothing to read."""
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise SessionOver(str(error)) from None

    def read(self, index: int) -> DeviceValues:
        """Read the GPU that the driver lists at ``index``. Raises :class:`SessionOver`, and nothing else of NVML's."""
        values = self._values(index)
        # After the values, for the first reading of a GPU begins to listen; also of one that was lost meanwhile.
        return replace(values, xids=self._events.new(index))

    def _values(self, index: int) -> DeviceValues:
        nvml = self._nvml
        uuid = name = ""
        calls = _Calls(nvml)
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._events.watch(index, handle)
            uuid = _text(calls.first(lambda: nvml.nvmlDeviceGetUUID(handle)))
            name = _text(calls.first(lambda: nvml.nvmlDeviceGetName(handle)))
            calls = _Calls(nvml)
            memory = calls.first(
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=MEMORY_V2),
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            )
            utilization = calls.first(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
            milliwatts = calls.first(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
            celsius = calls.first(
                lambda: nvml.nvmlDeviceGetTemperatureV(handle, SENSOR_GPU),
                lambda: nvml.nvmlDeviceGetTemperature(handle, SENSOR_GPU),
            )
        except nvml.NVMLError as error:
            if error.value in SESSION_OVER:
                raise SessionOver(str(error)) from None
            return DeviceValues(uuid=uuid, name=name, lost=error.value in LOST, error=str(error))
        return DeviceValues(
            uuid=uuid,
            name=name,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            utilization_ratio=None if utilization is None else utilization.gpu / 100,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=None if celsius is None else float(celsius),
            error="" if calls.answers else calls.failure,
        )


class _Calls:
    """Asks for one value after the other; counts those that came, and keeps the words of the first real failure."""

    def __init__(self, binding: Any) -> None:
        self._error = binding.NVMLError
        self.answers = 0
        self.failure = ""

    def first(self, *calls: Callable[[], Any]) -> Any:
        """Answer of the first of ``calls`` that driver and pynvml know, newest first; None where there is none.

        Raises the binding's ``NVMLError`` only where no further call on this GPU can succeed.
        """
        for call in calls:
            try:
                value = call()
            except (AttributeError, TypeError):
                continue  # an older pynvml has no such function, or not with this argument
            except self._error as error:
                code: int = error.value
                if code in LOST or code in SESSION_OVER:
                    raise
                if code not in NOT_TO_BE_HAD:
                    self.failure = self.failure or str(error)
                    return None
            else:
                self.answers += 1
                return value
        return None


def _opening_sentence(code: int, words: str) -> str:
    if code == LIBRARY_NOT_FOUND:
        return "NVML is not on this machine (libnvidia-ml.so.1 was not found), so there is no NVIDIA driver here"
    if code == DRIVER_NOT_LOADED:
        return "the NVIDIA driver is not loaded on this machine"
    if code == LIB_RM_VERSION_MISMATCH:
        return (
            f"the NVIDIA driver and its library differ in version ({words}); "
            "after a driver upgrade, restart the processes of this node, or the node"
        )
    return f"the NVIDIA driver refused to open NVML ({words})"


def _text(value: Any) -> str:
    """Older versions of pynvml answer bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
