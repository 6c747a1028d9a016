"""``verl-sentinel replay``. Called by :mod:`exporter.cli`; the work is :mod:`exporter.replay`'s."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
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
PLACE = ("FILE", "RUN", "START")


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
        forms = [format_of(path) if wanted.form == "auto" else wanted.form for path in wanted.files]
        replays = [
            Replay(number, path, form, new_run, keys, tell, charts, new_plans)
            for number, (path, form) in enumerate(zip(wanted.files, forms, strict=True))
        ]
        worst = _as_json(replays) if wanted.output == "json" else _as_table(replays)
    except FileUnusable as error:
        stop(str(error), 2)
    sys.stdout.flush()
    _tell_of_keys(keys)
    drawn = charts is None or wanted.plot is None or _draw(charts, wanted.plot)
    for one in replays:
        tell(one.sentence())
        for name, run in one.runs.items():
            if one.plans:
                tell(one.plans[name].sentence(run, f"{one.path} {name}".strip()))
        for run in one.runs.values():
            for name, count in run.faults.items():
                tell(f"Detector {name} failed on {count} steps of {one.path}, and said nothing of them.")
    if not drawn:
        return 2
    return 1 if wanted.fail_on is not None and worst >= Severity[wanted.fail_on.upper()] else 0


def _prepared(wanted: Arguments) -> tuple[Callable[[], PastRun], Callable[[], PastPlans] | None, Charts | None]:
    """What the options ask for; everything that is wrong with them is found here, before a step is read."""
    from exporter.replay.past_run import PastRun
    from exporter.replay.settings import Known, SettingsWrong, judging, policy_of

    charts = new_plans = None
    if wanted.plot is not None:
        from exporter.replay.charts import Charts
        from exporter.replay.pictures import PictureImpossible, check

        try:
            check(wanted.plot)
        except PictureImpossible as error:
            stop(str(error), 2)
        charts = Charts()
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
        if wanted.policy is not None:
            from exporter.replay.plans import PastPlans

            new_plans = partial(PastPlans, policy_of(wanted.policy))
        elif wanted.save_freq is not None:
            raise SettingsWrong("--save-freq says where checkpoints were, and without --policy nobody asks.")
    except SettingsWrong as error:
        stop(str(error), 2)
    return partial(PastRun, how.detectors, how.rules, setup, wanted.save_freq), new_plans, charts


def _as_json(replays: list[Replay]) -> int:
    """Write every verdict as it comes, and every decision; the worst severity, 0 where nothing was said."""
    from exporter.replay.answers import json_line, plan_line

    worst = 0
    for one in replays:
        for saying in one.sayings():
            for verdict in saying.verdicts:
                worst = max(worst, verdict.severity)
                sys.stdout.write(json_line(verdict, saying.attempt, str(one.path), saying.run) + "\n")
            for decision in saying.decisions:
                sys.stdout.write(plan_line(decision, str(one.path), saying.run) + "\n")
    return worst


def _as_table(replays: list[Replay]) -> int:
    """Show the episodes of all files, and what was decided on them; the worst severity, 0 where nothing was said."""
    from exporter.replay.answers import COLUMNS, PLAN_COLUMNS, plan_row, table_row

    worst = 0
    told, decided = Rows(), Rows()
    for one in replays:
        for saying in one.sayings():
            place = (str(one.path), saying.run, str(saying.attempt))
            worst = max(worst, *(verdict.severity for verdict in saying.verdicts), 0)
            for verdict in saying.news:
                told.add(place, table_row(verdict))
            for decision in saying.decisions:
                decided.add(place, plan_row(decision))
    several = (
        len(replays) > 1,
        any(len(one.runs) > 1 for one in replays),
        any(run.attempts > 1 for one in replays for run in one.runs.values()),
    )
    told.show(several, COLUMNS, none="Nothing would have been said.")
    _show_what_belongs_together(replays, several)
    if replays[0].new_plans is not None:
        print()
        decided.show(several, PLAN_COLUMNS, none="Recovery would have had nothing to decide.")
    return worst


def _show_what_belongs_together(replays: list[Replay], several: tuple[bool, bool, bool]) -> None:
    """The headlines under which people would have been told, where one is of more than one finding."""
    from exporter.agreement import situations
    from exporter.replay.answers import TOGETHER_COLUMNS, together_row

    rows = Rows()
    alone = True
    for one in replays:
        for name, run in one.runs.items():
            for situation in situations(run.incidents()):
                rows.add((str(one.path), name, str(situation.attempt)), together_row(situation))
                alone = alone and len(situation.findings) < 2
    if not alone:
        print()
        rows.show(several, TOGETHER_COLUMNS, none="")


class Rows:
    """Of a table, as far as one can be read."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[str, str, str], tuple[str, ...]]] = []
        self._beyond = 0

    def add(self, place: tuple[str, str, str], cells: tuple[str, ...]) -> None:
        """``place``: file, run and start of the trainer."""
        if len(self._rows) < MOST_ROWS:
            self._rows.append((place, cells))
        else:
            self._beyond += 1

    def show(self, several: tuple[bool, bool, bool], columns: tuple[str, ...], *, none: str) -> None:
        """With a column for each part of the place of which there are several."""
        from exporter.cli.showing import show_rows

        lead = tuple(name for name, shown in zip(PLACE, several, strict=True) if shown)
        rows = [
            (*(part for part, shown in zip(place, several, strict=True) if shown), *cells)
            for place, cells in self._rows
        ]
        show_rows((*lead, *columns), rows, none=none)
        if self._beyond:
            sys.stdout.flush()
            tell(f"{self._beyond} more are not shown: --output json has all.")


def _draw(charts: Charts, target: Path) -> bool:
    """Whether all pictures could be written."""
    from exporter.replay.pictures import PictureImpossible, write

    try:
        for file in write(charts, target):
            tell(f"Drawn: {file}")
    except PictureImpossible as error:
        tell(str(error))
        return False
    if charts.left_out:
        tell(f"{len(charts.left_out)} more runs are not drawn: give them in parts.")
    return True


def _tell_of_keys(keys: Keys) -> None:
    from exporter.replay.rows import listed

    if keys.unknown:
        count = len(keys.unknown)
        tell(
            f"{count} key{' is' if count == 1 else 's are'} not known here and "
            f"{'is' if count == 1 else 'are'} not judged: {listed(keys.unknown, MOST_KEYS_SHOWN)}."
        )
