"""Writes the manifest of each saved checkpoint beside training. Used by the checkpoint hook.

Hashing tens of gigabytes takes minutes, so it runs on a thread of low priority that exists only while there is
something to hash. At the end of a run the last checkpoint gets a bounded time; one that is not done by then has no
manifest and is no rollback target, which is the safe side.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from exporter.protocol import CheckpointSaved
from trainer_entry.plugin.runtime import Runtime, now

LAST_MANIFEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Save:
    """One save: an absolute ``global_step_N`` directory. ``unfinished`` when verl returns before the files are
    complete.
    """

    directory: str
    step: int
    unfinished: bool


class ManifestThread:
    """At most one thread, started by the first save, ended when nothing is left."""

    def __init__(self, runtime: Runtime, last_seconds: float = LAST_MANIFEST_SECONDS) -> None:
        self._runtime = runtime
        self._last_seconds = last_seconds
        self._waiting: deque[tuple[Save, float]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()

    def begin(self, save: Save) -> None:
        """A save into the directory is about to start: what was written about its files before is no longer true."""
        from trainer_entry.checkpoints import discard_manifest

        discard_manifest(save.directory)

    def saved(self, save: Save, seconds: float) -> None:
        """verl returned from the save, after ``seconds``."""
        if save.unfinished:
            reason = (
                "the save goes on in the background (async_save), so there is no moment at which it is known complete"
            )
            self._report(save, seconds, reason=reason)
            return
        with self._lock:
            self._waiting.append((save, seconds))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="verl-sentinel-manifest", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """The run ends: wait for what is being hashed, for a bounded time."""
        thread = self._thread
        if thread is not None:
            thread.join(self._last_seconds)
            if thread.is_alive():
                self._cancel.set()
                self._runtime.report(
                    f"the manifest of the last checkpoint was not done after {self._last_seconds:.0f} s and is "
                    "given up; that checkpoint is no rollback target"
                )
                thread.join(1.0)

    def _work(self) -> None:
        from trainer_entry.checkpoints import background_priority

        background_priority()
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                save, seconds = self._waiting.popleft()
            self._runtime.guarded("checkpoints", self._write, save, seconds)

    def _write(self, save: Save, seconds: float) -> None:
        from trainer_entry.checkpoints import CheckpointError, ManifestCancelled, write_manifest

        began = time.monotonic()
        try:
            manifest = write_manifest(
                save.directory, save.step, verl_version=self._runtime.verl_version, cancel=self._cancel
            )
        except (CheckpointError, ManifestCancelled, OSError) as error:
            self._report(save, seconds, manifest_seconds=time.monotonic() - began, reason=str(error)[:500])
            return
        self._report(save, seconds, manifest_seconds=time.monotonic() - began, size=manifest.bytes, verified=True)

    def _report(
        self,
        save: Save,
        seconds: float,
        *,
        manifest_seconds: float = 0.0,
        size: int = 0,
        verified: bool = False,
        reason: str = "",
    ) -> None:
        self._runtime.send(
            CheckpointSaved(
                time=now(),
                step=save.step,
                path=save.directory,
                verified=verified,
                bytes=size,
                save_seconds=seconds,
                manifest_seconds=manifest_seconds,
                reason=reason,
            )
        )
