"""Numbers as the wire has them, the words that only some values have, and the base of all wire types."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

PROTOCOL_VERSION = 1
"""Raised when a reader of the old version would misread the new one; new optional fields do not raise it."""

PUSH_PATH = "/api/v1/push"
MSGPACK = "application/msgpack"
JSON = "application/json"

Number = float | Literal["NaN", "Infinity", "-Infinity"] | None
"""A metric value: any float in msgpack; a JSON number, one of the three strings, or null for NaN, in JSON."""

Role = Literal["trainer", "worker", "gpu", "supervisor"]
Scalar = bool | int | float | str | None
Action = Literal["rollback", "restart", "stop"]
Rung = Literal["checkpoint", "config", "version", "infra"]
Tier = Literal["snapshot", "milestone", "archive"]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all wire types. Unknown fields are ignored, so that a newer sender may talk to an older exporter."""


def number(value: Number) -> float:
    """Turn a wire value into a float.

    >>> number("NaN"), number("-Infinity"), number(None), number(0.5)
    (nan, -inf, nan, 0.5)
    """
    return math.nan if value is None else float(value)


def numbers(metrics: dict[str, Number]) -> dict[str, float]:
    """A step's metrics as floats: the same dict where they are floats already, as in msgpack they are but for nil.

    >>> numbers({"actor/loss": 0.5, "actor/grad_norm": "Infinity", "actor/kl_loss": None})
    {'actor/loss': 0.5, 'actor/grad_norm': inf, 'actor/kl_loss': nan}
    """
    try:
        # The fastest way to see that none is a text or None.
        sum(metrics.values(), 0.0)  # type: ignore[type-var]
    except TypeError:
        return {key: number(value) for key, value in metrics.items()}
    return metrics  # type: ignore[return-value]


def json_number(value: float) -> Number:
    """Spell a float so that JSON can carry it.

    >>> json_number(float("nan")), json_number(2.0)
    ('NaN', 2.0)
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
