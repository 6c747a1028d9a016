"""A trainer's stand-in for the actor tests: a process with a Ray cluster of its own that starts samplers when told.

Run by `test_gpu_actor.py` as a script, because the mocked driver has to be in the environment before Ray starts.
Reads one word a line: `start`, `drop` (the handles), `end`; answers each with a line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray

from exporter.protocol import Run
from trainer_entry.gpu import start_samplers
from trainer_entry.settings import Settings


def main(url: str, state_dir: str) -> None:
    ray.init(num_cpus=1, num_gpus=1, include_dashboard=False, object_store_memory=80_000_000)
    settings = Settings(url=url, token="secret", run_id="r1", state_dir=Path(state_dir))
    handles: list[Any] = []
    print("ready", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "start":
                handles = start_samplers(settings, Run(run_id="r1", attempt=2))
                print(f"started {len(handles)}", flush=True)
            case "drop":
                handles = []
                print("dropped", flush=True)
            case "end":
                break
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
