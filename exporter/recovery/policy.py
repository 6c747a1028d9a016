"""What the operator allows: which findings may trigger which action, on which rungs, in which mode, how often.

The section ``recovery`` of the configuration, or a file of its own that it names; read by ``exporter.config`` and
:mod:`exporter.policy_file`, and given to the engine. Every check raises ``ValueError`` with a sentence, which msgspec
turns into a ``ValidationError`` that carries the path in the file.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from exporter.detectors.base import Severity
from exporter.protocol import Rung
from exporter.recovery.facts import LIVE_DETECTORS, OpenIncident
from exporter.recovery.rung_settings import (
    RUNGS,
    Approvers,
    ConfigRung,
    InfraRung,
    VersionRung,
    matches_any,
)

Mode = Literal["observe", "approve", "auto"]
Action = Literal["rollback", "restart", "stop"]

DAY_SECONDS = 86_400.0
"""Length of the window in which the budget is counted."""

MOST_RULES: Final = 200

_OF_TRAINING = (
    *("non_finite", "surge", "gradient_instability", "kl", "entropy", "response_length", "clipping"),
    *("rollout_mismatch", "learning_rate", "dead_run", "level", "reward", "aborted_rollouts"),
)
_SEVERITIES = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Findings of these detectors, from this severity up, may trigger this action."""

    detectors: tuple[str, ...]
    action: Action = "rollback"
    """``rollback``: back to a checkpoint from before the onset; ``restart``: save, and go on in a fresh process;
    ``stop``: end the run."""
    severity: Literal["warning", "critical"] = "critical"
    signals: tuple[str, ...] = ()
    """Patterns of the signals that it is about; empty for all of these detectors."""
    agreement: int | None = None
    """Distinct signals that must be critical together; by default the policy's."""
    ladder: tuple[Rung, ...] | None = None
    """Rungs for what it triggers; by default the policy's."""

    def __post_init__(self) -> None:
        if not self.detectors:
            raise ValueError("detectors is empty: name at least one detector, or remove this trigger")
        if self.agreement is not None and self.agreement < 1:
            raise ValueError(f"agreement is {self.agreement}: at least 1 signal has to be critical")
        if self.ladder is not None:
            check_ladder(self.ladder)

    def matches(self, incident: OpenIncident) -> bool:
        of_these = incident.detector in self.detectors and incident.severity >= _SEVERITIES[self.severity]
        return of_these and (not self.signals or matches_any(incident.signal, self.signals))


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a stage may last, in seconds. A stage that lasts longer fails the recovery, and a person is told."""

    command_seconds: float = 120.0
    """From the command being ready to a supervisor taking it."""
    prepare_seconds: float = 3900.0
    """From the supervisor taking the command to its beginning to stop the trainer: a checkpoint is read, an environment
    built. Longer than the supervisor gives its rollback script."""
    stop_seconds: float = 600.0
    """From there to the trainer being gone; a command that only stops the run is not prepared."""
    start_seconds: float = 900.0
    """From the trainer being gone to the new attempt having been started."""
    step_seconds: float = 3600.0
    """From the start of the new attempt to its first healthy step, and from one healthy step to the next."""
    proof_seconds: float = 60.0
    """From the last healthy step that was needed to the proof that a changed learning rate is in effect."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}: it must be more than 0 seconds")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a rule sets otherwise than the policy as a whole; what it does not name, or names as ``null``, stays."""

    mode: Mode | None = None
    triggers: tuple[Trigger, ...] | None = None
    agreement: int | None = None
    certainty: float | None = None
    margin_steps: int | None = None
    margins: dict[str, int] | None = None
    budget_per_day: int | None = None
    cooldown_seconds: float | None = None
    climb_seconds: float | None = None
    no_progress_steps: int | None = None
    healthy_steps: int | None = None
    success_steps: int | None = None
    tries_per_rung: int | None = None
    ladder: tuple[Rung, ...] | None = None
    modes: dict[Rung, Mode] | None = None
    approval: dict[Rung, Approvers] | None = None
    config: ConfigRung | None = None
    version: VersionRung | None = None
    infra: InfraRung | None = None
    skip_steps: int | None = None
    at_end: Literal["leave", "stop"] | None = None
    deadlines: Deadlines | None = None


class Rule(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """For the runs that match all that it names; the first rule that matches counts."""

    name: str = ""
    run: str = "*"
    """Pattern of run ids, in which ``*`` stands for any characters."""
    project: str = "*"
    cohort: str = "*"

    def matches(self, run_id: str, project: str, cohort: str) -> bool:
        given = ((run_id, self.run), (project, self.project), (cohort, self.cohort))
        return all(matches_any(value, (pattern,)) for value, pattern in given)

    def changed(self) -> dict[str, Any]:
        """What it sets."""
        return {name: getattr(self, name) for name in Settings.__struct_fields__ if getattr(self, name) is not None}


class RecoveryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of all runs, and what rules say otherwise of some."""

    policy_file: str = ""
    """The file that the policy is in; then nothing else stands beside it in the configuration."""
    mode: Mode = "observe"
    """``observe`` records what it would do, ``approve`` waits for a person, ``auto`` acts."""
    trigger: Literal["alertmanager", "direct"] = "alertmanager"
    """``direct``: the exporter's own incidents trigger, for an installation without Alertmanager."""
    triggers: tuple[Trigger, ...] = (Trigger(detectors=(*_OF_TRAINING, *sorted(LIVE_DETECTORS))),)
    """The first that matches counts. Unless a policy says so, a run that is only slow, or full, is left to a person: a
    checkpoint is no answer to that. So are the limits of the operations manual, which do not know the run."""
    agreement: int = 2
    """Distinct signals that must be critical together where none is certain; two that say nearly the same are one."""
    certainty: float = 0.99
    """A finding with at least this confidence needs no second one."""
    margin_steps: int = 1
    """Checkpoints of this many steps before the onset are not trusted either."""
    margins: dict[str, int] = {}
    """The same for the findings of one detector, by its name."""
    budget_per_day: int = 3
    """Recoveries of one run in any 24 hours; each that climbs is one more."""
    cooldown_seconds: float = 600.0
    """From the end of one recovery of a run to the plan of its next."""
    climb_seconds: float = 0.0
    """In place of the cooldown, from the end of one that did not hold to the command of the one that climbs. One that
    a person has to approve does not wait."""
    no_progress_steps: int = 50
    """The same failure within so many steps after a recovery has succeeded goes on with the next rung; 0: never."""
    healthy_steps: int = 10
    """An attempt that pushed so many steps before anything critical has run healthy: its configuration and its version
    are what ``manifest`` and ``last_healthy`` go back to."""
    success_steps: int = 3
    """Healthy steps in a row that the new attempt must push past the target."""
    tries_per_rung: int = 2
    """Recoveries on one rung for one failure, where the earlier one was not disproved: its attempt died, or the
    supervisor could not carry it out, and nothing followed, for want of a higher rung or of budget."""
    ladder: tuple[Rung, ...] = RUNGS
    """Which rungs, in which order. After the last comes a person."""
    modes: dict[Rung, Mode] = {}
    """The mode of single rungs, where it is not that of the policy. One that is only observed is passed over. Of a rule
    that has a mode and not these, those of the policy hold that are stricter than its mode."""
    approval: dict[Rung, Approvers] = {}
    """Who has to approve, by rung: names, as those say who approve."""
    config: ConfigRung = ConfigRung()
    version: VersionRung = VersionRung()
    infra: InfraRung = InfraRung()
    skip_steps: int = 0
    """Most training batches that are left out after the restored step, of those that led into a failure of training;
    where the trainer cannot place them in its data, none is left out."""
    at_end: Literal["leave", "stop"] = "leave"
    """What happens to a run that still trains when its ladder ends: a person is told either way."""
    deadlines: Deadlines = Deadlines()
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rules) > MOST_RULES:
            raise ValueError(f"rules has {len(self.rules)} entries: at most {MOST_RULES} are read")
        self._check()
        for index, rule in enumerate(self.rules):
            try:
                self._with(rule)
            except ValueError as error:
                raise ValueError(f"rules[{index}].{error}") from None

    def _check(self) -> None:
        if not self.triggers:
            raise ValueError('triggers is empty: no finding could ever trigger anything; use mode = "observe" instead')
        if self.agreement < 1:
            raise ValueError(f"agreement is {self.agreement}: at least 1 signal has to be critical")
        if not 0 < self.certainty <= 1:
            raise ValueError(f"certainty is {self.certainty}: it is a confidence, more than 0 and at most 1")
        if self.margin_steps < 0:
            raise ValueError(f"margin_steps is {self.margin_steps}: a checkpoint after the onset is never a target")
        for detector, steps in self.margins.items():
            if steps < 0:
                raise ValueError(f"margins has {steps} for {detector}: a checkpoint after the onset is never a target")
        if self.budget_per_day < 1:
            raise ValueError(f'budget_per_day is {self.budget_per_day}: to allow no recovery use mode = "observe"')
        for name in ("cooldown_seconds", "climb_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        for name, what in _AT_LEAST_ONE.items():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: {what}")
        for name in ("no_progress_steps", "skip_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        check_ladder(self.ladder)

    def _with(self, rule: Rule) -> RecoveryPolicy:
        changed = rule.changed()
        if rule.mode is not None and rule.modes is None:
            # What a rule says of all rungs is not undone by what the policy says of one; what is stricter there stays.
            changed["modes"] = {rung: mode for rung, mode in self.modes.items() if _stricter(mode, rule.mode)}
        return replace(self, rules=(), **changed)

    def rule_for(self, run_id: str, project: str = "", cohort: str = "") -> int | None:
        """Index of the rule that applies to a run; None where it is the policy as a whole."""
        found = (index for index, rule in enumerate(self.rules) if rule.matches(run_id, project, cohort))
        return next(found, None)

    @property
    def rule_for_all(self) -> int | None:
        """Index of the first rule that matches every run, behind which no other ever applies; None without one."""
        patterns = ({rule.run, rule.project, rule.cohort} for rule in self.rules)
        return next((index for index, names in enumerate(patterns) if all(set(name) == {"*"} for name in names)), None)

    def of_rule(self, index: int | None) -> RecoveryPolicy:
        """The policy as a rule leaves it, without rules."""
        return self._with(self.rules[index]) if index is not None else replace(self, rules=())

    def rule_name(self, index: int | None) -> str:
        """What a person calls the rule; empty for the policy as a whole."""
        return "" if index is None else self.rules[index].name or f"rule {index + 1}"

    def mode_of(self, rung: Rung) -> Mode:
        return self.modes.get(rung, self.mode)

    def mode_off_the_ladder(self, ladder: tuple[Rung, ...] = ()) -> Mode:
        """The mode of what is no matter of one rung: a stop, the end of the ladder. ``ladder``: the one in use.

        It is only observed where every rung is. Where the policy observes and some rung acts, a person is asked.
        """
        if not self.acts_on(ladder):
            return "observe"
        return "approve" if self.mode == "observe" else self.mode

    @property
    def acts(self) -> bool:
        """Whether there is a rung that is more than observed."""
        return self.acts_on(())

    def acts_on(self, ladder: tuple[Rung, ...]) -> bool:
        """As :attr:`acts`, with the rungs of a trigger's own ladder."""
        return any(self.mode_of(rung) != "observe" for rung in (*self.ladder, *ladder))

    def trigger_of(self, incident: OpenIncident) -> Trigger | None:
        """The trigger that this incident falls under, None where it may trigger nothing."""
        return next((trigger for trigger in self.triggers if trigger.matches(incident)), None)

    def action_for(self, incident: OpenIncident) -> Action | None:
        """The action that this incident may trigger, None if it may trigger nothing."""
        trigger = self.trigger_of(incident)
        return None if trigger is None else trigger.action

    def agreement_for(self, incident: OpenIncident) -> int:
        """Distinct signals that have to agree with this one, itself included."""
        trigger = self.trigger_of(incident)
        return self.agreement if trigger is None or trigger.agreement is None else trigger.agreement

    def ladder_for(self, incident: OpenIncident | None) -> tuple[Rung, ...]:
        """The rungs for what this incident triggers."""
        trigger = None if incident is None else self.trigger_of(incident)
        return self.ladder if trigger is None or trigger.ladder is None else trigger.ladder

    def margin_for(self, incident: OpenIncident) -> int:
        """Steps before its onset that are not trusted either."""
        return self.margins.get(incident.detector, self.margin_steps)

    def is_certain(self, incident: OpenIncident) -> bool:
        """Whether the incident needs no second signal: confidence, or a live detector that is critical."""
        live = incident.detector in LIVE_DETECTORS and incident.severity is Severity.CRITICAL
        return live or incident.confidence >= self.certainty


def _stricter(mode: Mode, than: Mode) -> bool:
    order: tuple[Mode, ...] = ("observe", "approve", "auto")
    return order.index(mode) < order.index(than)


_AT_LEAST_ONE: Final = {
    "success_steps": "success needs at least 1 healthy step",
    "healthy_steps": "an attempt without a healthy step has not run healthy",
    "tries_per_rung": "a rung is tried at least once",
}


def check_ladder(ladder: tuple[Rung, ...]) -> None:
    """Raises ``ValueError`` for a ladder that is none."""
    if not ladder:
        raise ValueError('ladder is empty: name at least one rung; to allow no recovery use mode = "observe"')
    twice = next((rung for rung in ladder if ladder.count(rung) > 1), None)
    if twice is not None:
        raise ValueError(f"ladder names {twice} twice: a rung has one place in it")
