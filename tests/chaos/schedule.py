"""Random schedules: several kills, cuts, freezes and full disks at random times, from a seed that plays them again."""

from __future__ import annotations

import random
from functools import partial

from tests.chaos.play import Act, Scenario
from tests.chaos.world import ALWAYS, LINKS, Victim, World


def schedule(seed: int) -> Scenario:
    """The scenario of a seed: two to six events within about twenty seconds around a fault, each of which passes.

    Whatever is broken is mended within seconds, so the end has to be decided; any of the three is allowed, for a
    trainer that is killed often enough uses up its budget.
    """
    draw = random.Random(seed)
    fault = draw.choice(("nan", "nan", "hang", "crash"))
    acts = []
    for _ in range(draw.randint(2, 6)):
        acts.append(Act(round(draw.uniform(0.0, 5.0), 2), _event(draw)))
    if draw.random() < 0.3:
        kind = draw.choice(("nan", "crash", "hang"))
        acts.insert(0, Act(0.0, partial(_inject, kind)))
    return Scenario(f"random {seed}", f"{fault}, and {len(acts)} events at random times", tuple(acts), fault=fault)


def _event(draw: random.Random) -> partial[None]:
    kind = draw.choice(("kill", "kill", "kill", "cut", "freeze"))
    victim: Victim = draw.choice(ALWAYS)
    if kind == "kill":
        return partial(_kill, victim)
    if kind == "freeze":
        return partial(_freeze, victim, round(draw.uniform(0.5, 8.0), 1))
    condition = draw.choice(("cut", "silent", "slow"))
    return partial(_disturb, draw.choice(LINKS), condition, round(draw.uniform(0.5, 8.0), 1))


def _kill(victim: Victim, world: World) -> None:
    world.kill(victim)


def _freeze(victim: Victim, seconds: float, world: World) -> None:
    world.freeze(victim, seconds)


def _disturb(link: str, condition: str, seconds: float, world: World) -> None:
    world.disturb(link, condition, seconds)  # type: ignore[arg-type]


def _inject(kind: str, world: World) -> None:
    world.run.inject(kind, 2)
