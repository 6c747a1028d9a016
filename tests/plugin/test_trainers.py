"""The stock trainers of verl, watched by the same hooks: what they do arrives at a receiving server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from push_receiver import Receiver, until
from trainer_run import finish, start

from demo.toy import Toy, make, overrides, sft_overrides
from exporter.protocol import WeightsSynced
from trainer_entry.checkpoints import MANIFEST_NAME, newest_verified

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make(tmp_path_factory.mktemp("toy") / "made")


def test_the_v1_trainer_is_watched_by_seven_hooks_and_stops_when_asked(toy: Toy, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    arguments = overrides(toy, checkpoints, steps=500, use_v1=True, save_every=2, validate_every=1000)
    with Receiver() as receiver:
        process = start("trainer_entry.main_ppo", arguments, receiver, tmp_path)
        request = tmp_path / "state" / "stop-request"

        def asked_another_attempt() -> bool:
            return process.poll() is not None or any(step.step >= 1 for step in receiver.steps())

        until(asked_another_attempt, "the first step", 300)
        request.write_text(json.dumps({"attempt": 7}))
        until(lambda: process.poll() is not None or any(s.step >= 3 for s in receiver.steps()), "the third step", 100)
        request.write_text(json.dumps({"attempt": 1}))
        arrived = finish(process, receiver, tmp_path)

        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert "7 of 7 hooks in place, verl 0.9.1" in arrived.output
        assert len(arrived.hooks.installed) == 7
        assert arrived.hooks.missing == []

        steps = [step.step for step in receiver.steps()]
        assert steps == list(range(1, len(steps) + 1))
        last = steps[-1]
        assert 3 < last < 100, "a request for another attempt changed nothing, one for this attempt ended the run"
        logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        for step, line in zip(receiver.steps(), logged, strict=True):
            assert set(step.metrics) == set(line["data"])
            assert step.metrics["actor/grad_norm"] == pytest.approx(line["data"]["actor/grad_norm"])

        assert arrived.started.config["trainer.project_name"] == "toy"
        assert arrived.phase_names >= {"step", "gen", "update_actor", "update_weights", "save_checkpoint"}
        assert {event.step for event in arrived.checkpoints} >= {2, last}
        assert all(event.verified and event.bytes > 0 for event in arrived.checkpoints)
        newest = newest_verified(checkpoints)
        assert newest.chosen is not None
        assert newest.chosen.step == last
        assert {event.step for event in receiver.events(WeightsSynced)} >= {1, 2, last}  # type: ignore[attr-defined]
        assert arrived.rollouts.succeeded >= (last - 1) * arrived.requests_per_step
        assert (arrived.rollouts.failed, arrived.rollouts.in_flight) == (0, 0)
        assert arrived.finished.exit_code == 0

        run = receiver.batches[0].run
        assert (run.trainer, run.project, run.verl_version) == ("ppo_v1", "toy", "0.9.1")
        assert {batch.run.run_id for batch in receiver.batches} == {run.run_id}, "workers know the run as well"
        assert {batch.sender.role for batch in receiver.batches} == {"trainer", "worker"}
        assert len({batch.sender.id for batch in receiver.batches}) == 2, "only who has something to send connects"
    assert list((tmp_path / "state" / "spool").iterdir()) == [], "nothing is left to send"


def test_the_legacy_trainer_is_watched_by_the_same_hooks(toy: Toy, tmp_path: Path) -> None:
    arguments = overrides(toy, tmp_path / "checkpoints", steps=2, use_v1=False, save_every=2, validate_every=1000)
    with Receiver() as receiver:
        arrived = finish(start("trainer_entry.main_ppo", arguments, receiver, tmp_path), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert "7 of 7 hooks in place, verl 0.9.1" in arrived.output
        assert [step.step for step in receiver.steps()] == [1, 2]
        assert arrived.phase_names >= {"step", "gen", "update_actor", "update_weights"}
        assert [(event.step, event.verified) for event in arrived.checkpoints] == [(2, True)]
        assert {event.step for event in receiver.events(WeightsSynced)} >= {1, 2}  # type: ignore[attr-defined]
        assert arrived.rollouts.succeeded >= arrived.requests_per_step
        assert arrived.finished.exit_code == 0
        assert receiver.batches[0].run.trainer == "ppo_legacy"


def test_sft_is_watched_by_the_hooks_that_it_has_and_says_why_not_by_the_others(toy: Toy, tmp_path: Path) -> None:
    arguments = sft_overrides(toy, tmp_path / "checkpoints", steps=4, save_every=2)
    with Receiver() as receiver:
        arrived = finish(start("trainer_entry.main_sft", arguments, receiver, tmp_path), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert "5 of 7 hooks in place, verl 0.9.1" in arrived.output
        assert {item.name: item.reason for item in arrived.hooks.missing} == {
            "rollouts": "SFT has no rollouts",
            "weight_sync": "SFT has no rollout engine to send weights to",
        }
        training = [step.step for step in receiver.steps() if "train/loss" in step.metrics]
        validation = [step.step for step in receiver.steps() if "val/loss" in step.metrics]
        assert (training, validation) == ([1, 2, 3, 4], [2, 4])
        assert arrived.phase_names >= {"step", "optimizer_step", "save_checkpoint"}
        assert [(event.step, event.verified) for event in arrived.checkpoints] == [(2, True), (4, True)]
        assert (tmp_path / "checkpoints" / "global_step_4" / MANIFEST_NAME).is_file()
        assert arrived.finished.exit_code == 0
        assert receiver.batches[0].run.trainer == "sft"
