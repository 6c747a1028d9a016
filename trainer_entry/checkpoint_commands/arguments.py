"""The words after ``verl-sentinel-train checkpoints``. Called by :mod:`trainer_entry.cli`, which does what they say."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer_entry.checkpoint_commands import listing, verifying
from trainer_entry.checkpoints.depths import NAMES

CODES = """\
Exit codes: 0 done, 2 unusable command line, 4 no checkpoint may be restored, or this one may not, 6 it cannot be read.
"""

Group = argparse._SubParsersAction


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> Group[argparse.ArgumentParser]:
    """Add ``checkpoints`` with ``list``, ``verify`` and ``choose``; returns the group, for more."""
    group = commands.add_parser("checkpoints", help="look at checkpoints").add_subparsers(required=True, metavar="WHAT")

    listed = group.add_parser(
        "list", help="all checkpoints of a run, what is known of each, and what is wrong with it", epilog=CODES
    )
    add_run(listed)
    _add_depth(listed, "sizes")
    _add_world_size(listed)
    listed.add_argument(
        "--checkpoint-policy",
        type=Path,
        metavar="FILE",
        help="the tiers whose copies are listed too (default: VERL_SENTINEL_CHECKPOINTS)",
    )
    listed.add_argument("--json", action="store_true", help="as one JSON object")
    listed.set_defaults(act=listing.list_checkpoints)

    verify = group.add_parser("verify", help="verify checkpoints, and name every problem", epilog=CODES)
    verify.add_argument(
        "directories", nargs="*", type=Path, metavar="DIR", help="global_step_N directories (default: all of the run)"
    )
    add_run(verify)
    _add_depth(verify, "content")
    _add_world_size(verify)
    verify.add_argument("--json", action="store_true", help="as one JSON object")
    verify.add_argument(
        "--urgent", action="store_true", help="at full speed: nothing trains on this machine that it could slow"
    )
    verify.add_argument("--seconds", type=_positive, metavar="S", help="how long loading may take (default: by size)")
    verify.set_defaults(act=verifying.verify_checkpoints)

    choose = group.add_parser(
        "choose",
        help="print the newest checkpoint that may be restored",
        epilog=f"{CODES.rstrip()[:-1]}, 9 a setting cannot be changed so.\n",
    )
    add_run(choose)
    _add_depth(choose, "content")
    _add_world_size(choose)
    add_limits(choose)
    choose.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that the start will have; it may be for another number of ranks",
    )
    choose.add_argument(
        "--forget-changes", action="store_true", help="the start will have nothing of what earlier rungs have changed"
    )
    choose.set_defaults(act=verifying.choose_checkpoint)
    return group


def add_run(parser: argparse.ArgumentParser) -> None:
    """Options that name a run, or the folder of its checkpoints."""
    parser.add_argument("--state-dir", type=Path, help="the run's state (default: by its id, in the user's cache)")
    parser.add_argument("--run-id", help="the run's identity (default: from project, experiment and checkpoints)")
    parser.add_argument("--checkpoint-dir", type=Path, help="where the checkpoints lie (default: as the run says)")


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Which steps may be chosen."""
    parser.add_argument("--target-step", type=step, metavar="N", help="begin at this step; an older one if it is bad")
    parser.add_argument("--not-after-step", type=step, metavar="N", help="nothing that was saved after this step")


def step(text: str) -> int:
    """A step, from 0."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a step; expected a whole number from 0")
    return int(text)


def _add_depth(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--depth",
        choices=tuple(NAMES),
        default=default,
        help="sizes: names and sizes; content, or manifest: every hash too; load: load every file with torch; forward: "
        "and make a forward step on the CPU (default: %(default)s)",
    )


def _add_world_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--world-size",
        type=_ranks,
        metavar="N",
        help="ranks that will resume: a checkpoint of another number is refused (default: as the run's words say)",
    )


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:8]) < 10_000_000 or len(text) > 7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a million")
    return value
