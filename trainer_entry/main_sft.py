"""``torchrun … -m trainer_entry.main_sft OVERRIDES``: verl's SFT entry point, watched.

Takes the very overrides that ``python -m verl.trainer.sft_trainer`` takes. Started without torchrun it trains on this
process alone, as a single rank.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import MutableMapping
from typing import Any

from trainer_entry.checkpoints.tiers.after_run import finish_unsupervised
from trainer_entry.handing_on import set_defaults, set_identity
from trainer_entry.settings import SettingsError
from trainer_entry.supervisor.output import say


def main() -> None:
    """Run verl's own ``main`` with its ``run_sft`` wrapped; hydra reads ``sys.argv``."""
    try:
        set_defaults(os.environ)
    except SettingsError as error:
        sys.exit(f"verl-sentinel: {error}")

    try:
        from verl.trainer import sft_trainer as stock
    except ModuleNotFoundError as error:
        if error.name != "verl":
            raise
        sys.exit(
            f"verl-sentinel: verl is not installed for {sys.executable}; start this with the interpreter that has it."
        )

    run_sft = stock.run_sft

    def run_sft_watched(config: Any, *args: Any, **kwargs: Any) -> Any:
        set_identity(os.environ, config.trainer)
        single_rank(os.environ)
        result = run_sft(config, *args, **kwargs)
        if os.environ.get("RANK", "0") == "0":
            finish_unsupervised(os.environ, say)
        return result

    stock.run_sft = run_sft_watched
    stock.main()


def single_rank(environ: MutableMapping[str, str]) -> None:
    """Where no launcher said which rank this is: rank 0 of 1, on a free port of the loopback."""
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    environ.setdefault("MASTER_PORT", str(port))


if __name__ == "__main__":
    main()
