"""The recovery engine: takes alerts and reports, keeps one durable recovery a run, hands out its command.

Called by ``exporter.service`` (webhook, ingest, push answer, operator API) and by the app's one-second tick. It has no
clock: every call brings ``now`` in Unix seconds of the exporter's clock. Every call is one transaction and idempotent,
so the journal may be replayed into it after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from exporter.protocol import Abort, AttemptExited, AttemptStarted, Command, CommandProgress, SettingApplied
from exporter.recovery import aborting, approving, late
from exporter.recovery import progress as stages
from exporter.recovery.approving import WrongStage
from exporter.recovery.climbing import Climb, climb, with_end
from exporter.recovery.evidence import describe, gather, incident_data
from exporter.recovery.facts import Alert, OpenIncident, RunFacts
from exporter.recovery.judging import AlertJudge
from exporter.recovery.plan import made_anew
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.readings import Readings
from exporter.recovery.record import COMMANDED, Decision, Recovery, difference
from exporter.recovery.sentences import kind, summary
from exporter.recovery.store import RecoveryStore

BLIND_SECONDS = 30.0
"""A longer pause between two ticks means that this process, or its machine, was stopped, or that the clock was set."""

__all__ = ["BLIND_SECONDS", "RecoveryEngine", "WrongStage"]

FactsNow = Callable[[], RunFacts] | None
"""Gives the facts of the run that is reported on; asked only where a recovery fails, to see what follows it. Without
them nothing follows."""


class RecoveryEngine(Readings):
    """Thread-safe; no method blocks for longer than one SQLite transaction."""

    def __init__(self, store: RecoveryStore, policy: RecoveryPolicy) -> None:
        super().__init__(store, policy)
        self._judge = AlertJudge(store, self._policies)
        self._watching_since: float | None = None
        self._ticked = 0.0

    def on_alert(self, alert: Alert, facts: RunFacts | None, now: float) -> Decision:
        """One alert of a webhook; ``facts`` is None for a run that the exporter does not know. Answer 2xx after it."""
        with self._lock, self._store.transaction():
            return self._judge.judge(alert, facts, now)

    def on_incident(self, incident: OpenIncident, facts: RunFacts, now: float) -> Decision | None:
        """An incident was opened or became worse.

        In direct mode it triggers as an alert would, and the answer is its decision. Otherwise alerts that wait for a
        second signal are judged again, and the answer is None.
        """
        with self._lock, self._store.transaction():
            self._fail_on_relapse(facts, now)
            self._lower_target(facts, now)
            policy = self._policies.of(facts)
            if policy.trigger == "direct" and policy.action_for(incident) is not None:
                return self._judge.judge(_own_alert(incident), facts, now)
            self._judge.judge_pending(facts, now)
            return None

    def on_progress(self, run_id: str, progress: CommandProgress, now: float, facts_now: FactsNow = None) -> None:
        """The supervisor says how far it is with a command."""
        with self._lock, self._store.transaction():
            recovery = self._store.get(progress.command_id)
            if recovery is None or recovery.run_id != run_id:
                return
            if recovery.active:
                self._follow(recovery, stages.after_command(recovery, progress, now), facts_now, now)
            elif recovery.stage == "aborted":
                self._move(recovery, aborting.after_command(recovery, progress, now), now)
            elif recovery.given_up:
                self._move(recovery, late.after_command(recovery, progress, now), now)

    def on_attempt(
        self,
        run_id: str,
        event: AttemptStarted | AttemptExited,
        attempt: int,
        now: float,
        facts_now: FactsNow = None,
    ) -> None:
        """The supervisor says that attempt ``attempt`` (of the batch's run) started or exited."""
        with self._lock, self._store.transaction():
            if isinstance(event, AttemptStarted) and event.command_id:
                given_up = self._store.get(event.command_id)
                if given_up is not None and given_up.run_id == run_id and given_up.given_up:
                    self._move(given_up, late.after_start(given_up, event, attempt, now), now)
            recovery = self._store.active(run_id) or self._store.last(run_id)
            if recovery is None or not (recovery.active or recovery.stage == "aborted"):
                return
            rules = stages if recovery.active else aborting
            if isinstance(event, AttemptStarted):
                self._follow(recovery, rules.after_start(recovery, event, attempt, now), facts_now, now)
            else:
                self._follow(recovery, rules.after_exit(recovery, event, attempt, now), facts_now, now)

    def on_setting_applied(
        self, run_id: str, attempt: int, event: SettingApplied, now: float, facts_now: FactsNow = None
    ) -> None:
        """The trainer says that a changed setting is in effect, or is not."""
        with self._lock, self._store.transaction():
            recovery = self._store.active(run_id)
            if recovery is not None:
                self._follow(recovery, stages.after_setting(recovery, event, attempt, now), facts_now, now)

    def on_step(
        self,
        run_id: str,
        attempt: int,
        step: int,
        healthy: bool,
        now: float,
        facts_now: FactsNow = None,
        why: str = "",
    ) -> None:
        """A finished step; ``healthy`` when no step detector's verdict of it is critical, and it is not (``why``) far
        outside of what was usual before. Cheap without a recovery."""
        with self._lock:
            recovery = self._store.active(run_id)
            if recovery is None:
                return
            needed = self._policies.of(recovery).success_steps
            new = stages.after_step(recovery, attempt, step, now, healthy=healthy, needed=needed, why=why)
            with self._store.transaction():
                self._follow(recovery, new, facts_now, now)

    def pending_command(self, run_id: str, now: float) -> Command | None:
        """The command to put into the answer to the supervisor's push (role ``supervisor`` only).

        It is handed out until the supervisor reports its end; its id is the same every time.
        """
        with self._lock:
            recovery = self._store.active(run_id)
            if recovery is None or recovery.stage not in COMMANDED or recovery.command_closed:
                return None
            if recovery.times.command_delivered is None:
                with self._store.transaction():
                    self._move(recovery, stages.at_times(recovery, command_delivered=now), now)
            return recovery.command()

    def pending_abort(self, run_id: str) -> Abort | None:
        """What the supervisor is to give up; handed out until it has reported the end of that command."""
        with self._lock:
            return next((aborting.abort_of(recovery) for recovery in self._store.unanswered_aborts(run_id)), None)

    def approve(self, recovery_id: str, who: str, now: float) -> Recovery:
        """Raises ``KeyError`` for an unknown id, ``WrongStage`` (a sentence) if it does not wait for approval, or not
        for that of ``who``. Where several have to approve, it waits on."""

        return self._operate(
            recovery_id, now, ("awaiting_approval",), lambda recovery: approving.approved(recovery, who, now)
        )

    def refuse(self, recovery_id: str, who: str, now: float) -> Recovery:
        """As :meth:`approve`; nothing is commanded, and the incidents behind it trigger no other recovery."""

        return self._operate(recovery_id, now, ("awaiting_approval",), lambda it: _refused(it, who, now))

    def abort(self, recovery_id: str, who: str, now: float) -> Recovery:
        """Call a recovery off that is under way: nothing further is done for it. Same errors. So may be one that was
        given up because a stage lasted too long, while the supervisor may still carry it out.

        One that waits for approval is refused. Of one that was handed to the supervisor the trainer is left as it is:
        running, or stopped until a person starts it. Asked again, the answer is the same.
        """
        with self._lock:
            known = self._store.get(recovery_id)
            if known is not None and (known.stage == "aborted" or (known.stage == "refused" and known.resolved_by)):
                return known
            if known is not None and known.stage in ("planned", "awaiting_approval"):
                return self._operate(recovery_id, now, (known.stage,), lambda recovery: _refused(recovery, who, now))
            gone_on = known is not None and known.may_still_act
            allowed = ("failed",) if gone_on else (*COMMANDED, "verifying")
            return self._operate(recovery_id, now, allowed, lambda recovery: aborting.aborted(recovery, who, now))

    def acknowledge(self, recovery_id: str, who: str, now: float) -> Recovery:
        """A person has seen that it failed: ``verl_recovery_failed`` goes back to 0. Same errors.

        Of one that was aborted: its attempts are given back, and what is found on them may trigger again.
        """

        def change(recovery: Recovery) -> Recovery:
            return replace(recovery, acknowledged_by=who)

        return self._operate(recovery_id, now, ("failed", "refused", "aborted"), change)

    def tick(self, facts_by_run: Mapping[str, RunFacts], now: float) -> None:
        """Once a second: deadlines, alerts that wait for agreement or cooldown, plans whose incidents are gone.

        ``facts_by_run`` may lack every run that is not :meth:`concerned`.
        """
        with self._lock, self._store.transaction():
            if self._watching_since is None:
                self._watching_since = now
                self._store.forget_alerts(now)
            elif not 0.0 <= now - self._ticked <= BLIND_SECONDS:
                self._watching_since = now
            self._ticked = now
            for recovery in self._store.all_active():
                deadlines = self._policies.of(recovery).deadlines
                new = stages.unproved(recovery, deadlines, self._watching_since, now)
                late = stages.overdue(recovery, deadlines, self._watching_since, now)
                if new is None and late is not None:
                    new = stages.ended(recovery, "failed", late, now, failed_by="overdue")
                known = partial(facts_by_run.__getitem__, recovery.run_id)
                self._follow(recovery, new, known if recovery.run_id in facts_by_run else None, now)
            for recovery in self._store.unanswered_aborts():
                deadlines = self._policies.of(recovery).deadlines
                self._move(recovery, aborting.overdue(recovery, deadlines, self._watching_since, now), now)
            under_way = {recovery.run_id for recovery in self._store.all_active()}
            for facts in facts_by_run.values():
                if facts.run_id in under_way:
                    self._withdraw(facts, now)
                    self._lower_target(facts, now)
                    self._fail_on_relapse(facts, now)
                    self._begin_what_waited(facts, now)
                self._judge.judge_pending(facts, now)

    def note_acknowledged(self, run_id: str, incident_id: str, who: str, now: float) -> None:
        """A person has seen an incident. Raises ``sqlite3.Error``."""
        said = f"{who} acknowledged incident {incident_id}."
        with self._lock, self._store.transaction():
            self._store.note(now, run_id, "", "acknowledged", said, data={"who": who, "incident": incident_id})

    def note_forgotten(self, run_id: str, who: str, now: float) -> None:
        """Somebody removed a run and all that was pushed for it; what was decided about it stays."""
        said = f"{who} removed the run with all that was pushed for it."
        with self._lock, self._store.transaction():
            self._store.note(now, run_id, "", "forgotten", said, data={"who": who})

    def _operate(
        self, recovery_id: str, now: float, stages_allowed: tuple[str, ...], change: Callable[[Recovery], Recovery]
    ) -> Recovery:
        with self._lock, self._store.transaction():
            recovery = self._store.get(recovery_id)
            if recovery is None:
                raise KeyError(recovery_id)
            if recovery.stage not in stages_allowed:
                needed = " or ".join(stage.replace("_", " ") for stage in stages_allowed)
                stage = recovery.stage.replace("_", " ")
                raise WrongStage(f"Recovery {recovery_id} is {stage}; this is only possible while it is {needed}.")
            return self._move(recovery, change(recovery), now)

    def _move(self, old: Recovery, new: Recovery | None, now: float) -> Recovery:
        """Store the next record with its audit line. None, or what changes nothing, leaves both alone."""
        if new is None or new == old:
            return old
        self._store.save(new)
        changed = difference(old, new)
        # A step that is only counted is no decision; the count is in the line of the stage that it leads to.
        if new.stage != old.stage or not set(changed) <= {"last_step", "last_healthy_at", "healthy_steps"}:
            self._store.note(now, new.run_id, new.id, kind(old, new), summary(old, new, changed), data=changed)
        return new

    def _follow(self, old: Recovery, new: Recovery | None, facts_now: FactsNow, now: float) -> None:
        """Store the next record, and where it has failed, what follows it: all in this one transaction."""
        if new is None or new == old:
            return
        if new.stage != "failed" or old.stage == "failed":
            self._move(old, new, now)
            return
        facts = None if facts_now is None else facts_now()
        not_begun = facts is not None and new.failed_by == "not_carried_out" and not facts.running
        if facts is not None and not_begun and facts.attempt > new.newest_attempt:
            new = replace(new, new_attempt=facts.attempt)  # the start that failed
        policy = self._policies.of(new if facts is None else facts)
        history = [new if one.id == new.id else one for one in self._store.history(new.run_id)]
        following = climb(new, facts, history, policy, now)
        if isinstance(following, Climb) and facts is not None:
            self._move(old, replace(new, climbed_to=self._judge.climb_id(new, facts)), now)
            self._judge.start_climb(new, facts, following, now)
        elif not isinstance(following, Climb):
            self._move(old, with_end(new, following), now)

    def _begin_what_waited(self, facts: RunFacts, now: float) -> None:
        """A climb whose wait is over is commanded. One that is longer than the policy's was made by another clock."""
        recovery = self._store.active(facts.run_id)
        if recovery is None or recovery.stage != "planned":
            return
        wait = recovery.not_before - now
        if wait <= 0 or wait > self._policies.of(facts).climb_seconds:
            commanded = stages.at_times(recovery, commanded=now)
            self._move(recovery, stages.to_stage(commanded, "commanded", now), now)

    def _withdraw(self, facts: RunFacts, now: float) -> None:
        """A plan that waits is taken back when its reason is gone: carrying it out later would do harm.

        One that climbs has its reason in an attempt that is over, so only a newer attempt takes it back.
        """
        recovery = self._store.active(facts.run_id)
        if recovery is None or recovery.stage not in ("planned", "awaiting_approval"):
            return
        open_keys = {incident.key for incident in facts.incidents}
        if facts.attempt != recovery.attempt:
            outcome = f"Withdrawn: attempt {facts.attempt} was started meanwhile."
        elif not recovery.climbed_from and not open_keys.intersection(recovery.incident_keys):
            outcome = "Withdrawn: its incidents are resolved."
        else:
            return
        self._move(recovery, stages.ended(recovery, "refused", outcome, now), now)

    def _lower_target(self, facts: RunFacts, now: float) -> None:
        """A plan that no supervisor has been handed yet never goes back to what is suspected since it was made."""
        recovery = self._store.active(facts.run_id)
        if recovery is None or recovery.stage not in ("planned", "awaiting_approval", "commanded"):
            return
        if recovery.times.command_delivered is not None:
            return
        new = made_anew(recovery, facts, self._policies.of(facts))
        if new is not None:
            self._move(recovery, approving.asked_anew(recovery, new, now), now)

    def _fail_on_relapse(self, facts: RunFacts, now: float) -> None:
        """The new attempt shows a failure that would itself be worth a recovery: another restart is no answer to it."""
        recovery = self._store.active(facts.run_id)
        if recovery is None or recovery.stage != "verifying" or facts.attempt <= recovery.attempt:
            return
        policy = self._policies.of(facts)
        found = [i for i in facts.incidents if i.attempt == facts.attempt and policy.action_for(i) is not None]
        evidence = next((it for it in (gather(one, facts, policy) for one in found) if it.enough), None)
        if evidence is None:
            return
        new = stages.ended(
            recovery,
            "failed",
            f"Attempt {facts.attempt} failed too: {describe(evidence.incidents)}",
            now,
            failed_by="relapse",
            incidents=(*recovery.incidents, *(incident_data(incident) for incident in evidence.incidents)),
            incident_keys=(*recovery.incident_keys, *(incident.key for incident in evidence.incidents)),
        )
        self._follow(recovery, new, lambda: facts, now)


def _refused(recovery: Recovery, who: str, now: float) -> Recovery:
    return stages.ended(recovery, "refused", f"{who} refused it.", now, resolved_by=who)


def _own_alert(incident: OpenIncident) -> Alert:
    """What the exporter says to itself in direct mode; its identity is the incident in its attempt."""
    labels = {
        "run": incident.run_id,
        "detector": incident.detector,
        "signal": incident.signal,
        "severity": incident.severity.label,
        "action": "rollback",
    }
    return Alert(
        fingerprint=f"incident:{incident.key}", starts_at=str(incident.opened_at), status="firing", labels=labels
    )
