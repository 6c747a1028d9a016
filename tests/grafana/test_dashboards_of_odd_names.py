"""Run ids and cohorts of any printable character choose what they name and nothing else, on a real Prometheus."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
from dashboard_parts import DASHBOARDS, every_panel
from recorded_runs import PlayedRun

from demo.stack import Stack
from grafana.against import Prometheus
from grafana.expanding import Chosen, Times, expanded

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]

ODD = [*"\"'\\{}.+()|$[]/%*?^&<>#:,;=~!@-试 ", "$1", '"}', "\\n", '{run="x"}', "a|b", ".*", "${x}", "[[x]]"]
NAMES = [f"odd{one}name" for one in ODD]
BACKTICK = "odd`name"
GIVE_UP_SECONDS = 60.0
EVERY = Chosen([], ".*")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Has scraped a run of each name, whose cohort is called the same."""
    stack = Stack(tmp_path_factory.mktemp("names"), mode="approve")
    try:
        stack.start()
        stack.wait_until_watching()
        for name in [*NAMES, BACKTICK]:
            PlayedRun(stack.exporter_url, stack.token("push"), "healthy-0", name, cohort=name).push_steps(1)
        prometheus = Prometheus(stack.prometheus_url)
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while missing := {*NAMES, BACKTICK} - _runs(prometheus):
            assert time.monotonic() < deadline, f"not scraped: {missing}"
            time.sleep(0.2)
        yield prometheus
    finally:
        stack.stop()


def _runs(prometheus: Prometheus) -> set[str]:
    found = prometheus.get("query", query="verl_run_info and on (run) verl_training_step")
    return {one["metric"]["run"] for one in found}


def _expr(uid: str, title: str) -> str:
    (expr,) = (
        panel["targets"][0]["expr"]
        for board in DASHBOARDS
        for panel in every_panel(board)
        if (board["uid"], panel["title"]) == (uid, title)
    )
    return str(expr)


def test_one_run_is_that_run(prometheus: Prometheus) -> None:
    for name in NAMES:
        chosen = {"run": Chosen([name]), "project": EVERY}
        found = prometheus.get("query", query=expanded(_expr("verl-run", "Step"), chosen, Times(0, 60)))
        assert [one["metric"]["run"] for one in found] == [name]


def test_several_runs_are_those_runs(prometheus: Prometheus) -> None:
    for one, other in zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True):
        chosen = {"run": Chosen([one, other]), "project": EVERY}
        found = prometheus.get("query", query=expanded(_expr("verl-fleet", "Runs"), chosen, Times(0, 60)))
        assert {row["metric"]["run"] for row in found} == {one, other}


def test_every_cohort_can_be_chosen_and_is_that_cohort(prometheus: Prometheus) -> None:
    (board,) = (one for one in DASHBOARDS if one["uid"] == "verl-gray-release")
    (baseline,) = (one for one in board["templating"]["list"] if one["name"] == "baseline")
    times = Times(time.time(), 3600)
    query = expanded(baseline["query"]["query"], {"project": EVERY}, times)
    assert sorted(prometheus.values(query, baseline["regex"], times)) == sorted([*NAMES, BACKTICK])
    for name in NAMES:
        chosen = {"project": EVERY, "baseline": Chosen([name]), "candidate": Chosen(["none of them"])}
        found = prometheus.get("query", query=expanded(_expr("verl-gray-release", "Both cohorts"), chosen, times))
        assert [float(one["value"][1]) for one in found] == [1.0], name


def test_a_run_with_a_backtick_is_refused_and_never_another_run(prometheus: Prometheus) -> None:
    """No format of Grafana's carries it into PromQL, and docs/dashboards.md says so; among all runs it is there."""
    chosen = {"run": Chosen([BACKTICK]), "project": EVERY}
    with pytest.raises(ValueError, match="parse error"):
        prometheus.get("query", query=expanded(_expr("verl-run", "Step"), chosen, Times(0, 60)))
    everything = {"run": EVERY, "project": EVERY}
    found = prometheus.get("query", query=expanded(_expr("verl-fleet", "Runs"), everything, Times(0, 60)))
    assert BACKTICK in {row["metric"]["run"] for row in found}
