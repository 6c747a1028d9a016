"""What may be restored, and what may not: manifests, completeness, hostile directories."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_made import ppo, sft

from trainer_entry import checkpoints
from trainer_entry.checkpoints import CheckpointError, ManifestCancelled, newest_verified, verify, write_manifest

SHARD = "actor/model_world_size_2_rank_1.pt"


@pytest.mark.parametrize("critic", [False, True])
def test_a_saved_ppo_checkpoint_verifies(tmp_path: Path, critic: bool) -> None:
    directory = ppo(tmp_path, 5, critic=critic)
    manifest = write_manifest(directory, 5, verl_version="0.9.1")
    result = verify(directory)
    assert result.ok, result.reason
    assert result.manifest == manifest
    assert manifest.world_sizes == ({"actor": 2, "critic": 2} if critic else {"actor": 2})
    assert manifest.bytes == sum(p.stat().st_size for p in directory.rglob("*.*") if "sentinel" not in p.name)


def test_a_saved_sft_checkpoint_verifies_and_needs_every_data_position(tmp_path: Path) -> None:
    directory = sft(tmp_path, 5, data_ranks=3)
    write_manifest(directory, 5)
    assert verify(directory).ok
    (directory / "data_1.pt").unlink()
    assert "data_1.pt is missing" in verify(directory).reason
    with pytest.raises(CheckpointError, match=r"data_1\.pt, the position in the data, is missing"):
        write_manifest(directory, 5)


def test_a_distributed_checkpoint_is_complete_with_its_metadata_file(tmp_path: Path) -> None:
    directory = tmp_path / "global_step_3"
    for part in ("model", "optimizer", "extra"):
        folder = directory / "actor" / part / "dist_ckpt"
        folder.mkdir(parents=True)
        (folder / ".metadata").write_bytes(b"m")
        (folder / "__0_0.distcp").write_bytes(b"w" * 99)
    (directory / "data.pt").write_bytes(b"position")
    write_manifest(directory, 3)
    assert verify(directory).ok


def truncate(directory: Path) -> None:
    os.truncate(directory / SHARD, 100)


def flip(directory: Path) -> None:
    body = bytearray((directory / SHARD).read_bytes())
    body[7] ^= 1
    (directory / SHARD).write_bytes(body)


def edit_manifest(change: Callable[[dict], None]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def edit(directory: Path) -> None:
        path = directory / checkpoints.MANIFEST_NAME
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit


def without(manifest: dict, path: str) -> list:  # type: ignore[type-arg]
    return [entry for entry in manifest["files"] if entry["path"] != path]


def link_shard(directory: Path) -> None:
    (directory / SHARD).rename(directory.parent / "elsewhere.pt")
    (directory / SHARD).symlink_to(directory.parent / "elsewhere.pt")


def link_folder(directory: Path) -> None:
    (directory / "actor").rename(directory.parent / "elsewhere")
    (directory / "actor").symlink_to(directory.parent / "elsewhere")


def fifo_shard(directory: Path) -> None:
    (directory / SHARD).unlink()
    os.mkfifo(directory / SHARD)


def huge_manifest(directory: Path) -> None:
    os.truncate(directory / checkpoints.MANIFEST_NAME, 1 << 32)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / checkpoints.MANIFEST_NAME).unlink(), "has no verl_sentinel_manifest.json"),
        (lambda d: (d / checkpoints.MANIFEST_NAME).write_text('{"format": 1'), "malformed"),
        (lambda d: (d / checkpoints.MANIFEST_NAME).write_text("[" * 100_000), "malformed"),
        (lambda d: (d / checkpoints.MANIFEST_NAME).write_text('{"format": 1, "step": "x", "files": []}'), "malformed"),
        (huge_manifest, "more than the"),
        (lambda d: (d / SHARD).unlink(), f"file {SHARD} is missing"),
        (truncate, f"{SHARD} is truncated: 100 of 1000 bytes"),
        (lambda d: (d / SHARD).open("ab").write(b"x"), "1 more than were saved"),
        (flip, f"content of {SHARD} is not what was saved"),
        (link_shard, "symbolic link"),
        (link_folder, "lies behind a symbolic link"),
        (fifo_shard, "not a regular file"),
        (edit_manifest(lambda m: m.update(step=6)), "manifest is of step 6, but the directory is of step 5"),
        (edit_manifest(lambda m: m.update(format=99)), "format 99"),
        (edit_manifest(lambda m: m["files"].append(dict(m["files"][0], path="../../x"))), "not a plain one"),
        (edit_manifest(lambda m: m["files"].append(dict(m["files"][0], path="/etc/passwd"))), "not a plain one"),
        (edit_manifest(lambda m: m["files"].append(dict(m["files"][0]))), "not a plain one"),
        (edit_manifest(lambda m: m.update(files=[f for f in m["files"] if f["path"] != SHARD])), "its own seal"),
        (edit_manifest(lambda m: m.update(metrics={"actor/loss": 0.0})), "its own seal"),
        (edit_manifest(lambda m: m.pop("seal")), "its own seal"),
        # Format 1 has no seal.
        (edit_manifest(lambda m: m.update(format=1, files=without(m, SHARD))), "rank 1 of 2"),
        (edit_manifest(lambda m: m.update(format=1, files=without(m, "data.pt"))), r"data\.pt"),
        (edit_manifest(lambda m: m.update(format=1, world_sizes={"actor": 4_000_000})), "world size 4000000"),
    ],
)
def test_a_damaged_or_hostile_checkpoint_is_refused_with_the_reason_and_the_one_before_is_taken(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    older, newer = ppo(tmp_path, 4), ppo(tmp_path, 5)
    write_manifest(older, 4)
    write_manifest(newer, 5)
    assert verify(newer).ok
    damage(newer)
    choice = newest_verified(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 4
    assert [r.step for r in choice.refused] == [5]
    assert re.search(reason, choice.refused[0].reason), choice.refused[0].reason


def test_a_checkpoint_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    real = ppo(tmp_path / "other", 5)
    write_manifest(real, 5)
    (tmp_path / "global_step_5").symlink_to(real)
    choice = newest_verified(tmp_path)
    assert choice.chosen is None
    assert "symbolic link" in choice.refused[0].reason


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: (d / SHARD).unlink(), r"model shard of rank 1 of 2 is missing in actor/"),
        (lambda d: (d / "data.pt").unlink(), r"data\.pt, the position in the data, is missing"),
        (link_shard, "symbolic link"),
        (fifo_shard, "neither a file nor a directory"),
    ],
)
def test_no_manifest_is_written_for_what_is_incomplete(
    tmp_path: Path, break_it: Callable[[Path], object], message: str
) -> None:
    directory = ppo(tmp_path, 5)
    break_it(directory)
    with pytest.raises(CheckpointError, match=message):
        write_manifest(directory, 5)
    assert not (directory / checkpoints.MANIFEST_NAME).exists()


def test_the_step_that_was_saved_must_be_that_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not named global_step_6"):
        write_manifest(ppo(tmp_path, 5), 6)


def test_a_checkpoint_newer_than_the_onset_is_passed_over_and_listed(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write_manifest(ppo(tmp_path, step), step)
    choice = newest_verified(tmp_path, not_after_step=25)
    assert choice.chosen is not None
    assert choice.chosen.step == 20
    assert [(r.step, "after step 25" in r.reason) for r in choice.refused] == [(30, True)]
    assert newest_verified(tmp_path, not_after_step=9).chosen is None
    assert newest_verified(tmp_path / "absent").chosen is None


def test_a_second_save_into_the_same_directory_verifies_as_what_it_is_now(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5, seed="a")
    write_manifest(directory, 5)
    assert checkpoints.discard_manifest(directory)
    ppo(tmp_path, 5, seed="b")
    assert "has no verl_sentinel_manifest.json" in verify(directory).reason
    write_manifest(directory, 5)
    assert verify(directory).ok
    assert not checkpoints.discard_manifest(tmp_path / "global_step_99")


def test_a_save_that_does_not_announce_itself_never_matches_the_old_manifest(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5, seed="a")
    write_manifest(directory, 5)
    ppo(tmp_path, 5, seed="b")  # the same sizes, other content
    assert verify(directory, "sizes").ok
    assert "is not what was saved" in verify(directory, "content").reason


def test_what_a_rollback_left_behind_is_not_chosen_until_it_is_saved_anew(tmp_path: Path) -> None:
    for step in (10, 20):
        write_manifest(ppo(tmp_path, step), step)
    checkpoints.mark_abandoned(tmp_path / "global_step_20", 10, "kl")
    choice = newest_verified(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 10
    assert "left behind by a rollback to step 10" in choice.refused[0].reason
    write_manifest(tmp_path / "global_step_20", 20)
    assert newest_verified(tmp_path).chosen.step == 20  # type: ignore[union-attr]


def test_hashing_stops_when_it_is_cancelled_and_leaves_no_manifest(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ManifestCancelled):
        write_manifest(directory, 5, cancel=cancel)
    assert sorted(p.name for p in directory.iterdir()) == ["actor", "data.pt"]


def test_shards_of_an_earlier_world_size_do_not_hide_a_missing_one(tmp_path: Path) -> None:
    ppo(tmp_path, 5, ranks=4)
    directory = ppo(tmp_path, 5, ranks=2)  # overwrites fsdp_config.json, leaves the four old shards
    assert write_manifest(directory, 5).world_sizes == {"actor": 2}
    (directory / "actor" / "fsdp_config.json").unlink()
    with pytest.raises(CheckpointError, match="world sizes 2 and 4"):
        write_manifest(directory, 5)


@pytest.mark.parametrize("text", ["12", " 12\n"])
def test_the_tracker_is_read_as_verl_writes_it(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoints.TRACKER_NAME).write_text(text)
    assert checkpoints.tracker_step(tmp_path) == 12


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 60])
def test_a_tracker_without_a_step_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoints.TRACKER_NAME).write_text(text)
    assert checkpoints.tracker_step(tmp_path) is None
