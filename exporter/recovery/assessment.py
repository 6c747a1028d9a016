"""Second stage of a decision: since when the run is in doubt, and which checkpoint is the newest sound one. Pure;
called by :mod:`exporter.recovery.plan` and :mod:`exporter.recovery.climbing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.coupling import spoils_weights
from exporter.recovery.evidence import MOST_SAID
from exporter.recovery.facts import LIVE_DETECTORS, Candidate, Checkpoint, OpenIncident, RunFacts
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.record import StageResult


@dataclass(frozen=True, slots=True)
class Assessment:
    """Where the run could go back to."""

    onset: int
    """First step that belongs to the failure."""
    not_after_step: int
    """Newest step that the evidence leaves unsuspected."""
    candidates: tuple[Candidate, ...]
    """Every checkpoint, newest step first; the first eligible one is the target."""
    spoilt: bool
    """The weights since the onset are in doubt."""
    note: str = ""
    """What is odd about the target, the end of a sentence."""

    @property
    def target(self) -> Candidate | None:
        return next((candidate for candidate in self.candidates if candidate.eligible), None)

    def result(self) -> StageResult:
        """What goes into the record: only those that are newer than the target were refused."""
        target = self.target
        refused = tuple(
            f"The checkpoint of step {candidate.step} is out: {candidate.reason}."
            for candidate in self.candidates
            if not candidate.eligible and (target is None or candidate.step > target.step)
        )
        where = "no checkpoint is eligible" if target is None else f"the target is the checkpoint of step {target.step}"
        weights = "the weights since then are in doubt" if self.spoilt else "the weights are sound"
        found = f"of what was saved up to step {self.not_after_step}, {where}{self.note}"
        said = f"It began at step {self.onset}, {weights}; {found}."
        return StageResult(stage="assessment", result=said, refused=refused[:MOST_SAID])


def assess(
    evidence: Sequence[OpenIncident], facts: RunFacts, policy: RecoveryPolicy, *, not_after: int | None = None
) -> Assessment:
    """``evidence`` is not empty; ``not_after``: the limit of an earlier recovery from the same failure."""
    limit = newest_allowed_step(evidence, policy)
    limit = limit if not_after is None else min(limit, not_after)
    onset = min(incident.onset for incident in evidence)
    return Assessment(onset, limit, judge_checkpoints(facts, limit), any(map(spoils_weights, evidence)))


def newest_allowed_step(evidence: Sequence[OpenIncident], policy: RecoveryPolicy) -> int:
    """The newest step whose checkpoint none of the incidents puts under suspicion.

    A step detector's onset is the first bad step, so what was saved at it or within the margin before it is out. A live
    detector's onset is the step in progress: the weights are sound, and verl may have saved in that very step. So are
    those of a run that has been slow, or whose memory has grown, for hundreds of steps.
    """
    return min(_newest_sound_step(incident, policy) for incident in evidence)


def _newest_sound_step(incident: OpenIncident, policy: RecoveryPolicy) -> int:
    if incident.detector in LIVE_DETECTORS:
        return incident.onset
    return incident.onset - policy.margin_for(incident) - 1 if spoils_weights(incident) else incident.step


def judge_checkpoints(facts: RunFacts, not_after_step: int) -> tuple[Candidate, ...]:
    """Every checkpoint, newest step first, with why it is or is not eligible. The first eligible one is the target."""
    latest: dict[int, Checkpoint] = {}
    for checkpoint in facts.checkpoints:
        known = latest.get(checkpoint.step)
        if known is None or (checkpoint.attempt, checkpoint.saved_at) >= (known.attempt, known.saved_at):
            latest[checkpoint.step] = checkpoint
    return tuple(_judge(latest[step], facts, not_after_step) for step in sorted(latest, reverse=True))


def _judge(checkpoint: Checkpoint, facts: RunFacts, not_after_step: int) -> Candidate:
    def verdict(eligible: bool, reason: str) -> Candidate:
        return Candidate(checkpoint.step, checkpoint.path, checkpoint.attempt, eligible, reason)

    if not checkpoint.verified:
        return verdict(False, f"not verified: {checkpoint.reason or 'its manifest was not written'}")
    if checkpoint.step < 1:
        return verdict(False, f"step {checkpoint.step} is not a training step")
    if checkpoint.step > not_after_step:
        return verdict(False, f"newer than step {not_after_step}, the last that the findings leave unsuspected")
    if checkpoint.attempt > facts.attempt:
        return verdict(False, f"saved by attempt {checkpoint.attempt}, after the failure of attempt {facts.attempt}")
    for attempt in facts.attempts:
        left_at = attempt.resume_step
        if checkpoint.attempt < attempt.number <= facts.attempt and left_at is not None and checkpoint.step > left_at:
            return verdict(
                False,
                f"saved by attempt {checkpoint.attempt}, whose course attempt {attempt.number} left at step {left_at}",
            )
    return verdict(True, "verified, and saved before the onset less the margin")
