"""Beside training: offers each saved checkpoint to the tiers, keeps a keeper at work, and passes its reports on.

Used by the checkpoint hook where ``VERL_SENTINEL_CHECKPOINTS`` names a policy. The thread here only looks at small
files now and then; what takes long is done by the keeper's process, at idle priority.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from trainer_entry.plugin.runtime import Runtime

if TYPE_CHECKING:
    from trainer_entry.checkpoints import Manifest
    from trainer_entry.checkpoints.tiers.jobs import Workplace
    from trainer_entry.checkpoints.tiers.policy import Policy

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 10.0
"""A keeper that cannot do anything (a policy that broke meanwhile, say) is not started more often."""


class TierThread:
    """One for the trainer's process. All methods may be called by the manifest thread; none raises for the disk."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._policy: Policy | None = None
        self._read = False
        self._reading = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def opened(self) -> None:
        """The trainer is connected: go on with what an earlier attempt left waiting, and mark what a rollback left."""
        workplace = self._workplace()
        if workplace is not None and workplace.run_note() is not None:
            workplace.ask_for_pruning()
        self._watch()

    def saved(self, directory: str, manifest: Manifest) -> None:
        """A manifest was written: offer the checkpoint to the tiers. Called on the manifest thread."""
        from trainer_entry.checkpoints.tiers.offering import offer

        policy, workplace = self._policy_read(os.path.dirname(directory)), self._workplace()
        if policy is None or workplace is None:
            return
        offer(workplace, policy, directory, manifest)
        self._watch()

    def finish(self) -> None:
        """The run ends: pass on what was reported, and ask for the archive where the run ended by itself.

        The keeper ends with this process; who goes on with the archive is the supervisor, or the entry point.
        """
        self._over.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * LOOK_SECONDS)
        workplace = self._workplace()
        if self._policy is None or workplace is None:
            return
        if self._policy.tier("archive") is not None and self._ended_by_itself():
            workplace.ask_for_archive()
        self._pass_on(workplace)
        if self._keeper is not None and self._keeper.poll() is None:
            self._keeper.terminate()

    def _ended_by_itself(self) -> bool:
        """Not by an error, and not because somebody asked for a stop, after which the run may go on."""
        from trainer_entry.plugin.hooks.clean_stop import REQUEST_NAME, read_request

        directory = self._runtime.settings.state_dir
        asked = directory is not None and read_request(directory / REQUEST_NAME, self._runtime.settings.attempt)
        return self._runtime.exit_code == 0 and not asked

    def _policy_read(self, checkpoint_dir: str) -> Policy | None:
        """The policy, read once; a mistake in it is told once, and the tiers stay off."""
        from trainer_entry.checkpoints.tiers.jobs import RunNote
        from trainer_entry.checkpoints.tiers.policy import PolicyError
        from trainer_entry.checkpoints.tiers.policy_file import policy_from

        with self._reading:  # the manifest thread and this one may both come first
            first, self._read = not self._read, True
            if first:
                try:
                    self._policy = policy_from(os.environ)
                except PolicyError as error:
                    self._runtime.report(f"{error} No copies are made.")
            workplace = self._workplace()
            if self._policy is not None and workplace is not None and (first or checkpoint_dir):
                policy = os.path.abspath(self._policy.source)
                workplace.note_run(
                    RunNote(run_id=self._runtime.settings.run_id, checkpoint_dir=checkpoint_dir, policy=policy)
                )
            return self._policy

    def _workplace(self) -> Workplace | None:
        from trainer_entry.checkpoints.tiers.jobs import Workplace

        directory = self._runtime.settings.state_dir
        return Workplace(directory) if directory is not None else None

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="verl-sentinel-tiers", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            self._runtime.guarded("checkpoints", self._turn)
            if self._over.wait(LOOK_SECONDS):
                return

    def _turn(self) -> None:
        workplace = self._workplace()
        if workplace is None or self._policy_read("") is None or self._policy is None:
            return
        self._pass_on(workplace)
        running = self._keeper is not None and self._keeper.poll() is None
        if not running and time.monotonic() - self._started_at > AGAIN_SECONDS and _due(workplace):
            from trainer_entry.checkpoints import keeper

            self._started_at = time.monotonic()
            self._keeper = keeper.start(
                os.fspath(workplace.path.parent),
                self._runtime.settings.run_id,
                os.path.abspath(self._policy.source),
                rests=True,
            )

    def _pass_on(self, workplace: Workplace) -> None:
        if self._runtime.client is None:
            return
        with contextlib.suppress(OSError), workplace.reports() as events:
            for event in events:
                self._runtime.send(event)


def _due(workplace: Workplace) -> bool:
    now = time.time()
    return workplace.pruning_wanted or any(not now < job.not_before < now + 3700 for job in workplace.jobs())
