"""Tables: one row for each run, incident or GPU, put together from several instant queries. Called by the dashboards.

The columns that identify a row are labels and keep the label's own name, since links refer to it
(``${__data.fields.run}``); what a reader sees as the column's head is a display name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model

from grafana.panels import DATASOURCE, PLAIN, Step, look, targets, thresholds, words
from grafana.queries import Query


@dataclass(frozen=True)
class Label:
    """A column that identifies the row: a label of the first query."""

    name: str
    title: str
    width: int = 0
    link: tuple[str, str] | None = None
    """Title and address."""
    meanings: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """A column with the value of a query; one without a title is not shown."""

    expr: str
    title: str = ""
    unit: str = "short"
    decimals: int | None = None
    width: int = 0
    steps: Sequence[Step] = ()
    meanings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    bar: tuple[float, float] | None = None
    """Drawn as a bar between these."""
    link: tuple[str, str] | None = None


def rows(
    title: str,
    description: str,
    labels: Sequence[Label],
    values: Sequence[Value],
    *,
    sort: tuple[str, bool],
    no_value: str = "",
    hidden: Sequence[str] = (),
) -> model.Panel:
    """The table. ``sort``: title of a column, and whether the largest come first. ``hidden``: labels not shown."""
    single = len(values) == 1
    names = ["Value" if single else f"Value #{letter}" for letter, _ in zip("ABCDEFGHIJKLMNOP", values, strict=False)]
    shown = [label.name for label in labels] + [name for name, value in zip(names, values, strict=True) if value.title]
    unseen = ["Time", *hidden, *(name for name, value in zip(names, values, strict=True) if not value.title)]
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("short")
        .targets(list(targets([Query(value.expr, instant=True, format="table") for value in values])))
        .show_header(True)
        .cell_height(options.TableCellHeight.SM)
        .sort_by([common.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds(PLAIN))
        .no_value(no_value or "–")
    )
    if not single:
        panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(unseen, True),
                "indexByName": {name: index for index, name in enumerate(shown)},
                "renameByName": {},
            },
        )
    )
    for label in labels:
        look(panel, label.name, **_of_label(label))
    for name, value in zip(names, values, strict=True):
        if value.title:
            look(panel, name, **_of_value(value))
    return panel.build()


def _of_label(label: Label) -> dict[str, Any]:
    properties: dict[str, Any] = {"displayName": label.title}
    if label.width:
        properties["custom.width"] = label.width
    if label.link:
        properties["links"] = [_link(*label.link)]
    if label.meanings:
        properties["mappings"] = words(label.meanings)
        properties["custom.cellOptions"] = {"type": "color-text"}
    return properties


def _of_value(value: Value) -> dict[str, Any]:
    properties: dict[str, Any] = {"displayName": value.title, "unit": value.unit}
    if value.decimals is not None:
        properties["decimals"] = value.decimals
    if value.width:
        properties["custom.width"] = value.width
    if value.meanings:
        properties["mappings"] = words(value.meanings)
    if value.steps:
        properties["thresholds"] = thresholds(value.steps).build()
    if value.bar:
        properties["min"], properties["max"] = value.bar
        properties["custom.cellOptions"] = {"type": "gauge", "mode": "basic"}
    elif value.steps or value.meanings:
        properties["custom.cellOptions"] = {"type": "color-text"}
    if value.link:
        properties["links"] = [_link(*value.link)]
    return properties


def _link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url, "targetBlank": url.startswith("${console")}
