"""What the next attempt will have that the failed one had not: the configuration diff of a plan. Pure.

The supervisor restarts the same command with a checkpoint to resume from, so these are the settings that it changes
(``trainer_entry.supervisor.overrides``; a test holds the two together), and where the run then is. Old values are those
that the failed attempt reported with its start. Made when a plan is made, and kept with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from exporter.protocol import Excluded, Scalar
from exporter.recovery.facts import Candidate, RunFacts

RESUME_MODE: Final = "trainer.resume_mode"
RESUME_PATH: Final = "trainer.resume_from_path"

OF_EVERY_ROLLBACK: Final = frozenset({"attempt", "first_step", "skip_steps", RESUME_MODE, RESUME_PATH})
"""Names of differences that are not of a rung."""

MOST_CANDIDATES: Final = 40
"""Checkpoints that are kept with a plan: those before and after the target are told first."""
OLDER_KEPT: Final = 4
"""Of those that are older than the target; each may become the target where that one does not verify on disk."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that will be different."""

    name: str
    """A key of the configuration; of the run ``attempt``, ``first_step``, ``verl_version``, ``left_out`` (a node or
    GPU) or ``skip_steps``."""
    kind: Literal["run", "setting", "removed"]
    """``removed``: a key that the next attempt does not have; its new value is none."""
    old: Scalar = None
    new: Scalar = None
    known: bool = True
    """False where nobody reported the old value."""


def differences(facts: RunFacts, target: Candidate | None) -> tuple[Difference, ...]:
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


def restarted(facts: RunFacts) -> tuple[Difference, ...]:
    """Of a restart that saves first: where it goes on is known when it has saved."""
    return (
        Difference(name="attempt", kind="run", old=facts.attempt, new=facts.attempt + 1),
        _setting(facts, RESUME_MODE, "resume_path"),
    )


def changed_settings(facts: RunFacts, settings: Mapping[str, Scalar], removed: Iterable[str]) -> tuple[Difference, ...]:
    """Of the config rung."""
    known = facts.config
    set_anew = [
        Difference(name=key, kind="setting", old=known.get(key), new=value, known=key in known)
        for key, value in settings.items()
    ]
    gone = [Difference(name=key, kind="removed", old=known.get(key), known=key in known) for key in removed]
    return (*set_anew, *gone)


def other_version(old: str, new: str) -> Difference:
    """Of the version rung."""
    return Difference(name="verl_version", kind="run", old=old or None, new=new, known=bool(old))


def left_out(what: Excluded) -> Difference:
    """Of the infra rung."""
    name = f"{what.node}, GPU {what.gpu}" if what.gpu else what.node
    return Difference(name="left_out", kind="run", new=name)


def skipped(batches: int) -> Difference:
    """Batches of the data that are left out."""
    return Difference(name="skip_steps", kind="run", old=0, new=batches)


def worth_keeping(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The checkpoints that a person asks about, the newest first: all that are newer than the target, the target, and
    a few older ones; bounded, with the target always among them."""
    at = next((index for index, candidate in enumerate(candidates) if candidate.eligible), len(candidates))
    newer = candidates[:at][-(MOST_CANDIDATES - OLDER_KEPT - 1) :]
    return (*newer, *candidates[at : at + 1 + OLDER_KEPT])
