"""What a hook is: a name, the places in verl where it goes by version and trainer, and how it is put there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar

from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.wrapping import Target

V1 = "ppo_v1"
LEGACY = "ppo_legacy"
SFT = "sft"


class Hook(ABC):
    """One per process and name; it keeps nothing but the runtime it reports to."""

    name: ClassVar[str]
    targets: ClassVar[tuple[Target, ...]]
    not_for: ClassVar[Mapping[str, str]] = {}
    """Trainers that have nothing to hook, with the reason that is reported."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @abstractmethod
    def install(self, module: ModuleType, target: Target) -> None:
        """Wrap the target in the module, which is imported. Raises ``NotThere``; never called twice for a target."""

    def unavailable(self) -> str:
        """Why the hook cannot work in this process though it is in place; empty when it can."""
        return ""
