"""The manifest that the plugin writes beside training: whose metrics, which facts, and what happens at the end."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from push_receiver import Receiver, until

from exporter.protocol import CheckpointSaved, RunFinished
from trainer_entry.checkpoints import MANIFEST_NAME, Manifest, newest_verified, verify
from trainer_entry.checkpoints import hashing as hashing_module
from trainer_entry.checkpoints.saved import SAVED_NAME
from trainer_entry.configuration import config_hash
from trainer_entry.plugin.hooks.base import V1
from trainer_entry.plugin.hooks.checkpoints import _of_trainer
from trainer_entry.plugin.manifests import ManifestThread, Save
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.settings import Settings

LONG = 3600.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def runtime(receiver: Receiver, tmp_path: Path) -> Iterator[Runtime]:
    made = Runtime(
        Settings(url=receiver.url, run_id="r", attempt=4, state_dir=tmp_path / "state"), "0.9.1", report=print
    )
    made.enter_fit(SimpleNamespace(), V1)
    made.open_trainer("p", "e", {"trainer": {"default_local_dir": str(tmp_path)}})
    made.config = {"actor_rollout_ref.model.path": "Qwen/Qwen2-7B", "trainer.nnodes": 1}
    yield made
    made.finish(RunFinished(time=0.0))


def saved_by_verl(root: Path, step: int, content: bytes = b"x") -> Save:
    actor = root / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True, exist_ok=True)
    for kind in ("model", "optim", "extra_state"):
        (actor / f"{kind}_world_size_1_rank_0.pt").write_bytes(content * 100)
    (root / f"global_step_{step}" / "data.pt").write_bytes(b"d")
    return Save(str(actor.parent), step, False, 64)


def manifest_of(save: Save) -> Manifest:
    until((Path(save.directory) / MANIFEST_NAME).exists, "the manifest")
    manifest = verify(save.directory).manifest
    assert manifest is not None
    return manifest


def test_metrics_that_ppo_logs_after_the_save_are_waited_for(runtime: Runtime, tmp_path: Path) -> None:
    thread = ManifestThread(runtime, metrics_seconds=LONG)
    runtime.logged(4, {"actor/loss": 4.0})
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    runtime.logged(5, {"actor/loss": np.float32(0.5), "critic/kl": float("nan"), "note": "text", "odd": [1]})
    manifest = manifest_of(save)
    assert (manifest.metrics, manifest.metrics_step) == ({"actor/loss": 0.5, "critic/kl": "NaN"}, 5)


def test_a_step_keeps_its_metrics_however_many_steps_are_trained_while_it_is_hashed(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing, hashed = threading.Event(), threading.Event()
    hash_it = hashing_module.hash_elsewhere

    def slowly(*words: Any) -> Any:
        hashing.set()
        assert hashed.wait(60)
        return hash_it(*words)

    monkeypatch.setattr(hashing_module, "hash_elsewhere", slowly)
    thread = ManifestThread(runtime, metrics_seconds=LONG)
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    assert hashing.wait(60)
    for step in range(5, 105):
        runtime.logged(step, {"actor/loss": float(step)})
    hashed.set()
    manifest = manifest_of(save)
    assert (manifest.metrics, manifest.metrics_step) == ({"actor/loss": 5.0}, 5)
    until(lambda: not runtime._kept, "the kept metrics to be let go")


def test_that_a_save_returned_is_written_down_at_once_while_the_one_before_is_hashed(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that dies now leaves a checkpoint that can be finished."""
    go_on = threading.Event()
    hash_it = hashing_module.hash_elsewhere
    monkeypatch.setattr(hashing_module, "hash_elsewhere", lambda *words: go_on.wait(60) and hash_it(*words))
    thread = ManifestThread(runtime, metrics_seconds=0.0)
    first, second = saved_by_verl(tmp_path, 5), saved_by_verl(tmp_path, 6)
    thread.saved(first, 1.0)
    thread.saved(second, 1.0)
    assert (Path(second.directory) / SAVED_NAME).exists()
    go_on.set()
    assert manifest_of(second).torch_version, "what takes longer to find out is in the manifest all the same"


def test_metrics_that_do_not_come_in_time_are_those_of_the_step_before_which_is_named(
    runtime: Runtime, tmp_path: Path
) -> None:
    thread = ManifestThread(runtime, metrics_seconds=0.0)
    runtime.logged(3, {"actor/loss": 3.0})
    runtime.logged(4, {"actor/loss": 4.0})
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    manifest = manifest_of(save)
    assert (manifest.metrics, manifest.metrics_step) == ({"actor/loss": 4.0}, 4)


def test_sft_logs_a_step_in_two_parts_before_its_save(runtime: Runtime, tmp_path: Path) -> None:
    thread = ManifestThread(runtime, metrics_seconds=LONG)
    runtime.logged(5, {"train/loss": 1.0})
    runtime.logged(5, {"val/loss": 2.0})
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    assert manifest_of(save).metrics == {"train/loss": 1.0, "val/loss": 2.0}


def test_the_end_of_the_run_ends_the_waiting(runtime: Runtime, tmp_path: Path) -> None:
    thread = ManifestThread(runtime, last_seconds=60.0, metrics_seconds=LONG)
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    thread.finish()
    manifest = manifest_of(save)
    assert (manifest.metrics, manifest.metrics_step) == ({}, None)


def test_the_facts_of_the_run_and_what_is_reported_of_them(
    runtime: Runtime, receiver: Receiver, tmp_path: Path
) -> None:
    thread = ManifestThread(runtime)
    runtime.logged(5, {})
    save = saved_by_verl(tmp_path, 5)
    seen: list[tuple[str, Manifest]] = []
    thread.after.append(lambda directory, manifest: seen.append((directory, manifest)))
    thread.saved(save, 1.0)
    manifest = manifest_of(save)
    assert (manifest.run_id, manifest.attempt, manifest.trainer, manifest.model) == ("r", 4, V1, "Qwen2-7B")
    assert (manifest.verl_version, manifest.config) == ("0.9.1", runtime.config)
    assert manifest.data_position == {"file": "data.pt", "batches_per_epoch": 64, "epoch": 0}
    until(lambda: bool(receiver.events(CheckpointSaved)), "the event")
    (event,) = receiver.events(CheckpointSaved)
    assert isinstance(event, CheckpointSaved)
    assert (event.config_hash, event.fingerprint) == (config_hash(runtime.config), manifest.fingerprint)
    until(lambda: bool(seen), "the tiers' turn")
    assert seen == [(save.directory, manifest)]


def test_a_save_into_the_same_place_leaves_a_linked_snapshot_as_it_was(runtime: Runtime, tmp_path: Path) -> None:
    thread = ManifestThread(runtime)
    runtime.logged(5, {})
    save = saved_by_verl(tmp_path, 5, b"a")
    linked = tmp_path / "snapshot.pt"
    os.link(tmp_path / "global_step_5" / "actor" / "model_world_size_1_rank_0.pt", linked)
    thread.begin(save)
    saved_by_verl(tmp_path, 5, b"b")
    assert linked.read_bytes() == b"a" * 100


def test_without_a_process_to_be_had_it_is_hashed_here(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    thread = ManifestThread(runtime)
    runtime.logged(5, {})
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    manifest_of(save)


def test_a_last_checkpoint_that_is_not_hashed_in_time_can_be_finished_later(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer_entry.checkpoints import ManifestCancelled

    def slow(directory: str, step: int, cancel: threading.Event) -> Any:
        cancel.wait(60)
        raise ManifestCancelled("cancelled", "unfinished")

    monkeypatch.setattr("trainer_entry.checkpoints.hashing.hash_elsewhere", slow)
    thread = ManifestThread(runtime, last_seconds=0.05)
    runtime.logged(5, {})
    save = saved_by_verl(tmp_path, 5)
    thread.saved(save, 1.0)
    thread.finish()
    assert not (tmp_path / "global_step_5" / MANIFEST_NAME).exists()
    record = tmp_path / "global_step_5" / SAVED_NAME
    until(record.exists, "the record of the save")
    # As it is once this process, which is the trainer here, has ended.
    record.write_text(record.read_text().replace('"start_ticks": ', '"start_ticks": 1'))
    chosen = newest_verified(tmp_path).chosen
    assert chosen is not None
    assert chosen.step == 5


def test_a_trainer_without_a_countable_epoch_still_saves(tmp_path: Path) -> None:
    class Section(dict[str, Any]):
        __getattr__ = dict.__getitem__

    actor = Section(checkpoint=Section())
    config = Section(trainer=Section(default_local_dir=str(tmp_path)), actor_rollout_ref=Section(actor=actor))
    endless = SimpleNamespace(config=config, global_steps=5, train_dataloader=iter(()))
    assert _of_trainer(endless).batches_per_epoch is None
    assert _of_trainer(SimpleNamespace(config=config, global_steps=5, train_dataloader=[1, 2])).batches_per_epoch == 2
