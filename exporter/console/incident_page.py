"""One incident, with the situation that it belongs to: evidence, what it means, what to try, what was done. Mounted by
:mod:`exporter.console.rooms`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from exporter.agreement import Group, Situation, situation
from exporter.app.asked import settle, settled
from exporter.console import runbook_of
from exporter.console.audit_shown import about, folded, person_of, words_of
from exporter.console.languages import N_
from exporter.console.recovery_shown import STAGES, sure
from exporter.console.sending import AnyRequest
from exporter.console.sentences_shown import retold
from exporter.console.series import series_of
from exporter.console.visiting import Console
from exporter.incidents import Incident
from exporter.recovery.record import AuditEntry, Recovery
from exporter.service.admission import Refused
from exporter.service.watch import WatchedRun

PATH: Final = "/console/incident"
ACKNOWLEDGE: Final = "/console/incident/acknowledge"
MOST_DRAWN: Final = 6
"""Signals of a situation that are drawn: those that came first."""
AUDIT_LINES: Final = 1000
"""Of the run, among which those of the situation are looked for."""
CHART_SECONDS: Final = 4.0
"""A page waits no longer for its drawings."""
LIVE_SECONDS: Final = 5
AROUND_SECONDS: Final = 900.0
"""Before and after a situation, in the link to Grafana."""


def incident_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""
    engine = console.core.engine
    series = series_of(console)

    @get(PATH)
    async def incident(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        run, one, group = _find(console, visitor.asked("id"))
        it = situation(group)
        drawings, why_not = await _drawn(run, it.findings)
        recoveries, lines = _done(it, run.state.run_id)
        return await visitor.page(
            "incident.html",
            title=N_("Incident"),
            section="runs",
            every=LIVE_SECONDS if it.state != "resolved" else "",
            incident=one,
            it=it,
            run_id=run.state.run_id,
            then=then_of(it),
            sure=sure,
            to_acknowledge=[found for found in it.findings if found.state == "opened"],
            drawings=drawings,
            why_not=why_not,
            runbook=runbook_of.of_detector(group.lead.detector),
            grafana_run=_grafana(run.state.run_id, it),
            recoveries=recoveries,
            stages=STAGES,
            audit=folded(lines),
            person_of=person_of,
            kind_words=words_of,
            about=about,
            retold=retold,
        )

    @post(ACKNOWLEDGE, status_code=200)
    async def acknowledge(request: AnyRequest) -> Response[bytes]:
        visitor, form = await console.decide(request)
        who = visitor.named(form)
        _, one, group = _find(console, form.get("id", ""))
        wanted = group.open if form.get("all") else [one]
        loop, asked = asyncio.get_running_loop(), []
        for found in wanted:
            if found.state == "opened":
                done: asyncio.Future[Incident | Refused] = loop.create_future()
                console.core.acknowledge(found.id, who, console.clock(), partial(settle, done))
                asked.append(done)
        for done in asked:
            await settled(done)
        return visitor.go_to(PATH, id=one.id)

    async def _drawn(run: WatchedRun, findings: Sequence[Incident]) -> tuple[list[Any], str]:
        """Drawings of the signals that came first, or why there are none."""
        from exporter.console.around import Marked, around, drawn

        marked: dict[str, Marked] = {}
        for found in findings:
            marked.setdefault(
                found.signal, Marked(found.signal, found.attempt, found.onset, found.first_step, found.last_step)
            )
        wanted = list(marked.values())[:MOST_DRAWN]
        try:
            made = await asyncio.wait_for(
                series.ask(run, lambda traces: [drawn(one) for one in around(traces, wanted)]), CHART_SECONDS
            )
        except (Refused, asyncio.TimeoutError):
            return [], N_("The drawings take too long now: load the page again, or look at the run.")
        return made, ""

    def _done(it: Situation, run_id: str) -> tuple[list[Recovery], list[AuditEntry]]:
        """Recoveries that answer the situation, and the lines of the audit log that are about it; the newest first."""
        ids = {found.id for found in it.findings}
        try:
            recoveries = [one for one in engine.history(run_id) if ids & {data.get("id") for data in one.incidents}]
            lines = engine.audit(AUDIT_LINES, run_id=run_id)
        except sqlite3.Error as error:
            message = f"The recovery store cannot be read: {error}."
            raise Refused("store", message, status=503, retry_after=5) from None
        theirs = {one.id for one in recoveries}
        return recoveries, [line for line in lines if line.recovery_id in theirs or ids & _about(line)]

    def _grafana(run_id: str, it: Situation) -> str:
        if not console.grafana:
            return ""
        end = "now" if it.resolved_at is None else _milliseconds(it.resolved_at + AROUND_SECONDS)
        span = f"&from={_milliseconds(it.opened_at - AROUND_SECONDS)}&to={end}"
        return f"{console.grafana}/d/verl-run?var-run={quote(run_id, safe='')}{span}"

    return [incident, acknowledge]


def _find(console: Console, incident_id: str) -> tuple[WatchedRun, Incident, Group]:
    """The run, the incident, and what belongs to it. Raises :class:`Refused` (404)."""
    run = console.core.find(incident_id.rsplit(":", 3)[0])
    one = run.book.find(incident_id) if run is not None else None
    if run is None or one is None:
        message = f"Incident {incident_id} is not known here: the run was forgotten, or the incident is long over."
        raise Refused("not_found", message, status=404)
    group = next((group for group in run.groups() if any(found.id == one.id for found in group.incidents)), None)
    return run, one, group if group is not None else Group(one)


def then_of(it: Situation) -> list[tuple[str, int]]:
    """The signals that joined after the first finding, each with the step since which it shows something."""
    since: dict[str, int] = {}
    for found in it.findings[1:]:
        if found.signal != it.findings[0].signal:
            since.setdefault(found.signal, found.onset)
    return list(since.items())


def _milliseconds(at: float) -> int:
    return round(at * 1000)


def _about(line: AuditEntry) -> set[str]:
    """The incidents that a line of the audit log names."""
    incident, many = line.data.get("incident"), line.data.get("incidents")
    named = [incident] if isinstance(incident, (str, dict)) else []
    named += many if isinstance(many, list) else []
    return {str(one.get("id", "")) if isinstance(one, dict) else str(one) for one in named}
