"""The keeper's process, and who starts it: killed at any time it goes on, and it never outlives its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.protocol import CheckpointChecked, CheckpointCopied, CheckpointPruned, Event, RunFinished
from tests.checkpoints.tiers.conftest import Save
from trainer_entry.checkpoints import keeper, verify
from trainer_entry.checkpoints.tiers import after_run
from trainer_entry.checkpoints.tiers.after_run import finish_copies, pass_on
from trainer_entry.checkpoints.tiers.jobs import Report, RunNote, Workplace
from trainer_entry.checkpoints.tiers.offering import offer
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Place, Policy, Retention, TierPolicy
from trainer_entry.checkpoints.tiers.policy_file import read_policy
from trainer_entry.checkpoints.tiers.working import Worker
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.tiers import TierThread
from trainer_entry.settings import Settings

DEADLINE = 60.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yml"
    path.write_text(text)
    return path


def offered(workplace: Workplace, policy: Path, directory: Path, manifest: object) -> None:
    offer(workplace, read_policy(policy), os.fspath(directory), manifest)  # type: ignore[arg-type]


def told(workplace: Workplace) -> list[Report]:
    found: list[Report] = []
    pass_on(workplace, found.append)
    return found


@pytest.fixture
def started(state_dir: Path) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts keepers as the plugin does, and sees that none is left."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(policy: Path) -> subprocess.Popen[bytes]:
        processes.append(keeper.start(os.fspath(state_dir), "a", os.fspath(policy)))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_keeper_does_all_that_waits_and_goes(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, started: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    policy = written(
        tmp_path, f"own_directory: {{keep_last: 2}}\nsnapshot: {{place: {tmp_path}/near, every_steps: 1}}\n"
    )
    workplace = Workplace(state_dir)
    for step in (10, 20, 30):
        offered(workplace, policy, root / f"global_step_{step}", save(step))
    assert started(policy).wait(DEADLINE) == 0
    events = told(workplace)
    assert [event.step for event in events if isinstance(event, CheckpointCopied) and event.ok] == [10, 20, 30]
    assert [event.step for event in events if isinstance(event, CheckpointPruned)] == [10]
    assert workplace.jobs() == []
    assert told(workplace) == []


def test_a_keeper_yields_to_everybody(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, started: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\nlimits: {{bytes_per_second: 1KB}}\n")
    offered(Workplace(state_dir), policy, root / "global_step_10", save(10))
    process = started(policy)
    until(lambda: os.sched_getscheduler(process.pid) == os.SCHED_IDLE)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


def test_a_keeper_that_is_killed_in_the_middle_is_gone_on_with(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, started: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    slow = written(tmp_path, f"milestone: {{place: {tmp_path}/far}}\nlimits: {{bytes_per_second: 300KB}}\n")
    workplace = Workplace(state_dir)
    manifest = save(10, size=400_000, metrics={"val/loss": 1.0})
    offered(workplace, slow, root / "global_step_10", manifest)
    process = started(slow)
    until(lambda: list((tmp_path / "far").rglob("*.part")))
    process.kill()
    assert process.wait(DEADLINE) == -signal.SIGKILL
    assert len(workplace.jobs()) == 1
    assert not list((tmp_path / "far").rglob("verl_sentinel_copy.json"))
    assert started(written(tmp_path, f"milestone: {{place: {tmp_path}/far}}\n")).wait(DEADLINE) == 0
    (event,) = [event for event in told(workplace) if isinstance(event, CheckpointCopied)]
    assert event.ok, event.reason
    assert verify(tmp_path / "far" / "a" / event.name / "global_step_10", "content").ok


def test_a_keeper_does_not_outlive_its_parent(save: Save, root: Path, state_dir: Path, tmp_path: Path) -> None:
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\nlimits: {{bytes_per_second: 1KB}}\n")
    offered(Workplace(state_dir), policy, root / "global_step_10", save(10))
    code = (
        "import sys, time; from trainer_entry.checkpoints import keeper\n"
        "print(keeper.start(sys.argv[1], 'a', sys.argv[2]).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, os.fspath(state_dir), os.fspath(policy)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert keeper.start_ticks(pid)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not keeper.start_ticks(pid))
    assert len(Workplace(state_dir).jobs()) == 1


def test_two_keepers_do_not_work_at_once(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, started: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\n")
    offered(Workplace(state_dir), policy, root / "global_step_10", save(10))
    with Workplace(state_dir).locked():
        assert started(policy).wait(DEADLINE) == keeper.EXIT_BUSY
    assert len(Workplace(state_dir).jobs()) == 1


def test_a_policy_that_broke_meanwhile_ends_the_keeper_and_nothing_is_lost(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, started: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\n")
    offered(Workplace(state_dir), policy, root / "global_step_10", save(10))
    policy.write_text("snapshot: [")
    assert started(policy).wait(DEADLINE) == keeper.EXIT_POLICY
    assert len(Workplace(state_dir).jobs()) == 1
    assert "is no YAML" in (state_dir / "checkpoints" / "keeper.log").read_text()


class _Client:
    """Stands for the push client."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def flush(self, seconds: float) -> None:
        pass

    def close(self, seconds: float) -> None:
        pass


@pytest.fixture
def trainer(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Runtime, _Client, list[str]]:
    """The plugin's runtime in a trainer's process, what it sends and what it says."""
    said: list[str] = []
    runtime = Runtime(Settings(url="http://127.0.0.1:9", run_id="a", state_dir=state_dir), "0.9.1", said.append)
    client = _Client()
    monkeypatch.setattr(runtime, "_trainer_client", client)
    return runtime, client, said


def test_beside_training_a_save_is_copied_and_told(
    save: Save,
    root: Path,
    tmp_path: Path,
    trainer: tuple[Runtime, _Client, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, client, _ = trainer
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\n")
    monkeypatch.setenv("VERL_SENTINEL_CHECKPOINTS", os.fspath(policy))
    tiers = TierThread(runtime)
    try:
        tiers.saved(os.fspath(root / "global_step_10"), save(10))
        until(lambda: [event for event in client.events if isinstance(event, CheckpointCopied)])
    finally:
        tiers.finish()
    assert [event.ok for event in client.events if isinstance(event, CheckpointCopied)] == [True]
    assert not runtime.failures


def test_what_an_earlier_attempt_left_waiting_is_gone_on_with_before_the_first_save(
    save: Save,
    root: Path,
    state_dir: Path,
    tmp_path: Path,
    trainer: tuple[Runtime, _Client, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, client, _ = trainer
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\n")
    offered(Workplace(state_dir), policy, root / "global_step_10", save(10))
    monkeypatch.setenv("VERL_SENTINEL_CHECKPOINTS", os.fspath(policy))
    tiers = TierThread(runtime)
    try:
        tiers.opened()
        until(lambda: [event for event in client.events if isinstance(event, CheckpointCopied)])
    finally:
        tiers.finish()


def test_a_mistake_in_the_policy_is_said_once_and_training_goes_on(
    save: Save,
    root: Path,
    tmp_path: Path,
    trainer: tuple[Runtime, _Client, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, _, said = trainer
    monkeypatch.setenv("VERL_SENTINEL_CHECKPOINTS", os.fspath(written(tmp_path, "snapshot: {}")))
    tiers = TierThread(runtime)
    for step in (10, 20):
        tiers.saved(os.fspath(root / f"global_step_{step}"), save(step))
    tiers.finish()
    assert len(said) == 1
    assert "it needs a place" in said[0]


@pytest.mark.parametrize(("code", "asked", "archived"), [(0, False, True), (1, False, False), (0, True, False)])
def test_only_a_run_that_ended_by_itself_is_archived(
    save: Save,
    root: Path,
    state_dir: Path,
    tmp_path: Path,
    trainer: tuple[Runtime, _Client, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    asked: bool,
    archived: bool,
) -> None:
    import pyrage

    runtime, _, said = trainer
    recipient = pyrage.x25519.Identity.generate().to_public()
    policy = written(tmp_path, f"archive: {{place: {tmp_path}/archive, recipients: {recipient}}}\n")
    monkeypatch.setenv("VERL_SENTINEL_CHECKPOINTS", os.fspath(policy))
    tiers = TierThread(runtime)
    runtime.at_finish.append(tiers.finish)
    tiers.saved(os.fspath(root / "global_step_10"), save(10))
    tiers.saved(os.fspath(root / "global_step_20"), save(20))
    if asked:
        (state_dir / "stop-request").write_text('{"attempt": 1}')
    runtime.finish(RunFinished(time=1.0, exit_code=code))
    assert Workplace(state_dir).archive_wanted is archived
    assert not runtime.failures
    # What the supervisor, or the entry point, does next.
    events: list[Report] = []
    assert finish_copies(state_dir, say=said.append, tell=events.append)
    copied = [(event.tier, event.step, event.ok) for event in events if isinstance(event, CheckpointCopied)]
    assert copied == ([("archive", 20, True)] if archived else [])
    assert bool(list((tmp_path / "archive").rglob("*.zst.age"))) is archived


def test_the_end_of_a_run_waits_for_whoever_works_on_its_copies_and_then_makes_the_rest(
    save: Save, root: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = written(tmp_path, f"snapshot: {{place: {tmp_path}/near}}\n")
    workplace = Workplace(state_dir)
    workplace.note_run(RunNote(run_id="a", checkpoint_dir=os.fspath(root), policy=os.fspath(policy)))
    offered(workplace, policy, root / "global_step_10", save(10))
    monkeypatch.setattr(after_run, "_BUSY_SECONDS", 0.01)
    said: list[str] = []
    with contextlib.ExitStack() as other:
        other.enter_context(workplace.locked())

        def say(sentence: str) -> None:
            said.append(sentence)
            if "another process works" in sentence:
                other.close()

        assert finish_copies(state_dir, say=say)
    assert len(said) == 2
    assert workplace.jobs() == []


def test_the_archive_is_of_the_newest_checkpoint_whose_content_is_good(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    for step in (10, 20):
        save(step)
    rotten = root / "global_step_20" / "data.pt"
    rotten.write_bytes(bytes(len(rotten.read_bytes())))
    tier = TierPolicy(tier="archive", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention())
    workplace = Workplace(state_dir)
    workplace.ask_for_archive()
    Worker(state_dir, "a", Policy(source="p", tiers=(tier,))).settle_archive()
    assert [job.step for job in workplace.jobs()] == [10]
    assert not workplace.archive_wanted
    (event,) = told(workplace)
    assert isinstance(event, CheckpointChecked)
    assert (event.step, event.depth, event.ok) == (20, "content", False)


def test_a_keeper_that_is_stopped_while_it_looks_for_what_to_archive_leaves_it_wanted(
    save: Save, state_dir: Path, tmp_path: Path
) -> None:
    save(10)
    tier = TierPolicy(tier="archive", places=(Place(url=os.fspath(tmp_path / "far")),), retention=Retention())
    workplace = Workplace(state_dir)
    workplace.ask_for_archive()
    worker = Worker(state_dir, "a", Policy(source="p", tiers=(tier,)), lambda what, size: Pace(stop=lambda: True))
    with pytest.raises(Stopped):
        worker.settle_archive()
    assert workplace.archive_wanted


def test_the_end_of_a_run_waits_for_its_archive_no_longer_than_it_may(
    save: Save, root: Path, state_dir: Path, tmp_path: Path
) -> None:
    policy = written(tmp_path, f"milestone: {{place: {tmp_path}/far}}\nlimits: {{bytes_per_second: 1KB}}\n")
    workplace = Workplace(state_dir)
    workplace.note_run(RunNote(run_id="a", checkpoint_dir=os.fspath(root), policy=os.fspath(policy)))
    offered(workplace, policy, root / "global_step_10", save(10, metrics={"val/loss": 1.0}))
    said: list[str] = []
    assert not finish_copies(state_dir, say=said.append, limit_seconds=1.0)
    assert "checkpoints backup --waiting" in said[-1]
    stop = threading.Event()
    stop.set()
    assert not finish_copies(state_dir, say=said.append, stop=stop.is_set)
    with contextlib.suppress(FileNotFoundError):
        assert workplace.jobs()[0].attempts == 0  # to be interrupted is no failure
