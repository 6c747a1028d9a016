"""How many samples a second the exporter takes, beside Pushgateway and VictoriaMetrics.

``python -m bench.ingest [--runs 100] [--metrics 100] [--steps-a-batch 50] [--rounds 3] [--seconds 5] [--json]`` starts
one exporter as it is (default configuration, all detectors, every push in the journal before its answer), Debian's
prometheus-pushgateway and victoria-metrics, and sends each the same steps of the same runs over one connection a run:
first one step a request, then batches as a spool sends them. The receivers take turns, so that a noisy machine disturbs
all alike. The load comes from this process, another than the receivers'; on a machine of two cores it takes part of
what they could use, which is why samples per second of the receiver's own CPU stand beside samples per second.

Pushgateway takes one push a step because it keeps only the newest; VictoriaMetrics takes InfluxDB lines on ``/write``.

Exit code 0 where the targets are met; 1 where one is missed, or samples are missing in the exporter at the end; 2 where
it cannot run. A peer whose program is not installed is named, its figures are null, and its target is not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import LoadError, drive
from bench.receivers import Exporter, Pushgateway, Receiver, Samples, VictoriaMetrics
from bench.stages import Profile, profiled
from demo.processes import StartError

PUSHGATEWAY_RATIO = 25.0
"""At least so many times Pushgateway's samples a second, with one step a request."""
SAMPLES_PER_CORE = 150_000.0
"""At least so many samples for a second of the exporter's CPU, in batches."""
PEERS: tuple[type[Receiver], ...] = (Pushgateway, VictoriaMetrics)


@dataclass(frozen=True, slots=True)
class Round:
    """One receiver in one round, with one kind of request."""

    samples_per_second: float
    samples_per_core_second: float
    load_cores: float
    """Cores that this process used to make the load."""
    latencies: tuple[float, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    options = _options(argv)
    samples = Samples(options.runs, options.metrics)
    with tempfile.TemporaryDirectory(prefix="ingest-") as folder:
        kinds: list[type[Receiver]] = [Exporter, *(peer for peer in PEERS if not peer.missing())]
        receivers = [kind(samples, Path(folder) / str(number)) for number, kind in enumerate(kinds)]
        try:
            for receiver in receivers:
                receiver.start()
            rounds = _measure(receivers, options)
            taken = {receiver.name: (receiver.sent, receiver.arrived()) for receiver in receivers}
            profiles = _profiles(receivers[0], options) if options.profile else []
        except (StartError, LoadError) as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            for receiver in reversed(receivers):
                receiver.child.stop()
    result = _result(rounds, taken, options)
    for profile in profiles:
        print(profile.table(), file=sys.stderr)
    print(json.dumps(result) if options.json else _sentences(result))
    return 0 if result["targets_met"] else 1


Rounds = dict[tuple[str, str], list[Round]]
"""By receiver and by ``single`` or ``batched``."""


def _measure(receivers: Sequence[Receiver], options: argparse.Namespace) -> Rounds:
    rounds: Rounds = {}
    for receiver in receivers:
        # Every run is known and every window has something in it; a receiver is not measured while it warms up.
        _round(receiver, 1, min(1.0, options.seconds), options)
    for number in range(options.rounds):
        turn = number % len(receivers)
        for kind, batch in (("single", 1), ("batched", options.steps_a_batch)):
            for receiver in (*receivers[turn:], *receivers[:turn]):
                if isinstance(receiver, Pushgateway) and batch > 1:
                    continue
                rounds.setdefault((receiver.name, kind), []).append(_round(receiver, batch, options.seconds, options))
    return rounds


def _round(receiver: Receiver, batch: int, seconds: float, options: argparse.Namespace) -> Round:
    sources = [receiver.source(run, batch) for run in range(options.runs)]
    cpu, own = receiver.cpu(), _own_cpu()
    served = drive(("127.0.0.1", receiver.port), sources, seconds)
    cpu, own = receiver.cpu() - cpu, _own_cpu() - own
    samples = served.answered * batch * options.metrics
    receiver.sent += samples
    return Round(
        samples / served.seconds, samples / max(cpu, 0.01), own / served.seconds, tuple(sorted(served.latencies))
    )


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _profiles(exporter: Receiver, options: argparse.Namespace) -> list[Profile]:
    """Where the exporter's time goes, sampled from outside in rounds of their own."""
    found = []
    for kind, batch in (("one step a request", 1), (f"{options.steps_a_batch} steps a request", options.steps_a_batch)):
        assert exporter.child.pid is not None
        with profiled(exporter.child.pid, kind, 2 * options.seconds) as profile:
            _round(exporter, batch, 2 * options.seconds, options)
        found.append(profile)
    return found


def _result(rounds: Rounds, taken: Mapping[str, tuple[int, int]], options: argparse.Namespace) -> dict[str, Any]:
    """``taken``: by receiver, the samples that it acknowledged and those that it has."""

    def median(name: str, kind: str, field: str) -> float | None:
        values = [getattr(found, field) for found in rounds.get((name, kind), [])]
        return round(statistics.median(values), 2) if values else None

    def ratio(peer: type[Receiver], kind: str) -> float | None:
        """Round by round, because what disturbs one round disturbs both."""
        pairs = zip(rounds.get((Exporter.name, kind), []), rounds.get((peer.name, kind), []), strict=False)
        values = [ours.samples_per_second / theirs.samples_per_second for ours, theirs in pairs]
        return round(statistics.median(values), 2) if values else None

    result: dict[str, Any] = {
        "benchmark": "ingest",
        "cores": os.cpu_count(),
        "runs": options.runs,
        "metrics_per_step": options.metrics,
        "steps_per_batch": options.steps_a_batch,
        "connections": options.runs,
        "rounds": options.rounds,
        "seconds_per_round": options.seconds,
        "programs_missing": [peer.program for peer in PEERS if peer.missing()],
    }
    for name, prefix in (
        (Exporter.name, ""),
        (Pushgateway.name, "pushgateway_"),
        (VictoriaMetrics.name, "victoria_metrics_"),
    ):
        for kind in ("single", "batched"):
            if name == Pushgateway.name and kind == "batched":
                continue
            result[f"{prefix}samples_per_second_{kind}"] = median(name, kind, "samples_per_second")
            result[f"{prefix}samples_per_core_second_{kind}"] = median(name, kind, "samples_per_core_second")
    for kind in ("single", "batched"):
        latencies = sorted(value for found in rounds[(Exporter.name, kind)] for value in found.latencies)
        result[f"push_p50_ms_{kind}"] = round(1e3 * latencies[len(latencies) // 2], 2)
        result[f"push_p99_ms_{kind}"] = round(1e3 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)], 2)
        result[f"load_generator_cores_{kind}"] = median(Exporter.name, kind, "load_cores")
    result["ratio_to_pushgateway"] = ratio(Pushgateway, "single")
    result["ratio_to_victoria_metrics"] = ratio(VictoriaMetrics, "single")
    result["ratio_to_victoria_metrics_batched"] = ratio(VictoriaMetrics, "batched")
    result["samples_sent"] = {name: sent for name, (sent, _) in taken.items()}
    result["samples_arrived"] = {name: arrived for name, (_, arrived) in taken.items()}
    result["target_ratio_to_pushgateway"] = PUSHGATEWAY_RATIO
    result["target_samples_per_core_second_batched"] = SAMPLES_PER_CORE
    to_pushgateway = result["ratio_to_pushgateway"]
    result["targets_met"] = (
        (to_pushgateway is None or to_pushgateway >= PUSHGATEWAY_RATIO)
        and result["samples_per_core_second_batched"] >= SAMPLES_PER_CORE
        and taken[Exporter.name][0] == taken[Exporter.name][1]
    )
    return result


def _sentences(result: dict[str, Any]) -> str:
    def row(name: str, prefix: str, kind: str) -> str:
        rate, core = (
            result.get(f"{prefix}samples_per_second_{kind}"),
            result.get(f"{prefix}samples_per_core_second_{kind}"),
        )
        return f"  {name:16} {kind:8} {rate:>12,.0f} {core:>22,.0f}" if rate is not None else ""

    rows = [
        row(name, prefix, kind)
        for name, prefix in (
            ("exporter", ""),
            ("Pushgateway", "pushgateway_"),
            ("VictoriaMetrics", "victoria_metrics_"),
        )
        for kind in ("single", "batched")
    ]
    missing = result["programs_missing"]
    sent, arrived = result["samples_sent"][Exporter.name], result["samples_arrived"][Exporter.name]
    lines = [
        f"{result['runs']} runs, {result['metrics_per_step']} metrics a step, {result['cores']} cores; "
        f"single: one step a request, batched: {result['steps_per_batch']}.",
        f"  {'':25} {'samples/s':>12} {'samples/s of its CPU':>22}",
        *filter(None, rows),
        *(f"  {program} is not installed: measured without it." for program in missing),
        f"Times Pushgateway: {result['ratio_to_pushgateway']} (at least {PUSHGATEWAY_RATIO:.0f} are wanted). Times "
        f"VictoriaMetrics: {result['ratio_to_victoria_metrics']} single, "
        f"{result['ratio_to_victoria_metrics_batched']} batched.",
        f"Batched, a second of its CPU takes {result['samples_per_core_second_batched']:,.0f} samples "
        f"(at least {SAMPLES_PER_CORE:,.0f} are wanted).",
        f"Answer to a push: median {result['push_p50_ms_single']} ms, p99 {result['push_p99_ms_single']} ms with "
        f"{result['runs']} pushes under way at a time. The load itself took "
        f"{result['load_generator_cores_single']} of the cores.",
        f"Of {sent:,} samples that were acknowledged, the exporter has {arrived:,}.",
    ]
    return "\n".join(lines)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=positive, default=100, metavar="N", help="runs, and connections (default: 100)")
    parser.add_argument("--metrics", type=positive, default=100, metavar="N", help="metrics of a step (default: 100)")
    parser.add_argument(
        "--steps-a-batch", type=positive, default=50, metavar="N", help="steps of a batched push (default: 50)"
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="rounds, of which the median counts")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="of one receiver in a round")
    parser.add_argument("--profile", action="store_true", help="then say where the exporter's time goes (needs py-spy)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """An argument that is a number of things."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """An argument that is a duration."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
