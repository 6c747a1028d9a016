"""The stock trainer on the toy, watched through the entry points, with a receiving server in the exporter's place."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from push_receiver import Receiver

from demo.toy import environment
from exporter.protocol import CheckpointSaved, HooksReported, PhaseReport, RolloutCounts, RunFinished, RunStarted

SECONDS = 400


@dataclass
class Arrived:
    """What the server had when the trainer had ended."""

    receiver: Receiver
    exit_code: int
    output: str

    def one(self, kind: type) -> object:
        (event,) = self.receiver.events(kind)
        return event

    @property
    def hooks(self) -> HooksReported:
        event = self.one(HooksReported)
        assert isinstance(event, HooksReported)
        return event

    @property
    def started(self) -> RunStarted:
        event = self.one(RunStarted)
        assert isinstance(event, RunStarted)
        return event

    @property
    def finished(self) -> RunFinished:
        event = self.one(RunFinished)
        assert isinstance(event, RunFinished)
        return event

    @property
    def checkpoints(self) -> list[CheckpointSaved]:
        return [event for event in self.receiver.events(CheckpointSaved) if isinstance(event, CheckpointSaved)]

    @property
    def phases(self) -> list[PhaseReport]:
        return [batch.phase for batch in self.receiver.batches if batch.phase is not None]

    @property
    def phase_names(self) -> set[str]:
        return {phase.name for report in self.phases for phase in (*report.open, *report.closed)}

    @property
    def requests_per_step(self) -> int:
        config = self.started.config
        return int(str(config["data.train_batch_size"])) * int(str(config["actor_rollout_ref.rollout.n"]))

    @property
    def rollouts(self) -> RolloutCounts:
        counts = [batch.rollout for batch in self.receiver.batches if batch.rollout is not None]
        return counts[-1]


def start(module: str, overrides: list[str], receiver: Receiver, folder: Path, **more: str) -> subprocess.Popen[bytes]:
    """Start a watched trainer in its own session; its output goes to ``folder/output``."""
    variables = environment(
        {name: value for name, value in os.environ.items() if not name.startswith("VERL_SENTINEL_")}
    )
    variables |= {
        "VERL_SENTINEL_URL": receiver.url,
        "VERL_SENTINEL_STATE_DIR": str(folder / "state"),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        **more,
    }
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *overrides],
            env=variables,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(process: subprocess.Popen[bytes], receiver: Receiver, folder: Path) -> Arrived:
    """Wait for the trainer's end."""
    try:
        code = process.wait(SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    return Arrived(receiver, code, (folder / "output").read_text(errors="replace"))
