"""``python -m demo.record``: one scenario under an exporter that only watches, kept as a small file for the tests.

The fault is left to take its course, for as many steps or seconds as its scenario says. The file holds what
:mod:`demo.recording` says; the exporter's whole journal stays in the work folder, and ``--again`` makes the file anew
from it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.client import ExporterApi
from demo.course import STOP_SECONDS
from demo.processes import Child, StartError
from demo.recording import Fault, Head, Recording, shrunk, since, write
from demo.run import Interrupts, prepare
from demo.scenarios import SCENARIOS, Scenario
from demo.stack import Stack
from demo.toy import make
from demo.training import state_directory, supervised
from exporter.protocol import decode_batch
from exporter.service.journal import FILE_NAME, Journal
from exporter.service.stored import JournalUnavailable

POLL_SECONDS = 0.25
LIMIT_SECONDS = 900.0
"""A run that takes longer has failed."""

_END = "recorded-until"
"""File in the work folder that holds when the recording was over, Unix seconds."""


@dataclass
class _Seen:
    """What the exporter and the fault have said so far."""

    step: int = 0
    fault: Mapping[str, Any] | None = None


def record(scenario: Scenario, seed: int, work: Path) -> None:
    """Run the scenario in ``work`` until its fault has taken its course.

    Raises :class:`StartError` with a sentence where it did not, and ``KeyboardInterrupt``.
    """
    prepare(work)
    toy = make(work.with_name(f"{work.name}-toy"))
    stack = Stack(work, observe=True)
    supervisor = supervised(scenario, toy, stack, work, scenario.name, seed)
    with Interrupts() as interrupts:
        try:
            stack.start()
            supervisor.start()
            _follow(scenario, work, ExporterApi(stack.exporter_url, stack.token("operate")), supervisor, interrupts)
            (work / _END).write_text(f"{time.time()!r}\n")
        finally:
            supervisor.stop(seconds=STOP_SECONDS, first=signal.SIGINT)
            stack.stop()


def _follow(scenario: Scenario, work: Path, api: ExporterApi, supervisor: Child, interrupts: Interrupts) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    seen = _Seen()
    while True:
        ended = not supervisor.running()
        if interrupts.happened:
            raise KeyboardInterrupt
        detail = api.run(scenario.name)
        seen.step = max([seen.step, *(step["step"] for step in detail["steps"])]) if detail else seen.step
        seen.fault = seen.fault or _fault(work)
        if _is_over(scenario, seen, time.time()):
            return
        if ended:
            if scenario.fault_step is None and supervisor.exit_code() == 0:
                return
            raise StartError(f"The training ended with code {supervisor.exit_code()}; its output: {supervisor.log}")
        if time.monotonic() > deadline:
            raise StartError(f"Not over after {LIMIT_SECONDS:.0f} s; logs are in {work / 'logs'}")
        time.sleep(POLL_SECONDS)


def _is_over(scenario: Scenario, seen: _Seen, now: float) -> bool:
    if seen.fault is None:
        return False
    steps, seconds = seen.step - seen.fault["step"], now - seen.fault["time"]
    return bool(steps >= scenario.course_steps or seconds >= scenario.course_seconds)


def _fault(work: Path) -> Mapping[str, Any] | None:
    """What the injected fault wrote of itself; None before, and while it is being written."""
    try:
        found: Mapping[str, Any] = json.loads((state_directory(work) / "fault.json").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
    return found


def recorded(scenario: Scenario, seed: int, work: Path) -> Recording:
    """What was recorded in ``work``.

    Raises :class:`StartError` where nothing was, ``JournalUnavailable`` where its journal cannot be read.
    """
    try:
        until = float((work / _END).read_text())
    except (OSError, ValueError):
        raise StartError(f"There is no finished recording in {work}: make one, without --again.") from None
    journal = Journal(work / "exporter" / FILE_NAME)
    try:
        taken = [(entry.at, decode_batch(entry.body)) for entry in journal.read() if entry.kind in ("batch", "beat")]
    finally:
        journal.close()
    batches = [(at, batch) for at, batch in taken if at <= until]
    if not batches:
        raise StartError(f"The exporter of {work} took nothing in; its output: {work / 'logs' / 'exporter.log'}")
    fault = _fault(work)
    origin = batches[0][0]
    return Recording(
        Head(
            scenario=scenario.name,
            seed=seed,
            verl=next((batch.run.verl_version for _, batch in batches if batch.run.verl_version), ""),
            fault=None if fault is None else Fault(step=fault["step"], at=since(fault["time"], origin)),
            steps=max((step.step for _, batch in batches for step in batch.steps), default=0),
            ends_at=since(until, origin),
        ),
        list(shrunk(batches, origin)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.record", description=__doc__.split("\n\n")[0])
    # The others have no fault whose course could be watched: they are about what follows.
    names = [name for name, scenario in SCENARIOS.items() if scenario.fault_step is not None or not scenario.goes_wrong]
    parser.add_argument("--scenario", required=True, metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument("--seed", type=int, default=0, help="seed of data and sampling (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the recording, FILE.jsonl.gz")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("demo/out"),
        metavar="FOLDER",
        help="folder for the run itself (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="train nothing: read what is in the work folder")
    arguments = parser.parse_args()
    scenario, work = SCENARIOS[arguments.scenario], arguments.work.resolve()
    try:
        if not arguments.again:
            record(scenario, arguments.seed, work)
        recording = recorded(scenario, arguments.seed, work)
        write(recording, arguments.out)
    except KeyboardInterrupt:
        return 130
    except (StartError, OSError, JournalUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    head = recording.head
    print(
        f"{arguments.out}: {head.steps} steps, {len(recording.lines)} batches, {arguments.out.stat().st_size} bytes, "
        f"fault {head.fault}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
