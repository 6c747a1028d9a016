"""Between the runs under watch and the recovery engine: what it is told, and what its recoveries mean for incidents.

Called by the core. A recovery store that cannot be written stops no ingest: it is logged, it makes the exporter not
ready, and what the engine has to hear waits in order until it can be told; after a restart, out of the journal.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from exporter.incidents import Change, Incident
from exporter.protocol import Abort, Command, CommandProgress, SettingApplied
from exporter.recovery.engine import RecoveryEngine
from exporter.recovery.facts import RunFacts
from exporter.recovery.policies import place_of
from exporter.recovery.record import RunState
from exporter.service.entries import Mark
from exporter.service.reports import AttemptReport, Report, StepDone
from exporter.service.stable_config import StableConfigs
from exporter.service.watch import WatchedRun, open_incident

log = logging.getLogger("exporter.recovery")

MOST_WAITING = 10_000
"""Reports that wait for the engine. Beyond it healthy steps are left out: they only say how far a recovery has proved
itself, and the next ones say it too."""

WORSE = ("opened", "escalated", "reopened")
"""Changes of an incident that the engine hears of."""

MITIGATING_STAGES = ("commanded", "stopping", "starting", "verifying")


class RecoveryLink:
    """Speaks to one engine."""

    def __init__(self, engine: RecoveryEngine) -> None:
        self._engine = engine
        self.error = ""
        """Why the recovery store cannot be used; empty while it can."""
        self.stable_configs = StableConfigs(engine.policies.git_sources())
        """Read by a thread of the app's."""
        self.again = False
        """While the journal is read at a start."""
        self._untold: deque[tuple[WatchedRun, Report, float]] = deque()

    @property
    def waits(self) -> bool:
        """Whether there is something that the engine has not been told. What a snapshot covers is not told again."""
        return bool(self._untold)

    def tell(self, run: WatchedRun, reports: Iterable[Report], now: float) -> bool:
        """Tell the engine what happened, in order; whether it knows everything now."""
        for report in reports:
            if isinstance(report, Change):
                self._say(report)
                if report.what not in WORSE:
                    continue
            if len(self._untold) < MOST_WAITING or not (isinstance(report, StepDone) and report.healthy):
                self._untold.append((run, report, now))
        return self._tell_what_waits()

    def _say(self, change: Change) -> None:
        it = change.after
        text = it.resolution if change.what == "resolved" else it.summary
        # What is told again at a start was said when it happened.
        level = logging.INFO if change.what == "resolved" or self.again else logging.WARNING
        again = ", told again at the start" if self.again else ""
        log.log(level, "Incident %s %s (%s)%s: %s", it.id, change.what, it.severity.label, again, text)

    def facts_of(self, run: WatchedRun) -> RunFacts:
        """The run as recovery sees it, with the configuration in git that its policy names."""
        facts = run.facts()
        git = self._engine.policy_of(facts).config.git
        return facts if git is None else replace(facts, stable_config=self.stable_configs.of(place_of(git)))

    def _tell_what_waits(self) -> bool:
        while self._untold:
            run, report, at = waiting = self._untold.popleft()
            try:
                self._tell_one(run, report, at)
            except sqlite3.Error as error:
                self._untold.appendleft(waiting)
                self._failed(error)
                return False
        return True

    def _tell_one(self, run: WatchedRun, report: Report, now: float) -> None:
        run_id, facts = run.state.run_id, partial(self.facts_of, run)
        if isinstance(report, StepDone):
            self._engine.on_step(run_id, report.attempt, report.step, report.healthy, now, facts, report.why)
        elif isinstance(report, AttemptReport):
            self._engine.on_attempt(run_id, report.event, report.attempt, now, facts)
        elif isinstance(report, CommandProgress):
            self._engine.on_progress(run_id, report, now, facts)
        elif isinstance(report, SettingApplied):
            self._engine.on_setting_applied(run_id, run.state.attempt, report, now, facts)
        else:
            self._engine.on_incident(open_incident(report.after), facts(), now)

    def asked(self, run_id: str, now: float) -> tuple[Command | None, Abort | None]:
        """The command for the supervisor of the run, and what it is to give up, if anything."""
        try:
            return self._engine.pending_command(run_id, now), self._engine.pending_abort(run_id)
        except sqlite3.Error as error:
            self._failed(error)
            return None, None

    def note_acknowledged(self, incident: Incident, now: float) -> None:
        """The audit log says who has seen an incident; that it is acknowledged is in the journal already."""
        try:
            self._engine.note_acknowledged(incident.run_id, incident.id, incident.acknowledged_by, now)
        except sqlite3.Error as error:
            self._failed(error)

    def tick(self, runs: Mapping[str, WatchedRun], now: float) -> None:
        """Let the engine go on, once a second; of most runs it needs to know nothing."""
        if not self._tell_what_waits():
            return
        try:
            concerned = self._engine.concerned()
            self._engine.tick({run_id: self.facts_of(runs[run_id]) for run_id in concerned if run_id in runs}, now)
        except sqlite3.Error as error:
            self._failed(error)
        else:
            self.error = ""

    def state_of(self, run_id: str) -> RunState | None:
        """What is to be shown of a run's recoveries; None where the store cannot be read."""
        try:
            return self._engine.state_of(run_id)
        except sqlite3.Error as error:
            self._failed(error)
            return None

    def holds(self, run_id: str) -> bool:
        """Whether a recovery of the run is under way, or failed and waits for a person to take note."""
        state = self.state_of(run_id)
        return state is not None and (state.failed or state.active is not None)

    def marks(self, run: WatchedRun) -> list[Mark]:
        """What has to happen to the run's incidents so that they agree with its recoveries.

        They are mitigating while a recovery works on them. When it has succeeded, they are resolved, and with them
        whatever else was open on the weights that are gone; when it has not, they are open again.
        """
        incidents = list(run.book)
        state = self.state_of(run.state.run_id) if incidents else None
        if state is None:
            return []
        active, last = state.active, state.last
        if active is not None and active.stage in MITIGATING_STAGES:
            keys = active.incident_keys
            theirs = [i.id for i in incidents if i.state != "mitigating" and open_incident(i).key in keys]
            return [Mark(action="mitigate", incidents=theirs, who=active.id)] if theirs else []
        marks = []
        stages = {i.id: self._stage(i.recovery_id) for i in incidents if i.state == "mitigating"}
        left = [incident_id for incident_id, stage in stages.items() if stage != "succeeded"]
        if left:
            marks.append(Mark(action="give_back", incidents=left))
        won: dict[str, list[str]] = {}
        finished = (last.times.finished or 0.0) if last is not None and last.stage == "succeeded" else -1.0
        for i in incidents:
            if stages.get(i.id) == "succeeded":
                # By its own recovery, which need not be the last: the next one may have begun within the second.
                won.setdefault(i.recovery_id, []).append(i.id)
            elif last is not None and i.id not in stages and i.attempt < run.state.attempt and i.updated_at <= finished:
                won.setdefault(last.id, []).append(i.id)
        return [*marks, *(_recovered(recovery_id, theirs) for recovery_id, theirs in won.items())]

    def _stage(self, recovery_id: str) -> str:
        try:
            recovery = self._engine.get(recovery_id) if recovery_id else None
            while recovery is not None and recovery.climbed_to:
                # Its incidents are those of the one that goes on in its place.
                recovery = self._engine.get(recovery.climbed_to)
        except sqlite3.Error as error:
            self._failed(error)
            return ""
        return recovery.stage if recovery is not None else ""

    def _failed(self, error: sqlite3.Error) -> None:
        why = f"The recovery store cannot be used: {error}."
        if why != self.error:
            # Once, and not for each push: the log is on a disk too.
            log.error("%s What the engine has to hear waits until it can.", why)
        self.error = why


def _recovered(recovery_id: str, incidents: list[str]) -> Mark:
    reason = f"recovery {recovery_id} succeeded"
    return Mark(action="recovered", incidents=incidents, who=recovery_id, reason=reason)
