"""Follows one file until it is told to stop or the run is over. Called by ``verl-sentinel follow``.

A follower's sign of life is not the trainer's. Between two step lines it reports the phase ``step`` as open, with its
age: whether that is too long for this run is the exporter's to judge (``stalled_phase``), and a follower that is itself
gone is told from a trainer that hangs (``silent_run``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from exporter.follow.lives import next_attempt
from exporter.follow.parsing import Garbage, parse_jsonl
from exporter.follow.place import Place, PlaceFile, PlaceUnusable
from exporter.follow.reading import Reader
from exporter.follow.shipping import GiveUp, Shipping
from exporter.follow.tail import ANCHOR_BYTES, FileUnreadable, Line, Tail, anchor_of

POLL_SECONDS = 0.5
BEAT_SECONDS = 2.0
LINGER_SECONDS = 10.0
"""After the last step its validation may still be logged."""
SLICE_BYTES = 1024 * 1024
"""Read at a time, so that pushing takes turns with reading."""

Kind = Literal["auto", "jsonl", "console"]


class Stop(Protocol):
    """A ``threading.Event``, or what a test has for one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


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
        say: tells a person.
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
        stop: Stop,
        say: Callable[[str], None],
    ) -> None:
        self._tail, self._shipping, self._places, self._wanted = tail, shipping, places, wanted
        self._clock, self._unix, self._stop, self._say = clock, unix, stop, say
        self._reader = Reader(str(tail.path), "" if wanted.kind == "auto" else wanted.kind, unix=unix, say=say)
        self._place = Place(file=str(tail.path))
        """After the last line that was pushed; the reader's cursor is after the last that was read."""
        self._to_confirm = False
        """Whether the place was kept by another life of this program, and the exporter has not confirmed it yet."""
        self._began = False
        """Whether reading has begun: a file that is new from then on is another start of the trainer."""
        self._reading_again = False
        self._last_line = 0.0
        self._next_beat = 0.0
        self._missing = False
        self._trouble = ""

    def run(self) -> str:
        """Follow; the sentence with which it ended. Raises :class:`GiveUp`, :class:`PlaceUnusable` and
        :class:`FileUnreadable` with sentences."""
        kept = self._places.read()
        while not self._stop.is_set():
            if kept is not None and self._tail.exists():
                self._restore(kept)
                kept = None
            if kept is not None:
                self._tell_missing(True)
            read = kept is None and self._read()
            pushed = self._push()
            if not (read or pushed):
                if self._over():
                    return f"The run is over after step {self._reader.cursor.step}. {self._told()}"
                done = self._wanted.once and self._shipping.empty and not self._to_confirm
                if done and self._end_of_file():
                    return f"{self._tail.path} was read to its end. {self._told()}"
            self._beat()
            if not (read or pushed):
                self._stop.wait(POLL_SECONDS)
        return f"Stopped. {self._told()} A later start goes on from here."

    def _told(self) -> str:
        garbage, refused = self._reader.garbage, self._shipping.refused
        pushed = self._shipping.pushed
        parts = ["1 step line was pushed" if pushed == 1 else f"{pushed} step lines were pushed"]
        parts += ["1 line was no step" if garbage == 1 else f"{garbage} lines were no steps"] if garbage else []
        parts += [f"{refused} {'was' if refused == 1 else 'were'} refused"] if refused else []
        return ", ".join(parts) + "."

    # Where to begin

    def _restore(self, kept: Place) -> None:
        """Go on where another life of this program was."""
        tail, reader, self._began = self._tail, self._reader, True
        reader.kind = reader.kind or kept.kind
        if kept.file == str(tail.path) and tail.start_at(kept.offset, kept.anchor):
            self._place, self._to_confirm = kept, True
            reader.cursor, reader.last_step = kept.now, kept.last_step
            changed = tail.changed_at()
            if reader.cursor.begun:
                # A trainer that hung while nobody followed it has hung since the file was last written.
                age = 0.0 if changed is None else max(0.0, self._unix() - changed)
                reader.step_since = self._clock() - age
            return
        cursor = kept.now
        if reader.kind != "console" and (cursor.begun or kept.offset):
            cursor = next_attempt(cursor)
        self._place.start = self._place.now = reader.cursor = cursor
        self._say(f"{tail.path} is not what was followed before: it is read from its beginning.")

    def _rewind(self) -> None:
        """The exporter has less than was pushed (it forgot the run, or its data were lost): all is read again."""
        self._say("The exporter does not have what was pushed to it before: the file is pushed from its beginning.")
        self._to_confirm, self._reading_again = False, True
        self._shipping.clear()
        self._tail.close()
        self._place.now = self._reader.cursor = self._place.start
        self._place.offset, self._place.anchor = 0, "0:"

    # Reading

    def _read(self) -> bool:
        """Read some lines; whether there were any."""
        reader = self._reader
        if self._shipping.full:
            reader.live = False
            return False
        found = False
        now = self._clock()
        try:
            change = self._tail.look()
            if change == "new":
                self._file_is_new()
            self._tell_missing(change in ("gone", "missing"))
            for line in self._tail.lines(SLICE_BYTES):
                found = True
                self._line(line, now)
        except FileUnreadable as error:
            if self._wanted.once or not self._began:
                raise
            self._tell_trouble(f"{error} This program tries again.")
            return False
        reader.live = reader.live or not found
        return found

    def _line(self, line: Line, now: float) -> None:
        for item in self._reader.take(line, now, self._place.skip_to):
            self._last_line = now
            self._shipping.add(item)

    def _file_is_new(self) -> None:
        """Reading is at the first byte of a file."""
        if self._reading_again:
            self._reading_again = False
            return
        place, reader, first = self._place, self._reader, not self._began
        self._began = True
        if not first:
            self._say(f"{self._tail.path} begins anew.")
            if reader.kind != "console":
                # verl truncates its file at a start of the trainer and at no other time. What a console log is split
                # by may be anything: there the lines tell.
                reader.cursor = next_attempt(reader.cursor)
                reader.step_since = None
        place.start = reader.cursor
        place.skip_to = self._tail.size() if first and self._wanted.from_end else 0
        reader.last_step = 0
        if self._shipping.empty:
            place.now, place.offset, place.anchor = reader.cursor, 0, "0:"
            self._save()

    def _tell_missing(self, missing: bool) -> None:
        if missing and not self._missing and not self._wanted.once:
            what = "was removed" if self._reader.cursor.begun else "is not there"
            self._say(f"{self._tail.path} {what}: waiting for it.")
        self._missing = missing

    def _tell_trouble(self, sentence: str) -> None:
        if sentence != self._trouble:
            self._trouble = sentence
            self._say(sentence)

    # Pushing

    def _push(self) -> bool:
        """Push one batch; whether something was done."""
        if not self._shipping.ready:
            return False
        if self._to_confirm and self._place.now.begun:
            known = self._shipping.lines_known(self._place.now)
            if known is None:
                return False
            if known < self._place.now.index:
                self._rewind()
                return True
        self._to_confirm = False
        last = self._shipping.push()
        if last is None:
            return False
        place = self._place
        place.now, place.offset, place.anchor, place.finished = last.cursor, last.offset, last.anchor, False
        self._save()
        return True

    def _save(self) -> None:
        self._place.kind, self._place.last_step = self._reader.kind, self._reader.last_step
        try:
            self._places.write(self._place)
        except PlaceUnusable as error:
            self._tell_trouble(f"{error} Until it can, a restart of this program may miss a restart of the trainer.")

    def _beat(self) -> None:
        """A sign of life; not before older attempts are told of, which it would put an end to."""
        now, cursor = self._clock(), self._reader.cursor
        if now < self._next_beat or self._wanted.once or not self._began or not self._shipping.ready:
            return
        waiting = self._shipping.next_cursor()
        if self._to_confirm or (waiting is not None and waiting.attempt != cursor.attempt):
            return
        self._next_beat = now + BEAT_SECONDS
        if self._place.finished:
            if not self._shipping.begin_again(cursor):
                return
            self._place.finished = False
            self._save()
        since = self._reader.step_since
        self._shipping.beat(cursor, None if since is None or not cursor.begun else max(0.0, now - since))

    # Ending

    def _last_step_is_logged(self) -> bool:
        last, step = self._wanted.last_step or self._reader.last_step, self._reader.cursor.step
        return bool(last) and step is not None and step >= last

    def _over(self) -> bool:
        """Whether the last step has been pushed, and nothing came after it for a while; the exporter is told."""
        if self._wanted.once or not self._last_step_is_logged() or not self._shipping.empty:
            return False
        return self._clock() - self._last_line >= LINGER_SECONDS and self._finish(0)

    def _finish(self, exit_code: int | None) -> bool:
        if self._place.finished:
            return True
        if not self._shipping.ready or not self._shipping.finish(self._reader.cursor, exit_code):
            return False
        self._place.finished = True
        self._save()
        return True

    def _end_of_file(self) -> bool:
        """The end of ``--once``: a last line without its end counts where it is whole. False where it was stopped."""
        tail, reader = self._tail, self._reader
        rest = tail.rest()
        if rest.strip() and reader.kind == "jsonl" and not isinstance(next(parse_jsonl(rest)), Garbage):
            self._line(Line(rest, tail.offset + len(rest), anchor_of(rest[-ANCHOR_BYTES:])), self._clock())
        elif rest.strip():
            reader.leave_out("the last line has no end")
        if not reader.cursor.begun:
            why = "is not there" if self._missing else "holds no step that verl logged"
            raise GiveUp(f"{tail.path} {why}: nothing was pushed.")
        while not self._shipping.empty and not self._stop.is_set():
            if not self._push():
                self._stop.wait(POLL_SECONDS)
        code = 0 if self._last_step_is_logged() else None
        while not self._stop.is_set() and not self._finish(code):
            self._stop.wait(POLL_SECONDS)
        return not self._stop.is_set()
