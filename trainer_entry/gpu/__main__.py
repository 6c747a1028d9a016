"""``python -m trainer_entry.gpu``: what the sampler reads on this machine, and what one reading costs.

For a person who wants to know whether the readings of a node are right, and for measuring the sampler. Ends with exit
code 0 also where there is no GPU: that is an answer, not a failure.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import time
from typing import Any, TextIO

from exporter.protocol import GpuReading
from trainer_entry.gpu.sampler import GpuSampler, Sample

COST_SAMPLES = 21


def report(sampler: GpuSampler, sample: Sample, cost_microseconds: float | None) -> dict[str, Any]:
    """What ``--json`` prints. Values that a GPU does not have are null; ``cost`` is the median time of one sample."""
    return {
        "node": sampler.node,
        "available": sample.available,
        "reason": sample.reason,
        "driver_version": sampler.driver_version,
        "sample_microseconds": cost_microseconds,
        "gpus": [{name: getattr(reading, name) for name in reading.__struct_fields__} for reading in sample.readings],
    }


def table(sampler: GpuSampler, sample: Sample, cost_microseconds: float | None) -> str:
    """The same for reading: one line a GPU."""
    if not sample.available:
        return f"{sampler.node}: no GPU readings: {sample.reason}."
    cost = "" if cost_microseconds is None else f", one sample takes {cost_microseconds:.0f} µs"
    lines = [f"{sampler.node}: driver {sampler.driver_version or 'unknown'}, {len(sample.readings)} GPU(s){cost}"]
    if sample.readings:
        lines.append(f"{'gpu':>3}  {'memory used / total':>21}  {'util':>5}  {'power':>7}  {'temp':>5}  name")
    return "\n".join(lines + [_line(reading) for reading in sample.readings])


def _line(reading: GpuReading) -> str:
    label = reading.name or reading.uuid or "unknown"
    if reading.xid_errors:
        label += f", {reading.xid_errors} critical Xid event(s), the newest {reading.last_xid}"
    if reading.error:
        return f"{reading.index:>3}  {'LOST' if reading.lost else 'failed'}: {reading.error}  ({label})"
    memory = (
        f"{_show(reading.memory_used_bytes, 2**30, 'GiB', 1)} / {_show(reading.memory_total_bytes, 2**30, 'GiB', 1)}"
    )
    return (
        f"{reading.index:>3}  {memory:>21}  {_show(reading.utilization_ratio, 0.01, '%'):>5}"
        f"  {_show(reading.power_watts, 1, 'W', 1):>7}  {_show(reading.temperature_celsius, 1, '°C'):>5}  {label}"
    )


def _show(value: float | None, unit: float, sign: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f} {sign}"


def _timed(sampler: GpuSampler) -> float:
    times = []
    for _ in range(COST_SAMPLES):
        begin = time.perf_counter_ns()
        sampler.sample()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return round(statistics.median(times), 1)


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    """Print one report, or one every ``--seconds`` until Ctrl-C. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer_entry.gpu", description=__doc__.replace("`", ""))
    parser.add_argument(
        "--once", action="store_true", help="one report, with the cost of a sample, instead of a stream"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a report instead of a table")
    parser.add_argument("--seconds", type=float, default=5.0, help="time between two reports (default 5)")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds <= 3600:
        parser.error(f"--seconds is {options.seconds:g}; it must be above 0 and at most 3600")
    # The reports themselves say why there are no readings.
    sampler = GpuSampler(socket.gethostname(), report=lambda sentence: None)
    try:
        while True:
            sample = sampler.sample()
            cost = _timed(sampler) if options.once and sample.available else None
            answer = report(sampler, sample, cost) if options.json else table(sampler, sample, cost)
            print(json.dumps(answer) if options.json else answer, file=out, flush=True)
            if options.once:
                return 0
            time.sleep(options.seconds)
    except KeyboardInterrupt:
        return 0
    finally:
        sampler.close()


if __name__ == "__main__":
    sys.exit(main())
