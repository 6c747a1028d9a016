"""Recoveries: the list, one of them with its plan and its progress, and the decisions of a person. Mounted by
:mod:`exporter.console.rooms`.

A decision takes two steps: a page that says what will happen, and the form on it. The form brings along what the person
saw: the stage, the checkpoint that was the target, and the plan. Where one of them is another by then, nothing is done,
and the page says so and shows what there is now. Only an abort holds in whatever stage the recovery has come to
meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from exporter.app.routes import no_recovery, store_failed
from exporter.console import recovery_shown as shown
from exporter.console import runbook_of
from exporter.console.audit_shown import about, folded, person_of, words_of
from exporter.console.languages import N_
from exporter.console.sending import AnyRequest
from exporter.console.sentences_shown import retold
from exporter.console.visiting import Console, Visitor
from exporter.recovery.engine import WrongStage
from exporter.recovery.history import budget_left
from exporter.recovery.record import Recovery
from exporter.recovery.timing import stage_seconds
from exporter.service.admission import Refused

_T = TypeVar("_T")

PATH: Final = "/console/recovery"
DECIDE: Final = "/console/recovery/decide"
LIST: Final = "/console/recoveries"
LISTED: Final = 100
AUDIT_LINES: Final = 100
OTHERS: Final = 10
"""Recoveries of the same run that the page of one names."""
LIVE_SECONDS: Final = 2

STALE: Final = {
    "stage": N_("It has moved on since you looked, and nothing was done. This is how it stands now."),
    "target": N_("The target has moved since you looked, and nothing was done. Look at the new plan and decide again."),
    "plan": N_("The plan has changed since you looked, and nothing was done. Look at the new plan and decide again."),
}


def recovery_pages(console: Console) -> list[HTTPRouteHandler]:
    """The handlers, bound to one console."""
    engine = console.core.engine

    @get(LIST)
    async def recoveries(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        run_id = visitor.asked("run")
        found = read(lambda: engine.history(run_id) if run_id else engine.recoveries(LISTED))
        return await visitor.page(
            "recoveries.html",
            title=N_("Recoveries"),
            section="recoveries",
            recoveries=found[:LISTED],
            run_id=run_id,
            cut=len(found) >= LISTED,
            retold=retold,
            stages=shown.STAGES,
            rungs=shown.RUNGS,
        )

    @get(PATH)
    async def recovery(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        return await one(visitor, wanted(visitor))

    @get(DECIDE)
    async def asked(request: AnyRequest) -> Response[bytes]:
        visitor = console.enter(request)
        found, decision = wanted(visitor), decision_of(visitor.asked("do"))
        if decision not in shown.may(found):
            return visitor.go_to(PATH, id=found.id, stale="stage")
        return await visitor.page(
            "recovery_decide.html",
            title=shown.DECISIONS[decision],
            section="recoveries",
            decision=decision,
            **facts(found),
        )

    @post(DECIDE, status_code=200)
    async def decide(request: AnyRequest) -> Response[bytes]:
        visitor, form = await console.decide(request)
        decision, who = decision_of(form.get("do", "")), visitor.named(form)
        found = read(lambda: engine.get(form.get("id", "")))
        if found is None:
            raise no_recovery(form.get("id", ""))
        # From here to the engine nothing is awaited: what is compared is what is decided on.
        if not shown.decided_already(found, decision, who):
            saw = (form.get(name, "") for name in ("stage", "target", "plan"))
            stale = shown.moved(found, decision, *saw)
            if stale:
                return visitor.go_to(PATH, id=found.id, stale=stale)
            carry_out(decision, found, who)
        return visitor.go_to(PATH, id=found.id)

    def carry_out(decision: str, found: Recovery, who: str) -> None:
        acts = {
            "approve": engine.approve,
            "refuse": engine.refuse,
            "abort": engine.abort,
            "acknowledge": engine.acknowledge,
        }
        try:
            acts[decision](found.id, who, console.clock())
        except WrongStage as error:
            raise Refused("wrong_stage", str(error), status=409) from None
        except sqlite3.Error as error:
            raise store_failed(error) from None

    def wanted(visitor: Visitor) -> Recovery:
        """The recovery that the address names, or the newest of a run."""
        recovery_id, run_id = visitor.asked("id"), visitor.asked("run")
        if not recovery_id and run_id:
            of_run = read(lambda: engine.history(run_id))
            if not of_run:
                raise Refused("not_found", f"Run {run_id} has had no recovery.", status=404)
            return of_run[0]
        found = read(lambda: engine.get(recovery_id))
        if found is None:
            raise no_recovery(recovery_id)
        return found

    def facts(found: Recovery) -> dict[str, Any]:
        """What the page and the question before a decision have in common."""
        now = console.clock()
        spent = read(lambda: engine.spent_times(found.run_id))
        return {
            "recovery": found,
            "known": found.run_id in console.core.runs or found.run_id in console.core.roster.dormant,
            "grafana_run": grafana_of(found.run_id),
            "policy": engine.policy_of(found),
            "budget_left": budget_left(spent, engine.policy_of(found), now),
            "trained_again": shown.trained_again(found, step_of(found)),
            "left_behind": shown.left_behind(found),
            "differences": shown.DIFFERENCES,
            "rungs": shown.RUNGS,
            "only_resumes": shown.only_resumes(found),
            "stages": shown.STAGES,
            "decisions": shown.DECISIONS,
            "plan": shown.plan_of(found),
        }

    def step_of(found: Recovery) -> int | None:
        """Newest step of the attempt that a recovery is about, while that is the newest attempt."""
        run = console.core.runs.get(found.run_id)
        return run.state.current if run is not None and run.state.attempt == found.attempt else None

    def grafana_of(run_id: str) -> str:
        found = f"{console.grafana}/d/verl-incidents?var-run={quote(run_id, safe='')}"
        return found if console.grafana else ""

    async def one(visitor: Visitor, found: Recovery) -> Response[bytes]:
        lines = read(lambda: engine.audit(AUDIT_LINES, recovery_id=found.id))
        others = [it for it in read(lambda: engine.history(found.run_id)) if it.id != found.id]
        return await visitor.page(
            "recovery.html",
            title=N_("Recovery"),
            section="recoveries",
            notice=STALE.get(visitor.asked("stale"), ""),
            every=LIVE_SECONDS if found.active or not settled(found) else "",
            may=shown.may(found),
            steps=shown.STEPS,
            modes=shown.MODES,
            timeline=shown.timeline(found, console.clock()),
            total=stage_seconds(found, console.clock()).get("total"),
            choices=shown.choices(found),
            sure=shown.sure,
            others=others[:OTHERS],
            postmortem=console.exporter.postmortems.has(found.id),
            runbook=runbook_of.of_recovery(found.stage),
            audit=folded(lines),
            person_of=person_of,
            kind_words=words_of,
            about=about,
            retold=retold,
            **facts(found),
        )

    def read(query: Callable[[], _T]) -> _T:
        try:
            return query()
        except sqlite3.Error as error:
            message = f"The recovery store cannot be read: {error}."
            raise Refused("store", message, status=503, retry_after=5) from None

    return [recoveries, recovery, asked, decide]


def settled(recovery: Recovery) -> bool:
    """Nothing more will be reported of it."""
    return recovery.abort_answered if recovery.stage == "aborted" else not recovery.may_still_act


def decision_of(text: str) -> str:
    """Raises :class:`Refused` for what is none."""
    if text not in shown.DECISIONS:
        raise Refused("not_found", f"{text!r} is no decision on a recovery.", status=404)
    return text
