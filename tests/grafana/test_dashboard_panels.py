"""Every panel says what it is, stands in its place, and links and variables lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations

from dashboard_parts import DASHBOARDS, Json, every_panel, every_place, every_text

KINDS = {"timeseries", "stat", "table", "heatmap", "state-timeline", "bargauge", "text"}
"""What every Grafana from 10 to 13 has, without a plugin."""
BUILT_IN = {"__interval", "__rate_interval", "__range", "__data", "__url_time_range"}
_VARIABLE = re.compile(r"\$\{(\w+)[:.}]|\$(\w+)")


def test_every_panel_has_title_description_and_unit(dashboard: Json) -> None:
    for panel in every_panel(dashboard):
        assert panel["title"], panel["id"]
        assert len(panel["description"]) > 40, f"{panel['title']}: {panel['description']!r}"
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["type"] in KINDS, panel["title"]


def test_titles_of_a_dashboard_are_told_apart(dashboard: Json) -> None:
    titles = Counter(panel["title"] for panel in every_panel(dashboard))
    assert [title for title, times in titles.items() if times > 1] == []


def test_every_panel_but_text_asks_something_and_letters_are_unique(dashboard: Json) -> None:
    for panel in every_panel(dashboard):
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert bool(letters) == (panel["type"] != "text"), panel["title"]
        assert len(letters) == len(set(letters)), panel["title"]


def test_overrides_are_for_series_and_columns_that_there_are(dashboard: Json) -> None:
    """A name in an override that no query gives colours nothing; a name with a label in it may be anything."""
    for panel in every_panel(dashboard):
        legends = [target["legendFormat"] for target in panel.get("targets", [])]
        if panel["type"] == "table" or any("{{" in legend for legend in legends):
            continue
        named = {over["matcher"]["options"] for over in panel["fieldConfig"]["overrides"]}
        assert named <= set(legends), panel["title"]


def test_columns_of_tables_are_values_of_their_queries(dashboard: Json) -> None:
    for panel in every_panel(dashboard):
        if panel["type"] != "table":
            continue
        letters = [target["refId"] for target in panel["targets"]]
        values = {"Value"} if len(letters) == 1 else {f"Value #{letter}" for letter in letters}
        named = {over["matcher"]["options"] for over in panel["fieldConfig"]["overrides"]}
        assert {name for name in named if name.startswith("Value")} <= values, panel["title"]
        heads = [
            p["value"] for o in panel["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "displayName"
        ]
        assert {one["displayName"] for one in panel["options"]["sortBy"]} <= set(heads), panel["title"]
        assert len(heads) == len(set(heads)), panel["title"]


def test_every_learning_panel_of_a_run_shows_its_band() -> None:
    (run,) = (one for one in DASHBOARDS if one["uid"] == "verl-run")
    start = next(at for at, one in enumerate(run["panels"]) if one["title"] == "Learning")
    end = next(at for at, one in enumerate(run["panels"]) if at > start and one["type"] == "row")
    panels = run["panels"][start + 1 : end]
    signals = set()
    for panel in panels:
        value, expected, lower, upper = panel["targets"]
        found = {re.search(r'signal="(\w+)"', one["expr"]).group(1) for one in (expected, lower, upper)}  # type: ignore[union-attr]
        assert len(found) == 1, panel["title"]
        signals |= found
        for target, metric in ((expected, "expected"), (lower, "lower"), (upper, "upper")):
            assert f"verl_signal_{metric}{{" in target["expr"], panel["title"]
        filled = {
            over["matcher"]["options"]: one["value"]
            for over in panel["fieldConfig"]["overrides"]
            for one in over["properties"]
            if one["id"] == "custom.fillBelowTo"
        }
        assert filled == {upper["legendFormat"]: lower["legendFormat"]}, panel["title"]
        from exporter.service.exposition.families import SIGNALS

        assert f"({SIGNALS[found.pop()].name}{{" in value["expr"], panel["title"]
    asked = {"reward", "val_reward", "kl", "entropy", "grad_norm", "loss", "response_length", "clip_ratio"}
    assert asked | {"pg_clipfrac", "rollout_kl", "rollout_probs_diff"} <= signals


def test_ids_are_unique(dashboard: Json) -> None:
    ids = [panel["id"] for panel in every_place(dashboard)]
    assert len(ids) == len(set(ids))


def test_panels_lie_in_24_columns_without_overlap_and_fill_their_line(dashboard: Json) -> None:
    """Those of a folded row begin below it, as if it were open; what follows is where it is while the row is folded."""
    for panels in (dashboard["panels"], *(one["panels"] for one in dashboard["panels"] if one.get("panels"))):
        places = [(one["gridPos"], one["title"]) for one in panels]
        for place, title in places:
            assert min(place["x"], place["w"] - 1, place["h"] - 1) >= 0, title
            assert place["x"] + place["w"] <= 24, title
        for (a, first), (b, second) in combinations(places, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], f"{first} overlaps {second}"
        lines: dict[int, list[Json]] = {}
        for place, _ in places:
            lines.setdefault(place["y"], []).append(place)
        for line in lines.values():
            assert sum(place["w"] for place in line) == 24
            assert len({place["h"] for place in line}) == 1, "panels side by side are of one height"
    for row in (one for one in dashboard["panels"] if one.get("panels")):
        assert min(panel["gridPos"]["y"] for panel in row["panels"]) == row["gridPos"]["y"] + 1


def test_the_first_row_is_open_and_every_row_has_a_title(dashboard: Json) -> None:
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    assert dashboard["panels"][0] is rows[0]
    assert not rows[0]["collapsed"]
    assert all(row["title"] and (bool(row["panels"]) == row["collapsed"]) for row in rows)


def test_links_lead_to_dashboards_that_there_are(dashboard: Json) -> None:
    uids = {one["uid"] for one in DASHBOARDS}
    linked = {uid for text in every_text(dashboard) for uid in re.findall(r"^/d/([\w-]+)", text)}
    assert linked <= uids
    assert linked >= uids - {dashboard["uid"]}, "every dashboard leads to every other"
    for link in dashboard["links"]:
        assert link["keepTime"] == link["url"].startswith("/d/")


def test_a_run_goes_along_to_where_one_may_be_chosen() -> None:
    """All runs, handed to a dashboard of one run, would be a run called All."""
    single = {one["uid"]: _multi(one, "run") is False for one in DASHBOARDS if _multi(one, "run") is not None}
    for board in DASHBOARDS:
        for link in board["links"]:
            if "${run:queryparam}" in link["url"]:
                there = link["url"].split("?")[0].removeprefix("/d/")
                assert single[board["uid"]] or not single[there], f"{board['uid']} to {there}"


def _multi(dashboard: Json, name: str) -> bool | None:
    return next((bool(one.get("multi")) for one in dashboard["templating"]["list"] if one["name"] == name), None)


def test_every_variable_that_is_used_is_defined_and_the_other_way_round(dashboard: Json) -> None:
    defined = [variable["name"] for variable in dashboard["templating"]["list"]]
    parts = {name: value for name, value in dashboard.items() if name != "templating"}
    queries = [str(one["query"]) for one in dashboard["templating"]["list"] if one["type"] == "query"]
    used = {a or b for text in (*every_text(parts), *queries) for a, b in _VARIABLE.findall(text)}
    assert used - BUILT_IN <= set(defined)
    assert set(defined) <= used


def test_variables_are_chained_and_read_again_with_the_time_range(dashboard: Json) -> None:
    before: list[str] = []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2, variable["name"]
            used = {a or b for a, b in _VARIABLE.findall(variable["query"]["query"])}
            assert used <= set(before), f"{variable['name']} uses a variable that comes after it"
        before.append(variable["name"])


def test_no_data_source_is_named_but_by_the_variable(dashboard: Json) -> None:
    def sources(part: object) -> list[object]:
        if isinstance(part, dict):
            own = [part["datasource"]] if "datasource" in part else []
            return own + [one for value in part.values() for one in sources(value)]
        return [one for value in part for one in sources(value)] if isinstance(part, list) else []

    found = sources(dashboard)
    assert found
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in found)


def test_the_way_to_a_plan_leads_through_the_console() -> None:
    (board,) = (one for one in DASHBOARDS if one["uid"] == "verl-incidents")
    (console,) = (one for one in board["templating"]["list"] if one["name"] == "console")
    assert (console["type"], console["query"], console["hide"]) == ("constant", "http://127.0.0.1:9464", 2)
    assert console["skipUrlSync"], "a link must not say where plans are approved"
    links = [text for text in every_text(board) if "/console/recovery" in text]
    assert links == ["${console:raw}/console/recovery?run=${__data.fields.run:percentencode}"]
