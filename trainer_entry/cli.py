"""``verl-sentinel-train``: run a trainer under the supervisor, and act on a run by hand.

The parser and the dispatch; ``run`` is in :mod:`trainer_entry.supervisor.command`, the rest in
:mod:`trainer_entry.supervisor.operator`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_entry.changes import ChangeError
from trainer_entry.checkpoint_commands import arguments as checkpoint_arguments
from trainer_entry.checkpoint_commands import copy_arguments
from trainer_entry.checkpoints import CheckpointError
from trainer_entry.checkpoints.tiers.policy import PolicyError
from trainer_entry.environments import VersionError
from trainer_entry.environments import command as environments
from trainer_entry.gradients import table
from trainer_entry.settings import SettingsError
from trainer_entry.supervisor import changing, command, exitcodes, operator
from trainer_entry.supervisor.outfit import CannotChange
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.overrides import OverrideError
from trainer_entry.supervisor.starting import NothingToStartFrom
from trainer_entry.supervisor.state import StateBusy, StateError
from trainer_entry.supervisor.stopping import StopLimits

_RUN_CODES = """\
Exit codes:
  0        the trainer finished by itself, or was stopped by a command
  2        the command line cannot be used
  70       no checkpoint may be restored; the run is held until a person says where to start
  71       the trainer could not be started
  75       another supervisor has this run
  130, 143 stopped by SIGINT, SIGTERM, after the trainer was stopped
  others   the trainer's own code (128 + signal) after a crash for which no command came in time
"""

_CODES = """\
Exit codes: 0 done, 2 unusable command line, 4 no checkpoint may be restored, 5 not stopped, 6 not started,
7 recorded, but no supervisor runs that would start it, 8 refused by the supervisor, 9 it cannot be changed so,
10 stopped, but not by itself with a save.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Every foreseen error is one sentence on standard error."""
    parser = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):  # bytes that the records cannot hold
            parser.error(f"{word!r} is not UTF-8")
    parsed = parser.parse_args(words)
    try:
        code: int = parsed.act(parsed)
        return code
    except StateBusy as error:
        say(str(error))
        return exitcodes.RUN_BUSY
    except NothingToStartFrom as error:
        say(str(error))
        return exitcodes.RUN_HELD
    except (ChangeError, CannotChange, VersionError) as error:
        say(str(error))
        if isinstance(error, VersionError) and error.signal:
            return 128 + error.signal  # as a shell says it; a rollback script is run once more for it
        return exitcodes.RUN_NOT_STARTED if parsed.act is command.run else exitcodes.CANNOT_CHANGE
    except (OverrideError, SettingsError, PolicyError) as error:
        say(str(error))
        return exitcodes.USAGE
    except (StateError, CheckpointError) as error:
        say(str(error))
        return exitcodes.RUN_NOT_STARTED if parsed.act is command.run else exitcodes.NOT_STARTED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        say(f"The folder or a file cannot be used: {error.strerror or error}{where}.")
        return exitcodes.RUN_NOT_STARTED if parsed.act is command.run else exitcodes.NOT_STARTED
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="verl-sentinel-train", description="Runs a trainer under the supervisor, and acts on a run by hand."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)

    status = commands.add_parser("status", help="how a run is")
    _add_run_choice(status)
    status.add_argument("--json", action="store_true", help="as one JSON object")
    status.add_argument("--wait-for", default="", metavar="NAME", help="wait until that change is proved (or code 6)")
    status.add_argument("--wait-seconds", type=_seconds, default=600.0, metavar="S", help="no longer (default: 600)")
    status.set_defaults(act=operator.status)

    stop = commands.add_parser("stop", help="stop the trainer and its supervisor", epilog=_CODES)
    _add_run_choice(stop)
    _add_request(stop)
    stop.add_argument(
        "--for-rollback",
        action="store_true",
        help="a resume follows: do not wait long for a clean end, save nothing, leave the supervisor waiting",
    )
    stop.add_argument(
        "--save-first",
        action="store_true",
        help="a resume follows, and wants a checkpoint saved at the clean end (code 10 where it came to none)",
    )
    stop.add_argument("--target", type=Path, metavar="DIR", help="keep this checkpoint from being deleted meanwhile")
    stop.set_defaults(act=operator.stop)

    resume = commands.add_parser("resume", help="start a stopped run from a verified checkpoint", epilog=_CODES)
    _add_run_choice(resume)
    _add_request(resume)
    resume.add_argument("--target", required=True, type=Path, metavar="DIR", help="the global_step_N directory")
    resume.add_argument(
        "--depth",
        choices=("sizes", "content"),
        default="content",
        help="how to verify the target: 'sizes' is for whoever has just verified the content (default: content)",
    )
    resume.add_argument(
        "--start-supervisor", action="store_true", help="if no supervisor runs, start one in the background"
    )
    resume.add_argument("--environments-dir", type=Path, metavar="DIR", help="where other verl versions lie")
    changing.add_options(resume)
    resume.set_defaults(act=operator.resume)

    rollback = commands.add_parser("rollback", help="stop, choose a verified checkpoint, resume", epilog=_CODES)
    _add_run_choice(rollback)
    _add_request(rollback)
    _add_limits(rollback)
    rollback.add_argument(
        "--rung", choices=("checkpoint", "config", "version", "infra"), default="checkpoint", help="whose script to run"
    )
    rollback.add_argument("--save-first", action="store_true", help="end cleanly with a save, and go on from there")
    changing.add_options(rollback, files=False)
    rollback.set_defaults(act=operator.rollback)
    changing.add_command(commands)
    environments.add(commands)

    table.add_command(commands)
    copy_arguments.add(checkpoint_arguments.add(commands))
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    limits = StopLimits()
    run = commands.add_parser(
        "run",
        help="run a trainer under the supervisor",
        usage="verl-sentinel-train run [options] -- python -m trainer_entry.main_ppo key=value …",
        description="Runs the trainer, takes commands, and restarts it from a verified checkpoint. With the state "
        "directory of a run that is alive it takes that run over; without a command it runs the recorded one, with the "
        "recorded options where they are not given again.",
        epilog=_RUN_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_choice(run)
    run.add_argument("--url", help="the exporter's base URL, or 'off' (default: VERL_SENTINEL_URL, else the local one)")
    run.add_argument("--checkpoint-dir", type=Path, help="where the trainer saves, if its overrides do not say")
    for name, value, text in (
        ("clean-stop-seconds", limits.clean_seconds, "how long a stop waits for the step and its save"),
        ("rollback-clean-seconds", limits.rollback_clean_seconds, "the same before a rollback, which wants no save"),
        ("term-seconds", limits.term_seconds, "how long to wait after SIGTERM"),
        ("kill-seconds", limits.kill_seconds, "how long to wait after SIGKILL"),
    ):
        run.add_argument(f"--{name}", type=_seconds, metavar="S", help=f"{text} (default: {value:g})")
    run.add_argument(
        "--wait-for-command-seconds",
        type=_seconds,
        metavar="S",
        help="how long to wait for a command after a crash, or a rollback that found no checkpoint "
        f"(default: {command.WAIT_FOR_COMMAND_SECONDS:g}, or 0 without an exporter)",
    )
    run.add_argument(
        "--rollback-scripts",
        type=Path,
        metavar="DIR",
        help="run checkpoint.sh, config.sh, version.sh and infra.sh of this folder; one that is not there: the shipped",
    )
    run.add_argument("--environments-dir", type=Path, metavar="DIR", help="where other verl versions lie")
    run.add_argument(
        "--executor",
        choices=("local", "ray", "slurm"),
        help="where the trainer runs: on this machine, as a Ray job, as a Slurm job (default: as recorded, else local)",
    )
    run.add_argument("--executor-settings", type=Path, metavar="FILE", help="of Ray or Slurm; see docs/executors.md")
    run.add_argument(
        "--checkpoint-policy",
        type=Path,
        metavar="FILE",
        help="the tiers that checkpoints are copied into; see docs/checkpoints.md (default: VERL_SENTINEL_CHECKPOINTS)",
    )
    run.add_argument(
        "--copies-seconds",
        type=_seconds,
        metavar="S",
        help=f"how long the end of a run waits for the last copies, an archive (default: {command.COPIES_SECONDS:g})",
    )
    run.add_argument("--forget-changes", action="store_true", help="drop what earlier recoveries have changed")
    run.add_argument("--quiet", action="store_true", help="do not show the trainer's output; it is in attempts/N")
    run.add_argument("trainer", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(act=command.run)


def _add_run_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, help="the run's state (default: by its id, in the user's cache)")
    parser.add_argument("--run-id", help="the run's identity (default: from project, experiment and checkpoints)")


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--request-id", default="", help="the same id again has the effect of once")
    parser.add_argument("--reason", default="", help="for the record")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target-step", type=_step, metavar="N", help="begin at this step; an older one if it is bad")
    parser.add_argument("--not-after-step", type=_step, metavar="N", help="nothing that was saved after this step")


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a step; expected a whole number from 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 10 million")
    return value


if __name__ == "__main__":
    sys.exit(main())
