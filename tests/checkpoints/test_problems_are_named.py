"""Whatever can be wrong with a checkpoint is found, has a name, and is never chosen: for PPO's and SFT's layout."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_made import long_ago, ppo, sft

from trainer_entry import checkpoints
from trainer_entry.checkpoints import Origin, newest_verified, tracker_problem, verify, write_manifest
from trainer_entry.checkpoints.listed import inventory
from trainer_entry.checkpoints.problems import CODES, MEANINGS, Problem, told
from trainer_entry.checkpoints.saved import SAVED_NAME, record_saved
from trainer_entry.checkpoints.tiers.naming import COPY_NAME, STARTED_NAME
from trainer_entry.checkpoints.tiers.restoring import RESTORING

Layout = Callable[..., Path]
LAYOUTS = {"ppo": ppo, "sft": sft}


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def shard(directory: Path, kind: str = "model", rank: int = 1) -> Path:
    (found,) = directory.rglob(f"{kind}_world_size_2_rank_{rank}.pt")
    return found


def position(directory: Path) -> Path:
    return next(path for path in (directory / "data.pt", directory / "data_0.pt") if path.exists())


def archive(path: Path) -> None:
    """What torch.save writes is a zip archive."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 4000)


def no_manifest(directory: Path) -> None:
    (directory / checkpoints.MANIFEST_NAME).unlink()
    long_ago(directory)


def being_written(directory: Path) -> None:
    (directory / checkpoints.MANIFEST_NAME).unlink()
    shard(directory).write_bytes(b"half")


def being_hashed(directory: Path) -> None:
    (directory / checkpoints.MANIFEST_NAME).unlink()
    record_saved(directory, 5, Origin())


def unfinished(directory: Path) -> None:
    being_hashed(directory)
    document = json.loads((directory / SAVED_NAME).read_text())
    (directory / SAVED_NAME).write_text(json.dumps(document | {"boot_id": "another boot"}))


def without_a_shard(directory: Path) -> None:
    shard(directory, "optim").unlink()
    no_manifest(directory)


def without_its_position(directory: Path) -> None:
    position(directory).unlink()
    no_manifest(directory)


def with_a_full_disk(directory: Path) -> None:
    archive(shard(directory))
    os.truncate(shard(directory), 2000)
    no_manifest(directory)


def with_an_empty_file(directory: Path) -> None:
    os.truncate(shard(directory, "optim"), 0)
    no_manifest(directory)


def linked(directory: Path) -> None:
    shard(directory).rename(directory.parent / "elsewhere.pt")
    shard_path = directory.parent / "elsewhere.pt"
    target = next(directory.rglob("model_world_size_2_rank_0.pt")).with_name("model_world_size_2_rank_1.pt")
    target.symlink_to(shard_path)


def edited(directory: Path) -> None:
    path = directory / checkpoints.MANIFEST_NAME
    path.write_text(path.read_text().replace('"verl_version": ""', '"verl_version": "9.9.9"'))


def unreadable(directory: Path) -> None:
    shard(directory).unlink()
    os.mkfifo(next(directory.rglob("model_world_size_2_rank_0.pt")).with_name("model_world_size_2_rank_1.pt"))


def flipped(directory: Path) -> None:
    body = bytearray(shard(directory).read_bytes())
    body[9] ^= 4
    shard(directory).write_bytes(body)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no_manifest": no_manifest,
    "being_written": being_written,
    "being_hashed": being_hashed,
    "unfinished": unfinished,
    "missing_shard": without_a_shard,
    "missing_data": without_its_position,
    "truncated": with_a_full_disk,
    "missing_file": lambda d: position(d).unlink(),
    "longer": lambda d: shard(d).open("ab").write(b"x"),
    "content": flipped,
    "link": linked,
    "unreadable": unreadable,
    "manifest_edited": edited,
    "manifest_malformed": lambda d: (d / checkpoints.MANIFEST_NAME).write_text("{"),
    "manifest_format": lambda d: (d / checkpoints.MANIFEST_NAME).write_text('{"format": 3, "step": 5, "files": []}'),
    "manifest_other_step": lambda d: (d / checkpoints.MANIFEST_NAME).write_text(
        '{"format": 2, "step": 6, "files": []}'
    ),
    "abandoned": lambda d: checkpoints.mark_abandoned(d, 4, "kl"),
}


@pytest.mark.parametrize("code", sorted(DAMAGES))
def test_each_problem_has_its_name_and_the_checkpoint_before_it_is_taken(
    tmp_path: Path, layout: Layout, code: str
) -> None:
    for step in (4, 5):
        write_manifest(layout(tmp_path, step, ranks=2), step)
    DAMAGES[code](tmp_path / "global_step_5")
    result = verify(tmp_path / "global_step_5")
    assert (result.ok, result.problem) == (False, code), result.reason
    assert result.reason.endswith((".", ")"))
    choice = newest_verified(tmp_path)
    assert choice.chosen is not None
    assert (choice.chosen.step, [refused.problem for refused in choice.refused]) == (4, [code])


def test_a_copy_that_was_begun_and_not_finished_is_no_checkpoint(tmp_path: Path, layout: Layout) -> None:
    directory = layout(tmp_path / "q-step5-00000000", 5, ranks=2)
    write_manifest(directory, 5)
    (directory.parent / STARTED_NAME).write_text("{}")
    assert verify(directory).problem == "half_copy"
    (directory.parent / COPY_NAME).write_text("{}")
    assert verify(directory).ok


def test_a_restore_that_did_not_finish_is_listed_and_not_chosen(tmp_path: Path) -> None:
    half = ppo(tmp_path / f"{RESTORING}q-step9-00000000", 9)
    write_manifest(half, 9)
    found = inventory(tmp_path)
    assert [problem.code for problem in found.half] == ["half_copy"]
    assert found.checkpoints == []
    assert newest_verified(tmp_path).chosen is None


def test_an_empty_file_of_a_full_disk_is_named_too(tmp_path: Path, layout: Layout) -> None:
    write_manifest(layout(tmp_path, 5, ranks=2), 5)
    with_an_empty_file(tmp_path / "global_step_5")
    result = verify(tmp_path / "global_step_5")
    assert result.problem == "truncated"
    assert "optim_world_size_2_rank_1.pt is cut short" in result.reason


@pytest.mark.parametrize("with_manifest", [True, False])
def test_what_verls_own_retention_leaves_of_an_old_step_is_known_for_it(tmp_path: Path, with_manifest: bool) -> None:
    import shutil

    directory = ppo(tmp_path, 5)
    write_manifest(directory, 5)
    shutil.rmtree(directory / "actor")
    if not with_manifest:
        no_manifest(directory)
    result = verify(directory)
    assert result.problem == "retention"
    assert "max_actor_ckpt_to_keep" in result.reason


@pytest.mark.parametrize("gone", ["data_1.pt", "data_2.pt", "data_3.pt"])
def test_sft_needs_the_position_of_every_data_rank(tmp_path: Path, gone: str) -> None:
    directory = sft(tmp_path, 5, ranks=4, data_ranks=4)
    (directory / gone).unlink()
    with pytest.raises(checkpoints.CheckpointError, match=f"{gone}, the position in the data, is missing") as raised:
        write_manifest(directory, 5)
    assert raised.value.problem == "missing_data"


def test_shards_of_ranks_beyond_the_world_do_not_stand_in_for_a_missing_one(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5, ranks=2)
    folder = directory / "actor"
    (folder / "model_world_size_2_rank_1.pt").rename(folder / "model_world_size_2_rank_5.pt")
    with pytest.raises(checkpoints.CheckpointError, match="model shard of rank 1 of 2 is missing"):
        write_manifest(directory, 5)


def test_another_world_size_is_refused_where_the_asked_one_is_known(tmp_path: Path, layout: Layout) -> None:
    write_manifest(layout(tmp_path, 4, ranks=4), 4)
    write_manifest(layout(tmp_path, 5, ranks=2), 5)
    choice = newest_verified(tmp_path, world_size=4)
    assert choice.chosen is not None
    assert choice.chosen.step == 4
    assert [refused.problem for refused in choice.refused] == ["world_size"]
    assert "saved by 2 ranks" in choice.refused[0].reason
    assert newest_verified(tmp_path).chosen.step == 5  # type: ignore[union-attr]


def test_every_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    write_manifest(directory, 5)
    flipped(directory)
    body = bytearray((directory / "data.pt").read_bytes())
    (directory / "data.pt").write_bytes(bytes(reversed(body)))
    result = verify(directory)
    assert [(problem.code, problem.path) for problem in result.problems] == [
        ("content", "actor/model_world_size_2_rank_1.pt"),
        ("content", "data.pt"),
    ]


def test_a_disk_that_is_full_when_the_manifest_is_written_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ppo(tmp_path, 5)
    before = sorted(os.listdir(directory))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_manifest(directory, 5)
    assert sorted(os.listdir(directory)) == before
    monkeypatch.undo()
    assert not verify(directory).ok


@pytest.mark.parametrize(
    ("tracker", "code"),
    [
        ("10", None),
        ("30", "tracker_gone"),
        ("20", "tracker_stale"),
        ("5", "tracker_stale"),
        ("x", "tracker_malformed"),
        (None, "tracker_gone"),
    ],
)
def test_verls_tracker_is_compared_with_what_is_there(
    tmp_path: Path, layout: Layout, tracker: str | None, code: str | None
) -> None:
    for step in (5, 10, 20):
        write_manifest(layout(tmp_path, step, ranks=2), step)
    flipped(tmp_path / "global_step_20")
    if tracker is not None:
        (tmp_path / checkpoints.TRACKER_NAME).write_text(tracker)
    problem = tracker_problem(tmp_path, checkpoints.list_checkpoints(tmp_path, "content"))
    assert (problem.code if problem else None) == code


def test_a_tracker_that_is_a_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("5")
    (tmp_path / checkpoints.TRACKER_NAME).symlink_to(tmp_path / "elsewhere")
    problem = tracker_problem(tmp_path, [])
    assert problem is not None
    assert problem.code == "link"


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(CODES)
    assert told(()) == ""
    assert told((Problem("link", "A."),)) == "A."


def test_every_problem_is_explained_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text("utf-8")
    table = dict(line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| `"))
    assert set(CODES) <= {name.strip("`") for name in table}
    for code in CODES:
        assert MEANINGS[code] in table[f"`{code}`"]
