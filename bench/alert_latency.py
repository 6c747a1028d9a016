"""How long it takes from the push that carries a fault until the exporter has received the alert's webhook.

``python -m bench.alert_latency [--faults N] [--json]`` starts the real exporter, Prometheus and Alertmanager on
loopback with the rules that ship, a scrape and an evaluation every second, and pushes N faults, each of a run of its
own, at times that are spread over the second. Both ends are read from one clock: before the push here, and at arrival
of the webhook in the exporter. The promise is one scrape, one evaluation and one second.

Exit code 1 where a fault took longer, or never arrived; 2 where the programs are not installed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.client import get_json
from demo.processes import StartError
from demo.stack import EVALUATION_SECONDS, SCRAPE_SECONDS, Stack
from exporter.protocol import MSGPACK, PROTOCOL_VERSION, PUSH_PATH, Batch, CheckpointSaved, Run, Sender, Step, encode

BOUND_SECONDS = SCRAPE_SECONDS + EVALUATION_SECONDS + 1.0
GIVE_UP_SECONDS = 30.0
HEALTHY = {"actor/pg_loss": 0.5, "actor/grad_norm": 1.0, "actor/entropy": 2.0}
BROKEN = {"actor/pg_loss": float("nan"), "actor/grad_norm": float("nan"), "actor/entropy": 2.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.alert_latency", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=_positive, default=20, metavar="N", help="faults to push (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="alert-latency-") as folder:
        stack = Stack(Path(folder))
        if stack.fast_path:
            missing = " and ".join(stack.missing_programs)
            print(f"{missing} cannot be found on the PATH: install the packages of these names.", file=sys.stderr)
            return 2
        try:
            stack.start()
            stack.wait_until_watching()
            seconds = [_one_fault(stack, number) for number in range(options.faults)]
        except StartError as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            stack.stop()
    result = _result(seconds)
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["within_bound"] else 1


def _one_fault(stack: Stack, number: int) -> float | None:
    """Seconds from the push to the webhook; None where it did not come."""
    run_id = f"latency-{number}"
    for step in range(1, 4):
        _push(stack, run_id, step, HEALTHY)
    # Not in step with the scrapes: what counts is the worst moment, and a fixed pause would measure one moment only.
    time.sleep(random.Random(number).uniform(0.0, 1.0))
    pushed = time.time()
    _push(stack, run_id, 4, BROKEN)
    while time.time() - pushed < GIVE_UP_SECONDS:
        found = get_json(f"{stack.exporter_url}/api/v1/recoveries", stack.token("operate")) or {}
        for recovery in found.get("recoveries", []):
            if recovery["run_id"] == run_id:
                return float(recovery["times"]["alert_received"]) - pushed
        time.sleep(0.1)
    return None


def _push(stack: Stack, run_id: str, step: int, metrics: dict[str, float]) -> None:
    saved = CheckpointSaved(time=time.time(), step=step, path=f"/none/global_step_{step}", verified=True)
    batch = Batch(
        protocol=PROTOCOL_VERSION,
        run=Run(run_id=run_id),
        sender=Sender(id=run_id),
        seq=step,
        steps=[Step(step=step, metrics=dict(metrics))],
        events=[saved],
    )
    headers = {"Content-Type": MSGPACK, "Authorization": f"Bearer {stack.token('push')}"}
    request = urllib.request.Request(stack.exporter_url + PUSH_PATH, data=encode(batch), headers=headers)
    with urllib.request.urlopen(request, timeout=10):
        pass


def _result(seconds: Sequence[float | None]) -> dict[str, Any]:
    arrived = sorted(value for value in seconds if value is not None)
    lost = len(seconds) - len(arrived)
    worst = arrived[-1] if arrived else None
    return {
        "benchmark": "alert_latency",
        "faults": len(seconds),
        "lost": lost,
        "scrape_seconds": SCRAPE_SECONDS,
        "evaluation_seconds": EVALUATION_SECONDS,
        "bound_seconds": BOUND_SECONDS,
        "median_seconds": round(statistics.median(arrived), 3) if arrived else None,
        "max_seconds": round(worst, 3) if worst is not None else None,
        "within_bound": lost == 0 and worst is not None and worst <= BOUND_SECONDS,
    }


def _sentences(result: dict[str, Any]) -> str:
    if result["median_seconds"] is None:
        return f"None of {result['faults']} faults led to a webhook within {GIVE_UP_SECONDS:.0f} s."
    median, worst = result["median_seconds"], result["max_seconds"]
    return (
        f"{result['faults']} faults, {result['lost']} lost. From push to webhook: median {median:.2f} s, "
        f"at most {worst:.2f} s; promised are {BOUND_SECONDS:.0f} s "
        f"(scrape {SCRAPE_SECONDS} s, evaluation {EVALUATION_SECONDS} s, and 1 s)."
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of faults: at least 1 is expected")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
