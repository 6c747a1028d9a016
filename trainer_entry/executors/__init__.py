"""Where an attempt of the trainer runs: on this machine, as a job of a Ray cluster, or as a Slurm job.

The supervisor always starts a process of its own machine. With ``local`` that is the trainer itself. With ``ray`` and
``slurm`` it is a shadow (``python -m trainer_entry.executors``), which submits the job, follows it, ends it, and exits
as it did, so that everything above works the same for all three. What the supervisor asks is in
:mod:`trainer_entry.executors.confirming`; :class:`Executor` is what a further kind of cluster would implement.
"""

from trainer_entry.executors.confirming import confirm_gone, confirm_none_alive, job_state
from trainer_entry.executors.interface import NAMES, Executor, ExecutorError, JobState

__all__ = ["NAMES", "Executor", "ExecutorError", "JobState", "confirm_gone", "confirm_none_alive", "job_state"]
