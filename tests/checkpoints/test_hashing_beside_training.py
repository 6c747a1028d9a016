"""Hashing runs in a process of its own that yields to everything; a save whose trainer died is finished, or refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from checkpoint_made import ppo

from trainer_entry import checkpoints
from trainer_entry.checkpoints import CheckpointError, ManifestCancelled, Origin, newest_verified, verify
from trainer_entry.checkpoints.hashing import hash_elsewhere
from trainer_entry.checkpoints.saved import SAVED_NAME, record_saved
from trainer_entry.checkpoints.unfinished import finish_unhashed
from trainer_entry.checkpoints.writing import hash_checkpoint, write_hashed

SECONDS = 60.0


def test_another_process_finds_the_same_hashes(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5, critic=True)
    assert hash_elsewhere(str(directory), 5, threading.Event()) == hash_checkpoint(directory, 5)


def test_what_is_wrong_comes_back_with_its_name(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    (directory / "data.pt").unlink()
    with pytest.raises(CheckpointError, match="position in the data, is missing") as raised:
        hash_elsewhere(str(directory), 5, threading.Event())
    assert raised.value.problem == "missing_data"


def test_a_cancelled_hash_leaves_no_process(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ManifestCancelled):
        hash_elsewhere(str(ppo(tmp_path, 5)), 5, cancel)
    assert children(os.getpid(), "checkpoints.hashing") == []


def test_background_work_is_at_idle_priority() -> None:
    code = (
        "from trainer_entry.checkpoints import idle_priority; import os; idle_priority(); "
        "print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["19", "True"]


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from trainer_entry.checkpoints.priority import end_with_parent; "
        "end_with_parent(int(sys.argv[1])); print('ready', flush=True); time.sleep(600)"
    )
    outer = (
        "import os, subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {code!r}, str(os.getpid())]); "
        "print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    words = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    child = int((words - {"ready"}).pop())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + SECONDS
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(child)


def test_a_save_that_had_returned_is_finished_when_a_target_is_wanted(tmp_path: Path) -> None:
    checkpoints.write_manifest(ppo(tmp_path, 4), 4)
    directory = ppo(tmp_path, 5)
    origin = Origin(run_id="r", attempt=2, verl_version="0.9.1", config={"a": 1}, config_hash="c")
    saved_by_a_trainer_that_died(directory, origin)
    assert verify(directory).problem == "unfinished"
    choice = newest_verified(tmp_path)
    assert choice.chosen is not None
    assert choice.chosen.step == 5
    manifest = choice.chosen.manifest
    assert manifest is not None
    assert (manifest.attempt, manifest.config, manifest.metrics) == (2, {"a": 1}, {})
    assert not (directory / SAVED_NAME).exists()


def test_the_trainer_that_is_alive_finishes_it_itself(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    record_saved(directory, 5, Origin())
    assert finish_unhashed(directory) is None
    assert newest_verified(tmp_path).refused[0].problem == "being_hashed"


def other_boot(directory: Path) -> None:
    edit(directory, boot_id="another")


def test_a_save_of_another_machine_is_not_said_to_be_from_before_a_restart(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    record_saved(directory, 5, Origin())
    other_boot(directory)
    [refused] = newest_verified(tmp_path).refused
    assert refused.problem == "unfinished"
    assert "it was saved on another machine, or before this one was started" in refused.reason


def other_step(directory: Path) -> None:
    edit(directory, step=6)


def shorter(directory: Path) -> None:
    os.truncate(directory / "actor" / "model_world_size_2_rank_1.pt", 10)


def written_since(directory: Path) -> None:
    later = time.time() + 100
    os.utime(directory / "data.pt", (later, later))


def one_more(directory: Path) -> None:
    (directory / "actor" / "more.pt").write_bytes(b"x")


def record_cut(directory: Path) -> None:
    os.truncate(directory / SAVED_NAME, 40)


@pytest.mark.parametrize("change", [other_boot, other_step, shorter, written_since, one_more, record_cut])
def test_what_is_not_what_was_saved_is_never_finished(tmp_path: Path, change: object) -> None:
    directory = ppo(tmp_path, 5)
    saved_by_a_trainer_that_died(directory, Origin())
    change(directory)  # type: ignore[operator]
    assert finish_unhashed(directory) is None
    choice = newest_verified(tmp_path)
    assert choice.chosen is None
    assert not (directory / checkpoints.MANIFEST_NAME).exists()


def test_a_new_save_into_the_directory_forgets_the_earlier_one(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    saved_by_a_trainer_that_died(directory, Origin())
    checkpoints.discard_manifest(directory)
    assert not (directory / SAVED_NAME).exists()
    assert finish_unhashed(directory) is None


def test_the_record_goes_once_the_manifest_is_there(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    record_saved(directory, 5, Origin())
    write_hashed(directory, 5, hash_checkpoint(directory, 5), Origin())
    assert not (directory / SAVED_NAME).exists()
    assert verify(directory).ok


def saved_by_a_trainer_that_died(directory: Path, origin: Origin) -> None:
    record_saved(directory, 5, origin)
    edit(directory, start_ticks=1)


def edit(directory: Path, **changes: object) -> None:
    path = directory / SAVED_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int, word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and word in (path / "cmdline").read_text():
                found.append(int(path.name))
        except (OSError, ValueError, IndexError):
            continue
    return found
