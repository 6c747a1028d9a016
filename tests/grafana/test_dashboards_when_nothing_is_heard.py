"""What the dashboards say when the exporter has died: that it is down, and nothing of what was before.

On a real Prometheus with our rules that scraped a real exporter of a recorded run, which is then killed.
"""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from dashboard_parts import DASHBOARDS, Json, every_panel
from recorded_runs import PlayedRun

from demo.stack import Stack
from grafana.against import Prometheus
from grafana.expanding import Chosen, Times, expanded, seconds_of

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]

RUN = "of the dead"
GIVE_UP_SECONDS = 60.0
NOT_OF_THE_EXPORTER = {"Alerts that fire", "Alerts"}
"""What Prometheus knows by itself."""


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """What every stat shows while the exporter is there, and after it was killed."""
    stack = Stack(tmp_path_factory.mktemp("silence"), mode="approve")
    try:
        stack.start()
        stack.wait_until_watching()
        played = PlayedRun(stack.exporter_url, stack.token("push"), "healthy-0", RUN, speed=16.0, gpus=4)
        played.play(12)
        prometheus = Prometheus(stack.prometheus_url)
        _until(lambda: _stats(prometheus)["verl-run: State"] == "training")
        before = _stats(prometheus)
        stack.children[0].send(signal.SIGKILL)
        _until(lambda: not prometheus.get("query", query="verl_sentinel_ready"))
        yield before, {**_stats(prometheus), **_others(prometheus)}
    finally:
        stack.stop()


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not reached():
        assert time.monotonic() < deadline, "Prometheus does not come to it"
        time.sleep(0.2)


def _chosen(dashboard: Json) -> dict[str, Chosen]:
    chosen = {one["name"]: Chosen([], ".*") for one in dashboard["templating"]["list"]}
    return chosen | {
        "run": Chosen([RUN]),
        "window": Chosen(["15m"]),
        "baseline": Chosen(["(none)"]),
        "candidate": Chosen(["(none)"]),
    }


def _values(prometheus: Prometheus, dashboard: Json, target: Json, calc: str) -> list[float]:
    """The number of each series, as Grafana reduces it; NaN where there is none."""
    times = Times(time.time(), seconds_of(dashboard["time"]["from"]))
    expr = expanded(target["expr"], _chosen(dashboard), times)
    if target["instant"]:
        return [float(one["value"][1]) for one in prometheus.get("query", query=expr, time=times.end)]
    begin = times.end - int(times.seconds / times.interval) * times.interval
    series = prometheus.get("query_range", query=expr, start=begin, end=times.end, step=times.interval)
    past = [[float(value) for _, value in one["values"]] for one in series]
    if calc == "last":
        return [values[-1] for values in past]
    return [next((value for value in reversed(values) if not math.isnan(value)), math.nan) for values in past]


def _said(panel: Json, value: float) -> str:
    """The word of a value, as the mappings of the panel have it."""
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        if mapping["type"] == "special" and math.isnan(value):
            return str(mapping["options"]["result"]["text"])
        if mapping["type"] == "value" and f"{value:g}" in mapping["options"]:
            return str(mapping["options"][f"{value:g}"]["text"])
    return f"{value:g}"


def _stats(prometheus: Prometheus) -> dict[str, str]:
    shown = {}
    for dashboard in DASHBOARDS:
        for panel in every_panel(dashboard):
            if panel["type"] == "stat":
                (calc,) = panel["options"]["reduceOptions"]["calcs"]
                (target,) = panel["targets"]
                (value,) = _values(prometheus, dashboard, target, calc) or [math.nan]
                shown[f"{dashboard['uid']}: {panel['title']}"] = _said(panel, value)
    return shown


def _others(prometheus: Prometheus) -> dict[str, str]:
    """Tables and bars, which have rows or not, and the newest state of what is drawn over time."""
    shown = {}
    for dashboard in DASHBOARDS:
        for panel in every_panel(dashboard):
            if panel["type"] in ("table", "bargauge"):
                rows = [one for t in panel["targets"] for one in _values(prometheus, dashboard, t, "last")]
                shown[f"{dashboard['uid']}: {panel['title']}"] = f"{len(rows)} rows"
            elif panel["type"] == "state-timeline":
                (target,) = panel["targets"]
                states = {_said(panel, value) for value in _values(prometheus, dashboard, target, "last")}
                shown[f"{dashboard['uid']}: {panel['title']}"] = ", ".join(sorted(states))
    return shown


def test_while_it_is_there_the_numbers_are_there(before_and_after: tuple[dict[str, str], dict[str, str]]) -> None:
    before, _ = before_and_after
    assert before["verl-fleet: Exporter"] == before["verl-exporter: Exporter"] == "ready"
    assert before["verl-fleet: Need a person"] == before["verl-run: Critical"] == "0"
    assert (before["verl-fleet: Training"], before["verl-run: State"]) == ("1", "training")
    assert before["verl-gpus: GPUs"] == "4"
    # A point of a line is as old as its interval: which of the steps it is depends on the moment.
    assert float(before["verl-run: Step"]) > 0


def test_a_dead_exporter_is_down_and_nothing_else_is_said(
    before_and_after: tuple[dict[str, str], dict[str, str]],
) -> None:
    _, after = before_and_after
    assert after["verl-fleet: Exporter"] == after["verl-exporter: Exporter"] == "down"
    silent = {"exporter not heard", "–", "0 rows", "not heard"}
    asserted = {
        name: said
        for name, said in after.items()
        if said not in silent and name.split(": ")[1] not in {*NOT_OF_THE_EXPORTER, "Exporter", "Scraped"}
    }
    assert asserted == {}
    assert after["verl-run: State"] == after["verl-fleet: Need a person"] == "exporter not heard"
    assert after["verl-run: State over time"] == after["verl-fleet: State of each run"] == "not heard"
    assert "down" in after["verl-exporter: Scraped"]


def test_nothing_is_zero_by_itself() -> None:
    """``vector(0)`` is there whatever happens: it may stand for a state that says so, never for a number."""
    for dashboard in DASHBOARDS:
        for panel in every_panel(dashboard):
            meanings = str(panel["fieldConfig"]["defaults"].get("mappings", ""))
            for target in panel.get("targets", []):
                assert "vector(0)" not in target["expr"] or "down" in meanings or "not heard" in meanings, (
                    dashboard["uid"],
                    panel["title"],
                )


def test_numbers_and_rows_are_of_now() -> None:
    """What is not drawn over time is asked for now; a past behind a number ends in NaN where there is no number now."""
    for dashboard in DASHBOARDS:
        for panel in every_panel(dashboard):
            for target in panel.get("targets", []):
                where = (dashboard["uid"], panel["title"])
                if panel["type"] == "stat" and panel["options"]["graphMode"] != "none":
                    assert target["expr"].endswith(" or vector(NaN)"), where
                    assert panel["options"]["reduceOptions"]["calcs"] == ["last"], where
                elif panel["type"] in ("stat", "table", "bargauge"):
                    assert (target["instant"], target["range"]) == (True, False), where


def test_no_number_has_no_colour_of_a_good_one() -> None:
    """Grafana gives it the colour of the lowest threshold, often green, unless a mapping says otherwise."""
    for dashboard in DASHBOARDS:
        for panel in every_panel(dashboard):
            if panel["type"] == "stat":
                mapping = panel["fieldConfig"]["defaults"]["mappings"][-1]
                assert (mapping["type"], mapping["options"]["match"]) == ("special", "null+nan"), panel["title"]
                result = mapping["options"]["result"]
                assert result["text"] == panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
                assert result["color"] in {"#8e8e8e", "red"}, panel["title"]
