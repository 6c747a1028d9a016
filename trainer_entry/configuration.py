"""A trainer's configuration flat and without secrets, and its hash: for a run's start, manifests and their readers.

Called by the plugin when verl opens its tracking. What is secret is blanked before anything is made of it, so the hash
of a configuration does not depend on its secrets either.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from exporter.protocol import Scalar, json_number

MAX_ENTRIES = 4000
MAX_TEXT = 500
"""Characters of one value as it is sent; :data:`MAX_KEPT_TEXT` as it is kept in a manifest."""

MAX_KEPT_TEXT = 16_384
HIDDEN = "(hidden)"

WHERE_TO_RESUME = ("trainer.resume_mode", "trainer.resume_from_path")
"""Keys that are not in the hash: they differ between two attempts of one run, and change nothing of what it does."""

_SECRET = re.compile(
    r".*(api[_-]?key|access[_-]?key([_-]?id)?|private[_-]?key|account[_-]?key|secret|passw(or)?d|passphrase|"
    r"credentials?|authorization|cookie|token)|secret.*",
    re.IGNORECASE,
)
"""The last word of a dotted key, whole."""

_SECRETS = re.compile(r"(^|\.)(secrets?|credentials?)\.", re.IGNORECASE)
"""Sections of which everything is hidden."""

_NO_SECRET = re.compile(
    r"(.*_)?(eos|bos|pad|unk|sep|cls|mask|stop|begin|end|think|special|image|video|audio|dp)_token", re.IGNORECASE
)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")


def flatten(config: Mapping[str, Any], max_text: int = MAX_TEXT) -> dict[str, Scalar]:
    """A nested configuration as dotted keys; lists as JSON text, long texts cut, secrets blanked.

    >>> flatten({"trainer": {"logger": ["console"], "nnodes": 1}, "wandb": {"api_key": "x"}})
    {'trainer.logger': '["console"]', 'trainer.nnodes': 1, 'wandb.api_key': '(hidden)'}
    >>> flatten({"store": "s3://key:word@host/b", "hooks": [{"url": "x", "password": "y"}], "eos_token": "</s>"})
    {'store': 's3://(hidden)@host/b', 'hooks': '[{"url": "x", "password": "(hidden)"}]', 'eos_token': '</s>'}
    """
    flat: dict[str, Scalar] = {}
    waiting: list[tuple[str, Any]] = [("", config)]
    looked_at = 0
    # Sections count too: one of a YAML file may hold itself.
    while waiting and len(flat) < MAX_ENTRIES and looked_at < MAX_ENTRIES * 10:
        looked_at += 1
        prefix, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            dot = f"{prefix}." if prefix else ""
            waiting.extend((f"{dot}{key}", value[key]) for key in reversed(list(value)))
        elif value is None or isinstance(value, bool):
            flat[prefix] = value
        elif _is_secret(prefix, value):
            flat[prefix] = HIDDEN
        elif isinstance(value, (int, float)):
            flat[prefix] = value if not isinstance(value, int) or abs(value) < 2**63 else float(value)
        elif isinstance(value, str):
            flat[prefix] = _without_user_info(value)[:max_text]
        elif prefix:
            flat[prefix] = _without_user_info(json.dumps(_blanked(value), default=str))[:max_text]
    return flat


def config_hash(flat: Mapping[str, Scalar]) -> str:
    """SHA-256, in hex, of a flat configuration without :data:`WHERE_TO_RESUME`; empty for an empty one.

    >>> config_hash({"a": 1, "trainer.resume_mode": "auto"}) == config_hash({"a": 1}) != config_hash({"a": 2})
    True
    """
    counted = {
        key: json_number(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in flat.items()
        if key not in WHERE_TO_RESUME
    }
    return hashlib.sha256(msgspec.json.encode(counted, order="sorted")).hexdigest() if counted else ""


def _is_secret(key: str, value: object) -> bool:
    if not value or isinstance(value, Mapping):
        return False
    word = key.rsplit(".", 1)[-1]
    return bool(_SECRETS.search(key) or (_SECRET.fullmatch(word) and not _NO_SECRET.fullmatch(word)))


def _without_user_info(text: str) -> str:
    return _USER_INFO.sub(HIDDEN + "@", text) if "://" in text else text


def _blanked(value: Any, depth: int = 0) -> Any:
    """Lists with their mappings' secrets blanked; what is nested deeper than anything sensible becomes text."""
    if depth > 20:
        return str(type(value))
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN if _is_secret(str(key), inner) else _blanked(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_blanked(inner, depth + 1) for inner in value]
    return value
