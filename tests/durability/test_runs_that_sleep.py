"""A run that has ended leaves memory, and stays in the lists, the exports and the commands until it is forgotten."""

from __future__ import annotations

from pathlib import Path

from exporter_process import push, running, wait_for

from exporter.protocol import RunFinished, RunStarted, Step

CONFIG = "ended_run_grace_seconds: 0\nretention:\n  snapshot_seconds: 1\n"


def test_a_run_on_disk_is_listed_shown_exported_taken_up_again_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(CONFIG)
    with running(tmp_path, "--config", str(tmp_path / "config.yml")) as exporter:
        for seq in range(1, 6):
            push(exporter, seq=seq, steps=[Step(step=seq, metrics={"actor/loss": 0.5})])
        push(exporter, seq=6, events=[RunFinished(time=0.0, exit_code=0)])
        wait_for(lambda: 'verl_training_step{run="r"}' not in exporter.metrics(), exporter)
        for _ in range(2):
            (listed,) = exporter.get("/api/v1/runs").json["runs"]
            assert (listed["run_id"], listed["step"], listed["steps_total"], listed["running"]) == ("r", 5, 5, False)
            assert exporter.get("/api/v1/runs/r").json["run"]["exit_code"] == 0
            assert len(exporter.get("/api/v1/runs/r/steps").body.splitlines()) == 5
            exporter.kill()
            exporter.start()
        assert push(exporter, seq=5).duplicate
        push(exporter, sender="next", seq=1, events=[RunStarted(time=0.0)], steps=[Step(step=6, metrics={"a": 1.0})])
        wait_for(lambda: exporter.metrics().get('verl_training_steps_total{run="r"}') == 6, exporter)
        assert exporter.request("DELETE", "/api/v1/runs/r", None, {}).status == 409
        push(exporter, sender="next", seq=2, events=[RunFinished(time=0.0, exit_code=0)])
        assert exporter.request("DELETE", "/api/v1/runs/r", None, {}).status == 200
        exporter.kill()
        exporter.start()
        assert exporter.get("/api/v1/runs").json["runs"] == []
        assert exporter.get("/api/v1/runs/r/steps").status == 404
        assert not push(exporter, seq=5).duplicate
