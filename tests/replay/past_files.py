"""Runs as several loggers would have written them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from exporter.replay.event_records import masked_crc32c

PROGRAM = (sys.executable, "-c", "from exporter.__main__ import verl_sentinel; verl_sentinel()")

Metrics = dict[str, float]
Steps = list[tuple[int, Metrics]]


def single(value: float) -> float:
    """As TensorBoard keeps it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def wave(step: int, size: float) -> float:
    """What goes up and down without a pattern that a detector could learn."""
    return size * (math.sin(step * 1.7) + math.sin(step * 4.1 + 1.0)) / 2.0


def healthy(first: int = 1, last: int = 60) -> Steps:
    """A made run of SFT: its loss falls, its gradient goes up and down."""
    return [
        (
            step,
            {
                "train/loss": single(2.0 + math.exp(-step / 30.0) + wave(step, 0.05)),
                "train/grad_norm": single(1.0 + wave(step + 7, 0.1)),
                "train/lr": single(1e-5),
            },
        )
        for step in range(first, last + 1)
    ]


def growing_gradient(last: int = 60) -> Steps:
    """Healthy, until the gradient grows by step 50 and the loss is NaN from step 55 on."""
    steps = healthy(1, last)
    for step, metrics in steps:
        if step >= 50:
            metrics["train/grad_norm"] = single(4.0 ** (step - 49))
        if step >= 55:
            metrics["train/loss"] = math.nan
    return steps


def jsonl(steps: Steps) -> bytes:
    """verl's ``file`` logger writes NaN as null."""
    lines = []
    for step, metrics in steps:
        data = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        lines.append(json.dumps({"step": step, "data": data}))
    return ("\n".join(lines) + "\n").encode()


def console(steps: Steps) -> bytes:
    """With Ray's prefix in colour, numpy's numbers, a progress bar and other lines between."""
    out = io.StringIO()
    out.write("WARNING 11-30 02:11 something else: step 1 of 3\n")
    for step, metrics in steps:
        numbers = {key: f"np.float64({v!r})" if key.endswith("loss") else repr(v) for key, v in metrics.items()}
        parts = " - ".join(f"{key}:{number}" for key, number in numbers.items())
        bar = f"Training Progress: {step}%|##  | {step}/100\r" if step % 2 else ""
        out.write(f"\x1b[36m(TaskRunner pid=77)\x1b[0m {bar}step:{step} - {parts}\n")
        out.write("\x1b[36m(WorkerDict pid=78)\x1b[0m loading shards: 100%\n")
    return out.getvalue().encode()


def wandb_chart(runs: Mapping[str, Steps]) -> bytes:
    """As W&B exports a chart or panel: three columns for each run and metric."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    keys = {name: list(dict.fromkeys(key for _, metrics in steps for key in metrics)) for name, steps in runs.items()}
    titles = [f"{name} - {key}{end}" for name in runs for key in keys[name] for end in ("", "__MIN", "__MAX")]
    writer.writerow(["Step", *titles])
    of = {name: dict(steps) for name, steps in runs.items()}
    for step in sorted({step for steps in runs.values() for step, _ in steps}):
        cells: list[str] = []
        for name in runs:
            for key in keys[name]:
                value = of[name].get(step, {}).get(key)
                cells += [cell(value)] * 3
        writer.writerow([str(step), *cells])
    return text.getvalue().encode()


def wandb_history(steps: Steps) -> bytes:
    """As a table of a run's history is exported, with W&B's own columns."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for _, metrics in steps for key in metrics))
    writer = csv.writer(text)
    writer.writerow(["_step", "_runtime", "_timestamp", *keys])
    for step, metrics in steps:
        writer.writerow([step, step * 2.0, 1.7e9 + step, *(cell(metrics.get(key)) for key in keys)])
    return ("\ufeff" + text.getvalue()).encode()


def cell(value: float | None) -> str:
    return "" if value is None else "NaN" if math.isnan(value) else repr(value)


def trainer_state(steps: Steps) -> bytes:
    """As Hugging Face's Trainer saves it, NaN spelled as Python does."""
    names = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "learning_rate", "val/loss": "eval_loss"}
    history: list[dict[str, object]] = [
        {"epoch": step / 10, **{names.get(key, key): value for key, value in metrics.items()}, "step": step}
        for step, metrics in steps
    ]
    state = {"best_metric": None, "epoch": 6.0, "global_step": len(steps), "log_history": history, "max_steps": 60}
    return json.dumps(state, indent=2).encode()


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def framed(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc32c(length)) + content + struct.pack("<I", masked_crc32c(content))


def event(step: int, values: Sequence[bytes], time: float = 1.7e9) -> bytes:
    summary = b"".join(framed(1, value) for value in values)
    return record(b"\x09" + struct.pack("<d", time + step) + b"\x10" + varint(step) + framed(5, summary))


def simple(key: str, value: float) -> bytes:
    return framed(1, key.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(key: str, value: float) -> bytes:
    """As TensorFlow 2 writes a scalar: a tensor of type float without a dimension, and the plugin's metadata."""
    metadata = framed(1, framed(1, b"scalars"))
    content = b"\x08\x01" + framed(2, b"") + framed(5, struct.pack("<f", value))
    return framed(1, key.encode()) + framed(8, content) + framed(9, metadata)


def event_file(steps: Iterable[tuple[int, Metrics]], kind: str = "simple") -> bytes:
    """One event for each metric, as torch's and verl's writer has it."""
    out = [record(b"\x09" + struct.pack("<d", 1.7e9) + framed(3, b"brain.Event:2"))]
    write = simple if kind == "simple" else tensor
    for step, metrics in steps:
        out += (event(step, [write(key, value)]) for key, value in metrics.items())
    return b"".join(out)


def written(path: Path, content: bytes) -> Path:
    """The file, packed where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
