"""What each scenario promises beyond "found, and brought back", and whether it happened. Pure; for :mod:`demo.summary`.

Each promise is a function that returns a sentence where it was broken, else an empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from demo.observation import Observation
from demo.scenarios import RATE, Scenario

GIB = 1024.0**3
CLOSE = 0.02
"""Relative distance up to which a logged rate is the one that was asked for."""


def broken_promise(scenario: Scenario, observation: Observation) -> str:
    """The first promise that was not kept, as a sentence; empty where all were. A recovery has succeeded."""
    kept = (_the_rungs, _the_action, *_OF_SCENARIO.get(scenario.name, ()))
    return next((said for promise in kept if (said := promise(scenario, observation))), "")


def rungs_taken(recoveries: Sequence[Mapping[str, Any]]) -> list[str]:
    """In order; one that was tried again is said once."""
    return [rung for rung, _ in groupby(recovery["rung"] for recovery in recoveries)]


def refused_checkpoints(recovery: Mapping[str, Any]) -> list[str]:
    """What was said, while it was carried out, of checkpoints that might have been taken and were not."""
    told = (line.replace("verl-sentinel: ", "") for line in recovery["output"])
    return [line for line in told if " is refused: " in line and "the newest allowed" not in line]


def steps_lost(observation: Observation, recovery: Mapping[str, Any]) -> int | None:
    """Steps of the failed attempt that the new one had to do again; None where it has logged none."""
    first = observation.first_steps.get(recovery["new_attempt"] or 0)
    last = observation.last_steps.get(recovery["attempt"])
    return None if first is None or last is None else last + 1 - first[0]


def _the_rungs(scenario: Scenario, observation: Observation) -> str:
    taken = rungs_taken(observation.recoveries)
    if taken != list(scenario.rungs):
        return f"the rungs taken were {', '.join(taken)}; promised were {', '.join(scenario.rungs)}"
    return ""


def _the_action(scenario: Scenario, observation: Observation) -> str:
    other = next((one["action"] for one in observation.recoveries if one["action"] != scenario.action), None)
    return "" if other is None else f"a {other} was done; promised was a {scenario.action}"


def _the_rate_took_effect(scenario: Scenario, observation: Observation) -> str:
    recovery = observation.recoveries[-1]
    wanted = next((one["new"] for one in recovery["changes"] if one["name"] == RATE), None)
    if wanted is None:
        return f"the configuration's {RATE} was not changed"
    proof = next((one for one in reversed(recovery["proofs"]) if one["name"] == RATE), None)
    if proof is None or not proof["ok"]:
        why = "there is no word of it" if proof is None else proof["reason"]
        return f"the changed {RATE} was not proved to be in effect: {why}"
    logged = observation.rates.get(recovery["new_attempt"])
    if logged is None or abs(logged - float(wanted)) > CLOSE * float(wanted):
        return f"the trainer logs a rate of {logged}, and {wanted} was set"
    return ""


def _the_version_is_back(scenario: Scenario, observation: Observation) -> str:
    recovery = observation.recoveries[-1]
    before, broken = observation.versions.get(1), observation.versions.get(2)
    now = observation.versions.get(recovery["new_attempt"])
    if not before or before == broken:
        return f"the run was not moved to another version: it ran on verl {before}, then on {broken}"
    return "" if now == before else f"the run is on verl {now}; the last that ran healthy is {before}"


def _the_config_rung_was_considered(scenario: Scenario, observation: Observation) -> str:
    considered = [one for recovery in observation.recoveries for one in recovery["considered"]]
    passed = any(one["rung"] == "config" and not one["taken"] for one in considered)
    return "" if passed else "it was not recorded that the configuration had nothing to change"


def _the_damage_was_named(scenario: Scenario, observation: Observation) -> str:
    damaged = (observation.fault or {}).get("damaged", "")
    if not damaged:
        return "no checkpoint was damaged"
    step = int(damaged.split("/")[0].removeprefix("global_step_"))
    recovery = observation.recoveries[-1]
    if recovery["target_step"] is None or recovery["target_step"] >= step:
        return f"the checkpoint of step {step} is damaged, and the run went back to {recovery['target_step']}"
    named = any(f"step {step}" in line or f"global_step_{step}" in line for line in refused_checkpoints(recovery))
    return "" if named else f"the damaged checkpoint of step {step} was not named"


def _nothing_was_lost(scenario: Scenario, observation: Observation) -> str:
    recovery = observation.recoveries[-1]
    lost = steps_lost(observation, recovery)
    if lost != 0:
        return f"{lost} steps were lost in the restart"
    held, limit = observation.most_memory / GIB, scenario.memory_limit_gib or 0
    if held >= limit:
        return f"the run held {held:.1f} GiB before it was restarted, and it may hold {limit}"
    return ""


Promise = Callable[[Scenario, Observation], str]

_OF_SCENARIO: Mapping[str, tuple[Promise, ...]] = {
    "bad_config": (_the_rate_took_effect,),
    "bad_version": (_the_version_is_back, _the_config_rung_was_considered),
    "corrupt_checkpoint": (_the_damage_was_named,),
    "memory_leak": (_nothing_was_lost,),
}
