"""Which copies of a run's checkpoints its tiers hold, for ``checkpoints list``. Places out of reach are named.

A copy belongs to a checkpoint when both have the same step and content: it carries the first eight digits of the
fingerprint in its name.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import dataclass, field

from trainer_entry.checkpoints.listed import Inventory, Listed
from trainer_entry.checkpoints.manifest import fingerprint_of
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.supervisor.state import RunRecord


@dataclass(frozen=True, slots=True)
class CopiesFound:
    """``entries`` by step; ``unreachable`` has a sentence for each place that could not be looked at."""

    entries: dict[int, list[dict[str, object]]] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)

    def of(self, one: Listed) -> list[dict[str, object]]:
        """The copies of this very content, and the half ones of its step."""
        if one.manifest is None:
            return []
        mine = fingerprint_of(one.manifest.files)[:8]
        return [
            entry for entry in self.entries.get(one.verification.step, []) if str(entry["name"]).endswith(f"-{mine}")
        ]

    def in_words(self, one: Listed) -> str:
        """How many whole copies in each tier, and how many half ones."""
        found = self.of(one)
        whole = Counter(str(entry["tier"]) for entry in found if not entry["problem"])
        half = sum(1 for entry in found if entry["problem"])
        words = [f"{tier} {count}" if count > 1 else tier for tier, count in sorted(whole.items())]
        return ", ".join([*words, *([f"{half} half"] if half else [])])


def copies_by_step(parsed: argparse.Namespace, run: RunRecord | None, found: Inventory) -> CopiesFound:
    """Look at every place of the policy, given or named by the environment; without one there are no copies to list."""
    from trainer_entry.checkpoints.tiers.policy_file import VARIABLE, read_policy

    path = parsed.checkpoint_policy or os.environ.get(VARIABLE, "").strip()
    run_ids = {one.manifest.run_id for one in found.checkpoints if one.manifest and one.manifest.run_id}
    if run is not None:
        run_ids.add(run.run_id)
    copies = CopiesFound()
    if not path or not run_ids:
        return copies
    for tier in read_policy(path).tiers:
        for place in tier.places:
            try:
                _look(copies, tier.tier, place, sorted(run_ids))
            except CheckpointError as error:
                copies.unreachable.append(f"The copies in tier {tier.tier} cannot be listed: {error}")
    return copies


def _look(copies: CopiesFound, tier: str, place: object, run_ids: list[str]) -> None:
    from trainer_entry.checkpoints.tiers.copies import copies_of
    from trainer_entry.checkpoints.tiers.stores import open_store

    store = open_store(place)  # type: ignore[arg-type]
    for run_id in run_ids:
        for copy in copies_of(store, run_id):
            copies.entries.setdefault(copy.step, []).append(
                {"tier": tier, "place": store.place, "name": copy.name, "problem": copy.problem or None}
            )
