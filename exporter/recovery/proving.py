"""Proofs that changed settings are in effect. Pure; called by :mod:`exporter.recovery.progress`.

verl restores the optimizer with its old learning rate on resume, so a changed one may be in the configuration and in
nothing else. The trainer's plugin sets it where it acts, reads it back, and tells (``SettingApplied``). A recovery with
a rate in its command has succeeded only when each of them was told to be in effect, with the value that was wanted.
Of its other changes no word is needed, but where the trainer says that one did not take effect, its healthy steps are
no success of that change. Batches are left out where that can be done: that they were not is told, and no failure.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from exporter.protocol import Scalar, SettingApplied
from exporter.recovery.record import Proof, Recovery
from exporter.recovery.rung_settings import MOST_KEYS, is_rate

REASON_CHARACTERS = 400
_EXCLUDE = "exclude"
_SKIPPED = "data.skip_steps"
"""As the trainer's plugin names what is no setting; the version is ``verl_version`` on both sides."""


def needed(recovery: Recovery) -> tuple[str, ...]:
    """Keys that have to be proved: the learning rates in its command, also those that an earlier rung has changed.

    Every attempt restores the optimizer anew, so a proof of the attempt before says nothing of this one.
    """
    return tuple(key for key in recovery.protocol_changes.settings if is_rate(key))


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
    """What is not proved in the new attempt, or was told to be not in effect; the end of a sentence, else empty."""
    found = [*(_of(recovery, key) for key in needed(recovery)), *(_denied(recovery, name) for name in _made(recovery))]
    return "; ".join(sentence for sentence in found if sentence)


def _made(recovery: Recovery) -> tuple[str, ...]:
    """What this recovery changes beyond learning rates, by the names of its proofs; batches apart."""
    rates = needed(recovery)
    named = ((it.name, it.kind) for it in recovery.changes)
    found = [
        _EXCLUDE if name == "left_out" else name
        for name, kind in named
        if (kind == "setting" and name in recovery.protocol_changes.settings and name not in rates)
        or (kind == "run" and name in ("verl_version", "left_out"))
    ]
    return tuple(dict.fromkeys(found))


def _denied(recovery: Recovery, name: str) -> str:
    proof = _proof_of(recovery, name)
    if proof is None or proof.ok:
        return ""
    what = {_EXCLUDE: f"{proof.wanted} is not left out", "verl_version": f"verl {proof.wanted} does not run"}
    return f"{what.get(name, f'{name} = {proof.wanted} is not in effect')}: {_why(proof)}"


def _proof_of(recovery: Recovery, name: str) -> Proof | None:
    return next((one for one in recovery.proofs if one.name == name and one.attempt == recovery.new_attempt), None)


def _why(proof: Proof) -> str:
    return proof.reason or f"it is {proof.found}"


def _of(recovery: Recovery, key: str) -> str:
    wanted = recovery.protocol_changes.settings[key]
    proof = _proof_of(recovery, key)
    if proof is None:
        return f"nothing says that {key} = {wanted} is in effect"
    if not proof.ok:
        return f"{key} = {wanted} is not in effect: {_why(proof)}"
    if not _equal(proof.wanted, wanted):
        return f"{key} was set to {proof.wanted}, and {wanted} was wanted"
    return ""


def sentence(recovery: Recovery) -> str:
    """What was proved, and that batches were not left out; the end of a sentence, empty where nothing was to be."""
    keys = needed(recovery)
    shown = ", ".join(f"{key} = {recovery.protocol_changes.settings[key]}" for key in keys)
    proved = f", and {shown} {'is' if len(keys) == 1 else 'are'} in effect" if keys else ""
    skipped = _proof_of(recovery, _SKIPPED) if recovery.protocol_changes.skip_steps else None
    if skipped is None or skipped.ok:
        return proved
    return f"{proved}; the batches that led into the failure were not skipped: {_why(skipped).rstrip('.')}"


def _equal(one: Scalar, other: Scalar) -> bool:
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=1e-9) if numbers else one == other  # type: ignore[arg-type]
