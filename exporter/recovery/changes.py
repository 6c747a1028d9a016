"""What the next attempt will have that the failed one had not: the configuration diff of a plan. Pure.

The supervisor restarts the same command with a checkpoint to resume from, so these are the settings that it changes
(``trainer_entry.supervisor.overrides``; a test holds the two together), and where the run then is. Old values are those
that the failed attempt reported with its start. Made when a plan is made, and kept with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from exporter.protocol import Scalar
from exporter.recovery.facts import Candidate, Checkpoint, RunFacts

RESUME_MODE: Final = "trainer.resume_mode"
RESUME_PATH: Final = "trainer.resume_from_path"

MOST_CANDIDATES: Final = 40
"""Checkpoints that are kept with a plan: those before and after the target are told first."""
OLDER_KEPT: Final = 4
"""Of those that are older than the target; each may become the target where that one does not verify on disk."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that will be different."""

    name: str
    """A key of the configuration; of the run ``attempt``, ``first_step`` or ``left_behind``."""
    kind: Literal["run", "setting"]
    old: Scalar = None
    new: Scalar = None
    known: bool = True
    """False where nobody reported the old value."""


def differences(facts: RunFacts, target: Checkpoint | None) -> tuple[Difference, ...]:
    """Of a rollback to ``target``; nothing where the run is only stopped."""
    if target is None:
        return ()
    resumed = next((one.resume_step for one in reversed(facts.attempts) if one.number == facts.attempt), None)
    first = None if resumed is None else resumed + 1
    return (
        Difference(name="attempt", kind="run", old=facts.attempt, new=facts.attempt + 1),
        Difference(name="first_step", kind="run", old=first, new=target.step + 1, known=first is not None),
        _setting(facts, RESUME_MODE, "resume_path"),
        _setting(facts, RESUME_PATH, target.path),
    )


def _setting(facts: RunFacts, name: str, new: str) -> Difference:
    return Difference(name=name, kind="setting", old=facts.config.get(name), new=new, known=name in facts.config)


def worth_keeping(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The checkpoints that a person asks about, the newest first: all that are newer than the target, the target, and
    a few older ones; bounded, with the target always among them."""
    at = next((index for index, candidate in enumerate(candidates) if candidate.eligible), len(candidates))
    newer = candidates[:at][-(MOST_CANDIDATES - OLDER_KEPT - 1) :]
    return (*newer, *candidates[at : at + 1 + OLDER_KEPT])
