"""Turns what was observed of a demo run into a timeline, a verdict and ``summary.json``. Pure; for :mod:`demo.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.observation import Observation
from demo.promises import broken_promise, refused_checkpoints, steps_lost
from demo.scenarios import Scenario


@dataclass(frozen=True)
class Moment:
    """One line of the timeline; ``seconds`` since the fault (of a healthy run: its start), None if it never came."""

    name: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True)
class Result:
    """What the demo concludes: its exit code is 0 if and only if ``ok``."""

    ok: bool
    outcome: str
    """``recovered``, ``found``, ``healthy``, ``interrupted``, or a sentence that says what did not happen."""
    timeline: tuple[Moment, ...]
    summary: Mapping[str, Any]


def pages(observation: Observation) -> list[Mapping[str, Any]]:
    """The incidents that woke somebody up."""
    return [incident for incident in observation.incidents if incident["paged_at"] is not None]


def finding(scenario: Scenario, observation: Observation) -> Mapping[str, Any] | None:
    """What one of the scenario's detectors said first after the fault, be it a page or a warning."""
    fault = observation.fault
    if fault is None:
        return None
    right = [
        incident
        for incident in observation.incidents
        if incident["detector"] in scenario.detectors and incident["opened_at"] >= fault["time"]
    ]
    return min(right, key=lambda incident: float(incident["opened_at"]), default=None)


def is_false(page: Mapping[str, Any], observation: Observation) -> bool:
    """A page is false before the fault, in an attempt that no recovery was needed from, or where there was no fault."""
    if observation.fault is None:
        return True
    broken = max((recovery["attempt"] for recovery in observation.recoveries), default=page["attempt"])
    return bool(page["paged_at"] < observation.fault["time"] or page["attempt"] > broken)


def conclude(scenario: Scenario, observation: Observation) -> Result:
    """Judge a run by what its scenario promises."""
    false_pages = [page for page in pages(observation) if is_false(page, observation)]
    true_pages = [page for page in pages(observation) if not is_false(page, observation)]
    # On a busy machine a step may be slow beside, which is true and not the point.
    right = [page for page in true_pages if page["detector"] in scenario.detectors] or true_pages
    first = min(right, key=lambda page: float(page["paged_at"]), default=None)
    told = first if scenario.recovers else finding(scenario, observation)
    recovery = observation.recoveries[-1] if observation.recoveries else None
    outcome = _outcome(scenario, observation, told, recovery, false_pages)
    named = true_pages if scenario.recovers or told is None else [*true_pages, told]
    summary = {
        "scenario": scenario.name,
        "verl_version": observation.verl_version,
        "fault_step": observation.fault["step"] if observation.fault else None,
        "detected_step": told["paged_step" if scenario.recovers else "first_step"] if told else None,
        "detected_by": sorted({f"{i['detector']}/{i['signal']}" for i in named}),
        "alert_seconds": between(
            first["paged_at"] if first else None, _times(observation.recoveries[:1], "alert_received")
        ),
        **_of_recovery(recovery, observation),
        "rungs": [_rung(one, observation) for one in observation.recoveries],
        "outcome": outcome,
        "false_pages": len(false_pages),
        "steps": observation.last_step,
    }
    ok = outcome in ("recovered", "found", "healthy")
    return Result(ok=ok, outcome=outcome, timeline=tuple(_timeline(scenario, observation, told)), summary=summary)


def between(begin: float | None, end: float | None) -> float | None:
    """Seconds, rounded; None where one of the two never came."""
    return None if begin is None or end is None else round(end - begin, 3)


def _times(recoveries: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The time of the first recovery that has one."""
    return next((one["times"][name] for one in recoveries if one["times"].get(name) is not None), None)


def _of_recovery(recovery: Mapping[str, Any] | None, observation: Observation) -> dict[str, Any]:
    """The figures of the recovery that held, or of the last one that was tried."""
    if recovery is None:
        names = ("action", "target_step", "resumed_step", "steps_lost", "recovery_seconds", "trainer_start_seconds")
        return dict.fromkeys(names)
    times = recovery["times"]
    resumed_step, resumed_at = observation.first_steps.get(recovery["new_attempt"] or 0, (None, None))
    # One that follows a recovery that failed answers no alert of its own: it begins when that one did not hold.
    begun = times["planned"] if times["alert_received"] is None else times["alert_received"]
    return {
        "action": recovery["action"],
        "target_step": recovery["target_step"],
        "resumed_step": resumed_step,
        "steps_lost": steps_lost(observation, recovery),
        "recovery_seconds": between(begun, times.get("first_healthy_step")),
        "trainer_start_seconds": between(times.get("started"), resumed_at),
    }


def _rung(recovery: Mapping[str, Any], observation: Observation) -> dict[str, Any]:
    """One rung that was tried: what it changed, what proves that, what was passed over, and how it ended."""
    newest = observation.recoveries[-1]
    return {
        "rung": recovery["rung"],
        "action": recovery["action"],
        "attempt": recovery["new_attempt"],
        "verl_version": observation.versions.get(recovery["new_attempt"] or 0),
        "target_step": recovery["target_step"],
        "changes": {one["name"]: [one["old"], one["new"]] for one in changed(recovery)},
        "proofs": [
            {name: proof[name] for name in ("name", "wanted", "restored", "found", "ok")}
            for proof in recovery["proofs"]
        ],
        "learning_rate": observation.rates.get(recovery["new_attempt"] or 0),
        "passed_over": {one["rung"]: one["reason"] for one in recovery["considered"] if not one["taken"]},
        "refused_checkpoints": refused_checkpoints(recovery),
        "held": recovery is newest and recovery["stage"] == "succeeded",
        "outcome": recovery["outcome"],
    }


_OF_EVERY_ROLLBACK = ("attempt", "first_step", "trainer.resume_mode", "trainer.resume_from_path")


def changed(recovery: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is different in the next attempt, beside that it is the next and where it begins."""
    return [one for one in recovery["changes"] if one["name"] not in _OF_EVERY_ROLLBACK]


def spelled(change: Mapping[str, Any]) -> str:
    """One change as a person reads it.

    >>> spelled({"name": "a.optim.lr", "kind": "setting", "old": 0.01, "new": 0.0001, "known": True})
    'a.optim.lr: 0.01 -> 0.0001'
    """
    old = change["old"] if change["known"] else "?"
    new = "(removed)" if change["kind"] == "removed" else change["new"]
    return f"{change['name']}: {old} -> {new}"


def _outcome(
    scenario: Scenario,
    observation: Observation,
    first: Mapping[str, Any] | None,
    recovery: Mapping[str, Any] | None,
    false_pages: Sequence[Mapping[str, Any]],
) -> str:
    if observation.interrupted:
        return "interrupted"
    if observation.problem:
        return observation.problem
    if not scenario.goes_wrong:
        if recovery is not None:
            return f"a recovery was planned in a run without a fault: {recovery['reason']}"
        if false_pages:
            return f"{len(false_pages)} page(s) in a run without a fault, the first: {false_pages[0]['summary']}"
        if observation.trainer_exit_code != 0:
            return f"the training did not end well: exit code {observation.trainer_exit_code}"
        if observation.last_step < scenario.steps:
            return f"the training ended at step {observation.last_step} of {scenario.steps}"
        return "healthy"
    if observation.fault is None:
        return "the fault did not happen: the training ended before its step"
    if not scenario.recovers:
        if first is None:
            return "the fault was not found"
        return f"{len(false_pages)} false page(s), the first: {false_pages[0]['summary']}" if false_pages else "found"
    if first is None:
        return "the fault was not detected"
    if first["detector"] not in scenario.detectors and not any(
        page["detector"] in scenario.detectors for page in pages(observation)
    ):
        return f"the fault was taken for something else: {first['detector']}"
    if recovery is None:
        return "no recovery was planned"
    if recovery["stage"] != "succeeded":
        return f"the recovery did not succeed ({recovery['stage']}): {recovery['outcome'] or recovery['reason']}"
    if broken := broken_promise(scenario, observation):
        return broken
    return f"{len(false_pages)} false page(s), the first: {false_pages[0]['summary']}" if false_pages else "recovered"


def _timeline(scenario: Scenario, observation: Observation, first: Mapping[str, Any] | None) -> list[Moment]:
    fault = observation.fault
    origin = fault["time"] if fault else observation.started

    def moment(name: str, at: float | None, note: str = "") -> Moment:
        return Moment(name, None if at is None else at - origin, note)

    if not scenario.goes_wrong:
        return [moment("training", observation.started, f"{observation.last_step} steps")]
    moments = [
        moment(_BEGINS.get(scenario.name, "fault"), fault["time"] if fault else None, _step(fault)),
        moment("first verdict", first["paged_at"] or first["opened_at"], first["summary"])
        if first
        else moment("first verdict", None),
        moment("alert firing", observation.alert_active, "in Prometheus" if observation.alert_active else ""),
    ]
    if not scenario.recovers:
        return moments
    if not observation.recoveries:
        return [*moments, *(moment(name, None) for name in ("webhook received", "plan", "stop", "restart"))]
    moments.append(moment("webhook received", _times(observation.recoveries, "alert_received")))
    several = len(observation.recoveries) > 1
    for number, recovery in enumerate(observation.recoveries):
        label = f"{recovery['rung']}: " if several else ""
        last = number + 1 == len(observation.recoveries)
        moments += [
            moment(label + name, at, note) for name, at, note in _recovery_moments(recovery, observation, last=last)
        ]
    return moments


_BEGINS = {"bad_config": "bad configuration", "bad_version": "newer version"}


def _step(fault: Mapping[str, Any] | None) -> str:
    if fault is None:
        return ""
    return f"step {fault['step']}" + (f"; damaged: {fault['damaged']}" if fault.get("damaged") else "")


def _recovery_moments(
    recovery: Mapping[str, Any], observation: Observation, *, last: bool
) -> list[tuple[str, float | None, str]]:
    times, target = recovery["times"], recovery["target_step"]
    resumed = observation.first_steps.get(recovery["new_attempt"] or 0)
    found = [("plan", times["planned"], recovery["reason"])]
    found += [
        ("passed over", times["planned"], _passed_over(one)) for one in recovery["considered"] if not one["taken"]
    ]
    found += [("change", times["planned"], spelled(change)) for change in changed(recovery)]
    found.append(("stop", times["stopping"], _stop_note(times)))
    found += [("refused", times["started"], line) for line in refused_checkpoints(recovery)]
    found.append(("restart", times["started"], "" if target is None else f"from the checkpoint of step {target}"))
    found += [("proof", proof["at"], _proof(proof)) for proof in recovery["proofs"]]
    found.append(("first healthy step", times["first_healthy_step"], f"step {resumed[0]}" if resumed else ""))
    if recovery["stage"] == "succeeded":
        note = f"{recovery['healthy_steps']} healthy steps" + ("" if last else ", and then the failure came back")
        return [*found, ("recovered" if last else "held for now", times["succeeded"], note)]
    return [
        *found,
        ("recovered" if last else "did not hold", times["succeeded" if last else "finished"], recovery["outcome"]),
    ]


def _passed_over(considered: Mapping[str, Any]) -> str:
    return f"{considered['rung']}: {considered['reason']}"


def _proof(proof: Mapping[str, Any]) -> str:
    values = f"wanted {proof['wanted']}, the checkpoint brought {proof['restored']}, in effect {proof['found']}"
    said = f"{proof['name']}: {values}"
    return said if proof["ok"] else f"{said}: {proof['reason']}"


def _stop_note(times: Mapping[str, Any]) -> str:
    stopping, stopped = times.get("stopping"), times.get("stopped")
    return f"took {stopped - stopping:.1f} s" if stopping is not None and stopped is not None else ""
