"""``/metrics``: current state as Prometheus metrics. Called by the app at each scrape.

A collector that reads the core when it is asked; nothing is kept up to date in between. Names are in base units,
without a step label; a run that has ended leaves after its grace time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from exporter.recovery.record import RunState as RecoveryState
from exporter.service.core import Core
from exporter.service.state import DURATION_BUCKETS, RunState
from exporter.service.watch import WatchedRun

SIGNALS: Final[Mapping[str, tuple[str, str]]] = {
    "kl": ("verl_kl_divergence", "KL divergence of the policy from the reference, in nats"),
    "ppo_kl": ("verl_ppo_kl_divergence", "KL divergence of the policy from the one that sampled, in nats (estimate)"),
    "grad_norm": ("verl_grad_norm", "Norm of the gradient before clipping"),
    "entropy": ("verl_entropy", "Entropy of the policy per token, in nats"),
    "lr": ("verl_learning_rate", "Learning rate in effect"),
    "loss": ("verl_loss", "Loss that is optimised"),
    "reward": ("verl_reward", "Mean score of the batch, before any KL penalty"),
    "val_reward": ("verl_validation_reward", "Mean of the core validation metrics"),
    "val_loss": ("verl_validation_loss", "Validation loss"),
    "response_length": ("verl_response_length", "Mean length of the responses, in tokens"),
    "clip_ratio": ("verl_response_clip_ratio", "Share of responses cut at the length limit"),
    "throughput": ("verl_throughput_tokens_per_second", "Tokens a second and GPU"),
    "weight_sync_time": ("verl_weight_sync_seconds", "New weights to the rollout engine, newest duration"),
    "gpu_memory": ("verl_actor_gpu_memory_bytes", "Peak of the memory that torch reserved on a GPU"),
}
"""Canonical signal to metric name and help."""

_BOUNDS: Final = {bound: str(bound) for bound in DURATION_BUCKETS} | {float("inf"): "+Inf"}

STALE_READING_SECONDS = 120.0
"""A GPU that was not read for longer has no reading."""


@dataclass
class Ingest:
    """The exporter's own counters, filled by the app."""

    rejected: dict[str, int] = field(default_factory=dict)
    """Refused requests by reason."""
    seconds: float = 0.0
    """Time from a push's arrival to its answer, summed over ``answered``."""
    answered: int = 0

    def reject(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


class Families:
    """Metric families under construction."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, labels: Mapping[str, str], value: float) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_sample(name, dict(labels), value)

    def counter(self, name: str, text: str, labels: Mapping[str, str], value: float) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = CounterMetricFamily(name, text, labels=list(labels))
        family.add_sample(f"{name}_total", dict(labels), value)

    def info(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = InfoMetricFamily(name, text, labels=list(labels))
        family.add_sample(f"{name}_info", dict(labels), 1.0)

    def histogram(self, name: str, text: str, run: str, counts: Iterable[int], total: float) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = HistogramMetricFamily(name, text, labels=["run"])
        running = 0
        for bound, count in zip((*DURATION_BUCKETS, float("inf")), counts, strict=True):
            running += count
            family.add_sample(f"{name}_bucket", {"run": run, "le": _BOUNDS[bound]}, running)
        family.add_sample(f"{name}_count", {"run": run}, running)
        family.add_sample(f"{name}_sum", {"run": run}, total)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class Collector:
    """A collector for ``prometheus_client``; every scrape reads the core anew.

    Args:
        core: read on the thread that scrapes, which must be the one that changes it.
        ingest: the app's counters.
        clock: Unix seconds.
        version: of this program.
        ready: whether the journal has been read; before that there is nothing to say of runs.
    """

    def __init__(
        self, core: Core, ingest: Ingest, clock: Callable[[], float], version: str, ready: Callable[[], bool]
    ) -> None:
        self._core = core
        self._ingest = ingest
        self._clock = clock
        self._version = version
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        now = self._clock()
        out = Families()
        self._own(out, now)
        if self._ready():
            for run in self._core.runs.values():
                if self._core.shown(run, now):
                    _run(out, run, now)
                    _recovery(out, run.state.run_id, self._core.link.state_of(run.state.run_id))
        yield from out

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the core."""
        return iter(())

    def _own(self, out: Families, now: float) -> None:
        core, ingest = self._core, self._ingest
        shown = sum(1 for run in core.runs.values() if core.shown(run, now))
        out.info("verl_sentinel_build", "The exporter's version", {"version": self._version})
        out.gauge("verl_sentinel_ready", "1 when pushes are taken and kept", {}, float(not self.not_ready()))
        out.gauge("verl_sentinel_runs", "Runs that are watched", {}, shown)
        batches = "Pushes accepted, and pushes that had been accepted before"
        out.counter("verl_sentinel_batches", batches, {"outcome": "accepted"}, core.accepted)
        out.counter("verl_sentinel_batches", batches, {"outcome": "duplicate"}, core.duplicates)
        for reason, count in sorted(ingest.rejected.items()):
            out.counter("verl_sentinel_rejected", "Requests refused, by reason", {"reason": reason}, count)
        text = "Time from the arrival of a push to its answer"
        out.counter("verl_sentinel_ingest_seconds", text, {}, ingest.seconds)
        out.counter("verl_sentinel_ingest_answers", "Pushes that were answered", {}, ingest.answered)
        text = "Entries of the journal that could not be read at start"
        out.gauge("verl_sentinel_journal_unreadable_entries", text, {}, core.unreadable_entries)
        text = "Entries that could not be taken over in full because of a fault of the exporter"
        out.counter("verl_sentinel_faults", text, {}, core.faults)

    def not_ready(self) -> bool:
        return not self._ready() or bool(self._core.reasons_not_ready())


def _run(out: Families, run: WatchedRun, now: float) -> None:
    state = run.state
    label = {"run": state.run_id}
    identity = state.identity
    about = {
        **label,
        "project": identity.project,
        "experiment": identity.experiment,
        "attempt": str(state.attempt),
        "verl_version": identity.verl_version,
        "trainer": identity.trainer,
    }
    out.info("verl_run", "What the run is", about)
    out.gauge("verl_run_attempt", "Number of the newest attempt", label, state.attempt)
    out.gauge("verl_run_running", "1 while an attempt has started and not ended", label, float(state.running))
    text = "When the trainer was last heard, Unix seconds by the exporter's clock"
    out.gauge("verl_last_push_timestamp_seconds", text, label, state.last_push or state.first_seen)
    if state.supervisor_heard is not None:
        text = "When the supervisor was last heard, Unix seconds by the exporter's clock"
        out.gauge("verl_supervisor_last_push_timestamp_seconds", text, label, state.supervisor_heard)
    out.counter("verl_training_steps", "Training steps logged, over all attempts", label, state.steps_total)
    if state.late_steps:
        text = "Parts of steps that came after a newer step or attempt, and were left out"
        out.counter("verl_training_steps_late", text, label, state.late_steps)
    for detector, count in sorted(run.detector_faults.items()):
        text = "Times that a detector failed by a fault of its own"
        out.counter("verl_sentinel_detector_faults", text, {**label, "detector": detector}, count)
    if state.current is not None:
        out.gauge("verl_training_step", "Newest step logged by this attempt", label, state.current)
    for signal, value in state.signals.items():
        if signal in SIGNALS:
            out.gauge(*SIGNALS[signal], label, value)
    if any(state.durations.counts):
        text = "Duration of a training step"
        name = "verl_training_step_duration_seconds"
        out.histogram(name, text, state.run_id, state.durations.counts, state.durations.total)
    for phase, age in sorted(state.open_phases(now).items()):
        out.gauge("verl_phase_open_seconds", "Age of a phase that has not ended", {**label, "phase": phase}, age)
    _rollouts(out, state)
    _gpus(out, state, now)
    _checkpoints(out, state)
    in_place, missing = state.hooks()
    if in_place or missing:
        out.gauge("verl_hooks_in_place", "Hooks of the plugin that are in place", label, len(in_place))
        text = "Hooks that the plugin would like to have in place"
        out.gauge("verl_hooks_expected", text, label, len(in_place) + len(missing))
    for incident in sorted(run.book, key=lambda incident: incident.id):
        named = {**label, "detector": incident.detector, "signal": incident.signal}
        named["severity"] = incident.severity.label
        out.gauge("verl_incident_open", "1 while an incident is not resolved", named, 1.0)
    for (detector, severity), count in sorted(run.book.opened.items()):
        named = {**label, "detector": detector, "severity": severity}
        out.counter("verl_incidents", "Incidents opened, by severity at opening", named, count)


def _rollouts(out: Families, state: RunState) -> None:
    counts = state.rollouts()
    ended = counts.succeeded + counts.failed + counts.cancelled
    if not ended and not counts.in_flight:
        return
    label = {"run": state.run_id}
    for outcome in ("succeeded", "failed", "cancelled"):
        named = {**label, "outcome": outcome}
        out.counter("verl_rollout_requests", "Rollout requests by outcome", named, getattr(counts, outcome))
    text = "Rollout requests in flight"
    out.gauge("verl_rollout_requests_in_flight", text, label, counts.in_flight)
    if counts.succeeded + counts.failed:
        text = "Share of rollout requests that succeeded, over the whole run"
        rate = counts.succeeded / (counts.succeeded + counts.failed)
        out.gauge("verl_rollout_success_rate", text, label, rate)


def _gpus(out: Families, state: RunState, now: float) -> None:
    readings = (
        ("verl_gpu_memory_used_bytes", "Memory in use on the GPU", "memory_used_bytes"),
        ("verl_gpu_memory_total_bytes", "Memory of the GPU", "memory_total_bytes"),
        ("verl_gpu_utilization_ratio", "Share of time in which the GPU was busy", "utilization_ratio"),
        ("verl_gpu_power_watts", "Power draw of the GPU", "power_watts"),
        ("verl_gpu_temperature_celsius", "Temperature of the GPU", "temperature_celsius"),
    )
    for (node, index), (gpu, at) in sorted(state.gpus.items()):
        if now - at > STALE_READING_SECONDS:
            continue
        labels = {"run": state.run_id, "node": node, "index": str(index), "uuid": gpu.uuid}
        for name, text, attribute in readings:
            value = getattr(gpu, attribute)
            if value is not None:
                out.gauge(name, text, labels, value)
        text = "1 when the driver says that the GPU is off the bus or needs a reset"
        out.gauge("verl_gpu_lost", text, labels, float(gpu.lost))


def _checkpoints(out: Families, state: RunState) -> None:
    label = {"run": state.run_id}
    saved, verified = state.last_saved(), state.last_verified()
    if saved is not None:
        out.gauge("verl_checkpoint_last_saved_step", "Step of the newest checkpoint", label, saved.step)
    if verified is not None:
        text = "Step of the newest checkpoint with a manifest"
        out.gauge("verl_checkpoint_last_verified_step", text, label, verified.step)


def _recovery(out: Families, run_id: str, state: RecoveryState | None) -> None:
    if state is None:
        return
    label = {"run": run_id}
    text = "1 after a recovery failed, until the next success or until a person has acknowledged it"
    out.gauge("verl_recovery_failed", text, label, float(state.failed))
    text = "1 while a plan waits for approval"
    out.gauge("verl_recovery_awaiting_approval", text, label, float(state.awaiting_approval))
    text = "1 while a recovery is carried out"
    out.gauge("verl_recovery_in_progress", text, label, float(state.in_progress))
    for outcome, count in sorted(state.outcomes.items()):
        named = {**label, "outcome": outcome}
        out.counter("verl_recoveries", "Recoveries that ended, by outcome", named, count)
