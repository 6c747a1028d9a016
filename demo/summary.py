"""Turns what was observed of a demo run into a timeline, a verdict and ``summary.json``. Pure; for :mod:`demo.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.scenarios import Scenario


@dataclass
class Observation:
    """Everything that the verdict needs, as plain data. Times are Unix seconds."""

    started: float
    verl_version: str = ""
    fault: Mapping[str, Any] | None = None
    """What the injected fault wrote of itself: ``time``, ``step``."""
    incidents: Sequence[Mapping[str, Any]] = ()
    """As ``GET /api/v1/incidents`` gives them."""
    recoveries: Sequence[Mapping[str, Any]] = ()
    """As ``GET /api/v1/recoveries`` gives them."""
    alert_active: float | None = None
    """When Prometheus first held an alert with ``action="rollback"`` of this run for firing; None in the fast path."""
    first_steps: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Attempt -> (number, time) of the first step that it logged."""
    last_step: int = 0
    trainer_exit_code: int | None = None
    """Exit code of the supervisor where the training ended by itself."""
    interrupted: bool = False
    problem: str = ""
    """A sentence where the demo could not go on."""


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
    """A page is false before the fault, in an attempt after the broken one, or where there was no fault at all."""
    if observation.fault is None:
        return True
    return bool(page["paged_at"] < observation.fault["time"] or page["attempt"] > 1)


def conclude(scenario: Scenario, observation: Observation) -> Result:
    """Judge a run by what its scenario promises."""
    false_pages = [page for page in pages(observation) if is_false(page, observation)]
    true_pages = [page for page in pages(observation) if not is_false(page, observation)]
    first = min(true_pages, key=lambda page: page["paged_at"], default=None)
    told = first if scenario.recovers else finding(scenario, observation)
    recovery = next(iter(observation.recoveries), None)
    times: Mapping[str, Any] = recovery["times"] if recovery else {}
    outcome = _outcome(scenario, observation, told, recovery, false_pages)
    ok = outcome in ("recovered", "found", "healthy")

    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else round(end - begin, 3)

    alert_received = times.get("alert_received")
    resumed_step, resumed_at = (
        observation.first_steps.get(recovery.get("new_attempt") or 0, (None, None))
        if recovery
        else (
            None,
            None,
        )
    )
    named = true_pages if scenario.recovers or told is None else [*true_pages, told]
    summary = {
        "scenario": scenario.name,
        "verl_version": observation.verl_version,
        "fault_step": observation.fault["step"] if observation.fault else None,
        "detected_step": told["paged_step" if scenario.recovers else "first_step"] if told else None,
        "detected_by": sorted({f"{i['detector']}/{i['signal']}" for i in named}),
        "alert_seconds": between(first["paged_at"] if first else None, alert_received),
        "action": recovery["action"] if recovery else None,
        "target_step": recovery["target_step"] if recovery else None,
        "resumed_step": resumed_step,
        "recovery_seconds": between(alert_received, times.get("first_healthy_step")),
        "trainer_start_seconds": between(times.get("started"), resumed_at),
        "outcome": outcome,
        "false_pages": len(false_pages),
        "steps": observation.last_step,
    }
    return Result(
        ok=ok, outcome=outcome, timeline=tuple(_timeline(scenario, observation, told, recovery)), summary=summary
    )


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
    if scenario.fault_step is None:
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
    if false_pages:
        return f"{len(false_pages)} false page(s), the first: {false_pages[0]['summary']}"
    return "recovered"


def _timeline(
    scenario: Scenario,
    observation: Observation,
    first: Mapping[str, Any] | None,
    recovery: Mapping[str, Any] | None,
) -> list[Moment]:
    fault = observation.fault
    origin = fault["time"] if fault else observation.started

    def moment(name: str, at: float | None, note: str = "") -> Moment:
        return Moment(name, None if at is None else at - origin, note)

    if scenario.fault_step is None:
        return [moment("training", observation.started, f"{observation.last_step} steps")]
    moments = [
        moment("fault", fault["time"], f"step {fault['step']}") if fault else moment("fault", None),
        moment("first verdict", first["paged_at"] or first["opened_at"], first["summary"])
        if first
        else moment("first verdict", None),
        moment("alert firing", observation.alert_active, "in Prometheus" if observation.alert_active else ""),
    ]
    if not scenario.recovers:
        return moments
    if recovery is None:
        return [*moments, *(moment(name, None) for name in ("webhook received", "plan", "stop", "restart"))]
    times = recovery["times"]
    target, resumed = recovery["target_step"], observation.first_steps.get(recovery["new_attempt"] or 0)
    return [
        *moments,
        moment("webhook received", times["alert_received"]),
        moment("plan", times["planned"], recovery["reason"]),
        moment("stop", times["stopping"], _stop_note(times)),
        moment("restart", times["started"], "" if target is None else f"from the checkpoint of step {target}"),
        moment("first healthy step", times["first_healthy_step"], f"step {resumed[0]}" if resumed else ""),
        moment("recovered", times["succeeded"], f"{recovery['healthy_steps']} healthy steps"),
    ]


def _stop_note(times: Mapping[str, Any]) -> str:
    stopping, stopped = times.get("stopping"), times.get("stopped")
    return f"took {stopped - stopping:.1f} s" if stopping is not None and stopped is not None else ""
