"""What hashing, copying and uploading checkpoints beside training costs it, in steps per second.

``python -m bench.checkpoint_overhead [--gigabytes G] [--pairs N] [--json]`` trains a small network with torch in a
process of its own, in which the plugin's own threads work as beside verl: for a checkpoint of G GB (default 1) the
manifest thread has it hashed, offers it to the tiers, and starts the real keeper, which links a snapshot, uploads a
milestone to an S3 server in parts, and writes and reads back a second copy.

A round of that work goes from the moment at which verl would return from the save until the manifest is there, the
copies are made and verified, and all processes are gone. A window *with* the work lies in a round, and is paired with a
window *without*, as long, in which nothing of ours exists but two threads that wait. The order within a pair is drawn.
Before every window what is to be written goes to the disk (``os.sync``), so that no window pays for another. What counts
is the throughput: steps in the window by the time it took, and a step across its border by the part that lies in it, so
that no stall is left out.

Two loops: ``one_core`` leaves the other cores to the background work, as a trainer whose GPU does the work does, so that
memory and disk decide; its windows are whole rounds. ``all_cores`` keeps every core busy, so that idle priority decides:
the work gets a hundredth of a core, and a round of 1 GB would take an hour. There a window is a minute of a round; of one
after the other it begins with the hashing, the snapshot, the upload, the second copy. Outside of its window the loop
stands still, and the round goes to its end. The S3 server, which in truth is another machine, runs here at idle priority
too.

``ratio`` is the throughput without by that with the work, over all windows, with a 95 % interval by bootstrap over the
pairs; ``noise`` is the same of windows without it against each other. ``target_met`` is judged by the upper end of the
interval, ``ratio_within_target`` by the ratio. Exit code 1 where a target is missed, and where nothing was proven: a
round was not completed, or the checkpoint is smaller than 1 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.throughput import TARGET, Window, figures
from trainer_entry.checkpoints.priority import end_with_parent

PROOF_BYTES = 10**9
"""A smaller checkpoint shows that the benchmark works, and nothing else."""
SETTLE_SECONDS = 1.0
"""After a sync, before a window."""
SHORTEST_SECONDS = 3.0
"""Of a window without the work, whatever its round took."""
KEEPER_SECONDS = 11.0
"""The plugin starts no two keepers within 10 s; a round that waits for that would look cheaper than it is."""
ROUND_SECONDS = 1800.0
WARM_UP_SECONDS = 5.0
BEFORE_SECONDS = 10.0
LOOPS: dict[str, float] = {"all_cores": 60.0, "one_core": math.inf}
"""Seconds of a round that a window has at most; without end, it is the round."""
PARTS = 4
"""Where a window that is shorter begins, in turn: the hashing, the snapshot, the upload, the second copy."""
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
    parser.add_argument("--pairs", type=int, default=8, metavar="N", help="rounds of each loop, and windows without")
    parser.add_argument("--dir", type=Path, help="where there is room for four times the checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--subject", choices=["train", "s3"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.subject:
        end_with_parent(options.parent)
    if options.subject == "train":
        return _train(options.threads, options.folder)
    if options.subject == "s3":
        return _serve_s3(options.folder)
    if options.pairs < 4 or not 0.001 <= options.gigabytes <= 1000:
        parser.error("--pairs is at least 4, --gigabytes from 0.001 to 1000")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a benchmark that is told to end takes its folder along
    with tempfile.TemporaryDirectory(prefix="checkpoint-overhead-", dir=options.dir) as folder:
        result = run(Path(folder), int(options.gigabytes * 1e9), options.pairs)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if all(loop["target_met"] for loop in result["loops"].values()) else 1


def run(folder: Path, size: int, pairs: int) -> dict[str, Any]:
    """Measure both loops, one after the other."""
    os.environ.update(S3_ENVIRONMENT)
    _make_checkpoint(folder, size)
    loops: dict[str, dict[str, Any]] = {}
    for name, longest in LOOPS.items():
        threads = (os.cpu_count() or 1) if name == "all_cores" else 1
        before, windows, starts, done = _measure(folder, threads, pairs, longest)
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
    folder: Path, threads: int, pairs: int, longest: float
) -> tuple[Window, list[Window], list[float], dict[str, Any]]:
    """A window before any work, those of the pairs, when each step began, and what the background work did."""
    steps_file = folder / "steps"
    shutil.rmtree(folder / "state", ignore_errors=True)
    (folder / "policy.yml").unlink(missing_ok=True)
    with _child("s3", folder, None), _child("train", folder, steps_file, threads) as trainer:
        _wait_for_steps(steps_file, trainer)
        time.sleep(WARM_UP_SECONDS)
        _settle()
        before = _without(BEFORE_SECONDS)
        windows: list[Window] = []
        shuffled = random.Random(0)
        copied, spent = 0, _cpu_of_children(trainer.pid)
        for number in range(1, pairs + 1):
            off_first = number > 1 and shuffled.random() < 0.5
            if off_first:
                _settle()
                windows.append(_without(windows[-1].ended - windows[-1].began))
            directory = _prepared(folder, number)
            _settle()
            time.sleep(KEEPER_SECONDS)
            part = 0 if longest == math.inf else (number - 1) % PARTS
            window, size = _round(folder, trainer, f"{number} {directory}", part, longest)
            windows.append(window)
            copied += size
            _cleared(folder)
            if not off_first:
                _settle()
                windows.append(_without(window.ended - window.began))
        seconds = sum(one.ended - one.began for one in windows if one.busy)
        done = {
            "background_rounds": pairs,
            "background_seconds": round(seconds, 1),
            "background_cpu_seconds": round(_cpu_of_children(trainer.pid) - spent, 1),
            "copied_bytes": copied // pairs,
        }
        _next_step(steps_file, trainer)
        return before, windows, _starts(steps_file), done


def _without(seconds: float) -> Window:
    began = time.monotonic()
    time.sleep(max(SHORTEST_SECONDS, seconds))
    return Window(began, time.monotonic(), False)


def _settle() -> None:
    os.sync()
    time.sleep(SETTLE_SECONDS)


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


def _round(folder: Path, trainer: subprocess.Popen[bytes], save: str, part: int, longest: float) -> tuple[Window, int]:
    """Let the plugin go over the checkpoint; returns the window, and the bytes that were copied and verified.

    The loop stands still until ``part`` of the round begins, and again from ``longest`` seconds after that on.
    """
    from exporter.protocol import CheckpointCopied
    from trainer_entry.checkpoints.tiers.jobs import Workplace

    workplace = Workplace(folder / "state")
    copies: list[CheckpointCopied] = []

    def made() -> int:
        with workplace.reports() as reports:
            copies.extend(one for one in reports if isinstance(one, CheckpointCopied))
        return sum(one.ok for one in copies)

    def begun() -> bool:
        """Whether the part has: copies follow one another, and jobs are there once the manifest is."""
        return made() >= part - 1 and (part != 1 or bool(workplace.jobs()))

    def over() -> bool:
        return made() >= COPIES and workplace.idle and not _children(trainer.pid)

    if part:
        _tell(trainer, "stand still")
    began = time.monotonic()
    _tell(trainer, save)
    try:
        if part:
            _until(begun, trainer, ROUND_SECONDS)
            _tell(trainer, "go on")
            began = _next_step(folder / "steps", trainer)
        _until(lambda: over() or time.monotonic() - began > longest, trainer, ROUND_SECONDS)
        ended = time.monotonic()
        if not over():
            _next_step(folder / "steps", trainer)
            _tell(trainer, "stand still")
            _until(over, trainer, ROUND_SECONDS)
            _tell(trainer, "go on")
            _next_step(folder / "steps", trainer)
    except SystemExit as error:
        why = " ".join(sorted({one.reason for one in copies if not one.ok}))
        raise SystemExit(f"{error} {why}".strip()) from None
    return Window(began, ended, True), sum(one.bytes for one in copies if one.ok)


def _tell(trainer: subprocess.Popen[bytes], line: str) -> None:
    assert trainer.stdin is not None
    trainer.stdin.write(f"{line}\n".encode())
    trainer.stdin.flush()


def _next_step(steps: Path, trainer: subprocess.Popen[bytes]) -> float:
    """When the next step began."""
    now = time.monotonic()
    _until(lambda: (starts := _starts(steps)) and starts[-1] > now, trainer, 300.0)
    return _starts(steps)[-1]


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


def _wait_for_steps(steps: Path, trainer: subprocess.Popen[bytes]) -> None:
    """Until the loop really runs: importing torch takes its time."""
    _until(lambda: steps.read_bytes().count(b"\n") >= 20, trainer, 300.0)


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
    """A process of this module in a group of its own; ended, with all that it started, on leaving."""
    words = [sys.executable, "-m", "bench.checkpoint_overhead", "--subject", subject, "--folder", os.fspath(folder)]
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


def _train(threads: int, folder: Path) -> int:
    """The training loop: prints when each step began, in monotonic seconds. The plugin's threads are in its process."""
    import torch

    going = threading.Event()
    going.set()
    _with_plugin(folder, going)

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048),
        torch.nn.GELU(),
        torch.nn.Linear(2048, 2048),
        torch.nn.GELU(),
        torch.nn.Linear(2048, 64),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, target = torch.randn(64 * threads, 1024), torch.randint(0, 64, (64 * threads,))
    while True:
        going.wait()
        print(time.monotonic(), flush=True)
        loss = torch.nn.functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _with_plugin(folder: Path, going: threading.Event) -> None:
    """What the plugin's checkpoint hook has, told by a line on standard input of what verl has saved."""
    from trainer_entry.checkpoints.tiers.jobs import Workplace
    from trainer_entry.plugin.manifests import ManifestThread, Save
    from trainer_entry.plugin.runtime import Runtime
    from trainer_entry.plugin.tiers import TierThread
    from trainer_entry.settings import Settings

    while not (folder / "policy.yml").exists():
        time.sleep(0.05)
    settings = Settings(url="http://127.0.0.1:9", run_id="bench", state_dir=folder / "state")
    runtime = Runtime(settings, "")
    manifests, tiers = ManifestThread(runtime), TierThread(runtime)

    def on_another_disk(directory: str, manifest: object) -> None:
        """The second place of the milestone: written and read back there, not linked."""
        workplace = Workplace(folder / "state")
        for job in workplace.jobs():
            if job.place == 1:
                workplace.put(msgspec.structs.replace(job, staged=""))

    manifests.after += [tiers.saved, on_another_disk]

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() in ("stand still", "go on"):
                (going.set if line.startswith("go") else going.clear)()
                continue
            step, _, directory = line.strip().partition(" ")
            runtime.logged(int(step), {"actor/kl_loss": 0.1})
            manifests.saved(Save(directory, int(step), False), 0.0)

    threading.Thread(target=listen, daemon=True).start()


def _make_checkpoint(folder: Path, size: int) -> None:
    directory = folder / "checkpoints" / "global_step_0"
    (directory / "actor").mkdir(parents=True)
    for kind in ("model", "optim"):
        with open(directory / "actor" / f"{kind}_world_size_1_rank_0.pt", "wb") as file:
            for begin in range(0, size // 2, 1 << 24):
                file.write(os.urandom(min(1 << 24, size // 2 - begin)))
    (directory / "data.pt").write_bytes(os.urandom(1000))


def _serve_s3(folder: Path) -> int:
    from trainer_entry.checkpoints.priority import idle_priority

    idle_priority()
    boto3 = importlib.import_module("boto3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would tell of each request
    server = importlib.import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="bench")
    policy, ready = folder / "policy.yml.tmp", folder / "policy.yml"
    policy.write_text(
        f"snapshot: {{place: {folder}/snapshots, every_steps: 1}}\n"
        "milestone:\n"
        "  kl: {metric: actor/kl_loss, from: 0, to: 1, every_steps: 1}\n"
        f"  place: {{url: 's3://bench/copies', options: {{endpoint_url: 'http://{host}:{port}'}}}}\n"
        f"  second_place: {folder}/second\n"
    )
    os.replace(policy, ready)
    signal.pause()
    return 0


def _children(pid: int) -> list[int]:
    """Processes that the process has started and that are there still, or were not waited for."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(one) for one in (task / "children").read_text().split()]
    return [one for one in found if not _ended(one)]


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
