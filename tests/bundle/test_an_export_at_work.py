"""An export from an installed package, and one that real servers start with and page through."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.client import answers, get_json
from demo.processes import Child, free_port
from exporter.bundle.bundle import bundle
from exporter.bundle.foreign import COUNTERS, GAUGES, HISTOGRAMS, SUMMARIES
from exporter.bundle.site import site
from exporter.bundle.writing import carry_out, plan

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 120.0


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s"
        time.sleep(0.1)
    return found


def test_an_installed_package_exports_what_a_checkout_exports_wherever_it_is_called(tmp_path: Path) -> None:
    """Built from the files that are in the repository, installed into an empty folder, called from a hostile one."""
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if name.split("/")[0] in ("exporter", "trainer_entry", "rules", "grafana", "compose") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, source / name)
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*pip, "--target", str(installed), str(source)], capture_output=True, text=True, check=False)
    if "BackendUnavailable" in built.stderr or "No module named 'setuptools'" in built.stderr:
        pytest.skip("setuptools, with which the package is built, is not installed here")
    assert built.returncode == 0, built.stderr
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "rules/prometheus").mkdir(parents=True)
    (elsewhere / "rules/prometheus/mine.rules.yml").write_text("groups: []\n")
    argv = [sys.executable, "-m", "exporter", "export", "out", "--preset", "manual"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(argv, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    wanted = bundle(site(preset=["manual"])).files
    out = elsewhere / "out"
    written = {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert set(written) - {"verl-sentinel-export.json"} == set(wanted)
    assert [path for path, text in wanted.items() if written[path] != text] == []
    check = [sys.executable, "-m", "exporter", "check", "out", "--without", "promtool", "--without", "amtool"]
    looked = subprocess.run(check, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert (looked.returncode, looked.stdout) == (0, "")


class Servers:
    """Exporter, Prometheus and Alertmanager with the files of an export, as they were written."""

    def __init__(self, out: Path) -> None:
        ports: list[int] = []
        for _ in range(3):
            ports.append(free_port(frozenset(ports)))
        self.exporter, self.prometheus, self.alertmanager = (f"http://127.0.0.1:{port}" for port in ports)
        token = out / "alert-token"
        token.write_text("a-token-of-alertmanager")
        made = bundle(
            site(
                scrape_interval="1s",
                evaluation_interval="1s",
                label=["site=lab"],
                exporter_url=self.exporter,
                prometheus_url=self.prometheus,
                alertmanager_url=[self.alertmanager],
                job="lab/exporter",
                alert_token_file=str(token),
            )
        )
        carry_out(plan(out / "export", made), "", "")
        config = {
            "listen": self.exporter.removeprefix("http://"),
            "data_dir": str(out / "data"),
            "tokens": {"alert": [{"file": str(token)}]},
        }
        (out / "exporter.yml").write_text(yaml.safe_dump(config))
        rules = out / "export/rules"
        self.children = [
            Child("exporter", [sys.executable, "-m", "exporter", "--config", str(out / "exporter.yml")], out / "e.log"),
            Child(
                "alertmanager",
                [
                    "prometheus-alertmanager",
                    f"--config.file={rules / 'alertmanager.yml'}",
                    f"--storage.path={out / 'am'}",
                    f"--web.listen-address={self.alertmanager.removeprefix('http://')}",
                    "--cluster.listen-address=",
                ],
                out / "a.log",
            ),
            Child(
                "prometheus",
                [
                    "prometheus",
                    f"--config.file={rules / 'prometheus/prometheus.yml'}",
                    f"--storage.tsdb.path={out / 'tsdb'}",
                    f"--web.listen-address={self.prometheus.removeprefix('http://')}",
                ],
                out / "p.log",
            ),
        ]

    def push_nan(self, run: str) -> None:
        for step in range(1, 13):
            data = {"actor/loss": 0.5 if step < 10 else "NaN", "actor/grad_norm": 1.0}
            batch = {
                "protocol": 1,
                "run": {"run_id": run, "attempt": 1, "trainer": "ppo_v1"},
                "sender": {"id": "t", "role": "trainer"},
                "seq": step,
                "steps": [{"step": step, "time": time.time(), "metrics": data}],
            }
            body = json.dumps(batch).encode()
            request = urllib.request.Request(
                f"{self.exporter}/api/v1/push", data=body, headers={"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")):
        pytest.skip("prometheus and prometheus-alertmanager are not installed")
    servers = Servers(tmp_path_factory.mktemp("servers"))
    try:
        for child, url in zip(
            servers.children,
            (f"{servers.exporter}/readyz", f"{servers.alertmanager}/-/ready", f"{servers.prometheus}/-/ready"),
            strict=True,
        ):
            child.start()
            child.wait_until(lambda url=url: answers(url), DEADLINE_SECONDS, "it was ready")  # type: ignore[misc]
        yield servers
    finally:
        for child in reversed(servers.children):
            child.stop()


@pytest.mark.programs
def test_real_servers_start_with_an_export_and_a_page_reaches_the_exporter_s_webhook(servers: Servers) -> None:
    run = "a/run <b> 中文"
    servers.push_nan(run)

    def alert() -> dict[str, Any] | None:
        found = get_json(f"{servers.alertmanager}/api/v2/alerts") or []
        return next((one for one in found if one["labels"].get("run") == run), None)

    page = wait_for("the page", alert)
    assert page["labels"]["alertname"] == "VerlNonFinite"
    assert page["labels"]["site"] == "lab"
    assert page["annotations"]["runbook_url"] == f"{servers.exporter}/runbooks/VerlNonFinite.md"
    assert page["annotations"]["console_url"].startswith(f"{servers.exporter}/console/run?id=a%2Frun+")

    def heard() -> bool:
        audit = get_json(f"{servers.exporter}/api/v1/audit?limit=1000") or {}
        return any(one["run_id"] == run and one["kind"].startswith("alert") for one in audit.get("audit", []))

    wait_for("the webhook", heard)


@pytest.mark.programs
def test_the_rules_are_all_healthy_on_a_real_prometheus(servers: Servers) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        found = get_json(f"{servers.prometheus}/api/v1/rules")
        rules = [rule for group in found["data"]["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_for("every rule is evaluated", evaluated)
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    targets = get_json(f"{servers.prometheus}/api/v1/targets")["data"]["activeTargets"]
    assert "lab/exporter" in {target["labels"]["job"] for target in targets}


@pytest.mark.programs
def test_the_metrics_of_prometheus_and_alertmanager_that_are_known_are_theirs(servers: Servers) -> None:
    """Those with labels are only there once something has happened, so few of the list may be missing."""
    shown: set[str] = set()
    for url in (servers.prometheus, servers.alertmanager):
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            shown |= {line.split()[2] for line in answer.read().decode().splitlines() if line.startswith("# TYPE ")}
    missing = (GAUGES | COUNTERS | SUMMARIES | HISTOGRAMS) - shown
    assert {name for name in missing if "remote_storage" not in name} <= {
        "alertmanager_cluster_failed_peers",
        "alertmanager_cluster_members",
        "prometheus_notifications_errors_total",
        "prometheus_notifications_sent_total",
        "prometheus_notifications_latency_seconds",
    }
