"""The record of one recovery: its stage, its times, its evidence. Stored as one row, shown by the API as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from exporter.protocol import Changes, Command, Rung, Scalar, json_number
from exporter.recovery.changes import Difference
from exporter.recovery.facts import Candidate
from exporter.recovery.policy import Action, Mode

Stage = Literal[
    "planned",
    "awaiting_approval",
    "commanded",
    "stopping",
    "starting",
    "verifying",
    "succeeded",
    "failed",
    "refused",
    "aborted",
    "observed",
]

TrainerLeft = Literal["", "running", "stopped"]
FailedBy = Literal["", "not_carried_out", "overdue", "died", "unhealthy", "relapse", "unproved", "ladder"]
"""What ended a recovery badly: the supervisor could not carry it out; a stage lasted too long; the new attempt died,
pushed unhealthy steps, or showed a failure that is worth a recovery; a changed setting was not proved to be in effect;
or there was no rung, or no checkpoint, to go on with: it is for a person."""
DISPROVED: tuple[FailedBy, ...] = ("unhealthy", "relapse", "unproved")
"""The rung was tried, and is no answer to this failure."""
DecisionStage = Literal["evidence", "assessment", "history", "policy", "plan"]
"""Stages of a decision, in their order; only what follows the last of them acts."""

ACTIVE: tuple[Stage, ...] = ("planned", "awaiting_approval", "commanded", "stopping", "starting", "verifying")
"""A run has at most one recovery in these stages; the store enforces it with a unique index."""

COMMANDED: tuple[Stage, ...] = ("commanded", "stopping", "starting")
"""Stages in which the supervisor is handed the command, again and again, until it reports the end of it."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Unix seconds by the exporter's clock; None for what has not happened (a crashed trainer is not stopped)."""

    alert_received: float | None = None
    planned: float | None = None
    approved: float | None = None
    commanded: float | None = None
    """The command was ready to be handed out; this is what counts against the budget."""
    command_delivered: float | None = None
    """First time that the command was handed out in a push answer."""
    accepted: float | None = None
    stopping: float | None = None
    stopped: float | None = None
    starting: float | None = None
    started: float | None = None
    first_healthy_step: float | None = None
    succeeded: float | None = None
    finished: float | None = None
    """End of the recovery, however it ended."""
    abort_answered: float | None = None
    """The supervisor said what it made of the abort."""


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage of the decision came to."""

    stage: DecisionStage
    result: str
    """One sentence."""
    refused: tuple[str, ...] = ()
    """What it considered and did not take, a sentence each; bounded."""


class ConsideredRung(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the ladder that was considered, in the order of the ladder; the last one may be ``person``."""

    rung: Rung | Literal["person"]
    taken: bool
    reason: str


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A person has approved; several may have to."""

    who: str
    at: float
    """Unix seconds of the exporter's clock."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """A changed setting was read back where it acts: ``SettingApplied``, as it was taken in."""

    name: str
    wanted: Scalar
    restored: Scalar = None
    found: Scalar = None
    ok: bool = True
    reason: str = ""
    attempt: int = 0
    at: float = 0.0
    """Unix seconds of the exporter's clock."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and how far it has been carried out."""

    id: str
    """Also the id of the command."""
    run_id: str
    attempt: int
    """The attempt that failed."""
    mode: Mode
    action: Action
    stage: Stage
    stage_since: float
    reason: str
    """Why it was planned, one sentence."""
    outcome: str = ""
    """Why it ended as it did, one sentence; empty while active."""
    refused_by_policy: bool = False
    """Refused because of the budget, not by a person: somebody has to be told."""

    fingerprint: str = ""
    starts_at: str = ""
    incidents: tuple[dict[str, Any], ...] = ()
    """Evidence: the verdict numbers of the incidents at the moment of the plan, and of those that joined later."""
    incident_keys: tuple[str, ...] = ()

    onset: int | None = None
    not_after_step: int | None = None
    planned_target_step: int | None = None
    planned_target_path: str = ""
    planned_at_step: int | None = None
    """Newest step of the failed attempt when the plan was made."""
    changes: tuple[Difference, ...] = ()
    """What will be different in the next attempt."""
    candidates: tuple[Candidate, ...] = ()
    """Checkpoints that were considered, the newest first, with why each was taken or not; those that matter."""
    without_target: bool = False
    """A rollback was due, but no checkpoint was eligible: the run is stopped and the recovery fails."""
    target_step: int | None = None
    """What the supervisor really restored."""
    target_path: str = ""

    rung: Rung = "checkpoint"
    rule: str = ""
    """The rule of the policy that applied; empty for its defaults."""
    episode: str = ""
    """Id of the first recovery of the same failure; within it the ladder is only climbed. Empty for the first one."""
    climbed_from: str = ""
    """Id of the recovery that did not hold, and that this one follows on a higher rung."""
    climbed_to: str = ""
    """Id of the one that follows this one."""
    not_before: float = 0.0
    """One that climbs waits in stage ``planned`` until then; Unix seconds, 0 where it need not."""
    protocol_changes: Changes = Changes()
    """What the command carries; ``changes`` is what a person is shown."""
    considered: tuple[ConsideredRung, ...] = ()
    stages: tuple[StageResult, ...] = ()
    """How the decision was come to."""
    approvals: tuple[Approval, ...] = ()
    """Who has approved so far."""
    approvals_needed: int = 1
    approvers: tuple[str, ...] = ()
    """Who may approve; empty for everybody who may operate the exporter."""
    proofs: tuple[Proof, ...] = ()
    """Of changed settings; for one name the newest of the newest attempt counts."""
    proof_awaited: float | None = None
    """The steps are healthy, and a proof is missing since then; Unix seconds."""
    failed_by: FailedBy = ""
    failure_code: int | None = None
    """What the supervisor gave as the reason of a command that it could not carry out."""
    project: str = ""
    cohort: str = ""
    output: tuple[str, ...] = ()
    """What the supervisor said while it carried the command out, and the last lines of an attempt that died; bounded,
    the oldest first."""

    new_attempt: int | None = None
    progress: str = ""
    """Last state that the supervisor reported for the command."""
    command_closed: bool = False
    """The supervisor has reported the end of the command, so it is handed out no more."""
    last_step: int | None = None
    """Newest step counted of the new attempt, so that a step that is delivered twice counts once."""
    last_healthy_at: float | None = None
    healthy_steps: int = 0
    """In a row, past the target."""
    unhealthy_steps: int = 0
    first_healthy_step: int | None = None
    resolved_by: str = ""
    """Who approved or refused it."""
    acknowledged_by: str = ""
    """Who has taken note of its failure; of an aborted one, who has given the attempt back to automatic recovery."""
    aborted_by: str = ""
    aborted_in: str = ""
    """The stage in which it was aborted."""
    abort_answered: bool = False
    """The supervisor has said what became of the command, or never had it; until then it is told again and again."""
    abort_overdue: bool = False
    """It has not said so in time: whether the abort had its effect is not known."""
    trainer_left: TrainerLeft = ""
    """Of an aborted one: whether a trainer of the run runs, as far as was reported."""
    times: Timeline = Timeline()

    @property
    def active(self) -> bool:
        return self.stage in ACTIVE

    @property
    def has_result(self) -> bool:
        """It succeeded, or a person has to be told of it; what was refused or observed says nothing of the run."""
        return self.stage in ("succeeded", "failed") or self.refused_by_policy or self._abort_left_it_down

    @property
    def needs_a_person(self) -> bool:
        """It ended badly, nothing follows it, and nobody has acknowledged that: ``verl_recovery_failed`` is 1."""
        badly = self.stage == "failed" or self.refused_by_policy or self._abort_left_it_down
        return badly and not self.acknowledged_by and not self.climbed_to

    @property
    def _abort_left_it_down(self) -> bool:
        """The run is stopped after an abort, or nobody knows: somebody has to be told, and told again."""
        if self.stage != "aborted" or self.times.command_delivered is None:
            return False
        unknown = self.abort_overdue or (self.abort_answered and not self.trainer_left)
        return self.trainer_left == "stopped" or unknown

    @property
    def given_up(self) -> bool:
        """A stage lasted too long, and a supervisor may have the command: what it reports of it is still taken in."""
        return self.stage == "failed" and self.failed_by == "overdue" and self.times.command_delivered is not None

    @property
    def may_still_act(self) -> bool:
        """It was given up, and the supervisor may still carry the command out: a person may abort it."""
        return self.given_up and not self.command_closed and not self.climbed_to

    @property
    def holds_back(self) -> bool:
        """A person has aborted it and not acknowledged that: its attempts are recovered by nobody else meanwhile."""
        return self.stage == "aborted" and not self.acknowledged_by

    @property
    def newest_attempt(self) -> int:
        """The newest attempt that belongs to it."""
        return max(self.attempt, self.new_attempt or 0)

    @property
    def resumed_from(self) -> int | None:
        """The restored step: what the supervisor reported, else what was planned."""
        return self.target_step if self.target_step is not None else self.planned_target_step

    @property
    def what_is_done(self) -> tuple[Action, Rung, int | None, str, Changes, bool]:
        """What an approval is for: two plans that have this in common do the same to the run."""
        target = (self.planned_target_step, self.planned_target_path)
        return (self.action, self.rung, *target, self.protocol_changes, self.without_target)

    def command(self) -> Command:
        """What the supervisor is asked for.

        The limit of a rollback is the target itself: newer checkpoints were turned down. A restart has none, for it
        goes on from what it saves.
        """
        limit = self.planned_target_step if self.planned_target_step is not None else self.not_after_step
        limit = None if self.action == "restart" else limit
        return Command(
            id=self.id,
            run_id=self.run_id,
            attempt=self.attempt,
            action=self.action,
            reason=self.reason,
            rung=self.rung,
            changes=self.protocol_changes,
            not_after_step=limit,
            target_step=self.planned_target_step,
            issued_at=self.times.commanded or 0.0,
        )


Outcome = Literal["planned", "observed", "attached", "pending", "refused", "duplicate", "resolved"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The engine's answer to one alert or incident; ``reason`` is a sentence for the log and the webhook's answer."""

    outcome: Outcome
    reason: str
    recovery_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """What ``/metrics`` and the run's page show of its recoveries."""

    active: Recovery | None = None
    last: Recovery | None = None
    failed: bool = False
    awaiting_approval: bool = False
    in_progress: bool = False
    """Active and past approval."""
    failed_attempt: int = 0
    """Newest attempt that belongs to the recovery that failed; 0 where none did."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Number of ended recoveries by stage, for ``verl_recoveries_total{run,outcome}``."""


def difference(old: Recovery, new: Recovery) -> dict[str, Any]:
    """The fields of ``new`` that are not as in ``old``, as the audit log shows them; times by their own names."""
    changed = {name: getattr(new, name) for name in new.__struct_fields__ if getattr(new, name) != getattr(old, name)}
    if "times" in changed:
        old_times, new_times = msgspec.structs.asdict(old.times), msgspec.structs.asdict(new.times)
        changed["times"] = {name: at for name, at in new_times.items() if at != old_times[name]}
    return changed


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the append-only audit log."""

    id: int
    at: float
    run_id: str
    recovery_id: str
    kind: str
    summary: str
    data: dict[str, Any]


def spell_numbers(value: Any) -> Any:
    """Spell NaN and the infinities as the protocol does: a score of infinity must survive JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return json_number(value)
    if isinstance(value, dict):
        return {key: spell_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spell_numbers(item) for item in value]
    return value
