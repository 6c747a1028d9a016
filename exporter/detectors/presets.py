"""Presets: which detectors run, and with which options, for a kind of training. Read by the registry and the CLI.

A preset is a table of options by detector. What a detector does without options is right for GRPO, so that ``grpo`` is
empty and every other preset says only how it differs, and why: where what is healthy for one kind of training is a
failure for another. What a user sets goes before what the preset sets, option by option.

A detector of a signal that a run does not log says nothing, so that a run of one kind under the preset of another loses
some sharpness and breaks nothing. That is why the preset is one for all runs of an exporter and is not guessed.

References: Z. Shao et al., DeepSeekMath (GRPO), arXiv 2402.03300, 2024; J. Schulman et al., Proximal policy
optimization algorithms, arXiv 1707.06347, 2017; Q. Yu et al., DAPO, arXiv 2503.14476, 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.detectors.options import nearest

ENABLED: Final = "enabled"
DEFAULT_PRESET: Final = "grpo"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a preset sets for one detector, and why."""

    options: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of training. ``differences``: by detector."""

    meaning: str
    differences: Mapping[str, Difference]


def _off(why: str, *detectors: str) -> dict[str, Difference]:
    return {name: Difference({ENABLED: False}, why) for name in detectors}


_PPO: Final = Preset(
    "PPO with a value model.",
    {
        "kl": Difference(
            {"matters": 0.05},
            "KL in the reward grows from 0 towards the controller's target (algorithm.kl_ctrl.target_kl, 0.1) within "
            "the first dozens of steps; below half of it that is the controller at work.",
        ),
        "dead_run": Difference(
            {"warn": 3, "page": 6},
            "Advantages that a value model is part of are never all 0 in a healthy step, as they are with GRPO where "
            "every group has one reward; so a short streak is enough.",
        ),
    },
)

_DAPO: Final = Preset(
    "DAPO: GRPO with clip-higher, dynamic sampling, overlong reward shaping and no KL term.",
    {
        "entropy": Difference(
            {"explosion": 2.5},
            "clip_ratio_high lets unlikely tokens grow, so that entropy rises in healthy runs; its collapse stays what "
            "it is.",
        ),
        "response_length": Difference(
            {"explosion": 2.0},
            "The loss counts tokens rather than answers, so that long reasoning grows faster, and the soft overlong "
            "penalty holds it below the limit.",
        ),
        "clipping": Difference(
            {"answers": 0.6},
            "Answers cut at the limit are penalised by degrees or left out of the loss: they mislead the policy less.",
        ),
        "reward": Difference(
            {"plateau_steps": 600},
            "The batch leaves out what is always right and what is always wrong, so that its mean score stays near the "
            "middle while the policy gets better; so a plateau needs twice the time.",
        ),
        "step_time": Difference(
            {"warn_factor": 1.5, "page_factor": 2.0, "fast_factor": 2.2},
            "Dynamic sampling generates again until enough groups teach something: a step takes whole rounds of "
            "generation, and more of them the better the policy gets.",
        ),
        "dead_run": Difference(
            {"warn": 3, "page": 6},
            "Dynamic sampling leaves no group without an advantage in the batch; so a short streak is enough.",
        ),
    },
)

_SFT: Final = Preset(
    "Supervised fine-tuning.",
    {
        **_off(
            "There is no policy that is sampled, and so no such signal.",
            "kl",
            "entropy",
            "response_length",
            "clipping",
            "rollout_mismatch",
            "reward",
            "communication",
            "aborted_rollouts",
            "slow_worker",
            "rollout_failures",
        ),
        "dead_run": Difference(
            {"warn": 3, "page": 6}, "A batch of text always has a gradient; so a short streak without one is enough."
        ),
    },
)

_MANUAL: Final = Preset(
    "The operations manual's fixed thresholds in place of whatever learns from the run what is usual for it.",
    {
        "fixed_limits": Difference(
            {
                "step_seconds_p95": 120.0,
                "step_seconds": 30.0,
                "kl_above": 0.3,
                "kl_below": 0.01,
                "memory_ratio": 0.95,
                "loss_times": 10.0,
                "k": 1,
                "n": 1,
                "severity": "critical",
            },
            "The manual's numbers. KL, memory and loss page at the first step beyond, the step's time at the third in "
            "a row; none within the first 15 steps. A loss that is NaN is non_finite's.",
        ),
        **_off(
            "These learn from the run what is usual; the manual's thresholds stand in their place.",
            "surge",
            "gradient_instability",
            "level",
            "kl",
            "entropy",
            "response_length",
            "clipping",
            "rollout_mismatch",
            "reward",
            "step_time",
            "communication",
            "slow_worker",
        ),
    },
)

PRESETS: Final[Mapping[str, Preset]] = {
    "grpo": Preset("GRPO and its relatives without a value model: what every detector does without options.", {}),
    "ppo": _PPO,
    "dapo": _DAPO,
    "sft": _SFT,
    "manual": _MANUAL,
}


def preset_named(name: object) -> Preset:
    """The preset of this name. Raises ``ValueError`` with the nearest right name.

    >>> preset_named("gpro")
    Traceback (most recent call last):
    ValueError: preset is 'gpro': did you mean 'grpo'? Known: grpo, ppo, dapo, sft, manual
    """
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        raise ValueError(f"preset is {name!r}: {nearest(name, PRESETS)}")
    return preset


def in_effect(preset: str, options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The options by detector that a preset and a user's ``options`` give together; the user's go first.

    A detector that the preset leaves off is on again once the user names it, unless with ``enabled: false``: nobody
    sets a threshold in order that nothing happens. Raises ``ValueError`` for an unknown preset and for options that are
    no table.
    """
    together = {name: dict(difference.options) for name, difference in preset_named(preset).differences.items()}
    for name, chosen in options.items():
        if not isinstance(chosen, Mapping):
            raise ValueError(f"detector {name}: its options are {chosen!r}: they must be a table of names and values")
        together[name] = {**together.get(name, {}), ENABLED: True, **chosen}
    return together
