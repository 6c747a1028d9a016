"""From lines to steps that wait to be pushed: each with its attempt, its number and its duration. Called by the
follower."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from exporter.follow.lives import Cursor, after
from exporter.follow.parsing import Garbage, LastStep, Logged, Parser, kind_of, parse_console, parse_jsonl
from exporter.follow.shipping import Item
from exporter.follow.tail import Line
from exporter.protocol import Number, Step

STEP_TIMES = ("timing_s/step", "perf/time_per_step")
LONGEST_SECONDS = 1e8
PARSERS: dict[str, Parser] = {"jsonl": parse_jsonl, "console": parse_console}


class Reader:
    """What was read so far. ``kind`` is empty until a line has told.

    Args:
        file: name of the file, for a person.
        kind: ``jsonl``, ``console`` or empty.
        unix: Unix seconds.
        say: tells a person.
    """

    def __init__(self, file: str, kind: str, *, unix: Callable[[], float], say: Callable[[str], None]) -> None:
        self._file = file
        self._unix = unix
        self._say = say
        self.kind = kind
        self.cursor = Cursor()
        """After the last line."""
        self.last_step = 0
        """What verl said in the log; 0 where it has not."""
        self.step_since: float | None = None
        """When the newest step line was read, by the monotonic clock; None before the first of an attempt."""
        self.live = False
        """Whether lines are read when they are written, so that the time between two of them means something."""
        self.garbage = 0

    def take(self, line: Line, now: float, skip_to: int) -> Iterator[Item]:
        """The steps in a line that ends after ``skip_to``; lines before are only counted."""
        if line.text is None:
            self.leave_out("a line is longer than 4 MiB")
            return
        for found in self._parser(line.text)(line.text):
            if isinstance(found, Garbage):
                self.leave_out(found.reason)
            elif isinstance(found, LastStep):
                self.last_step = found.step
            else:
                item = self._item(found, line, line.text, now)
                if line.end > skip_to:
                    yield item

    def leave_out(self, reason: str) -> None:
        """Count a line that is no step; the first is told of."""
        self.garbage += 1
        if self.garbage == 1:
            self._say(f"A line of {self._file} is left out, and others may be without a word: {reason}.")

    def _parser(self, line: bytes) -> Parser:
        if not self.kind:
            parser = kind_of(line)
            self.kind = next((kind for kind, it in PARSERS.items() if it is parser), "")
        if self.kind:
            return PARSERS[self.kind]
        return parse_jsonl if line.startswith(b'{"step"') else parse_console

    def _item(self, found: Logged, line: Line, text: bytes, now: float) -> Item:
        before = self.cursor
        cursor = self.cursor = after(before, found, text, appended=self.kind != "jsonl")
        if cursor.attempt != before.attempt:
            self._say(f"The trainer was started anew: attempt {cursor.attempt}.")
        seconds = self._duration(before, cursor, found, now)
        metrics: dict[str, Number] = dict(found.metrics)
        step = Step(step=found.step, metrics=metrics, time=self._unix() if self.live else 0.0)
        return Item(cursor, line.end, line.anchor, len(text), step, seconds)

    def _duration(self, before: Cursor, cursor: Cursor, found: Logged, now: float) -> float | None:
        """How long the step took: what verl says, or the time since the line before, whichever is longer.

        None where neither is known, and for a second line of the same step.
        """
        same = cursor.sender == before.sender
        if same and before.step is not None and found.step <= before.step:
            return None
        said = next((found.metrics[name] for name in STEP_TIMES if name in found.metrics), math.nan)
        known = [said] if 0.0 <= said < LONGEST_SECONDS else []
        if self.live and same and self.step_since is not None and now > self.step_since:
            known.append(now - self.step_since)
        self.step_since = now
        return max(known, default=None)
