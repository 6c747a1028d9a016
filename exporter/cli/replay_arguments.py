"""The arguments of ``verl-sentinel replay``. Called by :mod:`exporter.cli.replay`.

By argparse: it is there in a few milliseconds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FORMS = ("auto", "jsonl", "console", "csv", "tensorboard", "trainer-state")


@dataclass(frozen=True)
class Arguments:
    """What was asked for. None, and an empty text, is not given."""

    files: list[Path]
    form: str
    output: str
    fail_on: str | None
    plot: Path | None
    config: Path | None
    preset: str | None
    trainer_config: Path | None
    max_steps: int | None
    max_response_length: int | None
    lr: float | None
    lr_warmup_steps: int | None
    gpu_memory_gb: float | None
    host_memory_gb: float | None
    policy: Path | None
    save_freq: int | None


def parsed(arguments: Sequence[str]) -> Arguments:
    """Ends the program with exit code 2 and a sentence where they are wrong, with 0 after ``--help``."""
    return Arguments(**vars(_parser().parse_intermixed_args(list(arguments))))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="verl-sentinel replay",
        description="Say of past runs what would have been said, and when.",
        epilog="Exit codes: 0 done; 1 something as severe as --fail-on says would have been said; 2 called wrongly, or "
        "a file that cannot be used.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="verl's file log (JSONL) or console log, W&B's CSV, TensorBoard's event file or a folder of them, or "
        "trainer_state.json; .gz too",
    )
    parser.add_argument(
        "--format", dest="form", choices=FORMS, default="auto", help="what the files hold; auto looks into each"
    )
    parser.add_argument(
        "--output",
        choices=("table", "json"),
        default="table",
        help="a table of episodes, or a JSON line for each verdict (default: table)",
    )
    parser.add_argument(
        "--fail-on",
        choices=("critical", "warning"),
        help="end with exit code 1 where something so severe, or worse, would have been said",
    )
    parser.add_argument(
        "--plot",
        metavar="PICTURE",
        type=Path,
        help="draw the signals with what was expected and what would have been said; .png, .svg or .pdf",
    )

    judging = parser.add_argument_group("how it is judged")
    judging.add_argument(
        "--config", metavar="FILE", type=Path, help="the exporter's configuration file: how it detects, and incidents"
    )
    judging.add_argument(
        "--preset", metavar="NAME", help="a kind of training (grpo, ppo, dapo, sft, manual), in place of the file's"
    )

    known = parser.add_argument_group("what a live run would have told")
    known.add_argument(
        "--trainer-config", metavar="FILE", type=Path, help="the trainer's own configuration (YAML), as hydra saves it"
    )
    known.add_argument("--max-steps", metavar="N", type=_count, help="steps of the whole training")
    known.add_argument("--max-response-length", metavar="N", type=_count, help="tokens that a response may have")
    known.add_argument("--lr", metavar="RATE", type=_above_zero, help="the learning rate, constant after its warm-up")
    known.add_argument(
        "--lr-warmup-steps", metavar="N", type=_count, help="of --lr; other schedules need --trainer-config"
    )
    known.add_argument("--gpu-memory-gb", metavar="GB", type=_above_zero, help="memory of one GPU (GB of 1024³ bytes)")
    known.add_argument("--host-memory-gb", metavar="GB", type=_above_zero, help="memory of the trainer's host")

    recovery = parser.add_argument_group("what recovery would have done")
    recovery.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        help="print the plans that it would have made in mode auto; the exporter's configuration file, or its recovery "
        "section alone",
    )
    recovery.add_argument(
        "--save-freq",
        metavar="N",
        type=_count,
        help="a checkpoint was saved every N steps; counts where the log does not say when one was saved",
    )
    return parser


def _checked(text: str, read: Callable[[str], float], least: float, what: str) -> float:
    try:
        value = read(text)
    except ValueError:
        value = math.nan
    if not (least <= value < 1e15) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what} above 0")
    return value


def _count(text: str) -> int:
    return int(_checked(text, int, 1, "whole number"))


def _above_zero(text: str) -> float:
    return _checked(text, float, 1e-30, "number")
