"""Which signals hang together, and which say nearly the same. Read by agreement, and by recovery to count witnesses.

A table and what follows from it. A finding is a detector and a signal; most signals are canonical ones, and detectors
whose signals are phases, GPUs or nodes have their place by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol

Kind = Literal["configuration", "optimisation", "length", "speed", "memory", "availability", "other"]

_GROUPS: Final[tuple[tuple[Kind, str, tuple[str, ...]], ...]] = (
    ("configuration", "learning rate", ("lr", "critic_lr")),
    ("optimisation", "gradient", ("grad_norm",)),
    ("optimisation", "loss", ("loss", "pg_loss")),
    ("optimisation", "critic", ("critic_loss", "critic_grad_norm", "explained_variance")),
    (
        "optimisation",
        "KL",
        (
            *("kl", "ppo_kl", "kl_coef", "rollout_kl", "rollout_k3_kl", "rollout_ppl_ratio", "rollout_log_ppl_diff"),
            *("rollout_probs_diff", "rollout_probs_correlation"),
        ),
    ),
    ("optimisation", "clipping", ("pg_clipfrac",)),
    ("optimisation", "entropy", ("entropy",)),
    ("length", "length", ("response_length", "clip_ratio")),
    ("optimisation", "advantage", ("advantage_spread",)),
    ("optimisation", "reward", ("reward",)),
    ("optimisation", "validation", ("val_reward", "val_loss")),
    ("memory", "GPU memory", ("gpu_memory", "gpu_memory_allocated")),
    ("memory", "host memory", ("host_memory", "run_memory")),
    ("speed", "speed", ("step_time", "throughput", "tokens", "mfu")),
    ("availability", "rollouts", ("rollout_requests", "rollout_evicted", "aborted_ratio")),
    ("availability", "trainer", ("heartbeat", "process")),
)
"""In causal order, which decides where steps and times do not: a rate moves the gradient, the gradient the policy, the
policy its entropy, the length of what it writes, and at last what it earns. The second name is the witness's: signals
that say nearly the same are one witness."""

_BY_SIGNAL: Final = {signal: (rank, *group[:2]) for rank, group in enumerate(_GROUPS) for signal in group[2]}
_BY_DETECTOR: Final[dict[str, tuple[Kind, str]]] = {
    "stalled_phase": ("availability", "phases"),
    "gpu_idle": ("speed", "speed"),
    "stragglers": ("speed", "speed"),
    "slow_worker": ("speed", "speed"),
    "communication": ("speed", "speed"),
    "step_time": ("speed", "speed"),
    "gpu_memory_pressure": ("memory", "GPU memory"),
}
"""Detectors whose signals are no canonical ones: a phase, a GPU, a node."""

_HANG_TOGETHER: Final = frozenset(
    frozenset(pair) for pair in (("configuration", "optimisation"), ("optimisation", "length"), ("length", "speed"))
)


class Place(NamedTuple):
    """Where a finding stands among others."""

    kind: Kind
    witness: str
    rank: int
    """In causal order; a value that is no number comes before all else of its time."""


class Finding(Protocol):
    """What has to be known of a finding to count witnesses."""

    @property
    def detector(self) -> str: ...
    @property
    def signal(self) -> str: ...


@lru_cache(maxsize=4096)
def place(detector: str, signal: str) -> Place:
    """Kind, witness and causal rank of a finding.

    >>> place("surge", "ppo_kl") == place("kl", "rollout_kl"), place("stalled_phase", "gen").kind
    (True, 'availability')
    """
    if detector in _BY_DETECTOR:
        return Place(*_BY_DETECTOR[detector], len(_GROUPS))
    rank, kind, witness = _BY_SIGNAL.get(signal, (len(_GROUPS), "other", signal))
    if kind == "other" and "memory" in signal:
        kind, witness = "memory", "host memory" if "host" in signal else "GPU memory"
    elif kind == "other" and signal.endswith("_time"):
        kind, witness = "speed", "speed"
    return Place(kind, witness, rank - len(_GROUPS) if detector == "non_finite" else rank)


def hang_together(one: Kind, other: Kind) -> bool:
    """Whether findings of the two kinds may come of one fault. Whatever it is, a run may end of it."""
    return one == other or "availability" in (one, other) or frozenset((one, other)) in _HANG_TOGETHER


def spoils_weights(finding: Finding) -> bool:
    """Whether the weights since the onset are in doubt. Those of a run that is slow, full or dead are sound."""
    return place(finding.detector, finding.signal).kind not in ("speed", "memory", "availability")


def witnesses(findings: Iterable[Finding]) -> int:
    """Signals that agree: the most distinct ones that may come of one fault.

    Two detectors on one signal, or two signals that say nearly the same, are one cause seen twice.
    """
    seen = {place(finding.detector, finding.signal)[:2] for finding in findings}
    return max((sum(hang_together(kind, other) for other, _ in seen) for kind, _ in seen), default=0)
