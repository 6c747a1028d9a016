"""An abort from a person's request to the trainer, with the real exporter and a real supervisor; either may be killed
on the way. Never two trainers, nothing started after the abort, and a run that is left stopped is told of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised_run import SCRIPTS, Scene, alive, gated, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exporter"))

from exporter_process import ExporterProcess, running
from exporter_scene import batch

from exporter.protocol import CheckpointSaved, Step, encode

CONFIG = """
recovery: {mode: auto, trigger: direct}
incidents: {resolve_after_seconds: 3600}
"""


class Loop:
    """The exporter, the supervisor, its trainer, and a rollback script that waits at one of its steps."""

    def __init__(self, folder: Path, step: str) -> None:
        self.scene = Scene(folder)
        self.arrived, self.gate = folder / "arrived", folder / "gate"
        self.scripts = gated(folder / "scripts", step, self.arrived, self.gate)
        (folder / "exporter.yml").write_text(CONFIG)
        self.exporter: ExporterProcess

    def supervise(self, *, again: bool = False) -> Any:
        trainer = None if again else self.scene.trainer(hang_at=16, only_first=1)
        scripts = str(SCRIPTS) if again else str(self.scripts)
        return self.scene.run(
            trainer,
            "--url",
            self.exporter.url,
            "--rollback-scripts",
            scripts,
            "--rollback-clean-seconds",
            "0.5",
            wait="1",
            url=False,
        )

    def fail(self) -> str:
        """The trainer's metrics break; the id of the recovery, which has come to the gate."""
        self.scene.output_has(1, "hanging")
        saved = [
            CheckpointSaved(time=0.0, step=step, path=str(self.scene.saved(step)), verified=True) for step in (5, 10)
        ]
        metrics: Any = [{"actor/loss": 0.5 if step < 14 else "NaN"} for step in range(16)]
        rows = [Step(step=step, metrics=metrics[step]) for step in range(1, 16)]
        body = encode(batch(run="test-run", events=saved, steps=rows))
        assert self.exporter.post("/api/v1/push", body).status == 200
        until(self.arrived.exists, "the script to come to its gate")
        return str(self.recoveries()[0]["id"])

    def recoveries(self) -> list[Any]:
        return list(self.exporter.get("/api/v1/recoveries").json["recoveries"])

    def recovery(self) -> Any:
        return self.recoveries()[0]

    def abort(self, recovery: str) -> None:
        answer = self.exporter.post(f"/api/v1/recoveries/{recovery}/abort", {"who": "ada"})
        assert (answer.status, answer.json["stage"]) == (200, "aborted"), answer.body

    def answered(self) -> Any:
        return until(lambda: (it := self.recovery())["abort_answered"] and it, "the supervisor's answer")

    def failed(self) -> bool:
        return self.exporter.metrics().get('verl_recovery_failed{run="test-run"}') == 1.0


@pytest.fixture
def loop_at(tmp_path: Path) -> Iterator[Any]:
    made: list[Loop] = []
    contexts = []

    def make(step: str) -> Loop:
        loop = Loop(tmp_path, step)
        context = running(tmp_path, "--config", str(tmp_path / "exporter.yml"))
        contexts.append(context)
        loop.exporter = context.__enter__()
        made.append(loop)
        return loop

    yield make
    for loop in made:
        loop.scene.close()
    for context in contexts:
        context.__exit__(None, None, None)


def test_before_the_stop_the_trainer_goes_on(loop_at: Any) -> None:
    loop = loop_at("stop")
    loop.supervise()
    loop.abort(loop.fail())
    it = loop.answered()
    assert it["outcome"].endswith("The trainer was left as it is: attempt 1 goes on.")
    assert alive(loop.scene.starts()[0]["pid"])
    assert loop.scene.attempts() == 1
    assert not loop.failed()


def test_after_the_stop_it_stays_stopped_and_an_alert_says_so_whoever_is_killed_on_the_way(loop_at: Any) -> None:
    loop = loop_at("resume")
    supervisor = loop.supervise()
    recovery = loop.fail()
    supervisor.kill()
    supervisor.wait()
    loop.abort(recovery)
    port = loop.exporter.url.rpartition(":")[2]
    loop.exporter.kill()
    loop.exporter.arguments = (*loop.exporter.arguments, "--listen", f"127.0.0.1:{port}")
    loop.exporter.start()
    loop.gate.touch()
    again = loop.supervise(again=True)
    it = loop.answered()
    assert it["outcome"].endswith("The trainer is stopped, and a person has to start it.")
    assert loop.scene.ended(again) == 70
    assert loop.scene.of_attempts() == []
    assert loop.scene.attempts() == 1
    assert loop.failed()
    target = str(loop.scene.checkpoints / "global_step_5")
    assert loop.scene.cli("resume", "--state-dir", str(loop.scene.state), "--target", target).returncode == 7
    loop.supervise(again=True)
    assert loop.scene.started(2)["from"] == 5
    until(lambda: not loop.failed(), "the alert to end when a person has started the run")


def test_what_was_started_is_left_running_and_not_followed_any_more(loop_at: Any) -> None:
    loop = loop_at("end")
    loop.supervise()
    recovery = loop.fail()
    loop.scene.started(2)
    until(lambda: loop.recovery()["stage"] == "verifying", "the new attempt to be reported")
    loop.abort(recovery)
    it = loop.answered()
    assert it["outcome"].endswith("Attempt 2 was started from step 10 and left running, not verified.")
    assert alive(loop.scene.starts()[1]["pid"])
    assert loop.scene.attempts() == 2
    audit = loop.exporter.get("/api/v1/audit").json["audit"]
    assert any(line["kind"] == "aborted" and "ada aborted it" in line["summary"] for line in audit)
