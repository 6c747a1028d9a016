"""Reads the tiers' policy file (YAML) and checks it, so that every mistake is one sentence with file, line and path.

Called by the plugin (at the first save), the supervisor and ``verl-sentinel-train checkpoints``. What may stand in it
is shown in ``docs/checkpoints.md`` and ``compose/checkpoints.yml``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from exporter.protocol import Tier
from trainer_entry import settings
from trainer_entry.checkpoints.tiers.policy import (
    DAY,
    FOREVER,
    LOSS_METRICS,
    KlBand,
    Limits,
    LossFall,
    OwnDirectory,
    Place,
    Policy,
    PolicyError,
    Retention,
    TierPolicy,
    duration,
    share,
    size,
)
from trainer_entry.checkpoints.tiers.stores import local_path

VARIABLE = settings.CHECKPOINTS
MAX_BYTES = 1 << 20
_TIERS: tuple[tuple[Tier, float], ...] = (("snapshot", 7 * DAY), ("milestone", 90 * DAY), ("archive", FOREVER))
_SECRET = re.compile(r"secret|token|password|passwd|credential|\Akey\Z|access_key|account_key|sas", re.IGNORECASE)
_LOCAL = ("", "file", "local")


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """Read and check one policy file. Raises PolicyError with a sentence, also where PyYAML is missing."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"The checkpoint policy {name} cannot be read: {error.strerror}.") from error
    if len(body) > MAX_BYTES:
        raise PolicyError(f"The checkpoint policy {name} is larger than {MAX_BYTES} bytes, so it is none.")
    return parse_policy(body, name)


def policy_from(environ: Mapping[str, str]) -> Policy | None:
    """The policy that ``VERL_SENTINEL_CHECKPOINTS`` names; None where it is unset. Raises PolicyError."""
    path = environ.get(VARIABLE, "").strip()
    return read_policy(path) if path else None


def parse_policy(body: bytes, name: str) -> Policy:
    """Check the content of a policy file; ``name`` is only for the messages. Raises PolicyError."""
    try:
        import yaml
    except ImportError as error:
        raise PolicyError(
            f"The checkpoint policy {name} needs PyYAML, which is missing; install verl-sentinel[backup]."
        ) from error
    lines: dict[str, int] = {}
    try:
        node = yaml.compose(body, Loader=yaml.SafeLoader)
        data = _plain(yaml, node, "", lines, name) if node is not None else {}
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise PolicyError(f"The checkpoint policy {name}{where} is no YAML: {problem}.") from error
    return _Reader(name, lines).policy(data)


def _plain(yaml: Any, node: Any, path: str, lines: dict[str, int], name: str) -> Any:
    """The node's value, with the line of each path noted. A key given twice is refused: YAML would drop the first."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in found:
                raise PolicyError(f"The checkpoint policy {name}, line {line}: {key} is given twice.")
            below = f"{path}.{key}" if path else key
            found[key] = _plain(yaml, value_node, below, lines, name)
            lines[below] = line
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_plain(yaml, item, f"{path}[{index}]", lines, name) for index, item in enumerate(node.value[:1000])]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


class _Reader:
    """Walks the parsed file; every complaint carries the path, and the line on which it stands."""

    def __init__(self, name: str, lines: Mapping[str, int]) -> None:
        self._name = name
        self._lines = lines

    def policy(self, data: Any) -> Policy:
        top = self._section(data, "", ("own_directory", "snapshot", "milestone", "archive", "limits"))
        tiers = tuple(self._tier(tier, top[tier], days) for tier, days in _TIERS if tier in top)
        places: dict[str, str] = {}
        for tier in tiers:
            for place in tier.places:
                other = places.setdefault(_spot(place), tier.tier)
                if other != tier.tier or sum(_spot(one) == _spot(place) for one in tier.places) > 1:
                    self._fail(f"{tier.tier}", f"the place {place.url} is given twice; each needs one of its own")
        return Policy(
            source=self._name, own=self._own(top), tiers=tiers, limits=self._limits(top.get("limits"), "limits")
        )

    def _own(self, top: Mapping[str, Any]) -> OwnDirectory:
        if "own_directory" not in top:
            return OwnDirectory()
        section = self._section(top["own_directory"], "own_directory", ("keep_last", "left_behind"))
        return OwnDirectory(
            last=self._count(section, "own_directory", "keep_last", None),
            left_behind_seconds=self._duration(section, "own_directory", "left_behind", DAY),
        )

    def _limits(self, data: Any, path: str) -> Limits:
        if data is None:
            return Limits()
        section = self._section(data, path, ("bytes_per_second", "waiting"))
        rate = None
        if "bytes_per_second" in section and (rate := size(section["bytes_per_second"])) is None:
            self._fail(f"{path}.bytes_per_second", f"expected a size such as 200MB, not {_shown(section)}")
        return Limits(bytes_per_second=rate, waiting=self._count(section, path, "waiting", 3) or 3)

    def _tier(self, tier: Tier, data: Any, seconds: float) -> TierPolicy:
        own = {
            "snapshot": ("every_steps",),
            "milestone": ("loss", "kl"),
            "archive": ("recipients", "level"),
        }[tier]
        section = self._section(data, tier, (*own, "place", "second_place", "keep_for", "keep_last"))
        if "place" not in section:
            self._fail(tier, "it needs a place, such as /backup/checkpoints or s3://bucket/checkpoints")
        places = tuple(
            self._place(section[key], f"{tier}.{key}") for key in ("place", "second_place") if key in section
        )
        if tier == "snapshot" and (len(places) > 1 or urlsplit(places[0].url).scheme not in _LOCAL):
            self._fail(f"{tier}.place", "a snapshot lies in one local folder; use a milestone for another place")
        retention = Retention(
            seconds=self._duration(section, tier, "keep_for", seconds),
            last=self._count(section, tier, "keep_last", None),
        )
        if tier == "snapshot":
            every = self._count(section, tier, "every_steps", 100)
            return TierPolicy(tier=tier, places=places, retention=retention, every_steps=every)
        if tier == "milestone":
            both = "loss" not in section and "kl" not in section
            return TierPolicy(
                tier=tier,
                places=places,
                retention=retention,
                loss=LossFall() if both else self._loss(section),
                kl=self._kl(section),
            )
        return TierPolicy(
            tier=tier,
            places=places,
            retention=retention,
            recipients=self._recipients(section),
            level=self._level(section),
        )

    def _loss(self, section: Mapping[str, Any]) -> LossFall | None:
        if "loss" not in section:
            return None
        path = "milestone.loss"
        inner = self._section(section["loss"], path, ("metric", "falls_by"))
        named = inner.get("metric", list(LOSS_METRICS))
        metrics = [named] if isinstance(named, str) else named
        if not isinstance(metrics, list) or not metrics or not all(isinstance(m, str) and m for m in metrics):
            self._fail(f"{path}.metric", "expected the name of a metric, or a list of names, such as val/loss")
        falls = share(inner.get("falls_by", "5%"))
        if falls is None:
            self._fail(f"{path}.falls_by", "expected a share such as 5%")
        return LossFall(metrics=tuple(metrics), falls_by=falls)

    def _kl(self, section: Mapping[str, Any]) -> KlBand | None:
        if "kl" not in section:
            return None
        path = "milestone.kl"
        inner = self._section(section["kl"], path, ("metric", "from", "to", "every_steps"))
        metric = inner.get("metric")
        if not isinstance(metric, str) or not metric:
            self._fail(f"{path}.metric", "expected the name of a metric, such as actor/kl_loss")
        ends = [inner.get("from"), inner.get("to")]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            self._fail(path, "it needs from and to, both numbers: the band in which the KL is on target")
        low, high = (float(end) for end in ends if end is not None)
        if not low <= high < FOREVER:
            self._fail(path, f"from {low:g} is not below to {high:g}")
        return KlBand(
            metric=metric, low=low, high=high, every_steps=self._count(inner, path, "every_steps", 500) or 500
        )

    def _recipients(self, section: Mapping[str, Any]) -> tuple[str, ...]:
        given = section.get("recipients")
        named = [given] if isinstance(given, str) else given
        if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
            self._fail("archive.recipients", "expected one or more age recipients (age1… or ssh-ed25519 …)")
        for index, one in enumerate(named):
            where = f"archive.recipients[{index}]" if isinstance(given, list) else "archive.recipients"
            if one.startswith("AGE-SECRET-KEY"):
                self._fail(where, "it is a secret identity; a policy holds recipients only (age-keygen -y shows them)")
            if not one.startswith(("age1", "ssh-")):
                self._fail(where, f"expected an age recipient (age1… or ssh-ed25519 …), not {one[:40]!r}")
        return tuple(named)

    def _level(self, section: Mapping[str, Any]) -> int:
        level = section.get("level", 3)
        if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= 19:
            self._fail("archive.level", "expected a zstd level from 1 to 19")
        return level

    def _place(self, data: Any, path: str) -> Place:
        if isinstance(data, str):
            data = {"url": data}
        section = self._section(data, path, ("url", "options", "verify"))
        url = section.get("url")
        if not isinstance(url, str) or not url.strip() or not url.isprintable() or len(url) > 2048:
            self._fail(path, "expected a folder or a URL, such as /backup/checkpoints or s3://bucket/checkpoints")
        url = os.path.expanduser(url.strip())
        try:
            parts = urlsplit(url)
        except ValueError:
            self._fail(path, "it is no URL")
        if "@" in parts.netloc or parts.query:
            self._fail(path, "it holds a user name, a password or a query; credentials come from the environment")
        if parts.scheme in _LOCAL and not os.path.isabs(parts.path):
            self._fail(path, f"{url!r} is relative; give an absolute path")
        if parts.scheme not in _LOCAL and not parts.netloc:
            self._fail(path, f"{url!r} names no bucket or host")
        options = section.get("options", {})
        if not isinstance(options, dict):
            self._fail(f"{path}.options", "expected options of the file system by name, such as endpoint_url: …")
        self._no_secrets(options, f"{path}.options")
        verify = section.get("verify", "store")
        if verify not in ("store", "read_back"):
            self._fail(f"{path}.verify", f"expected store or read_back, not {verify!r}")
        return Place(url=url, options=options, verify=verify)

    def _no_secrets(self, options: Mapping[str, Any], path: str) -> None:
        for name, value in options.items():
            if _SECRET.search(name):
                self._fail(f"{path}.{name}", "credentials come from the environment or the store's own files, not here")
            if isinstance(value, dict):
                self._no_secrets(value, f"{path}.{name}")

    def _section(self, data: Any, path: str, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(data, dict):
            self._fail(path, f"expected a section with {', '.join(known)}")
        for key in data:
            if key not in known:
                self._fail(f"{path}.{key}" if path else key, f"there is no such setting; expected {', '.join(known)}")
        return data

    def _count(self, section: Mapping[str, Any], path: str, key: str, default: int | None) -> int | None:
        if key not in section:
            return default
        value: object = section[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
            self._fail(f"{path}.{key}", f"expected a whole number from 1, not {value!r}")
        return value

    def _duration(self, section: Mapping[str, Any], path: str, key: str, default: float) -> float:
        if key not in section:
            return default
        seconds = duration(section[key])
        if seconds is None:
            self._fail(f"{path}.{key}", f"expected a time such as 7d, 12h or forever, not {section[key]!r}")
        return seconds

    def _fail(self, path: str, problem: str) -> NoReturn:
        line = self._lines.get(path) or self._lines.get(path.rpartition(".")[0])
        where = f", line {line}" if line else ""
        named = f" {path}:" if path else ""
        raise PolicyError(f"The checkpoint policy {self._name}{where}:{named} {problem}.")


def _spot(place: Place) -> str:
    """The same for each spelling of a place: ``/a``, ``/a/``, ``file:///a``, a symbolic link to ``/a``."""
    path = local_path(place)
    return place.url.rstrip("/") if path is None else os.path.realpath(path)


def _shown(section: Mapping[str, Any]) -> str:
    return repr(section.get("bytes_per_second"))[:60]
