"""Every query of every dashboard, on a real Prometheus with our rules that scraped a real exporter of recorded runs.

One healthy run with GPUs, one of another cohort, one whose loss becomes NaN and whose rollback waits for approval.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from recorded_runs import PlayedRun

from demo.stack import Stack
from grafana.__main__ import main
from grafana.against import Asked, Prometheus, ask, dashboards, may_be_empty
from grafana.expanding import Chosen, Times, expanded

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
        reason="prometheus and prometheus-alertmanager are not installed",
    ),
]

HEALTHY = 'toy/grpo "8 GPUs" [a|b] 试验'
BROKEN = "nan"
CANARY = "canary"
GIVE_UP_SECONDS = 60.0
HAS = {"gpus", "enough_steps", "enough_validations", "next_step"}
"""Of what may be missing, what the healthy run has."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("dashboards"), mode="approve")
    try:
        stack.start()
        stack.wait_until_watching()
        url, token = stack.exporter_url, stack.token("push")
        healthy = PlayedRun(url, token, "healthy-0", HEALTHY, speed=16.0, gpus=8)
        others = [
            PlayedRun(url, token, "healthy-1", CANARY, speed=12.0, cohort="canary"),
            PlayedRun(url, token, "nan-0", BROKEN, speed=10.0),
        ]
        threads = [threading.Thread(target=one.play, args=(60,), daemon=True) for one in others]
        for thread in threads:
            thread.start()
        healthy.play(85)
        for thread in threads:
            thread.join()
        # It goes on meanwhile, at half its pace: a run that is not heard any more is not a healthy one.
        healthy.speed = 0.5
        goes_on = threading.Thread(target=healthy.play, args=(100,), daemon=True)
        goes_on.start()
        yield stack
        healthy.over.set()
        goes_on.join()
    finally:
        stack.stop()


def asked_until_sound(stack: Stack, run: str, without: Iterable[str]) -> list[Asked]:
    """A scrape and an evaluation may still be due when the last push was accepted."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        found = ask(stack.prometheus_url, run=run, without=without)
        if all(one.sound for one in found) or time.monotonic() > deadline:
            return found


def test_a_healthy_run_leaves_nothing_empty_but_what_is_listed(stack: Stack) -> None:
    found = asked_until_sound(stack, HEALTHY, may_be_empty().keys() - HAS)
    assert [
        f"{one.dashboard}: {one.title} {one.query}: {one.error or one.expr}" for one in found if not one.sound
    ] == []
    kinds = {one.kind for one in found}
    assert kinds == {"panel", "variable", "annotation"}
    assert len({one.dashboard for one in found}) == 7


def test_a_run_with_findings_and_a_plan_shows_them(stack: Stack) -> None:
    """What is excused in a healthy run is there in one that has something to show."""
    wanted = {
        ("Open findings", "B"),
        ("Critical findings", ""),
        ("Open incidents", "B"),
        ("Plans that await approval", "B"),
        ("Plans that await approval", "C"),
    }
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        there = {(one.title, one.query) for one in ask(stack.prometheus_url, run=BROKEN) if one.series}
        if wanted <= there or time.monotonic() > deadline:
            break
    assert wanted - there == set()


def test_cohorts_are_told_apart_with_the_runs_that_have_none(stack: Stack) -> None:
    (board,) = (one for one in dashboards() if one["uid"] == "verl-gray-release")
    baseline, candidate = (one for one in board["templating"]["list"] if one["name"] in ("baseline", "candidate"))
    prometheus, times = Prometheus(stack.prometheus_url), Times(time.time(), 3600)
    every_project = {"project": Chosen([], ".*")}
    values = prometheus.values(expanded(baseline["query"]["query"], every_project, times), baseline["regex"], times)
    assert sorted(values) == ["(none)", "canary"]
    assert (baseline["sort"], candidate["sort"]) == (1, 2), "the first by name against the last"
    (table,) = (one for one in board["panels"] if one["title"] == "Both cohorts")
    chosen = every_project | {"baseline": Chosen(["(none)"]), "candidate": Chosen(["canary"])}
    count = expanded(table["targets"][0]["expr"], chosen, times)
    rows = prometheus.get("query", query=count)
    assert {row["metric"]["side"]: float(row["value"][1]) for row in rows} == {"baseline": 2.0, "candidate": 1.0}


def test_the_command_says_what_is_empty_and_why(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    asked_until_sound(stack, HEALTHY, may_be_empty())
    assert main(["--against", stack.prometheus_url, "--run", HEALTHY, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sound"]
    assert {one["dashboard"] for one in said["queries"]} == {one["uid"] for one in dashboards()}
    assert main(["--against", stack.prometheus_url, "--run", HEALTHY, "--without", "gpus"]) == 1
    said_in_words = capsys.readouterr().out
    assert "Value model: loss A: EMPTY" in said_in_words
    assert main(["--against", stack.prometheus_url, "--without", "wings"]) == 2
    assert "'wings'" in capsys.readouterr().out


def test_a_prometheus_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().out.startswith("http://127.0.0.1:9 does not answer: ")
