"""Snapshots: the whole state of one run as bytes, and back. Called by the keeper and at start.

What belongs to the state is told by the annotations of the classes that hold it, so a field that is added there is in
the next snapshot without a line here; one that an older snapshot lacks takes its default.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Any, get_args, get_origin

import msgspec
from backports import zstd

from exporter.incidents import BookState, IncidentBook, Rules
from exporter.service.run_state import StateName, ending
from exporter.service.sequences import Sequences
from exporter.service.state import RunState
from exporter.service.watch import Detectors, WatchedRun

log = logging.getLogger("exporter.snapshot")

VERSION = 1
"""Raised when a reader of the old version would misread the new one; fields with defaults do not raise it."""

LEVEL = 1


class SnapshotUnreadable(Exception):
    """The bytes are no snapshot of ours, or of another version; the text is a sentence."""


@dataclasses.dataclass
class _Stored:
    """What is written."""

    version: int
    state: RunState
    book: BookState
    detectors: dict[str, Any]
    seen: dict[str, Sequences]
    last_look: float
    detector_faults: dict[str, int]
    metrics: set[str] = dataclasses.field(default_factory=set)


def _plain(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    if hasattr(value, "state_dict"):
        return value.state_dict()
    raise NotImplementedError(f"{type(value).__name__} in the state of a run has no form for a snapshot")


def _rebuilt(kind: Any, plain: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is deque:
        return deque(msgspec.convert(plain, list[get_args(kind)[0]], dec_hook=_rebuilt))  # type: ignore[misc]
    if hasattr(kind, "load_state_dict"):
        rebuilt = kind()
        rebuilt.load_state_dict(plain)
        return rebuilt
    raise NotImplementedError(f"{kind} in the state of a run has no form for a snapshot")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(_Stored, dec_hook=_rebuilt)


def take(run: WatchedRun) -> bytes:
    """The whole state of a run."""
    stored = _Stored(
        version=VERSION,
        state=run.state,
        book=run.book.state(),
        detectors={d.name: d.state_dict() for d in (*run.detectors.step, *run.detectors.live)},
        seen=run.seen,
        last_look=run.last_look,
        detector_faults=dict(run.detector_faults),
        metrics=run.metrics,
    )
    return zstd.compress(_encoder.encode(stored), LEVEL)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of runs shows of one that is not in memory. Times are Unix seconds of the exporter's clock."""

    run_id: str
    project: str = ""
    experiment: str = ""
    trainer: str = ""
    verl_version: str = ""
    attempt: int = 0
    step: int | None = None
    steps_this_attempt: int = 0
    steps_total: int = 0
    open_incidents: int = 0
    first_seen: float = 0.0
    last_push: float = 0.0
    ended_at: float | None = None
    exit_code: int | None = None
    exit_summary: str = ""
    ending: str = ""
    """How it ended (:data:`exporter.service.run_state.Ending`); empty while it had not, or where nobody wrote it."""
    unresolved: bool = False
    """An incident waits for a person, or for its recovery."""

    @property
    def run_state(self) -> StateName:
        """The state of a run that is not in memory: it ended long ago, or was not heard for a week.

        >>> RunSummary(run_id="a").run_state, RunSummary(run_id="a", ended_at=5.0, exit_code=1).run_state
        ('silent', 'failed')
        """
        if self.ended_at is None:
            return "silent"
        if self.ending == "stopped":
            return "stopped"
        return "failed" if self.ending == "failed" or (not self.ending and self.exit_code) else "finished"


_summary = msgspec.msgpack.Decoder(RunSummary)


def summarise(run: WatchedRun) -> bytes:
    """The :class:`RunSummary` of a run, encoded."""
    state, identity = run.state, run.state.identity
    return msgspec.msgpack.encode(
        RunSummary(
            run_id=state.run_id,
            project=identity.project,
            experiment=identity.experiment,
            trainer=identity.trainer,
            verl_version=identity.verl_version,
            attempt=state.attempt,
            step=state.current,
            steps_this_attempt=state.steps_this_attempt,
            steps_total=state.steps_total,
            open_incidents=sum(1 for _ in run.book),
            first_seen=state.first_seen,
            last_push=state.last_push,
            ended_at=state.ended_at,
            exit_code=state.exit_code,
            exit_summary=state.exit_summary,
            # Whoever reads this does so long after a supervisor had its time to say how it ended.
            ending=ending(state, inf) or "",
            unresolved=run.book.unresolved(),
        )
    )


def read_summary(summary: bytes) -> RunSummary:
    """What :func:`summarise` gave. Raises :class:`SnapshotUnreadable`."""
    try:
        return _summary.decode(summary)
    except msgspec.DecodeError as error:
        raise SnapshotUnreadable(f"{error}") from error


def restore(body: bytes, make_detectors: Callable[[], Detectors], rules: Rules) -> WatchedRun:
    """What :func:`take` gave, as a run. Raises :class:`SnapshotUnreadable`.

    A detector whose options have changed since may refuse its old state; then it starts fresh.
    """
    try:
        stored = _decoder.decode(zstd.decompress(body))
    except (zstd.ZstdError, msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise SnapshotUnreadable(f"{error}") from error
    if stored.version != VERSION:
        raise SnapshotUnreadable(f"it has version {stored.version}, this program reads version {VERSION}")
    _bound_deques(stored.state)
    stored.state.config = {sys.intern(name): value for name, value in stored.state.config.items()}
    detectors = make_detectors()
    for detector in (*detectors.step, *detectors.live):
        if detector.name not in stored.detectors:
            continue
        try:
            detector.load_state_dict(stored.detectors[detector.name])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            name = stored.state.run_id
            log.warning(
                "Detector %s of run %s starts fresh: its old state does not fit (%r)", detector.name, name, error
            )
            fresh = {d.name: d for made in (make_detectors(),) for d in (*made.step, *made.live)}[detector.name]
            detector.load_state_dict(fresh.state_dict())
    book = IncidentBook(stored.state.run_id, rules)
    book.load(stored.book)
    return WatchedRun(
        state=stored.state,
        detectors=detectors,
        book=book,
        last_look=stored.last_look,
        detector_faults=Counter(stored.detector_faults),
        seen=stored.seen,
        metrics=set(map(sys.intern, stored.metrics)),
    )


def _bound_deques(holder: Any) -> None:
    """Give every deque the bound back that its field's default has; a list of items does not say it."""
    for field in dataclasses.fields(holder):
        value = getattr(holder, field.name)
        if isinstance(value, deque) and field.default_factory is not dataclasses.MISSING:
            setattr(holder, field.name, deque(value, maxlen=field.default_factory().maxlen))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_frozen(value):
            _bound_deques(value)


def _is_frozen(value: Any) -> bool:
    return bool(type(value).__dataclass_params__.frozen)
