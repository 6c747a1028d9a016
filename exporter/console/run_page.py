"""One run: what state it is in and why, its signals, phases, checkpoints, GPUs. Mounted by
:mod:`exporter.console.rooms`."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from exporter.agreement import situation
from exporter.app.run_routes import Exports, form_of, joined, no_run
from exporter.console.fleet import Found, Row, effective, fill
from exporter.console.sending import HEADERS, AnyRequest
from exporter.console.visiting import Console
from exporter.detectors.base import Expectation, Expecting, Severity
from exporter.protocol import GpuReading
from exporter.recovery.facts import Checkpoint
from exporter.service.export import MEDIA_TYPES, Export
from exporter.service.history import Archive
from exporter.service.pace import seconds_a_step
from exporter.service.recoveries import Recoveries
from exporter.service.run_state import run_state
from exporter.service.watch import WatchedRun
from exporter.signals import SIGNALS

MOST_CHECKPOINTS: Final = 200
MOST_ATTEMPTS: Final = 50
MOST_RESOLVED: Final = 10
MOST_GPUS: Final = 1024
FIRST_ADVICE: Final = 3
"""Pieces of advice that are shown without opening the incident."""


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One signal in the table."""

    name: str
    unit: str
    value: float
    expected: Expectation | None

    @property
    def is_unusual(self) -> bool:
        band = self.expected
        return band is not None and not band.lower <= self.value <= band.upper


def run_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""
    recoveries = Recoveries(console.core)
    archive = Archive(Path(console.exporter.config.data_dir))
    exports = Exports()

    @get("/console/run")
    async def run(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        found = _find(console, visitor.asked("id"))
        values = about(found, recoveries, console.clock())
        run_id = found.state.run_id
        return await visitor.page(
            "run.html",
            title=run_id,
            section="runs",
            # One that is on disk only would be read anew each time.
            watched=console.core.shown(found, console.clock()),
            grafana_run=f"{console.grafana}/d/verl-run?var-run={urllib.parse.quote(run_id, safe='')}",
            **values,
        )

    @get("/console/steps")
    async def steps(request: AnyRequest) -> Stream:
        """The same file as of the API, for somebody who is signed in."""
        visitor = console.enter(request)
        run_id = _find(console, visitor.asked("id")).state.run_id
        form = form_of(visitor.asked("format") or "jsonl")
        export = Export(lambda: archive.steps(run_id), all_attempts=visitor.asked("all") == "1")
        first, rest = await exports.begin(lambda: export.chunks(form))
        headers = {
            **HEADERS,
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="steps.{form}"',
        }
        return Stream(joined(first, rest), media_type=MEDIA_TYPES[form], headers=headers)

    return [run, steps]


def _find(console: Console, run_id: str) -> WatchedRun:
    found = console.core.find(run_id)
    if found is None:
        raise no_run(run_id)
    return found


def about(run: WatchedRun, recoveries: Recoveries, now: float) -> dict[str, Any]:
    """Everything that the page shows, as of now."""
    state = run.state
    recoveries.refresh()
    recovery = recoveries.of(state.run_id)
    groups = run.groups()
    open_ones = sorted(
        (situation(group) for group in groups if group.open), key=lambda it: (-it.severity, it.opened_at)
    )
    critical = sum(it.severity is Severity.CRITICAL for it in open_ones)
    found = Found(
        run_id=state.run_id,
        project=state.identity.project,
        experiment=state.identity.experiment,
        state=run_state(run, recovery.state if recovery is not None else None, now),
        critical=critical,
        warning=len(open_ones) - critical,
        heard=state.last_push,
        run=run,
    )
    in_place, missing = state.hooks()
    spent = state.goodput.spent()
    return {
        "run": state,
        "row": fill(Row(found), now),
        "situations": open_ones,
        "resolved": [situation(group) for group in [g for g in reversed(groups) if not g.open][:MOST_RESOLVED]],
        "first_advice": FIRST_ADVICE,
        "recovery": recovery.state if recovery is not None else None,
        "step_seconds": seconds_a_step(state.recent, state.attempt),
        "open_phases": state.open_phases(now),
        "phase_totals": {
            name: total for name, total in state.phase_times.totals.items() if total.count and total.seconds
        },
        "signals": signal_rows(run),
        "checkpoints": newest_checkpoints(state.checkpoints),
        "checkpoints_kept": len(state.checkpoints),
        "tiers": state.care.tiers,
        "checks": list(state.care.verifications()),
        "primary": state.last_verified(),
        "in_force": state.in_force,
        "histograms": list(reversed(state.gradients.newest)),
        "attempts": list(islice(reversed(state.attempts), MOST_ATTEMPTS)),
        "rollouts": state.rollouts(),
        "gpus": gpus(state.gpus),
        "hooks_in_place": in_place,
        "hooks_missing": missing,
        "config": dict(state.config),
        "spent": spent,
        "goodput": effective(spent),
        "silent_seconds": now - (state.last_push or state.first_seen),
    }


def signal_rows(run: WatchedRun) -> list[SignalRow]:
    """Every signal of this attempt, in the order of the table of signals, with what its detectors expect."""
    expected: dict[str, Expectation] = {}
    for detector in run.detectors.step:
        if isinstance(detector, Expecting):
            try:
                expected = {**detector.expected(), **expected}
            except Exception:  # noqa: BLE001 - a detector that fails is counted where it judges
                continue
    values = run.state.signals
    rows = [SignalRow(name, SIGNALS[name].unit, values[name], expected.get(name)) for name in SIGNALS if name in values]
    return [row for row in rows if row.unit != "seconds" or row.name == "step_time"] + [
        row for row in rows if row.unit == "seconds" and row.name != "step_time"
    ]


def newest_checkpoints(known: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The newest first; of two reports of one step in one attempt the later."""
    found: dict[tuple[int, int], Checkpoint] = {}
    for one in reversed(known):
        found.setdefault((one.attempt, one.step), one)
        if len(found) >= MOST_CHECKPOINTS:
            break
    return list(found.values())


def gpus(known: Mapping[tuple[str, int], tuple[GpuReading, float]]) -> list[tuple[GpuReading, float]]:
    """Reading and time of arrival, by node and index."""
    return [known[place] for place in sorted(known)[:MOST_GPUS]]
