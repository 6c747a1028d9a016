"""Exit codes that the command line, the supervisor and the rollback script share. Documented in their ``--help``."""

from __future__ import annotations

OK = 0
USAGE = 2
NO_CHECKPOINT = 4
"""No checkpoint that may be restored is left: the trainer stays stopped."""
NOT_STOPPED = 5
NOT_STARTED = 6
NO_SUPERVISOR = 7
"""The target is recorded, but nothing runs that could start the trainer from it."""
REFUSED = 8
"""The supervisor refused the request: another command, run or attempt."""

CANNOT_CHANGE = 9
"""What is to be changed cannot be changed: a setting, a version, a machine. Nothing was stopped for it."""
NOT_SAVED = 10
"""The trainer is stopped, but it did not end by itself with a save, as was asked."""

NOT_ALL = 11
"""Some of what was asked of the copies of checkpoints could not be done."""

# Codes of ``run`` stay clear of the small ones, because the trainer's own code is passed on when it crashes.
RUN_HELD = 70
"""A rollback found no verified checkpoint; the run is held until a person says where to start."""
RUN_NOT_STARTED = 71
RUN_BUSY = 75
"""Another supervisor has this run."""


def of_trainer(exit_code: int | None, signal: int | None) -> int:
    """The code a shell would show for the trainer; 1 where it is not known.

    >>> of_trainer(3, None), of_trainer(None, 9), of_trainer(None, None)
    (3, 137, 1)
    """
    if exit_code is not None:
        return exit_code
    return 128 + signal if signal is not None else 1
