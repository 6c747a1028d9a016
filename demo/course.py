"""The course of one demo run: what an operator does in it, and when it is over. Called by :mod:`demo.run`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.observation import Observation
from demo.observer import Observer
from demo.processes import Child
from demo.scenarios import Scenario
from demo.stack import Stack
from demo.summary import finding

POLL_SECONDS = 0.5
HEALTHY_STEPS_SHOWN = 5
"""A run with a fault goes on for as many steps after its recovery, so that one sees it train."""
STEPS_TO_BE_FOUND = 60
"""A fault that is only to be found, or that is to come back, is not found after as many steps."""
CLIMB_SECONDS = 10.0
"""A recovery that failed, and that none has followed after so long, is the last one."""
STOP_SECONDS = 90.0
"""More than the supervisor is given for a clean end of the trainer, with all that may follow it."""


class Course:
    """One run.

    Args:
        supervisor: running.
        moved: makes the supervisor with the trainer of the newer verl, for a scenario that moves the run to it.
        interrupted: whether somebody has asked for the end.
        logs: where the output of everything is, for a sentence.
    """

    def __init__(
        self,
        scenario: Scenario,
        observer: Observer,
        stack: Stack,
        supervisor: Child,
        *,
        moved: Callable[[], Child] | None,
        interrupted: Callable[[], bool],
        logs: Path,
    ) -> None:
        self._scenario, self._observer, self._stack = scenario, observer, stack
        self.supervisor = supervisor
        self._moved, self._interrupted, self._logs = moved, interrupted, logs
        self._deadline = time.monotonic() + scenario.limit_seconds
        self._success: tuple[str, int] | None = None
        """Id of the newest recovery that succeeded, and the step at which that was seen."""
        self._failed: tuple[str, float] | None = None
        self._asked = False

    @property
    def _observation(self) -> Observation:
        return self._observer.observation

    def follow(self) -> bool:
        """Poll until the scenario is over, one way or the other; False after a Ctrl-C."""
        looked = time.monotonic()
        while not self._interrupted():
            passed, looked = time.monotonic() - looked, time.monotonic()
            ended = not self.supervisor.running()
            self._observer.poll()
            if self._is_over(ended):
                return True
            self._operate(passed)
            if time.monotonic() > self._deadline:
                limit = self._scenario.limit_seconds
                self._observation.problem = f"not over after {limit:.0f} s; logs are in {self._logs}"
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _operate(self, passed: float) -> None:
        """What the people around the run do."""
        scenario, observation = self._scenario, self._observation
        recovery = self._observer.recovery()
        if recovery is not None and recovery["stage"] == "awaiting_approval":
            self._deadline += passed
            if not self._asked:
                page = f"{self._stack.exporter_url}/console/recovery?id={recovery['id']}"
                self._observer.say(f"waiting for your approval: {page}")
            self._asked = True
        else:
            self._asked = False
        if scenario.settings and observation.fault is None and observation.last_step:
            # From its first step on.
            observation.fault = {"time": observation.first_steps[1][1], "step": 1, "fault": scenario.name}
            self._observer.say(f"this run was started with {' '.join(scenario.settings)}")
        if self._moved is not None and observation.last_step >= (scenario.moved_at or 0):
            self._move(self._moved)

    def _move(self, moved: Callable[[], Child]) -> None:
        observation = self._observation
        self._moved = None
        supervisor = moved()
        self._observer.say("an operator stops the run, to go on with the newer verl")
        self.supervisor.stop(seconds=STOP_SECONDS, first=signal.SIGINT)
        self._observer.poll()
        observation.fault = {"time": time.time(), "step": observation.last_step + 1, "fault": self._scenario.name}
        self._observer.say(f"from step {observation.last_step + 1} on it trains with {supervisor.argv[0]}")
        self.supervisor = supervisor
        supervisor.start()

    def _is_over(self, ended: bool) -> bool:
        scenario, observation = self._scenario, self._observation
        if ended:
            code = observation.trainer_exit_code = self.supervisor.exit_code()
            if scenario.expects_recovery and not _recovered(scenario, observation.recoveries):
                observation.problem = (
                    f"the supervisor ended with code {code} before the run had recovered; "
                    f"its output: {self.supervisor.log}"
                )
            return True
        broken = self._stack.dead()
        if broken:
            observation.problem = broken
            return True
        recovery = self._observer.recovery()
        if recovery is not None and self._is_last(recovery):
            return True
        return _found_or_not(scenario, observation)

    def _is_last(self, recovery: Mapping[str, Any]) -> bool:
        """Whether the newest recovery has ended, no other will follow, and all has been shown."""
        if recovery["stage"] == "succeeded":
            if self._success is None or self._success[0] != recovery["id"]:
                self._success = (recovery["id"], self._observation.last_step)
            step = max(self._success[1], recovery["planned_at_step"] or 0)
            more = HEALTHY_STEPS_SHOWN if _recovered(self._scenario, [recovery]) else STEPS_TO_BE_FOUND
            return self._observation.last_step >= step + more
        if recovery["stage"] == "failed" and not recovery["climbed_to"]:
            if self._failed is None or self._failed[0] != recovery["id"]:
                self._failed = (recovery["id"], time.monotonic())
            return time.monotonic() - self._failed[1] > CLIMB_SECONDS
        return recovery["stage"] in ("refused", "aborted")


def _recovered(scenario: Scenario, recoveries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest recovery has succeeded on the rung that has to hold."""
    newest = recoveries[-1] if recoveries else None
    return newest is not None and newest["stage"] == "succeeded" and newest["rung"] == scenario.rungs[-1]


def _found_or_not(scenario: Scenario, observation: Observation) -> bool:
    """Whether a run that nothing brings back has shown what it has to show."""
    fault = observation.fault
    if scenario.recovers or fault is None:
        return False
    found = finding(scenario, observation)
    last = fault["step"] + STEPS_TO_BE_FOUND if found is None else found["first_step"] + HEALTHY_STEPS_SHOWN
    return bool(observation.last_step >= last)
