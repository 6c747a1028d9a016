"""What recovery wants to know of a run's course: how long each attempt was healthy, and with what; which GPUs broke;
which checkpoints turned out to be unfit. Part of the run's state, so it is in its snapshots.

Bounded: configurations of a few attempts, a few dozen GPUs, as many checkpoints as are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.protocol import CheckpointChecked, CheckpointPruned, Excluded, GpuReading, Scalar
from exporter.recovery.facts import AttemptFacts, Checkpoint
from exporter.service.in_force import InForce
from exporter.service.known import cut
from exporter.service.recent import RecentStep
from exporter.service.usual import Usual

CONFIGS_KEPT: Final = 5
"""Attempts that are over whose configuration is kept: the newest, and that of the longest healthy one."""
FAULTS_KEPT: Final = 64
UNFIT_KEPT: Final = 1000
FAULT_SECONDS: Final = 86_400.0
"""What broke longer ago has been looked at, or did not matter."""

OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xid codes that a program causes, and not the machine: NVIDIA's device plugin for Kubernetes leaves out the same."""


@dataclass(slots=True)
class GpuFault:
    """One GPU whose readings say that it is broken."""

    gpu: str
    """UUID, else its index."""
    reason: str
    attempt: int
    at: float


@dataclass(slots=True)
class Unfit:
    """A checkpoint that is not to be gone back to."""

    reason: str
    at: float


@dataclass(slots=True)
class Course:
    """Of one run.

    >>> course = Course()
    >>> for step in range(1, 9):
    ...     course.step(step, 6 if step == 8 else None)
    >>> course.healthy_steps
    5
    """

    first_step: int | None = None
    """Of the current attempt."""
    healthy_steps: int = 0
    broken_at: int | None = None
    """Onset of the first critical finding of the current attempt, the earliest that was said."""
    faults: dict[str, GpuFault] = field(default_factory=dict)
    """By node and index, with a space between."""
    unfit: dict[int, Unfit] = field(default_factory=dict)
    usual: Usual = field(default_factory=Usual)

    def began(self, before: Iterable[RecentStep] = ()) -> None:
        """A new attempt: its steps are counted anew, and measured by the newest steps of the one before."""
        self.usual.learn(before, self.broken_at)
        self.first_step, self.healthy_steps, self.broken_at = None, 0, None

    def step(self, step: int, onset: int | None) -> None:
        """A training step; ``onset``: the earliest of the critical findings on it, None where there is none."""
        if self.first_step is None:
            self.first_step = step
        if onset is not None:
            self.broken_at = onset if self.broken_at is None else min(self.broken_at, onset)
            self.healthy_steps = max(0, min(self.healthy_steps, self.broken_at - self.first_step))
        elif self.broken_at is None:
            self.healthy_steps += 1

    def read(self, reading: GpuReading, attempt: int, at: float) -> None:
        """A reading of a GPU: is it broken, or has it come back in an attempt after it broke?"""
        reason = fault_of(reading)
        key = f"{reading.node} {reading.index}"
        known = self.faults.get(key)
        if reason:
            self.faults.pop(key, None)
            self.faults[key] = GpuFault(reading.uuid or str(reading.index), reason, attempt, at)
            while len(self.faults) > FAULTS_KEPT:
                self.faults.pop(next(iter(self.faults)))
        elif known is not None and known.attempt < attempt:
            del self.faults[key]

    def checked(self, event: CheckpointChecked, at: float) -> None:
        """A checkpoint in its own place was found to be bad, or to be good after all; copies are another matter."""
        if event.tier:
            return
        if event.ok:
            self.unfit.pop(event.step, None)
        else:
            self._note(
                event.step, f"its check ({event.depth}) failed: {cut(event.reason) or 'no reason was given'}", at
            )

    def removed(self, event: CheckpointPruned, at: float) -> None:
        """Retention removed one from its own place."""
        if not event.tier:
            self._note(event.step, f"retention removed it: {cut(event.reason) or 'no reason was given'}", at)

    def _note(self, step: int, reason: str, at: float) -> None:
        self.unfit.pop(step, None)
        self.unfit[step] = Unfit(reason, at)
        while len(self.unfit) > UNFIT_KEPT:
            self.unfit.pop(next(iter(self.unfit)))

    def saved(self, step: int) -> None:
        """It was saved again: what was found of the one before says nothing of it."""
        self.unfit.pop(step, None)

    def fit(self, checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
        """The checkpoints as recovery may use them."""
        if not self.unfit:
            return tuple(checkpoints)
        return tuple(
            replace(one, verified=False, reason=bad.reason) if (bad := self.unfit.get(one.step)) is not None else one
            for one in checkpoints
        )

    def nodes_at_fault(self, now: float) -> tuple[Excluded, ...]:
        """Machines or GPUs to leave out, what was found last first; a machine with several of them as a whole."""
        by_node: dict[str, list[GpuFault]] = {}
        for key, fault in reversed(self.faults.items()):
            if 0.0 <= now - fault.at < FAULT_SECONDS:
                by_node.setdefault(key.rpartition(" ")[0], []).append(fault)
        return tuple(
            Excluded(node=node, gpu=found[0].gpu, reason=found[0].reason)
            if len(found) == 1
            else Excluded(node=node, reason=f"{len(found)} GPUs: {found[0].reason}")
            for node, found in by_node.items()
        )


def fault_of(reading: GpuReading) -> str:
    """Why the GPU is taken to be broken; empty where it is not.

    >>> fault_of(GpuReading(node="a", index=0, xid_errors=1, last_xid=79))
    'Xid 79'
    >>> fault_of(GpuReading(node="a", index=0, xid_errors=1, last_xid=31)), fault_of(GpuReading(node="a", index=0))
    ('', '')
    """
    if reading.lost:
        return f"the GPU is lost{f' ({cut(reading.error)[:200]})' if reading.error else ''}"
    if reading.xid_errors and reading.last_xid and reading.last_xid not in OF_PROGRAMS:
        return f"Xid {reading.last_xid}"
    return ""


def described(
    attempt: AttemptFacts, course: Course, config: Mapping[str, Scalar], version: str, in_force: InForce, *, told: bool
) -> AttemptFacts:
    """An attempt with what is known of it now. ``told``: its trainer has said what it runs with, so that configuration
    and version are its own and not those of the attempt before."""
    wanted = in_force.changes.verl_version if in_force.changes is not None else ""
    return replace(
        attempt,
        config=config if told else {},
        verl_version=version if told else wanted,
        healthy_steps=course.healthy_steps,
        changes=in_force.changes,
        executor=in_force.executor,
    )


def keep_few_configs(attempts: MutableSequence[AttemptFacts]) -> None:
    """Drop the configurations of all but the newest attempts, and of the one that was healthy for longest."""
    with_config = [index for index, one in enumerate(attempts) if one.config]
    if len(with_config) <= CONFIGS_KEPT:
        return
    longest = max(with_config, key=lambda index: attempts[index].healthy_steps)
    for index in with_config[: -CONFIGS_KEPT + 1]:
        if index != longest:
            attempts[index] = replace(attempts[index], config={})


def began_from(attempts: Sequence[AttemptFacts], verified: Checkpoint | None) -> int:
    """The step that the newest attempt was restored from, as the supervisor says, or as verl would choose; 0: none.

    An attempt that dies, or hangs, before its first step fails at that step, whose checkpoint is as sound as before:
    taken for a failure in step 0 it would leave nothing to go back to.

    >>> began_from([AttemptFacts(1, None), AttemptFacts(2, 40)], None)
    40
    """
    resumed = attempts[-1].resume_step if attempts else None
    if resumed is not None:
        return resumed
    return verified.step if verified is not None else 0
