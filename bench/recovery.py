"""How long a recovery takes: from the alert to the first healthy step, the trainer's own start apart.

``python -m bench.recovery [--recoveries N] [--json]`` trains on the stock verl trainer, under the supervisor, with the
real exporter, Prometheus and Alertmanager on loopback. Every attempt gets a fault after a few healthy steps: a weight
becomes NaN, a worker is killed, the rollout server hangs, the learning rate is raised; then from the first again. Each
recovery is from a checkpoint that the attempt before has saved. The policy is the demo's, but for a budget that is
large enough, no cooldown, and the checkpoint rung alone.

What is counted of a recovery is everything from the arrival of the alert's webhook to the first healthy step, less *the
trainer's own start*: from the moment at which the new attempt's process was started to the arrival of the first step
that it logs. In that time verl imports, starts Ray, makes the model, loads the checkpoint and makes one step; it takes
as long when a person starts the same command, which ``first_start_seconds`` shows: the start of attempt 1, which is no
recovery. What is left is ours: plan, command, choosing and verifying the target, stop, start, seeing a healthy step.

Exit code 1 where a target was missed, a recovery failed or is missing; 2 where the programs are not installed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo.client import ExporterApi
from demo.course import STOP_SECONDS
from demo.faults.plan import EACH
from demo.processes import Child, StartError
from demo.run import Interrupts
from demo.scenarios import Scenario
from demo.stack import Stack
from demo.toy import make
from demo.training import supervised

MEDIAN_SECONDS, WORST_SECONDS = 15.0, 60.0
"""Targets."""
HEALTHY_STEPS = {"nan": 8, "crash": 8, "hang": 8, "learning_rate": 20}
"""Of each attempt, before its fault, by what that is: more than the recovery needs to count as one, and one checkpoint
further. A rate shows in what the policy does, which is judged once an attempt has made some steps."""
KINDS = tuple(HEALTHY_STEPS)
SUCCESS_STEPS = 3
GIVE_UP_SECONDS = 600.0
"""Without a recovery ending for so long, the bench has failed."""
POLL_SECONDS = 0.5
RUN_ID = "recovery"

PARTS = ("plan", "command", "choose", "stop", "start", "see")
"""What the seconds of a recovery are made of, in this order:

plan      from the alert's webhook to the plan
command   to the supervisor having taken the command
choose    to the stop: the target is chosen, and its content verified
stop      to the trainer's processes being gone
start     to the new attempt's process having been started
see       from the first step that it logs, to that step being judged healthy
"""


@dataclass(frozen=True)
class Measured:
    """One recovery, in seconds."""

    kind: str
    parts: Mapping[str, float]
    trainer_start: float

    @property
    def seconds(self) -> float:
        """From the alert to the first healthy step, the trainer's own start apart."""
        return sum(self.parts.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__.splitlines()[0])
    parser.add_argument("--recoveries", type=_positive, default=20, metavar="N", help="how many (default: 20)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep logs and data in this empty folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        if options.out is not None:
            options.out.mkdir(parents=True)
            result = _run(options.recoveries, options.out.resolve())
        else:
            with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
                result = _run(options.recoveries, Path(folder))
    except (StartError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["within_targets"] else 1


def _run(wanted: int, folder: Path) -> dict[str, Any]:
    recovery = {
        "ladder": ["checkpoint"],
        "budget_per_day": wanted + 10,
        "cooldown_seconds": 0,
        "success_steps": SUCCESS_STEPS,
        # A fault that comes again in the next attempt is another one here.
        "no_progress_steps": 0,
    }
    stack = Stack(folder, recovery=recovery)
    if stack.fast_path:
        missing = " and ".join(stack.missing_programs)
        raise StartError(f"{missing} cannot be found on the PATH: install the packages of these names.")
    steps = (wanted + 2) * (max(HEALTHY_STEPS.values()) + 10)
    scenario = Scenario("recovery", "a fault in every attempt", fault_step=None, steps=steps)
    more = {
        "VERL_USE_EXTERNAL_MODULES": "demo.faults",
        EACH: ",".join(f"{kind}:{after}" for kind, after in HEALTHY_STEPS.items()),
    }
    supervisor = supervised(scenario, make(folder / "toy"), stack, folder, RUN_ID, 0, more=more)
    watched = Watched()
    # A Ctrl-C ends what was started, in order, and is then a result of its own.
    with Interrupts() as interrupts:
        try:
            stack.start()
            stack.wait_until_watching()
            supervisor.start()
            api = ExporterApi(stack.exporter_url, stack.token("operate"))
            problem = watched.follow(api, supervisor, wanted, lambda: interrupts.happened)
        finally:
            supervisor.stop(seconds=STOP_SECONDS, first=signal.SIGINT)
            stack.stop()
    return result_of(watched.measured(), wanted, watched.first_start, problem)


class Watched:
    """The run, as the exporter shows it."""

    def __init__(self) -> None:
        self.recoveries: list[Mapping[str, Any]] = []
        self.first_steps: dict[int, float] = {}
        """Attempt -> when the first step that it logged arrived."""
        self.starts: dict[int, float] = {}
        """Attempt -> when its process was started."""

    @property
    def first_start(self) -> float | None:
        """Seconds from the start of attempt 1 to the first step that it logged."""
        return self.first_steps[1] - self.starts[1] if {1} <= self.first_steps.keys() & self.starts.keys() else None

    def follow(self, api: ExporterApi, supervisor: Child, wanted: int, interrupted: Callable[[], bool]) -> str:
        """Poll until so many recoveries have ended; returns a sentence where that does not come about."""
        ended, moved = 0, time.monotonic()
        while ended < wanted:
            self._look(api)
            if len(self._ended()) > ended:
                ended, moved = len(self._ended()), time.monotonic()
                _progress(self._ended()[-1], ended, wanted)
            bad = next((one for one in self._ended() if one["stage"] != "succeeded"), None)
            if bad is not None:
                return f"Recovery {bad['id']} did not succeed ({bad['stage']}): {bad['outcome']}"
            if interrupted():
                return "It was interrupted."
            if not supervisor.running():
                return f"The supervisor ended with code {supervisor.exit_code()}:\n{supervisor.last_output()}"
            if time.monotonic() - moved > GIVE_UP_SECONDS:
                return f"No recovery ended within {GIVE_UP_SECONDS:.0f} s after number {ended}."
            time.sleep(POLL_SECONDS)
        return ""

    def _look(self, api: ExporterApi) -> None:
        detail = api.run(RUN_ID)
        if detail is not None:
            self.starts |= {one["number"]: one["started_at"] for one in detail["attempts"] if one["started_at"]}
            for step in detail["steps"]:
                if step["step"] > 0:
                    self.first_steps.setdefault(step["attempt"], step["at"])
        self.recoveries = list(api.recoveries()) or self.recoveries

    def _ended(self) -> list[Mapping[str, Any]]:
        return [one for one in self.recoveries if one["times"]["finished"] is not None]

    def measured(self) -> list[Measured]:
        """Those that succeeded."""
        found = (measure(one, self.first_steps) for one in self._ended())
        return [one for one in found if one is not None]


def measure(recovery: Mapping[str, Any], first_steps: Mapping[int, float]) -> Measured | None:
    """One recovery of ``GET /api/v1/recoveries``; None where it did not come to a healthy step."""
    times = recovery["times"]
    healthy, logged = times["first_healthy_step"], first_steps.get(recovery["new_attempt"] or 0)
    if recovery["stage"] != "succeeded" or healthy is None or logged is None:
        return None
    # A trainer that is dead already is not stopped: the stages without a time of their own took none.
    moments = [times["alert_received"]]
    for name in ("planned", "accepted", "stopping", "stopped", "started"):
        moments.append(max(moments[-1], moments[-1] if times[name] is None else times[name]))
    lengths = [end - begin for begin, end in pairwise(moments)]
    parts = dict(zip(PARTS, [*lengths, max(0.0, healthy - logged)], strict=True))
    kind = KINDS[(recovery["attempt"] - 1) % len(KINDS)]
    return Measured(kind, parts, max(0.0, logged - moments[-1]))


def result_of(
    measured: Sequence[Measured], wanted: int, first_start: float | None, problem: str = ""
) -> dict[str, Any]:
    """The figures, rounded to milliseconds; None where nothing was measured."""
    seconds = [one.seconds for one in measured]
    median = statistics.median(seconds) if seconds else None
    worst = max(seconds, default=None)
    fast = median is not None and worst is not None and median < MEDIAN_SECONDS and worst < WORST_SECONDS
    return {
        "benchmark": "recovery",
        "recoveries": len(measured),
        "wanted": wanted,
        "median_seconds": _rounded(median),
        "worst_seconds": _rounded(worst),
        "median_target_seconds": MEDIAN_SECONDS,
        "worst_target_seconds": WORST_SECONDS,
        "trainer_start_seconds": _rounded(_median([one.trainer_start for one in measured])),
        "first_start_seconds": _rounded(first_start),
        "parts": {
            part: {
                "median_seconds": _rounded(_median([one.parts[part] for one in measured])),
                "worst_seconds": _rounded(max((one.parts[part] for one in measured), default=None)),
            }
            for part in PARTS
        },
        "kinds": {
            kind: {
                "recoveries": len(those),
                "median_seconds": _rounded(_median(those)),
                "worst_seconds": _rounded(max(those, default=None)),
            }
            for kind in KINDS
            for those in [[one.seconds for one in measured if one.kind == kind]]
        },
        "problem": problem,
        "within_targets": fast and not problem and len(measured) >= wanted,
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _progress(recovery: Mapping[str, Any], ended: int, wanted: int) -> None:
    """A line on standard error: the bench takes half an hour."""
    said = (
        f"{ended} of {wanted}: attempt {recovery['attempt']} {recovery['stage']}, from step {recovery['target_step']}"
    )
    print(said, file=sys.stderr, flush=True)


def _sentences(result: Mapping[str, Any]) -> str:
    lines = [f"{result['recoveries']} of {result['wanted']} recoveries were measured. {result['problem']}".rstrip()]
    if result["median_seconds"] is not None:
        lines.append(
            f"From alert to healthy step, the trainer's own start apart: median {result['median_seconds']:.1f} s "
            f"(target {MEDIAN_SECONDS:.0f} s), worst {result['worst_seconds']:.1f} s (target {WORST_SECONDS:.0f} s). "
            f"The trainer's own start takes {result['trainer_start_seconds']:.1f} s; the first one, which no recovery "
            f"made, took {result['first_start_seconds']:.1f} s."
        )
        for name in ("parts", "kinds"):
            told = (
                f"{key} {each['median_seconds']:.1f} s ({each['worst_seconds']:.1f} s)"
                for key, each in result[name].items()
                if each["median_seconds"] is not None
            )
            lines.append(f"By {name[:-1]}, median and worst: {', '.join(told)}.")
    return "\n".join(lines)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of recoveries: at least 1 is expected")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
