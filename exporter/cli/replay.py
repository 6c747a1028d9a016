"""``verl-sentinel replay``. Called by :mod:`exporter.cli`; the work is :mod:`exporter.replay`'s."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from exporter.cli.replay_arguments import Arguments, parsed
from exporter.cli.telling import stop, tell

if TYPE_CHECKING:
    from exporter.replay.charts import Charts
    from exporter.replay.past_run import PastRun
    from exporter.replay.plans import PastPlans
    from exporter.replay.replaying import Keys, Replay

MOST_ROWS = 10_000
"""Of a table; where there is more to say, JSON has it."""
MOST_KEYS_SHOWN = 1000
READER_GONE = 141
"""Exit code where whoever read standard output went away, as a shell has it for a program that SIGPIPE ends."""
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Say of past runs what would have been said, and when. The exit code."""
    wanted = parsed(arguments)
    try:
        code = _replay(wanted)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written nowhere
        return READER_GONE
    except KeyboardInterrupt:
        tell("Interrupted.")
        return INTERRUPTED
    return code


def _replay(wanted: Arguments) -> int:
    from exporter.detectors.base import Severity
    from exporter.replay.recognised import format_of
    from exporter.replay.replaying import Keys, Replay
    from exporter.replay.rows import FileUnusable

    new_run, new_plans, charts = _prepared(wanted)
    keys = Keys()
    try:
        replays = [
            Replay(
                path, wanted.form if wanted.form != "auto" else format_of(path), new_run, keys, tell, charts, new_plans
            )
            for path in wanted.files
        ]
        worst = _as_json(replays) if wanted.output == "json" else _as_table(replays)
    except FileUnusable as error:
        stop(str(error), 2)
    sys.stdout.flush()
    _tell_of_keys(keys)
    for one in replays:
        tell(one.sentence())
        for run in one.runs.values():
            for name, count in run.faults.items():
                tell(f"Detector {name} failed on {count} steps of {one.path}, and said nothing of them.")
    return 1 if wanted.fail_on is not None and worst >= Severity[wanted.fail_on.upper()] else 0


def _prepared(wanted: Arguments) -> tuple[Callable[[], PastRun], Callable[[], PastPlans] | None, Charts | None]:
    """What the options ask for; everything that is wrong with them is found here, before a step is read."""
    from exporter.replay.past_run import PastRun
    from exporter.replay.settings import Known, SettingsWrong, judging

    try:
        how = judging(wanted.config, wanted.preset)
        known = Known(
            wanted.trainer_config,
            wanted.max_steps,
            wanted.max_response_length,
            wanted.lr,
            wanted.lr_warmup_steps,
            wanted.gpu_memory_gb,
            wanted.host_memory_gb,
        )
        setup = known.setup()
    except SettingsWrong as error:
        stop(str(error), 2)
    return partial(PastRun, how.detectors, how.rules, setup, wanted.save_freq), None, None


def _as_json(replays: list[Replay]) -> int:
    """Write every verdict as it comes; the worst severity, 0 where nothing was said."""
    from exporter.replay.answers import json_line

    worst = 0
    for one in replays:
        for saying in one.sayings():
            for verdict in saying.verdicts:
                worst = max(worst, verdict.severity)
                sys.stdout.write(json_line(verdict, saying.attempt, str(one.path), saying.run) + "\n")
    return worst


def _as_table(replays: list[Replay]) -> int:
    """Show the episodes of all files; the worst severity, 0 where nothing was said."""
    from exporter.cli.showing import show_rows
    from exporter.replay.answers import COLUMNS, table_row

    worst = beyond = 0
    told: list[tuple[str, str, int, tuple[str, ...]]] = []
    for one in replays:
        for saying in one.sayings():
            worst = max(worst, *(verdict.severity for verdict in saying.verdicts))
            for verdict in saying.news:
                if len(told) < MOST_ROWS:
                    told.append((str(one.path), saying.run, saying.attempt, table_row(verdict)))
                else:
                    beyond += 1
    columns, lead = _lead(replays)
    rows = [(*lead(path, run, attempt), *cells) for path, run, attempt, cells in told]
    show_rows((*columns, *COLUMNS), rows, none="Nothing would have been said.")
    if beyond:
        tell(f"{beyond} more are not shown: --output json has all.")
    return worst


def _lead(replays: list[Replay]) -> tuple[tuple[str, ...], Callable[[str, str, int], tuple[str, ...]]]:
    """The columns that say where something was said, as far as there are several such places, and their cells."""
    shown = (
        ("FILE", len(replays) > 1),
        ("RUN", any(len(one.runs) > 1 for one in replays)),
        ("START", any(run.attempts > 1 for one in replays for run in one.runs.values())),
    )

    def cells(path: str, run: str, attempt: int) -> tuple[str, ...]:
        every = (path, run, str(attempt))
        return tuple(cell for cell, (_, wanted) in zip(every, shown, strict=True) if wanted)

    return tuple(name for name, wanted in shown if wanted), cells


def _tell_of_keys(keys: Keys) -> None:
    from exporter.replay.rows import listed

    if keys.unknown:
        count = len(keys.unknown)
        tell(
            f"{count} key{' is' if count == 1 else 's are'} not known here and "
            f"{'is' if count == 1 else 'are'} not judged: {listed(keys.unknown, MOST_KEYS_SHOWN)}."
        )
