# ruff: noqa: RUF001, RUF002 - characters that look like others are what this puts in their place
"""What people get to read: the message made of an Alertmanager webhook. Called by :mod:`exporter.app.notify_route`.

The chat counterpart of ``rules/templates/verl.tmpl``, with the same order: title with severity and summary, what to do,
numbers, links, findings, the other alerts. The most important comes first, so that what does not fit is the rest.

What comes from a run may be hostile. Line ends become spaces, ``://`` and ``](`` are broken so that no chat makes a
link of it, ``@`` before a word and ``<`` before a tag are replaced, also in plain text, so that nobody is called by it;
and in Markdown what has a meaning is replaced by what looks like it, for chats do not agree on an escape.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Literal
from urllib.parse import quote

import msgspec

MAX_ALERTS = 1000
"""More alerts than this in one webhook are refused; Alertmanager groups by run and sends far fewer."""
MOST_LISTED = 8
"""Alerts that are named in one message; the number of all is always said."""
HARD_BREAK = "  \n"
"""A line end that every Markdown shows as one."""
BESIDE_LINK = 700
"""Bytes that the first link leaves to the text: the run and what to do."""
MOST_URL = 4000
"""Characters of an address: a run's name has 256, each of which may be twelve in an address."""


class Kind(enum.Enum):
    """What a message is, by its worst alert."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    RESOLVED = "resolved"


MARKS = {
    Kind.CRITICAL: "🔴 CRITICAL",
    Kind.WARNING: "🟡 WARNING",
    Kind.INFO: "ℹ️ INFO",
    Kind.RESOLVED: "✅ RESOLVED",
}


class NotifiedAlert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert, as Alertmanager writes it."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: str
    fingerprint: str
    annotations: dict[str, str] = {}
    ends_at: str = ""

    @property
    def kind(self) -> Kind:
        if self.status == "resolved":
            return Kind.RESOLVED
        severity = self.labels.get("severity", "")
        return Kind(severity) if severity in ("critical", "warning") else Kind.INFO

    @property
    def summary(self) -> str:
        return self.annotations.get("summary") or self.labels.get("alertname") or "an alert"


class Notification(msgspec.Struct, frozen=True, rename={"group_key": "groupKey", "external_url": "externalURL"}):
    """The body of the webhook, version 4; what else Alertmanager writes into it is not needed."""

    version: Literal["4"]
    alerts: list[NotifiedAlert]
    group_key: str
    external_url: str = ""


class Message:
    """One message.

    Args:
        title: in one line; with Markdown's characters replaced or not.
        kind: what it is.
        key: equal for two messages that say the same, so that one that is tried again is known.
        lines: makes the lines of the body, the most important first, in Markdown or not.
    """

    def __init__(
        self, title: Callable[[bool], str], kind: Kind, key: str, lines: Callable[[bool], Sequence[str]]
    ) -> None:
        self.title = title
        self.kind = kind
        self.key = key
        self._lines = lines

    def text(self, most: int) -> str:
        """The body as plain text, of at most as many bytes together with the title."""
        return _fitting(self._lines(False), most - len(self.title(False).encode()))

    def markdown(self, most: int) -> str:
        """The body in the Markdown that chats share, of at most as many bytes together with the title."""
        return _fitting(self._lines(True), most - len(self.title(True).encode()), HARD_BREAK, " · ")


_decoder = msgspec.json.Decoder(Notification)


def notification(body: bytes) -> Notification:
    """The webhook. Raises ``msgspec.DecodeError`` or its ``ValidationError`` with the place."""
    found = _decoder.decode(body)
    if not 1 <= len(found.alerts) <= MAX_ALERTS:
        raise msgspec.ValidationError(
            f"The webhook carries {len(found.alerts)} alerts, 1 to {MAX_ALERTS} are expected - at `$.alerts`"
        )
    return found


def message_of(it: Notification) -> Message:
    """What people get to read of it: firing alerts before those that are over, the worst first."""
    order = list(Kind)
    alerts = sorted(it.alerts, key=lambda alert: order.index(alert.kind))
    first, firing = alerts[0], sum(alert.status == "firing" for alert in alerts)
    count = firing or len(alerts)
    more = f" ({count} alerts)" if count > 1 else ""
    said = sorted((alert.fingerprint, alert.status, alert.starts_at) for alert in alerts)
    key = hashlib.sha256(msgspec.json.encode([it.group_key, said])).hexdigest()

    def title(rich: bool) -> str:
        return f"{MARKS[first.kind]} {_summary(first, markdown if rich else plain)}{more}"

    return Message(title, first.kind, key, lambda rich: _body(alerts, it.external_url, rich))


def test_message(who: str, now: str, key: str) -> Message:
    """What ``verl-sentinel notify test`` sends."""
    lines = [f"{plain(who, 100)} asked for it at {now}.", "Nothing has to be done."]
    return Message(lambda _: "ℹ️ TEST of verl-sentinel's notifications", Kind.INFO, key, lambda _: lines)


def plain(text: str, most: int) -> str:
    """In one line, bounded, and harmless as plain text.

    >>> plain("run <a>\\n[x](http://evil) @all", 100)
    'run ＜a> [x] (http:// evil) ＠all'
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    text = text if len(text) <= most else text[: most - 1] + "…"
    text = text.replace("://", ":// ").replace("](", "] (")
    return re.sub(r"@(?=\w)", "＠", re.sub(r"<(?=[\w/!@#])", "＜", text))


def markdown(text: str, most: int) -> str:
    """As :func:`plain`, and harmless where Markdown or a chat's tags are read.

    >>> markdown("<script>*_`[x](http://evil)", 100)
    "＜script＞∗＿'[x] (http:// evil)"
    """
    text = plain(text, most).translate(_LOOKALIKES)
    return re.sub(r"(?<!\w)_|_(?!\w)", "＿", re.sub(r"^([#>+-]|\d+\.)(?=\s)", "∙\\1", text)).replace("~~", "∼∼")


_LOOKALIKES = str.maketrans({"<": "＜", ">": "＞", "`": "'", "*": "∗", "|": "∣", "\\": "＼"})


def without_middle(name: str, begin: int, end: int) -> str:
    """A name that is long by so much of its beginning and its end.

    >>> without_middle("grpo-7b-2026-11-30-seed-17", 7, 7)
    'grpo-7b…seed-17'
    """
    return name if len(name) <= begin + 1 + end else f"{name[:begin]}…{name[-end:]}"


def _summary(alert: NotifiedAlert, clean: Callable[[str, int], str]) -> str:
    """What is wrong with which run. Summaries begin with the run's name, and it is the name that is made shorter."""
    run = alert.labels.get("run", "")
    begins = f"Run {run}: "
    if not run or not alert.summary.startswith(begins):
        return clean(alert.summary, 160)
    return f"Run {clean(without_middle(run, 24, 15), 60)}: {clean(alert.summary[len(begins) :], 120)}"


def _body(alerts: Sequence[NotifiedAlert], alertmanager: str, rich: bool) -> list[str]:
    clean = markdown if rich else plain
    first, *others = alerts
    lines = []
    run = first.labels.get("run", "")
    if run:
        name = clean(run if len(run.encode()) <= 300 else without_middle(run, 45, 30), 320)
        lines.append(f"Run `{name}`" if rich else f"Run: {name}")
    if first.status == "resolved":
        lines.append(f"Over since {_minute(first.ends_at)}, began {_minute(first.starts_at)}.")
    else:
        if action := first.annotations.get("action"):
            lines.append(f"{'**Do:**' if rich else 'Do:'} {clean(action, 300)}")
        if description := first.annotations.get("description"):
            lines.append(clean(description, 600))
    lines += _links(first, rich)
    for other in others[: MOST_LISTED - 1]:
        lines.append(f"{MARKS[other.kind]} {_summary(other, clean)}")
    if len(alerts) > MOST_LISTED:
        lines.append(f"… and {len(alerts) - MOST_LISTED} more")
    if first.status == "firing":
        if findings := first.annotations.get("findings"):
            lines.append(f"{'**Found:**' if rich else 'Found:'} {clean(findings, 900)}")
        lines.append(f"Since {_minute(first.starts_at)}")
        silence = _silence(alertmanager, first.labels)
        lines += _link("Silence", silence, rich)
    return lines


def _links(alert: NotifiedAlert, rich: bool) -> list[str]:
    named = (("Console", "console_url"), ("Dashboard", "dashboard_url"), ("Runbook", "runbook_url"))
    return [link for text, name in named for link in _link(text, alert.annotations.get(name, ""), rich)]


def _link(text: str, url: str, rich: bool) -> list[str]:
    if len(url) > MOST_URL or not re.fullmatch(r"https?://[^\s<>\"|`]+", url):
        return []
    url = url.replace("(", "%28").replace(")", "%29")
    return [f"[{text}]({url})" if rich else f"{text}: {url}"]


def _silence(alertmanager: str, labels: dict[str, str]) -> str:
    """Alertmanager's form for a silence of this run, or of this alert where it is about no run."""
    name = "run" if labels.get("run") else "alertname"
    value = labels.get(name, "").replace("\\", "\\\\").replace('"', '\\"')
    matcher = f'{{{name}="{value}"}}'
    return f"{alertmanager.rstrip('/')}/#/silences/new?filter=" + quote(matcher, safe="")


def _minute(when: str) -> str:
    """``2026-11-30 22:15 UTC`` of Alertmanager's time, which has the zone of its machine.

    >>> _minute("2026-11-30T22:15:03.123456789+08:00")
    '2026-11-30 14:15 UTC'
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", when)
    try:
        if found is not None:
            moment = datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00"))
            return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        pass
    return "an unknown time"


def _fitting(lines: Sequence[str], most: int, end: str = "\n", between: str = "") -> str:
    """As much as fits into so many bytes, in its order: links first, whole, for one that is cut leads nowhere; then
    text, of which the last line is cut.

    The first link may take all but :data:`BESIDE_LINK`; where that is too little, it leads to the console's list of
    runs. All of them take half of the room at most, but for that one. ``between`` is put between links of one line.
    """
    kept: dict[int, str] = {}
    half, first = most // 2, True
    longest_end = max(len(end), len(between.encode()))
    for index, line in enumerate(lines):
        if not _is_link(line):
            continue
        room = max(half, most - BESIDE_LINK) if first else half
        for link in (line, re.sub(r"(/console)/[a-z]+\?[^\s)]*", r"\1/", line)) if first else (line,):
            if (size := len(link.encode()) + longest_end) <= room:
                kept[index], first = link, False
                half -= size
                most -= size
                break
    for index, line in enumerate(lines):
        if _is_link(line) or most < 20:
            continue
        whole = line.encode()
        most -= len(whole) + len(end)
        kept[index] = line if most >= 0 else whole[: most - len("…".encode())].decode("utf-8", "ignore") + "…"
    text, before = "", ""
    for index in sorted(kept):
        line = kept[index]
        text += (between if between and _is_link(before) and _is_link(line) else end if text else "") + line
        before = line
    return text or "…"


def _is_link(line: str) -> bool:
    """Our own: in what others say, ``://`` is broken."""
    return "://" in line.replace(":// ", "")
