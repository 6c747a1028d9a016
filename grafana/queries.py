"""PromQL as the dashboards write it: which runs a query is about, and the few expressions that several panels share.

Read by the modules of the dashboards. A variable stands in a raw string with the format ``regex``, because a run id may
hold any printable character. In a raw string all of them stand for themselves but the backtick, which ends it. What
Grafana makes of a plain ``$run`` fits double quotes and breaks at a double quote, unless its server has the feature
toggle ``prometheusSpecialCharsInLabelValues``; ``doublequote`` breaks at a backslash. No format holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

RUN: Final = "run=~`${run:regex}`"
"""Matches the run, or the runs, that are chosen."""
PROJECT: Final = "project=~`${project:regex}`"
NODE: Final = "node=~`${node:regex}`"

NO_COHORT: Final = "(none)"
"""What a run without a cohort is called where one is chosen; no value of a variable is empty."""

WEIGHT_SYNC: Final = 'phase=~"update_weights|sync_rollout_weights"'
"""verl's names for new weights on their way to the rollout engine, of its V1 and its legacy trainer."""

STATES: Final = (
    "starting",
    "training",
    "silent",
    "awaiting_approval",
    "recovering",
    "failed",
    "finished",
    "stopped",
)
"""States of a run; a chart shows each as its number here, counted from 1."""

Format = Literal["time_series", "table", "heatmap"]


@dataclass(frozen=True)
class Query:
    """One query of a panel. ``legend`` names its series and may hold ``{{label}}``."""

    expr: str
    legend: str = ""
    instant: bool = False
    format: Format = "time_series"
    interval: str = ""
    """Least step, such as ``1m``."""


def newest(metric: str, *by: str, where: str = RUN) -> str:
    """The value of a gauge, whichever exporter says it.

    >>> newest("verl_loss")
    'max by (run) (verl_loss{run=~`${run:regex}`})'
    """
    return f"max by ({', '.join(('run', *by))}) ({metric}{{{where}}})"


def of_project(expr: str) -> str:
    """Those series of an expression with the label ``run`` whose run belongs to the chosen projects."""
    return f"({expr}) and on (run) verl_run_info{{{PROJECT}}}"


def info(*labels: str, where: str = f"{RUN}, {PROJECT}") -> str:
    """1 for each chosen run, with labels that only ``verl_run_info`` has."""
    return f"max by ({', '.join(('run', *labels))}) (verl_run_info{{{where}}})"


def state_numbers(where: str = RUN) -> str:
    """The state of each run as its number in :data:`STATES`."""
    parts = (
        f'{number} * group by (run) (verl_run_state{{{where}, state="{state}"}} == 1)'
        for number, state in enumerate(STATES, 1)
    )
    return " or ".join(parts)


HEARD: Final = "max(verl_sentinel_ready)"
"""There while an exporter is scraped, and 1 while one of them takes and keeps pushes."""


def or_zero(expr: str, while_there: str = f"({HEARD} == 1)") -> str:
    """A count without labels, or 0 where it gives nothing and something is there to say so.

    0 says that all is well; of an exporter that is not heard, or not ready, nobody knows that.
    """
    return f"(({expr}) > 0) or 0 * {while_there}"


def or_row(expr: str, label: str, text: str, while_there: str = f"({HEARD} == 1)") -> str:
    """The expression, or one row or line of 0 named ``text`` where it gives nothing: nothing is no fault."""
    return f"({expr}) or on () label_replace(0 * {while_there}, `{label}`, `{text}`, ``, ``)"


def while_heard(expr: str) -> str:
    """What is worked out over a window goes on for as long as the window after the last sample, unless it is cut."""
    return f"({expr}) and on () {HEARD}"


def exporter_state() -> str:
    """0 where an exporter is down or none is there, 1 where one is not ready, 2 where all are ready."""
    return '(min(up{job="verl-sentinel"}) == 0) or 1 + min(verl_sentinel_ready) or vector(0)'


def weight_sync_share(window: str, where: str = RUN, offset: str = "") -> str:
    """Share of the time of the steps that new weights took."""
    sync = f"sum(rate(verl_phase_duration_seconds_sum{{{where}, {WEIGHT_SYNC}}}[{window}]{offset}))"
    return f"{sync} / (sum(rate(verl_training_step_duration_seconds_sum{{{where}}}[{window}]{offset})) > 0)"


def step_quantile(quantile: float, window: str, where: str = RUN, offset: str = "") -> str:
    """Seconds that a step takes at most, in that share of the steps."""
    buckets = f"rate(verl_training_step_duration_seconds_bucket{{{where}}}[{window}]{offset})"
    return f"histogram_quantile({quantile}, sum by (le) ({buckets}))"


def productive_share(window: str, where: str = RUN) -> str:
    """Effective training time: the share of the time that went into steps done for the first time."""
    productive = f'sum(increase(verl_run_time_seconds_total{{{where}, spent="productive"}}[{window}]))'
    return f"{productive} / (sum(increase(verl_run_time_seconds_total{{{where}}}[{window}])) > 0)"
