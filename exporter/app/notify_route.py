"""``POST /api/v1/notify``: messages for the services that Alertmanager does not know. Mounted by
:mod:`exporter.app.routes`.

Alertmanager calls it as a webhook, and calls it again where it is answered 502 or 503.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from uuid import uuid4

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler

from exporter.app.access import Access
from exporter.app.answers import answer
from exporter.app.asked import AnyRequest, decoded
from exporter.app.bodies import Bodies, content_type
from exporter.app.lifecycle import Exporter
from exporter.notify.delivery import Delivery, Notifier
from exporter.notify.message import Message, message_of, notification, test_message
from exporter.protocol import JSON
from exporter.service.admission import Refused

NOTIFY_PATH = "/api/v1/notify"
TEST_PATH = "/api/v1/notify/test"
MOST_BYTES = 1024 * 1024
RETRY_SECONDS = 10


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """The answer when every target has the message."""

    targets: list[TargetNotified]


class TargetNotified(msgspec.Struct, frozen=True, kw_only=True):
    """One target: ``delivered`` now, or ``known`` where it had this very message already."""

    target: str
    outcome: str


class NotifyTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to send a test message to (all targets where none is named), and who asks."""

    who: str
    target: str = ""


def notify_routes(exporter: Exporter, access: Access, bodies: Bodies) -> list[HTTPRouteHandler]:
    """The handlers, bound to one exporter."""
    notifier = Notifier(exporter.config.notify, os.environ, exporter.ingest.notified)
    for name in notifier.targets:
        exporter.ingest.notifies(name)

    @post(NOTIFY_PATH, status_code=200)
    async def notify(request: AnyRequest, target: str = "") -> Response[bytes]:
        access.require(request, "alert")
        content_type(request.headers, {JSON: JSON})
        body = await bodies.read(request.receive, request.headers, MOST_BYTES)
        received = decoded(lambda: notification(body))
        return await delivered(message_of(received), chosen(target))

    @post(TEST_PATH, status_code=200)
    async def test(request: AnyRequest) -> Response[bytes]:
        access.require(request, "operate")
        content_type(request.headers, {JSON: JSON})
        body = await bodies.read(request.receive, request.headers, MOST_BYTES)
        asked = decoded(lambda: msgspec.json.decode(body, type=NotifyTest))
        now = datetime.fromtimestamp(exporter.clock(), timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        if not asked.who.strip() or len(asked.who) > 200 or not asked.who.isprintable():
            message = "Say who asks, in 1 to 200 printable characters: it stands in the message."
            raise Refused("malformed", message, where="$.who")
        return await delivered(test_message(asked.who, now, uuid4().hex), chosen(asked.target))

    def chosen(target: str) -> Sequence[str]:
        if not notifier.targets:
            message = "The exporter has no target: name one in the section notify of its configuration."
            raise Refused("not_found", message, where="notify.targets", status=404)
        if target and target not in notifier.targets:
            message = f"There is no target {target[:64]!r}: {', '.join(notifier.targets)} are there."
            raise Refused("not_found", message, where="target", status=404)
        return (target,) if target else notifier.targets

    async def delivered(message: Message, targets: Sequence[str]) -> Response[bytes]:
        found = await notifier.deliver(message, targets)
        failed = [one for one in found if not one.taken]
        if failed:
            raise not_taken(failed, [one.target for one in found if one.taken])
        return answer(Notified(targets=[TargetNotified(target=one.target, outcome=one.outcome) for one in found]))

    return [notify, test]


def not_taken(failed: Sequence[Delivery], taken: Sequence[str]) -> Refused:
    """502 where a service refused; 503 where waiting may be all that it takes."""
    said = " ".join(f"Target {one.target} did not take the message: {one.reason}." for one in failed)
    rest = f" {', '.join(taken)} took it, and will not be sent it twice." if taken else ""
    status = 502 if any(one.outcome == "failed" for one in failed) else 503
    return Refused("not_delivered", said + rest, where="target", status=status, retry_after=RETRY_SECONDS)
