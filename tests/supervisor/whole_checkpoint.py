"""A checkpoint as verl's FSDP saves it, in small, with its manifest; verl's tracker names it."""

from __future__ import annotations

import json
from pathlib import Path

from trainer_entry.checkpoints import TRACKER_NAME, write_manifest


def saved(root: Path, step: int, ranks: int = 2) -> Path:
    directory = root / f"global_step_{step}"
    (directory / "actor").mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        for rank in range(ranks):
            (directory / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"w" * 500)
    (directory / "actor" / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
    (directory / "data.pt").write_bytes(b"position")
    write_manifest(directory, step)
    (root / TRACKER_NAME).write_text(str(step))
    return directory
