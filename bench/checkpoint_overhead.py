"""What hashing, copying and uploading checkpoints beside training costs a training step.

``python -m bench.checkpoint_overhead [--gigabytes G] [--pairs N] [--json]`` trains a small network with torch in a
process of its own. Beside it the very processes that work beside verl go over a checkpoint of G GB (default 1): the one
that hashes it, and the keeper, which links a snapshot, uploads a milestone to an S3 server in parts and writes a second
copy to another folder, again and again. All of them are stopped (SIGSTOP) in every second window. The time of a step
with them is compared with that in the window next to it, so that whatever else the machine does meets both.

Two loops: ``all_cores``, whose steps keep every core busy, so that idle priority decides; and ``one_core``, which
leaves the others to the background work, as a trainer whose GPU does the work does, so that memory and disk decide.
The S3 server, which in truth is another machine, runs here at idle priority too.

``ratio`` is the median over all pairs of windows, with a 95 % interval by bootstrap; ``noise`` is the same of windows
without background work against each other. Exit code 1 where a ratio is above 1.02.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TARGET = 1.02
WINDOW_SECONDS = 2.0
"""At least; longer where steps take long."""
SETTLE_SECONDS = 0.3
"""At the start of a window, not counted: processes that were stopped go on, or have just stopped."""

WARM_UP_SECONDS = 5.0
LOOPS = ("all_cores", "one_core")

Window = tuple[float, float, bool]
"""From, to (monotonic seconds), and whether the background work ran."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="G", help="size of the checkpoint")
    parser.add_argument("--pairs", type=int, default=40, metavar="N", help="pairs of windows for each loop")
    parser.add_argument("--dir", type=Path, help="where there is room for four times the checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--subject", choices=["train", "background", "s3"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.subject == "train":
        return _train(options.threads)
    if options.subject == "background":
        return _background(options.folder)
    if options.subject == "s3":
        return _serve_s3(options.folder)
    if options.pairs < 4 or not 0.001 <= options.gigabytes <= 1000:
        parser.error("--pairs is at least 4, --gigabytes from 0.001 to 1000")
    with tempfile.TemporaryDirectory(prefix="checkpoint-overhead-", dir=options.dir) as folder:
        result = run(Path(folder), int(options.gigabytes * 1e9), options.pairs)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if all(loop["target_met"] for loop in result["loops"].values()) else 1


def run(folder: Path, size: int, pairs: int) -> dict[str, Any]:
    """Measure both loops, one after the other."""
    _make_checkpoint(folder, size)
    loops = {}
    for name in LOOPS:
        threads = (os.cpu_count() or 1) if name == "all_cores" else 1
        windows, steps, done = _measure(folder, threads, pairs)
        loops[name] = {"threads": threads, **_figures(windows, steps), **done}
    return {
        "checkpoint_bytes": size,
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "target_ratio": TARGET,
        "loops": loops,
    }


def _measure(folder: Path, threads: int, pairs: int) -> tuple[list[Window], list[tuple[float, float]], dict[str, Any]]:
    """Windows, the steps as (start, seconds), and what the background work did meanwhile."""
    steps_file = folder / "steps"
    with _child("train", folder, steps_file, threads) as trainer, _child("background", folder, None) as background:
        _wait_for_steps(steps_file, trainer)
        time.sleep(WARM_UP_SECONDS)
        window = _window_for(_steps(steps_file))
        cycles, spent = _cycles(folder), _cpu_seconds(background.pid)
        windows: list[Window] = []
        shuffled = random.Random(0)
        for _ in range(pairs):
            first = shuffled.random() < 0.5
            for on in (first, not first):
                os.killpg(background.pid, signal.SIGCONT if on else signal.SIGSTOP)
                began = time.monotonic()
                time.sleep(window)
                windows.append((began + SETTLE_SECONDS, time.monotonic(), on))
            if trainer.poll() is not None or background.poll() is not None:
                raise SystemExit("The training loop or the background work ended by itself; see its words above.")
        os.killpg(background.pid, signal.SIGCONT)
        done = {
            "window_seconds": round(window, 1),
            "background_cpu_seconds": round(_cpu_seconds(background.pid) - spent, 1),
            "background_seconds": round(pairs * window, 1),
            "background_rounds": _cycles(folder) - cycles,
        }
    return windows, _steps(steps_file), done


def _steps(path: Path) -> list[tuple[float, float]]:
    """When each step began, and its seconds; a last line that is not written to its end is left out."""
    found = [line.split() for line in path.read_text().split("\n")[:-1]]
    return [(float(began), float(seconds)) for began, seconds in found]


def _window_for(steps: list[tuple[float, float]]) -> float:
    """Long enough for a median over some steps, also on a machine that others use too."""
    return max(WINDOW_SECONDS, 15 * statistics.median(seconds for _, seconds in steps[-20:]))


def _wait_for_steps(steps: Path, trainer: subprocess.Popen[bytes]) -> None:
    """Until the loop really runs: importing torch takes its time."""
    until = time.monotonic() + 300
    while steps.read_bytes().count(b"\n") < 20:
        if trainer.poll() is not None or time.monotonic() > until:
            raise SystemExit("The training loop did not start; see its words above.")
        time.sleep(0.2)


def _figures(windows: list[Window], steps: list[tuple[float, float]]) -> dict[str, Any]:
    medians: list[tuple[bool, float]] = []
    for began, ended, on in windows:
        inside = [seconds for start, seconds in steps if began <= start and start + seconds <= ended]
        medians.append((on, statistics.median(inside) if inside else float("nan")))
    ratios = []
    for one, other in zip(medians[::2], medians[1::2], strict=True):
        busy, free = (one, other) if one[0] else (other, one)
        if busy[1] > 0 and free[1] > 0:
            ratios.append(busy[1] / free[1])
    free_only = [seconds for on, seconds in medians if not on and seconds > 0]
    apart = [one / other for one, other in zip(free_only[::2], free_only[1::2], strict=False)]
    low, high = _interval(ratios)
    noise_low, noise_high = _interval(apart)
    ratio = statistics.median(ratios)
    return {
        "step_ms": round(1000 * statistics.median(free_only), 2),
        "step_ms_with_background": round(1000 * statistics.median([s for on, s in medians if on and s > 0]), 2),
        "ratio": round(ratio, 4),
        "ratio_interval": [round(low, 4), round(high, 4)],
        "noise": round(statistics.median(apart), 4),
        "noise_interval": [round(noise_low, 4), round(noise_high, 4)],
        "pairs": len(ratios),
        "target_met": ratio <= TARGET,
    }


def _interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by bootstrap."""
    chosen = random.Random(1)
    medians = sorted(statistics.median(chosen.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def _table(result: dict[str, Any]) -> str:
    size = result["checkpoint_bytes"] / 1e9
    lines = [f"checkpoint {size:.2f} GB, {result['cores']} cores, load {result['load_average'][0]}"]
    for name, loop in result["loops"].items():
        low, high = loop["ratio_interval"]
        lines.append(
            f"{name}: step {loop['step_ms']} ms, with background work {loop['step_ms_with_background']} ms, ratio "
            f"{loop['ratio']} ({low} to {high}), target {result['target_ratio']} "
            f"{'met' if loop['target_met'] else 'MISSED'}; windows without it differ by {loop['noise']} "
            f"({loop['noise_interval'][0]} to {loop['noise_interval'][1]}); it went {loop['background_rounds']} "
            f"times over the checkpoint, with {loop['background_cpu_seconds']} s of CPU"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _child(subject: str, folder: Path, output: Path | None, threads: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this module in a group of its own; ended, with all that it started, on leaving."""
    words = [sys.executable, "-m", "bench.checkpoint_overhead", "--subject", subject, "--folder", os.fspath(folder)]
    words += ["--threads", str(threads)]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(output, "wb")) if output else sys.stderr
        environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        process = subprocess.Popen(words, stdout=out, env=environ, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _train(threads: int) -> int:
    """The training loop: prints when each step began, in monotonic seconds, and how long it took."""
    import torch

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
        began = time.monotonic()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(began, time.monotonic() - began, flush=True)


def _make_checkpoint(folder: Path, size: int) -> None:
    from trainer_entry.checkpoints import write_manifest

    directory = folder / "checkpoints" / "global_step_1"
    (directory / "actor").mkdir(parents=True)
    for kind in ("model", "optim"):
        with open(directory / "actor" / f"{kind}_world_size_1_rank_0.pt", "wb") as file:
            for begin in range(0, size // 2, 1 << 24):
                file.write(os.urandom(min(1 << 24, size // 2 - begin)))
    (directory / "data.pt").write_bytes(os.urandom(1000))
    write_manifest(directory, 1)


def _background(folder: Path) -> int:
    """Hash, snapshot, upload and copy the checkpoint until killed, by the processes that do it beside training."""
    import msgspec

    from trainer_entry.checkpoints import keeper
    from trainer_entry.checkpoints.priority import idle_priority
    from trainer_entry.checkpoints.tiers.jobs import RunNote, Workplace
    from trainer_entry.checkpoints.tiers.offering import offer_to
    from trainer_entry.checkpoints.tiers.policy_file import read_policy
    from trainer_entry.checkpoints.tiers.stores import open_store
    from trainer_entry.checkpoints.tiers.working import manifest_for

    idle_priority()  # of this process, which only starts the others, and of the S3 server that it starts
    directory, state_dir = folder / "checkpoints" / "global_step_1", folder / "state"
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_DEFAULT_REGION="us-east-1")
    url_file = folder / "s3-url"
    url_file.unlink(missing_ok=True)
    subprocess.Popen(
        [sys.executable, "-m", "bench.checkpoint_overhead", "--subject", "s3", "--folder", os.fspath(folder)]
    )
    while not url_file.exists():
        time.sleep(0.05)
    policy_file = folder / "policy.yml"
    policy_file.write_text(
        f"snapshot: {{place: {folder}/snapshots}}\n"
        f"milestone:\n  place: {{url: 's3://bench/copies', options: {{endpoint_url: '{url_file.read_text()}'}}}}\n"
        f"  second_place: {folder}/second\n"
    )
    policy = read_policy(policy_file)
    manifest = manifest_for(os.fspath(directory))
    workplace = Workplace(state_dir)
    workplace.note_run(
        RunNote(run_id="bench", checkpoint_dir=os.fspath(directory.parent), policy=os.fspath(policy_file))
    )
    while True:
        for tier in policy.tiers:
            for job in offer_to(workplace, tier, os.fspath(directory), manifest, "the benchmark"):
                if job.place == 1:  # a second disk, say: written and read back, not linked
                    workplace.put(msgspec.structs.replace(job, staged=""))
        hashing = [
            sys.executable,
            "-m",
            "trainer_entry.checkpoints.hashing",
            os.fspath(directory),
            "1",
            str(os.getpid()),
        ]
        subprocess.run(hashing, stdout=subprocess.DEVNULL, check=True)
        for _ in range(5):  # the store beside us may be too slow to answer in time: then once more, as in a run
            keeper.start(os.fspath(state_dir), "bench", os.fspath(policy_file)).wait()
            for job in workplace.jobs():
                workplace.put(msgspec.structs.replace(job, not_before=0.0))
            if not workplace.jobs():
                break
        else:
            raise SystemExit(f"The copies fail: {workplace.jobs()[0].last_error}")
        with workplace.reports():
            pass  # there is nobody to tell
        for tier in policy.tiers:
            for place in tier.places:
                open_store(place).remove("bench")
        with open(folder / "rounds", "ab") as rounds:
            rounds.write(b".")


def _serve_s3(folder: Path) -> int:
    boto3 = importlib.import_module("boto3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would tell of each request
    server = importlib.import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="bench")
    (folder / "s3-url.tmp").write_text(f"http://{host}:{port}")
    os.replace(folder / "s3-url.tmp", folder / "s3-url")
    signal.pause()
    return 0


def _cycles(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "rounds").stat().st_size
    return 0


def _cpu_seconds(group: int) -> float:
    """CPU time of all live processes of a group, and of their children that ended."""
    ticks = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):
            text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text.rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
