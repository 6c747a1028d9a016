"""A dashboard: its variables, links and annotations, and the place of every panel. Called by each dashboard's module.

Panels are given in lines of one height whose widths make 24 columns, so nothing overlaps and nothing is ragged. On a
phone Grafana puts them below one another in this order: what matters most comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from grafana.panels import DATASOURCE, Built
from grafana.queries import NO_COHORT, PROJECT, RUN

COLUMNS: Final = 24
SCHEMA_VERSION: Final = 38
"""Of Grafana 10.0; a newer one migrates it when it loads the dashboard."""
OPTIONS_OF: Final = "10.1.0"
"""The Grafana whose form the options of the panels have; a newer one brings them into its own."""
TAG: Final = "verl-sentinel"
CONSOLE: Final = "http://127.0.0.1:9464"
"""The address of the exporter's console; ``verl-sentinel export`` puts the site's own in."""

ALL: Final = model.VariableOption(text=["All"], value=["$__all"])


@dataclass(frozen=True)
class Line:
    """Panels side by side. ``panels``: each with its width."""

    height: int
    panels: Sequence[tuple[model.Panel, int]]


@dataclass(frozen=True)
class Row:
    """A titled part of a dashboard; collapsed, its queries run only when somebody opens it."""

    title: str
    lines: Sequence[Line]
    collapsed: bool = False


@dataclass(frozen=True)
class Annotation:
    """Marks on the time axis where a query is above 0; with ``at_value`` at the time that the value says, in ms."""

    name: str
    expr: str
    colour: str
    title: str
    text: str = ""
    tags: str = ""
    at_value: bool = False


@dataclass(frozen=True)
class Board:
    """Everything of one dashboard."""

    uid: str
    title: str
    description: str
    since: str
    refresh: str
    rows: Sequence[Row]
    variables: Sequence[model.VariableModel] = ()
    """Besides the data source and the console."""
    single_run: bool = True
    """Whether its variable ``run`` is one run; what links to it hands its own run over only then."""
    annotations: Sequence[Annotation] = field(default_factory=tuple)


def to_json(board: Board, boards: Sequence[Board]) -> str:
    """The file of a dashboard, as Grafana reads it. ``boards``: all there are, which it links to."""
    plain: Plain = json.loads(json.dumps(_built(board, boards), cls=JSONEncoder), parse_float=_short)
    for variable in plain["templating"]["list"]:
        # Fields that the SDK writes and that no Grafana reads, or that say no more than their absence.
        for name in ("id", "allFormat", "auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    for written, one in zip(plain["annotations"]["list"], board.annotations, strict=True):
        # Grafana 10 reads the query from here; newer ones move it to the target when they load the dashboard.
        written |= {"step": "15s", "titleFormat": one.title, "textFormat": one.text, "tagKeys": one.tags}
        if one.at_value:
            written["useValueForTime"] = True
    for panel in panels_of(plain):
        # Defaults that the SDK writes: of panels that are repeated, and of tables before Grafana 12.
        panel.pop("repeatDirection", None)
        panel["options"].pop("footer", None)
        if panel["type"] == "heatmap":
            # Since 10.3 in place of what the SDK writes.
            panel["options"]["tooltip"]["mode"] = "single"
    # The theme is the reader's.
    plain.pop("style", None)
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


Plain = dict[str, Any]
"""A dashboard as its file has it, or a part of one."""


def panels_of(dashboard: Plain) -> Iterator[Plain]:
    """Every panel, those in collapsed rows too; not the rows themselves."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def _short(digits: str) -> float | int:
    value = float(digits)
    return int(value) if value.is_integer() else value


def _built(board: Board, boards: Sequence[Board]) -> model.Dashboard:
    builder = (
        build.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time(board.since, "now")
        .refresh(board.refresh)
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .editable()
        .version(1)
        .variables([Built(variable) for variable in (_datasource(), *board.variables, _console())])
        .annotations([Built(_annotation(one)) for one in board.annotations])
        .links(
            [*(Built(_to_board(board, other)) for other in boards if other.uid != board.uid), Built(_to_console(board))]
        )
    )
    dashboard = builder.build()
    dashboard.schema_version = SCHEMA_VERSION
    dashboard.panels = _placed(board.rows)
    return dashboard


def _placed(rows: Sequence[Row]) -> list[model.Panel | model.RowPanel]:
    placed: list[model.Panel | model.RowPanel] = []
    number, top = 0, 0
    for row in rows:
        number += 1
        head = model.RowPanel(
            collapsed=row.collapsed, title=row.title, grid_pos=model.GridPos(h=1, w=COLUMNS, x=0, y=top), id_val=number
        )
        placed.append(head)
        top += 1
        inside: list[model.Panel] = []
        for line in row.lines:
            left = 0
            for panel, width in line.panels:
                number += 1
                panel.id_val = number
                panel.plugin_version = OPTIONS_OF
                panel.grid_pos = model.GridPos(h=line.height, w=width, x=left, y=top)
                left += width
                inside.append(panel)
            if left != COLUMNS:
                titles = ", ".join(str(panel.title) for panel, _ in line.panels)
                raise ValueError(f"The line with {titles} is {left} columns wide; {COLUMNS} are expected.")
            top += line.height
        if row.collapsed:
            # Folded up it takes one line, and Grafana moves down what is below it when somebody opens it.
            head.panels = inside
            top = head.grid_pos.y + 1
        else:
            placed.extend(inside)
    return placed


def _annotation(one: Annotation) -> model.AnnotationQuery:
    return (
        build.AnnotationQuery()
        .name(one.name)
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(one.colour)
        .expr(one.expr)
        .build()
    )


def _datasource() -> model.VariableModel:
    return (
        build.DatasourceVariable("datasource")
        .label("Prometheus")
        .description("The Prometheus that scrapes the exporter.")
        .type("prometheus")
        .build()
    )


def _console() -> model.VariableModel:
    variable = (
        build.ConstantVariable("console")
        .label("Console")
        .description("Address of verl-sentinel's console, as a browser reaches it.")
        .value(CONSOLE)
        .build()
    )
    variable.hide = model.VariableHide.HIDE_VARIABLE
    # Nobody gets to say in a link where the plans are approved.
    variable.skip_url_sync = True
    return variable


def _query(name: str, label: str, description: str, query: str) -> build.QueryVariable:
    return (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )


def _many(builder: build.QueryVariable) -> model.VariableModel:
    return builder.multi(True).include_all(True).all_value(".*").current(ALL).build()


def project() -> model.VariableModel:
    """Projects, several or all; a run without one belongs to all."""
    return _many(_query("project", "Project", "Narrows the list of runs.", "label_values(verl_run_info, project)"))


_RUNS: Final = f"label_values(verl_run_info{{{PROJECT}}}, run)"


def one_run() -> model.VariableModel:
    """One run of the chosen projects."""
    return _query("run", "Run", "One run of the chosen projects.", _RUNS).multi(False).include_all(False).build()


def runs() -> model.VariableModel:
    """Runs of the chosen projects, several or all."""
    return _many(_query("run", "Run", "Runs of the chosen projects.", _RUNS))


def nodes() -> model.VariableModel:
    """Nodes with GPUs of the chosen run, several or all."""
    query = f"label_values(verl_gpu_memory_total_bytes{{{RUN}}}, node)"
    return _many(_query("node", "Node", "Machines with GPUs of the chosen run.", query))


def cohort(name: str, label: str, description: str, *, last: bool) -> model.VariableModel:
    """One cohort of the chosen projects, that of runs without one too: by name the first, or the last."""
    named = f"label_replace(verl_run_info{{{PROJECT}}}, `cohort`, `{NO_COHORT}`, `cohort`, ``)"
    query = _query(name, label, description, f"query_result(count by (cohort) ({named}))")
    order = model.VariableSort.ALPHABETICAL_DESC if last else model.VariableSort.ALPHABETICAL_ASC
    # Grafana writes the one label as it is, quotes in it too; the last quote and brace end it.
    return query.regex('/^\\{cohort="(.*)"\\}/').sort(order).multi(False).include_all(False).build()


def window(default: str) -> model.VariableModel:
    """Over what time rates of steps are taken; a step may take minutes, so a few scrapes are too few."""
    choices = ("5m", "15m", "1h", "6h", "1d")
    return (
        build.IntervalVariable("window")
        .label("Averaged over")
        .description("Take one that holds several steps.")
        .values(",".join(choices))
        .current(model.VariableOption(text=default, value=default, selected=True))
        .options([model.VariableOption(text=one, value=one, selected=one == default) for one in choices])
        .auto(False)
        .build()
    )


def _names(board: Board) -> set[str]:
    return {variable.name for variable in board.variables}


def _to_board(here: Board, there: Board) -> model.DashboardLink:
    """Time, data source and project go along, and the run unless several may be chosen here and only one there."""
    handed = ["datasource"]
    handed += [name for name in ("project", "window") if name in _names(here) & _names(there)]
    if "run" in _names(here) & _names(there) and (here.single_run or not there.single_run):
        handed.append("run")
    query = "&".join(f"${{{name}:queryparam}}" for name in handed)
    return _link(there.title.removeprefix("verl "), f"/d/{there.uid}?{query}", "dashboard", there.description)


def _to_console(here: Board) -> model.DashboardLink:
    """The console's page of the run, where one is chosen; else its list of runs."""
    of_run = "run" in _names(here) and here.single_run
    page = "run?id=${run:percentencode}" if of_run else ""
    title, tooltip = ("Console: this run", "Evidence, and what to try") if of_run else ("Console", "Runs and plans")
    return _link(title, f"${{console:raw}}/console/{page}", "external link", tooltip, new_tab=True)


def _link(title: str, url: str, icon: str, tooltip: str, *, new_tab: bool = False) -> model.DashboardLink:
    return (
        build.DashboardLink(title)
        .type(model.DashboardLinkType.LINK)
        .url(url)
        .icon(icon)
        .tooltip(tooltip)
        .keep_time(not new_tab)
        .include_vars(False)
        .as_dropdown(False)
        .target_blank(new_tab)
        .tags([])
        .build()
    )


def to_run(uid: str = "verl-run") -> str:
    """Address of a run's dashboard from a table row with the label ``run``."""
    return f"/d/{uid}?var-run=${{__data.fields.run:percentencode}}&${{datasource:queryparam}}&${{__url_time_range}}"


def even(height: int, *panels: model.Panel) -> Line:
    """Panels of one width side by side."""
    return Line(height, [(panel, COLUMNS // len(panels)) for panel in panels])
