"""Proof that what a rollback changed took effect, read back where it acts. Used by the hooks of changed runs.

A proof is a ``SettingApplied`` event. It is kept in this process (a worker is asked for its own by the trainer, see
:mod:`trainer_entry.plugin.hooks.changed_settings`); in the trainer it is sent, and also written to
``attempts/<n>/applied.json`` of the state directory, so that a person sees it with the exporter down.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from exporter.protocol import Changes, Event, SettingApplied
from trainer_entry.changes import records

MAX_PROOFS = 450

_of_this_process: list[SettingApplied] = []


def told_by_worker() -> bytes:
    """What this process has proved, for the trainer; it may be asked of a process in which no hook is in place."""
    return msgspec.json.encode(_of_this_process)


def keep(proof: SettingApplied) -> None:
    """Remember a proof of this process."""
    if len(_of_this_process) < MAX_PROOFS:
        _of_this_process.append(proof)


def read_changes(text: str, report: Callable[[str], None]) -> Changes:
    """The changes that the supervisor told of; none where they cannot be read, which is said."""
    if not text:
        return Changes()
    try:
        return msgspec.json.decode(text, type=Changes)
    except (msgspec.DecodeError, RecursionError) as error:
        report(f"VERL_SENTINEL_CHANGES cannot be read ({str(error)[:200]}); nothing is applied for it")
        return Changes()


class Proofs:
    """The proofs of the trainer. ``send`` drops them until it is connected, so they wait for :meth:`opened`."""

    def __init__(self, send: Callable[[Event], None], attempt_dir: Callable[[], Path | None]) -> None:
        self._send = send
        self._attempt_dir = attempt_dir
        self._open = False
        self._told: list[SettingApplied] = []

    def add(self, proof: SettingApplied) -> None:
        """One more thing that took effect, or did not."""
        if len(self._told) >= MAX_PROOFS:
            return
        self._told.append(proof)
        if self._open:
            self._send(proof)
            self._write()

    def opened(self) -> None:
        """The trainer is connected: what was proved before is sent now."""
        if self._open:
            return
        self._open = True
        for proof in self._told:
            self._send(proof)
        if self._told:
            self._write()

    def _write(self) -> None:
        directory = self._attempt_dir()
        if directory is not None:
            records.keep_applied(directory, self._told)
