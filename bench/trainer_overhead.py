"""What watching costs the training thread: ``log()`` of 100 metrics, in microseconds, beside rl-insight's.

``python -m bench.trainer_overhead [--steps N] [--json]`` logs N steps (default 300, one every 10 ms) through the hook
that wraps verl's ``Tracking.log``, with the real exporter healthy, hung (the process is stopped with SIGSTOP) and
absent, and then the same 100 metrics through rl-insight's ``metric_gauge``, one call a metric, as verl's own logger
for it does. Each subject runs in a fresh process. The time is that of the call on the thread that trains; what other
threads do afterwards is in it only as far as it holds the interpreter lock.

The last row, copying the dict of metrics and nothing else, shows how quiet the machine is: on a busy one the 99th
percentile is the operating system's.

Exit code 1 where a target is missed: under 50 µs median, under 500 µs p99, and at least 100 times less than rl-insight.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

METRICS = 100
PAUSE_SECONDS = 0.01
WARM_UP = 20
MEDIAN_TARGET = 50.0
P99_TARGET = 500.0
RATIO_TARGET = 100.0
OURS = ("healthy", "hung", "absent")

Sample = dict[str, Any]
"""``times`` in microseconds, and how many batches the exporter accepted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.trainer_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps to log for each subject")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--subject", choices=["push", "rl_insight", "copy"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; expected a whole number from 1")
    if options.subject:
        measure = {"push": _measure_push, "rl_insight": _measure_rl_insight, "copy": _measure_copy}[options.subject]
        print(json.dumps(measure(options.url, options.steps)))
        return 0
    result = run(options.steps)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0 if all(result["targets_met"].values()) else 1


def run(steps: int) -> dict[str, Any]:
    """Measure all four subjects, one after the other; times in microseconds."""
    samples: dict[str, Sample] = {}
    with _exporter() as (url, process):
        samples["healthy"] = _child("push", url, steps)
        process.send_signal(signal.SIGSTOP)
        samples["hung"] = _child("push", url, steps)
    samples["absent"] = _child("push", f"http://127.0.0.1:{_free_port()}", steps)
    with _rl_insight_server() as url:
        samples["rl_insight"] = _child("rl_insight", url, steps)
    samples["dict_copy"] = _child("copy", "", steps)
    figures = {name: _figures(sample["times"]) for name, sample in samples.items()}
    theirs = figures["rl_insight"]["median_us"]
    ratios = {name: round(theirs / figures[name]["median_us"], 1) for name in OURS}
    return {
        "metrics": METRICS,
        "steps": steps,
        **figures,
        "batches_accepted": {name: samples[name]["batches_accepted"] for name in OURS},
        "times_less_than_rl_insight": ratios,
        "targets_met": {
            "healthy took what was sent": samples["healthy"]["batches_accepted"] > 0,
            f"median under {MEDIAN_TARGET:.0f} us": all(figures[n]["median_us"] < MEDIAN_TARGET for n in OURS),
            f"p99 under {P99_TARGET:.0f} us": all(figures[n]["p99_us"] < P99_TARGET for n in OURS),
            f"{RATIO_TARGET:.0f} times less than rl-insight": all(ratio >= RATIO_TARGET for ratio in ratios.values()),
        },
    }


def metrics(step: int) -> dict[str, Any]:
    """100 metrics under names as verl gives them; half of the values are numpy scalars, as verl's are."""
    import numpy

    sections = ("actor", "critic/score", "critic/rewards", "response_length", "timing_s", "perf", "rollout_corr")
    names = [f"{sections[number % len(sections)]}/metric_{number}" for number in range(METRICS)]
    return {name: step / 7.0 if number % 2 else numpy.float64(number) for number, name in enumerate(names)}


def _time(log: Callable[[dict[str, Any], int], None], steps: int) -> list[float]:
    times = []
    for step in range(1, steps + WARM_UP + 1):
        data = metrics(step)
        began = time.perf_counter_ns()
        log(data, step)
        times.append((time.perf_counter_ns() - began) / 1000.0)
        time.sleep(PAUSE_SECONDS)
    return times[WARM_UP:]


def _measure_push(url: str, steps: int) -> Sample:
    """In a child: the real hook around the log() of a tracking that itself does nothing."""
    from trainer_entry.plugin.hooks.step_metrics import StepMetrics
    from trainer_entry.plugin.runtime import Runtime
    from trainer_entry.settings import Settings

    class Tracking:
        def __init__(
            self, project_name: str, experiment_name: str, default_backend: Any = "", config: Any = None
        ) -> None:
            pass

        def log(self, data: Any, step: int, backend: Any = None) -> None:
            pass

    module = ModuleType("tracking")
    module.Tracking = Tracking  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="verl-sentinel-bench-") as folder:
        settings = Settings(url=url, run_id="overhead", state_dir=Path(folder))
        runtime = Runtime(settings, "0.9.1", report=lambda sentence: None)
        hook = StepMetrics(runtime)
        for target in hook.targets:
            hook.install(module, target)
        tracking = Tracking("bench", "overhead", config={"trainer": {"nnodes": 1}})
        times = _time(lambda data, step: tracking.log(data=data, step=step), steps)
        assert runtime.client is not None
        runtime.client.close(timeout=2.0)
        status = runtime.client.status()
    return {"times": times, "batches_accepted": status.sent}


def _measure_copy(url: str, steps: int) -> Sample:
    """In a child: copying the dict, and nothing else, to see how quiet the machine is."""
    copies: list[dict[str, Any]] = []
    return {"times": _time(lambda data, step: copies.append(dict(data)), steps), "batches_accepted": None}


def _measure_rl_insight(url: str, steps: int) -> Sample:
    """In a child: what verl's RLInsightLogger.log does."""
    import ray
    import rl_insight

    os.environ["RL_INSIGHT_SERVER_URL"] = url
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    rl_insight.init(
        project="bench", experiment_name="overhead", config={"prometheus": {"metrics_report_port": _free_port()}}
    )

    def log(data: dict[str, Any], step: int) -> None:
        for key, value in data.items():
            rl_insight.metric_gauge(str(key).replace("/", "_"), float(value))

    times = _time(log, steps)
    rl_insight.finish()
    ray.shutdown()
    return {"times": times, "batches_accepted": None}


def _child(subject: str, url: str, steps: int) -> Sample:
    done = subprocess.run(
        [sys.executable, "-m", "bench.trainer_overhead", "--subject", subject, "--url", url, "--steps", str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )
    if done.returncode != 0:
        sys.exit(f"The measurement of {subject} ended with exit code {done.returncode}; its own words are above.")
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    return sample


@contextmanager
def _exporter() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The real exporter on a free port of the loopback, killed at the end."""
    with tempfile.TemporaryDirectory(prefix="verl-sentinel-bench-") as folder:
        url = f"http://127.0.0.1:{(port := _free_port())}"
        log = Path(folder) / "exporter.log"
        with log.open("wb") as output:
            command = [
                sys.executable,
                "-m",
                "exporter",
                "--listen",
                f"127.0.0.1:{port}",
                "--data-dir",
                f"{folder}/data",
            ]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 60
            while not _answers(f"{url}/healthz"):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"The exporter did not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield url, process
        finally:
            process.kill()
            process.wait()


@contextmanager
def _rl_insight_server() -> Iterator[str]:
    """The two answers that rl-insight's hub actor wants from its server before it takes metrics."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"status": "ok", "otlp_port": null}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _figures(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_us": round(statistics.median(ordered), 1), "p99_us": round(p99, 1), "max_us": round(ordered[-1], 1)}


def _table(result: dict[str, Any]) -> str:
    lines = [f"log() of {METRICS} metrics on the training thread, {result['steps']} steps, microseconds", ""]
    lines.append(f"{'':<22}{'median':>10}{'p99':>10}{'max':>10}   rl-insight takes")
    for name in (*OURS, "rl_insight", "dict_copy"):
        row = result[name]
        ratio = result["times_less_than_rl_insight"].get(name)
        label = f"exporter {name}" if name in OURS else name
        times = f"{ratio:8.0f} times as long" if ratio else ""
        lines.append(f"{label:<22}{row['median_us']:>10.1f}{row['p99_us']:>10.1f}{row['max_us']:>10.1f}   {times}")
    lines += ["", *(f"{'met' if met else 'MISSED'}: {target}" for target, met in result["targets_met"].items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
