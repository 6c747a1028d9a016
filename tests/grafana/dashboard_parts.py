"""Parts of a dashboard's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grafana.against import dashboards

Json = dict[str, Any]
DASHBOARDS: list[Json] = dashboards()


def every_panel(dashboard: Json) -> Iterator[Json]:
    """All panels, those in collapsed rows too; not the rows."""
    for panel in dashboard["panels"]:
        yield from (panel["panels"] if panel["type"] == "row" else [panel])


def every_place(dashboard: Json) -> Iterator[Json]:
    """All panels and rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def every_query(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Where it is, and the query: of panels, variables and annotations."""
    for panel in every_panel(dashboard):
        for target in panel.get("targets", []):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]


def every_text(part: Any) -> Iterator[str]:
    """Every string."""
    if isinstance(part, dict):
        for value in part.values():
            yield from every_text(value)
    elif isinstance(part, list):
        for value in part:
            yield from every_text(value)
    elif isinstance(part, str):
        yield part
