"""HTTP as people and Alertmanager speak it to the programs of a world. A short outage is 0 or None, no exception."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from demo.client import get_json

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url: str, token: str, body: Mapping[str, Any], seconds: float = 5.0) -> int:
    """POST a JSON document; the status of the answer, or 0 where nobody answers."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(dict(body)).encode(), headers=headers)
    try:
        with _direct.open(request, timeout=seconds) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


def post_at_once(times: int, url: str, token: str, body: Mapping[str, Any]) -> list[int]:
    """The same document, so many times at the same moment; the statuses."""
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(post(url, token, body, seconds=10.0))) for _ in range(times)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def firing(alertmanager: str) -> list[dict[str, Any]] | None:
    """Labels of the critical alerts that Alertmanager holds as firing; None where it does not answer."""
    found = get_json(f"{alertmanager}/api/v2/alerts?active=true&silenced=false", seconds=2.0)
    if not isinstance(found, list):
        return None
    return [alert["labels"] for alert in found if alert["labels"].get("severity") == "critical"]
