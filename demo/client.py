"""Reads the exporter's and Prometheus' HTTP APIs for the demo. A short outage is None, never an exception."""

from __future__ import annotations

import http.client
import json
import urllib.parse
import urllib.request
from datetime import datetime
from typing import Any

from compose.local.answers import answers

__all__ = ["ExporterApi", "answers", "first_alert", "get_json", "watches"]

# Everything is on loopback, which a proxy of the user's must not see.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(url: str, token: str = "", seconds: float = 3.0) -> Any | None:
    """GET a JSON document; None where nothing, or nothing sound, answers within ``seconds``."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _direct.open(request, timeout=seconds) as answer:
            return json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return None


def watches(prometheus: str, target: str) -> bool:
    """Whether Prometheus has scraped ``target`` (host:port) with success, and has an Alertmanager to send alerts to."""
    targets, managers = get_json(f"{prometheus}/api/v1/targets"), get_json(f"{prometheus}/api/v1/alertmanagers")
    if not isinstance(targets, dict) or not isinstance(managers, dict):
        return False
    active = targets.get("data", {}).get("activeTargets", [])
    scraped = any(one["health"] == "up" and f"//{target}/" in one["scrapeUrl"] for one in active)
    return scraped and bool(managers.get("data", {}).get("activeAlertmanagers"))


class ExporterApi:
    """The exporter's read API with a token of scope ``operate``."""

    def __init__(self, base: str, token: str) -> None:
        self._base, self._token = base, token

    def run(self, run_id: str) -> dict[str, Any] | None:
        """State, steps, checkpoints and incidents of one run; None while it is unknown."""
        found = get_json(f"{self._base}/api/v1/runs/{urllib.parse.quote(run_id)}", self._token)
        return found if isinstance(found, dict) else None

    def recoveries(self) -> list[dict[str, Any]]:
        """Every recovery, the first one first."""
        found = get_json(f"{self._base}/api/v1/recoveries", self._token)
        entries = found.get("recoveries", []) if isinstance(found, dict) else []
        return sorted(entries, key=lambda entry: entry["times"].get("planned") or entry["stage_since"])


def first_alert(prometheus: str, run_id: str) -> tuple[str, float] | None:
    """Name and time (Unix seconds) of the first alert for ``run_id`` that may trigger a rollback, from Prometheus."""
    found = get_json(f"{prometheus}/api/v1/alerts")
    if not isinstance(found, dict):
        return None
    firing = [
        (_seconds(alert["activeAt"]), alert["labels"].get("alertname", ""))
        for alert in found.get("data", {}).get("alerts", [])
        if alert.get("state") == "firing"
        and alert["labels"].get("action") == "rollback"
        and alert["labels"].get("run") == run_id
    ]
    if not firing:
        return None
    at, name = min(firing)
    return name, at


def _seconds(stamp: str) -> float:
    """Prometheus writes nanoseconds; Python reads at most microseconds.

    >>> _seconds("1970-01-01T00:00:01.500000001Z")
    1.5
    """
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}"[:8])
