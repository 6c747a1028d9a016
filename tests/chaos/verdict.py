"""How a scenario ended, judged from outside: by processes, by what the trainers left, and by who was told.

recovered   the trainer of a later attempt lives and has made healthy steps past the checkpoint that it started from
stopped     nothing is done any more by itself, and a person is told: a page fires, or the dead man's switch is silent
observed    the run is as the fault left it, nothing was done to it, and a person is told

``stopped`` says whether a trainer still runs: one whose recovery failed may be left running for the person to look at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from demo.client import answers
from tests.chaos.asking import firing
from tests.chaos.subject import Run
from tests.chaos.world import World

End = Literal["recovered", "stopped", "observed", "undecided"]
HEALTHY_STEPS = 6
SETTLE_SECONDS = 3.0
FINDINGS = {"VerlNonFinite", "VerlPhaseStalled"}
ACTIVE = ("planned", "commanded", "stopping", "starting", "verifying")
CARRIED_SECONDS = 30.0
FINAL = ("succeeded", "failed")


@dataclass(frozen=True)
class Verdict:
    """The end state, and the evidence for it in a sentence."""

    end: End
    why: str


def settled(world: World, run: Run, patience: float) -> Verdict:
    """Wait until the run is in one end state and stays in it; ``undecided`` after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    since, last = time.monotonic(), Verdict("undecided", "")
    while time.monotonic() < deadline:
        now = look(world, run) if not world.pending else Verdict("undecided", "something is still to be mended")
        if now.end != last.end:
            since = time.monotonic()
        last = now
        needed = SETTLE_SECONDS if now.end == "recovered" else 2 * SETTLE_SECONDS
        if now.end != "undecided" and time.monotonic() - since > needed:
            return now
        world.pause(0.25)
    return Verdict("undecided", f"after {patience:.0f} s: {last.why}")


def look(world: World, run: Run) -> Verdict:
    """The state of the run at this moment."""
    starts, living = run.witness.lines("starts.jsonl"), run.witness.trainers()
    newest = starts[-1] if starts else None
    if newest is not None and newest["attempt"] > 1 and any(one["pid"] == newest["pid"] for one in living):
        steps = [step for step in run.steps(newest["attempt"]) if step["step"] > newest["from"]][-HEALTHY_STEPS:]
        fresh = bool(steps) and time.monotonic() - steps[-1]["at"] < 3.0
        if len(steps) == HEALTHY_STEPS and fresh and not any(step["ruined"] for step in steps):
            healthy = f"attempt {newest['attempt']} is healthy at step {steps[-1]['step']}"
            if not _under_way(world, run):
                return Verdict("recovered", healthy)
            # An exporter that cannot write, its disk being full, cannot end the recovery either; it says so by a page.
            told = who_is_told(world, run)
            if "VerlExporterNotReady" in told or "VerlExporterDown" in told:
                return Verdict("recovered", f"{healthy}, and its end cannot be recorded; told by {told}")
            return Verdict("undecided", "the new attempt is healthy, and its recovery not over")
    told = who_is_told(world, run)
    if not told:
        return Verdict("undecided", "nobody is told")
    acted = [one for one in run.witness.commands() if one["state"] != "accepted"]
    trainer = f"attempt {living[-1]['attempt']} runs" if living else "no trainer runs"
    if _under_way(world, run):
        return Verdict("undecided", f"a recovery is under way; {trainer}")
    if not acted and len(starts) <= 1:
        return Verdict("observed", f"nothing was done; {trainer}; told by {told}")
    if len(starts) <= 1 and all(one["state"] == "failed" for one in acted) and living:
        return Verdict("observed", f"what was begun was given up; {trainer}; told by {told}")
    # Of a stop, somebody has to hear: the page of the first finding says that the run fails, not that it is left alone.
    if not set(told.split(", ")) - FINDINGS:
        return Verdict("undecided", f"{trainer}, and nobody is told that it is left alone: only {told}")
    return Verdict("stopped", f"{trainer}; told by {told}")


def who_is_told(world: World, run: Run) -> str:
    """By what a person is told at this moment; empty where nobody is."""
    for name, address in (("Alertmanager", world.alertmanager_at), ("Prometheus", world.prometheus_at)):
        if not answers(f"http://{address}/-/ready"):
            return f"the dead man's switch, because {name} does not answer"
    if world.links["prometheus-alertmanager"].condition in ("cut", "silent"):
        return "the dead man's switch, because no alert reaches Alertmanager"
    found = firing(f"http://{world.alertmanager_at}")
    if found is None:
        return "the dead man's switch, because Alertmanager does not answer"
    names = sorted({alert["alertname"] for alert in found if alert.get("run", run.name) == run.name})
    paged = world.pager.pages(run.name)
    return ", ".join(name for name in names if name in paged)


def _under_way(world: World, run: Run) -> bool:
    """Whether somebody may still do something by itself; an exporter that is down for ever does nothing any more."""
    recoveries = run.witness.recoveries()
    active = {one["id"] for one in recoveries if one["stage"] in ACTIVE}
    over = {one["id"] for one in recoveries} - active
    # A supervisor that comes back late goes on with what the exporter has given up; one whose disk is full cannot.
    carried = [one for one in run.witness.commands() if one["state"] not in FINAL]
    carries = any(one["id"] not in over or one["age"] < CARRIED_SECONDS for one in carried)
    return (bool(active) and world.exporter.running()) or (carries and run.supervisor.running())
