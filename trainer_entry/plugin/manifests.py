"""Writes the manifest of each saved checkpoint beside training. Used by the checkpoint hook.

Hashing tens of gigabytes takes minutes, so a process of its own does it, at idle priority
(:mod:`trainer_entry.checkpoints.hashing`); the thread here, which exists only while there is something to do, waits for
it, and for the step's metrics, which PPO logs after the save. At the end of a run the last checkpoint gets a bounded
time; one that is not done by then has no manifest, but the record of its save, from which it can be finished later.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from exporter.protocol import CheckpointSaved, Number
from trainer_entry.plugin.runtime import Runtime, now

if TYPE_CHECKING:
    from trainer_entry.checkpoints import Manifest, Origin
    from trainer_entry.checkpoints.writing import Hashed

LAST_MANIFEST_SECONDS = 30.0
METRICS_SECONDS = 30.0
"""How long a manifest that is otherwise ready waits for its step's metrics: a validation may come before them."""

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Save:
    """One save: an absolute ``global_step_N`` directory. ``unfinished`` when verl returns before the files are
    complete; ``batches_per_epoch`` of the training data, where the trainer says it.
    """

    directory: str
    step: int
    unfinished: bool
    batches_per_epoch: int | None = None


class ManifestThread:
    """At most one thread, started by the first save, ended when nothing is left."""

    def __init__(
        self,
        runtime: Runtime,
        last_seconds: float = LAST_MANIFEST_SECONDS,
        metrics_seconds: float = METRICS_SECONDS,
    ) -> None:
        self._runtime = runtime
        self._last_seconds = last_seconds
        self._metrics_seconds = metrics_seconds
        self._waiting: deque[tuple[Save, float]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()
        self._ending = threading.Event()
        self._git: tuple[str, bool | None] | None = None
        self.after: list[Callable[[str, Manifest], None]] = []
        """Called on this thread with the directory and its manifest, once that is written: the tiers."""

    def begin(self, save: Save) -> None:
        """A save into the directory is about to start: what was written about its files before is no longer true."""
        from trainer_entry.checkpoints import discard_manifest
        from trainer_entry.checkpoints.saving import begin_save

        discard_manifest(save.directory)
        _break_links(save.directory)
        state_dir = self._runtime.settings.state_dir
        if state_dir is not None:
            begin_save(state_dir, save.directory, save.step)

    def saved(self, save: Save, seconds: float) -> None:
        """verl returned from the save, after ``seconds``."""
        if save.unfinished:
            reason = (
                "the save goes on in the background (async_save), so there is no moment at which it is known complete"
            )
            self._report(save, seconds, reason=reason)
            return
        self._runtime.keep_metrics(save.step)
        self._record(save)
        with self._lock:
            self._waiting.append((save, seconds))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="verl-sentinel-manifest", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """The run ends: wait for what is being hashed, for a bounded time."""
        self._ending.set()
        thread = self._thread
        if thread is not None:
            thread.join(self._last_seconds)
            if thread.is_alive():
                self._cancel.set()
                self._runtime.report(
                    f"the manifest of the last checkpoint was not done after {self._last_seconds:.0f} s and is "
                    "left for whoever wants to restore it"
                )
                thread.join(1.0)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                save, seconds = self._waiting.popleft()
            self._runtime.guarded("checkpoints", self._write, save, seconds)

    def _write(self, save: Save, seconds: float) -> None:
        from trainer_entry.checkpoints import CheckpointError
        from trainer_entry.checkpoints.saving import end_save
        from trainer_entry.checkpoints.writing import write_hashed

        began = time.monotonic()
        try:
            origin = self._origin(save)
            hashed = self._hashed(save, origin)
            metrics, metrics_step = self._metrics(save.step)
            manifest = write_hashed(save.directory, save.step, hashed, origin, metrics, metrics_step)
        except (CheckpointError, OSError) as error:
            self._report(save, seconds, manifest_seconds=time.monotonic() - began, reason=str(error)[:500])
            return
        finally:
            self._runtime.let_metrics_go(save.step)
            state_dir = self._runtime.settings.state_dir
            if state_dir is not None:
                with contextlib.suppress(OSError):
                    end_save(state_dir, save.step)
        self._report(save, seconds, manifest_seconds=time.monotonic() - began, manifest=manifest)
        for call in tuple(self.after):
            self._runtime.guarded("checkpoints", call, save.directory, manifest)

    def _record(self, save: Save) -> None:
        """Write down at once that the save returned: hashing waits for the one before, and the trainer may die first.

        What takes longer to find out, versions and the place in the data, is added when its turn comes.
        """
        from trainer_entry.checkpoints import CheckpointError
        from trainer_entry.checkpoints.saved import record_saved

        with contextlib.suppress(OSError, CheckpointError):  # said when it is hashed
            record_saved(save.directory, save.step, self._known())

    def _known(self) -> Origin:
        """What is at hand."""
        from trainer_entry.checkpoints import Origin
        from trainer_entry.checkpoints.provenance import model_name
        from trainer_entry.configuration import config_hash

        runtime = self._runtime
        return Origin(
            run_id=runtime.settings.run_id,
            attempt=runtime.settings.attempt,
            trainer=runtime.trainer_kind,
            verl_version=runtime.verl_version,
            config=runtime.config,
            config_hash=config_hash(runtime.config),
            model=model_name(runtime.config),
        )

    def _origin(self, save: Save) -> Origin:
        from trainer_entry.checkpoints.provenance import data_position, git_state, torch_versions

        if self._git is None:  # once: a process runs the code that it has read, whatever is checked out later
            self._git = git_state(os.getcwd())
        torch_version, cuda_version = torch_versions()
        return replace(
            self._known(),
            torch_version=torch_version,
            cuda_version=cuda_version,
            git_commit=self._git[0],
            git_dirty=self._git[1],
            data_position=data_position(save.directory, save.step, save.batches_per_epoch),
        )

    def _hashed(self, save: Save, origin: Origin) -> Hashed:
        """Complete the record that the save returned, then hash. Raises CheckpointError, OSError."""
        from trainer_entry.checkpoints.hashing import hash_elsewhere
        from trainer_entry.checkpoints.saved import record_saved
        from trainer_entry.checkpoints.writing import hash_checkpoint

        record_saved(save.directory, save.step, origin)
        try:
            return hash_elsewhere(save.directory, save.step, self._cancel, self._ending)
        except OSError:  # no process could be started: rather here than not at all
            return hash_checkpoint(save.directory, save.step, cancel=self._cancel)

    def _metrics(self, step: int) -> tuple[dict[str, Number], int | None]:
        """What was logged for the step, waited for within bounds; else the newest before it, and its step."""
        until = time.monotonic() + self._metrics_seconds
        while self._runtime.last_step < step and time.monotonic() < until and not self._ending.is_set():
            self._ending.wait(_LOOK_SECONDS)
        return self._runtime.metrics_of(step)

    def _report(
        self,
        save: Save,
        seconds: float,
        *,
        manifest_seconds: float = 0.0,
        manifest: Manifest | None = None,
        reason: str = "",
    ) -> None:
        self._runtime.send(
            CheckpointSaved(
                time=now(),
                step=save.step,
                path=save.directory,
                verified=manifest is not None,
                bytes=manifest.bytes if manifest else 0,
                save_seconds=seconds,
                manifest_seconds=manifest_seconds,
                reason=reason,
                config_hash=manifest.config_hash if manifest else "",
                fingerprint=manifest.fingerprint if manifest else "",
            )
        )


def _break_links(directory: str) -> None:
    """Remove files that also lie elsewhere, as hard links of a snapshot do: verl writes into the file that is there.

    Raises OSError.
    """
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_nlink > 1:
                    os.unlink(path)
