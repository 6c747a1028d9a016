"""The list of scenarios: which fault of the suite at which stage of a recovery, and in which states that may end.

Built once, by families; a scenario's name is its family and what is particular to it, such as
``kill exporter at stopping``. Random schedules are in :mod:`tests.chaos.schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tests.chaos import versions
from tests.chaos.moments import OF_ANOTHER_VERSION, STAGES, Moment
from tests.chaos.play import ANY_END, NOT_RECOVERED, RECOVERED, Act, Scenario
from tests.chaos.verdict import End
from tests.chaos.world import ALWAYS, DISKS, LINKS, RECOVERY, Victim, World
from trainer_entry.environments.places import RECORD_NAME

SERVICES: tuple[Victim, ...] = ("supervisor", "exporter", "prometheus", "alertmanager")
MAIN: tuple[Moment, ...] = ("before_alert", "commanded", "stopping", "verifying")
HOURS = 3600.0
STOPPED: frozenset[End] = frozenset({"stopped"})
APPROVE = {"mode": "approve"}
RATE = "actor_rollout_ref.actor.optim.lr"
CLIMBS: Mapping[str, Any] = {"config": {"source": "adjust", "adjust": {RATE: {"multiply": 0.01}}}}
"""A ladder whose second rung has something to do; with a fault ``rate`` the first does not hold."""

ANOTHER_VERSION: Mapping[str, Any] = {
    "ladder": ["checkpoint", "version"],
    "version": {"source": "pinned", "version": versions.GOOD},
    "deadlines": {**RECOVERY["deadlines"], "prepare_seconds": 120.0},
}
"""With a fault ``version`` the first rung does not hold, and on the second an environment is built."""


def catalogue() -> list[Scenario]:
    """Every scenario of the list, in a fixed order; names are unique."""
    families = (
        *(_plain, _kills, _late, _network, _webhooks, _disks, _clocks, _pairs, _failing_again, _two_runs, _frozen),
        *(_second_supervisor, _versions),
    )
    return [scenario for family in families for scenario in family()]


def _plain() -> Iterator[Scenario]:
    for fault in ("nan", "hang", "crash"):
        yield Scenario(f"plain {fault}", f"{fault}, and nothing else goes wrong", (), fault, RECOVERED)
    observed: frozenset[End] = frozenset({"observed"})
    yield Scenario("plain observe", "the mode is observe", (), ends=observed, recovery={"mode": "observe"})
    yield Scenario("plain nobody approves", "the plan waits for a person", (), ends=observed, recovery=APPROVE)
    yield Scenario(
        "plain no checkpoint",
        "nothing was saved before the fault",
        (),
        ends=STOPPED,
        words={"chaos.save_freq": "100000"},
    )
    yield Scenario(
        "plain corrupt checkpoints",
        "every checkpoint is damaged before the fault is found",
        (Act("before_alert", lambda world: world.damage_checkpoints()),),
        ends=STOPPED,
    )


def _kills() -> Iterator[Scenario]:
    for victim in ALWAYS:
        for stage in STAGES:
            what = f"SIGKILL to the {victim} at the stage {stage}"
            yield _at(stage, f"kill {victim} at {stage}", what, partial(_kill, victim), RECOVERED)
    for victim in SERVICES:
        for stage in STAGES:
            what = f"SIGKILL to the {victim} at the stage {stage}, and nothing starts it again"
            name = f"kill {victim} at {stage} for ever"
            yield _at(stage, name, what, partial(_kill, victim, stays_down=True), patience=200.0)


def _late() -> Iterator[Scenario]:
    """What was killed is started again by a person, long after the exporter has given the recovery up."""
    for victim in ("supervisor", "exporter"):
        for stage in STAGES:
            yield _at(
                stage,
                f"late {victim} killed at {stage}",
                f"SIGKILL to the {victim} at the stage {stage}, and a start a minute later",
                partial(_kill, victim, stays_down=True),
                then=(Act(60.0, partial(_revive, victim)),),
            )


def _second_supervisor() -> Iterator[Scenario]:
    for stage in MAIN:
        what = f"somebody starts a second supervisor of the run at the stage {stage}"
        yield _at(stage, f"second supervisor at {stage}", what, _start_a_second, RECOVERED)


def _versions() -> Iterator[Scenario]:
    """The third rung: an environment is built, and the checkpoint loaded there, before anything is stopped."""
    what = "a version of verl ruins every attempt, until another one is built beside it"
    yield _on_another_version("version", what, ())
    for victim in ("supervisor", "exporter", "trainer", "attempt", "script", "tool"):
        for stage in OF_ANOTHER_VERSION[: 2 if victim == "tool" else None]:
            act = Act(stage, partial(_kill, victim))
            yield _on_another_version(
                f"version, {victim} killed at {stage}", f"{what}; SIGKILL to the {victim}", (act,)
            )
    for stage in OF_ANOTHER_VERSION[:2]:
        act = Act(stage, partial(_kill, "supervisor", stays_down=True))
        name = f"version, late supervisor killed at {stage}"
        yield _on_another_version(
            name, f"{what}; a start a minute later", (act, Act(60.0, partial(_revive, "supervisor")))
        )


def _on_another_version(name: str, what: str, acts: tuple[Act, ...]) -> Scenario:
    words = {"chaos.ruin_after": "2"}
    return Scenario(name, what, acts, "version", RECOVERED, recovery=ANOTHER_VERSION, words=words, after=_of_one_piece)


def _network() -> Iterator[Scenario]:
    for link in LINKS:
        for stage in MAIN:
            for condition in ("cut", "silent"):
                for seconds in (6.0, None):
                    lasting = "" if seconds else " for ever"
                    yield _at(
                        stage,
                        f"network {link} {condition} at {stage}{lasting}",
                        f"the wire {link} is {condition}{lasting or ' for 6 s'}",
                        partial(_disturb, link, condition, seconds),
                        RECOVERED if seconds else None,
                        patience=150.0 if seconds else 200.0,
                    )
        yield _at(
            "before_alert",
            f"network {link} slow",
            f"what goes over the wire {link} is late, all the time",
            partial(_disturb, link, "slow", None),
            RECOVERED,
        )


def _webhooks() -> Iterator[Scenario]:
    for stage in (*MAIN, "starting"):
        yield _at(
            stage,
            f"webhook twenty times at {stage}",
            "the alert's webhook comes twenty times more, all at once",
            partial(_replay, times=20),
            RECOVERED,
            after=_once,
        )
    late: tuple[Act, ...] = (Act("over", partial(_replay, times=1)), Act(4.0, partial(_replay, times=5)))
    yield Scenario("webhook after the end", "a webhook from before comes again", late, ends=RECOVERED, after=_once)
    for hours in (5, 30):
        acts = (
            Act("over", partial(_set_clock, hours * HOURS)),
            Act(2.0, partial(_replay, times=3)),
        )
        what = f"a webhook from before the recovery comes {hours} hours later"
        yield Scenario(f"webhook {hours} hours late", what, acts, ends=RECOVERED, own_clock=True, after=_once)
    yield Scenario(
        "webhook after a restart",
        "a webhook from before comes to an exporter that was killed since",
        (Act("over", partial(_kill, "exporter")), Act(5.0, partial(_replay, times=5))),
        ends=RECOVERED,
        after=_once,
    )


def _disks() -> Iterator[Scenario]:
    for disk in DISKS:
        for stage in MAIN:
            for seconds in (8.0, None):
                lasting = "" if seconds else " for ever"
                yield _at(
                    stage,
                    f"disk of {disk} full at {stage}{lasting}",
                    f"the disk of {disk} is full{lasting or ' for 8 s'}",
                    partial(_fill, disk, seconds),
                    RECOVERED if seconds else None,
                    small_disks=frozenset({disk}),
                    after=_brief,
                    patience=150.0 if seconds else 200.0,
                )


def _clocks() -> Iterator[Scenario]:
    for stage in MAIN:
        for hours in (10.0, -10.0, 0.05, -0.05):
            yield _at(
                stage,
                f"clock {hours:+g} h at {stage}",
                f"the exporter's clock is set by {hours:+g} h",
                partial(_set_clock, hours * HOURS),
                RECOVERED,
                own_clock=True,
            )


def _pairs() -> Iterator[Scenario]:
    pairs: tuple[tuple[Victim, ...], ...] = (
        ("supervisor", "exporter"),
        ("supervisor", "trainer"),
        ("exporter", "prometheus"),
        ("exporter", "alertmanager"),
        ("supervisor", "worker"),
        SERVICES,
    )
    for pair in pairs:
        for stage in STAGES:
            together = "all services" if pair == SERVICES else " and ".join(pair)
            name, what = f"two {together} at {stage}", f"SIGKILL to {together} at the stage {stage}"
            yield _at(stage, name, what, partial(_kill_all, pair), RECOVERED)


def _failing_again() -> Iterator[Scenario]:
    """What the new attempts have; the fault of the first one is ``fault``."""
    for first, second in (("nan", "crash"), ("crash", "nan"), ("hang", "crash"), ("nan", "hang"), ("nan", "nan")):
        yield Scenario(
            f"again {first} then {second}",
            f"{first}, and {second} in the attempt that was to recover from it",
            (Act("before_alert", partial(_inject, second, (2,))),),
            fault=first,
            # An attempt that died says nothing of the checkpoint. One that failed by itself disproves the rung, and
            # this ladder has no higher one that would have anything to do.
            ends=RECOVERED if second == "crash" else STOPPED,
        )
    for steps, when in ((2, "at once"), (8, "after it had succeeded")):
        yield _climbing(f"again rate {when}", f"a ruinous rate undoes the first recovery {when}", (), steps)
    yield _climbing(
        "again rate then crash",
        "a ruinous rate, and a crash in the attempt of the second rung",
        (Act("before_alert", partial(_inject, "crash", (3,))),),
        2,
    )
    for kind in ("nan", "crash", "hang"):
        yield Scenario(
            f"again {kind} for ever",
            f"{kind} in every attempt",
            (Act("before_alert", partial(_inject, kind, tuple(range(2, 40)))),),
            fault=kind,
            ends=NOT_RECOVERED,
            patience=200.0,
        )


def _two_runs() -> Iterator[Scenario]:
    yield Scenario("runs two at once", "two runs fail at the same moment", (), ends=RECOVERED, runs=2)
    for victim in ("exporter", "supervisor", "trainer", "prometheus"):
        yield Scenario(
            f"runs two, {victim} killed",
            f"two runs fail at the same moment, and the {victim} is killed while they are recovered",
            (Act("stopping", partial(_kill, victim)),),
            ends=RECOVERED,
            runs=2,
        )


def _frozen() -> Iterator[Scenario]:
    for victim in (*SERVICES, "trainer"):
        for stage in MAIN:
            for seconds in (3.0, 12.0):
                yield _at(
                    stage,
                    f"frozen {victim} at {stage} for {seconds:g} s",
                    f"SIGSTOP to the {victim}, and SIGCONT {seconds:g} s later",
                    partial(_freeze, victim, seconds),
                    RECOVERED,
                )


def _at(
    stage: Moment,
    name: str,
    what: str,
    do: Callable[[World], object],
    ends: frozenset[End] | None = None,
    then: tuple[Act, ...] = (),
    **more: Any,
) -> Scenario:
    """A scenario with one act at that stage, with what it takes to come there, and with what follows."""
    acts: tuple[Act, ...] = (Act(stage, do), *then)
    recovery: Mapping[str, Any] = {}
    if stage == "awaiting_approval":
        acts, recovery = (acts[0], *then, Act(0.0, _approve_if_possible)), APPROVE
    elif stage == "climbing":
        return _climbing(name, what, acts, 2, ends=ends, **more)
    if ends is not None:
        more["ends"] = ends
    return Scenario(name, what, acts, recovery=recovery, **more)


def _climbing(
    name: str, what: str, acts: tuple[Act, ...], steps: int, ends: frozenset[End] | None = RECOVERED, **more: Any
) -> Scenario:
    """A scenario in which the first rung does not hold, and the second does: another learning rate."""
    words = {RATE: "1e-4", "chaos.ruin_after": str(steps)}
    return Scenario(name, what, acts, "rate", ends or ANY_END, recovery=CLIMBS, words=words, **more)


def _approve_if_possible(world: World) -> None:
    """A person who cannot reach the exporter cannot approve; then the run stays as it is."""
    try:
        world.approve()
    except TimeoutError:
        world.say("the plan could not be approved")


def _kill(victim: Victim, world: World, *, stays_down: bool = False) -> None:
    world.kill(victim, stays_down=stays_down)


def _inject(kind: str, attempts: tuple[int, ...], world: World) -> None:
    world.run.inject(kind, *attempts)


def _revive(victim: Victim, world: World) -> None:
    world.revive(victim)


def _start_a_second(world: World) -> None:
    code = world.start_a_second_supervisor()
    assert code == 75, f"a second supervisor of the run was not refused: {code}"


def _kill_all(victims: tuple[Victim, ...], world: World) -> None:
    for victim in victims:
        world.kill(victim)


def _disturb(link: str, condition: Any, seconds: float | None, world: World) -> None:
    world.disturb(link, condition, seconds)


def _fill(disk: str, seconds: float | None, world: World) -> None:
    world.fill(disk, seconds)


def _set_clock(seconds: float, world: World) -> None:
    world.set_clock(seconds)


def _freeze(victim: Victim, seconds: float, world: World) -> None:
    world.freeze(victim, seconds)


def _replay(world: World, *, times: int) -> None:
    world.wait(lambda: world.pager.recorded(world.run.name), 20.0, "an alert on record")
    world.replay(world.pager.recorded(world.run.name)[0], times)


def _brief(world: World) -> str:
    """A full disk is no reason to fill the next one with a line a second."""
    lines = (world.out / "logs" / f"supervisor-{world.run.name}.log").read_text(errors="replace").count("\n")
    return "" if lines < 150 else f"the supervisor wrote {lines} lines"


def _of_one_piece(world: World) -> str:
    """The environment is complete, and what the supervisor itself runs on was not touched."""
    kept, place = versions.running(), world.run.environment
    if kept == versions.GOOD:
        return f"this interpreter has verl {kept} itself, so nothing was shown"
    return "" if (place / RECORD_NAME).is_file() else f"{place} was left half-built"


def _once(world: World) -> str:
    """One fault is answered by one recovery, however often it is told."""
    attempts = {start["attempt"] for start in world.run.witness.lines("starts.jsonl")}
    return "" if attempts == {1, 2} else f"one fault led to attempts {sorted(attempts)}"
