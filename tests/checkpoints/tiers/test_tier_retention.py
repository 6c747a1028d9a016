"""What retention deletes, and what it never does."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest

from exporter.protocol import CheckpointPruned
from tests.checkpoints.tiers.conftest import Save
from trainer_entry.checkpoints import Origin, holding, mark_abandoned, verify
from trainer_entry.checkpoints.holding import held, hold, release
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.saved import SAVED_NAME, record_saved
from trainer_entry.checkpoints.saving import begin_save, end_save, saves
from trainer_entry.checkpoints.tiers.copies import copies_of
from trainer_entry.checkpoints.tiers.jobs import Report, Workplace
from trainer_entry.checkpoints.tiers.naming import COPY_NAME, STARTED_NAME
from trainer_entry.checkpoints.tiers.offering import offer_to
from trainer_entry.checkpoints.tiers.own_directory import prune_own
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import OwnDirectory, Place, Policy, Retention, TierPolicy
from trainer_entry.checkpoints.tiers.pruning import prune_tier
from trainer_entry.checkpoints.tiers.restoring import choose_copy
from trainer_entry.checkpoints.tiers.stores import Store, StoreError, open_store
from trainer_entry.checkpoints.tiers.working import Worker, needed_paths
from trainer_entry.supervisor.starting import leave_behind
from trainer_entry.supervisor.state import AttemptRequest, StateDir, write_record

KEEP_TWO = OwnDirectory(last=2)


def there(root: Path) -> list[int]:
    return sorted(int(path.name.rpartition("_")[2]) for path in root.glob("global_step_*"))


def test_the_newest_stay_and_those_of_an_earlier_life_go(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30, 40):
        save(step)
    decisions, reports = prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [30, 40]
    assert [(d.what, d.delete) for d in decisions][2:] == [("global_step_20", True), ("global_step_10", True)]
    assert sorted(report.step for report in reports if report.reason.startswith("2 newer")) == [10, 20]
    assert not list(root.glob(".verl_sentinel_pruned_*"))


def test_the_number_is_verls_own_where_the_policy_gives_none(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30):
        save(step, config={"trainer.max_actor_ckpt_to_keep": 1})
    prune_own(root, OwnDirectory(), state_dir, ())
    assert there(root) == [30]


def test_nothing_goes_where_nobody_gave_a_number(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30):
        save(step, config={"trainer.max_actor_ckpt_to_keep": None})
    prune_own(root, OwnDirectory(), state_dir, ())
    assert there(root) == [10, 20, 30]


def test_the_last_good_one_stays_when_newer_ones_have_rotted(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30, 40):
        save(step)
    for step in (30, 40):  # same size, other content: only reading it all tells
        path = root / f"global_step_{step}" / "data.pt"
        path.write_bytes(bytes(len(path.read_bytes())))
    decisions, reports = prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [20, 30, 40]
    assert next(d.reason for d in decisions if d.step == 20) == "it is the last good one"
    assert {r.step: r.ok for r in reports if hasattr(r, "ok")} == {40: False, 30: False, 20: True}


def test_nothing_goes_when_none_verifies(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30):
        save(step)
        path = root / f"global_step_{step}" / "data.pt"
        path.write_bytes(bytes(len(path.read_bytes())))
    prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [10, 20, 30]


def test_held_needed_tracked_and_unfamiliar_ones_stay(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        save(step)
    hold(root / "global_step_10", "command-1", "a rollback goes there")
    (root / "latest_checkpointed_iteration.txt").write_text("30")
    save(5, manifest=False)  # somebody's own
    (root / "latest_checkpointed_iteration.txt").write_text("30")
    decisions, _ = prune_own(root, KEEP_TWO, state_dir, {os.fspath(root / "global_step_20")})
    assert there(root) == [5, 10, 20, 30, 50, 60]
    reasons = {d.step: d.reason for d in decisions}
    assert "command-1 holds it" in reasons[10]
    assert "a start from it" in reasons[20]
    assert reasons[30] == "verl's tracker names it"
    assert not release(root / "global_step_10", "another")
    assert release(root / "global_step_10", "command-1")
    prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [5, 30, 50, 60]


def test_a_hold_waits_for_a_deletion_and_then_says_that_the_checkpoint_is_gone(
    save: Save, root: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        save(step)
    target, told = root / "global_step_10", queue.Queue[type | None]()

    def take_hold() -> None:
        try:
            hold(target, "command-1", state_dir=state_dir)
            told.put(None)
        except OSError as error:
            told.put(type(error))

    def looks_held(path: Path) -> None:
        """Retention has looked and found no hold; just then the supervisor wants one."""
        if path == target and threading.active_count() == before:
            holder.start()
            holder.join(0.3)  # without the lock it would be held by then, and be deleted all the same

    holder, before = threading.Thread(target=take_hold), threading.active_count()
    monkeypatch.setattr("trainer_entry.checkpoints.tiers.own_directory.held", looks_held)
    monkeypatch.setattr("trainer_entry.checkpoints.tiers.own_directory._protected", lambda *_: "")
    prune_own(root, KEEP_TWO, state_dir, ())
    assert told.get(timeout=20) is FileNotFoundError
    assert there(root) == [20, 30]


def test_a_hold_on_what_is_deleted_and_saved_anew_meanwhile_has_failed(
    save: Save, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(10)
    target = root / "global_step_10"
    write = holding.write_json_atomically

    def replaced(path: Path, record: object) -> None:
        os.rename(target, root / "gone")
        save(10)
        write(path, record)

    monkeypatch.setattr(holding, "write_json_atomically", replaced)
    with pytest.raises(FileNotFoundError, match="made anew"):
        hold(target, "command-1")
    assert held(target) is None


def test_a_hold_that_cannot_be_read_holds(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30):
        save(step)
    (root / "global_step_10" / "verl_sentinel_hold.json").write_bytes(b"{")
    prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [10, 20, 30]


def test_what_a_rollback_left_behind_goes_after_a_while_and_counts_for_nothing(
    save: Save, root: Path, state_dir: Path
) -> None:
    for step in (10, 20, 30, 40):
        save(step)
    for step in (30, 40):
        mark_abandoned(root / f"global_step_{step}", 20)
    (root / "latest_checkpointed_iteration.txt").write_text("20")
    prune_own(root, KEEP_TWO, state_dir, ())
    assert there(root) == [10, 20, 30, 40]
    prune_own(root, KEEP_TWO, state_dir, (), now=time.time() + 90_000)
    assert there(root) == [10, 20]


def test_what_a_start_by_somebodys_words_left_behind_counts_for_nothing_and_stays(
    save: Save, root: Path, state_dir: Path
) -> None:
    """A run that begins lower beside the checkpoints of an older one keeps its own newest ones."""
    for step in (10, 20, 30, 40):
        save(step)
    leave_behind(os.fspath(root), 0, "trainer.resume_mode=disable", by_words=True)
    for step in (2, 4, 6):
        save(step)
    prune_own(root, KEEP_TWO, state_dir, (), now=time.time() + 90_000)
    assert there(root) == [4, 6, 10, 20, 30, 40]


def _of_a_dead_process(state_dir: Path, directory: Path) -> None:
    """A save began there, and its trainer died an hour ago."""
    step = int(directory.name.rpartition("_")[2])
    begin_save(state_dir, os.fspath(directory), step)
    record = state_dir / "checkpoints" / "saves" / f"{step}.json"
    record.write_text(record.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))  # another process's number
    assert saves(state_dir).unfinished == {os.fspath(directory)}
    (directory.parent / "latest_checkpointed_iteration.txt").write_text("20")
    old = time.time() - 3600
    for path in (*directory.rglob("*"), directory):
        os.utime(path, (old, old))


def test_a_whole_one_without_a_manifest_stays_for_it_may_have_been_saved_in_the_background(
    save: Save, root: Path, state_dir: Path
) -> None:
    for step in (10, 20):
        save(step)
    save(30, manifest=False)
    _of_a_dead_process(state_dir, root / "global_step_30")
    prune_own(root, OwnDirectory(last=1), state_dir, ())
    assert there(root) == [20, 30]


def test_a_save_that_had_returned_before_its_trainer_died_is_finished_and_kept(
    save: Save, root: Path, state_dir: Path
) -> None:
    for step in (10, 20):
        save(step)
    save(30, manifest=False)
    record_saved(root / "global_step_30", 30, Origin())
    record = root / "global_step_30" / SAVED_NAME
    record.write_text(record.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
    _of_a_dead_process(state_dir, root / "global_step_30")
    assert verify(root / "global_step_30").problem == "unfinished"
    prune_own(root, OwnDirectory(last=2), state_dir, ())
    assert there(root) == [20, 30]
    assert verify(root / "global_step_30").ok


def test_a_save_under_way_is_never_touched_and_a_half_one_of_a_dead_process_goes(
    save: Save, root: Path, state_dir: Path
) -> None:
    for step in (10, 20):
        save(step)
    save(30, manifest=False)
    (root / "global_step_30" / "data.pt").unlink()
    begin_save(state_dir, os.fspath(root / "global_step_30"), 30)
    assert saves(state_dir).under_way == {os.fspath(root / "global_step_30")}
    prune_own(root, OwnDirectory(last=1), state_dir, ())
    assert there(root) == [20, 30]
    _of_a_dead_process(state_dir, root / "global_step_30")
    prune_own(root, OwnDirectory(last=1), state_dir, ())
    assert there(root) == [20]
    end_save(state_dir, 30)
    assert not saves(state_dir).unfinished


def test_a_dry_run_says_the_same_and_deletes_nothing(save: Save, root: Path, state_dir: Path) -> None:
    for step in (10, 20, 30):
        save(step)
    planned, reports = prune_own(root, KEEP_TWO, state_dir, (), dry_run=True)
    assert there(root) == [10, 20, 30]
    done, _ = prune_own(root, KEEP_TWO, state_dir, ())
    assert [(d.what, d.delete, d.reason) for d in planned] == [(d.what, d.delete, d.reason) for d in done]
    assert not [report for report in reports if hasattr(report, "bytes")]


def test_what_an_attempt_was_told_to_start_from_stays_until_it_has_saved(
    save: Save, root: Path, state_dir: Path
) -> None:
    save(20)
    state = StateDir(state_dir)
    run = state.read_run()
    assert run is not None
    state.attempt_dir(1).mkdir()
    state.write_run(msgspec.structs.replace(run, attempt=1))
    request = AttemptRequest(
        attempt=1,
        argv=["true"],
        cwd="/",
        marker="m",
        resume_step=20,
        resume_path=os.fspath(root / "global_step_20"),
        created_at=time.time() - 1,
    )
    write_record(state.attempt_dir(1) / "request.json", request)
    assert needed_paths(os.fspath(state_dir), os.fspath(root)) == {os.fspath(root / "global_step_20")}
    save(30)
    assert needed_paths(os.fspath(state_dir), os.fspath(root)) == set()


@pytest.fixture
def tier(tmp_path: Path) -> TierPolicy:
    return TierPolicy(
        tier="milestone", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention(seconds=100.0)
    )


def fill(state_dir: Path, tier: TierPolicy, save: Save, root: Path, *steps: int) -> list[str]:
    worker = Worker(state_dir, "a", Policy(source="p", tiers=(tier,)))
    names = []
    for step in steps:
        (job,) = offer_to(Workplace(state_dir), tier, os.fspath(root / f"global_step_{step}"), save(step), "test")
        assert worker.carry_out(job).event.ok
        names.append(job.name)
    return names


def test_old_copies_go_but_for_the_last_good_one(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    first, second, third = fill(state_dir, tier, save, root, 10, 20, 30)
    (tmp_path / "far" / "a" / third / "global_step_30" / "data.pt").write_bytes(bytes(100))
    reports: list[Report] = []
    decisions = prune_tier(tier, "a", (), Pace(), reports.append, now=time.time() + 1000)
    assert {d.what: d.delete for d in decisions} == {third: True, second: False, first: True}
    store = open_store(tier.places[0])
    assert [copy.name for copy in copies_of(store, "a")] == [second]
    assert [(r.name, r.ok) for r in reports if hasattr(r, "ok")] == [(third, False), (second, True)]


def filled_twice(state_dir: Path, tier: TierPolicy, save: Save, root: Path, tmp_path: Path) -> TierPolicy:
    """The tier with a second place; both hold steps 10 and 20, of which one is to stay."""
    places = (*tier.places, Place(url=os.fspath(tmp_path / "farther")))
    tier = msgspec.structs.replace(tier, places=places, retention=Retention(last=1))
    worker = Worker(state_dir, "a", Policy(source="p", tiers=(tier,)))
    for step in (10, 20):
        for job in offer_to(worker.workplace, tier, os.fspath(root / f"global_step_{step}"), save(step), "test"):
            assert worker.carry_out(job).event.ok
    with worker.workplace.reports():
        pass
    return tier


@pytest.mark.parametrize("down", [0, 1])
def test_a_place_out_of_reach_neither_stops_retention_at_the_other_nor_hides_what_went_there(
    save: Save,
    root: Path,
    state_dir: Path,
    tier: TierPolicy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    down: int,
) -> None:
    tier = filled_twice(state_dir, tier, save, root, tmp_path)
    lost, other = tier.places[down], tier.places[1 - down]

    def opened(place: Place) -> Store:
        if place == lost:
            raise StoreError(f"{place.url} cannot be reached.")
        return open_store(place)

    monkeypatch.setattr("trainer_entry.checkpoints.tiers.pruning.open_store", opened)
    decisions = Worker(state_dir, "a", Policy(source="p", tiers=(tier,))).prune()
    assert [d.reason for d in decisions if d.where == lost.url] == [f"{lost.url} cannot be reached."]
    assert [copy.step for copy in copies_of(open_store(other), "a")] == [20]
    assert [copy.step for copy in copies_of(open_store(lost), "a")] == [20, 10]
    with Workplace(state_dir).reports() as events:
        pruned = [event for event in events if isinstance(event, CheckpointPruned)]
    assert [event.step for event in pruned] == [10]
    assert other.url in pruned[0].reason


def test_what_went_is_told_though_the_work_is_stopped_at_the_next_place(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    tier = filled_twice(state_dir, tier, save, root, tmp_path)
    told: list[Report] = []

    def gone() -> list[int]:
        return [report.step for report in told if isinstance(report, CheckpointPruned)]

    with pytest.raises(Stopped):
        prune_tier(tier, "a", (), Pace(stop=lambda: bool(gone())), told.append)
    assert gone() == [10]


def test_no_copy_goes_when_none_is_good(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    names = fill(state_dir, tier, save, root, 10, 20)
    for path in (tmp_path / "far").rglob("data.pt"):
        path.write_bytes(bytes(100))
    prune_tier(tier, "a", (), Pace(), now=time.time() + 1000)
    assert sorted(copy.name for copy in copies_of(open_store(tier.places[0]), "a")) == sorted(names)


def test_what_another_tier_put_there_is_not_this_ones_to_delete(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy
) -> None:
    fill(state_dir, tier, save, root, 10, 20, 30)
    snapshots = TierPolicy(tier="snapshot", places=tier.places, retention=Retention(seconds=1.0, last=1))
    reports: list[Report] = []
    decisions = prune_tier(snapshots, "a", [], Pace(), reports.append, now=time.time() + 1000)
    assert not any(decision.delete for decision in decisions)
    assert "belongs to the tier milestone" in decisions[0].reason
    assert not reports


def test_what_a_rollback_left_behind_is_no_good_copy_and_is_not_restored(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    tier = msgspec.structs.replace(tier, retention=Retention(last=1))
    good, bad = fill(state_dir, tier, save, root, 10, 20)
    leave_behind(os.fspath(root), 10, "the loss is NaN")
    shutil.rmtree(root / "global_step_20")  # as retention does after a day
    worker = Worker(state_dir, "a", Policy(source="p", tiers=(tier,)))
    assert not any(decision.delete for decision in worker.prune(dry_run=True))
    assert not list((tmp_path / "far").rglob("*left_behind*"))
    worker.prune()
    store = open_store(tier.places[0])
    assert {copy.name: bool(copy.left_behind) for copy in copies_of(store, "a")} == {good: False, bad: True}
    chosen, refused = choose_copy(store, "a")
    assert (chosen.name, [copy.name for copy in refused]) == (good, [bad])
    with pytest.raises(CheckpointError, match="rolled back behind") as raised:
        choose_copy(store, "a", step=20)
    assert raised.value.problem == "abandoned"
    assert choose_copy(store, "a", name=bad)[0].name == bad
    assert fill(state_dir, tier, save, root, 20) == [bad]  # the same content, saved again: it is good by that
    worker.prune()
    assert choose_copy(store, "a")[0].name == bad
    assert [copy.name for copy in copies_of(store, "a")] == [bad]


def test_another_runs_copies_and_strangers_files_are_not_touched(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    fill(state_dir, tier, save, root, 10, 20)
    far = tmp_path / "far"
    shutil.copytree(far / "a", far / "b")
    (far / "a" / "toy-step5-00000000").mkdir()
    (far / "a" / "toy-step5-00000000" / "thesis.txt").write_text("mine")
    prune_tier(tier, "a", (), Pace(), now=time.time() + 1e6)
    assert len(list((far / "b").iterdir())) == 2
    assert (far / "a" / "toy-step5-00000000" / "thesis.txt").exists()


def test_a_half_copy_goes_after_a_day_unless_a_job_waits_for_it(
    save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path
) -> None:
    names = fill(state_dir, tier, save, root, 10, 20)
    folder = tmp_path / "far" / "a" / names[0]
    (folder / COPY_NAME).unlink()
    (folder / STARTED_NAME).write_text(f'{{"run_id":"a","name":"{names[0]}","tier":"milestone","time":0}}')
    (job,) = offer_to(Workplace(state_dir), tier, os.fspath(root / "global_step_10"), save(10), "test")
    assert job.name == names[0]
    prune_tier(tier, "a", (job,), Pace())
    assert folder.exists()
    prune_tier(tier, "a", (), Pace())
    assert not folder.exists()


def test_a_held_copy_stays(save: Save, root: Path, state_dir: Path, tier: TierPolicy, tmp_path: Path) -> None:
    first, _ = fill(state_dir, tier, save, root, 10, 20)
    hold(tmp_path / "far" / "a" / first, "somebody")
    decisions = prune_tier(tier, "a", (), Pace(), now=time.time() + 1000)
    assert next(d.reason for d in decisions if d.what == first) == "a recovery holds it"
    assert (tmp_path / "far" / "a" / first).exists()
