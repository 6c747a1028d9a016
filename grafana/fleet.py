"""All runs at a glance: who is well, who needs a person, and where to look first."""

from __future__ import annotations

from grafana.boards import Board, Line, Row, even, project, runs, to_run
from grafana.panels import (
    BLUE,
    EXPORTER_STATES,
    GREEN,
    GREY,
    NOT_HEARD,
    ONE_IS_BAD,
    ONE_IS_ODD,
    ORANGE,
    OVER_TIME_STATES,
    PURPLE,
    RED,
    SHARE_IS_GOOD,
    STATE_WORDS,
    lines,
    number,
    states,
)
from grafana.queries import (
    PROJECT,
    RUN,
    Query,
    exporter_state,
    info,
    newest,
    of_project,
    or_zero,
    productive_share,
    state_numbers,
    while_heard,
)
from grafana.tables import Label, Value, rows

_STATE_COLOURS = {
    "starting": BLUE,
    "training": GREEN,
    "silent": RED,
    "awaiting_approval": ORANGE,
    "recovering": PURPLE,
    "failed": "dark-red",
    "finished": GREY,
    "stopped": "#5a5a5a",
}


def _in_state(states_of_runs: str) -> str:
    series = newest("verl_run_state", "state", where=f'{RUN}, state=~"{states_of_runs}"')
    return or_zero(f"sum({of_project(f'{series} == 1')})")


def _opened(severity: str) -> str:
    return newest("verl_situation_open", "detector", "signal", where=f'{RUN}, severity="{severity}"')


def _open(severity: str) -> str:
    return f"count by (run) ({_opened(severity)}) or 0 * {info()}"


def _now() -> Line:
    return even(
        4,
        number(
            "Need a person",
            "Runs that failed, fell silent or wait for approval. Healthy: 0. Otherwise: the table below says "
            "which; a click on the run leads on.",
            Query(_in_state("silent|failed|awaiting_approval")),
            unit="none",
            steps=ONE_IS_BAD,
            spark=True,
            no_value=NOT_HEARD,
        ),
        number(
            "Critical incidents",
            "Situations of severity critical that are not resolved, over all chosen runs. Healthy: 0. "
            "Otherwise: open the run, or the dashboard of incidents.",
            Query(or_zero(f"sum({of_project(_open('critical'))})")),
            unit="none",
            steps=ONE_IS_BAD,
            spark=True,
            no_value=NOT_HEARD,
        ),
        number(
            "Warnings",
            "Situations of severity warning that are not resolved. A few are usual in a large fleet and none "
            "needs to be looked at in the night.",
            Query(or_zero(f"sum({of_project(_open('warning'))})")),
            unit="none",
            steps=ONE_IS_ODD,
            spark=True,
            no_value=NOT_HEARD,
        ),
        number(
            "Training",
            "Runs that train now. A sudden drop means a fault that they share: storage, network, scheduler.",
            Query(_in_state("training")),
            unit="none",
            spark=True,
            no_value=NOT_HEARD,
        ),
        number(
            "Goodput, last hour",
            "Effective training time of all chosen runs: the share of the last hour that went into steps done "
            "for the first time. Healthy: above 90 %. Below: the column of each run tells whose it is.",
            Query(while_heard(productive_share("1h"))),
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            steps=SHARE_IS_GOOD,
            spark=True,
        ),
        number(
            "Exporter",
            "Whether the exporter takes pushes and keeps them. Down or not ready: no run is judged; see the dashboard "
            "of the exporter.",
            Query(exporter_state()),
            unit="none",
            steps=((None, RED), (2, GREEN)),
            meanings=EXPORTER_STATES,
            no_value="down",
            no_colour=RED,
        ),
    )


def _table() -> Line:
    table = rows(
        "Runs",
        "One row for each run. Healthy: training, a step age of about one step's duration, goodput above 90 %, no "
        "critical incident. Click a run to open its dashboard.",
        [
            Label("run", "Run", link=("Open the run", to_run())),
            Label("project", "Project", 110),
            Label("phase", "Phase", 130),
        ],
        [
            Value(info("project")),
            Value(of_project(state_numbers()), "State", "none", width=120, meanings=STATE_WORDS),
            Value(of_project(f"bottomk by (run) (1, {newest('verl_phase_open_seconds', 'phase')})"), "For", "s", 0, 80),
            Value(of_project(newest("verl_training_step")), "Step", "none", 0, 80),
            Value(
                of_project(f"{newest('verl_training_step')} / ({newest('verl_training_steps_planned')} > 0)"),
                "Done",
                "percentunit",
                0,
                110,
                ((None, BLUE),),
                bar=(0, 1),
            ),
            Value(of_project(f"time() - {newest('verl_last_step_timestamp_seconds')}"), "Step age", "s", 0, 95),
            Value(of_project(newest("verl_run_eta_seconds")), "To go", "s", 1, 95),
            Value(
                of_project(newest("verl:effective_training_time:ratio1h")),
                "Goodput 1 h",
                "percentunit",
                0,
                105,
                SHARE_IS_GOOD,
            ),
            Value(of_project(_open("critical")), "Critical", "none", 0, 80, ONE_IS_BAD),
            Value(of_project(_open("warning")), "Warnings", "none", 0, 85, ONE_IS_ODD),
            Value(of_project(newest("verl_run_attempt")), "Attempt", "none", 0, 80),
        ],
        sort=("Critical", True),
        no_value="No run is known, or the exporter is not heard.",
    )
    return Line(14, [(table, 24)])


def _over_time() -> list[Line]:
    by_state = newest("verl_run_state", "state")
    return [
        even(
            8,
            lines(
                "Runs by state",
                "How many runs are in each state. Healthy: green, with grey growing as runs finish. Red or "
                "orange that stays needs a person.",
                Query(f"count by (state) ({of_project(f'{by_state} == 1')})", "{{state}}"),
                unit="none",
                minimum=0,
                decimals=0,
                stacked=True,
                colours=_STATE_COLOURS,
            ),
            lines(
                "Open incidents",
                "Situations that are not resolved, by severity. Healthy: none critical. Many at once are one "
                "fault that runs share.",
                Query(or_zero(f"count({of_project(_opened('critical'))})"), "critical"),
                Query(or_zero(f"count({of_project(_opened('warning'))})"), "warning"),
                unit="none",
                minimum=0,
                decimals=0,
                colours={"critical": RED, "warning": ORANGE},
            ),
            lines(
                "Oldest steps",
                "The five runs that train and whose newest step is the oldest. Healthy: each at most a few "
                "of its own steps. One that climbs without end hangs.",
                Query(
                    "topk(5, "
                    + of_project(
                        f"time() - {newest('verl_last_step_timestamp_seconds')} and on (run) "
                        "(max by (run) (verl_run_running) == 1)"
                    )
                    + ")",
                    "{{run}}",
                ),
                unit="s",
                minimum=0,
            ),
        )
    ]


def _each_run() -> list[Line]:
    return [
        even(
            14,
            states(
                "State of each run",
                "What state each chosen run was in. Choose a project or a few runs above where there are many.",
                Query(
                    f"{of_project(state_numbers())} or"
                    f" 0 * group by (run) (last_over_time(verl_run_info{{{RUN}, {PROJECT}}}[$__range]))",
                    "{{run}}",
                ),
                meanings=OVER_TIME_STATES,
            ),
        ),
        even(
            9,
            lines(
                "Goodput of each run, last hour",
                "Share of the hour before that went into steps done for the first time. Healthy: above 90 %. "
                "The run's own dashboard tells where the rest went.",
                Query(of_project(newest("verl:effective_training_time:ratio1h")), "{{run}}"),
                unit="percentunit",
                minimum=0,
                maximum=1,
                decimals=1,
            ),
            lines(
                "Time to go",
                "Seconds to the last planned step at the pace of late. Healthy: falls by a second a second. "
                "Where it rises, the run has become slower.",
                Query(of_project(newest("verl_run_eta_seconds")), "{{run}}"),
                unit="s",
                minimum=0,
            ),
        ),
    ]


def board() -> Board:
    """The dashboard that Grafana opens first."""
    return Board(
        uid="verl-fleet",
        title="verl fleet",
        description="All runs at a glance: state, phase, age of the last step, goodput, incidents, time to go.",
        since="now-6h",
        refresh="30s",
        variables=[project(), runs()],
        single_run=False,
        rows=[
            Row("Now", [_now(), _table()]),
            Row("Over time", _over_time()),
            Row("Each run over time", _each_run(), collapsed=True),
        ],
    )
