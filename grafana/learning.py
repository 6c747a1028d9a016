"""What a run learns: each signal with the band that a detector expects, and those without one. For grafana.run."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.models import dashboard as model

from grafana.boards import Line, even
from grafana.panels import BLUE, GREEN, GREY, ORANGE, RED, lines
from grafana.queries import RUN, Query, newest

FROM = "unusual below"
TO = "unusual above"
EXPECTED = "expected"
_BAND = "The grey band is what the detectors expect of the next value; it appears after the first steps of an attempt."


@dataclass(frozen=True)
class Learned:
    """A signal with its band."""

    title: str
    metric: str
    signal: str
    unit: str
    healthy: str
    minimum: float | None = None
    maximum: float | None = None


LEARNED = (
    Learned(
        "Reward",
        "verl_reward",
        "reward",
        "short",
        "Mean score of the batch, before any KL penalty. Healthy: rises, then levels off. A jump upwards is as suspect "
        "as a fall: look for reward hacking in length and validation.",
    ),
    Learned(
        "Validation reward",
        "verl_validation_reward",
        "val_reward",
        "short",
        "Mean of the core validation metrics, on steps that validate. Healthy: follows the reward. Where only the "
        "reward rises, the policy exploits the reward.",
    ),
    Learned(
        "KL from the reference",
        "verl_kl_divergence",
        "kl",
        "suffix: nats",
        "How far the policy is from the reference. Healthy: grows slowly and levels off. Where it runs away, the "
        "policy is leaving what it knew: roll back before it.",
    ),
    Learned(
        "KL of one update",
        "verl_ppo_kl_divergence",
        "ppo_kl",
        "suffix: nats",
        "How far an update moves the policy from the one that sampled. Healthy: small, around 0. Large: the learning "
        "rate is too high, or the batch is stale.",
    ),
    Learned(
        "Entropy",
        "verl_entropy",
        "entropy",
        "suffix: nats",
        "Entropy of the policy per token. Healthy: falls slowly. A collapse to 0 ends exploration, a surge is the "
        "policy falling apart.",
        minimum=0,
    ),
    Learned(
        "Gradient norm",
        "verl_grad_norm",
        "grad_norm",
        "short",
        "Norm of the gradient before clipping. Healthy: within its band. Spikes that heal are usual; a level that "
        "stays above is not.",
        minimum=0,
    ),
    Learned(
        "Loss",
        "verl_loss",
        "loss",
        "short",
        "Loss that is optimised. In policy optimisation its level says little and it may change sign; NaN or a level "
        "far outside of the band says a lot.",
    ),
    Learned(
        "Response length",
        "verl_response_length",
        "response_length",
        "suffix: tokens",
        "Mean length of the responses. Healthy: changes slowly. A fall to a few tokens, or a climb to the limit, is a "
        "policy that games the reward.",
        minimum=0,
    ),
    Learned(
        "Clipped tokens",
        "verl_policy_clip_ratio",
        "pg_clipfrac",
        "percentunit",
        "Share of tokens whose policy ratio was clipped. Healthy: a few per cent at most. High: updates are too large.",
        minimum=0,
    ),
    Learned(
        "Responses cut at the limit",
        "verl_response_clip_ratio",
        "clip_ratio",
        "percentunit",
        "Share of responses that reach the length limit. Healthy: low. Where it climbs, answers are cut before they "
        "are scored: raise the limit or look at the reward.",
        minimum=0,
        maximum=1,
    ),
    Learned(
        "Mismatch: KL of the rollout engine",
        "verl_rollout_kl_divergence",
        "rollout_kl",
        "suffix: nats",
        "How far the rollout engine's policy is from the trainer's. Healthy: around 0. Where it grows, the engine runs "
        "other weights or other numerics than the trainer.",
    ),
    Learned(
        "Mismatch: token probability",
        "verl_rollout_probability_difference",
        "rollout_probs_diff",
        "percentunit",
        "Mean difference of token probability between trainer and rollout engine. Healthy: below one per cent and "
        "flat. A step up after a weight sync means that the sync went wrong.",
        minimum=0,
    ),
)


def banded(learned: Learned) -> model.Panel:
    """The signal, what is expected of it, and the limits beyond which it is unusual."""

    def limit(metric: str) -> str:
        return f'max by (run) ({metric}{{{RUN}, signal="{learned.signal}"}})'

    return lines(
        learned.title,
        f"{learned.healthy} {_BAND}",
        Query(newest(learned.metric), "value"),
        Query(limit("verl_signal_expected"), EXPECTED),
        Query(limit("verl_signal_lower"), FROM),
        Query(limit("verl_signal_upper"), TO),
        unit=learned.unit,
        minimum=learned.minimum,
        maximum=learned.maximum,
        colours={"value": BLUE, EXPECTED: GREY},
        dashed=[EXPECTED],
        band=(FROM, TO),
        calcs=["lastNotNull", "min", "max"],
    )


def learning() -> list[Line]:
    """All of them, three in a line."""
    panels = [banded(one) for one in LEARNED]
    return [even(8, *panels[at : at + 3]) for at in range(0, len(panels), 3)]


def _signal(
    title: str, description: str, unit: str, *metrics: tuple[str, str], minimum: float | None = None
) -> model.Panel:
    queries = [Query(newest(metric), name) for metric, name in metrics]
    return lines(title, description, *queries, unit=unit, minimum=minimum, calcs=["lastNotNull", "min", "max"])


def more() -> list[Line]:
    """Signals of less weight, for a closer look."""
    return [
        even(
            8,
            _signal(
                "Learning rate",
                "Learning rate in effect, as verl logs it. Healthy: the schedule that you set.",
                "short",
                ("verl_learning_rate", "actor"),
            ),
            _signal(
                "Terms of the loss",
                "Policy-gradient term, and the coefficient of the KL term. The term changes sign in a healthy run.",
                "short",
                ("verl_policy_gradient_loss", "policy gradient"),
                ("verl_kl_coefficient", "KL coefficient"),
            ),
            _signal(
                "Spread of the advantages",
                "Largest less smallest advantage of the batch. At 0 all answers score the same and the batch "
                "teaches nothing: look at the reward.",
                "short",
                ("verl_advantage_spread", "spread"),
                minimum=0,
            ),
        ),
        even(
            8,
            _signal(
                "Aborted responses",
                "Share of responses of length 0. Healthy: 0. Otherwise the rollout engine drops requests.",
                "percentunit",
                ("verl_response_aborted_ratio", "aborted"),
                minimum=0,
            ),
            lines(
                "Rollout requests",
                "Requests to the rollout engine a second, by outcome. Healthy: none fails.",
                Query(
                    f"sum by (outcome) (rate(verl_rollout_requests_total{{{RUN}}}[$__rate_interval]))",
                    "{{outcome}}",
                ),
                unit="reqps",
                minimum=0,
                colours={"succeeded": GREEN, "failed": RED, "cancelled": ORANGE},
            ),
            _signal(
                "Mismatch: other measures",
                "KL by the k3 estimate and the mean absolute difference of log perplexity, trainer against "
                "rollout engine. Healthy: around 0.",
                "suffix: nats",
                ("verl_rollout_k3_kl_divergence", "KL (k3)"),
                ("verl_rollout_log_perplexity_difference", "log perplexity"),
            ),
        ),
        even(
            8,
            _signal(
                "Mismatch: ratios",
                "Perplexity of the trainer over that of the rollout engine, and the correlation of token "
                "probabilities. Healthy: both at 1.",
                "short",
                ("verl_rollout_perplexity_ratio", "perplexity"),
                ("verl_rollout_probability_correlation", "correlation"),
            ),
            _signal(
                "Validation loss",
                "Loss on held-out data, of supervised fine-tuning. Healthy: falls. Where it rises while the loss "
                "falls, the model overfits.",
                "short",
                ("verl_validation_loss", "value"),
            ),
            _signal(
                "Dropped prompt groups",
                "Prompt groups dropped in the step because their rollout failed. Healthy: 0.",
                "none",
                ("verl_rollout_evicted_groups", "groups"),
                minimum=0,
            ),
        ),
    ]


def critic() -> Line:
    """The value model, of runs that have one."""
    return even(
        8,
        _signal(
            "Value model: loss",
            "Loss of the value model. Healthy: falls and stays low.",
            "short",
            ("verl_critic_loss", "value"),
            minimum=0,
        ),
        _signal(
            "Value model: gradient norm",
            "Norm of the value model's gradient before clipping. Healthy: without lasting rises.",
            "short",
            ("verl_critic_grad_norm", "value"),
            minimum=0,
        ),
        _signal(
            "Value model: explained variance",
            "Share of the returns' variance that the value model explains. Healthy: rises towards 1. Below 0 it "
            "is worse than a constant.",
            "percentunit",
            ("verl_critic_explained_variance_ratio", "value"),
        ),
    )
