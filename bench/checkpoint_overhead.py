"""What hashing, copying and uploading checkpoints beside training costs it, in steps per second.

``python -m bench.checkpoint_overhead [--gigabytes G] [--rounds N] [--loop L] [--json]`` trains a small network with
torch in a process of its own, in which the plugin's own threads work as beside verl: for a checkpoint of G GB (default
1) the manifest thread has it hashed, offers it to the tiers, and starts the real keeper, which links a snapshot,
uploads a milestone to an S3 server in parts, and writes and reads back a second copy.

A round of that work goes from the moment at which verl would return from the save until the manifest is there, the
copies are made and verified, and all processes are gone. It is cut into windows of a second *with* the work, each
paired with one as long *without*, in which its processes are stopped by a signal; the order within a pair is drawn. So
both see the same machine: other guests of it move a throughput by several per cent from one minute to the next, which
windows of a minute cannot tell from the work. At the end of a window with the work, and within it, what was written
goes to the disk (``os.sync``), so that none without pays for it. What counts is the throughput: steps in the window by
the time it took, and a step across its border by the part that lies in it, so that no stall is left out.

Two loops: ``one_core`` leaves the other cores to the background work, as a trainer whose GPU does the work does, so
that memory and disk decide; its windows cover whole rounds. ``all_cores`` keeps every core busy, so that idle priority
decides: the work gets a hundredth of a core, and a round of 1 GB would take an hour. There 40 pairs of a round are
measured; in one round after the other they begin with the hashing, the snapshot, the upload, the second copy. Outside
of them the loop stands still, and the round goes to its end. The S3 server, which in truth is another machine, runs
here at idle priority too.

``ratio`` is the throughput without by that with the work, over all windows, with a 95 % interval by bootstrap over the
pairs; ``noise`` is the same of windows without it against each other. ``target_met`` is judged by the upper end of the
interval, ``ratio_within_target`` by the ratio. Exit code 1 where a target is missed, and where nothing was proven: a
round was not completed, or the checkpoint is smaller than 1 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.checkpoint_subjects import GO_ON, STAND_STILL
from bench.throughput import TARGET, Window, figures
from exporter.protocol import CheckpointCopied

PROOF_BYTES = 10**9
"""A smaller checkpoint shows that the benchmark works, and nothing else."""
WINDOW_SECONDS = 1.0
"""Of a window with the work, before its sync."""
KEEPER_SECONDS = 11.0
"""The plugin starts no two keepers within 10 s; a round that waits for that would look cheaper than it is."""
ROUND_SECONDS = 1800.0
WARM_UP_SECONDS = 5.0
BEFORE_SECONDS = 10.0
LOOPS: dict[str, int | None] = {"all_cores": 40, "one_core": None}
"""Pairs of windows of a round; None: until it is over."""
PARTS = 4
"""Where they begin if they are not the whole round, in turn: the hashing, the snapshot, the upload, the second copy."""
COPIES = 3
"""Of each round: a snapshot, and a milestone at two places."""


S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="G", help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="checkpoints saved in each loop")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="only this one; may be given again")
    parser.add_argument("--dir", type=Path, help="where there is room for four times the checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not 0.001 <= options.gigabytes <= 1000:
        parser.error("--rounds is at least 1, --gigabytes from 0.001 to 1000")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a benchmark that is told to end takes its folder along
    with tempfile.TemporaryDirectory(prefix="checkpoint-overhead-", dir=options.dir) as folder:
        result = run(Path(folder), int(options.gigabytes * 1e9), options.rounds, options.loop or list(LOOPS))
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if all(loop["target_met"] for loop in result["loops"].values()) else 1


def run(folder: Path, size: int, rounds: int, names: Sequence[str] = tuple(LOOPS)) -> dict[str, Any]:
    """Measure the loops, one after the other."""
    os.environ.update(S3_ENVIRONMENT)
    _make_checkpoint(folder, size)
    loops: dict[str, dict[str, Any]] = {}
    for name in names:
        most = LOOPS[name]
        threads = (os.cpu_count() or 1) if name == "all_cores" else 1
        with tempfile.TemporaryDirectory(prefix="checkpoint-overhead-", dir=_memory()) as memory:
            before, windows, starts, done = _measure(folder, Path(memory) / "steps", threads, rounds, most)
        loops[name] = {"threads": threads, **figures(before, windows, starts), **done}
        loops[name]["target_met"] = loops[name]["target_met"] and done["copied_bytes"] >= COPIES * PROOF_BYTES
    return {
        "checkpoint_bytes": size,
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "target_ratio": TARGET,
        "loops": loops,
    }


def _measure(
    folder: Path, steps_file: Path, threads: int, rounds: int, most: int | None
) -> tuple[Window, list[Window], list[float], dict[str, Any]]:
    """A window before any work, those of the pairs, when each step began, and what the background work did."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    (folder / "policy.yml").unlink(missing_ok=True)
    with _child("s3", folder, None) as s3, _child("train", folder, steps_file, threads) as trainer:
        _until(lambda: steps_file.read_bytes().count(b"\n") >= 20, trainer, 300.0)  # importing torch takes its time
        time.sleep(WARM_UP_SECONDS)
        os.sync()
        work = _Work(folder, steps_file, trainer, s3)
        before = _without(BEFORE_SECONDS)
        windows: list[Window] = []
        copied, spent = 0, _cpu_of_children(trainer.pid)
        for number in range(1, rounds + 1):
            directory = _prepared(folder, number)
            os.sync()
            time.sleep(KEEPER_SECONDS)
            found, size = work.round(f"{number} {directory}", 0 if most is None else (number - 1) % PARTS, most)
            windows += found
            copied += size
            _cleared(folder)
        done = {
            "background_rounds": rounds,
            "background_seconds": round(sum(one.ended - one.began for one in windows if one.busy), 1),
            "background_cpu_seconds": round(_cpu_of_children(trainer.pid) - spent, 1),
            "copied_bytes": copied // rounds,
        }
        work.next_step()
        return before, windows, _starts(steps_file), done


def _memory() -> str | None:
    """Where when each step began is written down: a line must not wait for the disk that a sync keeps busy."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _without(seconds: float) -> Window:
    began = time.monotonic()
    time.sleep(seconds)
    return Window(began, time.monotonic(), False)


def _prepared(folder: Path, number: int) -> Path:
    """The checkpoint of the next round: other content in each file, so that nothing of it is known or there already."""
    (before,) = (folder / "checkpoints").glob("global_step_*")
    directory = before.rename(before.with_name(f"global_step_{number}"))
    for path in directory.glob("verl_sentinel_*"):
        path.unlink()
    for path in directory.rglob("*.*"):
        with open(path, "r+b") as file:
            file.write(os.urandom(64))
    return directory


class _Work:
    """The background work beside the training loop."""

    def __init__(
        self, folder: Path, steps: Path, trainer: subprocess.Popen[bytes], s3: subprocess.Popen[bytes]
    ) -> None:
        from trainer_entry.checkpoints.tiers.jobs import Workplace

        self._steps, self._trainer, self._s3 = steps, trainer, s3
        self._workplace = Workplace(folder / "state")
        self._copies: list[CheckpointCopied] = []
        self._drawn = random.Random(0)

    def round(self, save: str, part: int, most: int | None) -> tuple[list[Window], int]:
        """Let the plugin go over the checkpoint; returns the pairs of windows, and the bytes copied and verified.

        The loop stands still until ``part`` of the round begins, and again after ``most`` pairs.
        """
        self._copies.clear()
        if part:
            self._tell(STAND_STILL)
        self._tell(save)
        windows: list[Window] = []
        try:
            if part:
                self._until(lambda: self._begun(part))
                self._go_on()
            while not self._over() and (most is None or len(windows) < 2 * most):
                # Before the first window nothing is there yet that could be stopped.
                windows += self._pair(without_first=bool(windows or part) and self._drawn.random() < 0.5)
            if not self._over():
                self.next_step()  # the last window's last step is as long as it is
                self._tell(STAND_STILL)
                self._until(self._over)
                self._go_on()
        except SystemExit as error:
            why = " ".join(sorted({one.reason for one in self._copies if not one.ok}))
            raise SystemExit(f"{error} {why}".strip()) from None
        return windows, sum(one.bytes for one in self._copies if one.ok)

    def _pair(self, *, without_first: bool) -> list[Window]:
        free = [self._stopped(WINDOW_SECONDS)] if without_first else []
        began = time.monotonic()
        self._until(lambda: self._over() or time.monotonic() - began > WINDOW_SECONDS)
        os.sync()
        busy = Window(began, time.monotonic(), True)
        return [*free, busy] if free else [busy, self._stopped(busy.ended - busy.began)]

    def _stopped(self, seconds: float) -> Window:
        """A window in which the processes of the work are stopped, and looked at as often as when they are not."""
        processes = [*_descendants(self._trainer.pid), self._s3.pid]
        _signal(processes, signal.SIGSTOP)
        try:
            began = time.monotonic()
            self._until(lambda: (self._over(), time.monotonic() - began > seconds)[1])
            return Window(began, time.monotonic(), False)
        finally:
            _signal(processes, signal.SIGCONT)

    def _made(self) -> int:
        with self._workplace.reports() as reports:
            self._copies += [one for one in reports if isinstance(one, CheckpointCopied)]
        return sum(one.ok for one in self._copies)

    def _begun(self, part: int) -> bool:
        """Copies follow one another, and jobs are there once the manifest is."""
        return self._made() >= part - 1 and (part != 1 or bool(self._workplace.jobs()))

    def _over(self) -> bool:
        return self._made() >= COPIES and self._workplace.idle and not _children(self._trainer.pid)

    def _tell(self, line: str) -> None:
        assert self._trainer.stdin is not None
        self._trainer.stdin.write(f"{line}\n".encode())
        self._trainer.stdin.flush()

    def _go_on(self) -> None:
        self._tell(GO_ON)
        self.next_step()

    def next_step(self) -> None:
        """Wait until a step has begun."""
        now = time.monotonic()
        self._until(lambda: (starts := _starts(self._steps)) and starts[-1] > now)

    def _until(self, done: Callable[[], object]) -> None:
        _until(done, self._trainer, ROUND_SECONDS)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _cleared(folder: Path) -> None:
    from trainer_entry.checkpoints.tiers.policy_file import read_policy
    from trainer_entry.checkpoints.tiers.stores import open_store

    for tier in read_policy(folder / "policy.yml").tiers:
        for place in tier.places:
            open_store(place).remove("bench")


def _until(done: Callable[[], object], trainer: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done():
        if trainer.poll() is not None:
            raise SystemExit("Nothing was measured: the training loop ended by itself; see its words above.")
        if time.monotonic() > until:
            raise SystemExit(f"Nothing was measured: no round was completed within {seconds:.0f} s.")
        time.sleep(0.1)


def _starts(path: Path) -> list[float]:
    """When each step began; a last line that is not written to its end is left out."""
    return [float(line) for line in path.read_text().split("\n")[:-1]]


def _table(result: dict[str, Any]) -> str:
    size = result["checkpoint_bytes"] / 1e9
    lines = [f"checkpoint {size:.2f} GB, {result['cores']} cores, load {result['load_average'][0]}"]
    if result["checkpoint_bytes"] < PROOF_BYTES:
        lines.append("It is smaller than 1 GB, so this proves nothing.")
    for name, loop in result["loops"].items():
        low, high = loop["ratio_interval"]
        lines.append(
            f"{name}: {loop['steps_per_second']} steps a second without the work, "
            f"{loop['steps_per_second_with_background']} with it, {loop['steps_per_second_before']} before any; ratio "
            f"{loop['ratio']} ({'within' if loop['ratio_within_target'] else 'above'} {result['target_ratio']}), "
            f"interval {low} to {high} (target {'met' if loop['target_met'] else 'MISSED'}); longest step "
            f"{loop['longest_step_ms']} ms without, {loop['longest_step_ms_with_background']} ms with; windows without "
            f"differ by {loop['noise']} ({loop['noise_interval'][0]} to {loop['noise_interval'][1]}); "
            f"{loop['background_rounds']} whole rounds in {loop['background_seconds']} s, with "
            f"{loop['background_cpu_seconds']} s of CPU"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _child(subject: str, folder: Path, output: Path | None, threads: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """One of :mod:`bench.checkpoint_subjects` in a group of its own; ended, with all that it started, on leaving."""
    words = [sys.executable, "-m", "bench.checkpoint_subjects", subject, "--folder", os.fspath(folder)]
    words += ["--threads", str(threads), "--parent", str(os.getpid())]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(output, "wb")) if output else sys.stderr
        environ = {**os.environ, **S3_ENVIRONMENT, "VERL_SENTINEL_CHECKPOINTS": os.fspath(folder / "policy.yml")}
        environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, env=environ, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _make_checkpoint(folder: Path, size: int) -> None:
    directory = folder / "checkpoints" / "global_step_0"
    (directory / "actor").mkdir(parents=True)
    for kind in ("model", "optim"):
        with open(directory / "actor" / f"{kind}_world_size_1_rank_0.pt", "wb") as file:
            for begin in range(0, size // 2, 1 << 24):
                file.write(os.urandom(min(1 << 24, size // 2 - begin)))
    (directory / "data.pt").write_bytes(os.urandom(1000))


def _children(pid: int) -> list[int]:
    """Processes that the process has started and that are there still, or were not waited for."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(one) for one in (task / "children").read_text().split()]
    return [one for one in found if not _ended(one)]


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return [*children, *(one for child in children for one in _descendants(child))]


def _ended(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    return True


def _cpu_of_children(pid: int) -> float:
    """CPU seconds of the children that the process has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
