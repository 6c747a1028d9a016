"""The stock trainers of verl, watched by the same hooks: what they do arrives at a receiving server."""

from __future__ import annotations

import json
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
from push_receiver import Answer, Receiver, until
from trainer_run import finish, start

from demo.toy import Toy, make, overrides, sft_overrides
from exporter.protocol import Batch, CheckpointSaved, GradientHistogram, HistogramRequest, PushAnswer, WeightsSynced
from trainer_entry.checkpoints import MANIFEST_NAME, Manifest, newest_verified
from trainer_entry.gradients.files import read
from trainer_entry.plugin import memory
from trainer_entry.plugin.hooks import HOOKS

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make(tmp_path_factory.mktemp("toy") / "made")


def wanting(batch: Batch) -> Answer | None:
    """An exporter that asks for two gradient histograms, again and again."""
    request = HistogramRequest(id="r:gradient_instability:grad_norm:1@1", steps=2, reason="a test")
    asked = request if batch.sender.role == "trainer" else None
    return 200, PushAnswer(accepted_seq=batch.seq, histogram=asked), {}


def check_histograms(receiver: Receiver, folder: Path) -> None:
    """Two were written, of steps that were logged, and they agree with what the trainer logged of the same updates."""
    logged = {step.step: float(str(step.metrics["actor/grad_norm"])) for step in receiver.steps()}
    events = [event for event in receiver.events(GradientHistogram) if isinstance(event, GradientHistogram)]
    assert len(events) == 2, "asked again and again under one id, written once"
    for event in events:
        head, layers = read(Path(event.file))
        assert Path(event.file).parent == folder / "state" / "gradients"
        assert (head["step"], len(layers), head["ranks"]) == (event.step, event.layers, [0])
        assert event.non_finite == 0
        assert all(sum(layer["histogram"]) + layer["zeros"] == layer["count"] > 0 for layer in layers)
        # verl logs the mean over the updates of a step, of which there are two.
        assert event.norm == pytest.approx(logged[event.step], rel=0.8)
    first, second = events
    if first.step == second.step:
        assert (first.norm + second.norm) / 2 == pytest.approx(logged[first.step], rel=1e-3)


def check_manifest(manifest: Manifest | None, receiver: Receiver, step: int) -> None:
    """It says what the run was when it saved: versions, configuration, position in the data, the step's own metrics."""
    assert manifest is not None
    run = receiver.batches[0].run
    assert (manifest.run_id, manifest.attempt, manifest.trainer) == (run.run_id, 1, "ppo_v1")
    assert (manifest.step, manifest.metrics_step) == (step, step)
    assert (manifest.verl_version, manifest.torch_version) == (version_of("verl"), version_of("torch"))
    assert manifest.config["trainer.project_name"] == "toy"
    assert manifest.config_hash
    assert manifest.data_position["batches"]
    (logged,) = (one.metrics for one in receiver.steps() if one.step == step)
    assert manifest.metrics["actor/grad_norm"] == pytest.approx(logged["actor/grad_norm"])
    (told,) = (one for one in receiver.events(CheckpointSaved) if one.step == step)  # type: ignore[attr-defined]
    assert (told.config_hash, told.fingerprint) == (manifest.config_hash, manifest.fingerprint)  # type: ignore[attr-defined]
    assert set(manifest.world_sizes.values()) == {1}


def test_the_v1_trainer_is_watched_by_all_hooks_and_stops_when_asked(toy: Toy, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    arguments = overrides(toy, checkpoints, steps=500, use_v1=True, save_every=2, validate_every=1000)
    with Receiver(answer=wanting) as receiver:
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
        assert f"{len(HOOKS)} of {len(HOOKS)} hooks in place, verl 0.9.1" in arrived.output
        assert len(arrived.hooks.installed) == len(HOOKS)
        assert arrived.hooks.missing == []

        steps = [step.step for step in receiver.steps()]
        assert steps == list(range(1, len(steps) + 1))
        last = steps[-1]
        assert 3 < last < 100, "a request for another attempt changed nothing, one for this attempt ended the run"
        logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        for step, line in zip(receiver.steps(), logged, strict=True):
            assert set(step.metrics) - {memory.METRIC} == set(line["data"])
            assert step.metrics["actor/grad_norm"] == pytest.approx(line["data"]["actor/grad_norm"])

        assert arrived.started.config["trainer.project_name"] == "toy"
        assert arrived.phase_names >= {"step", "gen", "update_actor", "update_weights", "save_checkpoint"}
        assert {event.step for event in arrived.checkpoints} >= {2, last}
        assert all(event.verified and event.bytes > 0 for event in arrived.checkpoints)
        newest = newest_verified(checkpoints, depth="forward", world_size=1)
        assert newest.chosen is not None
        assert newest.chosen.step == last
        check_manifest(newest.chosen.manifest, receiver, last)
        assert {event.step for event in receiver.events(WeightsSynced)} >= {1, 2, last}  # type: ignore[attr-defined]
        assert arrived.rollouts.succeeded >= (last - 1) * arrived.requests_per_step
        assert (arrived.rollouts.failed, arrived.rollouts.in_flight) == (0, 0)
        assert arrived.finished.exit_code == 0

        check_histograms(receiver, tmp_path)

        run = receiver.batches[0].run
        assert (run.trainer, run.project, run.verl_version) == ("ppo_v1", "toy", "0.9.1")
        assert {batch.run.run_id for batch in receiver.batches} == {run.run_id}, "workers know the run as well"
        assert {batch.sender.role for batch in receiver.batches} == {"trainer", "worker"}
        assert len({batch.sender.id for batch in receiver.batches}) == 2, "only who has something to send connects"
    assert list((tmp_path / "state" / "spool").iterdir()) == [], "nothing is left to send"


def test_the_legacy_trainer_is_watched_by_the_same_hooks(toy: Toy, tmp_path: Path) -> None:
    arguments = overrides(toy, tmp_path / "checkpoints", steps=6, use_v1=False, save_every=6, validate_every=1000)
    with Receiver(answer=wanting) as receiver:
        arrived = finish(start("trainer_entry.main_ppo", arguments, receiver, tmp_path), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert f"{len(HOOKS)} of {len(HOOKS)} hooks in place, verl 0.9.1" in arrived.output
        assert [step.step for step in receiver.steps()] == [1, 2, 3, 4, 5, 6]
        check_histograms(receiver, tmp_path)
        assert arrived.phase_names >= {"step", "gen", "update_actor", "update_weights"}
        assert [(event.step, event.verified) for event in arrived.checkpoints] == [(6, True)]
        assert {event.step for event in receiver.events(WeightsSynced)} >= {1, 2}  # type: ignore[attr-defined]
        assert arrived.rollouts.succeeded >= arrived.requests_per_step
        assert arrived.finished.exit_code == 0
        assert receiver.batches[0].run.trainer == "ppo_legacy"


def test_sft_is_watched_by_the_hooks_that_it_has_and_says_why_not_by_the_others(toy: Toy, tmp_path: Path) -> None:
    arguments = sft_overrides(toy, tmp_path / "checkpoints", steps=4, save_every=2)
    with Receiver() as receiver:
        arrived = finish(start("trainer_entry.main_sft", arguments, receiver, tmp_path), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert f"{len(HOOKS) - 2} of {len(HOOKS)} hooks in place, verl 0.9.1" in arrived.output
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
