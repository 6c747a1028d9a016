"""Proofs that changed settings are in effect. Pure; called by :mod:`exporter.recovery.progress`.

verl restores the optimizer with its old learning rate on resume, so a changed one may be in the configuration and in
nothing else. The trainer's plugin sets it where it acts, reads it back, and tells (``SettingApplied``). A recovery that
changes a rate has succeeded only when each of them was told to be in effect, with the value that was wanted.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from exporter.protocol import Scalar, SettingApplied
from exporter.recovery.record import Proof, Recovery
from exporter.recovery.rung_settings import MOST_KEYS, is_rate

REASON_CHARACTERS = 400


def needed(recovery: Recovery) -> tuple[str, ...]:
    """Keys that have to be proved: learning rates that this recovery changes."""
    changed = {it.name for it in recovery.changes if it.kind == "setting"}
    return tuple(key for key in recovery.protocol_changes.settings if is_rate(key) and key in changed)


def with_proof(recovery: Recovery, event: SettingApplied, attempt: int, now: float) -> Recovery | None:
    """The record with what was told; None where it is known, or too much."""
    proof = Proof(
        name=event.name,
        wanted=event.wanted,
        restored=event.restored,
        found=event.found,
        ok=event.ok,
        reason=event.reason[:REASON_CHARACTERS],
        attempt=attempt,
        at=now,
    )
    known = next((one for one in recovery.proofs if one.name == proof.name), None)
    if known is not None and replace(known, at=now) == proof:
        return None
    others = [one for one in recovery.proofs if one.name != proof.name]
    return None if len(others) >= MOST_KEYS else replace(recovery, proofs=(*others, proof))


def missing(recovery: Recovery) -> str:
    """What is not proved in the new attempt, the end of a sentence; empty where all is."""
    return "; ".join(_of(recovery, key) for key in needed(recovery) if _of(recovery, key))


def _of(recovery: Recovery, key: str) -> str:
    wanted = recovery.protocol_changes.settings[key]
    proof = next((one for one in recovery.proofs if one.name == key and one.attempt == recovery.new_attempt), None)
    if proof is None:
        return f"nothing says that {key} = {wanted} is in effect"
    if not proof.ok:
        return f"{key} = {wanted} is not in effect: {proof.reason or f'it is {proof.found}'}"
    if not _equal(proof.wanted, wanted):
        return f"{key} was set to {proof.wanted}, and {wanted} was wanted"
    return ""


def sentence(recovery: Recovery) -> str:
    """What was proved, the end of a sentence; empty where nothing had to be."""
    keys = needed(recovery)
    shown = ", ".join(f"{key} = {recovery.protocol_changes.settings[key]}" for key in keys)
    return f", and {shown} {'is' if len(keys) == 1 else 'are'} in effect" if keys else ""


def _equal(one: Scalar, other: Scalar) -> bool:
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=1e-9) if numbers else one == other  # type: ignore[arg-type]
