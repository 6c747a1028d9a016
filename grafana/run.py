"""One run: what it learns, each signal with the band that a detector expects, and what was found and done."""

from __future__ import annotations

from grafana.boards import Annotation, Board, Line, Row, even, one_run, project
from grafana.learning import critic, learning, more
from grafana.panels import (
    BLUE,
    GREEN,
    GREY,
    NOT_HEARD,
    NOTHING_OPEN,
    ONE_IS_BAD,
    ORANGE,
    OVER_TIME_STATES,
    PURPLE,
    RED,
    SEVERITIES,
    SHARE_IS_GOOD,
    STATE_WORDS,
    bars,
    lines,
    number,
    states,
)
from grafana.queries import RUN, Query, newest, or_row, or_zero, state_numbers, while_heard
from grafana.tables import Label, Value, rows


def _now() -> Line:
    """What the run is doing."""
    incidents = newest("verl_incident_open", "detector", "signal", where=f'{RUN}, severity="critical"')
    age = f"time() - {newest('verl_last_step_timestamp_seconds')}"
    saved = f"time() - {newest('verl_checkpoint_last_saved_timestamp_seconds')}"
    return even(
        4,
        number(
            "State",
            "What the run is doing. Silent, failed and awaiting approval need a person; the others do not.",
            Query(state_numbers()),
            unit="none",
            meanings=STATE_WORDS,
            no_value=NOT_HEARD,
        ),
        number(
            "Critical",
            "Findings of severity critical that are not resolved. Healthy: 0. Otherwise the table below says which.",
            Query(or_zero(f"count({incidents})")),
            unit="none",
            steps=ONE_IS_BAD,
            no_value=NOT_HEARD,
        ),
        number(
            "Step",
            "Newest step that this attempt has logged. It goes back when the run is resumed from a checkpoint.",
            Query(newest("verl_training_step")),
            unit="none",
            decimals=0,
        ),
        number(
            "Done",
            "Newest step of those that the configuration asks for.",
            Query(f"{newest('verl_training_step')} / ({newest('verl_training_steps_planned')} > 0)"),
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
        ),
        number(
            "Step age",
            "Seconds since the newest step arrived. Healthy: at most about the duration of a step, of a "
            "validation or of a save. Growing without end: the run hangs, see the open phases below.",
            Query(age),
            unit="s",
            decimals=0,
        ),
        number(
            "Time to go",
            "Seconds to the last planned step at the pace of late. – where the plan or the pace is not known, "
            "or nothing trains.",
            Query(newest("verl_run_eta_seconds")),
            unit="s",
            decimals=1,
        ),
        number(
            "Goodput, 1 h",
            "Effective training time: the share of the last hour that went into steps done for the first time. "
            "Healthy: above 90 %. Where the rest went is under Checkpoints and time.",
            Query(while_heard(newest("verl:effective_training_time:ratio1h"))),
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            steps=SHARE_IS_GOOD,
        ),
        number(
            "Checkpoint age",
            "Seconds since the newest checkpoint was saved: what a failure now would cost. – before the first.",
            Query(saved),
            unit="s",
            decimals=0,
        ),
    )


def _findings() -> Line:
    opened = newest("verl_incident_open", "detector", "signal", "severity")
    table = rows(
        "Open findings",
        "What the detectors found and what is not resolved, the first step that it concerns, and the finding with "
        "which it began. Healthy: one row that says so. What to try stands in the console.",
        [
            Label("severity", "Severity", 110, meanings=SEVERITIES),
            Label("detector", "Detector", 170),
            Label("signal", "Signal", 150),
        ],
        [
            Value(or_row(opened, "severity", NOTHING_OPEN)),
            Value(newest("verl_incident_onset_step", "detector", "signal"), "Since step", "none", 0, 100),
        ],
        sort=("Severity", False),
        no_value="The exporter is not heard.",
        hidden=["run"],
    )
    return even(
        7,
        table,
        states(
            "State over time",
            "What state the run was in. Healthy: green from start to finish. Not heard: no exporter spoke of it.",
            Query(f"max({state_numbers()}) or vector(0)", "state"),
            meanings=OVER_TIME_STATES,
        ),
    )


def _time() -> list[Line]:
    return [
        even(
            8,
            lines(
                "Steps and checkpoints",
                "Newest step, newest checkpoint, newest checkpoint that was verified. Healthy: the checkpoints "
                "follow the step in equal stairs. A fall of the step is a resume.",
                Query(newest("verl_training_step"), "step"),
                Query(newest("verl_checkpoint_last_saved_step"), "saved"),
                Query(newest("verl_checkpoint_last_verified_step"), "verified"),
                unit="none",
                minimum=0,
                decimals=0,
                colours={"step": BLUE, "saved": GREY, "verified": GREEN},
            ),
            lines(
                "Where the time went",
                "Seconds of each second that went into new steps, into steps done again, and that were lost to "
                "restarts and stalls. Healthy: nearly all productive.",
                Query(
                    f"sum by (spent) (rate(verl_run_time_seconds_total{{{RUN}}}[15m]))"
                    f" / on () group_left () (sum(rate(verl_run_time_seconds_total{{{RUN}}}[15m])) > 0)",
                    "{{spent}}",
                ),
                unit="percentunit",
                minimum=0,
                maximum=1,
                decimals=0,
                stacked=True,
                colours={
                    "productive": GREEN,
                    "replay": PURPLE,
                    "restart": ORANGE,
                    "stall": RED,
                    "other": GREY,
                },
            ),
            bars(
                "Open phases",
                "Age of each phase that has begun and not ended. Healthy: none older than it usually takes; one "
                "that grows without end is where the run hangs.",
                Query(
                    or_row(f"max by (phase) (verl_phase_open_seconds{{{RUN}}})", "phase", "none is open"),
                    "{{phase}}",
                    instant=True,
                ),
                unit="s",
                decimals=0,
            ),
        ),
    ]


ANNOTATIONS = (
    Annotation(
        "Critical findings",
        newest("verl_incident_open", "detector", "signal", where=f'{RUN}, severity="critical"'),
        RED,
        "{{detector}}",
        "{{signal}}: critical",
        "detector,signal",
    ),
    Annotation(
        "Warnings",
        newest("verl_incident_open", "detector", "signal", where=f'{RUN}, severity="warning"'),
        ORANGE,
        "{{detector}}",
        "{{signal}}: warning",
        "detector,signal",
    ),
    Annotation(
        "Checkpoints",
        f"1000 * {newest('verl_checkpoint_last_saved_timestamp_seconds')}",
        BLUE,
        "Checkpoint saved",
        at_value=True,
    ),
    Annotation(
        "Resumes",
        f"changes({'verl_run_attempt'}{{{RUN}}}[$__rate_interval]) > 0",
        PURPLE,
        "Resumed",
        "A new attempt began.",
    ),
    Annotation(
        "Rollbacks",
        f"max by (run) (verl_recovery_in_progress{{{RUN}}}) > 0",
        GREEN,
        "Rollback",
        "From the command to its end.",
    ),
    Annotation(
        "Recoveries that ended",
        f"max by (run, outcome) (verl_recoveries_total{{{RUN}}} unless verl_recoveries_total{{{RUN}}}"
        f" offset $__rate_interval or verl_recoveries_total{{{RUN}}}"
        f" > verl_recoveries_total{{{RUN}}} offset $__rate_interval)",
        GREEN,
        "Recovery {{outcome}}",
        tags="outcome",
    ),
)


def board() -> Board:
    """The dashboard to which alerts lead."""
    return Board(
        uid="verl-run",
        title="verl run",
        description="One run: what it learns, with what was expected of it, and what was found and done.",
        since="now-6h",
        refresh="10s",
        variables=[project(), one_run()],
        annotations=ANNOTATIONS,
        rows=[
            Row("Now", [_now(), _findings()]),
            Row("Learning", learning()),
            Row("Checkpoints and time", _time()),
            Row("More of learning", more(), collapsed=True),
            Row("Value model", [critic()], collapsed=True),
        ],
    )
