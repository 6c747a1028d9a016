"""The configuration a run has, another one to compare it with, and the difference as changes.

Called by ``verl-sentinel-train changes`` and ``resume``, for the configuration rung. A configuration is flat: keys
joined with dots, lists and mappings as JSON text, secrets blanked and long texts cut, as the plugin reports it and the
manifest of a checkpoint keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporter.protocol import Changes, Scalar
from trainer_entry.changes.records import CONFIG_NAME
from trainer_entry.changes.rules import KEY, MAX_KEY, MAX_TEXT, NOT_BY_A_CHANGE, ChangeError

MAX_BYTES = 8 * 1024 * 1024
_HIDDEN = "(hidden)"
_IDENTITY = (
    *NOT_BY_A_CHANGE,
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.logger",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.max_ckpt_to_keep",
)
"""What a run is called, where it reports to and how long it goes on is not what makes it healthy or not."""

_NOT_TRAINING = ("hydra", "defaults", "ray_kwargs", "global_profiler")


@dataclass(frozen=True, slots=True)
class Difference:
    """``settings`` and ``removed`` lead from the one configuration to the other; ``left_out`` names what cannot be
    put back, and why.
    """

    settings: dict[str, Scalar] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def recorded(state_dir: Path, attempts: int) -> dict[str, Scalar]:
    """The flat configuration of the latest attempt that has one; empty where none was recorded."""
    for number in range(attempts, max(0, attempts - 20), -1):
        found = read_flat(state_dir / "attempts" / str(number) / CONFIG_NAME)
        if found:
            return found
    return {}


def read_flat(path: Path) -> dict[str, Scalar]:
    """A flat configuration from a file; empty where there is none, or it is not one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES + 1)[:MAX_BYTES])
    except (OSError, ValueError, RecursionError):
        return {}
    return scalars(found) if isinstance(found, dict) else {}


def scalars(found: Mapping[object, object]) -> dict[str, Scalar]:
    """The entries that are keys with plain values."""
    return {
        k: v for k, v in found.items() if isinstance(k, str) and (v is None or isinstance(v, bool | int | float | str))
    }


def difference(now: Mapping[str, Scalar], wanted: Mapping[str, Scalar], *, whole: bool) -> Difference:
    """What turns the configuration ``now`` into ``wanted``. With ``whole``, keys that ``wanted`` lacks are taken out.

    >>> difference({"optim.lr": 1e-3, "a.b": 1}, {"optim.lr": 1e-6}, whole=True)
    Difference(settings={'optim.lr': 1e-06}, removed=['a.b'], left_out={})
    """
    found = Difference()
    for key, value in wanted.items():
        if _same(now.get(key, _MISSING), value) or not comparable(key):
            continue
        if reason := _cannot(value):
            found.left_out[key] = reason
        elif _HIDDEN in str(now.get(key)):
            found.left_out[key] = "it holds a secret"
        else:
            found.settings[key] = value
    if whole:
        found.removed.extend(
            key for key in now if key not in wanted and comparable(key) and not _is_inside(key, wanted)
        )
    return found


def comparable(key: str) -> bool:
    """Whether a key belongs to the training, and could be put back."""
    if key in _IDENTITY or len(key) > MAX_KEY or not KEY.fullmatch(key):
        return False
    return not any(key == part or key.startswith(part + ".") for part in _NOT_TRAINING)


def shown(now: Mapping[str, Scalar], changes: Changes) -> list[str]:
    """The changes of settings as lines for a person, old and new value side by side.

    >>> shown({"optim.lr": 0.001}, Changes(settings={"optim.lr": 1e-06, "x": "y"}, removed=["a.b"]))
    ['optim.lr: 0.001 -> 1e-06', 'x: (not there) -> "y"', 'a.b: (not there) -> (taken out)']
    """
    lines = [f"{key}: {_told(now, key)} -> {json.dumps(value)[:200]}" for key, value in changes.settings.items()]
    return lines + [f"{key}: {_told(now, key)} -> (taken out)" for key in changes.removed]


class _Missing:
    pass


_MISSING = _Missing()


def _told(now: Mapping[str, Scalar], key: str) -> str:
    if key in now:
        return json.dumps(now[key])[:200]
    return "(not there)" if now else "(not known)"


def _same(one: object, other: Scalar) -> bool:
    """1 and 1.0 are the same value, True and 1 are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def _cannot(value: Scalar) -> str:
    if not isinstance(value, str):
        return ""
    if _HIDDEN in value:
        return "it holds a secret"
    if len(value) > MAX_TEXT:
        return f"it is a text of more than {MAX_TEXT} characters"
    if "${" in value or not value.isprintable():
        return "it refers to other settings, or holds a line break"
    return ""


def _is_inside(key: str, wanted: Mapping[str, Scalar]) -> bool:
    """Whether the key lies below one that the other configuration has as a whole, as an empty mapping say."""
    parts = key.split(".")
    return any(".".join(parts[:count]) in wanted for count in range(1, len(parts)))


def merged_with(base: Changes, found: Difference) -> Changes:
    """The changes of a difference, with what was asked for by name on top. Raises ChangeError."""
    removed = [key for key in dict.fromkeys([*found.removed, *base.removed]) if key not in base.settings]
    settings = {k: v for k, v in found.settings.items() if k not in base.removed} | base.settings
    if len(settings) + len(removed) > 400:
        raise ChangeError(
            f"The two configurations differ in {len(settings) + len(removed)} settings; that is another run, not this "
            "one. Give the settings to change with --set."
        )
    return Changes(
        settings=settings,
        removed=removed,
        verl_version=base.verl_version,
        exclude=base.exclude,
        skip_steps=base.skip_steps,
    )
