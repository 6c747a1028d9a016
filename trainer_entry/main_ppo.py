"""``python -m trainer_entry.main_ppo OVERRIDES``: verl's PPO entry point, watched.

Takes the very overrides that ``python -m verl.trainer.main_ppo`` takes, prints what it prints and exits as it exits.
Before that it asks for the plugin (``VERL_SENTINEL_URL``, http://127.0.0.1:9464 where it is not set; ``off`` watches
nothing), gives the run its identity, and sees to it that Ray workers on other nodes get both.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trainer_entry.checkpoints.tiers.after_run import finish_unsupervised
from trainer_entry.handing_on import handed_on_by_ray, set_defaults, set_identity
from trainer_entry.settings import SettingsError
from trainer_entry.supervisor.output import say


def main() -> None:
    """Run verl's own ``main`` with its ``run_ppo`` wrapped; hydra reads ``sys.argv``."""
    try:
        set_defaults(os.environ)
    except SettingsError as error:
        sys.exit(f"verl-sentinel: {error}")

    try:
        from verl.trainer import main_ppo as stock
    except ModuleNotFoundError as error:
        if error.name != "verl":
            raise
        sys.exit(
            f"verl-sentinel: verl is not installed for {sys.executable}; start this with the interpreter that has it."
        )

    run_ppo = stock.run_ppo

    def run_ppo_watched(config: Any, *args: Any, **kwargs: Any) -> Any:
        set_identity(os.environ, config.trainer)
        with handed_on_by_ray(os.environ):
            result = run_ppo(config, *args, **kwargs)
        finish_unsupervised(os.environ, say)
        return result

    stock.run_ppo = run_ppo_watched
    stock.main()


if __name__ == "__main__":
    main()
