"""Copies come back as they were, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.tiers.conftest import Save
from trainer_entry.checkpoints import CheckpointError, tracker_step, verify
from trainer_entry.checkpoints.tiers.copies import copies_of
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.tiers.naming import COPY_NAME
from trainer_entry.checkpoints.tiers.offering import offer_to
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Place, Policy, Retention, TierPolicy
from trainer_entry.checkpoints.tiers.restoring import choose_copy, restore
from trainer_entry.checkpoints.tiers.sealing import identities_of
from trainer_entry.checkpoints.tiers.stores import Store, open_store
from trainer_entry.checkpoints.tiers.working import Worker

Put = Callable[..., Store]


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, str]:
    """An age identity's file, and its recipient."""
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    path = tmp_path / "key.txt"
    path.write_text(f"# created: today\n{identity}\n")
    return path, str(identity.to_public())


@pytest.fixture
def put(save: Save, root: Path, state_dir: Path, tmp_path: Path) -> Put:
    """Copies a step into the tier; returns its store."""

    def make(step: int, place: Place | None = None, *, recipient: str = "", size: int = 20_000) -> Store:
        tier = TierPolicy(
            tier="archive" if recipient else "milestone",
            places=(place or Place(url=os.fspath(tmp_path / "far")),),
            retention=Retention(),
            recipients=(recipient,) if recipient else (),
        )
        (job,) = offer_to(
            Workplace(state_dir), tier, os.fspath(root / f"global_step_{step}"), save(step, size=size), "test"
        )
        event = Worker(state_dir, "a", Policy(source="p", tiers=(tier,))).carry_out(job).event
        assert event.ok, event.reason
        return open_store(tier.places[0])

    return make


def bring(store: Store, to: Path, identities: list[object] | None = None, pace: Pace | None = None) -> Path:
    copy, _ = choose_copy(store, "a")
    return restore(store, copy, to, identities or [], pace or Pace(), beside=False).path


def same(one: Path, other: Path) -> bool:
    files = sorted(path.relative_to(one) for path in one.rglob("*.pt"))
    assert files
    return all((one / path).read_bytes() == (other / path).read_bytes() for path in files)


def test_a_copy_comes_back_verified_and_verl_would_resume_from_it(put: Put, root: Path, tmp_path: Path) -> None:
    path = bring(put(40), tmp_path / "back")
    assert path == tmp_path / "back" / "global_step_40"
    assert verify(path, "content").ok
    assert same(root / "global_step_40", path)
    assert tracker_step(tmp_path / "back") == 40


def test_an_archive_is_compressed_and_encrypted_and_comes_back_with_its_identity_only(
    put: Put, root: Path, tmp_path: Path, key: tuple[Path, str]
) -> None:
    import pyrage

    store = put(40, recipient=key[1])
    plain = (root / "global_step_40" / "data.pt").read_bytes()
    (folder,) = (tmp_path / "far" / "a").iterdir()
    sealed = (folder / "global_step_40" / "data.pt.zst.age").read_bytes()
    assert plain not in sealed
    assert sealed.startswith(b"age-encryption.org/v1")
    with pytest.raises(CheckpointError, match="give the age identity"):
        bring(store, tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be decrypted"):
        bring(store, tmp_path / "wrong", [pyrage.x25519.Identity.generate()])
    assert not list((tmp_path / "wrong").glob("global_step_*"))
    path = bring(store, tmp_path / "back", identities_of(key[0]))
    assert same(root / "global_step_40", path)


def test_an_archive_compresses_what_can_be(save: Save, put: Put, tmp_path: Path, key: tuple[Path, str]) -> None:
    import hashlib

    from trainer_entry.checkpoints.tiers.sealing import recipients_of, seal
    from trainer_entry.checkpoints.tiers.stores import Content

    body = bytes(1 << 20)
    (tmp_path / "zeros").write_bytes(body)
    content = Content(os.fspath(tmp_path / "zeros"), len(body), hashlib.sha256(body).hexdigest())
    assert seal(content, tmp_path / "sealed", recipients_of([key[1]]), 3, Pace()).size < 2000


def test_a_restore_from_s3_after_an_interruption_fetches_only_the_rest(
    put: Put, root: Path, tmp_path: Path, s3: dict[str, object]
) -> None:
    store = put(40, Place(url="s3://copies/r", options=s3), size=300_000)
    seen = 0

    def count(number: int) -> None:
        nonlocal seen
        seen += number

    with pytest.raises(Stopped):
        bring(store, tmp_path / "back", pace=Pace(advance=count, stop=lambda: seen > 350_000))
    assert not list((tmp_path / "back").glob("global_step_*"))
    copy, _ = choose_copy(store, "a")
    restored = restore(store, copy, tmp_path / "back", [], Pace(), beside=False)
    assert restored.fetched_bytes < 310_000
    assert same(root / "global_step_40", restored.path)


def test_a_restore_that_was_interrupted_needs_room_for_the_rest_only(
    put: Put, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = put(40, size=300_000)
    seen: list[int] = []
    with pytest.raises(Stopped):
        bring(store, tmp_path / "back", pace=Pace(advance=seen.append, stop=lambda: sum(seen) >= 300_000))
    facts = os.statvfs(tmp_path)
    left = os.statvfs_result((facts.f_bsize, 1, 10**6, 400_000, 400_000, *tuple(facts)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: left)
    with pytest.raises(CheckpointError, match="There is no room"):
        bring(store, tmp_path / "elsewhere")
    assert same(root / "global_step_40", bring(store, tmp_path / "back"))


def test_a_copy_that_was_tampered_with_is_not_restored(put: Put, tmp_path: Path) -> None:
    store = put(40)
    (folder,) = (tmp_path / "far" / "a").iterdir()
    path = folder / "global_step_40" / "data.pt"
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CheckpointError, match="is not what was saved"):
        bring(store, tmp_path / "back")
    assert not [entry for entry in os.listdir(tmp_path / "back") if not entry.startswith(".")]


def test_a_half_copy_is_named_and_never_restored(put: Put, tmp_path: Path) -> None:
    store = put(40)
    put(60)
    newest = copies_of(store, "a")[0]
    folder = tmp_path / "far" / newest.prefix
    (folder / COPY_NAME).unlink()
    (folder / "verl_sentinel_started.json").write_text(
        json.dumps({"run_id": "a", "name": newest.name, "tier": "milestone", "time": 0})
    )
    copy, refused = choose_copy(store, "a")
    assert copy.step == 40
    assert ["is half" in one.problem for one in refused] == [True]
    with pytest.raises(CheckpointError, match="is half"):
        choose_copy(store, "a", step=60)


def test_the_newest_is_the_one_that_was_saved_last_not_the_highest_step(put: Put) -> None:
    put(80)
    store = put(60)  # after a rollback
    assert choose_copy(store, "a")[0].step == 60
    assert choose_copy(store, "a", step=80)[0].step == 80
    assert choose_copy(store, "a", not_after_step=70)[0].step == 60


def test_a_folder_that_is_used_is_not_restored_into(put: Put, tmp_path: Path) -> None:
    store = put(40)
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"is not empty \(there is mine.txt\)"):
        bring(store, tmp_path / "back")
    copy, _ = choose_copy(store, "a")
    path = restore(store, copy, tmp_path / "back", [], Pace(), beside=True).path
    assert tracker_step(tmp_path / "back") is None
    with pytest.raises(CheckpointError, match="is there already"):
        restore(store, copy, tmp_path / "back", [], Pace(), beside=True)
    assert verify(path).ok


@pytest.mark.parametrize("key_of", ["../../../x", "/etc/passwd", "global_step_40/../../x", "other/data.pt"])
def test_a_hostile_record_leads_nowhere(put: Put, tmp_path: Path, key_of: str) -> None:
    store = put(40)
    (folder,) = (tmp_path / "far" / "a").iterdir()
    record = json.loads((folder / COPY_NAME).read_text())
    record["objects"][0]["key"] = key_of
    (folder / COPY_NAME).write_text(json.dumps(record))
    (copy,) = copies_of(store, "a")
    assert copy.record is None
    assert "unusable object" in copy.problem


def test_a_sealed_file_that_swells_beyond_its_size_is_refused(tmp_path: Path, key: tuple[Path, str]) -> None:
    import hashlib

    from trainer_entry.checkpoints.tiers.sealing import recipients_of, seal, unseal
    from trainer_entry.checkpoints.tiers.stores import Content

    body = bytes(64 << 20)
    (tmp_path / "zeros").write_bytes(body)
    content = Content(os.fspath(tmp_path / "zeros"), len(body), hashlib.sha256(body).hexdigest())
    seal(content, tmp_path / "bomb", recipients_of([key[1]]), 3, Pace())
    with pytest.raises(CheckpointError, match="more than the 1000 bytes"):
        unseal(iter([(tmp_path / "bomb").read_bytes()]), tmp_path / "out", identities_of(key[0]), 1000)
    assert (tmp_path / "out").stat().st_size < 16 << 20
