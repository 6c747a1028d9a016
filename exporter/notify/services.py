"""The only door to apprise: which services may be used, and one message to one address. Called by the rest of the
package, on a thread of its own; it imports apprise at the first use, for that takes half a second and most exporters
have no use for it.

Apprise knows services that write into local logs, start programs or read files and web pages that an address names.
None of that is wanted in a service that many can send to: only what is in :data:`SERVICES` is let through, without the
options that read something (:data:`REFUSED_OPTIONS`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from exporter.notify.message import Kind, Message

if TYPE_CHECKING:
    from apprise import AppriseAsset

SERVICES: dict[str, str] = {
    "bark": "Bark", "barks": "Bark", "betterstack": "Better Stack", "cliq": "Zoho Cliq", "dingtalk": "DingTalk",
    "discord": "Discord", "feishu": "Feishu", "flock": "Flock", "form": "HTML form", "forms": "HTML form",
    "gchat": "Google Chat", "goalert": "GoAlert", "goalerts": "GoAlert", "gotify": "Gotify", "gotifys": "Gotify",
    "guilded": "Guilded", "hassio": "Home Assistant", "hassios": "Home Assistant", "ilert": "ilert",
    "incidentio": "incident.io", "json": "JSON", "jsons": "JSON", "kook": "KOOK", "lark": "Lark", "line": "LINE",
    "mailto": "e-mail", "mailtos": "e-mail", "mmost": "Mattermost", "mmosts": "Mattermost",
    "nctalk": "Nextcloud Talk", "nctalks": "Nextcloud Talk", "ntfy": "ntfy", "ntfys": "ntfy", "opsgenie": "Opsgenie",
    "pagerduty": "PagerDuty", "pover": "Pushover", "pushdeer": "PushDeer", "pushdeers": "PushDeer",
    "pushme": "PushMe", "pushplus": "PushPlus", "qq": "QQ", "rocket": "Rocket.Chat", "rockets": "Rocket.Chat",
    "ryver": "Ryver", "schan": "ServerChan", "signl4": "SIGNL4", "slack": "Slack", "splunk": "Splunk On-Call",
    "spugpush": "SpugPush", "squadcast": "Squadcast", "synology": "Synology Chat", "synologys": "Synology Chat",
    "tgram": "Telegram", "twist": "Twist", "victorops": "Splunk On-Call", "webex": "Webex", "wecombot": "WeCom",
    "workflow": "Microsoft Teams", "workflows": "Microsoft Teams", "wxpusher": "WxPusher", "wxteams": "Webex",
    "zoom": "Zoom", "zulip": "Zulip",
}  # fmt: skip
"""Apprise's schema to the service: messages over the network, made of nothing but the address and the text."""

REFUSED_OPTIONS = frozenset(("template", "pgp", "pgpkey", "pgppub", "pgpprv", "wkd", "keyfile", "attach", "attach-as"))
"""Options of an address with which apprise would read a file or a page."""

FOR_PROGRAMS = frozenset(("json", "jsons", "form", "forms"))
"""Read by programs, which get plain text."""

MOST_BYTES = 3000
"""Of a message, title included, where the service takes as much."""
MOST_REASON = 300


class WrongUrl(Exception):
    """The address cannot be used; the text is the rest of a sentence, with nothing of the address but its scheme."""


def check_url(url: str) -> None:
    """Raise :class:`WrongUrl` where nothing can be sent to this address."""
    _service(url)


def send(url: str, message: Message) -> str:
    """Hand one message to one address. Empty where the service took it, else why not, without a word of the address.

    Blocks for as long as the service takes.
    """
    try:
        service = _service(url)
    except WrongUrl as error:
        return f"its address {error}"
    from apprise import Apprise, NotifyFormat, NotifyType

    kinds = {
        Kind.CRITICAL: NotifyType.FAILURE,
        Kind.WARNING: NotifyType.WARNING,
        Kind.RESOLVED: NotifyType.SUCCESS,
        Kind.INFO: NotifyType.INFO,
    }
    rich = _takes_markdown(url, service)
    most = min(MOST_BYTES, int(service.body_maxlen or MOST_BYTES)) - 60
    body = message.markdown(most) if rich else message.text(most)
    sender = Apprise(asset=_asset())
    sender.add(service)
    with _heard() as said:
        try:
            taken = sender.notify(
                body=body,
                title=message.title(rich),
                notify_type=kinds[message.kind],
                body_format=NotifyFormat.MARKDOWN if rich else NotifyFormat.TEXT,
            )
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the next target must get its message
            return _without(url, f"apprise failed: {type(error).__name__}")
    if taken:
        return ""
    return _without(url, said[-1] if said else "the service did not take it")


def _takes_markdown(url: str, service: Any) -> bool:
    from apprise import NotifyFormat

    if _scheme(url) in FOR_PROGRAMS:
        return False
    # Of older versions of apprise a service has one format, that of its address.
    resolve = getattr(service, "resolve_format", None)
    return bool((resolve(NotifyFormat.MARKDOWN) if resolve else service.notify_format) == NotifyFormat.MARKDOWN)


def _service(url: str) -> Any:
    """Apprise's object for the address. Raises :class:`WrongUrl`."""
    scheme = _scheme(url)
    if scheme not in (*SERVICES, "https"):
        told = f"starts with {scheme}://, which is" if re.fullmatch(r"[a-z0-9]{1,20}", scheme) else "has the scheme of"
        raise WrongUrl(f"{told} no service that can be used here. Those that can be are {', '.join(sorted(SERVICES))}")
    # Some services' webhook addresses, as they are copied from the service, are known to apprise too.
    options = {key.lower().lstrip(" +-:") for key, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    refused = sorted(options & REFUSED_OPTIONS)
    if refused:
        raise WrongUrl(f"has the option {refused[0]}, with which apprise would read a file or a page: leave it out")
    from apprise import Apprise

    _logger()
    with _heard() as said:
        service = Apprise.instantiate(url, asset=_asset(), suppress_exceptions=True)
    if service is None and scheme == "https":
        raise WrongUrl(
            "starts with https://, and apprise knows no service by it: write it as apprise spells the service's, such "
            "as feishu://TOKEN or dingtalk://SECRET@TOKEN"
        )
    if service is None:
        raise WrongUrl(f"is not what apprise expects for {SERVICES[scheme]} ({scheme}://){_hint(url, said)}")
    own = {str(name) for part in ("protocol", "secure_protocol") for name in _names(getattr(service, part, None))}
    if not own & SERVICES.keys():
        raise WrongUrl("is of a service that is not to be used here")
    return service


def _hint(url: str, said: list[str]) -> str:
    """What apprise said of it, where none of the address is in that."""
    words = [text for text in said if _without(url, text) == text and "URL" not in text]
    return f": {words[0].rstrip('.')}" if words else ""


def _names(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (tuple, list, set, frozenset)) else (given,) if given else ()


def _scheme(url: str) -> str:
    return url.partition("://")[0].strip().lower() if "://" in url else ""


@lru_cache(maxsize=1)
def _asset() -> AppriseAsset:
    from apprise import AppriseAsset
    from apprise.common import PersistentStoreMode

    options: dict[str, Any] = {
        "app_id": "verl-sentinel",
        "app_desc": "verl-sentinel",
        "app_url": "",
        # No pictures from apprise's own pages in the messages, no files of its own on the disk, no threads of its own:
        # what it warns of is heard on this one, and at its end the exporter waits for no service.
        "image_url_mask": "",
        "image_url_logo": "",
        "image_path_mask": "",
        "storage_mode": PersistentStoreMode.MEMORY,
        "async_mode": False,
    }
    if "service_timeout" in signature(AppriseAsset.__init__).parameters:  # which older versions have not
        options["service_timeout"] = 0
    return AppriseAsset(**options)


class _Ear(logging.Handler):
    """Keeps what apprise warns of on this thread: its calls only say whether they worked."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.local = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        said = getattr(self.local, "said", None)
        if said is not None and len(said) < 100:
            said.append(record.getMessage())


@lru_cache(maxsize=1)
def _logger() -> _Ear:
    """Apprise's lines hold addresses at times: they go nowhere but into the ear."""
    ear = _Ear()
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(ear)
    return ear


@contextmanager
def _heard() -> Iterator[list[str]]:
    ear, said = _logger(), list[str]()
    ear.local.said = said
    try:
        yield said
    finally:
        ear.local.said = None


def _without(url: str, text: str) -> str:
    """The text with every piece of the address, but its scheme, taken out; one line, bounded."""
    parts = urlsplit(url.replace("#", "%23"))
    rest = f"{parts.netloc}{parts.path}?{parts.query}"
    pieces = {piece for form in (rest, unquote(rest)) for piece in re.split(r"[/?&=:@,;\s]+", form) if len(piece) > 2}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, "…")
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= MOST_REASON else text[: MOST_REASON - 1] + "…"
