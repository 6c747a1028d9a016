"""The list of all runs, which is the first page of the console. Mounted by :mod:`exporter.console.rooms`."""

from __future__ import annotations

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.console.fleet import ORDERS, Fleet, Wanted, every_run, fill, keys, select
from exporter.console.labels import STATES
from exporter.console.languages import N_
from exporter.console.rendering import in_slices
from exporter.console.sending import AnyRequest, see_other
from exporter.console.visiting import HOME, Console, Visitor
from exporter.service.recoveries import Recoveries

LONGEST_TEXT = 500
ATTENTION_TEXT = N_("Need you")


def chips(fleet: Fleet) -> list[tuple[str, str, int]]:
    """The filters by state: those that some run is in, and the one that is on a person's mind first."""
    every = sum(count for state, count in fleet.counts.items() if state != "attention")
    found = [("", N_("All"), every), ("attention", ATTENTION_TEXT, fleet.counts["attention"])]
    return found + [(state, text, fleet.counts[state]) for state, text in STATES.items() if fleet.counts[state]]


def runs_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handler, bound to one console."""
    recoveries = Recoveries(console.core)

    @get(HOME)
    async def runs(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        if not visitor.path.endswith("/"):
            return see_other(console.link(HOME, **visitor.query))
        now = console.clock()
        wanted = wanted_of(visitor)
        found = await in_slices(every_run(console.core, recoveries, now))
        fleet = select(found, await in_slices(keys(found, wanted)), wanted)
        await in_slices(fill(row, now) for row in fleet.rows)
        return await visitor.page(
            "runs.html",
            title=N_("Runs"),
            section="runs",
            fleet=fleet,
            wanted=wanted,
            state_chips=chips(fleet),
            announced=f"{fleet.counts['attention']} {visitor.gettext(ATTENTION_TEXT)}",
        )

    return [runs]


def wanted_of(visitor: Visitor) -> Wanted:
    """What the address asks for; what it cannot mean counts as not asked."""
    page = visitor.asked("page")
    sort = visitor.asked("sort")
    return Wanted(
        text=visitor.asked("q")[:LONGEST_TEXT].strip(),
        project=visitor.asked("project"),
        state=visitor.asked("state"),
        sort=sort if sort in ORDERS else "urgency",
        down=visitor.asked("dir") == "desc",
        page=int(page) if page.isdecimal() and len(page) < 7 else 1,
    )
