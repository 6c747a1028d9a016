"""Random runs with attempts, outages and a wrong clock: the exporter's account agrees with what really happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from exporter.service.goodput import Goodput

START = 1_000_000.0


@dataclass
class Truth:
    """What happened. Events in true time: what, when, and for a step its number and seconds."""

    began: float = START
    now: float = START
    productive: float = 0.0
    replayed: float = 0.0
    done: set[int] = field(default_factory=set)
    events: list[tuple[str, float, int, float]] = field(default_factory=list)

    def train(self, random: Random, usual: float, first: int, *, sft: bool) -> int:
        """One attempt, from its process's beginning to its last step; returns that step."""
        self.events.append(("began", self.now, 0, 0.0))
        self.now += random.uniform(30, 300)
        number = first
        for number in range(first, first + random.randint(15, 60)):
            seconds = usual * random.uniform(0.7, 1.5)
            self.now += seconds
            if not (sft and number == first):  # it has no timer: its first step counts to the start
                self.replayed += seconds if number in self.done else 0.0
                self.productive += seconds if number not in self.done else 0.0
            self.done.add(number)
            self.events.append(("step", self.now, number, seconds))
        return number


def happen(random: Random, *, sft: bool) -> Truth:
    truth, usual, step = Truth(), random.choice([2.0, 20.0, 200.0]), 0
    for _ in range(random.randint(1, 4)):
        step = truth.train(random, usual, step + 1, sft=sft)
        truth.now += random.uniform(0, usual)  # the step that is cut short
        if random.random() < 0.5:
            truth.events.append(("ended", truth.now, 0, 0.0))
        truth.now += random.uniform(5, 3000)
        step = max(0, step - random.randint(0, 10))
    return truth


def arrivals(truth: Truth, random: Random) -> list[float]:
    """When the exporter hears of each event: at once, or together when an outage is over."""
    begins = [random.uniform(START + 1000, truth.now) for _ in range(random.randint(0, 3))]
    outages = sorted((begin, begin + random.uniform(100, 5000)) for begin in begins)
    found, latest = [], START
    for _, at, _, _ in truth.events:
        arrival = at + random.uniform(0, 0.5)
        for begin, end in outages:
            arrival = end if begin <= arrival < end else arrival
        latest = max(latest, arrival)
        found.append(latest)
    return found


@pytest.mark.parametrize("sft", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_the_account_agrees_with_what_happened(seed: int, sft: bool) -> None:
    random = Random(seed)
    truth, skew = happen(random, sft=sft), random.uniform(-20_000, 20_000)
    account, heard = Goodput(), arrivals(truth, random)
    for at, (kind, when, number, seconds) in zip(heard, truth.events, strict=True):
        if kind == "began":
            account.began(at)
        elif kind == "ended":
            account.ended(at, said=when + skew)
        else:
            account.step(number, at, said=when + skew, seconds=None if sft else seconds)
    assert account.productive == pytest.approx(truth.productive, rel=0.01, abs=5)
    assert account.replayed == pytest.approx(truth.replayed, rel=0.01, abs=60)
    last_step = max(when for kind, when, _, _ in truth.events if kind == "step")
    assert last_step - truth.began - 5 <= account.wall() <= max(heard) - truth.began + 5
