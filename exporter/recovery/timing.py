"""How long the stages of a recovery took, in words that people use. Called by ``/metrics`` and the console.

approval   from the plan to the approval of a person
command    from the command being ready to a supervisor taking it
stop       from there to the trainer being gone; absent where it was gone already
start      from there to the new attempt being started
verify     from there to the end: steps that prove the new attempt
total      from the alert to the end
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.recovery.record import Recovery

STAGES: Final = ("approval", "command", "stop", "start", "verify", "total")


def stage_seconds(recovery: Recovery, now: float) -> Mapping[str, float]:
    """Seconds by stage, of those that have begun. The one that lasts, and the total, count on to ``now``.

    >>> from exporter.recovery.record import Timeline
    >>> times = Timeline(planned=0.0, commanded=0.0, accepted=2.0, stopping=2.0, stopped=7.0, started=19.0)
    >>> recovery = Recovery(
    ...     id="r", run_id="a", attempt=1, mode="auto", action="rollback", stage="verifying", stage_since=19.0,
    ...     reason="", times=times)
    >>> stage_seconds(recovery, 30.0)
    {'command': 2.0, 'stop': 5.0, 'start': 12.0, 'verify': 11.0, 'total': 30.0}
    """
    times, end = recovery.times, recovery.times.finished
    if recovery.stage == "observed" or (recovery.refused_by_policy and times.commanded is None):
        return {}
    found = {}
    gone = times.stopped if times.stopped is not None else times.starting
    if gone is None and times.started is not None:
        gone = times.accepted
    spans = (
        ("approval", times.planned if recovery.mode == "approve" else None, times.approved),
        ("command", times.commanded, times.accepted),
        ("stop", times.stopping, times.stopped),
        ("start", None if recovery.action == "stop" else gone, times.started),
        ("verify", times.started, end),
        ("total", times.planned if times.alert_received is None else times.alert_received, end),
    )
    for stage, began, ended in spans:
        if began is not None:
            until = ended if ended is not None else end if end is not None else now
            found[stage] = max(0.0, until - began)
    return found
