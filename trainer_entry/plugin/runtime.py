"""What one process of a run sends, and to whom: shared by the hooks of that process.

A process opens a connection only when it has something to send: the one that opens verl's tracking (TaskRunner, or
SFT's logging rank) is the trainer; one that serves rollout requests is a worker. All others never start a thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, TypeVar

from exporter.protocol import Event, HistogramRequest, Number, Run, Scalar, json_number
from trainer_entry.changes import records
from trainer_entry.plugin import proofs
from trainer_entry.plugin.memory import RunMemory
from trainer_entry.push import PushClient
from trainer_entry.settings import Settings

_T = TypeVar("_T")

_LOGGED_PARTS = 16
_LONGEST_KEY = 300
_MOST_METRICS = 5000

FINISH_SECONDS = 2.0
"""How long the end of training may wait for the exporter; what is left then is on disk."""


class Runtime:
    """One per process. ``report`` writes a line for a person."""

    def __init__(self, settings: Settings, verl_version: str, report: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.verl_version = verl_version
        self.report = report or _to_stderr
        self.trainer_kind = ""
        """``ppo_v1``, ``ppo_legacy`` or ``sft`` once a trainer's fit was entered in this process."""
        self.trainer: Any = None
        self.last_step = 0
        """The last step logged (SFT keeps its step in a local variable of fit)."""
        self.config: dict[str, Scalar] = {}
        """The resolved configuration, flat and without secrets, once the trainer has opened its tracking."""
        self._logged: deque[tuple[int, Any]] = deque(maxlen=_LOGGED_PARTS)
        self._kept: dict[int, list[tuple[int, Any]]] = {}
        self.finished = False
        self.exit_code: int | None = None
        """How the run ended, once it has: what the end of fit, or of verl's tracking, said."""
        self.failures: dict[str, int] = {}
        """Exceptions of ours, by hook, that were kept away from training."""
        self.at_open: list[Callable[[], None]] = []
        """Called when the trainer has opened its tracking and is connected."""
        self.on_histogram: Callable[[HistogramRequest], None] | None = None
        """Takes the exporter's requests for gradient histograms, on the push thread."""
        self.at_finish: list[Callable[[], None]] = []
        """Called at the end of the run, before the last flush."""
        self.memory = RunMemory()
        self.changes = proofs.read_changes(settings.changes, self.report)
        """What a rollback changed for this attempt."""
        self.proofs = proofs.Proofs(
            self.send, lambda: records.attempt_dir(self.settings.state_dir, self.settings.attempt)
        )
        self._trainer_client: PushClient | None = None
        self._worker_client: PushClient | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def client(self) -> PushClient | None:
        """The trainer's client; None in a process that is not the trainer, or whose run has ended."""
        return self._trainer_client

    def guarded(self, hook: str, call: Callable[..., _T], *args: Any) -> _T | None:
        """Call our own code from within the trainer: whatever it raises is counted, told once, and kept from
        training.
        """
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - the one boundary between our code and the training loop
            self.failed(hook, error)
            return None

    def failed(self, hook: str, error: BaseException) -> None:
        """Count an exception of ours; the first of each hook is told."""
        self.failures[hook] = self.failures.get(hook, 0) + 1
        if self.failures[hook] == 1:
            self.report(f"hook {hook} failed and is ignored: {type(error).__name__}: {error}")

    def enter_fit(self, trainer: Any, kind: str) -> None:
        """A trainer's loop begins in this process."""
        self.trainer = trainer
        self.trainer_kind = kind
        self.finished = False
        self.last_step = int(getattr(trainer, "resume_global_step", 0) or 0)

    def open_trainer(self, project: str, experiment: str, config: Mapping[str, Any] | None) -> PushClient:
        """The process opened its tracking, so it is the trainer: connect it, as the run that its config names."""
        if self._trainer_client is None:
            directory = _checkpoint_dir(config)
            self.settings = self.settings.with_run(project, experiment, directory)
            self._trainer_client = PushClient(
                self.settings, self._run(project, experiment), "trainer", heartbeat_seconds=1.0, report=self.report
            )
            self._trainer_client.phases.step_source = self._step_in_progress
            self._trainer_client.on_histogram = self.on_histogram
        return self._trainer_client

    def rollout_client(self, config: Any) -> PushClient:
        """The client that counts rollout requests here: the trainer's, or one of a worker, connected at first use."""
        client = self._trainer_client or self._worker_client
        if client is None:
            project, experiment, directory = _identity(config)
            settings = self.settings.with_run(project, experiment, directory)
            client = PushClient(
                settings,
                Run(
                    run_id=settings.run_id,
                    attempt=settings.attempt,
                    project=project,
                    experiment=experiment,
                    verl_version=self.verl_version,
                    cohort=settings.cohort,
                ),
                "worker",
                heartbeat_seconds=None,
                report=self.report,
            )
            self._worker_client = client
            client.start()
        return client

    def logged(self, step: int, data: Any) -> None:
        """verl logged metrics of a step; on the training loop's own path, so nothing is done with them yet."""
        self.last_step = step
        self._logged.append((step, data))
        for wanted, parts in tuple(self._kept.items()):
            if step <= wanted:
                parts.append((step, data))

    def keep_metrics(self, step: int) -> None:
        """A checkpoint of the step was saved: keep its metrics until :meth:`let_metrics_go`, however many steps are
        logged while it is hashed. Called on the training loop's thread, as :meth:`logged` is.
        """
        self._kept[step] = [(at, data) for at, data in self._logged if at <= step]

    def let_metrics_go(self, step: int) -> None:
        """The manifest of the step is written, or never will be."""
        self._kept.pop(step, None)

    def metrics_of(self, step: int) -> tuple[dict[str, Number], int | None]:
        """The metrics logged for a step, or for the newest step before it that is still known, and which step it is.

        Non-finite values are spelled as in JSON; what is no number is left out.
        """
        known = tuple(self._kept.get(step) or self._logged)
        parts = [(at, data) for at, data in known if at <= step and isinstance(data, Mapping)]
        if not parts:
            return {}, None
        newest = max(at for at, _ in parts)
        found: dict[str, Number] = {}
        for at, data in parts:
            if at == newest:
                for key, value in data.items():
                    with contextlib.suppress(TypeError, ValueError, OverflowError):
                        if isinstance(value, (str, bytes)):
                            continue
                        found[str(key)[:_LONGEST_KEY]] = json_number(float(value))
        return dict(islice(found.items(), _MOST_METRICS)), newest

    def send(self, event: Event) -> None:
        """Send an event if this process is the trainer."""
        if self._trainer_client is not None:
            self._trainer_client.event(event)

    def finish(self, event: Event) -> None:
        """The run has ended: send that, wait shortly for the rest, and fall silent. Only the first call counts."""
        client = self._trainer_client
        if client is None or self.finished:
            return
        self.finished = True
        self.exit_code = getattr(event, "exit_code", None)
        for call in self.at_finish:
            self.guarded("run_end", call)
        client.flush(FINISH_SECONDS / 2)  # the last phases and counts, which come before the end
        client.event(event)
        client.close(FINISH_SECONDS / 2)
        self._trainer_client = None

    def _run(self, project: str, experiment: str) -> Run:
        return Run(
            run_id=self.settings.run_id,
            attempt=self.settings.attempt,
            project=project,
            experiment=experiment,
            trainer=self.trainer_kind,
            verl_version=self.verl_version,
            cohort=self.settings.cohort,
        )

    def _step_in_progress(self) -> int:
        step = getattr(self.trainer, "global_steps", None)
        return int(step) if step is not None else self.last_step + 1

    def _after_fork(self) -> None:
        # The clients fell silent by themselves; a child that has something to say opens its own.
        self._trainer_client = self._worker_client = None


def _checkpoint_dir(config: Mapping[str, Any] | None) -> str:
    trainer = (config or {}).get("trainer") or {}
    return str(trainer.get("default_local_dir") or "")


def _identity(config: Any) -> tuple[str, str, str]:
    """Project, experiment and checkpoint directory of a configuration object; empty where it does not say."""
    try:
        trainer = config.trainer
        return str(trainer.project_name), str(trainer.experiment_name), str(trainer.default_local_dir)
    except Exception:  # noqa: BLE001 - any object may be given as configuration by a custom rollout client
        return "", "", ""


def now() -> float:
    """Unix seconds, for the events."""
    return time.time()


def _to_stderr(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed, or a terminal that is gone
        print(f"verl-sentinel: {sentence}", file=sys.stderr, flush=True)
