"""``verl-sentinel notify test`` against a real exporter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from exporter_process import running
from fake_services import FakeService


def command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "exporter", "notify", "test", "--url", url, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_it_says_which_targets_took_the_message_and_which_did_not(tmp_path: Path, service: FakeService) -> None:
    targets = {name: [{"value": f"json://{service.host}/{name}"}] for name in ("ops", "oncall")}
    (tmp_path / "c.yml").write_text(json.dumps({"notify": {"targets": targets}}))
    with running(tmp_path, "--config", str(tmp_path / "c.yml")) as exporter:
        done = command(exporter.url, "--who", "ada")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "Target ops took the message.\nTarget oncall took the message.\n"
        assert {request.path for request in service.requests} == {"/ops", "/oncall"}
        assert "ada asked for it" in service.requests[0].json["message"]
        one = command(exporter.url, "--target", "ops", "--json")
        assert json.loads(one.stdout) == {"targets": [{"target": "ops", "outcome": "delivered"}]}
        service.status = 500
        failed = command(exporter.url, "--target", "oncall")
        assert failed.returncode == 1
        assert "Target oncall did not take the message: " in failed.stderr
        unknown = command(exporter.url, "--target", "nobody")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "There is no target 'nobody': ops, oncall are there." in unknown.stderr
