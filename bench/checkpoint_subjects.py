"""The processes of :mod:`bench.checkpoint_overhead`: a training loop with the plugin's threads, and an S3 server.

``python -m bench.checkpoint_subjects train|s3 --folder FOLDER --threads N --parent PID``
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from trainer_entry.checkpoints.priority import end_with_parent

STAND_STILL, GO_ON = "stand still", "go on"
"""Lines on standard input of the training loop; any other is a step and the directory of its checkpoint."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_subjects", description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=["train", "s3"])
    parser.add_argument("--folder", type=Path, required=True, help="of the benchmark")
    parser.add_argument("--threads", type=int, required=True, help="of torch")
    parser.add_argument("--parent", type=int, required=True, help="process id; with it, this process ends")
    options = parser.parse_args()
    end_with_parent(options.parent)
    return _train(options.threads, options.folder) if options.subject == "train" else _serve_s3(options.folder)


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
            if line.strip() in (STAND_STILL, GO_ON):
                (going.set if line.strip() == GO_ON else going.clear)()
                continue
            step, _, directory = line.strip().partition(" ")
            runtime.logged(int(step), {"actor/kl_loss": 0.1})
            manifests.saved(Save(directory, int(step), False), 0.0)

    threading.Thread(target=listen, daemon=True).start()


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


if __name__ == "__main__":
    sys.exit(main())
