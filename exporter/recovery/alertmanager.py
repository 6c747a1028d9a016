"""Reads the body of an Alertmanager webhook (version 4). Called by the service's ``POST /api/v1/alerts``."""

from __future__ import annotations

from typing import Literal

import msgspec

from exporter.recovery.facts import Alert

MAX_ALERTS = 1000
"""More alerts than this in one webhook are refused; Alertmanager groups by run and sends far fewer."""


class WebhookAlert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert, as Alertmanager writes it."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: str
    fingerprint: str
    annotations: dict[str, str] = {}


class Webhook(msgspec.Struct, frozen=True, rename="camel"):
    """The body; what else Alertmanager writes into it is not needed."""

    version: Literal["4"]
    alerts: list[WebhookAlert]


_decoder = msgspec.json.Decoder(Webhook)


def alerts_from_webhook(body: bytes) -> tuple[Alert, ...]:
    """The alerts of one webhook call, in its order.

    Raises ``msgspec.ValidationError`` (a sentence with the path of the offending field) or ``msgspec.DecodeError``
    where the body is not JSON.
    """
    webhook = _decoder.decode(body)
    if len(webhook.alerts) > MAX_ALERTS:
        raise msgspec.ValidationError(
            f"The webhook carries {len(webhook.alerts)} alerts, at most {MAX_ALERTS} are accepted - at `$.alerts`"
        )
    for index, alert in enumerate(webhook.alerts):
        if not alert.fingerprint or not alert.starts_at:
            raise msgspec.ValidationError(f"An alert needs a fingerprint and startsAt - at `$.alerts[{index}]`")
    return tuple(
        Alert(
            fingerprint=alert.fingerprint,
            starts_at=alert.starts_at,
            status=alert.status,
            labels=alert.labels,
            annotations=alert.annotations,
        )
        for alert in webhook.alerts
    )
