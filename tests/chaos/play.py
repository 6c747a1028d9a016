"""Plays one scenario and says how it ended. Called by ``python -m tests.chaos`` and by the tests."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import moments, programs
from tests.chaos.moments import Moment
from tests.chaos.verdict import End, settled
from tests.chaos.world import Interrupted, World

RECOVERED: frozenset[End] = frozenset({"recovered"})
ANY_END: frozenset[End] = frozenset({"recovered", "stopped", "observed"})
NOT_RECOVERED: frozenset[End] = frozenset({"stopped", "observed"})
PATIENCE_SECONDS = 100.0


@dataclass(frozen=True)
class Act:
    """At that moment of the recovery (or that many seconds after the act before), do that."""

    when: Moment | float
    do: Callable[[World], object]


@dataclass(frozen=True)
class Scenario:
    """A fault, and what else goes wrong. ``ends`` are the end states that it may have."""

    name: str
    what: str
    acts: tuple[Act, ...]
    fault: str = "nan"
    ends: frozenset[End] = ANY_END
    runs: int = 1
    recovery: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    small_disks: frozenset[str] = frozenset()
    own_clock: bool = False
    patience: float = PATIENCE_SECONDS
    after: Callable[[World], str] | None = None
    """Looks at the world once it is settled; a sentence is one more breach."""


@dataclass(frozen=True)
class Result:
    """How one scenario ended. ``ok``: in an end state that it may have, with no invariant broken."""

    name: str
    end: str
    ok: bool
    seconds: float
    breaches: tuple[str, ...]
    why: str
    story: tuple[str, ...]
    skipped: str = ""
    folder: str = ""


def play(scenario: Scenario, *, keep: bool = False, interrupted: threading.Event | None = None) -> Result:
    """Play it in a folder of its own, which stays only with ``keep`` and where it did not end well."""
    began = time.monotonic()
    if (reason := missing(scenario)) != "":
        return Result(scenario.name, "skipped", True, 0.0, (), reason, (), skipped=reason)
    out = Path(tempfile.mkdtemp(prefix="chaos-" + re.sub(r"[^a-z0-9]+", "-", scenario.name[:40]) + "-"))
    end, why = "undecided", ""
    breaches: list[str] = []
    story: list[str] = []
    world: World | None = None
    try:
        world = World(
            out,
            runs=scenario.runs,
            recovery=scenario.recovery,
            words=scenario.words,
            small_disks=scenario.small_disks,
            own_clock=scenario.own_clock,
            interrupted=interrupted,
        )
        world.start()
        for run in world.runs:
            if scenario.fault:
                run.inject(scenario.fault)
        world.say(f"the fault: {scenario.fault or 'none'}")
        for act in scenario.acts:
            if isinstance(act.when, str):
                moments.wait_for(world, world.run, act.when)
            else:
                until = time.monotonic() + act.when
                world.wait(lambda until=until: time.monotonic() > until, act.when + 60, "the next act")  # type: ignore[misc]
            act.do(world)
        ends = [settled(world, run, scenario.patience) for run in world.runs]
        # Of two runs the worse end is the scenario's.
        order = ("recovered", "observed", "stopped", "undecided")
        end = max((one.end for one in ends), key=order.index)
        why = "; ".join(one.why for one in ends)
        world.say(f"{end}: {why}")
        if scenario.after is not None and (sentence := scenario.after(world)):
            breaches.append(sentence)
    except (TimeoutError, AssertionError) as error:
        why = str(error)
    except Interrupted:
        why = "interrupted"
        raise
    except Exception:  # noqa: BLE001 - one scenario that cannot be played says so, and the others go on
        why = traceback.format_exc()
    finally:
        if world is not None:
            world.close()
            breaches += [sentence for run in world.runs for sentence in run.witness.breaches]
            story = world.story
    ok = end in scenario.ends and not breaches
    if ok and not keep:
        shutil.rmtree(out, ignore_errors=True)
    seconds = time.monotonic() - began
    folder = "" if ok and not keep else str(out)
    return Result(scenario.name, end, ok, seconds, tuple(breaches), why, tuple(story), folder=folder)


def missing(scenario: Scenario) -> str:
    """Why this machine cannot play it; empty where it can."""
    if scenario.own_clock and not programs.FAKETIME:
        return "libfaketime is not installed (Debian's package faketime)"
    if scenario.small_disks and not programs.may_mount():
        return "a small disk needs root, to mount it"
    return ""
