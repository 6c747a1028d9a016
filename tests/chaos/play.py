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
from tests.chaos.verdict import End, Verdict, settled
from tests.chaos.world import Interrupted, World

RECOVERED: frozenset[End] = frozenset({"recovered"})
ANY_END: frozenset[End] = frozenset({"recovered", "stopped", "observed"})
NOT_RECOVERED: frozenset[End] = frozenset({"stopped", "observed"})
PATIENCE_SECONDS = 150.0


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
    """Play it in a folder of its own, which stays only with ``keep`` and where it did not end well.

    Raises ``Interrupted``, with everything ended and the folder removed.
    """
    began = time.monotonic()
    if (reason := missing(scenario)) != "":
        return Result(scenario.name, "skipped", True, 0.0, (), reason, (), skipped=reason)
    out = Path(tempfile.mkdtemp(prefix="chaos-" + re.sub(r"[^a-z0-9]+", "-", scenario.name[:40]) + "-"))
    world = World(
        out,
        runs=scenario.runs,
        recovery=scenario.recovery,
        words=scenario.words,
        small_disks=scenario.small_disks,
        own_clock=scenario.own_clock,
        interrupted=interrupted,
    )
    breaches: list[str] = []
    try:
        verdict = _played(scenario, world)
        if scenario.after is not None and verdict.end != "undecided" and (sentence := scenario.after(world)):
            breaches.append(sentence)
    except Interrupted:
        world.close()
        shutil.rmtree(out, ignore_errors=True)
        raise
    except (TimeoutError, AssertionError) as error:
        verdict = Verdict("undecided", str(error))
    except Exception:  # noqa: BLE001 - one scenario that cannot be played says so, and the others go on
        verdict = Verdict("undecided", traceback.format_exc())
    finally:
        world.close()
    breaches += [sentence for run in world.runs for sentence in run.witness.breaches]
    ok = verdict.end in scenario.ends and not breaches
    if ok and not keep:
        shutil.rmtree(out, ignore_errors=True)
    return Result(
        scenario.name,
        verdict.end,
        ok,
        time.monotonic() - began,
        tuple(breaches),
        verdict.why,
        tuple(world.story),
        folder=str(out) if out.exists() else "",
    )


def _played(scenario: Scenario, world: World) -> Verdict:
    world.start()
    for run in world.runs:
        if scenario.fault:
            run.inject(scenario.fault, *(range(1, 40) if scenario.fault in ("rate", "version") else (1,)))
    world.say(f"the fault: {scenario.fault or 'none'}")
    for act in scenario.acts:
        if isinstance(act.when, str):
            moments.wait_for(world, world.run, act.when)
        else:
            world.pause(act.when)
        act.do(world)
    verdicts = [settled(world, run, scenario.patience) for run in world.runs]
    # Of two runs the worse end is the scenario's.
    order = ("recovered", "observed", "stopped", "undecided")
    worst = max((one.end for one in verdicts), key=order.index)
    why = "; ".join(one.why for one in verdicts)
    world.say(f"{worst}: {why}")
    return Verdict(worst, why)


def missing(scenario: Scenario) -> str:
    """Why this machine cannot play it; empty where it can."""
    if scenario.own_clock and not programs.FAKETIME:
        return "libfaketime is not installed (Debian's package faketime)"
    if scenario.small_disks and not programs.may_mount():
        return "a small disk needs root, to mount it"
    return ""
