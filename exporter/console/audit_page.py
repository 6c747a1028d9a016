"""The audit log: what was decided, by whom, and on what; filtered, a page at a time. Mounted by
:mod:`exporter.console.rooms`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.console.audit_shown import Folded, about, person_of, words_of
from exporter.console.languages import N_
from exporter.console.sending import AnyRequest
from exporter.console.sentences_shown import retold
from exporter.console.visiting import Console, Visitor
from exporter.service.admission import Refused

PATH: Final = "/console/audit"
PAGE_LINES: Final = 100
MOST_DIGITS: Final = 15
"""Of the number of a line."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for."""

    run: str
    kind: str
    recovery: str
    before: int | None

    @property
    def any(self) -> bool:
        """Whether not everything is asked for."""
        return bool(self.run or self.kind or self.recovery or self.before)


def audit_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handler, bound to one console."""
    engine = console.core.engine

    @get(PATH)
    async def audit(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        wanted = wanted_of(visitor)
        try:
            # One more than is shown says whether there is a next page.
            found = engine.audit(
                PAGE_LINES + 1, run_id=wanted.run, recovery_id=wanted.recovery, kind=wanted.kind, before=wanted.before
            )
            counts = engine.audit_counts()
        except sqlite3.Error as error:
            message = f"The recovery store cannot be read: {error}."
            raise Refused("store", message, status=503, retry_after=5) from None
        lines = found[:PAGE_LINES]
        return await visitor.page(
            "audit.html",
            title=N_("Audit log"),
            section="audit",
            wanted=wanted,
            lines=[Folded(line, 1) for line in lines],
            older=lines[-1].id if len(found) > PAGE_LINES else None,
            kinds=sorted(counts.items()),
            person_of=person_of,
            kind_words=words_of,
            about=about,
            retold=retold,
        )

    return [audit]


def wanted_of(visitor: Visitor) -> Wanted:
    """What cannot be meant counts as not asked."""
    before = visitor.asked("before")
    return Wanted(
        run=visitor.asked("run"),
        kind=visitor.asked("kind"),
        recovery=visitor.asked("recovery"),
        before=int(before) if before.isdecimal() and len(before) <= MOST_DIGITS else None,
    )
