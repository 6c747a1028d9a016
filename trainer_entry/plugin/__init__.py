"""The verl plugin: `import verl` loads this module in every process of a run.

verl finds it by the entry-point group ``verl.plugins`` (0.9) or ``VERL_USE_EXTERNAL_MODULES=trainer_entry.plugin``
(0.8 and older). Installed but not asked for (``VERL_SENTINEL_URL`` unset or ``off``) it imports nothing and patches
nothing.
"""

import os


def _activate() -> None:
    from trainer_entry.plugin.activation import activate

    activate(os.environ)


if os.environ.get("VERL_SENTINEL_URL", "").strip().lower() not in ("", "off", "0", "none", "false"):
    _activate()
