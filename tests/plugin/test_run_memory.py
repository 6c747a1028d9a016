"""The memory of a run's own processes, and what it may hold: measured for forecasts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer_entry.plugin.memory import MARKER, RunMemory, limit
from trainer_entry.settings import SettingsError, read_settings

MIB = 1 << 20


def process(
    proc: Path, pid: int, parent: int, *, own: int = 0, shared: int = 0, marker: str = "", name: str = "python"
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a) b) S {parent} 0 0\n")
    (folder / "comm").write_text(name + "\n")
    (folder / "environ").write_bytes(f"A=1\0{MARKER}={marker}\0".encode() if marker else b"A=1\0")
    (folder / "status").write_text(f"Name:\t{name}\nRssAnon:\t{own * 1024} kB\nRssShmem:\t{shared * 1024} kB\n")


def test_all_that_the_supervisor_started_is_added_up_and_shared_memory_counted_once(tmp_path: Path) -> None:
    me = os.getpid()
    process(tmp_path, 1, 0, own=900)
    process(tmp_path, 10, 1, own=500)  # the supervisor
    process(tmp_path, 20, 10, own=5, marker="run")  # the attempt process
    process(tmp_path, 30, 20, own=100, marker="run")  # the driver
    process(tmp_path, 40, 30, own=7, shared=64, marker="run", name="raylet")
    process(tmp_path, me, 40, own=200, shared=64)  # a process title lies over its environment
    process(tmp_path, me + 1, 40, own=300, shared=32)
    process(tmp_path, me + 2, 10, own=4000)  # another job of the same supervisor's user
    memory = RunMemory({MARKER: "run"}, tmp_path)

    assert memory.root() == 20
    assert memory.held(20) == (5 + 100 + 7 + 200 + 300 + 64) * MIB


def test_without_a_supervisor_it_is_what_the_raylet_holds_with_all_below_it(tmp_path: Path) -> None:
    process(tmp_path, 40, 1, own=7, name="raylet")
    process(tmp_path, os.getpid(), 40, own=200)
    memory = RunMemory({}, tmp_path)

    assert memory.root() == 40
    assert memory.held(40) == 207 * MIB


def test_a_process_that_is_gone_meanwhile_is_left_out(tmp_path: Path) -> None:
    process(tmp_path, 20, 1, own=5)
    process(tmp_path, 30, 20, own=100)
    (tmp_path / "30" / "status").unlink()
    (tmp_path / "31").mkdir()

    assert RunMemory({}, tmp_path).held(20) == 5 * MIB


def test_real_growth_of_a_child_is_seen() -> None:
    code = f"import time; kept = b'x' * {64 * MIB}; print(flush=True); time.sleep(60)"
    memory = RunMemory({})
    before = memory.held(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert memory.held(os.getpid()) - before >= 60 * MIB
        finally:
            child.kill()


def test_a_thread_keeps_the_newest_reading_until_it_is_stopped() -> None:
    memory = RunMemory({})
    assert memory.newest is None
    memory.start()
    try:
        deadline = time.monotonic() + 30.0
        while memory.newest is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert memory.newest > MIB
    finally:
        memory.stop()


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/pod/box\n", {"pod/box/memory.max": "max\n", "pod/memory.max": f"{3 * MIB}\n"}, 3 * MIB),
        ("0::/elsewhere\n", {"memory.max": f"{5 * MIB}\n"}, 5 * MIB),
        ("9:cpu:/x\n4:memory:/box\n", {"memory/box/memory.limit_in_bytes": f"{2 * MIB}\n"}, 2 * MIB),
        ("4:memory:/box\n", {"memory/box/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"}, 8 * MIB),
        ("nonsense\n", {}, 8 * MIB),
    ],
)
def test_the_smallest_limit_of_cgroup_and_machine_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:        8192 kB\nMemFree:  1 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)

    assert limit(None, proc, groups) == expected
    assert limit(MIB, proc, groups) == MIB


def test_where_nothing_says_a_limit_there_is_none(tmp_path: Path) -> None:
    assert limit(None, tmp_path, tmp_path) is None


def test_a_limit_that_is_no_size_is_a_sentence() -> None:
    wanted = {"VERL_SENTINEL_URL": "http://127.0.0.1:1"}
    found = read_settings({**wanted, "VERL_SENTINEL_MEMORY_LIMIT": "48GiB"})
    assert found is not None
    assert found.memory_limit == 48 << 30
    with pytest.raises(SettingsError, match="VERL_SENTINEL_MEMORY_LIMIT is 'plenty'; expected bytes, or a size"):
        read_settings({**wanted, "VERL_SENTINEL_MEMORY_LIMIT": "plenty"})
