"""When a demo run is over, and what is done in it: judged on observations that are laid out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo import course as module
from demo.course import Course
from demo.observation import Observation
from demo.scenarios import RATE, SCENARIOS, WARM_UP

Script = list[Callable[[Observation], None]]


class Child:
    """A supervisor that runs until it is stopped, or for as long as it is told."""

    argv = ("/newer/bin/python",)
    log = Path("trainer.log")

    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.was_started = self.was_stopped = False

    def running(self) -> bool:
        return self.code is None

    def exit_code(self) -> int | None:
        return self.code

    def start(self) -> None:
        self.was_started = True

    def stop(self, **_: object) -> None:
        self.was_stopped = True


class Observer:
    """Each poll plays the next part of the script; after the last one it stays as it is."""

    def __init__(self, script: Script) -> None:
        self.observation = Observation(started=0.0)
        self.observation.first_steps = {1: (1, 10.0)}
        self._script = script
        self.polls = 0
        self.said: list[str] = []

    def poll(self) -> None:
        if self.polls < len(self._script):
            self._script[self.polls](self.observation)
        self.polls += 1

    def recovery(self) -> Any:
        return self.observation.recoveries[-1] if self.observation.recoveries else None

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


class Stack:
    exporter_url = "http://127.0.0.1:1"

    def dead(self) -> str:
        return ""


def at(step: int, *recoveries: dict[str, Any]) -> Callable[[Observation], None]:
    def play(observation: Observation) -> None:
        observation.last_step = step
        observation.recoveries = list(recoveries) or observation.recoveries

    return play


def recovery(rung: str = "checkpoint", stage: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"id": rung, "rung": rung, "stage": stage, "planned_at_step": 30, "climbed_to": "", **more}


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Observer, Course, bool]]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)

    def run(name: str, script: Script, **more: Any) -> tuple[Observer, Course, bool]:
        observer = Observer(script)
        given: dict[str, Any] = {"moved": None, "interrupted": lambda: False, "logs": Path("logs"), **more}
        supervisor: Any = given.pop("supervisor", Child())
        made = Course(SCENARIOS[name], observer, Stack(), supervisor, **given)  # type: ignore[arg-type]
        return observer, made, made.follow()

    return run


def test_a_recovered_run_is_shown_for_some_steps_and_past_the_step_at_which_it_broke(follow: Any) -> None:
    observer, _, over = follow("nan", [at(29), at(31, recovery()), at(35, recovery()), at(36, recovery())])
    assert over
    assert observer.polls == 4  # 31 + 5


def test_a_rung_that_is_not_the_promised_one_is_watched_until_the_failure_is_back(follow: Any) -> None:
    climbed = [recovery(), recovery("config", planned_at_step=40)]
    script = [at(31, recovery()), at(38, recovery()), at(22, *climbed), at(40, *climbed), at(45, *climbed)]
    observer, _, over = follow("bad_config", script)
    assert over
    assert observer.polls == 5
    assert observer.said == [f"this run was started with {RATE}=0.01 {WARM_UP}=40"]
    assert observer.observation.fault == {"time": 10.0, "step": 1, "fault": "bad_config"}


def test_a_failure_that_never_comes_back_does_not_hold_the_demo_up(follow: Any) -> None:
    observer, _, over = follow("bad_config", [at(31, recovery()), at(90, recovery()), at(91, recovery())])
    assert over
    assert observer.polls == 3


def test_a_failed_recovery_is_the_end_once_none_has_followed_it(follow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIMB_SECONDS", 0.0)
    failed = recovery(stage="failed")
    follows = [recovery(stage="failed", climbed_to="config"), recovery("config", stage="starting")]
    done = [follows[0], recovery("config")]
    observer, _, _ = follow("bad_config", [at(20, *follows), at(20, *follows), at(25, *done), at(35, *done)])
    assert observer.polls == 4
    _, _, over = follow("bad_config", [at(20, failed)])
    assert over


@pytest.mark.parametrize("stage", ["refused", "aborted"])
def test_a_recovery_that_is_called_off_is_the_end(follow: Any, stage: str) -> None:
    observer, _, over = follow("nan", [at(20, recovery(stage=stage))])
    assert over
    assert observer.polls == 1


def test_the_run_is_moved_to_the_newer_version_once_after_its_step(follow: Any) -> None:
    first, second, made = Child(), Child(), []

    def moved() -> Child:
        made.append(second)
        return second

    done = [recovery(), recovery("version")]
    observer, followed, _ = follow(
        "bad_version",
        [at(19), at(20), at(21), at(22), at(30, *done), at(45, *done)],
        supervisor=first,
        moved=moved,
    )
    assert made == [second]
    assert (first.was_stopped, second.was_started, followed.supervisor) == (True, True, second)
    assert observer.observation.fault["step"] == 22  # the clean end had made one step more
    assert observer.said[-1] == "from step 22 on it trains with /newer/bin/python"


def test_a_supervisor_that_ends_before_the_run_has_recovered_is_a_problem(follow: Any) -> None:
    observer, _, over = follow("nan", [at(20)], supervisor=Child(code=70))
    assert over
    assert "the supervisor ended with code 70 before the run had recovered" in observer.observation.problem
    observer, _, _ = follow("healthy", [at(100)], supervisor=Child(code=0))
    assert (observer.observation.problem, observer.observation.trainer_exit_code) == ("", 0)


def test_approval_is_asked_for_once_for_each_recovery(follow: Any) -> None:
    waits = [recovery(stage="awaiting_approval")]
    again = [recovery(), recovery("config", stage="awaiting_approval")]
    script = [at(20, *waits), at(20, *waits), at(28, recovery()), at(28, *again), at(28, *again)]
    observer, _, _ = follow("bad_config", [*script, at(28, recovery(), recovery("config", stage="aborted"))])
    asked = [said for said in observer.said if "approval" in said]
    assert asked == [
        "waiting for your approval: http://127.0.0.1:1/console/recovery?id=checkpoint",
        "waiting for your approval: http://127.0.0.1:1/console/recovery?id=config",
    ]


def test_an_interrupt_ends_it(follow: Any) -> None:
    _, _, over = follow("nan", [], interrupted=lambda: True)
    assert not over
