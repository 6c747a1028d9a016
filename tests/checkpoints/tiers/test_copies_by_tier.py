"""From a save to copies in all three tiers and back, without the trainer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from exporter.protocol import CheckpointCopied
from tests.checkpoints.tiers.conftest import Save, write_files
from trainer_entry.checkpoints import discard_manifest, verify
from trainer_entry.checkpoints.tiers.copies import check_copy, copies_of
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.tiers.linking import break_links
from trainer_entry.checkpoints.tiers.offering import offer, offer_to
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Place, Policy
from trainer_entry.checkpoints.tiers.policy_file import parse_policy
from trainer_entry.checkpoints.tiers.stores import open_store
from trainer_entry.checkpoints.tiers.working import Worker


def policy(text: str) -> Policy:
    return parse_policy(text.encode(), "policy.yml")


def work(state_dir: Path, chosen: Policy) -> list[CheckpointCopied]:
    """Carry out all that is due; the events."""
    worker = Worker(state_dir, "a", chosen)
    events = []
    while (job := worker.due()) is not None:
        events.append(worker.carry_out(job).event)
    return events


def test_a_snapshot_is_a_checkpoint_that_verl_can_resume_from(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    chosen = policy(f"snapshot: {{place: {tmp_path}/snapshots}}")
    manifest = save(40)
    jobs = offer(Workplace(state_dir), chosen, os.fspath(root / "global_step_40"), manifest)
    assert [job.tier for job in jobs] == ["snapshot"]
    (event,) = work(state_dir, chosen)
    assert event.ok, event.reason
    assert event.name == f"toy-step40-{manifest.fingerprint[:8]}"
    copy = tmp_path / "snapshots" / "a" / event.name / "global_step_40"
    assert verify(copy, "content").ok
    # Where the file system can, the content is there once.
    assert event.stored_bytes in (0, manifest.bytes + (copy / "verl_sentinel_manifest.json").stat().st_size)
    assert not list(root.glob(".verl_sentinel_staging/*"))


def test_a_linked_snapshot_stays_what_it_was_when_verl_saves_into_the_same_step_again(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    chosen = policy(f"snapshot: {{place: {tmp_path}/snapshots}}")
    offer(Workplace(state_dir), chosen, os.fspath(root / "global_step_40"), save(40))
    (event,) = work(state_dir, chosen)
    discard_manifest(root / "global_step_40")
    break_links(root / "global_step_40")
    write_files(root / "global_step_40", seed=99)
    assert verify(tmp_path / "snapshots" / "a" / event.name / "global_step_40", "content").ok


def test_the_same_content_is_stored_once(save: Save, root: Path, state_dir: Path, tmp_path: Path) -> None:
    chosen = policy(f"snapshot: {{place: {tmp_path}/snapshots, every_steps: 1}}")
    for _ in range(2):
        manifest = save(40, seed=7)
        offer_to(Workplace(state_dir), chosen.tiers[0], os.fspath(root / "global_step_40"), manifest, "by hand")
        (event,) = work(state_dir, chosen)
        assert event.ok, event.reason
        break_links(root / "global_step_40")
    assert len(list((tmp_path / "snapshots" / "a").iterdir())) == 1
    assert event.stored_bytes == 0


def test_a_milestone_survives_that_verl_deletes_its_source_while_it_waits(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    chosen = policy(f"milestone: {{place: 'file://{tmp_path}/far'}}")
    offer(Workplace(state_dir), chosen, os.fspath(root / "global_step_40"), save(40, metrics={"val/loss": 2.0}))
    shutil.rmtree(root / "global_step_40")
    (event,) = work(state_dir, chosen)
    assert event.ok, event.reason
    assert verify(tmp_path / "far" / "a" / event.name / "global_step_40", "content").ok


def test_both_regions_have_a_milestone_in_s3_and_each_is_reported(
    save: Save, root: Path, state_dir: Path, s3: dict[str, object]
) -> None:
    options = f"{{endpoint_url: '{s3['endpoint_url']}'}}"
    chosen = policy(
        f"milestone:\n  place: {{url: s3://copies/x, options: {options}}}\n"
        f"  second_place: {{url: s3://elsewhere/x, options: {options}}}\n"
    )
    offer(Workplace(state_dir), chosen, os.fspath(root / "global_step_40"), save(40, metrics={"val/loss": 2.0}))
    events = work(state_dir, chosen)
    assert [(event.place, event.ok) for event in events] == [("s3://copies/x", True), ("s3://elsewhere/x", True)]
    for place in chosen.tiers[0].places:
        store = open_store(place)
        (copy,) = copies_of(store, "a")
        check_copy(store, copy, "content", Pace())


def test_an_upload_that_was_interrupted_sends_only_what_is_missing(
    save: Save, root: Path, state_dir: Path, s3: dict[str, object]
) -> None:
    from trainer_entry.checkpoints.tiers.copying import copy
    from trainer_entry.checkpoints.tiers.stores.s3 import S3Store

    place = Place(url="s3://copies/x", options=s3)
    chosen = policy(f"milestone: {{place: {{url: s3://copies/x, options: {{endpoint_url: '{s3['endpoint_url']}'}}}}}}")
    part = 5 << 20
    manifest = save(40, size=3 * part, metrics={"val/loss": 2.0})
    (job,) = offer(Workplace(state_dir), chosen, os.fspath(root / "global_step_40"), manifest)

    class Counting(S3Store):
        sent = 0

        def _call(self, operation: str, key: str, **arguments: object) -> dict[str, object]:
            if operation == "upload_part":
                Counting.sent += 1
            return super()._call(operation, key, **arguments)

    store = Counting(place, part)
    with pytest.raises(Stopped):
        copy(job, chosen.tiers[0], "a", Pace(stop=lambda: Counting.sent == 4), scratch=state_dir / "s", store=store)
    (half,) = copies_of(store, "a")
    assert half.record is None
    assert "half" in half.problem
    copied = copy(job, chosen.tiers[0], "a", Pace(), scratch=state_dir / "s", store=store)
    assert Counting.sent == 6  # three parts of each of two files, none twice
    assert copied.sent_bytes < 2 * part + 200_000
    (whole,) = copies_of(store, "a")
    check_copy(store, whole, "content", Pace())
