"""Whether a stop sees that GPU memory is free: the supervisor's own code and pynvml over a mocked driver.

What is mocked is NVML's library alone, at the outermost edge (fake_nvml.c); processes are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer_entry.supervisor import gone
from trainer_entry.supervisor.lifecycle import Lifecycle
from trainer_entry.supervisor.reporting import NoReporter
from trainer_entry.supervisor.starting import Start
from trainer_entry.supervisor.state import RunRecord, StateDir, StateError
from trainer_entry.supervisor.stopping import Hurry, StopLimits

GIB = 2**30


@pytest.fixture
def seen(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The mocked driver, as it is seen by this process's children, which are those that ask it."""
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL", "FAKE_NVML_LOG"):
        monkeypatch.setenv(name, driver.environment[name])
    monkeypatch.setattr(gone, "_has_nvml", lambda: True)  # this process was started without the library
    return driver


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def left(driver: Any, pids: list[int], after: Callable[[], None], seconds: float = 0.0) -> tuple[list[str], list[str]]:
    """What a stop says of GPU memory: what is left at the limit, and what it told meanwhile."""
    told: list[str] = []
    held = gone.holding(pids, say=told.append)
    after()
    return gone.wait_until_free(held, seconds=seconds, say=told.append), told


def test_memory_that_comes_back_late_is_waited_for(seen: Any) -> None:
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"71:{70 * GIB}")
    held = gone.holding([71], say=pytest.fail)
    seen.gpu(0, processes="")  # gone from the list before its memory is back
    told: list[str] = []

    def say(sentence: str) -> None:
        told.append(sentence)
        seen.gpu(0, used=GIB)

    assert gone.wait_until_free(held, seconds=600, say=say) == []
    assert told == ["waiting for the GPUs' memory to be free (at most 600 s)"]


def test_a_process_that_keeps_its_memory_is_named_with_its_gpu(seen: Any) -> None:
    seen.set(count=2)
    seen.healthy_gpu(0, used=GIB)
    seen.healthy_gpu(1, used=71 * GIB, processes=f"71:{70 * GIB}")
    remains, _ = left(seen, [71, 72], lambda: None)
    assert remains == [
        "GPU 1 (NVIDIA H200) still holds 70.0 GiB of the attempt: by process 71 (70.0 GiB).",
    ]


def test_memory_that_belongs_to_no_process_any_more_is_a_failure_too(seen: Any) -> None:
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"71:{70 * GIB}")
    remains, _ = left(seen, [71], lambda: seen.gpu(0, processes=""))
    assert remains == [
        "GPU 0 (NVIDIA H200) still holds 70.0 GiB that process 71 had, and that belongs to no process now."
    ]


def test_what_others_hold_on_a_shared_gpu_is_theirs(seen: Any) -> None:
    """They had 10 GiB, and take 20 more while the attempt is stopped."""
    seen.set(count=2)
    seen.healthy_gpu(0, used=41 * GIB, processes=f"71:{30 * GIB},99:{10 * GIB}")
    seen.healthy_gpu(1, used=61 * GIB, processes=f"98:{60 * GIB}")
    remains, told = left(seen, [71], lambda: seen.gpu(0, used=31 * GIB, processes=f"99:{30 * GIB}"))
    assert (remains, told) == ([], [])


def test_a_gpu_that_does_not_say_how_much_is_whose_is_free_when_no_process_is_named(seen: Any) -> None:
    seen.set(count=1)
    seen.healthy_gpu(0, used=GIB, processes="71:-")
    assert left(seen, [71], lambda: seen.gpu(0, processes=""))[0] == []
    seen.gpu(0, processes="71:-")
    assert left(seen, [71], lambda: None)[0] == [
        "GPU 0 (NVIDIA H200) still holds memory of the attempt: by process 71."
    ]


def test_a_driver_that_fails_after_the_stop_is_no_proof_that_memory_is_free(seen: Any) -> None:
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"71:{70 * GIB}")
    [sentence], _ = left(seen, [71], lambda: seen.set(init="!9"))
    assert sentence == (
        "NVML cannot be asked whether the memory is free: the NVIDIA driver is not loaded on this machine."
    )


def test_processes_of_another_pid_namespace_are_said_to_be_unknown(seen: Any) -> None:
    """In a container the driver names processes by the machine's pids."""
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"4194999:{70 * GIB}")
    remains, [told] = left(seen, [os.getpid()], lambda: None)
    assert remains == []
    assert "cannot be checked: the driver names process 4194999" in told


def test_without_nvml_nothing_is_checked_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "_has_nvml", lambda: False)
    assert left(None, [os.getpid()], lambda: None, seconds=60) == ([], [])


def sleeping(tmp_path: Path) -> tuple[Lifecycle, int]:
    """An attempt whose trainer sleeps, with that trainer's pid."""
    state = StateDir(tmp_path / "state")
    state.create()
    run = RunRecord(run_id="r", argv=[], cwd=str(tmp_path), checkpoint_dir=str(tmp_path))
    life = Lifecycle(
        state,
        run,
        NoReporter(),
        StopLimits(),
        os.environ,
        environments=tmp_path / "environments",
        follow=False,
        say=lambda sentence: None,
    )
    life.start(Start((sys.executable, "-c", "import time; time.sleep(600)"), None))
    assert life.attempt is not None
    trainer = life.attempt.trainer()
    assert trainer is not None
    return life, trainer.pid


def test_a_stop_fails_while_the_gpu_holds_memory_of_the_attempt(
    seen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone, "LIMIT_SECONDS", 0.0)
    life, trainer = sleeping(tmp_path)
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"{trainer}:{70 * GIB}")
    with pytest.raises(StateError, match=rf"GPU 0 \(NVIDIA H200\) still holds 70.0 GiB .* process {trainer}"):
        life.stop(clean=0, save=False, hurry=Hurry())
    assert not life.running


def test_after_a_crash_nothing_is_started_while_a_gpu_holds_memory_of_the_attempt(
    seen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a stop confirmed, which a rollback begins with although there is no process to stop."""
    monkeypatch.setattr(gone, "LIMIT_SECONDS", 0.0)
    life, trainer = sleeping(tmp_path)
    life.watch()
    seen.set(count=1)
    seen.healthy_gpu(0, used=71 * GIB, processes=f"{trainer}:{70 * GIB}")
    os.kill(trainer, signal.SIGKILL)
    assert life.attempt is not None
    assert life.attempt.wait_until_swept(60)
    assert life.watch() is not None
    again = Start((sys.executable, "-c", "pass"), None)
    holds = rf"GPU 0 \(NVIDIA H200\) still holds 70.0 GiB .* process {trainer}"
    with pytest.raises(StateError, match=rf"{holds} .*Nothing is started."):
        life.start(again)
    with pytest.raises(StateError, match=holds):
        life.stop(clean=0, save=False, hurry=Hurry())
    assert life.number == 1
    seen.gpu(0, used=GIB, processes="")
    life.start(again)
    assert life.number == 2
    life.stop(clean=0, save=False, hurry=Hurry())
