"""What verl cannot do on a CPU by configuration: three small patches, and the names of the rollout backend.

Called once per process when the plugin is active. Each patch waits until verl imports the module it changes.
"""

import functools
from types import ModuleType
from typing import Any

from trainer_entry.cpu.late import when_imported

ROLLOUT_NAME = "hfcpu"


def apply() -> None:
    """Arms all patches and registrations in this process."""
    when_imported("torch.distributed", _one_backend_per_device)
    when_imported("verl.utils.model", _no_flash_attention_in_the_critic)
    when_imported("verl.workers.engine.fsdp.transformer_impl", _no_pinned_memory)
    when_imported("verl.workers.rollout.base", _register_adapter)
    when_imported("verl.workers.rollout.replica", _register_replica)


def _one_backend_per_device(distributed: ModuleType) -> None:
    """verl asks for the backend `cpu:gloo,<device>:<backend>`; torch rejects it when both devices are the CPU."""
    original = distributed.init_process_group
    if getattr(original, "_verl_sentinel_cpu", False):
        return

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backend, str) and backend.count("cpu:") > 1:
            backend = "cpu:gloo"
        return original(backend, *args, **kwargs)

    init_process_group._verl_sentinel_cpu = True  # type: ignore[attr-defined]
    distributed.init_process_group = init_process_group  # type: ignore[attr-defined]


def _no_flash_attention_in_the_critic(model_module: ModuleType) -> None:
    """`load_valuehead_model` names flash attention in the code, where the actor takes it from the configuration."""
    original = model_module.load_valuehead_model

    @functools.wraps(original)
    def load_valuehead_model(*args: Any, **kwargs: Any) -> Any:
        from transformers import AutoModelForTokenClassification as ValueModel

        own, from_pretrained = vars(ValueModel).get("from_pretrained"), ValueModel.from_pretrained

        def without_flash_attention(*inner: Any, **options: Any) -> Any:
            return from_pretrained(*inner, **{**options, "attn_implementation": "sdpa"})

        ValueModel.from_pretrained = without_flash_attention
        try:
            return original(*args, **kwargs)
        finally:
            if own is None:
                del ValueModel.from_pretrained  # what it inherits shows again
            else:
                ValueModel.from_pretrained = own

    model_module.load_valuehead_model = load_valuehead_model  # type: ignore[attr-defined]


def _no_pinned_memory(engine_module: ModuleType) -> None:
    """The engine offloads the frozen reference policy into pinned memory, which needs an accelerator to pin for."""
    policy = engine_module.CPUOffloadPolicy

    def unpinned(pin_memory: bool = True) -> Any:
        return policy(pin_memory=False)

    engine_module.CPUOffloadPolicy = unpinned  # type: ignore[attr-defined]


def _register_adapter(base_module: ModuleType) -> None:
    base_module._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "trainer_entry.cpu.rollout.ServerAdapter"


def _register_replica(replica_module: ModuleType) -> None:
    def load() -> Any:
        from trainer_entry.cpu.rollout import CpuReplica

        return CpuReplica

    replica_module.RolloutReplicaRegistry.register(ROLLOUT_NAME, load)
