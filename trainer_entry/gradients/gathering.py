"""Asks the training processes for histograms, puts their shards together, writes the files. In the trainer's process.

One daemon thread for each request, which ends with it: an unarmed trainer has none. Nothing here waits in the way of
training; a worker answers between two of its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from exporter.protocol import GradientHistogram, HistogramRequest
from trainer_entry.gradients import armed
from trainer_entry.gradients.armed import Shard
from trainer_entry.gradients.files import About, write
from trainer_entry.gradients.measuring import merged

POLL_SECONDS = 0.25
COLLECT_SECONDS = 1.0
GIVE_UP_SECONDS = 900.0
"""An update that has not come by then is not waited for."""

INCOMPLETE_SECONDS = 60.0
"""A step that some rank has not told of for as long is written without it."""

ANSWER_SECONDS = 600.0
"""A worker answers when its task is done; a step of a large model takes minutes."""

MOST_EXTRA = 1
"""Updates beyond those asked for: ranks that were asked at different moments have them in common."""


class Workers(Protocol):
    """The training processes."""

    def arm(self, request: str, steps: int) -> None: ...

    def collect(self, request: str) -> Sequence[Shard]: ...


class InThisProcess:
    """SFT trains where it logs. Other ranks of it have no channel of their own, and measure nothing."""

    def arm(self, request: str, steps: int) -> None:
        armed.STATE.arm(request, steps)

    def collect(self, request: str) -> Sequence[Shard]:
        return armed.STATE.collect(request)


class RayWorkers:
    """The actors of verl's worker groups."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self._workers: list[Any] = []
        for group in groups:
            # A worker group of the actor and one of the critic may share their processes.
            self._workers += [one for one in getattr(group, "workers", ()) if one not in self._workers]

    def arm(self, request: str, steps: int) -> None:
        self._ask(armed.arm, request, steps)

    def collect(self, request: str) -> Sequence[Shard]:
        return [shard for shards in self._ask(armed.collect, request) for shard in shards]

    def _ask(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        import ray

        asked = [worker.__ray_call__.remote(function, *values) for worker in self._workers]
        return list(ray.get(asked, timeout=ANSWER_SECONDS))


@dataclass
class Gathering:
    """One request, from arming to the last file.

    Args:
        request: from the exporter.
        workers: whom to ask.
        folder: of the files.
        run: the run's id and attempt.
        logged: the newest step that the trainer logged.
        over: whether the run has ended.
        told: takes the event of each file.
    """

    request: HistogramRequest
    workers: Workers
    folder: Path
    run: tuple[str, int]
    logged: Callable[[], int]
    over: Callable[[], bool]
    told: Callable[[GradientHistogram], None]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _shards: dict[tuple[str, int], list[Shard]] = field(default_factory=dict)
    _since: dict[tuple[str, int], float] = field(default_factory=dict)
    _steps: list[tuple[float, int]] = field(default_factory=list)
    _written: dict[str, int] = field(default_factory=dict)
    """Files by model."""

    def carry_out(self) -> int:
        """Returns the number of files. Raises what a worker or the disk raises."""
        wanted = self.request.steps
        self._note_step()
        self.workers.arm(self.request.id, wanted + MOST_EXTRA)
        until = self.monotonic() + GIVE_UP_SECONDS
        collected = self.monotonic()
        while not self.over() and self.monotonic() < until and not self._done(wanted):
            self.sleep(POLL_SECONDS)
            self._note_step()
            if self.monotonic() - collected >= COLLECT_SECONDS:
                collected = self.monotonic()
                self._take(self.workers.collect(self.request.id))
                self._write(wanted)
        return sum(self._written.values())

    def _done(self, wanted: int) -> bool:
        """Every model that was seen to be updated has its files."""
        return bool(self._written) and all(count >= wanted for count in self._written.values())

    def _note_step(self) -> None:
        step = self.logged()
        if not self._steps or self._steps[-1][1] != step:
            self._steps = [*self._steps, (time.time(), step)][-1000:]

    def _take(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            key = (shard.model, shard.update)
            self._shards.setdefault(key, []).append(shard)
            self._since.setdefault(key, self.monotonic())
            self._written.setdefault(shard.model, 0)

    def _write(self, wanted: int) -> None:
        """Write what is complete, in order; what is not, once it will not become so."""
        for key in sorted(self._shards):
            model, update = key
            shards = self._shards[key]
            late = self.monotonic() - self._since[key] > INCOMPLETE_SECONDS
            if self._written[model] >= wanted:
                del self._shards[key]
            elif late or len({shard.rank for shard in shards}) >= self._ranks(shards):
                del self._shards[key]
                self._one_file(model, update, sorted(shards, key=lambda shard: shard.rank))
                self._written[model] += 1

    def _ranks(self, shards: Sequence[Shard]) -> int:
        return 1 if isinstance(self.workers, InThisProcess) else shards[0].world_size

    def _one_file(self, model: str, update: int, shards: Sequence[Shard]) -> None:
        layers = merged(shard.layers for shard in shards)
        if not layers:
            return
        at = min(shard.time for shard in shards)
        run_id, attempt = self.run
        about = About(
            run_id=run_id,
            attempt=attempt,
            step=self._step_at(at),
            update=update,
            model=model,
            ranks=sorted({shard.rank for shard in shards}),
            world_size=shards[0].world_size,
            reason=self.request.reason,
            time=at,
        )
        written = write(self.folder, about, layers)
        self.told(
            GradientHistogram(
                time=at,
                step=about.step,
                file=str(written.path),
                layers=written.layers,
                norm=written.norm,
                largest_layer=written.largest_layer,
                largest_norm=written.largest_norm,
                non_finite=written.non_finite,
            )
        )

    def _step_at(self, at: float) -> int:
        """The step that was in progress then: the one after the newest that had been logged."""
        before = [step for noted, step in self._steps if noted <= at]
        return (before[-1] if before else self._steps[0][1]) + 1
