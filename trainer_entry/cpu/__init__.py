"""The verl plugin that lets the stock trainers run without a GPU; for the demo and the tests, not for real training.

`import verl` loads it in every process of a run, through the entry point `verl_sentinel_cpu` (verl 0.9) or
`VERL_USE_EXTERNAL_MODULES=trainer_entry.cpu` (0.8). It does nothing at all unless `VERL_PLATFORM=cpu`.
"""

import importlib
import importlib.util
import os


def _activate() -> None:
    # verl looks engines up by device and has none for `cpu`; the one registered for CUDA runs on any device.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    from trainer_entry.cpu import patches

    if importlib.util.find_spec("verl.plugin") is not None:
        importlib.import_module("trainer_entry.cpu.platform")  # registers itself
    else:
        from trainer_entry.cpu import compat

        compat.apply()
    patches.apply()


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    _activate()
