"""The exporter and the monitoring itself: what watches the watcher."""

from __future__ import annotations

from grafana.boards import Board, Line, Row, even
from grafana.panels import BLUE, EXPORTER_STATES, GREEN, GREY, NOT_HEARD, ONE_IS_BAD, ORANGE, RED, lines, number, states
from grafana.queries import Query, exporter_state, or_row, or_zero, while_heard
from grafana.tables import Label, Value, rows

_UP = {"0": ("down", RED), "1": ("up", GREEN)}
_JOB = 'job="verl-sentinel"'
_OURS = 'alertname=~"Verl.*|Watchdog"'
"""Alerts of these rules; a Prometheus may have those of others."""
_WATCHDOG = 'max(ALERTS{alertname="Watchdog", alertstate="firing"})'
"""There while the rules are evaluated."""


def rate(metric: str, by: str = "", where: str = "") -> str:
    """A counter a second, over all exporters."""
    inner = f"rate({metric}{where and f'{{{where}}}'}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _per(summary: str) -> str:
    """Mean of a summary's observations."""
    return f"{rate(f'{summary}_sum')} / ({rate(f'{summary}_count')} > 0)"


def _now() -> Line:
    failures = " or ".join(
        f"label_replace(sum({metric}), `of`, `{metric}`, ``, ``)"
        for metric in (
            "verl_sentinel_faults_total",
            "verl_sentinel_journal_failures_total",
            "verl_sentinel_detector_faults_total",
            "verl_sentinel_scrape_faults_total",
            "verl_sentinel_journal_lost_entries_total",
        )
    )
    return even(
        4,
        number(
            "Exporter",
            "Whether the exporter takes pushes and keeps them, of several the worst. Not ready: GET /readyz says why; "
            "a full disk is usual.",
            Query(exporter_state()),
            unit="none",
            steps=((None, RED), (2, GREEN)),
            meanings=EXPORTER_STATES,
            no_value="down",
            no_colour=RED,
        ),
        number(
            "Alerts that fire",
            "Alerts of verl-sentinel that fire, the Watchdog not counted. Healthy: 0. The table below says which.",
            Query(or_zero(f'count(ALERTS{{{_OURS}, alertname!="Watchdog", alertstate="firing"}})', _WATCHDOG)),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
            no_value="no rules",
            no_colour=RED,
        ),
        number(
            "Faults",
            "Faults of the exporter's own since its start: entries not taken over, transactions that failed, detectors "
            "that failed, runs not shown, entries lost. Healthy: 0. Otherwise: its log says which, and please tell us.",
            Query(or_zero(f"sum({failures})")),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
            no_value=NOT_HEARD,
        ),
        number(
            "Runs watched",
            "Runs that the exporter watches, of those that it may. Orange from 80 %: raise limits.runs before new runs "
            "are refused.",
            Query("sum(verl_sentinel_runs) / (sum(verl_sentinel_runs_limit) > 0)"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            steps=((None, BLUE), (0.8, ORANGE), (0.95, RED)),
        ),
        number(
            "Answer to a push",
            "Mean time from the arrival of a push to its answer. Healthy: milliseconds. Seconds: the disk or the "
            "detectors are too slow; see below.",
            Query(while_heard(_per("verl_sentinel_push_duration_seconds"))),
            unit="s",
            decimals=1,
            steps=((None, BLUE), (0.5, ORANGE), (2, RED)),
            spark=True,
        ),
        number(
            "CPU",
            "Cores that the exporter takes. Healthy: well below 1. At 1 it is as fast as it can be.",
            Query(while_heard(rate("process_cpu_seconds_total", where=_JOB))),
            unit="suffix: cores",
            decimals=2,
            steps=((None, BLUE), (0.7, ORANGE), (0.9, RED)),
            spark=True,
        ),
    )


def _intake() -> list[Line]:
    return [
        even(
            8,
            lines(
                "Pushes",
                "Pushes a second that were accepted, and that had been accepted before (a sender that did not get the "
                "answer). Healthy: hardly a duplicate.",
                Query(rate("verl_sentinel_batches_total", "outcome"), "{{outcome}}"),
                unit="reqps",
                minimum=0,
                colours={"accepted": BLUE, "duplicate": ORANGE},
            ),
            lines(
                "Samples and steps",
                "Metric values and steps in accepted pushes, a second.",
                Query(rate("verl_sentinel_ingested_samples_total"), "samples"),
                Query(rate("verl_sentinel_ingested_steps_total"), "steps"),
                unit="short",
                minimum=0,
            ),
            lines(
                "Refused requests",
                "Requests refused, a second, by the reason of the answer. Healthy: 0. token: a wrong or old token. "
                "too_many_runs: raise limits.runs. journal: the disk.",
                Query(
                    or_row(rate("verl_sentinel_rejected_total", "reason"), "reason", "none"),
                    "{{reason}}",
                ),
                unit="reqps",
                minimum=0,
            ),
        ),
        even(
            8,
            lines(
                "Time of an answer",
                "Mean time from the arrival of a push to its answer, and what the disk takes in 99 of 100 "
                "transactions. Healthy: milliseconds.",
                Query(_per("verl_sentinel_push_duration_seconds"), "push, mean"),
                Query(
                    "histogram_quantile(0.99, "
                    + rate("verl_sentinel_journal_commit_duration_seconds_bucket", "le")
                    + ")",
                    "disk, 99 %",
                ),
                unit="s",
                minimum=0,
                colours={"push, mean": BLUE, "disk, 99 %": GREY},
            ),
            lines(
                "Journal",
                "Entries that wait to be written. Healthy: around 0. Where it grows, the disk is slower than the "
                "pushes.",
                Query("sum(verl_sentinel_journal_queue_entries)", "waiting"),
                unit="none",
                minimum=0,
                decimals=0,
                colours={"waiting": BLUE},
                calcs=["lastNotNull", "max"],
            ),
            lines(
                "Size on disk",
                "Pushes in the journal that are not in the history yet, and the history. Healthy: the journal goes up "
                "and down; the history ends at its bound.",
                Query("sum(verl_sentinel_journal_bytes)", "journal"),
                Query("sum(verl_sentinel_history_bytes)", "history"),
                unit="bytes",
                minimum=0,
            ),
        ),
    ]


def _judging() -> Line:
    return even(
        8,
        lines(
            "Detectors",
            "Share of a core that each detector takes, over all runs; the ten largest. Healthy: per cents in all.",
            Query(f"topk(10, {rate('verl_sentinel_detector_duration_seconds_sum', 'detector')})", "{{detector}}"),
            unit="percentunit",
            minimum=0,
            decimals=1,
            stacked=True,
        ),
        lines(
            "Scrapes",
            "Mean time that a scrape takes inside the exporter, by stage, and in all as Prometheus sees it. Healthy: "
            "far below the scrape interval.",
            Query(
                f"{rate('verl_sentinel_scrape_duration_seconds_sum', 'stage')}"
                f" / ({rate('verl_sentinel_scrape_duration_seconds_count', 'stage')} > 0)",
                "{{stage}}",
            ),
            Query(f"max(scrape_duration_seconds{{{_JOB}}})", "whole scrape"),
            unit="s",
            minimum=0,
        ),
        lines(
            "Series",
            "Samples in a scrape of the exporter. Healthy: grows with runs, their GPUs and their phases only.",
            Query(f"sum(scrape_samples_scraped{{{_JOB}}})", "samples"),
            unit="short",
            minimum=0,
            colours={"samples": BLUE},
        ),
    )


def _process() -> Line:
    return even(
        8,
        lines(
            "Memory of the exporter",
            "Resident memory. Healthy: grows with the runs and levels off.",
            Query(f"sum(process_resident_memory_bytes{{{_JOB}}})", "resident"),
            unit="bytes",
            minimum=0,
            colours={"resident": BLUE},
        ),
        lines(
            "CPU of the exporter",
            "Cores that the process takes. Healthy: well below 1.",
            Query(rate("process_cpu_seconds_total", where=_JOB), "cores"),
            unit="short",
            minimum=0,
            decimals=2,
            colours={"cores": BLUE},
        ),
        lines(
            "Open files",
            "File descriptors that are open, of those that may be: connections of trainers, mostly. Red from 90 %.",
            Query(f"max(process_open_fds{{{_JOB}}} / (process_max_fds{{{_JOB}}} > 0))", "open"),
            unit="percentunit",
            minimum=0,
            decimals=1,
            steps=((None, GREEN), (0.9, RED)),
            colours={"open": BLUE},
        ),
    )


def _sending() -> Line:
    return even(
        8,
        lines(
            "Messages to people",
            "Messages handed to Feishu, DingTalk and others, a second, by outcome. Healthy: none fails. Where all "
            "fail, the target's address or token is wrong.",
            Query(
                or_row(rate("verl_sentinel_notifications_total", "outcome"), "outcome", "delivered"),
                "{{outcome}}",
            ),
            unit="short",
            minimum=0,
            colours={"delivered": GREEN, "failed": RED},
        ),
        lines(
            "Sink: how far behind",
            "Age of the oldest entry that is not in the sink (InfluxDB) yet. Healthy: seconds. Where it grows, the "
            "sink is away or too slow; nothing is lost until its bound is reached.",
            Query("max by (sink) (verl_sentinel_sink_lag_seconds)", "{{sink}}"),
            unit="s",
            minimum=0,
            no_value="No sink is configured, or the exporter is not heard.",
        ),
        lines(
            "Sink: points",
            "Points that the sink took, and that it will never take, a second. Healthy: none of the latter.",
            Query(rate("verl_sentinel_sink_written_points_total", "sink"), "{{sink}}: taken"),
            Query(rate("verl_sentinel_sink_rejected_points_total", "sink"), "{{sink}}: refused"),
            unit="short",
            minimum=0,
            no_value="No sink is configured, or the exporter is not heard.",
        ),
    )


def _monitoring() -> list[Line]:
    alerts = rows(
        "Alerts",
        "Alerts that fire or are pending. Healthy: the Watchdog alone, which always fires so that its absence shows "
        "that alerting is broken.",
        [
            Label("alertname", "Alert"),
            Label(
                "severity",
                "Severity",
                110,
                meanings={"critical": ("critical", RED), "warning": ("warning", ORANGE), "none": ("none", GREY)},
            ),
            Label("alertstate", "State", 100),
            Label("run", "Run", 220),
        ],
        [Value(f"max by (alertname, severity, alertstate, run) (ALERTS{{{_OURS}}})")],
        sort=("Severity", False),
        no_value="No rule of verl-sentinel is loaded: not even the Watchdog fires.",
    )
    return [
        Line(
            9,
            [
                (alerts, 12),
                (
                    states(
                        "Scraped",
                        "Whether Prometheus could scrape each of its jobs. Healthy: green. Red for the exporter: no "
                        "run is watched.",
                        Query("min by (job) (up)", "{{job}}"),
                        meanings=_UP,
                    ),
                    12,
                ),
            ],
        ),
        even(
            8,
            lines(
                "Rules",
                "Seconds that the evaluation of each group of rules takes, and evaluations a second that failed. "
                "Healthy: milliseconds, and none fails.",
                Query('max(prometheus_rule_group_last_duration_seconds{rule_group=~".*verl.*"})', "slowest group"),
                Query(rate("prometheus_rule_evaluation_failures_total"), "failures a second"),
                unit="short",
                minimum=0,
                colours={"slowest group": BLUE, "failures a second": RED},
            ),
            lines(
                "Alerts to Alertmanager",
                "Alerts that Prometheus sends to Alertmanager and drops, a second. Healthy: the Watchdog's few, and "
                "none dropped.",
                Query(rate("prometheus_notifications_sent_total"), "sent"),
                Query(rate("prometheus_notifications_dropped_total"), "dropped"),
                unit="short",
                minimum=0,
                colours={"sent": BLUE, "dropped": RED},
            ),
            lines(
                "Alertmanager to people",
                "Notifications of Alertmanager a second, and those that failed, by integration. Healthy: none fails. A "
                "failing one needs a look at its receiver's address and token.",
                Query(rate("alertmanager_notifications_total"), "all"),
                Query(
                    f"{rate('alertmanager_notifications_failed_total', 'integration')} > 0"
                    " or on () 0 * sum(alertmanager_notifications_total)",
                    "failed: {{integration}}",
                ),
                unit="short",
                minimum=0,
                colours={"all": BLUE},
            ),
        ),
    ]


def board() -> Board:
    """The dashboard for the day on which nothing is heard."""
    return Board(
        uid="verl-exporter",
        title="verl exporter and monitoring",
        description="Whether the exporter, Prometheus and Alertmanager do their part.",
        since="now-6h",
        refresh="30s",
        rows=[
            Row("Now", [_now()]),
            Row("Monitoring", _monitoring()),
            Row("Intake", _intake()),
            Row("Judging and scrapes", [_judging()]),
            Row("Sending on", [_sending()]),
            Row("Process", [_process()], collapsed=True),
        ],
    )
