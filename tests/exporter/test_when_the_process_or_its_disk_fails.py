"""The real process when things go wrong with it: restarts, kills, a full disk, a damaged journal."""

from __future__ import annotations

import asyncio
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from exporter_process import PUSH, ExporterProcess, push, running

from exporter.app import lifecycle
from exporter.app.lifecycle import Exporter
from exporter.config import Config
from exporter.protocol import (
    AttemptStarted,
    CheckpointSaved,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    Step,
)
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.rung_settings import ConfigRung, GitSource
from exporter.service.admission import Refused
from exporter.service.core import Core
from exporter.service.stable_config import StableConfigs


def _history(exporter: ExporterProcess) -> None:
    push(exporter, sender="sup", role="supervisor", seq=1, events=[AttemptStarted(time=0.0, pid=1)])
    for step in range(1, 30):
        metrics: dict[str, Any] = {"actor/grad_norm": 1.0, "timing_s/step": 0.5, "actor/loss": 0.1}
        push(exporter, seq=step, steps=[Step(step=step, metrics=metrics)])
    push(exporter, seq=30, events=[CheckpointSaved(time=0.0, step=20, path="/c", verified=True)])
    push(exporter, seq=31, rollout=RolloutCounts(succeeded=90, failed=2))
    push(exporter, seq=32, steps=[Step(step=30, metrics={"actor/grad_norm": "NaN", "actor/loss": "NaN"})])
    push(exporter, seq=33, phase=PhaseReport(step=31, open=[OpenPhase(name="gen", seconds=1.0)]))


def _kept(exporter: ExporterProcess) -> dict[str, str]:
    """What ``/metrics`` says of runs, without what grows by itself."""
    lines = exporter.get("/metrics").body.decode().splitlines()
    about_runs = [line for line in lines if 'run="' in line and not line.startswith("verl_phase_open_seconds")]
    return dict(line.rsplit(" ", 1) for line in about_runs)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_after_a_restart_or_a_kill_everything_acknowledged_is_there_once(tmp_path: Path, how: str) -> None:
    with running(tmp_path) as exporter:
        _history(exporter)
        before, incidents = _kept(exporter), exporter.get("/api/v1/incidents").json
        assert any(name.startswith("verl_incident_open") for name in before)
        code = getattr(exporter, how)()
        assert how == "kill" or code == 0
        exporter.start()
        assert _kept(exporter) == before
        assert exporter.get("/api/v1/incidents").json == incidents
        assert push(exporter, seq=12).duplicate


def test_a_disk_that_is_full_is_answered_503_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        resource.prlimit(exporter.pid, resource.RLIMIT_FSIZE, (400_000, 400_000))
        config = {f"key{i}": "x" * 100 for i in range(200)}
        acknowledged = 0
        for seq in range(1, 100):
            event = {"type": "run_started", "time": 0.0, "config": config}
            sent = {
                "protocol": 1,
                "run": {"run_id": "json"},
                "sender": {"id": "curl"},
                "seq": seq,
                "steps": [{"step": seq, "metrics": {"actor/lr": 1.0}}],
                "events": [event],
            }
            answer = exporter.post(PUSH, sent)
            if answer.status != 200:
                break
            acknowledged = seq
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert "cannot be written" in answer.reason
        ready = exporter.get("/readyz")
        assert ready.status == 503
        assert "cannot be written" in ready.json["reasons"][0]
        assert exporter.metrics()["verl_sentinel_ready"] == 0
        exporter.kill()
        exporter.start()
        assert acknowledged > 3
        assert exporter.metrics()['verl_training_steps_total{run="json"}'] == acknowledged


def _with_git(folder: Path) -> Exporter:
    rung = ConfigRung(source="git", git=GitSource(repository=str(folder / "no repository")))
    return Exporter(Config(data_dir=str(folder / "data"), recovery=RecoveryPolicy(config=rung)))


async def _until_replayed(exporter: Exporter) -> None:
    await exporter.start()
    while not exporter.replayed:
        await asyncio.sleep(0)


def test_what_git_has_is_looked_up_before_what_the_journal_leads_to_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rung that is passed over because nobody has looked yet does not come again in its episode."""
    exporter = _with_git(tmp_path)
    replay, known = Core.replay, []

    def replayed(core: Core, *given: Any) -> Any:
        known.extend(core.link.stable_configs.of(source).error for source in core.engine.policies.git_sources())
        return replay(core, *given)

    monkeypatch.setattr(Core, "replay", replayed)

    async def begin() -> None:
        await _until_replayed(exporter)
        await exporter.stop()

    asyncio.run(begin())
    assert len(known) == 1
    assert "no repository" in known[0], known


def test_git_that_does_not_answer_does_not_hold_the_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, answer, answered = _with_git(tmp_path), threading.Event(), threading.Event()

    def refresh(_: StableConfigs) -> None:
        answer.wait(30)
        answered.set()

    monkeypatch.setattr(StableConfigs, "refresh", refresh)
    monkeypatch.setattr(lifecycle, "STABLE_CONFIGS_SECONDS", 0.01)

    async def begin() -> None:
        await _until_replayed(exporter)
        assert not answered.is_set()
        answer.set()
        await exporter.stop()

    asyncio.run(begin())


def test_while_the_journal_is_read_nothing_is_taken_and_everybody_is_told_to_come_again(tmp_path: Path) -> None:
    exporter = Exporter(Config(data_dir=str(tmp_path / "data")))
    assert exporter.reasons_not_ready() == ["The journal is being read."]
    with pytest.raises(Refused, match="The journal is being read") as refused:
        exporter.require_replayed()
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    asyncio.run(exporter.stop())
