"""The stages of a recovery, as moments at which a scenario does something. Seen in files, mostly, within milliseconds.

A stage may be over before anybody looks: then the moment has come all the same, and the story says where the recovery
really was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from demo.client import first_alert
from tests.chaos.subject import Run
from tests.chaos.world import World
from trainer_entry.environments.places import RECORD_NAME

Moment = Literal[
    "before_alert",
    "pending_alert",
    "awaiting_approval",
    "commanded",
    "stopping",
    "starting",
    "verifying",
    "climbing",
    "building",
    "checking",
    "stopping again",
    "starting again",
    "verifying again",
    "over",
]
STAGES: tuple[Moment, ...] = (
    "before_alert",
    "pending_alert",
    "awaiting_approval",
    "commanded",
    "stopping",
    "starting",
    "verifying",
    "climbing",
)
OF_ANOTHER_VERSION: tuple[Moment, ...] = ("building", "checking", "stopping again", "starting again", "verifying again")
"""Of the second recovery, which goes on with another version of verl."""
MOMENT_SECONDS = 60.0
_RANK = ("accepted", "stopping", "stopped", "starting", "started", "succeeded", "failed")


def wait_for(world: World, run: Run, moment: Moment) -> bool:
    """Wait until the run's recovery is there; False where it never came so far."""
    came: dict[Moment, Callable[[], object]] = {
        "before_alert": lambda: _fault_shows(run),
        "pending_alert": lambda: first_alert(f"http://{world.prometheus_at}", run.name) or _recoveries(run),
        "awaiting_approval": lambda: _recoveries(run),
        "commanded": lambda: _recoveries(run) or _reached(run, "accepted"),
        "stopping": lambda: _reached(run, "stopping"),
        "starting": lambda: _reached(run, "stopped"),
        "verifying": lambda: _reached(run, "started") and len(run.witness.lines("starts.jsonl")) > 1,
        "climbing": lambda: len(run.witness.commands()) > 1 or len(_recoveries(run)) > 1,
        "building": run.environment.exists,
        "checking": (run.environment / RECORD_NAME).exists,
        "stopping again": lambda: _reached(run, "stopping", of=2),
        "starting again": lambda: _reached(run, "stopped", of=2),
        "verifying again": lambda: _reached(run, "started", of=2) and len(run.witness.lines("starts.jsonl")) > 2,
        "over": lambda: any(one["stage"] in ("succeeded", "failed", "refused", "observed") for one in _recoveries(run)),
    }
    try:
        world.wait(came[moment], MOMENT_SECONDS, moment)
    except TimeoutError:
        world.say(f"{moment} did not come")
        return False
    world.say(f"{moment}: {where(run)}")
    return True


def where(run: Run) -> str:
    """How far the run's newest recovery is, in words for the story."""
    recoveries, commands = _recoveries(run), run.witness.commands()
    stage = recoveries[-1]["stage"] if recoveries else "no recovery"
    return f"{stage}, command {commands[-1]['state'] if commands else 'not taken'}"


def _fault_shows(run: Run) -> bool:
    if any(step["ruined"] for step in run.witness.lines("steps.jsonl")) or run.witness.lines("hangs.jsonl"):
        return True
    return not run.witness.trainers()


def _recoveries(run: Run) -> list[dict[str, object]]:
    return run.witness.recoveries()


def _reached(run: Run, state: str, of: int = 1) -> bool:
    """Whether a command, from that one on, is so far."""
    return any(_RANK.index(one["state"]) >= _RANK.index(state) for one in run.witness.commands()[of - 1 :])
