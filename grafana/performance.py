"""How fast a run goes and where its time is spent: steps, phases, tokens, weight sync, and all of it a week ago."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from grafana.boards import Board, Line, Row, even, one_run, project, window
from grafana.panels import BLUE, GREY, ORANGE, RED, heat_map, lines, number
from grafana.queries import RUN, WEIGHT_SYNC, Query, newest, step_quantile, weight_sync_share, while_heard

_TOKENS = f"{newest('verl_step_tokens')} / ({newest('verl_step_seconds')} > 0)"
_EXPERIMENT = "project, experiment"
_NOW, _THEN = "now", "a week ago"


def of_experiment(by_run: str, offset: str = "") -> str:
    """Mean of an expression over the runs of the chosen run's experiment; ``by_run`` has the label ``run`` only.

    A run seldom lasts a week, an experiment does: what is compared is the same experiment, in whatever run.
    """
    names = f"max by (run, {_EXPERIMENT}) (verl_run_info{offset})"
    chosen = f"max by ({_EXPERIMENT}) (verl_run_info{{{RUN}}})"
    return f"avg((({by_run}) * on (run) group_left ({_EXPERIMENT}) {names}) and on ({_EXPERIMENT}) {chosen})"


def _mean(metric: str, offset: str) -> str:
    return f"max by (run) (avg_over_time({metric}[1h]{offset}))"


def _share(offset: str) -> str:
    sync = f"sum by (run) (rate(verl_phase_duration_seconds_sum{{{WEIGHT_SYNC}}}[1h]{offset}))"
    return f"{sync} / (sum by (run) (rate(verl_training_step_duration_seconds_sum[1h]{offset})) > 0)"


def _now() -> Line:
    return even(
        4,
        number(
            "Step, median",
            "Half of the steps took at most so long, in the window chosen above. Compare with a week ago below.",
            Query(while_heard(step_quantile(0.5, "$window"))),
            unit="s",
            decimals=1,
            spark=True,
        ),
        number(
            "Step, 90 %",
            "Nine of ten steps took at most so long. Far above the median: single steps are slow; see the heat map.",
            Query(while_heard(step_quantile(0.9, "$window"))),
            unit="s",
            decimals=1,
            spark=True,
        ),
        number(
            "Tokens a second",
            "Tokens of the newest step, prompts included, over its duration: all GPUs of the run together.",
            Query(_TOKENS),
            unit="suffix: tokens/s",
            decimals=0,
            spark=True,
        ),
        number(
            "Tokens a second and GPU",
            "Throughput as verl logs it. Healthy: flat. It falls with longer answers, too: see tokens of a step.",
            Query(newest("verl_throughput_tokens_per_second")),
            unit="suffix: tokens/s",
            decimals=0,
            spark=True,
        ),
        number(
            "MFU",
            "Model FLOPs utilisation of the update. Healthy: what it was yesterday. On a CPU it says nothing.",
            Query(newest("verl_model_flops_utilization_ratio")),
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            spark=True,
        ),
        number(
            "Weight sync share",
            "Share of the time of the steps in which new weights go to the rollout engine. Healthy: a few per cent. "
            "Orange from 10 %: look at the network and at where the engine's workers are.",
            Query(while_heard(weight_sync_share("$window"))),
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            steps=((None, BLUE), (0.1, ORANGE), (0.25, RED)),
            spark=True,
        ),
    )


def _steps() -> Line:
    return even(
        10,
        heat_map(
            "Step time, heat map",
            "How many steps took how long. Healthy: one dark band. A second band is validation or saving; a band that "
            "climbs is a run that becomes slower.",
            Query(
                f"sum by (le) (increase(verl_training_step_duration_seconds_bucket{{{RUN}}}[$__interval]))",
                "{{le}}",
                format="heatmap",
                interval="1m",
            ),
            unit="s",
        ),
        lines(
            "Step time, quantiles",
            "What half, nine of ten, and ninety-nine of a hundred steps took at most, in the window chosen above. "
            "Healthy: flat and close together.",
            Query(step_quantile(0.5, "$window"), "50 %"),
            Query(step_quantile(0.9, "$window"), "90 %"),
            Query(step_quantile(0.99, "$window"), "99 %"),
            unit="s",
            minimum=0,
            decimals=1,
            colours={"50 %": BLUE, "90 %": ORANGE, "99 %": RED},
            calcs=["lastNotNull", "max"],
        ),
    )


def _phases() -> Line:
    phases = f"sum by (phase) (rate(verl_phase_duration_seconds_sum{{{RUN}, phase!=`step`}}[$window]))"
    steps = f"sum(rate(verl_training_step_duration_seconds_count{{{RUN}}}[$window]))"
    sync = f"{RUN}, {WEIGHT_SYNC}"
    return Line(
        10,
        [
            (
                lines(
                    "Phases of a step",
                    "Seconds of a mean step by phase, one on the other. Phases that overlap add up to more than the "
                    "step. Healthy: the same thickness all along; the one that grows is what makes the run slower.",
                    Query(f"{phases} / on () group_left () ({steps} > 0)", "{{phase}}"),
                    unit="s",
                    minimum=0,
                    decimals=1,
                    stacked=True,
                    calcs=["lastNotNull", "mean"],
                ),
                16,
            ),
            (
                lines(
                    "Weight sync",
                    "Seconds of one sync of new weights to the rollout engine: the newest, and the mean of the window. "
                    "Healthy: flat.",
                    Query(newest("verl_weight_sync_seconds"), "newest"),
                    Query(
                        f"sum(rate(verl_phase_duration_seconds_sum{{{sync}}}[$window]))"
                        f" / (sum(rate(verl_phase_duration_seconds_count{{{sync}}}[$window])) > 0)",
                        "mean",
                    ),
                    unit="s",
                    minimum=0,
                    colours={"newest": GREY, "mean": BLUE},
                ),
                8,
            ),
        ],
    )


def _throughput() -> Line:
    return even(
        8,
        lines(
            "Tokens a second, over time",
            "Tokens of a step over its duration, all GPUs together, and for each GPU as verl logs it.",
            Query(_TOKENS, "run"),
            Query(newest("verl_throughput_tokens_per_second"), "each GPU"),
            unit="suffix: tokens/s",
            minimum=0,
            decimals=0,
            calcs=["lastNotNull", "mean"],
        ),
        lines(
            "MFU, over time",
            "Model FLOPs utilisation of the update. Healthy: flat. It falls where the batches become smaller or a GPU "
            "slower.",
            Query(newest("verl_model_flops_utilization_ratio"), "MFU"),
            unit="percentunit",
            minimum=0,
            decimals=1,
            colours={"MFU": BLUE},
            calcs=["lastNotNull", "mean"],
        ),
        lines(
            "Tokens of a step",
            "Tokens of each step, prompts included. Where a step takes longer and this grows as well, the answers are "
            "longer and nothing is broken.",
            Query(newest("verl_step_tokens"), "tokens"),
            unit="short",
            minimum=0,
            colours={"tokens": BLUE},
            calcs=["lastNotNull", "mean"],
        ),
    )


def _week() -> Line:
    def against(title: str, description: str, unit: str, now: str, then: str, decimals: int) -> model.Panel:
        return lines(
            title,
            f"{description} Hourly means over the runs of this experiment, now and a week ago. There is no second line "
            "where the experiment is younger than a week.",
            Query(now, _NOW),
            Query(then, _THEN),
            unit=unit,
            minimum=0,
            decimals=decimals,
            colours={_NOW: BLUE, _THEN: GREY},
            dashed=[_THEN],
            calcs=["lastNotNull", "mean"],
        )

    week = " offset 1w"
    return even(
        8,
        against(
            "Step time, week on week",
            "Healthy: the lines are close. 30 % above is worth a look at what was changed.",
            "s",
            of_experiment(_mean("verl_step_seconds", "")),
            of_experiment(_mean("verl_step_seconds", week), week),
            1,
        ),
        against(
            "Throughput, week on week",
            "Tokens a second and GPU. Healthy: the lines are close.",
            "suffix: tokens/s",
            of_experiment(_mean("verl_throughput_tokens_per_second", "")),
            of_experiment(_mean("verl_throughput_tokens_per_second", week), week),
            0,
        ),
        against(
            "Weight sync share, week on week",
            "Healthy: the lines are close. 30 % more than a week ago is a ticket (VerlWeightSyncShareUp).",
            "percentunit",
            of_experiment(_share("")),
            of_experiment(_share(week), week),
            1,
        ),
    )


def board() -> Board:
    """The dashboard for whoever wants a run to be faster."""
    return Board(
        uid="verl-performance",
        title="verl performance",
        description="Step time, phases, tokens a second, MFU and weight sync of a run, and a week ago.",
        since="now-24h",
        refresh="1m",
        variables=[project(), one_run(), window("15m")],
        rows=[
            Row("Now", [_now()]),
            Row("Steps", [_steps()]),
            Row("Phases", [_phases()]),
            Row("Throughput", [_throughput()]),
            Row("Week on week", [_week()]),
        ],
    )
