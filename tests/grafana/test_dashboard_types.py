"""The dashboards type-check against @grafana/schema from npm: the types that Grafana's own code is written with."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_parts import DASHBOARDS, Json, every_panel

NODE = Path(__file__).parents[1] / "node" / "node_modules"

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("node") and (NODE / "@grafana" / "schema").is_dir()),
        reason="node, or what tests/node/package.json asks for, is not installed: npm ci in tests/node",
    ),
]

_PANELS = {
    "timeseries": "timeseries",
    "stat": "stat",
    "table": "table",
    "heatmap": "heatmap",
    "state-timeline": "statetimeline",
    "bargauge": "bargauge",
    "text": "text",
}
_MODULE = "@grafana/schema/dist/esm/raw/composable/{0}/panelcfg/x/{1}PanelCfg_types.gen"
_NAMES = {
    "timeseries": "TimeSeries",
    "stat": "Stat",
    "table": "Table",
    "heatmap": "Heatmap",
    "statetimeline": "StateTimeline",
    "bargauge": "BarGauge",
    "text": "Text",
}
_HAVE_FIELDS = {"timeseries", "table", "heatmap", "statetimeline"}

# JSON has no enums: where the schema wants one, the string or number that stands for it is taken. Optional is what has
# a default. Everything else is as strict as in Grafana: a field that the type does not have is an error.
_HEAD = """
import type {
  AnnotationQuery, Dashboard, FieldConfig, Panel, RowPanel, VariableModel,
} from '@grafana/schema';
type IsAny<T> = 0 extends 1 & T ? true : false;
type Plain<T> = IsAny<T> extends true ? any
  : unknown extends T ? unknown
  : T extends string ? `${T}`
  : T extends number ? (`${T}` extends `${infer N extends number}` ? N : never)
  : T extends boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Some<T> = T extends (infer U)[] ? Some<U>[] : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;
type Known<T> = { [K in keyof T as string extends K ? never : K]: T[K] };
interface Query {
  expr: string; refId: string; instant: boolean; range: boolean; editorMode: 'code' | 'builder';
  format: 'time_series' | 'table' | 'heatmap'; legendFormat: string; interval?: string;
  datasource: { type: string; uid: string };
}
interface Property { id: string; value?: unknown }
interface Override { matcher: { id: string; options?: unknown }; properties: Property[] }
type Fields<Custom> = {
  defaults: Omit<Some<Plain<Known<FieldConfig>>>, 'custom' | 'thresholds'> & {
    custom?: Some<Plain<Custom>>;
    thresholds?: { mode: 'absolute' | 'percentage'; steps: { value: number | null; color: string }[] };
  };
  overrides: Override[];
};
type Of<Kind extends string, Options, Custom> =
  Omit<Plain<Panel>, 'type' | 'options' | 'fieldConfig' | 'targets'>
  & { type: Kind; options: Some<Plain<Options>>; fieldConfig: Fields<Custom>; targets?: Query[] };
type Row = Omit<Plain<RowPanel>, 'panels'> & { panels: AnyPanel[] };
type PrometheusAnnotation = Plain<AnnotationQuery> & {
  expr: string; step: string; titleFormat: string; textFormat: string; tagKeys: string; useValueForTime?: boolean;
};
type Whole = Omit<Plain<Dashboard>, 'panels' | 'annotations'> & {
  panels: (AnyPanel | Row)[]; annotations: { list: PrometheusAnnotation[] };
};
"""


def source(dashboards: list[Json]) -> str:
    """A TypeScript module that holds only if every dashboard has the type."""
    imports, kinds = [], []
    for kind, name in _PANELS.items():
        fields = f"FieldConfig as {name}Fields, " if name in _HAVE_FIELDS else ""
        imports.append(
            f"import type {{ {fields}Options as {name}Options }} from '{_MODULE.format(name, _NAMES[name])}';"
        )
        # Of Grafana before 10.3, beside the tooltip's mode.
        more = " & { tooltip?: { show?: boolean } }" if kind == "heatmap" else ""
        kinds.append(f"Of<'{kind}', {name}Options{more}, {f'{name}Fields' if name in _HAVE_FIELDS else '{}'}>")
    checks = [f"({json.dumps(one, ensure_ascii=False)}) satisfies Whole;" for one in dashboards]
    return "\n".join([*imports, _HEAD, f"type AnyPanel = {' | '.join(kinds)};", *checks])


def complaints(folder: Path, dashboards: list[Json]) -> list[str]:
    """What the compiler says."""
    (folder / "node_modules").symlink_to(NODE)
    (folder / "dashboards.ts").write_text(source(dashboards), encoding="utf-8")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "--types", ""]
    command = [str(NODE / ".bin" / "tsc"), *options, "dashboards.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return [line[:600] for line in done.stdout.splitlines() if "error TS" in line]


def test_every_dashboard_has_the_types_of_grafana(tmp_path: Path) -> None:
    assert complaints(tmp_path, DASHBOARDS) == []


def of_kind(kind: str) -> Callable[[Json], Json]:
    return lambda board: next(panel for panel in every_panel(board) if panel["type"] == kind)


def _set(part: Json, name: str, value: object) -> None:
    part[name] = value


BROKEN: dict[str, tuple[Callable[[Json], Json], Callable[[Json], None]]] = {
    "a title that is a number": (lambda board: board, lambda board: _set(board, "title", 1)),
    "a field that no dashboard has": (lambda board: board, lambda board: _set(board, "colour", "red")),
    "a panel without a type": (of_kind("stat"), lambda panel: _set(panel, "type", "graph")),
    "a width in words": (of_kind("stat"), lambda panel: _set(panel["gridPos"], "w", "wide")),
    "a field that no panel has": (of_kind("stat"), lambda panel: _set(panel, "height", 3)),
    "an option of another kind": (of_kind("stat"), lambda panel: _set(panel["options"], "legend", {})),
    "a mode that there is not": (of_kind("stat"), lambda panel: _set(panel["options"], "graphMode", "bars")),
    "a line that is not drawn so": (
        of_kind("timeseries"),
        lambda panel: _set(panel["fieldConfig"]["defaults"]["custom"], "drawStyle", "ink"),
    ),
    "a unit that is a number": (of_kind("table"), lambda panel: _set(panel["fieldConfig"]["defaults"], "unit", 1)),
    "a query without a letter": (of_kind("heatmap"), lambda panel: panel["targets"][0].pop("refId")),
    "a variable that hides in words": (
        lambda board: board["templating"]["list"][0],
        lambda variable: _set(variable, "hide", "yes"),
    ),
    "a link without a title": (lambda board: board["links"][0], lambda link: link.pop("title")),
    "an annotation in no colour": (
        lambda board: board["annotations"]["list"][0],
        lambda annotation: annotation.pop("iconColor"),
    ),
}


def test_a_wrong_field_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Each dashboard in the module has one fault; the compiler has to complain of every one of them."""
    broken = []
    for find, spoil in BROKEN.values():
        kind = next(one for one in DASHBOARDS if _has(one, find))
        board = copy.deepcopy(kind)
        spoil(find(board))
        broken.append(board)
    found = complaints(tmp_path, broken)
    first = source(broken).splitlines().index(source(broken).splitlines()[-len(broken)]) + 1
    lines = {int(re.search(r"\((\d+),", one).group(1)) - first for one in found}  # type: ignore[union-attr]
    assert [name for at, name in enumerate(BROKEN) if at not in lines] == []


def _has(board: Json, find: Callable[[Json], Json]) -> bool:
    try:
        find(board)
    except (StopIteration, LookupError):
        return False
    return True
