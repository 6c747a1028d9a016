"""What can go wrong in the demo, and what has to follow. Read by :mod:`demo.run`, shown by ``--help``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One fault with a real cause in the real trainer (see :mod:`demo.faults`), and what the loop owes."""

    name: str
    summary: str
    fault_step: int | None
    """First step that the fault touches; None for a run without one."""
    steps: int
    """Length of the training; a run with a fault is ended before, once it has recovered or was found."""
    detectors: frozenset[str] = frozenset()
    """Detectors of which at least one has to find it."""
    recovers: bool = True
    """A rollback is promised. Where it is not, the finding is for a person, and all that is owed."""
    course_steps: int = 30
    """A recording goes on for as many steps after the fault…"""
    course_seconds: float = 240.0
    """… or for as many seconds, whichever are over first."""

    @property
    def expects_recovery(self) -> bool:
        return self.fault_step is not None and self.recovers


_ALL = (
    Scenario(
        "learning_rate",
        "the optimizer's rate is multiplied by a large factor: KL, gradient and entropy go",
        fault_step=26,
        steps=400,
        detectors=frozenset({"surge", "gradient_instability", "non_finite"}),
    ),
    Scenario(
        "nan",
        "one weight of the policy becomes NaN",
        fault_step=26,
        steps=400,
        detectors=frozenset({"non_finite"}),
        course_steps=12,
    ),
    Scenario(
        "hang",
        "the rollout server stops answering, nothing is logged any more",
        fault_step=26,
        steps=400,
        detectors=frozenset({"stalled_phase"}),
        course_seconds=60.0,
    ),
    Scenario(
        "rollout_errors",
        "a share of the rollout requests fails, which the trainer does not tell",
        fault_step=26,
        steps=400,
        detectors=frozenset({"rollout_failures"}),
    ),
    Scenario(
        "crash",
        "a worker is killed with SIGKILL",
        fault_step=26,
        steps=400,
        detectors=frozenset({"trainer_exited"}),
        course_seconds=15.0,
    ),
    Scenario(
        "slow_reward",
        "the reward function takes longer from step to step",
        fault_step=26,
        steps=400,
        detectors=frozenset({"step_time"}),
        recovers=False,
        course_steps=20,
    ),
    Scenario(
        "blind_reward",
        "the reward function gives 0 to every answer",
        fault_step=26,
        steps=400,
        detectors=frozenset({"reward", "dead_run", "level"}),
        recovers=False,
        course_steps=20,
    ),
    Scenario(
        "short_answers",
        "the reward function pays for short answers, and gets them",
        fault_step=26,
        steps=400,
        detectors=frozenset({"response_length", "level", "surge", "kl"}),
        course_steps=45,
    ),
    Scenario("healthy", "nothing goes wrong: no page, no rollback", fault_step=None, steps=100),
)

SCENARIOS = {scenario.name: scenario for scenario in _ALL}
