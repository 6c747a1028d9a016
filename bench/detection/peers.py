"""Packages of PyPI that watch such runs, each through its own interface and at its defaults. Called by the benchmark.

The extra ``peers`` installs them; one that is not there is named and left out. Metrics go in under the names that each
of them knows, mapped as favourably as they allow: what it calls KL is the KL against the reference where there is one,
and that against the old policy otherwise. Its highest grade counts as a page, the one below as a warning.

Two of them look at a whole run again at every 25th step. On the healthy steps they see all of it. A fault is shown to
them with the 300 steps before it, and at one place of each run only, or it would take an hour.
"""

from __future__ import annotations

import copy
import importlib
import math
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.detection.contenders import Contender, Said, Watch
from bench.detection.runs import HealthyRun, Metrics
from exporter.detectors.base import Severity
from exporter.detectors.setup import RunSetup
from exporter.signals import canonical

PAGE: Final = Severity.CRITICAL
WARN: Final = Severity.WARNING
LABELS: Final = {"critical": PAGE, "warning": WARN, "warn": WARN}
EVERY: Final = 25
"""Steps between two looks of those that look at the whole run: the default of both."""
PAST: Final = 300


class _Peer:
    """A contender whose watch is a class of this module, and says in ``seconds`` what judging took."""

    name = ""
    package = ""
    slow = False
    watch: type[_Watch]

    def start(self, setup: RunSetup) -> Watch:
        """Begin a run. Raises ``ImportError`` where the package is not installed."""
        return self.watch()

    def microseconds(self, run: HealthyRun) -> float:
        """Its own code alone, without the mapping of names."""
        watch = self.watch()
        for step, metrics in run.steps:
            watch.take(step, metrics)
        return 1e6 * watch.seconds / len(run.steps)


class _Watch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        raise NotImplementedError

    def fork(self) -> Watch:
        return copy.deepcopy(self)

    def faults(self) -> dict[str, int]:
        return {}


def _kl(signals: dict[str, float]) -> float | None:
    return signals.get("kl", signals.get("ppo_kl"))


class _RlwatchWatch(_Watch):
    """What its ``log_step`` does, without the database and the console: judge, then hold back repeats."""

    def __init__(self) -> None:
        super().__init__()
        config = importlib.import_module("rlwatch.config").RLWatchConfig(framework="manual")
        self._suite = importlib.import_module("rlwatch.detectors").DetectorSuite(config)
        self._alerts = importlib.import_module("rlwatch.alerts").AlertManager(config.alerts)

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        signals = canonical(metrics)
        began = time.thread_time()
        alerts = self._suite.check_step(
            step,
            entropy=signals.get("entropy"),
            kl_divergence=_kl(signals),
            reward_mean=signals.get("reward"),
            loss=signals.get("loss"),
            grad_norm=signals.get("grad_norm"),
        )
        self.seconds += time.thread_time() - began
        sent = [alert for alert in alerts if self._alerts.should_send(alert)]
        for alert in sent:
            self._alerts._alert_count += 1
            self._alerts._last_alert_step[(alert.detector, alert.severity)] = alert.step
        return [Said(LABELS[alert.severity], alert.detector) for alert in sent]


class _TrainpulseWatch(_Watch):
    """Each signal under the name by which it knows what it is; only non-finite values are graded critical, and a
    gradient norm above 100."""

    NAMES: Final = {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "step_time": "step_time",
        "gpu_memory": "gpu_memory",
        "entropy": "entropy",
        "reward": "reward",
        "kl": "kl",
        "ppo_kl": "ppo_kl",
        "response_length": "response_length",
        "throughput": "throughput",
    }

    def __init__(self) -> None:
        super().__init__()
        self._monitor = importlib.import_module("trainpulse").Monitor()

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        signals = canonical(metrics)
        named = [(name, signals[signal]) for signal, name in self.NAMES.items() if signal in signals]
        began = time.thread_time()
        alerts = [alert for name, value in named for alert in self._monitor.log(name, step, value)]
        self.seconds += time.thread_time() - began
        graded = [(LABELS.get(alert.severity.value), alert) for alert in alerts]
        return [Said(grade, f"{alert.detector}/{alert.metric_name}") for grade, alert in graded if grade is not None]

    def fork(self) -> Watch:
        # What it logged is only for its report, and grows with the run.
        monitor = self._monitor
        fresh: dict[int, Any] = {id(monitor._snapshots): {}, id(monitor._alerts): []}
        return copy.deepcopy(self, fresh)


class _RldoctorWatch(_Watch):
    """Its live monitor knows verl's own names. It says a finding once, and again where it gets worse."""

    def __init__(self) -> None:
        super().__init__()
        live = importlib.import_module("rl_doctor.live")
        aliases = importlib.import_module("rl_doctor.aliases")
        self._monitor = live.LiveMonitor(check_every=EVERY, on_finding=_nothing)
        self._knows: dict[str, bool] = {}
        self._resolve = aliases.resolve

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        # Names it does not know would be passed over each time that it looks.
        known = {key: value for key, value in metrics.items() if self._known(key)}
        began = time.thread_time()
        findings = self._monitor.log(known, step=step)
        self.seconds += time.thread_time() - began
        grades = {"CRITICAL": PAGE, "WARNING": WARN}
        return [Said(grades[f.severity.name], f.detector) for f in findings if f.severity.name in grades]

    def _known(self, key: str) -> bool:
        if key not in self._knows:
            self._knows[key] = self._resolve(key) is not None
        return self._knows[key]

    def fork(self) -> Watch:
        records, announced = self._monitor.records, self._monitor._announced
        other = _RldoctorWatch()
        other._knows = self._knows
        other._monitor.records = _lately(records)
        other._monitor._announced = dict(announced)
        return other


class _RlprobeWatch(_Watch):
    """Its doctor over what was recorded, at every 25th step, as its callback for TRL does; it says a finding once."""

    FIELDS: Final = {
        "reward_mean": "reward",
        "entropy_mean": "entropy",
        "clip_fraction": "pg_clipfrac",
        "value_loss": "critic_loss",
        "value_explained_variance": "explained_variance",
        "loss": "loss",
        "lr": "lr",
        "grad_norm": "grad_norm",
        "completion_len_mean": "response_length",
        "truncation_rate": "clip_ratio",
        "step_time_s": "step_time",
        "generation_time_s": "generation_time",
    }

    def __init__(self) -> None:
        super().__init__()
        schemas = importlib.import_module("rlprobe.schemas")
        self._record = schemas.StepRecord
        self._manifest = schemas.RunManifest(run_id="bench", created_at="1970-01-01T00:00:00Z", algorithm="grpo")
        self._view = importlib.import_module("rlprobe.doctor.runview").RunView
        self._diagnose = importlib.import_module("rlprobe.doctor.engine").diagnose_view
        self._records: list[Any] = []
        self._said: set[tuple[str, str]] = set()

    def take(self, step: int, metrics: Metrics) -> Sequence[Said]:
        signals = canonical(metrics)
        values = {field: signals.get(signal) for field, signal in self.FIELDS.items()}
        bad = [signals[name] for name in ("loss", "grad_norm") if name in signals and not math.isfinite(signals[name])]
        self._records.append(
            self._record(
                step=step,
                kl_mean=_kl(signals),
                nan_count=sum(map(math.isnan, bad)),
                inf_count=sum(map(math.isinf, bad)),
                **{field: value for field, value in values.items() if value is not None and math.isfinite(value)},
            )
        )
        if len(self._records) % EVERY:
            return []
        began = time.thread_time()
        findings = self._diagnose(self._view(self._manifest, self._records))
        self.seconds += time.thread_time() - began
        said = []
        for finding in findings:
            key = (finding.signature_id, finding.severity)
            if key not in self._said and finding.severity in LABELS:
                self._said.add(key)
                said.append(Said(LABELS[finding.severity], finding.signature_id))
        return said

    def fork(self) -> Watch:
        other = _RlprobeWatch()
        other._records = _lately(self._records)
        other._said = set(self._said)
        return other


def _lately(records: list[Any]) -> list[Any]:
    """The newest of the records, so many that the next look comes at the same step."""
    return records[-(PAST + len(records) % EVERY) :] if len(records) > PAST + EVERY else list(records)


def _nothing(finding: object) -> None:
    """Nobody has to be told on the console."""


class Rlwatch(_Peer):
    """github.com/varun1724/rlwatch, 0.5.1."""

    name, package, watch = "rlwatch 0.5.1", "rlwatch", _RlwatchWatch


class Rldoctor(_Peer):
    """rl-doctor, 0.2.0."""

    name, package, watch = "rldoctor 0.2.0", "rl_doctor", _RldoctorWatch
    slow = True


class Rlprobe(_Peer):
    """rlprobe, 0.1.0."""

    name, package, watch = "rlprobe 0.1.0", "rlprobe", _RlprobeWatch
    slow = True


class Trainpulse(_Peer):
    """trainpulse, 0.4.0."""

    name, package, watch = "trainpulse 0.4.0", "trainpulse", _TrainpulseWatch


PEERS: Final[dict[str, type[Contender]]] = {
    "rlwatch": Rlwatch,
    "rldoctor": Rldoctor,
    "rlprobe": Rlprobe,
    "trainpulse": Trainpulse,
}
