"""What can go wrong in the demo, and what has to follow. Read by :mod:`demo.run`, shown by ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

RATE = "actor_rollout_ref.actor.optim.lr"
WARM_UP = "actor_rollout_ref.actor.optim.lr_warmup_steps"


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong in the real trainer, by its real cause, and what the loop owes.

    The cause is a fault that is injected (:mod:`demo.faults`), settings of the run, or a move to another verl.
    """

    name: str
    summary: str
    fault_step: int | None
    """First step that an injected fault touches; None for a run without one."""
    steps: int
    """Length of the training; a run with a fault is ended before, once it has recovered or was found."""
    detectors: frozenset[str] = frozenset()
    """Detectors of which at least one has to find it."""
    recovers: bool = True
    """A rollback is promised. Where it is not, the finding is for a person, and all that is owed."""
    rungs: tuple[str, ...] = ("checkpoint",)
    """Rungs of the ladder that have to be taken, in this order; the last one has to hold."""
    action: str = "rollback"
    """What has to be done: ``rollback``, or ``restart``, which saves first and loses no step."""
    settings: tuple[str, ...] = ()
    """What is wrong with the configuration: words of the trainer's command line."""
    moved_at: int | None = None
    """Step after which the run is moved to a newer version of verl, which is broken (:mod:`demo.versions`)."""
    memory_limit_gib: int | None = None
    """Host memory that the run may hold (``VERL_SENTINEL_MEMORY_LIMIT``)."""
    limit_seconds: float = 1800.0
    """A run that takes longer has failed; an idle machine with two cores needs three minutes for one attempt and its
    recovery."""
    course_steps: int = 30
    """A recording goes on for as many steps after the fault…"""
    course_seconds: float = 240.0
    """… or for as many seconds, whichever are over first."""

    @property
    def goes_wrong(self) -> bool:
        return self.fault_step is not None or bool(self.settings) or self.moved_at is not None

    @property
    def expects_recovery(self) -> bool:
        return self.goes_wrong and self.recovers


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
    Scenario(
        "bad_config",
        "the learning rate warms up to a value that ruins the policy: a rollback cannot hold, another rate does",
        fault_step=None,
        steps=400,
        detectors=frozenset({"surge", "kl", "reward", "entropy", "clipping", "level", "gradient_instability"}),
        rungs=("checkpoint", "config"),
        settings=(f"{RATE}=0.01", f"{WARM_UP}=40"),
        limit_seconds=3600.0,
    ),
    Scenario(
        "bad_version",
        "the run is moved to a newer verl that is broken: rollbacks and settings cannot help, the version before does",
        fault_step=None,
        steps=400,
        detectors=frozenset(
            {"non_finite", "surge", "kl", "reward", "entropy", "clipping", "level", "gradient_instability"}
        ),
        rungs=("checkpoint", "version"),
        moved_at=20,
        limit_seconds=3600.0,
    ),
    Scenario(
        "corrupt_checkpoint",
        "one weight becomes NaN, and the checkpoint that is due is damaged on disk: the one before it is taken",
        fault_step=27,
        steps=400,
        detectors=frozenset({"non_finite"}),
        course_steps=12,
    ),
    Scenario(
        "memory_leak",
        "the trainer's process keeps some memory of each step: foreseen, and restarted before it is killed",
        fault_step=16,
        steps=400,
        detectors=frozenset({"memory"}),
        action="restart",
        memory_limit_gib=5,
        course_steps=45,
    ),
    Scenario("healthy", "nothing goes wrong: no page, no rollback", fault_step=None, steps=100),
)

SCENARIOS = {scenario.name: scenario for scenario in _ALL}
