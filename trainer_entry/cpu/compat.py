"""verl 0.8 on a CPU: it has no platform interface, so the functions that 0.9 asks a platform for are replaced.

Called by the plugin in place of `platform.py` when verl has no `verl.plugin`. `verl.utils.device` is imported by then,
and some modules have already taken its functions by name: those names are replaced too.
"""

import sys
from types import ModuleType
from typing import Any

from trainer_entry.cpu.device import DEVICE
from trainer_entry.cpu.late import when_imported


def apply() -> None:
    """Arms all replacements in this process."""
    when_imported("verl.utils.device", _device_functions)
    when_imported("verl.single_controller.ray.base", _logical_gpu)
    when_imported("verl.workers.engine.base", _engine_for_cuda)
    when_imported("verl.utils.attention_utils", _padding_without_flash_attention)


def _device_functions(device: ModuleType) -> None:
    answers: dict[str, Any] = {
        "get_resource_name": lambda: "GPU",
        "get_nccl_backend": lambda: "gloo",
        "get_torch_device": lambda: DEVICE,
        "get_device_id": lambda: "cpu",
        "get_device_name": lambda: "cpu",
        "set_expandable_segments": lambda enable: None,
    }
    for name, answer in answers.items():
        original = getattr(device, name, None)
        if original is None:
            continue
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("verl") and vars(module).get(name) is original:
                setattr(module, name, answer)


def _logical_gpu(ray_base: ModuleType) -> None:
    """0.8 turns the device name into a Ray resource: `cuda` becomes `GPU`, and any other name is taken as it stands."""
    pool, class_with_args = ray_base.RayResourcePool, ray_base.RayClassWithInitArgs
    get_placement_groups, call = pool.get_placement_groups, class_with_args.__call__

    def groups_on_a_gpu(
        self: Any, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cuda"
    ) -> Any:
        return get_placement_groups(self, strategy, name, "cuda")

    def call_on_a_gpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **{**kwargs, "device_name": "cuda"})

    pool.get_placement_groups = groups_on_a_gpu
    class_with_args.__call__ = call_on_a_gpu


def _engine_for_cuda(engine_base: ModuleType) -> None:
    """0.8 registers engines by device and, unlike 0.9, has no variable that says which one to take."""

    def get_engine_cls(cls: Any, model_type: str, backend: str) -> Any:
        return cls._engines[model_type][backend]["cuda"]

    engine_base.EngineRegistry.get_engine_cls = classmethod(get_engine_cls)


def _padding_without_flash_attention(attention: ModuleType) -> None:
    """0.8 takes its padding functions from flash-attn; verl's own pure torch variant, meant for NPUs, does the same."""

    def functions() -> tuple[Any, ...]:
        from verl.utils.npu_flash_attn_utils import index_first_axis, pad_input, rearrange, unpad_input

        return index_first_axis, pad_input, rearrange, unpad_input

    attention._get_attention_functions = functions  # type: ignore[attr-defined]
