"""The exporter's side of a followed run: what waits to be pushed, in which order, and what was answered. Called by the
follower.

Sequence number 1 of an attempt's sender says that the attempt began, and line n has number n + 1; a batch has the
number of its last line. The answer to number 1, which is sent again by every life of this program, tells how many lines
the exporter has. So nothing is taken twice, whenever this program is killed, and nothing has to be kept for it here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace as changed

from exporter.follow.delivery import Delivery, Reply
from exporter.follow.lives import Cursor
from exporter.protocol import (
    PROTOCOL_VERSION,
    Batch,
    ClosedPhase,
    Event,
    OpenPhase,
    PhaseReport,
    Run,
    RunFinished,
    RunStarted,
    Sender,
    Step,
)

MOST_STEPS = 200
MOST_BYTES = 2 * 1024 * 1024
"""Of lines, in one push."""
WAITING_BYTES = 16 * 1024 * 1024
"""Of lines that were read and wait. While there are more the file is not read on: it keeps them."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Item:
    """A step line that waits. ``cursor``: the place after it."""

    cursor: Cursor
    offset: int
    anchor: str
    size: int
    step: Step
    seconds: float | None
    """Duration of the step, where it is known and the step is a new one."""


class GiveUp(Exception):
    """Nothing more can be done; the text is a sentence."""


class Shipping:
    """What waits to be pushed.

    Args:
        run: identity; the attempt in it is replaced by each line's.
        clock: monotonic seconds.
        unix: Unix seconds.
        say: tells a person.
        patience: seconds without an answer after which to give up; None: never.
    """

    def __init__(
        self,
        delivery: Delivery,
        run: Run,
        *,
        config: dict[str, str],
        clock: Callable[[], float],
        unix: Callable[[], float],
        say: Callable[[str], None],
        patience: float | None,
    ) -> None:
        self._delivery = delivery
        self._run = run
        self._config = config
        self._clock = clock
        self._unix = unix
        self._say = say
        self._patience = patience
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._sending: list[Item] = []
        """A push that got no answer: it is sent again as it was, for it may have been taken."""
        self._singly = 0
        """So many items are sent one by one, because one of them made their batch be refused."""
        self._known: dict[str, int] = {}
        """Sender to the lines that the exporter has of it."""
        self._beats: dict[int, int] = {}
        """Attempt to the highest sequence number of its heartbeats."""
        self._pause = 0.0
        self._not_before = 0.0
        self._failing_since: float | None = None
        self.answered = False
        """Whether the exporter ever took anything."""
        self.pushed = 0
        self.refused = 0

    @property
    def full(self) -> bool:
        return self._waiting_bytes >= WAITING_BYTES

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._sending

    @property
    def ready(self) -> bool:
        """Whether the pause after a failure is over."""
        return self._clock() >= self._not_before

    def add(self, item: Item) -> None:
        self._waiting.append(item)
        self._waiting_bytes += item.size

    def clear(self) -> None:
        """Forget what waits: it will be read again."""
        self._waiting.clear()
        self._sending.clear()
        self._waiting_bytes = 0

    def lines_known(self, cursor: Cursor) -> int | None:
        """How many lines the exporter has of an attempt, told that the attempt began; None where it does not answer."""
        if cursor.sender not in self._known:
            started = RunStarted(time=self._unix(), config=dict(self._config))
            reply = self._post(cursor, cursor.sender, 1, events=[started])
            if reply is None:
                return None
            if reply.outcome == "refused":
                raise GiveUp(f"The exporter refused the run: {reply.detail}.")
            self._known[cursor.sender] = reply.accepted_seq - 1
        return self._known[cursor.sender]

    def next_cursor(self) -> Cursor | None:
        """The place after the next line that waits."""
        if self._sending:
            return self._sending[0].cursor
        return self._waiting[0].cursor if self._waiting else None

    def push(self) -> Item | None:
        """Push one batch, or leave out what the exporter has; the last item that is dealt with, if there is one."""
        if not self._sending:
            cursor = self.next_cursor()
            known = None if cursor is None else self.lines_known(cursor)
            if cursor is None or known is None:
                return None
            skipped = self._take(lambda item: item.cursor.sender == cursor.sender and item.cursor.index <= known)
            if skipped:
                return skipped[-1]
            self._sending = self._take(self._fits(cursor))
        batch = self._sending
        last = batch[-1]
        steps = [item.step for item in batch]
        sender, seq = last.cursor.sender, last.cursor.index + 1
        reply = self._post(last.cursor, sender, seq, steps=steps, phase=_closed(batch))
        if reply is None:
            return None
        if reply.outcome == "refused" and len(batch) > 1:
            self._singly = len(batch)
            self._waiting.extendleft(reversed(batch))
            self._waiting_bytes += sum(item.size for item in batch)
            self._sending = []
            return None
        self._singly = max(0, self._singly - 1)
        self._sending = []
        if reply.outcome == "refused":
            self.refused += 1
            if self.refused == 1:
                self._say(f"The exporter refused step {last.step.step}, which is left out: {reply.detail}.")
        else:
            self.pushed += len(batch)
            self._known[last.cursor.sender] = max(self._known.get(last.cursor.sender, 0), reply.accepted_seq - 1)
        return last

    def _take(self, belongs: Callable[[Item], bool]) -> list[Item]:
        taken: list[Item] = []
        while self._waiting and belongs(self._waiting[0]):
            taken.append(self._waiting.popleft())
            self._waiting_bytes -= taken[-1].size
        return taken

    def _fits(self, cursor: Cursor) -> Callable[[Item], bool]:
        most = 1 if self._singly else MOST_STEPS
        steps = size = 0

        def fits(item: Item) -> bool:
            nonlocal steps, size
            steps, size = steps + 1, size + item.size
            same = item.cursor.sender == cursor.sender
            return same and (steps == 1 or (steps <= most and size <= MOST_BYTES))

        return fits

    def beat(self, cursor: Cursor, open_seconds: float | None, events: Sequence[Event] = ()) -> bool:
        """Say that the run is watched, and for how long its step has been open; whether that was taken."""
        phases = [] if open_seconds is None else [OpenPhase(name="step", seconds=open_seconds)]
        phase = PhaseReport(step=(cursor.step or 0) + (1 if phases else 0), open=phases)
        attempt = cursor.attempt
        if attempt not in self._beats:
            # Of an earlier life of this program there may be many: what the exporter has tells where to go on.
            reply = self._post(cursor, f"follow-{attempt}", 1, phase=phase)
            if reply is None:
                return False
            if reply.outcome == "refused":
                raise GiveUp(f"The exporter refused the run: {reply.detail}.")
            self._beats[attempt] = reply.accepted_seq
            if not reply.duplicate and not events:
                return True
        seq = self._beats[attempt] + 1
        reply = self._post(cursor, f"follow-{attempt}", seq, phase=phase, events=list(events))
        if reply is None:
            return False
        self._beats[attempt] = max(seq, reply.accepted_seq)
        return reply.outcome == "accepted"

    def finish(self, cursor: Cursor, exit_code: int | None) -> bool:
        """Say that the run is over."""
        return self.beat(cursor, None, [RunFinished(time=self._unix(), exit_code=exit_code)])

    def begin_again(self, cursor: Cursor) -> bool:
        """Say that a run of which it was said that it is over goes on."""
        return self.beat(cursor, None, [RunStarted(time=self._unix(), config=dict(self._config))])

    def _post(self, cursor: Cursor, sender: str, seq: int, **parts: object) -> Reply | None:
        """The answer; None where it has to be sent again later. Raises :class:`GiveUp`."""
        batch = Batch(
            protocol=PROTOCOL_VERSION,
            run=changed(self._run, attempt=cursor.attempt),
            sender=Sender(id=sender, role="trainer"),
            seq=seq,
            sent_at=self._unix(),
        )
        reply = self._delivery.post(changed(batch, **parts))
        if reply.outcome in ("accepted", "refused"):
            self.answered = self.answered or reply.outcome == "accepted"
            if self._failing_since is not None:
                self._say("The exporter answers again.")
            self._failing_since, self._pause, self._not_before = None, 0.0, 0.0
            return reply
        if reply.outcome == "unauthorized" and not self.answered:
            raise GiveUp(f"The exporter does not let this program push: {reply.detail}.")
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            self._say(f"The exporter takes nothing at the moment, so this program waits: {reply.detail}.")
        elif self._patience is not None and now - self._failing_since >= self._patience:
            raise GiveUp(f"The exporter has taken nothing for {self._patience:.0f} s: {reply.detail}.")
        self._pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2.0 * self._pause))
        self._not_before = now + max(self._pause, reply.retry_after)
        return None


def _closed(batch: Sequence[Item]) -> PhaseReport | None:
    closed = [ClosedPhase(name="step", seconds=item.seconds) for item in batch if item.seconds is not None]
    return PhaseReport(step=batch[-1].step.step, closed=closed) if closed else None
