"""Whether a run may be removed with all that was pushed for it, and the note of who did so. Called by the app."""

from __future__ import annotations

import logging
import sqlite3

from exporter.service.admission import Refused
from exporter.service.core import Core
from exporter.service.keeping import heard

log = logging.getLogger("exporter.forgetting")

ALIVE_SECONDS = 600.0
"""A run that is running and was heard within this time cannot be forgotten."""


def check_forgettable(core: Core, run_id: str, now: float) -> None:
    """Raise :class:`Refused`: 404 where the run is not known, 409 while something still happens in it."""
    run = core.find(run_id)
    if run is None:
        raise Refused("not_found", f"No run {run_id} has ever pushed.", status=404)
    if core.busy(run_id) or (run.state.running and now - heard(run) < ALIVE_SECONDS):
        message = (
            f"Run {run_id} is running: it was heard {max(now - heard(run), 0.0):.0f} s ago. Stop it first; one "
            f"that is gone without a word can be forgotten when it was not heard for {ALIVE_SECONDS:.0f} s."
        )
        raise Refused("running", message, status=409)
    state = core.link.state_of(run_id)
    if state is not None and state.active is not None:
        message = f"Recovery {state.active.id} of run {run_id} is under way: wait for its end, or refuse it."
        raise Refused("running", message, status=409)


def note_forgotten(core: Core, run_id: str, who: str, now: float) -> None:
    """Write down who removes a run. Raises :class:`Refused` (503) where it cannot be: then it is not removed."""
    log.warning("%s removes run %s", who, run_id)
    try:
        core.engine.note_forgotten(run_id, who, now)
    except sqlite3.Error as error:
        message = f"The audit log cannot be written: {error}. Nothing was done; send it again."
        raise Refused("store", message, status=503, retry_after=5) from None
