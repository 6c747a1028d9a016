"""A follower, the core of an exporter and a file, on one clock that is a number: an hour of training takes none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli_process import FileLogger
from exporter_scene import Scene

from exporter.detectors.registry import build_detectors
from exporter.follow.delivery import Reply
from exporter.follow.follower import Follower, Wanted
from exporter.follow.place import PlaceFile
from exporter.follow.shipping import Shipping
from exporter.follow.tail import Tail
from exporter.protocol import Batch, Run
from exporter.service.admission import Refused

LOOK_SECONDS = 3.0
RUN = "followed"


class FollowScene:
    """``at`` is what happens, in seconds since the start; ``run`` lets time pass until a second, then stops."""

    def __init__(self, folder: Path, **core: Any) -> None:
        self.folder = folder
        self.file = folder / "run.jsonl"
        (folder / "exporter").mkdir()
        self.exporter = Scene(folder / "exporter", detectors=build_detectors, **core)
        self.started = self.exporter.now
        self.down = False
        self.answer_lost = False
        """The exporter takes what is pushed, and its answer does not arrive."""
        self.said: list[str] = []
        self.batches: list[Batch] = []
        self._script: list[tuple[float, Callable[[], None]]] = []
        self._until = 0.0
        self._next_look = 0.0
        self.logger: FileLogger | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.exporter.now - self.started

    def at(self, second: float, happens: Callable[[], None]) -> None:
        self._script.append((second, happens))
        self._script.sort(key=lambda one: one[0])

    def log(self, *steps: int, **metrics: float | None) -> None:
        """verl logs these steps now."""
        if self.logger is None:
            self.start_trainer()
        assert self.logger is not None
        for step in steps:
            self.logger.log(step, **metrics)

    def start_trainer(self) -> None:
        if self.logger is not None:
            self.logger.close()
        self.logger = FileLogger(self.file)

    # What a follower is given

    def post(self, batch: Batch) -> Reply:
        if self.down:
            return Reply("later", "it cannot be reached: Connection refused")
        self.batches.append(batch)
        try:
            answer = self.exporter.core.accept(batch, self.exporter.now)
        except Refused as refused:
            return Reply("refused", str(refused))
        if self.answer_lost:
            return Reply("later", "it cannot be reached: timed out")
        return Reply("accepted", accepted_seq=answer.accepted_seq, duplicate=answer.duplicate)

    def is_set(self) -> bool:
        return self.now >= self._until

    def wait(self, timeout: float | None = None) -> bool:
        self.exporter.now += timeout or 0.0
        while self._script and self._script[0][0] <= self.now:
            self._script.pop(0)[1]()
        if self.now >= self._next_look:
            self.exporter.core.tick(self.exporter.now)
            self._next_look = self.now + LOOK_SECONDS
        return self.is_set()

    def run(self, until: float, *, patience: float | None = None, **wanted: Any) -> str:
        """Start a follower and let it run until a second; the sentence with which it ended."""
        self._until = until
        tail = Tail(self.file)
        places = PlaceFile(self.folder / "state", "http://x", RUN)
        shipping = Shipping(
            self,  # type: ignore[arg-type]
            Run(run_id=RUN),
            config={},
            clock=lambda: self.exporter.now,
            unix=lambda: self.exporter.now,
            say=self.said.append,
            patience=patience,
        )
        follower = Follower(
            tail,
            shipping,
            places,
            Wanted(**wanted),
            clock=lambda: self.exporter.now,
            unix=lambda: self.exporter.now,
            stop=self,
            say=self.said.append,
        )
        try:
            return follower.run()
        finally:
            tail.close()
            places.close()

    def pass_time(self, until: float) -> None:
        """Without a follower."""
        self._until = until
        while not self.is_set():
            self.wait(0.5)

    @property
    def state(self) -> Any:
        return self.exporter.run(RUN).state

    @property
    def incidents(self) -> dict[str, Any]:
        return self.exporter.incidents(RUN)

    @property
    def steps_pushed(self) -> list[tuple[int, int]]:
        """(attempt, step) of every step that the exporter took, in order; a batch that it had already is left out."""
        seen: set[tuple[str, int]] = set()
        found = []
        for batch in self.batches:
            if (batch.sender.id, batch.seq) not in seen:
                seen.add((batch.sender.id, batch.seq))
                found += [(batch.run.attempt, step.step) for step in batch.steps]
        return found
