"""At the end of a run: let the copies that wait be made, the archive above all, for a bounded time.

Called by the supervisor when the run is finished, and by the entry points for a run without one. What is not done by
then waits in the run's state, and ``verl-sentinel-train checkpoints backup --waiting`` goes on with it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from trainer_entry import settings
from trainer_entry.checkpoints import keeper
from trainer_entry.checkpoints.tiers.jobs import Report, Workplace

LIMIT_SECONDS = 3600.0
_LOOK_SECONDS = 0.2
_BUSY_SECONDS = 1.0
_TERM_SECONDS = 10.0


def finish_copies(
    state_dir: str | os.PathLike[str],
    *,
    say: Callable[[str], None],
    tell: Callable[[Report], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    limit_seconds: float = LIMIT_SECONDS,
) -> bool:
    """Run a keeper until nothing waits, the limit is reached, or ``stop`` says so; True when nothing waits.

    Each of its reports goes to ``tell``. A job that fails is not waited for: it is due later, and said. Never raises
    for what the disk does.
    """
    workplace = Workplace(state_dir)
    try:
        note, waiting = workplace.run_note(), workplace.jobs()
        pass_on(workplace, tell)
        if note is None or not note.policy or workplace.idle:
            return not waiting
        if waiting or workplace.archive_wanted:
            named = {job.tier for job in waiting} | ({"archive"} if workplace.archive_wanted else set())
            tiers = ", ".join(sorted(named))
            say(f"the run is over; making its last copies ({tiers}), for up to {limit_seconds:g} s")
        until = time.monotonic() + limit_seconds
        process = keeper.start(os.fspath(state_dir), note.run_id, note.policy)
        waited = False
        while (code := process.poll()) in (None, keeper.EXIT_BUSY) and time.monotonic() < until and not stop():
            pass_on(workplace, tell)
            if code is None:
                time.sleep(_LOOK_SECONDS)
                continue
            # The trainer's own keeper, which ends after the chunk it is at, or a backup by hand.
            if not waited:
                say("another process works on the copies of this run; waiting for it")
                waited = True
            time.sleep(_BUSY_SECONDS)
            process = keeper.start(os.fspath(state_dir), note.run_id, note.policy)
    except OSError as error:
        say(f"the last copies of checkpoints could not be made: {error.strerror}")
        return False
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(Exception):
            process.wait(_TERM_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()
    pass_on(workplace, tell)
    left = workplace.jobs()
    if workplace.archive_wanted and not left:
        say("the archive of this run is not made yet; go on with verl-sentinel-train checkpoints backup --waiting")
        return False
    for job in left:
        say(
            f"{job.name} is not in its {job.tier} yet ({job.last_error or 'the time was over'}); go on with "
            f"verl-sentinel-train checkpoints backup --waiting --state-dir {os.fspath(state_dir)}"
        )
    return not left


def pass_on(workplace: Workplace, tell: Callable[[Report], None]) -> None:
    """Give every report that was left to ``tell``. Never raises for what the disk does."""
    with contextlib.suppress(OSError), workplace.reports() as events:
        for event in events:
            tell(event)


def finish_unsupervised(environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """For an entry point: as above where no supervisor will do it. An interrupt leaves the copies waiting."""
    from trainer_entry.checkpoints.tiers.policy_file import VARIABLE
    from trainer_entry.supervisor.processes import MARKER_VARIABLE

    state_dir = environ.get(settings.STATE_DIR, "")
    if not environ.get(VARIABLE) or not state_dir or MARKER_VARIABLE in environ or not settings.asked_for(environ):
        return
    try:
        finish_copies(state_dir, say=say)
    except KeyboardInterrupt:
        say("interrupted: the last copies of checkpoints wait")
