"""What the tiers' policy file may say, as types: triggers, places, retention. Read by :mod:`.policy_file`.

Durations and sizes are kept as seconds and bytes; how a file spells them (``7d``, ``200MB``) is checked there.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from exporter.protocol import Tier

DAY = 86400.0
FOREVER = float("inf")

LOSS_METRICS = ("val/loss", "train/loss", "actor/loss", "actor/pg_loss")
"""The first of them that a manifest holds counts: SFT's validation and training loss, then those of PPO."""


class PolicyError(ValueError):
    """The policy file cannot be used; the message names the file, the line or path, and what was expected."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: a word that is not known is refused, since it would otherwise be ignored in silence."""


class Place(_Section, frozen=True):
    """Where copies go. ``options`` are the fsspec file system's own; credentials come from the environment, never
    from here. ``verify``: ``store`` accepts the SHA-256 that the store itself computed and reads back where it reports
    none; ``read_back`` always reads everything back.
    """

    url: str
    options: dict[str, object] = {}
    verify: Literal["store", "read_back"] = "store"


class LossFall(_Section, frozen=True):
    """A milestone when the loss is lower than at the last milestone by ``falls_by``, a share of its absolute value."""

    metrics: tuple[str, ...] = LOSS_METRICS
    falls_by: float = 0.05


class KlBand(_Section, frozen=True):
    """A milestone when the KL lies within the band, both ends included, and ``every_steps`` passed since the last."""

    metric: str
    low: float
    high: float
    every_steps: int = 500


class Retention(_Section, frozen=True):
    """A copy goes when it is older than ``seconds``, or there are ``last`` newer ones (None: no such limit)."""

    seconds: float = FOREVER
    last: int | None = None


class TierPolicy(_Section, frozen=True):
    """One tier. ``places`` has one or two; each must have the copy, and each is reported. The fields of a trigger that
    belongs to another tier are None.
    """

    tier: Tier
    places: tuple[Place, ...]
    retention: Retention
    every_steps: int | None = None
    loss: LossFall | None = None
    kl: KlBand | None = None
    recipients: tuple[str, ...] = ()
    level: int = 3


class OwnDirectory(_Section, frozen=True):
    """The run's own directory: how many checkpoints stay (None: as verl's configuration says, and if that says
    nothing, all), and for how many seconds those stay that a rollback left behind.
    """

    last: int | None = None
    left_behind_seconds: float = DAY


class Limits(_Section, frozen=True):
    """For the keeper: bytes a second that it reads and sends (None: no limit), and how many copies may wait for one
    place, beside the one that is being made, before the oldest is given up.
    """

    bytes_per_second: int | None = None
    waiting: int = 3


class Policy(_Section, frozen=True):
    """The whole file. ``source`` is its path."""

    source: str
    own: OwnDirectory = OwnDirectory()
    tiers: tuple[TierPolicy, ...] = ()
    limits: Limits = Limits()

    def tier(self, name: str) -> TierPolicy | None:
        """The tier of that name, or None where the file has none."""
        return next((tier for tier in self.tiers if tier.tier == name), None)


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)")
_FACTORS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def duration(text: object) -> float | None:
    """Seconds of ``90s``, ``30m``, ``12h``, ``7d``, ``2w`` or ``forever``; None where it is none of these.

    >>> duration("7d"), duration("forever"), duration("7"), duration("0d")
    (604800.0, inf, None, None)
    """
    if text == "forever":
        return FOREVER
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) and len(text) < 32 else None
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    return seconds if 0 < seconds < 1e11 else None


def size(text: object) -> int | None:
    """Bytes of ``200MB``, ``64 MiB``; None where it is no size.

    >>> size("200MB"), size("1 KiB"), size("much")
    (200000000, 1024, None)
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) and len(text) < 32 else None
    count = int(float(match[1]) * _FACTORS[match[2]]) if match else 0
    return count if 0 < count < 10**15 else None


def share(text: object) -> float | None:
    """A share between 0 and 1 of ``5%`` or ``0.05``; None where it is none.

    >>> share("5 %"), share(0.05), share("5"), share(True)
    (0.05, 0.05, None, None)
    """
    if isinstance(text, str) and (match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?)\s*%", text.strip())):
        value = float(match[1]) / 100
    elif isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        return None
    return value if 0 < value < 1 else None
