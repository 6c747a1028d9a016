"""verl's platform interface for a machine without an accelerator; registered as `cpu` when the plugin is active.

verl 0.9 asks one platform object for everything that depends on the device. Importing this module registers the
class; `VERL_PLATFORM=cpu` makes verl choose it. It never offers itself in verl's own detection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from trainer_entry.cpu.device import DEVICE


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """All of verl's device questions, answered for a CPU."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return DEVICE

    def is_available(self) -> bool:
        return False

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # chosen by VERL_PLATFORM only: a GPU machine must never end up here by detection

    def current_device(self) -> str:
        return "cpu"  # verl uses the answer only as a `.to(...)` target and as FSDP's device

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"  # Ray is started with a logical GPU, so verl's resource pools need no patch

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
