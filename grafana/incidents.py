"""Incidents and recoveries: what is open, what waits for a person, what was done, and what the audit log counts."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from grafana.boards import Board, Line, Row, even, project, runs, to_run
from grafana.panels import (
    GREEN,
    GREY,
    NOT_HEARD,
    NOTHING_OPEN,
    ONE_IS_BAD,
    ONE_IS_ODD,
    ORANGE,
    PURPLE,
    RED,
    SEVERITIES,
    bars,
    lines,
    number,
    words_of,
)
from grafana.queries import RUN, Query, info, newest, of_project, or_row, or_zero
from grafana.tables import Label, Value, rows

PLAN = "${console:raw}/console/recovery?run=${__data.fields.run:percentencode}"
"""The console's page of the run's newest recovery, where it is approved, refused or aborted."""
CONSOLE_RUN = "${console:raw}/console/run?id=${__data.fields.run:percentencode}"
_OUTCOMES = {"succeeded": GREEN, "failed": RED, "refused": ORANGE, "observed": GREY}


def _total(metric: str) -> str:
    return or_zero(f"sum({of_project(newest(metric))})")


def _situations(severity: str) -> str:
    opened = newest("verl_situation_open", "detector", "signal", where=f'{RUN}, severity="{severity}"')
    return or_zero(f"count({of_project(opened)})")


def _now() -> Line:
    return even(
        4,
        number(
            "Plans await approval",
            "Recoveries that are planned and wait for a person. Healthy: 0. Otherwise: the table below leads to the "
            "console's page, where a plan is approved or refused.",
            Query(_total("verl_recovery_awaiting_approval")),
            unit="none",
            decimals=0,
            steps=ONE_IS_ODD,
            no_value=NOT_HEARD,
        ),
        number(
            "Critical",
            "Situations of severity critical that are not resolved. Healthy: 0. Otherwise: see the table of open "
            "incidents.",
            Query(_situations("critical")),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
            no_value=NOT_HEARD,
        ),
        number(
            "Warnings",
            "Situations of severity warning that are not resolved. They can wait for the day.",
            Query(_situations("warning")),
            unit="none",
            decimals=0,
            steps=ONE_IS_ODD,
            no_value=NOT_HEARD,
        ),
        number(
            "In progress",
            "Recoveries that are carried out now. More than a few minutes: see the stages below.",
            Query(_total("verl_recovery_in_progress")),
            unit="none",
            decimals=0,
            steps=((None, GREEN), (1, PURPLE)),
            no_value=NOT_HEARD,
        ),
        number(
            "Failed",
            "Runs whose recovery failed or was not allowed, until the next success or until a person acknowledged it. "
            "Healthy: 0. Otherwise: the audit log says why; the exporter does not try again.",
            Query(_total("verl_recovery_failed")),
            unit="none",
            decimals=0,
            steps=ONE_IS_BAD,
            no_value=NOT_HEARD,
        ),
        number(
            "Least budget left",
            "Recoveries that the policy still allows in 24 hours, of the run that has the fewest. 0: the next fault of "
            "that run is for a person.",
            Query(f"min({of_project(newest('verl_recovery_budget_remaining'))})"),
            unit="none",
            decimals=0,
            steps=((None, RED), (1, ORANGE), (2, GREEN)),
        ),
    )


def _open() -> Line:
    waits = of_project(f"{newest('verl_recovery_awaiting_approval')} == 1")
    plans = rows(
        "Plans that await approval",
        "One row for each plan; a click on its last column opens the console's page with the evidence, the diff of the "
        "configuration and the target, where it is approved or refused. The run goes on as it is until then.",
        [Label("run", "Run")],
        [
            Value(
                or_row(waits, "run", "No plan waits for approval."),
                "Plan",
                "none",
                width=160,
                meanings={"0": ("–", GREY), "1": ("review and decide", ORANGE)},
                link=("Open the plan in the console", PLAN),
            ),
            Value(
                f"({newest('verl_recovery_stage_seconds', where=f'{RUN}, stage=`approval`')}) and on (run) ({waits})",
                "Waits for",
                "s",
                0,
                100,
            ),
            Value(f"{newest('verl_recovery_target_step')} and on (run) ({waits})", "Back to step", "none", 0, 110),
        ],
        sort=("Waits for", True),
        no_value="The exporter is not heard.",
    )
    opened = of_project(newest("verl_incident_open", "detector", "signal", "severity"))
    onset = of_project(newest("verl_incident_onset_step", "detector", "signal"))
    incidents = rows(
        "Open incidents",
        "What the detectors found and what is not resolved. Healthy: one row that says so. A click on the run opens "
        "the console's page with the evidence and what to try.",
        [
            Label("severity", "Severity", 120, meanings=SEVERITIES),
            Label("run", "Run", link=("Open the run in the console", CONSOLE_RUN)),
            Label("detector", "Detector", 160),
            Label("signal", "Signal", 140),
        ],
        [
            Value(or_row(opened, "severity", NOTHING_OPEN)),
            Value(onset, "Since step", "none", 0, 100),
        ],
        sort=("Severity", False),
        no_value="The exporter is not heard.",
    )
    return Line(9, [(plans, 10), (incidents, 14)])


def _recoveries() -> list[Line]:
    def ended(outcome: str) -> str:
        done = newest("verl_recoveries_total", where=f'{RUN}, outcome="{outcome}"')
        return f"{of_project(done)} or 0 * {info()}"

    table = rows(
        "Recoveries by run",
        "How the recoveries of each run ended, the seconds of the newest one, where it went back to, and how many the "
        "policy still allows in 24 hours. Healthy: a run that needs none has zeros and its full budget.",
        [Label("run", "Run", link=("Open the run", to_run()))],
        [
            Value(ended("succeeded"), "Succeeded", "none", 0, 95),
            Value(ended("failed"), "Failed", "none", 0, 80, ONE_IS_BAD),
            Value(ended("refused"), "Refused", "none", 0, 85, ONE_IS_ODD),
            Value(
                of_project(newest("verl_recovery_stage_seconds", where=f"{RUN}, stage=`total`")),
                "Newest took",
                "s",
                0,
                110,
            ),
            Value(of_project(newest("verl_recovery_target_step")), "Back to step", "none", 0, 110),
            Value(
                of_project(newest("verl_recovery_budget_remaining")),
                "Budget left",
                "none",
                0,
                100,
                ((None, RED), (1, ORANGE), (2, GREEN)),
            ),
        ],
        sort=("Failed", True),
        no_value="No run is known, or the exporter is not heard.",
    )
    stages = bars(
        "Seconds of the newest recovery",
        "How long each stage of the newest recovery of each run took. Approval is a person; stop, start and verify are "
        "the supervisor's; verify ends when steps are seen again. Healthy: all but approval within minutes.",
        Query(
            of_project(newest("verl_recovery_stage_seconds", "stage", where=f"{RUN}, stage!=`total`")),
            "{{run}}: {{stage}}",
            instant=True,
        ),
        unit="s",
        decimals=1,
        no_value="No recovery yet, or the exporter is not heard.",
    )
    return [Line(9, [(table, 14), (stages, 10)]), Line(8, [(_rungs(), 10), (_copies(), 14)])]


def _rungs() -> model.Panel:
    return lines(
        "Rung of the newest recovery",
        "Runs whose newest recovery is on each rung of the ladder: checkpoint, config, version, infra. Healthy: most "
        "are on checkpoint, and those above it are few.",
        Query(f"sum by (rung) ({of_project(newest('verl_recovery_rung', 'rung'))})", "{{rung}}"),
        unit="none",
        minimum=0,
        decimals=0,
        no_value="No recovery yet, or the exporter is not heard.",
    )


def _copies() -> model.Panel:
    return bars(
        "Age of the newest good copy, by tier",
        "How long ago the newest good copy of each run was made: where it was saved (primary), and in each tier of "
        "its backups. Healthy: about the interval of the tier; milestones come when the run has improved.",
        Query(
            of_project(f"time() - {newest('verl_checkpoint_tier_last_timestamp_seconds', 'tier')}"),
            "{{run}}: {{tier}}",
            instant=True,
        ),
        unit="s",
        decimals=0,
        no_value="No checkpoint was verified, or the exporter is not heard.",
    )


def _over_time() -> Line:
    opened = newest("verl_incidents_total", "detector", "severity")
    return even(
        8,
        lines(
            "Open over time",
            "Situations that are not resolved, by severity. Healthy: none critical.",
            Query(_situations("critical"), "critical"),
            Query(_situations("warning"), "warning"),
            unit="none",
            minimum=0,
            decimals=0,
            colours={"critical": RED, "warning": ORANGE},
        ),
        lines(
            "Incidents so far, by detector",
            "Incidents that each detector has opened in the runs that are there. A detector far ahead of the others "
            "finds a fault that comes back, or has a threshold too tight for these runs.",
            Query(
                or_row(f"sum by (detector) ({of_project(opened)})", "detector", "none"),
                "{{detector}}",
            ),
            unit="none",
            minimum=0,
            decimals=0,
        ),
        lines(
            "Recoveries so far, by outcome",
            "Recoveries that ended. Healthy: succeeded only.",
            Query(
                or_row(
                    f"sum by (outcome) ({of_project(newest('verl_recoveries_total', 'outcome'))})",
                    "outcome",
                    "succeeded",
                ),
                "{{outcome}}",
            ),
            unit="none",
            minimum=0,
            decimals=0,
            colours=_OUTCOMES,
        ),
    )


def _audit() -> Line:
    return Line(
        8,
        [
            (
                lines(
                    "Entries of the audit log",
                    "What the exporter has written down, by kind, since the log began: every plan, decision and "
                    "command, with who did it. Healthy: as many decisions as plans.",
                    Query(
                        or_row("sum by (kind) (verl_sentinel_audit_entries_total)", "kind", "none"),
                        "{{kind}}",
                    ),
                    unit="none",
                    minimum=0,
                    decimals=0,
                    calcs=["lastNotNull", "diff"],
                ),
                16,
            ),
            (
                words_of(
                    "Read the audit log",
                    "Where the entries themselves are. Prometheus counts them only.",
                    "Prometheus counts the entries; the console shows them, with who approved, refused or aborted what "
                    "and when.\n\n"
                    "- [Audit log](${console:raw}/console/audit)\n"
                    "- [Runs](${console:raw}/console/)\n"
                    "- [Runbooks](${console:raw}/runbooks/)\n",
                ),
                8,
            ),
        ],
    )


def board() -> Board:
    """The dashboard for whoever decides."""
    return Board(
        uid="verl-incidents",
        title="verl incidents and recovery",
        description="Open incidents, plans that await approval, recoveries with their seconds, budget left, audit.",
        since="now-24h",
        refresh="10s",
        variables=[project(), runs()],
        single_run=False,
        rows=[
            Row("Now", [_now(), _open()]),
            Row("Recoveries", _recoveries()),
            Row("Over time", [_over_time()]),
            Row("Audit", [_audit()]),
        ],
    )
