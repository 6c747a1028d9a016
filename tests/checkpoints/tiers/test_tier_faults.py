"""What can go wrong with a place or a source: each a sentence, a wait, and nothing lost."""

from __future__ import annotations

import errno
import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.protocol import CheckpointCopied
from tests.checkpoints.tiers.conftest import Save, write_files
from trainer_entry.checkpoints import Origin, verify, write_manifest
from trainer_entry.checkpoints.tiers import copying
from trainer_entry.checkpoints.tiers.jobs import Job, Workplace
from trainer_entry.checkpoints.tiers.naming import copy_name
from trainer_entry.checkpoints.tiers.offering import STAGING_NAME, drop_oldest, finish, offer_to, stage, sweep_staged
from trainer_entry.checkpoints.tiers.policy import Place, Policy, Retention, TierPolicy
from trainer_entry.checkpoints.tiers.stores.local import LocalStore
from trainer_entry.checkpoints.tiers.stores.s3 import S3Store
from trainer_entry.checkpoints.tiers.working import Worker

QUICK = {"config_kwargs": {"connect_timeout": 1, "read_timeout": 2, "retries": {"max_attempts": 0}}}


class Attempt:
    """One attempt at one milestone of step 40."""

    def __init__(self, place: Place, save: Save, root: Path, state_dir: Path) -> None:
        self.tier = TierPolicy(tier="milestone", places=(place,), retention=Retention())
        self.workplace = Workplace(state_dir)
        self.worker = Worker(state_dir, "a", Policy(source="p", tiers=(self.tier,)))
        manifest = save(40)
        (self.job,) = offer_to(self.workplace, self.tier, os.fspath(root / "global_step_40"), manifest, "test")

    def carry_out(self) -> CheckpointCopied:
        return self.worker.carry_out(self.job).event

    def waiting(self) -> list[Job]:
        return self.workplace.jobs()


def test_a_store_that_cannot_be_reached_is_tried_again_later(
    save: Save, root: Path, state_dir: Path, s3: dict[str, object]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    attempt = Attempt(Place(url="s3://copies/x", options={"endpoint_url": closed, **QUICK}), save, root, state_dir)
    event = attempt.carry_out()
    assert not event.ok
    assert "cannot be reached" in event.reason
    (job,) = attempt.waiting()
    assert (job.attempts, job.staged) == (1, attempt.job.staged)
    assert attempt.worker.due() is None
    assert attempt.worker.due(time.time() + 31) == job
    again = Worker(
        state_dir,
        "a",
        Policy(
            source="p",
            tiers=(
                TierPolicy(tier="milestone", places=(Place(url="s3://copies/x", options=s3),), retention=Retention()),
            ),
        ),
    )
    assert again.carry_out(job).event.ok
    assert not attempt.waiting()
    assert not (root / STAGING_NAME).exists()


def test_waits_grow_to_an_hour_and_a_clock_set_back_does_not_make_them_longer(state_dir: Path) -> None:
    workplace = Workplace(state_dir)
    job = Job(id="1-x", tier="milestone", place=0, step=1, source="/s", name="x-step1-00000000")
    waits = []
    for _ in range(12):
        job = workplace.put_back(job, "no", 1000.0)
        waits.append(job.not_before - 1000.0)
    assert waits[:3] == [30, 60, 120]
    assert waits[-1] == 3600
    worker = Worker(state_dir, "a", Policy(source="p"))
    assert worker.due(4599.0) is None
    assert worker.due(-1e9) is not None


@pytest.fixture
def refusing() -> Iterator[str]:
    """A store that accepts nobody's signature."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do(self) -> None:
            body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match</Message></Error>"
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_wrong_credentials_are_named(
    save: Save, root: Path, state_dir: Path, s3: dict[str, object], refusing: str
) -> None:
    attempt = Attempt(Place(url="s3://copies/x", options={"endpoint_url": refusing, **QUICK}), save, root, state_dir)
    event = attempt.carry_out()
    assert "refused us" in event.reason
    assert "AWS_" in event.reason
    assert "something" not in event.reason  # the secret
    assert attempt.waiting()


def test_a_bucket_that_is_not_there_is_named(save: Save, root: Path, state_dir: Path, s3: dict[str, object]) -> None:
    attempt = Attempt(Place(url="s3://no-such-bucket/x", options=s3), save, root, state_dir)
    assert "no such bucket" in attempt.carry_out().reason
    assert attempt.waiting()


@pytest.mark.parametrize("size", [20_000, 6 << 20])
def test_a_store_that_keeps_other_bytes_is_found_out(
    save: Save, root: Path, state_dir: Path, s3: dict[str, object], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whole objects, and multipart uploads: the content is changed in the bucket as soon as it is complete."""
    import boto3

    client = boto3.client("s3", endpoint_url=s3["endpoint_url"])

    class Lying(S3Store):
        def _call(self, operation: str, key: str, **arguments: object) -> dict[str, object]:
            answer = super()._call(operation, key, **arguments)
            if operation in ("put_object", "complete_multipart_upload") and key.endswith(
                "model_world_size_1_rank_0.pt"
            ):
                client.put_object(Bucket="copies", Key=self._key(key), Body=bytes(size))
            return answer

    place = Place(url="s3://copies/x", options=s3)
    tier = TierPolicy(tier="milestone", places=(place,), retention=Retention())
    monkeypatch.setattr(copying, "open_store", lambda place: Lying(place, 5 << 20))
    (job,) = offer_to(Workplace(state_dir), tier, os.fspath(root / "global_step_40"), save(40, size=size), "test")
    event = Worker(state_dir, "a", Policy(source="p", tiers=(tier,))).carry_out(job).event
    assert not event.ok
    assert "differs when read back" in event.reason
    assert not any(key.endswith("verl_sentinel_copy.json") for key in _keys(client))


def _keys(client: object) -> list[str]:
    return [entry["Key"] for entry in client.list_objects_v2(Bucket="copies").get("Contents", [])]  # type: ignore[attr-defined]


def test_a_full_disk_is_told_before_it_is_full(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)
    monkeypatch.setattr("trainer_entry.checkpoints.tiers.stores.local.link_file", lambda source, target: None)
    facts = os.statvfs(tmp_path)
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result((facts.f_bsize, facts.f_frsize, 9, 1, 1, *tuple(facts)[5:]))
    )
    assert "There is no room" in attempt.carry_out().reason
    assert attempt.waiting()


def test_a_disk_that_fills_up_meanwhile_is_named(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("trainer_entry.checkpoints.tiers.stores.local.link_file", lambda source, target: None)
        patched.setattr(LocalStore, "_append", full)
        assert "the disk is full" in attempt.carry_out().reason
    (job,) = attempt.waiting()
    assert attempt.worker.carry_out(job).event.ok


def test_a_place_inside_the_checkpoint_directory_is_refused_for_good(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(root)
    attempt = Attempt(Place(url=os.fspath(tmp_path / "alias" / "copies")), save, root, state_dir)
    event = attempt.carry_out()
    assert "lie within each other" in event.reason
    assert not attempt.waiting()


def test_a_source_that_has_rotted_is_never_copied(save: Save, root: Path, state_dir: Path, tmp_path: Path) -> None:
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)
    path = root / "global_step_40" / "data.pt"
    with open(path, "r+b") as file:  # the very file that the links share
        file.write(bytes(10))
    event = attempt.carry_out()
    assert "is not what its manifest says" in event.reason
    assert not attempt.waiting()


def test_a_source_that_was_saved_again_before_it_was_secured_is_not_copied_under_its_old_name(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_entry.checkpoints.tiers.offering.link_checkpoint", lambda source, target: None)
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)
    assert attempt.job.staged == ""
    save(40, seed=77)
    assert "was saved again before it was copied" in attempt.carry_out().reason
    write_files(root / "global_step_40", 1)


def test_the_oldest_waiting_copies_are_given_up_and_told(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    tier = TierPolicy(tier="milestone", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention())
    workplace = Workplace(state_dir)
    for step in (10, 20, 30, 40):
        (job,) = offer_to(workplace, tier, os.fspath(root / f"global_step_{step}"), save(step), "test")
        workplace.put_back(job, "It cannot be reached.", time.time())
    drop_oldest(workplace, tier, 3)
    assert [job.step for job in workplace.jobs()] == [20, 30, 40]
    assert len(list((root / STAGING_NAME).iterdir())) == 3
    with workplace.reports() as events:
        (event,) = events
    assert isinstance(event, CheckpointCopied)
    assert event.reason.startswith("Given up after 1 attempts")


def test_copies_that_never_were_tried_are_given_up_too_but_not_the_one_that_is_being_made(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    tier = TierPolicy(tier="milestone", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention())
    workplace = Workplace(state_dir)
    jobs = []
    for step in (10, 20, 30, 40, 50):
        jobs += offer_to(workplace, tier, os.fspath(root / f"global_step_{step}"), save(step), "test")
    with workplace.at_work(jobs[0]):
        drop_oldest(workplace, tier, 3)
    assert [job.step for job in workplace.jobs()] == [10, 30, 40, 50]
    drop_oldest(workplace, tier, 3)
    assert [job.step for job in workplace.jobs()] == [30, 40, 50]
    assert len(list((root / STAGING_NAME).iterdir())) == 3
    with workplace.reports() as events:
        assert [event.step for event in events] == [20, 10]
        assert isinstance(events[0], CheckpointCopied)
        assert events[0].reason == "Given up before it was tried, since 3 newer ones wait."


def test_a_copy_that_takes_longer_than_checkpoints_come_is_made_all_the_same(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)

    def slow(*arguments: Any, **more: Any) -> copying.Copied:
        for step in (50, 60):
            offer_to(attempt.workplace, attempt.tier, os.fspath(root / f"global_step_{step}"), save(step), "test")
        drop_oldest(attempt.workplace, attempt.tier, 1)
        return copying.copy(*arguments, **more)

    monkeypatch.setattr("trainer_entry.checkpoints.tiers.working.copy", slow)
    assert attempt.carry_out().ok
    assert [job.step for job in attempt.waiting()] == [60]
    with attempt.workplace.reports() as events:
        copied = [event for event in events if isinstance(event, CheckpointCopied)]
        assert [(event.step, event.ok) for event in copied] == [(50, False), (40, True)]
    assert attempt.workplace.id_at_work() == ""


def test_archives_that_wait_are_all_kept(save: Save, root: Path, state_dir: Path, tmp_path: Path) -> None:
    tier = TierPolicy(tier="archive", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention())
    workplace = Workplace(state_dir)
    for step in (10, 20):
        offer_to(workplace, tier, os.fspath(root / f"global_step_{step}"), save(step), "test")
    drop_oldest(workplace, tier, 1)
    assert [job.step for job in workplace.jobs()] == [10, 20]


class Killed(BaseException):
    """Stands for a kill: nothing of the code under test catches it."""


def test_links_whose_deletion_was_killed_are_never_taken_for_whole_and_are_gone_in_the_end(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)

    def killed(tree: Path) -> None:
        next(Path(tree).rglob("data.pt")).unlink()
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("trainer_entry.checkpoints.tiers.offering.remove_tree", killed)
        with pytest.raises(Killed):
            finish(attempt.workplace, attempt.job)
    assert len(list((root / STAGING_NAME).iterdir())) == 1
    again = stage(os.fspath(root / "global_step_40"), attempt.job.name)
    assert verify(again, "content").ok
    attempt.worker.prune()
    assert os.listdir(root / STAGING_NAME) == [attempt.job.name]


def test_what_is_staged_and_has_no_job_goes_after_an_hour(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    """A process that was killed between the links and the job, or between the job and the links."""
    attempt = Attempt(Place(url=os.fspath(tmp_path / "far")), save, root, state_dir)
    staging = root / STAGING_NAME
    lost = copy_name(save(10))
    stage(os.fspath(root / "global_step_10"), lost)
    half = staging / "toy-step20-00000000"
    (half / "global_step_20").mkdir(parents=True)
    write_files(root / "global_step_30", 30)
    others = copy_name(write_manifest(root / "global_step_30", 30, origin=Origin(model="toy", run_id="b")))
    stage(os.fspath(root / "global_step_30"), others)
    (staging / "mine").mkdir()

    def swept(seconds: float) -> set[str]:
        sweep_staged(attempt.workplace, root, "a", now=time.time() + seconds)
        return set(os.listdir(staging))

    kept = {attempt.job.name, others, "mine"}
    assert swept(3500) == {*kept, lost, half.name}
    os.utime(staging / lost, (0, 0))
    stage(os.fspath(root / "global_step_10"), lost)  # about to be offered again
    assert swept(3500) == {*kept, lost, half.name}
    assert swept(3700) == kept
    finish(attempt.workplace, attempt.job)
    assert swept(3700) == {others, "mine"}


def test_a_damaged_job_is_moved_aside(state_dir: Path) -> None:
    workplace = Workplace(state_dir)
    workplace.create()
    (workplace.path / "jobs" / "1-x.json").write_bytes(b"{\xff")
    assert workplace.jobs() == []
    assert (workplace.path / "jobs" / "1-x.damaged").exists()


def test_a_report_is_told_once_by_whoever_comes_first_and_again_only_if_that_one_died(state_dir: Path) -> None:
    one, other = Workplace(state_dir), Workplace(state_dir)
    one.report(CheckpointCopied(time=1.0, step=1, tier="snapshot", name="x"))
    with one.reports() as mine, other.reports() as theirs:
        assert (len(mine), len(theirs)) == (1, 0)
    with other.reports() as theirs:
        assert theirs == []
    one.report(CheckpointCopied(time=1.0, step=2, tier="snapshot", name="x"))
    with pytest.raises(RuntimeError), one.reports():
        raise RuntimeError("it died before it told")
    (claimed,) = (one.path / "reports").glob(".*.claimed")
    old = time.time() - 61
    os.utime(claimed, (old, old))
    with other.reports() as theirs:
        assert len(theirs) == 1


def test_a_second_name_of_a_part_is_never_written_to(tmp_path: Path) -> None:
    import hashlib

    from trainer_entry.checkpoints.tiers.pace import Pace
    from trainer_entry.checkpoints.tiers.stores import Content

    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "far").mkdir()
    os.link(tmp_path / "precious", tmp_path / "far" / "x.part")
    content = Content(os.fspath(tmp_path / "source"), 3, hashlib.sha256(b"new").hexdigest())
    LocalStore(os.fspath(tmp_path / "far")).send("x", content, Pace())
    assert (tmp_path / "far" / "x").read_bytes() == b"new"
    assert (tmp_path / "precious").read_bytes() == b"old"
