"""Which run, policy and place a command on copies is about, and how it is stopped. Used by all four."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.tiers.left_behind import LeftBehind, left_behind
from trainer_entry.checkpoints.tiers.policy import Place, Policy, PolicyError, TierPolicy
from trainer_entry.checkpoints.tiers.policy_file import VARIABLE, read_policy
from trainer_entry.checkpoints.tiers.stores import Store, open_store, place_of
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.overrides import OverrideError
from trainer_entry.supervisor.state import StateDir, StateError


def run_of(parsed: argparse.Namespace) -> tuple[StateDir, str]:
    """The run's state, which must be there, and its id. Raises StateError, CheckpointError."""
    state = state_of(parsed)
    if not state.path.is_dir():
        raise StateError(f"There is no run in {state.path}; give its --state-dir, or its --run-id.")
    record = state.read_run()
    note = Workplace(state.path).run_note()
    run_id = parsed.run_id or (record.run_id if record else "") or (note.run_id if note else "")
    if not run_id:
        raise CheckpointError(f"The run in {state.path} has no id yet; give it with --run-id.")
    return state, run_id


def run_id_of(parsed: argparse.Namespace) -> str:
    """The id of the run that is meant, or an empty string: a restore works where nothing of the run is left."""
    if parsed.run_id:
        return str(parsed.run_id)
    if parsed.state_dir is None and "VERL_SENTINEL_STATE_DIR" not in os.environ:
        return os.environ.get("VERL_SENTINEL_RUN_ID", "")
    return run_of(parsed)[1]


def policy_of(parsed: argparse.Namespace, state: StateDir | None) -> Policy:
    """The policy that is given, or that the run was started with. Raises PolicyError."""
    path = parsed.checkpoint_policy or os.environ.get(VARIABLE, "")
    if not path and state is not None:
        note = Workplace(state.path).run_note()
        path = note.policy if note else ""
    if not path:
        raise PolicyError(f"There is no checkpoint policy; give one with --checkpoint-policy, or in {VARIABLE}.")
    return read_policy(path)


def tier_of(parsed: argparse.Namespace, policy: Policy) -> TierPolicy:
    """The tier that was asked for. Raises PolicyError."""
    if parsed.tier is None:
        raise PolicyError("It is not said into which tier; give --tier, or --waiting to carry on with what waits.")
    tier = policy.tier(parsed.tier)
    if tier is None:
        raise PolicyError(f"The checkpoint policy {policy.source} has no tier {parsed.tier}.")
    return tier


def store_of(parsed: argparse.Namespace) -> Store:
    """The place that is meant. A place that the policy names too gets the policy's options."""
    if parsed.tier is None:
        place = place_of(parsed.source)
        with contextlib.suppress(PolicyError):
            known = [one for tier in policy_of(parsed, _state_if_any(parsed)).tiers for one in tier.places]
            place = next((one for one in known if one.url.rstrip("/") == place.url.rstrip("/")), place)
        return open_store(place)
    tier = tier_of(parsed, policy_of(parsed, _state_if_any(parsed)))
    places: tuple[Place, ...] = tier.places
    if parsed.second_place and len(places) < 2:
        raise PolicyError(f"The tier {tier.tier} has no second place.")
    return open_store(places[1 if parsed.second_place else 0])


def left_behind_at_hand(parsed: argparse.Namespace) -> dict[str, LeftBehind]:
    """What rollbacks went behind, by the copy's name, as far as the run's own directory is on this machine.

    The keeper marks the copies themselves, but may not have come to it; where nothing of the run is left, that is all.
    """
    roots = {str(path) for path in (parsed.checkpoint_dir, getattr(parsed, "to", None)) if path is not None}
    if (state := _state_if_any(parsed)) is not None:
        with contextlib.suppress(StateError):
            roots.add(record.checkpoint_dir if (record := state.read_run()) is not None else "")
        roots.add(note.checkpoint_dir if (note := Workplace(state.path).run_note()) is not None else "")
    found: dict[str, LeftBehind] = {}
    for root in sorted(roots - {""}):
        found.update(left_behind(root))
    return found


def _state_if_any(parsed: argparse.Namespace) -> StateDir | None:
    """None on a machine that has nothing of the run: a place can be restored from all the same."""
    try:
        return run_of(parsed)[0]
    except (StateError, CheckpointError, OverrideError):
        return None


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM, so that the work ends between two chunks; the second ends it at once."""
    event = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        print("stopping after this chunk; once more to stop at once", file=sys.stderr)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
