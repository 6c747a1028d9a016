"""The push client: how everything beside the trainer talks to the exporter.

Used by the plugin (:mod:`trainer_entry.plugin`), the GPU sampler and the supervisor::

    client = PushClient(settings, Run(run_id="r", attempt=1), "supervisor", on_command=take)
    client.start()                                   # the heartbeat begins
    client.event(AttemptStarted(time=now, pid=pid))  # returns at once
    client.set_run(Run(run_id="r", attempt=2))       # what follows belongs to the next attempt
    client.close(timeout=2.0)                        # the rest stays in the spool for the next process
"""

from trainer_entry.push.client import PushClient, PushStatus
from trainer_entry.push.phases import PhaseBoard, RolloutCounter

__all__ = ["PhaseBoard", "PushClient", "PushStatus", "RolloutCounter"]
