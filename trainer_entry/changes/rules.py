"""Which changes may be asked for, how they add up, and how they are spelled at a command line.

Called by the supervisor for what the exporter and operators ask, and by the command line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

import msgspec

from exporter.protocol import Changes, Excluded, Scalar

MAX_SETTINGS = 400
MAX_EXCLUDED = 64
MAX_KEY = 200
MAX_TEXT = 2000
MAX_SKIP_STEPS = 1_000_000
MAX_BYTES = 60_000
"""Of all changes together as JSON: they travel in an environment variable, which holds 128 KiB."""

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
VERSION = re.compile(r"[0-9]+(\.[0-9]+){0,3}((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9.]+)?")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_GPU = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,98}[A-Za-z0-9])?")
_RATE = re.compile(r"(?:^|\.)(?:optim|optimizer)\.(?:lr|learning_rate)$")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]{1,3})?")

NOT_BY_A_CHANGE = ("trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir")
"""Where a run starts from, and where it saves, is decided by the supervisor or by a person's own command line."""


class ChangeError(ValueError):
    """A change cannot be made; the message is a sentence that says which, and why."""


def checked(changes: Changes) -> Changes:
    """The same changes, when each of them may be made. Raises ChangeError."""
    if len(changes.settings) + len(changes.removed) > MAX_SETTINGS:
        raise ChangeError(f"More than {MAX_SETTINGS} settings are to be changed; that is another run, not this one.")
    for key, value in changes.settings.items():
        _check_key(key)
        _check_value(key, value)
    for key in changes.removed:
        _check_key(key)
        if key in changes.settings:
            raise ChangeError(f"The setting {key} is to be changed and to be taken out at once.")
    if changes.verl_version and (len(changes.verl_version) > 40 or not VERSION.fullmatch(changes.verl_version)):
        raise ChangeError(f"{changes.verl_version[:80]!r} is no version of verl; expected something like 0.9.1.")
    if len(changes.exclude) > MAX_EXCLUDED:
        raise ChangeError(f"More than {MAX_EXCLUDED} machines are to be left out.")
    for excluded in changes.exclude:
        if not _NODE.fullmatch(excluded.node):
            raise ChangeError(f"{excluded.node[:80]!r} is no name, address or id of a machine.")
        if excluded.gpu and not _GPU.fullmatch(excluded.gpu):
            raise ChangeError(f"{excluded.gpu[:80]!r} is no index or UUID of a GPU.")
    if not 0 <= changes.skip_steps <= MAX_SKIP_STEPS:
        raise ChangeError(f"{changes.skip_steps} is no number of batches to skip; expected 0 to {MAX_SKIP_STEPS}.")
    if len(msgspec.json.encode(changes)) > MAX_BYTES:
        raise ChangeError(f"The changes are larger than {MAX_BYTES} bytes together.")
    return changes


def is_empty(changes: Changes) -> bool:
    """True when nothing is changed."""
    return changes == Changes()


def merged(in_force: Changes, asked: Changes) -> Changes:
    """What is in force after ``asked``: it replaces what it names, and leaves the rest as earlier rungs made it.

    Batches to skip belong to one resume, so those of earlier ones are not kept. Raises ChangeError when the sum is too
    much.

    >>> merged(Changes(settings={"a": 1, "b": 2}), Changes(settings={"b": 3}, removed=["a"]))
    Changes(settings={'b': 3}, removed=['a'], verl_version='', exclude=[], skip_steps=0)
    """
    settings = {k: v for k, v in in_force.settings.items() if k not in asked.removed} | asked.settings
    removed = [key for key in dict.fromkeys([*in_force.removed, *asked.removed]) if key not in asked.settings]
    exclude = {(each.node, each.gpu): each for each in (*in_force.exclude, *asked.exclude)}
    whole = {node for node, gpu in exclude if not gpu}
    return checked(
        Changes(
            settings=settings,
            removed=removed,
            verl_version=asked.verl_version or in_force.verl_version,
            exclude=[each for (node, gpu), each in exclude.items() if not gpu or node not in whole],
            skip_steps=asked.skip_steps,
        )
    )


def parse_setting(text: str) -> tuple[str, Scalar]:
    """``KEY=VALUE`` as the command line gives it. Raises ChangeError.

    A value is a number, true, false, null, or else a text; in double quotes it is a text whatever it looks like.

    >>> parse_setting("optim.lr=5e-7"), parse_setting("a.b=true"), parse_setting('name="1"'), parse_setting("x=a b")
    (('optim.lr', 5e-07), ('a.b', True), ('name', '1'), ('x', 'a b'))
    """
    key, separator, value = text.lstrip("+").partition("=")
    if not separator:
        raise ChangeError(f"{text[:80]!r} is not KEY=VALUE.")
    _check_key(key)
    scalar = _scalar(value)
    _check_value(key, scalar)
    return key, scalar


def parse_excluded(text: str, reason: str = "") -> Excluded:
    """``NODE`` or ``NODE/GPU``. Raises ChangeError.

    >>> parse_excluded("gpu-07/3")
    Excluded(node='gpu-07', gpu='3', reason='')
    """
    node, _, gpu = text.partition("/")
    excluded = Excluded(node=node, gpu=gpu, reason=reason[:500])
    checked(Changes(exclude=[excluded]))
    if text.endswith("/"):
        raise ChangeError(f"{text[:80]!r} names no GPU after the slash.")
    return excluded


def changes_of(
    settings: Iterable[str] = (),
    removed: Iterable[str] = (),
    verl_version: str = "",
    exclude: Iterable[str] = (),
    skip_steps: int = 0,
    reason: str = "",
) -> Changes:
    """Changes from the words of a command line. Raises ChangeError."""
    return checked(
        Changes(
            settings=dict(parse_setting(each) for each in settings),
            removed=list(dict.fromkeys(removed)),
            verl_version=verl_version,
            exclude=[parse_excluded(each, reason) for each in exclude],
            skip_steps=skip_steps,
        )
    )


def words_of(changes: Changes) -> list[str]:
    """The options that say these changes, for the rollback scripts; the opposite of :func:`changes_of`.

    >>> words_of(Changes(settings={"optim.lr": 5e-07, "tag": "1"}, exclude=[Excluded(node="n1", gpu="2")]))
    ['--set=optim.lr=5e-07', '--set=tag="1"', '--exclude=n1/2']
    """
    words = [f"--set={key}={_spelled(value)}" for key, value in changes.settings.items()]
    words += [f"--remove={key}" for key in changes.removed]
    if changes.verl_version:
        words.append(f"--version={changes.verl_version}")
    words += [f"--exclude={each.node}/{each.gpu}" if each.gpu else f"--exclude={each.node}" for each in changes.exclude]
    if changes.skip_steps:
        words.append(f"--skip-steps={changes.skip_steps}")
    return words


def describe(changes: Changes) -> str:
    """The changes as a bounded phrase; empty where there are none.

    >>> describe(Changes(settings={"optim.lr": 5e-07}, verl_version="0.9.0", skip_steps=3))
    'optim.lr=5e-07, verl 0.9.0, 3 batches skipped'
    """
    told = [f"{key}={_spelled(value)[:60]}" for key, value in changes.settings.items()]
    told += [f"without {key}" for key in changes.removed]
    more = len(told) - 8
    told = told[:8] + ([f"{more} settings more"] if more > 0 else [])
    if changes.verl_version:
        told.append(f"verl {changes.verl_version}")
    told += ["without " + (f"GPU {each.gpu} of {each.node}" if each.gpu else each.node) for each in changes.exclude]
    if changes.skip_steps:
        told.append(f"{changes.skip_steps} batches skipped")
    return ", ".join(told)


def _check_key(key: str) -> None:
    if len(key) > MAX_KEY or not KEY.fullmatch(key):
        raise ChangeError(f"{key[:80]!r} is no key of a configuration, such as actor_rollout_ref.actor.optim.lr.")
    # A section counts as all that is in it.
    if any(f"{each}.".startswith(f"{key}.") for each in NOT_BY_A_CHANGE):
        raise ChangeError(f"{key} is not for a change: the supervisor decides where a run starts from and saves.")
    if key.split(".", 1)[0] == "hydra":
        raise ChangeError(f"{key} is not for a change: it is a setting of Hydra, not of the training.")


def _check_value(key: str, value: Scalar) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ChangeError(f"The value of {key} is {value}, which no training can use.")
    if _RATE.search(key) and not _is_rate(value):
        raise ChangeError(f"The value of {key} is {str(value)[:80]}; a learning rate is a number, 0 or more.")
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ChangeError(f"The value of {key} is longer than {MAX_TEXT} characters.")
        if not value.isprintable() or "${" in value:
            raise ChangeError(
                f"The value of {key} holds a control character, a line break or '${{', which Hydra would read."
            )


def _is_rate(value: Scalar) -> bool:
    """Whether it may be a learning rate; YAML reads ``1e-6`` as a text."""
    if value is None or isinstance(value, bool):
        return False
    try:
        return 0.0 <= float(value) < math.inf
    except (ValueError, OverflowError):
        return False


def _scalar(text: str) -> Scalar:
    if text in ("null", ""):
        return None if text else ""
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            quoted = json.loads(text)
        except ValueError:
            return text
        return quoted if isinstance(quoted, str) else text
    return text


def _spelled(value: Scalar) -> str:
    if isinstance(value, str):
        return value if _scalar(value) == value and isinstance(_scalar(value), str) else json.dumps(value)
    return json.dumps(value)
