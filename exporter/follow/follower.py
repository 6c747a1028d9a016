"""Follows one file until it is told to stop or the run is over. Called by ``verl-sentinel follow``.

A follower's sign of life is not the trainer's. Between two step lines it reports the phase ``step`` as open, with its
age: whether that is too long for this run is the exporter's to judge (``stalled_phase``), and a follower that is itself
gone is told from a trainer that hangs (``silent_run``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from exporter.follow.lives import Cursor, after, next_attempt
from exporter.follow.parsing import Garbage, LastStep, Logged, Parser, kind_of, parse_console, parse_jsonl
from exporter.follow.place import Place, PlaceFile, PlaceUnusable
from exporter.follow.shipping import GiveUp, Item, Shipping
from exporter.follow.tail import ANCHOR_BYTES, FileUnreadable, Tail, anchor_of
from exporter.protocol import Number, Step

POLL_SECONDS = 0.5
BEAT_SECONDS = 2.0
LINGER_SECONDS = 10.0
"""After the last step its validation may still be logged."""
SLICE_BYTES = 1024 * 1024
"""Read at a time, so that pushing takes turns with reading."""
STEP_TIMES = ("timing_s/step", "perf/time_per_step")

Kind = Literal["auto", "jsonl", "console"]
PARSERS: dict[str, Parser] = {"jsonl": parse_jsonl, "console": parse_console}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for. ``last_step``: 0 where not known."""

    kind: Kind = "auto"
    from_end: bool = False
    once: bool = False
    last_step: int = 0


class Follower:
    """Joins the parts; all of them come from outside.

    Args:
        clock: monotonic seconds.
        unix: Unix seconds.
        stop: set by a signal; also waited on, so that stopping takes no poll.
    """

    def __init__(
        self,
        tail: Tail,
        shipping: Shipping,
        places: PlaceFile,
        wanted: Wanted,
        *,
        clock: Callable[[], float],
        unix: Callable[[], float],
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self._tail, self._shipping, self._places, self._wanted = tail, shipping, places, wanted
        self._clock, self._unix, self._stop, self._say = clock, unix, stop, say
        self._place = Place(file=str(tail.path), kind="" if wanted.kind == "auto" else wanted.kind)
        self._cursor = Cursor()
        """After the last line that was read; ``_place.now`` is after the last one that was pushed."""
        self._parser: Parser | None = PARSERS.get(wanted.kind)
        self._known_from_before = False
        """Whether the place was kept by another life of this program, and the exporter has not confirmed it yet."""
        self._began = False
        """Whether reading has begun: a file that is new from then on is another start of the trainer."""
        self._reading_again = False
        self._step_since: float | None = None
        """When the newest step line was seen, by ``clock``; None before the first."""
        self._timed = False
        """Whether that moment says when the line was written."""
        self._next_beat = 0.0
        self._last_seen = 0.0
        self._missing = False
        self._trouble = ""
        self.garbage = 0
        self.left_out = 0

    def run(self) -> str:
        """Follow; the sentence with which it ended. Raises :class:`GiveUp`, :class:`PlaceUnusable` and
        :class:`FileUnreadable` with sentences."""
        kept = self._places.read()
        while not self._stop.is_set():
            if kept is not None and self._tail.exists():
                self._restore(kept)
                kept = None
            read = kept is None and self._read()
            pushed = self._push()
            if not read and self._over():
                return f"The run is over after step {self._cursor.step}. {self._told()}"
            if self._wanted.once and not read and not pushed and self._shipping.empty:
                self._end_of_file()
                if not self._stop.is_set():
                    return f"{self._tail.path} was read to its end. {self._told()}"
            if kept is not None:
                self._tell_missing(True)
            self._beat()
            if not (read or pushed):
                self._stop.wait(POLL_SECONDS)
        return f"Stopped. {self._told()} A later start goes on from here."

    def _told(self) -> str:
        parts = [f"{self._shipping.pushed} step lines were pushed"]
        parts += [f"{self.garbage} lines were no steps"] if self.garbage else []
        parts += [f"{self._shipping.refused} were refused"] if self._shipping.refused else []
        return ", ".join(parts) + "."

    # Where to begin

    def _restore(self, kept: Place) -> None:
        """Go on where another life of this program was."""
        tail, self._began = self._tail, True
        if self._parser is None:
            self._parser = PARSERS.get(kept.kind)
        if kept.file == str(tail.path) and tail.start_at(kept.offset, kept.anchor):
            self._place, self._cursor, self._known_from_before = kept, kept.now, True
            changed = tail.changed_at()
            if self._cursor.begun:
                # A trainer that hung while nobody followed it has hung since the file was last written.
                age = 0.0 if changed is None else max(0.0, self._unix() - changed)
                self._step_since = self._clock() - age
            return
        cursor = kept.now
        if self._parser is not parse_console and (cursor.begun or kept.offset):
            cursor = next_attempt(cursor)
        self._place.start = self._place.now = self._cursor = cursor
        self._place.kind = kept.kind
        self._say(f"{tail.path} is not what was followed before: it is read from its beginning.")

    def _rewind(self) -> None:
        """The exporter has less than was pushed (it forgot the run, or its data were lost): all is read again."""
        self._say("The exporter does not have what was pushed to it before: the file is pushed from its beginning.")
        self._known_from_before, self._reading_again = False, True
        self._shipping.clear()
        self._tail.close()
        self._place.now = self._cursor = self._place.start
        self._place.offset, self._place.anchor = 0, "0:"

    # Reading

    def _read(self) -> bool:
        """Read some lines; whether there were any."""
        if self._shipping.full:
            self._timed = False
            return False
        try:
            change = self._tail.look()
            if change == "new":
                self._file_is_new()
            self._tell_missing(change in ("gone", "missing"))
            found = False
            now = self._clock()
            for line in self._tail.lines(SLICE_BYTES):
                found = True
                if line.text is None:
                    self._count_garbage("a line is longer than 4 MiB")
                else:
                    self._line(line.text, line.end, line.anchor, now)
        except FileUnreadable as error:
            if self._wanted.once or (self._place.offset == 0 and not self._cursor.begun):
                raise
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"{error} This program tries again.")
            return False
        self._trouble = ""
        self._timed = self._timed or not found
        return found

    def _file_is_new(self) -> None:
        """Reading is at the first byte of a file."""
        if self._reading_again:
            self._reading_again = False
            return
        place, cursor, first = self._place, self._cursor, not self._began
        self._began = True
        if not first:
            self._say(f"{self._tail.path} begins anew.")
            if self._parser is not parse_console:
                # verl truncates its file at a start of the trainer and at no other time. What a console log is split
                # by may be anything: there the lines tell.
                cursor = self._cursor = next_attempt(cursor)
                self._step_since = None
        place.start = cursor
        place.skip_to = self._size_now() if first and self._wanted.from_end else 0
        place.last_step = 0
        if self._shipping.empty:
            place.now, place.offset, place.anchor = cursor, 0, "0:"
            self._save()

    def _size_now(self) -> int:
        try:
            return self._tail.path.stat().st_size
        except OSError:
            return 0

    def _tell_missing(self, missing: bool) -> None:
        if missing and not self._missing and not self._wanted.once:
            self._say(f"{self._tail.path} {'was removed' if self._cursor.begun else 'is not there'}: waiting for it.")
        self._missing = missing

    def _line(self, text: bytes, end: int, anchor: str, now: float) -> None:
        parser = self._parser
        if parser is None:
            parser = self._parser = kind_of(text)
            if parser is None and text.startswith(b'{"step"'):
                parser = parse_jsonl
            elif parser is not None:
                self._place.kind = "jsonl" if parser is parse_jsonl else "console"
        for found in (parser or parse_console)(text):
            if isinstance(found, Garbage):
                self._count_garbage(found.reason)
            elif isinstance(found, LastStep):
                self._place.last_step = found.step
            else:
                self._logged(found, text, end, anchor, now)

    def _count_garbage(self, reason: str) -> None:
        self.garbage += 1
        if self.garbage == 1:
            self._say(f"A line of {self._tail.path} is left out, and more may be, untold: {reason}.")

    def _logged(self, found: Logged, text: bytes, end: int, anchor: str, now: float) -> None:
        before = self._cursor
        cursor = self._cursor = after(before, found, text, appended=self._parser is not parse_jsonl)
        if cursor.attempt != before.attempt:
            self._say(f"The trainer was started anew: attempt {cursor.attempt}.")
        self._last_seen = now
        self.left_out += found.left_out
        seconds = self._duration(before, cursor, found, now)
        if end <= self._place.skip_to:
            return
        metrics: dict[str, Number] = dict(found.metrics)
        step = Step(step=found.step, metrics=metrics, time=self._unix() if self._timed else 0.0)
        self._shipping.add(Item(cursor, end, anchor, len(text), step, seconds))

    def _duration(self, before: Cursor, cursor: Cursor, found: Logged, now: float) -> float | None:
        """How long the step took: what verl says, or the time since the line before, whichever is longer.

        None for a second line of the same step.
        """
        if cursor.sender == before.sender and before.step is not None and found.step <= before.step:
            return None
        said = [found.metrics[name] for name in STEP_TIMES if name in found.metrics]
        known = [value for value in said[:1] if math.isfinite(value) and 0.0 <= value < 1e8]
        if self._timed and self._step_since is not None and cursor.sender == before.sender:
            known += [now - self._step_since] if now > self._step_since else []
        self._step_since = now
        return max(known, default=None)

    # Pushing

    def _push(self) -> bool:
        """Push one batch; whether something was done."""
        if not self._shipping.ready:
            return False
        cursor = self._shipping.next_cursor()
        if self._known_from_before and self._cursor.begun:
            known = self._shipping.lines_known(self._place.now)
            if known is None:
                return False
            if known < self._place.now.index:
                self._rewind()
                return True
            self._known_from_before = False
        if cursor is None:
            return False
        last = self._shipping.push()
        if last is None:
            return False
        place = self._place
        place.now, place.offset, place.anchor, place.finished = last.cursor, last.offset, last.anchor, False
        self._save()
        return True

    def _save(self) -> None:
        try:
            self._places.write(self._place)
        except PlaceUnusable as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"{error} Until it can, a restart of this program may miss a restart of the trainer.")

    def _beat(self) -> None:
        """A sign of life; not before older attempts are told of, which it would put an end to."""
        now = self._clock()
        waiting = self._shipping.next_cursor()
        early = now < self._next_beat or self._wanted.once or not self._shipping.ready
        if early or self._missing_from_the_start() or (waiting and waiting.attempt != self._cursor.attempt):
            return
        self._next_beat = now + BEAT_SECONDS
        if self._place.finished:
            if not self._shipping.begin_again(self._cursor):
                return
            self._place.finished = False
            self._save()
        age = None if self._step_since is None or not self._cursor.begun else max(0.0, now - self._step_since)
        self._shipping.beat(self._cursor, age)

    def _missing_from_the_start(self) -> bool:
        return self._missing and not self._cursor.begun and not self._known_from_before

    # Ending

    def _over(self) -> bool:
        """Whether the last step has been pushed, and nothing came after it for a while; the exporter is told."""
        last = self._wanted.last_step or self._place.last_step
        if self._wanted.once or not self._reached(last) or not self._shipping.empty:
            return False
        return self._clock() - self._last_seen >= LINGER_SECONDS and self._finish(0)

    def _reached(self, last: int) -> bool:
        return bool(last) and self._cursor.step is not None and self._cursor.step >= last

    def _finish(self, exit_code: int | None) -> bool:
        if self._place.finished:
            return True
        if not self._shipping.ready or not self._shipping.finish(self._cursor, exit_code):
            return False
        self._place.finished = True
        self._save()
        return True

    def _end_of_file(self) -> None:
        """The end of ``--once``: a last line without its end counts where it is whole."""
        rest = self._tail.rest()
        if rest.strip() and self._parser is parse_jsonl and not isinstance(next(parse_jsonl(rest)), Garbage):
            end = self._tail.offset + len(rest)
            self._line(rest, end, anchor_of(rest[-ANCHOR_BYTES:]), self._clock())
        elif rest.strip():
            self._count_garbage("the last line has no end")
        while not self._shipping.empty and not self._stop.is_set():
            if not self._push():
                self._stop.wait(POLL_SECONDS)
        if not self._cursor.begun:
            why = "is not there" if self._missing else "holds no step that verl logged"
            raise GiveUp(f"{self._tail.path} {why}: nothing was pushed.")
        code = 0 if self._reached(self._wanted.last_step or self._place.last_step) else None
        while not self._stop.is_set() and not self._finish(code):
            self._stop.wait(POLL_SECONDS)
