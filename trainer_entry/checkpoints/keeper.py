"""The keeper: a process at idle priority that makes the copies of one run, and goes when there is nothing to do.

    python -m trainer_entry.checkpoints.keeper --state-dir DIR --run-id ID --policy FILE --parent PID:TICKS [--rests]

Started by the plugin beside training, and by the supervisor at the end of a run. It is driven by the files in
``<state_dir>/checkpoints/`` alone, so it may be killed at any moment and the next one goes on; it never outlives its
parent, whatever it waits for. Its reports are files too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from trainer_entry.checkpoints.priority import first_to_go, idle_priority
from trainer_entry.checkpoints.resting import Rest, share
from trainer_entry.checkpoints.tiers.jobs import Busy
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Policy, PolicyError
from trainer_entry.checkpoints.tiers.policy_file import read_policy
from trainer_entry.checkpoints.tiers.working import Worker

EXIT_PARENT_GONE = 3
EXIT_BUSY = 4
EXIT_POLICY = 5
_LOOK_SECONDS = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """The process; 0 when nothing was left to do now."""
    parser = argparse.ArgumentParser(prog="python -m trainer_entry.checkpoints.keeper", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--parent", required=True, type=_process, metavar="PID:TICKS")
    parser.add_argument("--rests", action="store_true", help="a trainer works beside it (see resting)")
    parsed = parser.parse_args(words)
    idle_priority()
    first_to_go()
    pid, ticks = parsed.parent
    threading.Thread(target=_go_with_parent, args=(pid, ticks), daemon=True).start()
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        policy = read_policy(parsed.policy)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return EXIT_POLICY
    try:
        return work(parsed.state_dir, parsed.run_id, policy, stopping, Rest(share()) if parsed.rests else None)
    except Busy:
        return EXIT_BUSY


def work(state_dir: str, run_id: str, policy: Policy, stopping: threading.Event, rest: Rest | None = None) -> int:
    """Do all that is due. Raises Busy, OSError."""

    def pace(what: str, size: int) -> Pace:
        return Pace(bytes_per_second=policy.limits.bytes_per_second, rest=rest, stop=stopping.is_set)

    worker = Worker(state_dir, run_id, policy, pace)
    with worker.workplace.locked():
        try:
            worker.settle_archive()
            while not stopping.is_set():
                job = worker.due()
                if job is not None:
                    worker.carry_out(job)
                elif worker.workplace.pruning_wanted:
                    worker.prune()
                else:
                    break
        except Stopped:
            pass
    return 0


def start(state_dir: str, run_id: str, policy: str, *, rests: bool = False) -> subprocess.Popen[bytes]:
    """Start a keeper that goes with this process, and ``rests`` where this process trains.

    Its words go to ``<state_dir>/checkpoints/keeper.log``.

    Raises OSError.
    """
    folder = os.path.join(state_dir, "checkpoints")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    log_path = os.path.join(folder, "keeper.log")
    with contextlib.suppress(OSError):
        if os.path.getsize(log_path) > 1 << 20:
            os.replace(log_path, log_path + ".1")
    with open(log_path, "ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "trainer_entry.checkpoints.keeper"),
                *("--state-dir", state_dir, "--run-id", run_id, "--policy", policy),
                *("--parent", f"{os.getpid()}:{start_ticks(os.getpid())}"),
                *(("--rests",) if rests else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                # The trainer's path to its modules is not always in its environment.
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONDONTWRITEBYTECODE": "1",
                "VERL_SENTINEL_URL": "off",
                "OMP_NUM_THREADS": "1",
            },
        )


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        fields = text[text.rfind(b")") + 1 :].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def _go_with_parent(pid: int, ticks: int) -> None:
    """End this process, in the middle of whatever it does, once the parent is gone: all that counts is on the disk."""
    while start_ticks(pid) == ticks:
        time.sleep(_LOOK_SECONDS)
    os._exit(EXIT_PARENT_GONE)


def _process(text: str) -> tuple[int, int]:
    pid, _, ticks = text.partition(":")
    if not (pid.isdecimal() and ticks.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not PID:TICKS")
    return int(pid), int(ticks)


if __name__ == "__main__":
    sys.exit(main())
