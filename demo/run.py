"""The demo from start to end: make the toy, start the stack, train under the supervisor, watch, conclude, clean up.

Called by ``python -m demo``, which ``make demo`` runs.
"""

from __future__ import annotations

import functools
import json
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.client import ExporterApi
from demo.course import POLL_SECONDS, STOP_SECONDS, Course
from demo.display import Display, Observed
from demo.observation import Observation
from demo.observer import Observer
from demo.policy import stable_repository
from demo.processes import StartError
from demo.scenarios import Scenario
from demo.stack import Stack
from demo.summary import Result, conclude
from demo.toy import make
from demo.training import state_directory, supervised
from demo.versions import side_by_side

MARK = ".verl-sentinel-demo"
"""A file in the output folder, so that only a folder of the demo's own is ever emptied."""


@dataclass(frozen=True)
class Options:
    """What ``python -m demo`` was asked for."""

    scenario: Scenario
    out: Path
    seed: int = 0
    approve: bool = False
    """A person has to approve the recovery, in the console or at the command line."""
    hold: bool = False
    """Everything goes on when the scenario is over, until Ctrl-C: to look around in the console and in Prometheus."""


def run(options: Options, console: Console) -> int:
    """Run one scenario; returns the exit code: 0 if what it promises happened, 130 after Ctrl-C, else 1."""
    out = options.out
    prepare(out)
    scenario = options.scenario
    console.print(f"verl-sentinel demo, scenario [bold]{scenario.name}[/]: {scenario.summary}")
    # Beside the output, not in it: it is the same for every run, and each run empties its output folder.
    try:
        toy = make(out.with_name(f"{out.name}-toy"))
    except OSError as error:
        raise StartError(f"The toy model could not be made: {error}") from error
    versions = side_by_side(out / "versions") if scenario.moved_at is not None else None
    repository = stable_repository(out / "configuration") if scenario.settings else None
    stack = Stack(out, mode="approve" if options.approve else "auto", repository=repository)
    if stack.fast_path:
        console.print(
            f"[yellow]{' and '.join(stack.missing_programs)} not found[/]: the loop runs through the exporter's own "
            "fast path, without Prometheus and Alertmanager. "
            "To have them: apt install prometheus prometheus-alertmanager."
        )
    run_id = f"demo-{scenario.name}"
    observation = Observation(started=time.time())
    more = {} if versions is None else {"VERL_SENTINEL_ENVIRONMENTS": str(versions.directory)}
    start = functools.partial(supervised, scenario, toy, stack, out, run_id, options.seed, more=more)
    supervisor = start()
    seen = Observed(run_id=run_id, total_steps=scenario.steps)
    over = False
    with Interrupts() as interrupts, Display(seen, f"scenario {scenario.name}", console) as display:
        try:
            stack.start()
            display.event(f"exporter on {stack.exporter_url}, its console on {stack.exporter_url}/console/")
            display.event(f"to sign in: the token in {stack.tokens['operate']}")
            if not stack.fast_path:
                display.event(f"Prometheus on {stack.prometheus_url}, Alertmanager on {stack.alertmanager_url}")
            supervisor.start()
            display.event("supervisor started; the trainer needs about half a minute")
            observer = Observer(
                ExporterApi(stack.exporter_url, stack.token("operate")),
                None if stack.fast_path else stack.prometheus_url,
                run_id,
                state_directory(out) / "fault.json",
                seen,
                display,
                observation,
            )
            course = Course(
                scenario,
                observer,
                stack,
                supervisor,
                moved=None if versions is None else functools.partial(start, python=versions.newer_python),
                interrupted=lambda: interrupts.happened,
                logs=out / "logs",
            )
            try:
                over = course.follow()
            finally:
                supervisor = course.supervisor
            if over and options.hold:
                display.event("the scenario is over, and everything goes on: Ctrl-C ends it", "bold")
                _hold(observer, stack, interrupts)
        except StartError as error:
            observation.problem = str(error)
        finally:
            observation.interrupted = interrupts.happened and not over
            if supervisor.running():
                display.event("stopping the trainer")
            # It stops the trainer first; killing it would leave a run for the next supervisor to take over.
            supervisor.stop(seconds=STOP_SECONDS, first=signal.SIGINT)
            stack.stop()
    result = conclude(scenario, observation)
    _report(result, out, console)
    if observation.interrupted:
        return 130
    return 0 if result.ok else 1


class Interrupts:
    """Counts Ctrl-C and SIGTERM instead of dying of them, so that everything that was started is ended in order."""

    def __init__(self) -> None:
        self.happened = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, *_: object) -> None:
        self.happened = True


def _hold(observer: Observer, stack: Stack, interrupts: Interrupts) -> None:
    """Go on showing what happens, until Ctrl-C or until a program ends by itself."""
    while not interrupts.happened and not stack.dead():
        observer.poll()
        time.sleep(POLL_SECONDS)


def prepare(out: Path) -> None:
    """Empty the output folder, if it is one of ours or new. Raises :class:`StartError` with a sentence."""
    try:
        if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
            raise StartError(f"{out} is not empty and was not made by the demo: name another folder with --out.")
        for entry in out.iterdir() if out.exists() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
    except OSError as error:
        raise StartError(f"The output folder {out} cannot be written: {error.strerror or error}.") from error


_STYLES = {"recovered": "green", "proof": "green", "change": "cyan", "did not hold": "yellow", "held for now": "yellow"}
"""By how the name of a moment ends."""


def _report(result: Result, out: Path, console: Console) -> None:
    (out / "summary.json").write_text(json.dumps(result.summary, indent=2) + "\n")
    table = Table(title="Timeline", title_justify="left", show_header=True, header_style="bold")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    table.add_column("", overflow="fold")
    for moment in result.timeline:
        if moment.name.endswith(": plan"):
            table.add_section()  # one for each rung
        style = next((style for word, style in _STYLES.items() if moment.name.endswith(word)), "")
        table.add_row(
            moment.name, "-" if moment.seconds is None else f"{moment.seconds:.1f}", Text(moment.note), style=style
        )
    console.print(table)
    numbers = result.summary
    if numbers["recovery_seconds"] is not None:
        console.print(
            f"alert to first healthy step {numbers['recovery_seconds']:.1f} s, of which the trainer's own start "
            f"{numbers['trainer_start_seconds'] or 0:.1f} s; false pages: {numbers['false_pages']}"
        )
    style = "bold green" if result.ok else "bold red"
    console.print(f"[{style}]{result.outcome}[/]   summary: {out / 'summary.json'}", soft_wrap=True)
