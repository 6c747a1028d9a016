"""Gray release: runs of a candidate cohort against those of a baseline, on what a release may break.

The cohort is what ``VERL_SENTINEL_COHORT`` says of a run; runs without one are a cohort, too. Where all runs are of one
cohort it is both, and everything is 1 to 1.
"""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.models import dashboard as model

from grafana.boards import Board, Line, Row, cohort, even, project
from grafana.panels import BLUE, GREEN, GREY, ORANGE, RED, Step, lines, number
from grafana.queries import NO_COHORT, PROJECT, Query, or_zero
from grafana.tables import Label, Value, rows

BASELINE, CANDIDATE = "baseline", "candidate"
_COLOURS = {BASELINE: GREY, CANDIDATE: BLUE}
_MORE_IS_BAD: tuple[Step, ...] = ((None, GREEN), (1.05, ORANGE), (1.15, RED))
_LESS_IS_BAD: tuple[Step, ...] = ((None, RED), (0.85, ORANGE), (0.95, GREEN))


def members(name: str) -> str:
    """1 for each run of a cohort, of a project that is chosen.

    The cohort is compared after those that have none got a name, so it cannot be a matcher of the series.
    """
    named = f"label_replace(verl_run_info{{{PROJECT}}}, `cohort`, `{NO_COHORT}`, `cohort`, ``)"
    marked = f"label_replace({named}, `member`, `yes`, `cohort`, `${{{name}:regex}}`)"
    return f"max by (run) ({marked} and on (member) label_replace(vector(1), `member`, `yes`, ``, ``))"


def mean(metric: str) -> Callable[[str], str]:
    """Mean of a gauge over the runs of a cohort. One run that has become NaN is no number for all of them."""
    return lambda name: f"avg(max by (run) ({metric}) > -Inf and on (run) {members(name)})"


def _tokens(name: str) -> str:
    rate = "max by (run) (verl_step_tokens) / (max by (run) (verl_step_seconds) > 0)"
    return f"avg(({rate}) and on (run) {members(name)})"


def _memory(name: str) -> str:
    """The fullest: GPUs where there are some, else the host."""
    return (
        f"max(max by (run) (verl_actor_gpu_memory_bytes) > 0 and on (run) {members(name)})"
        f" or max(max by (run) (verl_host_memory_used_bytes) and on (run) {members(name)})"
    )


def _sum(metric: str, name: str) -> str:
    return f"sum(sum by (run) ({metric}) and on (run) {members(name)})"


def _incidents(name: str) -> str:
    opened = f"({or_zero(_sum('max by (run, detector, severity) (verl_incidents_total)', name))})"
    return f"1000 * {opened} / ({_sum('max by (run) (verl_training_steps_total)', name)} > 0)"


def _restarts(name: str) -> str:
    again = _sum("max by (run) (verl_run_attempt) - 1 >= 0", name)
    return f"1000 * {again} / ({_sum('max by (run) (verl_training_steps_total)', name)} > 0)"


def _goodput(name: str) -> str:
    productive = 'max by (run) (verl_run_time_seconds_total{spent="productive"})'
    return f"{_sum(productive, name)} / ({_sum('max by (run, spent) (verl_run_time_seconds_total)', name)} > 0)"


def _quantile(name: str) -> str:
    buckets = "sum by (run, le) (increase(verl_training_step_duration_seconds_bucket[$__range]))"
    return f"histogram_quantile(0.5, sum by (le) ({buckets} and on (run) {members(name)}))"


def ratio(of: Callable[[str], str]) -> str:
    """Candidate over baseline."""
    return f"({of(CANDIDATE)}) / (({of(BASELINE)}) != 0)"


def _against(title: str, healthy: str, of: Callable[[str], str], steps: tuple[Step, ...]) -> model.Panel:
    return number(
        title,
        f"Candidate over baseline; 1 is alike. {healthy}",
        Query(ratio(of), instant=True),
        unit="suffix: ×",
        decimals=2,
        steps=steps,
    )


def _both(
    title: str,
    healthy: str,
    of: Callable[[str], str],
    unit: str,
    minimum: float | None = 0,
    decimals: int | None = None,
) -> model.Panel:
    return lines(
        title,
        healthy,
        Query(of(BASELINE), BASELINE),
        Query(of(CANDIDATE), CANDIDATE),
        unit=unit,
        minimum=minimum,
        decimals=decimals,
        colours=_COLOURS,
        calcs=["lastNotNull", "mean"],
    )


def _ratios() -> Line:
    reward = mean("verl_reward")
    return even(
        4,
        _against(
            "Throughput: ratio",
            "Tokens a second and run. Healthy: 0.95 or more. Below 0.85: do not roll out.",
            _tokens,
            _LESS_IS_BAD,
        ),
        _against(
            "Step time: ratio",
            "Median step in the time range chosen above. Healthy: at most 1.05. Above 1.15: do not roll out.",
            _quantile,
            _MORE_IS_BAD,
        ),
        _against(
            "Memory: ratio",
            "The fullest GPU, or the fullest host without GPUs. Healthy: at most 1.05.",
            _memory,
            _MORE_IS_BAD,
        ),
        _against(
            "Goodput: ratio",
            "Effective training time over the life of the runs. Healthy: 0.95 or more.",
            _goodput,
            _LESS_IS_BAD,
        ),
        number(
            "Incidents: difference",
            "Incidents per 1,000 steps of the candidate less those of the baseline. Healthy: 0 or less. Above: see "
            "which detectors in the dashboard of incidents.",
            Query(f"({_incidents(CANDIDATE)}) - ({_incidents(BASELINE)})", instant=True),
            unit="none",
            decimals=1,
            steps=((None, GREEN), (0.5, ORANGE), (2, RED)),
        ),
        number(
            "Reward: difference",
            "Mean reward of the candidate less that of the baseline. Compare runs of about the same step; the table "
            "shows both. Healthy: around 0 or above.",
            Query(f"({reward(CANDIDATE)}) - ({reward(BASELINE)})", instant=True),
            unit="short",
            decimals=3,
            steps=((None, ORANGE), (-0.02, GREEN)),
        ),
    )


def _table() -> Line:
    return Line(
        7,
        [
            (
                rows(
                    "Both cohorts",
                    "How many runs each cohort has and how far they are. A comparison of few runs, or of runs that are "
                    "far apart in their steps, says little.",
                    [Label("side", "Cohort", 160)],
                    [
                        Value(_sided(lambda name: f"count({members(name)})"), "Runs", "none", 0),
                        Value(_sided(mean("verl_training_step")), "Mean step", "none", 0),
                        Value(_sided(_incidents), "Incidents per 1,000 steps", "none", 1),
                        Value(_sided(_restarts), "Restarts per 1,000 steps", "none", 2),
                        Value(_sided(_goodput), "Goodput", "percentunit", 1),
                        Value(_sided(mean("verl_reward")), "Reward", "short", 3),
                    ],
                    sort=("Cohort", False),
                    no_value="No run of these cohorts is known.",
                ),
                24,
            )
        ],
    )


def _sided(of: Callable[[str], str]) -> str:
    return " or ".join(f'label_replace({of(name)}, "side", "{name}", "", "")' for name in (BASELINE, CANDIDATE))


def _lines() -> list[Line]:
    return [
        even(
            8,
            _both(
                "Throughput",
                "Tokens a second, mean over the runs of each cohort. Healthy: the blue line is not below the grey one.",
                _tokens,
                "suffix: tokens/s",
                decimals=0,
            ),
            _both(
                "Step time",
                "Duration of the newest step, mean over the runs of each cohort. Healthy: blue is not above grey.",
                mean("verl_step_seconds"),
                "s",
                decimals=1,
            ),
            _both(
                "Memory",
                "Memory on the fullest GPU as torch reserves it, or in use on the fullest host without GPUs. Healthy: "
                "blue is not above grey and does not climb alone.",
                _memory,
                "bytes",
            ),
        ),
        even(
            8,
            _both(
                "Stability: incidents per 1,000 steps",
                "Incidents that the detectors opened, for each 1,000 steps. Healthy: blue is not above grey.",
                _incidents,
                "none",
                decimals=1,
            ),
            _both(
                "Stability: restarts per 1,000 steps",
                "Attempts after the first, for each 1,000 steps. Healthy: blue is not above grey.",
                _restarts,
                "none",
                decimals=2,
            ),
            _both(
                "Stability: goodput",
                "Effective training time over the life of the runs. Healthy: blue is not below grey.",
                _goodput,
                "percentunit",
                decimals=1,
            ),
        ),
        even(
            8,
            _both(
                "Reward",
                "Mean reward of each cohort's runs. Healthy: blue follows grey at the same step.",
                mean("verl_reward"),
                "short",
                None,
            ),
            _both(
                "KL from the reference",
                "Mean KL of each cohort's runs. Healthy: blue does not run away from grey.",
                mean("verl_kl_divergence"),
                "suffix: nats",
                None,
            ),
            _both(
                "Mismatch",
                "Mean difference of token probability between trainer and rollout engine. Healthy: alike. A new "
                "version of the engine or of its numerics shows here first.",
                mean("verl_rollout_probability_difference"),
                "percentunit",
            ),
        ),
    ]


def board() -> Board:
    """The dashboard for the one question: roll out or not."""
    return Board(
        uid="verl-gray-release",
        title="verl gray release",
        description="A candidate cohort against a baseline: throughput, memory, step time, stability, reward.",
        since="now-24h",
        refresh="1m",
        variables=[
            project(),
            cohort(BASELINE, "Baseline", "Cohort to compare with.", last=False),
            cohort(CANDIDATE, "Candidate", "Cohort that is judged.", last=True),
        ],
        rows=[
            Row("Candidate against baseline", [_ratios(), _table()]),
            Row("Over time", _lines()),
        ],
    )
