"""What is known of a run beside its metrics: its configuration as far as it is kept, and its GPUs. Called by the state.

It is made for the detectors, from what the trainer reported and from the newest readings, when one of them changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from exporter.detectors.base import GpuView
from exporter.detectors.setup import RunSetup, from_config
from exporter.protocol import Changes, Excluded, GpuReading, Scalar, SettingApplied

TEXT_CHARACTERS = 2000
"""Of a reason, or of one value of a configuration, that are kept."""

CONFIG_CHARACTERS = 300_000
"""Characters of a whole configuration that are kept; verl's has some ten thousand."""

Readings = Mapping[tuple[str, int], tuple[GpuReading, float]]
"""Newest reading of each GPU, with its time of arrival, by node and index."""


def setup_of(config: Mapping[str, Scalar], gpus: Readings) -> RunSetup:
    """What configuration and readings say.

    >>> gpu = GpuReading(node="a", index=0, memory_total_bytes=80 * 1024**3)
    >>> made = setup_of({"data.max_response_length": 512}, {("a", 0): (gpu, 0.0)})
    >>> made.max_response_length, made.gpu_memory_bytes == 80 * 1024**3
    (512, True)
    """
    return replace(from_config(config), gpu_memory_bytes=smallest_memory(reading for reading, _ in gpus.values()))


def smallest_memory(readings: Iterable[GpuReading]) -> float | None:
    """Bytes of the smallest GPU; None where none tells."""
    return min((float(r.memory_total_bytes) for r in readings if r.memory_total_bytes), default=None)


def gpu_views(gpus: Readings) -> tuple[GpuView, ...]:
    """The readings as live detectors see them, in the order of node and index."""
    return tuple(
        GpuView(
            node=node,
            index=index,
            read_at=at,
            utilization=reading.utilization_ratio,
            memory_used=_float(reading.memory_used_bytes),
            memory_total=_float(reading.memory_total_bytes),
            temperature=reading.temperature_celsius,
            power=reading.power_watts,
            lost=reading.lost,
        )
        for (node, index), (reading, at) in sorted(gpus.items(), key=lambda item: item[0])
    )


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def bounded(config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A configuration as far as it is kept: a chat template of a megabyte is nobody's to read here.

    >>> kept = bounded({"lr": 1e-6, "template": "x" * 5000})
    >>> kept["lr"], len(kept["template"])
    (1e-06, 2001)
    """
    kept: dict[str, Scalar] = {}
    left = CONFIG_CHARACTERS
    for key, value in config.items():
        short = _short(value)
        left -= len(key) + (len(short) if isinstance(short, str) else 8)
        if left < 0:
            break
        # A run has hundreds of settings, and all runs the same: their names are kept once.
        kept[sys.intern(key)] = short
    return kept


MOST_CHANGES = 100
"""Settings, removed keys and excluded machines of an attempt that are kept of each."""

KEY_CHARACTERS = 300


def bounded_changes(changes: Changes | None) -> Changes | None:
    """What is in force beyond the command line, as far as it is kept.

    >>> kept = bounded_changes(Changes(settings={"lr": "x" * 5000}, removed=["a"] * 500))
    >>> len(kept.settings["lr"]), len(kept.removed), bounded_changes(None)
    (2001, 100, None)
    """
    if changes is None:
        return None
    settings = {key[:KEY_CHARACTERS]: _short(value) for key, value in list(changes.settings.items())[:MOST_CHANGES]}
    return Changes(
        settings=settings,
        removed=[key[:KEY_CHARACTERS] for key in changes.removed[:MOST_CHANGES]],
        verl_version=changes.verl_version[:KEY_CHARACTERS],
        exclude=[
            Excluded(node=one.node[:KEY_CHARACTERS], gpu=one.gpu[:KEY_CHARACTERS], reason=one.reason[:KEY_CHARACTERS])
            for one in changes.exclude[:MOST_CHANGES]
        ],
        skip_steps=changes.skip_steps,
    )


def bounded_setting(event: SettingApplied) -> SettingApplied:
    """A setting that took effect or did not, as far as it is kept."""
    return SettingApplied(
        time=event.time,
        name=event.name[:KEY_CHARACTERS],
        wanted=_short(event.wanted),
        restored=_short(event.restored),
        found=_short(event.found),
        ok=event.ok,
        reason=cut(event.reason),
    )


def _short(value: Scalar) -> Scalar:
    return cut(value) if isinstance(value, str) else value


def cut(text: str) -> str:
    """A text for people, as far as it is kept."""
    return text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + "…"
