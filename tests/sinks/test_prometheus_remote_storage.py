"""The shipped remote_write and federation configurations, with a real exporter, Prometheus and receiver."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from sink_scene import batch
from victoria import DEADLINE_SECONDS, Victoria, needs_victoria_metrics, wait_for

from demo.client import answers
from demo.processes import Child, free_port
from exporter.protocol import GpuReading, Step, encode

RULES = Path(__file__).resolve().parents[2] / "rules" / "prometheus"
PROGRAMS = ("prometheus", "promtool")
NAMES_FILE = "verl-names.rules.yml"
RECORDED = [
    rule["record"] for group in yaml.safe_load((RULES / NAMES_FILE).read_text())["groups"] for rule in group["rules"]
]

pytestmark = [
    *needs_victoria_metrics,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="prometheus is not installed"),
]


class Prometheus:
    """One Prometheus with a configuration of ours in which only addresses and intervals are changed."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        path = folder / f"{name}.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        self._child = Child(
            name,
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / name}",
                f"--web.listen-address={self.address}",
            ],
            folder / f"{name}.log",
        )

    def start(self) -> None:
        self._child.start()
        self._child.wait_until(lambda: answers(f"{self.url}/-/ready"), DEADLINE_SECONDS, "it was ready")

    def stop(self) -> None:
        self._child.stop(DEADLINE_SECONDS)

    def query(self, promql: str) -> list[dict[str, Any]]:
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return list(json.load(answer)["data"]["result"])


@dataclass
class Cluster:
    """An exporter, its Prometheus, and the store that this sends to."""

    exporter_url: str
    prometheus: Prometheus
    store: Victoria
    pushed: int = 0

    def push(self) -> None:
        """One more step."""
        self.pushed += 1
        metrics = {
            "actor/loss": self.pushed / 4,
            "timing_s/step": 0.5,
            "timing_s/update_weights": 0.25,
            "perf/total_num_tokens": 64.0,
        }
        gpu = GpuReading(node="n", index=0, memory_used_bytes=2**30, utilization_ratio=0.5)
        body = encode(batch(seq=self.pushed, steps=[Step(step=self.pushed, metrics=metrics)], gpus=[gpu]))
        headers = {"Content-Type": "application/msgpack"}
        request = urllib.request.Request(f"{self.exporter_url}/api/v1/push", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def scraped(self) -> bool:
        """Whether Prometheus has seen the newest step."""
        found = self.prometheus.query('verl_training_step{run="r"}')
        return bool(found) and float(found[0]["value"][1]) == self.pushed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port = free_port()
    argv = [sys.executable, "-m", "exporter", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")]
    exporter = Child("the exporter", argv, tmp_path / "exporter.log")
    store = Victoria(tmp_path)
    config = yaml.safe_load((RULES / "remote_write.yml").read_text())
    config["global"].update({"scrape_interval": "1s", "evaluation_interval": "1s"})
    config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
    del config["alerting"]
    job = next(one for one in config["scrape_configs"] if one["job_name"] == "verl-sentinel")
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["scrape_configs"] = [job]  # the programs beside it are not there
    (remote,) = config["remote_write"]
    remote["url"] = remote["url"].replace("http://127.0.0.1:8428", store.url)
    remote["queue_config"]["batch_send_deadline"] = "1s"
    prometheus = Prometheus(tmp_path, "cluster", config)
    try:
        exporter.start()
        exporter.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), DEADLINE_SECONDS, "it was ready")
        store.start()
        prometheus.start()
        yield Cluster(f"http://127.0.0.1:{port}", prometheus, store)
    finally:
        prometheus.stop()
        store.stop()
        exporter.stop(DEADLINE_SECONDS)


def points(result: list[dict[str, Any]]) -> dict[frozenset[tuple[str, str]], set[tuple[int, str]]]:
    """Samples by series, without the label that a cluster's Prometheus adds to what leaves it.

    Without NaN, which victoria-metrics does not keep: a recorded ratio is NaN until the run has spent some time.
    """
    return {
        frozenset((name, value) for name, value in one["metric"].items() if name != "cluster"): {
            (round(at * 1000), f"{float(value):.9g}") for at, value in one["values"] if value != "NaN"
        }
        for one in result
    }


def test_every_sample_reaches_the_store_also_what_was_taken_while_it_was_down(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.push()
        wait_for("it is scraped", cluster.scraped)
    wait_for("the store has it", lambda: cluster.store.query('verl_training_step{run="r"} == 3'))
    cluster.store.stop()
    for _ in range(5):
        cluster.push()
        wait_for("it is scraped while the store is down", cluster.scraped)
    cluster.store.start()
    cluster.push()
    wait_for("it is scraped", cluster.scraped)

    def the_same() -> bool:
        there = points(cluster.store.query('{run="r"}[1h]'))
        here = points(cluster.prometheus.query('{run="r"}[1h] offset 2s'))
        return bool(here) and all(here[one] <= there.get(one, set()) for one in here)

    wait_for("the store has all that Prometheus has", the_same)
    (step,) = cluster.store.query("verl_training_step")
    assert step["metric"]["cluster"] == "cluster-1"
    assert step["metric"]["job"] == "verl-sentinel"
    assert cluster.store.query('up{cluster="cluster-1"} == 1')
    assert not cluster.store.query('{__name__=~"(python|process|go)_.*"}')


def recorded_for_the_run(query: Callable[[str], list[dict[str, Any]]]) -> Callable[[], bool]:
    """Whether there is a series of the run for every recording rule."""
    return lambda: all(query(f'{{__name__="{name}",run="r",cluster="cluster-1"}}') for name in RECORDED)


def test_what_the_rules_of_the_cluster_record_reaches_the_store(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.push()
        wait_for("it is scraped", cluster.scraped)
    wait_for("every recorded name is in the store", recorded_for_the_run(cluster.store.query))


def test_a_prometheus_over_all_clusters_sees_their_series_under_their_own_labels(
    cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(2):
        cluster.push()
        wait_for("it is scraped", cluster.scraped)
    config = yaml.safe_load((RULES / "federation.yml").read_text())
    (job,) = config["scrape_configs"]
    job.update({"scrape_interval": "1s", "scrape_timeout": "1s"})
    job["static_configs"] = [{"targets": [cluster.prometheus.address]}]
    above = Prometheus(tmp_path, "above", config)
    try:
        above.start()
        wait_for("it is there", lambda: above.query('verl_training_step{run="r"} == 2'))
        (one,) = above.query('verl_training_step{run="r"}')
        (other,) = cluster.prometheus.query('verl_training_step{run="r"}')
        assert one["metric"] == {**other["metric"], "cluster": "cluster-1"}
        wait_for("every recorded name is there", recorded_for_the_run(above.query))
        wait_for("alerts of the cluster are there", lambda: above.query('ALERTS{cluster="cluster-1"}'))
    finally:
        above.stop()


@pytest.mark.parametrize("name", ["prometheus.yml", "remote_write.yml"])
def test_a_prometheus_of_a_cluster_has_all_rules(name: str) -> None:
    rules = {path.name for path in RULES.glob("*.rules.yml")}
    assert set(yaml.safe_load((RULES / name).read_text())["rule_files"]) == rules


def test_what_is_recorded_is_federated_by_its_name_whatever_the_job_is_called() -> None:
    (job,) = yaml.safe_load((RULES / "federation.yml").read_text())["scrape_configs"]
    found = [re.fullmatch(r'\{__name__=~"(.+)"\}', match) for match in job["params"]["match[]"]]
    (pattern,) = [one.group(1) for one in found if one is not None]
    missing = [name for name in [*RECORDED, "ALERTS", "verl_loss"] if not re.fullmatch(pattern, name)]
    assert not missing


@pytest.mark.parametrize("name", ["remote_write.yml", "federation.yml"])
def test_prometheus_accepts_the_configuration_as_it_is(tmp_path: Path, name: str) -> None:
    done = Child("promtool", ["promtool", "check", "config", str(RULES / name)], tmp_path / "promtool.log")
    done.start()
    code = wait_for("promtool has ended", lambda: [code] if (code := done.exit_code()) is not None else None)
    assert code == [0], done.last_output()
