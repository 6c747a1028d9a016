"""Follows one demo run by polling the exporter, as an operator's console would, and tells the display what is new.

Called by :mod:`demo.run`. What it collects is what :mod:`demo.summary` judges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.client import ExporterApi, first_alert
from demo.display import Display, Observed
from demo.observation import Observation
from demo.summary import changed, spelled

_STAGES = {
    "planned": "plan ({rung}): {reason}",
    "commanded": "the command waits for the supervisor: {reason}",
    "stopping": "the supervisor stops the trainer",
    "starting": "the trainer is gone; restarting from checkpoint step {planned_target_step}",
    "verifying": "attempt {new_attempt} runs from step {target_step}; waiting for healthy steps",
    "succeeded": "recovered: {outcome}",
    "failed": "the recovery failed: {outcome}",
    "refused": "recovery refused: {outcome}",
    "aborted": "recovery aborted: {outcome}",
    "awaiting_approval": "plan: {reason}",
    "observed": "observed only: {reason}",
}


class Observer:
    """Polls and remembers.

    Args:
        api: the exporter's read API.
        prometheus_url: None in the fast path.
        fault_file: where the injected fault writes that it has happened.
    """

    def __init__(
        self,
        api: ExporterApi,
        prometheus_url: str | None,
        run_id: str,
        fault_file: Path,
        seen: Observed,
        display: Display,
        observation: Observation,
    ) -> None:
        self._api, self._prometheus_url, self._run_id = api, prometheus_url, run_id
        self._fault_file = fault_file
        self._seen, self._display = seen, display
        self.observation = observation
        self._newest: tuple[float, int] = (0.0, 0)
        self._told: set[tuple[str, ...]] = set()
        self._incidents: dict[tuple[str, int], dict[str, Any]] = {}

    def poll(self) -> None:
        """Look once; cheap enough for several times a second."""
        self._look_for_fault()
        detail = self._api.run(self._run_id)
        if detail is not None:
            self._take_run(detail)
        self._take_recoveries()
        if self._prometheus_url and self.observation.alert_active is None and self.observation.incidents:
            found = first_alert(self._prometheus_url, self._run_id)
            if found is not None:
                self.observation.alert_active = found[1]
                self._tell(("alert",), f"alert {found[0]} fires in Prometheus", "bold red")

    def say(self, sentence: str) -> None:
        """A line that stands out, for whoever watches."""
        self._display.event(sentence, "bold yellow")

    def recovery(self) -> Mapping[str, Any] | None:
        """The newest one."""
        return self.observation.recoveries[-1] if self.observation.recoveries else None

    def _look_for_fault(self) -> None:
        if self.observation.fault is None and self._fault_file.exists():
            try:
                fault = json.loads(self._fault_file.read_text().splitlines()[0])
            except (ValueError, IndexError):
                return  # it is being written
            self.observation.fault = fault
            self._tell(("fault",), f"fault injected at step {fault['step']}: {fault['fault']}", "bold yellow")

    def _take_run(self, detail: Mapping[str, Any]) -> None:
        run = detail["run"]
        seen, observation = self._seen, self.observation
        observation.verl_version = run["verl_version"] or observation.verl_version
        if run["verl_version"]:
            observation.versions[run["attempt"]] = run["verl_version"]
        if run["attempt"] != seen.attempt and run["attempt"]:
            seen.attempt = run["attempt"]
            self._tell(("attempt", str(run["attempt"])), f"attempt {run['attempt']} starts")
        hooks, missing = detail["hooks_in_place"], detail["hooks_missing"]
        if hooks or missing:
            self._tell(
                ("hooks", str(seen.attempt)),
                f"{len(hooks)} of {len(hooks) + len(missing)} hooks in place, verl {observation.verl_version}",
            )
        for step in detail["steps"]:
            if (step["at"], step["step"]) <= self._newest:
                continue
            self._newest = (step["at"], step["step"])
            if step["step"] == 0:
                continue  # verl's validation before training
            observation.first_steps = {step["attempt"]: (step["step"], step["at"]), **observation.first_steps}
            seen.take_step(step["step"], {name: float(value) for name, value in step["signals"].items()})
            observation.last_step = observation.last_steps[step["attempt"]] = step["step"]
            if "lr" in step["signals"]:
                observation.rates[step["attempt"]] = float(step["signals"]["lr"])
            held = float(step["signals"].get("run_memory", 0.0))
            observation.most_memory = max(held, observation.most_memory)
            self._display.stepped()
        phases = run["open_phases"]
        inner = min(phases, key=phases.__getitem__, default="")
        seen.phase = f"{inner} for {phases[inner]:.0f} s" if inner and phases[inner] >= 3 else inner
        seen.state = "running" if run["running"] else (run["exit_summary"] or "not running")
        if run["exit_summary"]:
            self._tell(("exit", str(run["attempt"])), run["exit_summary"])
        for incident in sorted(detail["incidents"], key=lambda one: float(one["opened_at"])):
            self._keep(incident)
            style = {"critical": "red", "warning": "yellow"}.get(incident["severity"], "")
            self._tell(
                ("incident", incident["id"], str(incident["attempt"]), incident["severity"]),
                f"{incident['severity']}: {incident['summary']}",
                style,
            )

    def _keep(self, incident: dict[str, Any]) -> None:
        """An incident that comes back in a later attempt is another one here, and what it said first stays."""
        known = self._incidents.get((incident["id"], incident["attempt"]))
        if known is not None and known["paged_at"] is not None:
            incident |= {name: known[name] for name in ("summary", "paged_at", "paged_step")}
        self._incidents[incident["id"], incident["attempt"]] = incident
        self.observation.incidents = list(self._incidents.values())

    def _take_recoveries(self) -> None:
        self.observation.recoveries = [
            entry for entry in self._api.recoveries() if entry["run_id"] == self._run_id
        ] or self.observation.recoveries
        for entry in self.observation.recoveries:
            sentence = _STAGES.get(entry["stage"])
            if entry["stage"] == "starting" and entry["action"] == "restart":
                sentence = "the trainer has saved and is gone; restarting from what it saved"
            if sentence is not None:
                style = {"succeeded": "bold green", "failed": "bold red"}.get(entry["stage"], "cyan")
                self._tell(("recovery", entry["id"], entry["stage"]), sentence.format_map(entry), style)
                for change in changed(entry):
                    self._tell(
                        ("change", entry["id"], change["name"]), f"{entry['rung']} rung, {spelled(change)}", "cyan"
                    )
            for proof in entry["proofs"]:
                said = f"{proof['name']} is {proof['found']} where it acts; the checkpoint had {proof['restored']}"
                self._tell(
                    ("proof", entry["id"], proof["name"], str(proof["ok"])),
                    said if proof["ok"] else f"{proof['name']} did not take effect: {proof['reason']}",
                    "bold green" if proof["ok"] else "bold red",
                )

    def _tell(self, key: tuple[str, ...], sentence: str, style: str = "") -> None:
        if key not in self._told:
            self._told.add(key)
            self._display.event(sentence, style)
