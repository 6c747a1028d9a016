"""What a post-mortem is made of: one file that holds everything, so that it can be written again when more is known.

Gathered by the exporter at the end of a recovery, read by the process that writes. All of it is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exporter.protocol import SettingApplied
from exporter.recovery.record import AuditEntry, Recovery
from exporter.service.gradients import Histogram
from exporter.service.watch import WatchedRun

FORMAT = 1
MOST_AUDIT_LINES = 400
MOST_CHAIN = 20
TEXT_CHARACTERS = 2000


class MaterialUnreadable(ValueError):
    """The file is not one of ours, or of another version; the text is a sentence."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A logged step with its signals. Unix seconds of the exporter's clock."""

    step: int
    attempt: int
    at: float
    signals: dict[str, float]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, as far as a post-mortem tells of it."""

    id: str
    detector: str
    signal: str
    severity: str
    attempt: int
    onset: int
    first_step: int
    summary: str
    meaning: str
    advice: tuple[str, ...]
    opened_at: float


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The run."""

    project: str = ""
    experiment: str = ""
    trainer: str = ""
    verl_version: str = ""
    executor: str = ""
    attempt: int = 0
    step: int | None = None


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    format: int = FORMAT
    gathered_at: float
    recovery: Recovery
    chain: list[Recovery] = []
    """All recoveries of the same failure, the first one first; this one among them."""
    audit: list[AuditEntry] = []
    """Lines of this recovery, oldest first."""
    about: About = About()
    findings: list[Finding] = []
    steps: list[Step] = []
    """As far as they were remembered at the end, oldest first."""
    histograms: list[Histogram] = []
    settings: list[SettingApplied] = []
    spent: dict[str, float] = {}
    """Where the time of the whole run went, in seconds."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Material)


def encode(material: Material) -> bytes:
    return _encoder.encode(material)


def decode(body: bytes) -> Material:
    """Raises :class:`MaterialUnreadable`."""
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MaterialUnreadable(f"What the post-mortem is made of cannot be read: {error}.") from error
    if found.format != FORMAT:
        raise MaterialUnreadable(f"It is of format {found.format}, and this program reads format {FORMAT}.")
    return found


def gather(
    recovery: Recovery,
    history: Sequence[Recovery],
    audit: Sequence[AuditEntry],
    run: WatchedRun | None,
    now: float,
    before: Material | None = None,
) -> Material:
    """Everything about one recovery.

    Args:
        recovery: as it is now.
        history: all recoveries of its run, the newest first.
        audit: its lines, the newest first.
        run: None where it is not in memory any more.
        now: Unix seconds.
        before: what was gathered the first time; its steps and findings are those of the end.
    """
    about, findings, steps = About(), list[Finding](), list[Step]()
    histograms, settings, spent = list[Histogram](), list[SettingApplied](), dict[str, float]()
    if before is not None:
        about, findings, steps = before.about, before.findings, before.steps
        histograms, settings, spent = before.histograms, before.settings, before.spent
    elif run is not None:
        state, identity = run.state, run.state.identity
        about = About(
            project=identity.project,
            experiment=identity.experiment,
            trainer=identity.trainer,
            verl_version=identity.verl_version,
            executor=state.in_force.executor,
            attempt=state.attempt,
            step=state.current,
        )
        findings = _findings(run, recovery)
        steps = [Step(one.step, one.attempt, one.at, one.signals) for one in state.recent]
        histograms = [one for one in state.gradients.newest if one.attempt in (recovery.attempt, recovery.new_attempt)]
        settings = list(state.in_force.settings)
        spent = state.goodput.spent()
    return Material(
        gathered_at=now,
        recovery=recovery,
        chain=chain_of(recovery, history),
        audit=list(reversed(audit[:MOST_AUDIT_LINES])),
        about=about,
        findings=findings,
        steps=steps,
        histograms=histograms,
        settings=settings,
        spent=spent,
    )


def chain_of(recovery: Recovery, history: Sequence[Recovery]) -> list[Recovery]:
    """The recoveries that it climbed from and that climbed from it, the first one first."""
    known = {one.id: one for one in history}
    known[recovery.id] = recovery
    chain, seen = [recovery], {recovery.id}
    while len(chain) < MOST_CHAIN and (one := known.get(chain[0].climbed_from)) is not None and one.id not in seen:
        chain.insert(0, one)
        seen.add(one.id)
    while len(chain) < MOST_CHAIN and (one := known.get(chain[-1].climbed_to)) is not None and one.id not in seen:
        chain.append(one)
        seen.add(one.id)
    return chain


def _findings(run: WatchedRun, recovery: Recovery) -> list[Finding]:
    """The incidents of the attempts that it is about, as the book still has them; what opened first is first."""
    wanted = {str(one.get("id")) for one in recovery.incidents}
    attempts = (recovery.attempt, recovery.new_attempt)
    found = {
        one.id: Finding(
            id=one.id,
            detector=one.detector,
            signal=one.signal,
            severity=one.severity.label,
            attempt=one.attempt,
            onset=one.onset,
            first_step=one.first_step,
            summary=one.summary[:TEXT_CHARACTERS],
            meaning=one.meaning[:TEXT_CHARACTERS],
            advice=tuple(text[:TEXT_CHARACTERS] for text in one.advice[:10]),
            opened_at=one.opened_at,
        )
        for one in (*run.book.history, *run.book)
        if one.id in wanted or one.attempt in attempts
    }
    return sorted(found.values(), key=lambda one: one.opened_at)[:100]
