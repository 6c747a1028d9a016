"""The words of ``checkpoints backup|restore|prune|drill``. Called by :mod:`trainer_entry.cli`.

Each works with a supervisor alive or not. What it did is left as reports in the run's state, which the trainer or the
supervisor pushes to the exporter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from exporter.protocol import Tier
from trainer_entry.checkpoint_commands import bringing_back, keeping
from trainer_entry.checkpoint_commands.arguments import Group, add_run, step
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.pace import Stopped
from trainer_entry.checkpoints.tiers.policy import PolicyError
from trainer_entry.checkpoints.tiers.policy_file import VARIABLE
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.state import StateError

TIERS: tuple[Tier, ...] = ("snapshot", "milestone", "archive")

_CODES = """\
Exit codes: 0 done, 2 unusable command line or policy, 4 no checkpoint or copy that may be used, 11 not everything could
be done (said which), 130 stopped.
"""

Act = Callable[[argparse.Namespace], int]


def add(group: Group[argparse.ArgumentParser]) -> None:
    """Add the four to ``checkpoints``."""

    def one(name: str, act: Act, text: str) -> argparse.ArgumentParser:
        parser = group.add_parser(name, help=text, description=text + ".", epilog=_CODES)
        add_run(parser)
        parser.add_argument(
            "--checkpoint-policy",
            type=Path,
            metavar="FILE",
            help=f"the tiers' policy (default: {VARIABLE}, or the one that the run was started with)",
        )
        parser.set_defaults(act=lambda parsed: _guarded(act, parsed))
        return parser

    backup_one = one("backup", keeping.backup, "copy a checkpoint into a tier now")
    backup_one.add_argument("--tier", choices=TIERS, help="into which tier")
    what = backup_one.add_mutually_exclusive_group()
    what.add_argument("--step", type=step, metavar="N", help="which checkpoint (default: the newest that verifies)")
    what.add_argument("--checkpoint", type=Path, metavar="DIR", help="a global_step_N directory, wherever it lies")
    what.add_argument("--waiting", action="store_true", help="carry on with what waits, an archive at the end say")

    restore_one = one("restore", bringing_back.restore_copy, "bring a copy back into an empty folder")
    _add_source(restore_one)
    restore_one.add_argument("--to", type=Path, metavar="DIR", help="the folder that gets global_step_N")
    restore_one.add_argument("--beside", action="store_true", help="other checkpoints may be in that folder")
    restore_one.add_argument("--list", action="store_true", help="only list what is at the place")

    prune_one = one("prune", keeping.prune, "delete what the policy does not keep")
    prune_one.add_argument("--dry-run", action="store_true", help="only say what would be deleted, and why")

    drill_one = one("drill", bringing_back.drill_copy, "restore a copy into an empty place, train from it, and time it")
    _add_source(drill_one)
    drill_one.add_argument("--steps", type=int, default=2, metavar="N", help="steps to train (default: %(default)s)")
    drill_one.add_argument(
        "--limit-seconds", type=float, default=1800.0, metavar="S", help="for the training (default: %(default)g)"
    )
    drill_one.add_argument("--scratch", type=Path, metavar="DIR", help="where there is room (default: as for tempfile)")
    drill_one.add_argument("--json", action="store_true", help="as one JSON object")


def _add_source(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--from", dest="source", metavar="PLACE", help="a folder or URL, such as s3://bucket/checkpoints"
    )
    where.add_argument("--tier", choices=TIERS, help="the place of this tier in the policy")
    parser.add_argument("--second-place", action="store_true", help="the second place of the tier")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--name", default="", help="of the copy (default: the one that was saved last)")
    which.add_argument("--step", type=step, metavar="N", help="the copy of this step")
    which.add_argument("--not-after-step", type=step, metavar="N", help="the last one up to this step")
    parser.add_argument("--identity", type=Path, metavar="FILE", help="age identity or SSH key, for an archive")


def _guarded(act: Act, parsed: argparse.Namespace) -> int:
    try:
        return act(parsed)
    except PolicyError as error:
        say(str(error))
        return exitcodes.USAGE
    except (CheckpointError, StateError) as error:
        say(str(error))
        return exitcodes.NO_CHECKPOINT
    except Stopped:
        say("Stopped; what was copied is kept, and the same command goes on from there.")
        return 130
