"""From end to end: the supervisor with its trainer as a job of a real cluster, rolled back, killed, taken over."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from private_ray import REPOSITORY, PrivateRay
from private_slurm import PrivateSlurm
from shadows import SECONDS, until
from supervised_run import Scene, alive, kill, read

pytestmark = pytest.mark.programs


class Cluster:
    """What the two kinds have in common for these tests: options for the supervisor, and which jobs are alive."""

    def __init__(self, scene: Scene, options: list[str], cluster: Any) -> None:
        self.scene = scene
        self.options = [*options, "--term-seconds", "60"]
        self._cluster = cluster

    def alive(self) -> list[str]:
        found: list[str] = self._cluster.alive()
        return found

    def run(self, *trainer: str, given: bool = True, **fake: object) -> subprocess.Popen[str]:
        words = self.scene.trainer(*trainer, **fake) if given else None
        return self.scene.run(words, *self.options)

    def job(self, attempt: int = 1) -> dict[str, Any]:
        path = self.scene.state / "attempts" / str(attempt) / "job.json"
        until(lambda: path.exists() and read(path)["stage"] != "submitting", f"the job of attempt {attempt}")
        found: dict[str, Any] = read(path)
        return found

    def record(self, attempt: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = read(self.scene.state / "attempts" / str(attempt) / "attempt.json")
        return found

    def started(self, count: int = 1) -> dict[str, Any]:
        until(lambda: len(self.scene.starts()) >= count, f"start {count} of the trainer")
        return self.scene.starts()[count - 1]

    def printed(self, text: str, attempt: int = 1) -> None:
        path = self.scene.state / "attempts" / str(attempt) / "output.log"
        until(lambda: path.exists() and text in path.read_text("utf-8", "replace"), f"{text!r} in the output")

    def ended(self, process: subprocess.Popen[str]) -> int:
        return process.wait(SECONDS)


@pytest.fixture(params=["slurm", "ray"])
def cluster(request: pytest.FixtureRequest, scene: Scene, tmp_path: Path) -> Any:
    if request.param == "slurm":
        slurm: PrivateSlurm = request.getfixturevalue("slurm")
        scene.environ |= slurm.environ
        settings = tmp_path / "slurm-settings.json"
        settings.write_text(json.dumps({"poll_seconds": 0.3}))
        return Cluster(scene, ["--executor", "slurm", "--executor-settings", str(settings)], slurm)
    head: PrivateRay = request.getfixturevalue("ray_head")
    settings = head.settings(tmp_path, runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}})
    return Cluster(scene, ["--executor", "ray", "--executor-settings", str(settings)], head)


def test_a_rollback_ends_the_job_and_comes_back_from_the_checkpoint_as_another(cluster: Cluster) -> None:
    scene = cluster.scene
    cluster.run(hang_at=12, only_first=1)
    cluster.printed("hanging")
    first = cluster.started()
    scene.command("c1", reason="hang")
    assert scene.exporter is not None
    exporter = scene.exporter
    until(lambda: [p for p in exporter.progress("c1") if p.state in ("succeeded", "failed")], "the end of c1")
    assert exporter.progress("c1")[-1].state == "succeeded", scene.said()
    second = cluster.started(2)
    assert (second["attempt"], second["from"]) == (2, 10)
    assert not alive(first["pid"])
    assert cluster.job()["stage"] == "over"
    assert cluster.alive() == [cluster.job(2)["id"]]
    assert [(a, e.executor) for a, e in exporter.events("attempt_started")] == [
        (1, cluster.job()["executor"]),
        (2, cluster.job()["executor"]),
    ]
    scene.supervisors[-1].send_signal(signal.SIGTERM)
    assert cluster.ended(scene.supervisors[-1]) == 143
    assert cluster.alive() == []


def test_supervisor_attempt_process_and_shadow_killed_leave_a_job_that_the_next_supervisor_follows(
    cluster: Cluster,
) -> None:
    """As when their machine is restarted: the training elsewhere goes on, and is neither ended nor started again."""
    scene = cluster.scene
    first = cluster.run(steps=100000, step_seconds=0.1)
    trainer = cluster.started()["pid"]
    cluster.printed("step:3")
    job, record = cluster.job(), cluster.record()
    first.kill()
    first.wait()
    kill(record["pid"])
    kill(record["trainer_pid"])
    until(lambda: not alive(record["trainer_pid"]), "the shadow to die")
    second = cluster.run(given=False)
    until(lambda: "is followed again" in scene.said(), "the second supervisor to take the job up")
    assert alive(trainer)
    assert cluster.alive() == [job["id"]]
    second.send_signal(signal.SIGTERM)
    assert cluster.ended(second) == 143
    assert not alive(trainer)
    assert cluster.alive() == []
    assert len(scene.starts()) == 1


def test_a_shadow_that_dies_while_the_cluster_cannot_be_asked_is_no_end_of_the_attempt(cluster: Cluster) -> None:
    scene = cluster.scene
    supervisor = cluster.run(step_seconds=0.1)
    trainer = cluster.started()["pid"]
    cluster.printed("step:3")
    settings = Path(cluster.job()["settings"])
    kept = settings.read_text()
    settings.write_text("{")
    kill(cluster.record()["trainer_pid"])
    until(lambda: "is not followed any more, and may be running" in scene.said(), "the supervisor to notice")
    settings.write_text(kept)
    until(lambda: "is followed again" in scene.said(), "the job to be followed again")
    assert alive(trainer)
    assert scene.exporter is not None
    assert scene.exporter.events("attempt_exited") == []
    supervisor.send_signal(signal.SIGTERM)
    assert cluster.ended(supervisor) == 143
    assert not alive(trainer)
    assert len(scene.starts()) == 1


def test_a_job_that_was_left_without_its_attempt_being_known_is_ended_before_the_next_start(cluster: Cluster) -> None:
    """The records say that attempt 1 is over, as a supervisor writes when it could not ask the cluster."""
    scene = cluster.scene
    first = cluster.run(step_seconds=0.1)
    trainer = cluster.started()["pid"]
    scene.saved(5)
    record = cluster.record()
    first.kill()
    first.wait()
    kill(record["pid"])
    kill(record["trainer_pid"])
    folder = scene.state / "attempts" / "1"
    until(lambda: not alive(record["trainer_pid"]), "the shadow to die")
    (folder / "exit.json").write_text(json.dumps({"attempt": 1, "signal": 9}))
    run = read(scene.state / "run.json")
    (scene.state / "run.json").write_text(json.dumps({**run, "reported_exit": 1, "told_to_stop": 1}))
    cluster.run(given=False)
    second = cluster.started(2)
    assert second["attempt"] == 2
    assert not alive(trainer)
    assert "of attempt 1 was left behind, and was ended" in scene.said()
    assert cluster.alive() == [cluster.job(2)["id"]]


def test_nothing_is_started_while_the_cluster_cannot_be_asked_about_an_earlier_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    scene = cluster.scene
    first = cluster.run(step_seconds=0.1)
    trainer = cluster.started()["pid"]
    record = cluster.record()
    first.kill()
    first.wait()
    kill(record["pid"])
    kill(record["trainer_pid"])
    run = read(scene.state / "run.json")
    (scene.state / "run.json").write_text(json.dumps({**run, "reported_exit": 1, "told_to_stop": 1}))
    settings = Path(cluster.job()["settings"])
    kept = settings.read_text()
    settings.write_text(json.dumps({**json.loads(kept), "no_such_setting": 1}))
    other = tmp_path / "other.json"
    other.write_text(kept)
    refused = scene.run(None, cluster.options[0], cluster.options[1], "--executor-settings", str(other))
    assert cluster.ended(refused) == 71
    assert "It is not certain that job" in scene.said()
    assert "Nothing is started." in scene.said()
    assert alive(trainer)
    assert len(scene.starts()) == 1
    settings.write_text(kept)
    result = scene.cli("stop", "--state-dir", str(scene.state))
    assert result.returncode == 0, result.stderr
    assert not alive(trainer)
    assert cluster.alive() == []


def test_an_executor_and_settings_that_cannot_be_used_are_a_sentence(scene: Scene, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"sbtach": []}')
    process = scene.run(scene.trainer(), "--executor", "slurm", "--executor-settings", str(settings))
    assert process.wait(SECONDS) == 71
    assert "'sbtach' is no setting of this executor; did you mean sbatch?" in scene.said()
    assert scene.starts() == []
