"""Which field of a push was refused, and in what words that is told. Called by :mod:`exporter.app.push`, and only once
the typed decoding has failed.

msgspec names the path of a field as far as the types go: of a dict it does not say the key. Among two thousand metrics
that is no help, so the dict is looked at once more here, without types, until the key is found.
"""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import msgspec

from exporter.protocol import JSON, CommandProgress, Event, Number, Role, Scalar
from exporter.service.admission import Refused, keyed, shortened

MOST_BYTES = 1024 * 1024
"""Of the one dict that is looked through for its offending key: twice as much as the default limits allow."""

NON_FINITE_IN_JSON = 'JSON has no NaN: a metric is a number, or the string "NaN", "Infinity" or "-Infinity".'
A_METRIC = 'A metric is a number, "NaN", "Infinity" or "-Infinity", or null, which is NaN.'
A_SETTING = "A setting is a text, a number, true, false or null."

_BARE_NON_FINITE = re.compile(rb"[:,\[]\s*-?(NaN|Infinity)\b")
_KEY_BEFORE = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*-?$')
_BYTE = re.compile(r"\(byte (\d+)\)")
_KEY_BYTES = 2048
"""Before the place where JSON breaks off: the key of the value there has begun by then, or is too long to be told."""

_DICTS: dict[str, tuple[str, Any, str]] = {
    "metrics": ("metric", Number, A_METRIC),
    "config": ("setting", Scalar, A_SETTING),
}
"""The dicts of a push, by their field: what a value is called, its type, and what it may be."""

_CHOICES: dict[str, tuple[str, ...]] = {
    ".type": tuple(str(kind.__struct_config__.tag) for kind in get_args(Event)),
    ".role": get_args(Role),
    ".state": get_args(get_type_hints(CommandProgress)["state"]),
}
"""The fields that take one of a few words, by the end of their path."""


def explained(refused: Refused, body: bytes, kind: str) -> Refused:
    """The refusal of a body that could not be decoded, with the key, the choices or the spelling that it lacks."""
    message, where = refused.message, refused.where
    field, in_dict, _ = where.partition("[...]")
    choices = next((words for end, words in _CHOICES.items() if where.endswith(end)), ())
    if in_dict:
        found = _offender(body, kind, field)
        if found is not None:
            message, where = found
    elif choices:
        message += f" Known here: {', '.join(choices)}."
    elif where.startswith("$.events[") and message.endswith("required field `type`."):
        message += f" Known here: {', '.join(_CHOICES['.type'])}."
    elif kind == JSON and where == "body" and _BARE_NON_FINITE.search(body):
        key = _key_before_break(message, body)
        message += f" {NON_FINITE_IN_JSON}" + (f" It is not so of {key}." if key else "")
    if (message, where) == (refused.message, refused.where):
        return refused
    return Refused(refused.reason, message, where=where, status=refused.status)


def _offender(body: bytes, kind: str, path: str) -> tuple[str, str] | None:
    """Sentence and path of the first value that is none in the dict at ``path``; None where none is found.

    What is on the way there is passed over undecoded. Of a key that came twice in JSON only the last is seen.
    """
    what = _DICTS.get(path.rpartition(".")[2])
    coded: Any = msgspec.json if kind == JSON else msgspec.msgpack
    decode = coded.decode
    if what is None:
        return None
    noun, of, allowed = what
    typed = coded.Decoder(of).decode
    try:
        there: Any = body
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            if name:
                there = decode(there, type=dict[str, msgspec.Raw])[name]
            else:
                there = decode(there, type=list[msgspec.Raw])[int(index)]
        if len(there) > MOST_BYTES:
            return None
        values = decode(there, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError):
        return None
    for key, value in values.items():
        try:
            typed(value)
        except (msgspec.DecodeError, RecursionError):
            return f"The {noun} {shortened(key)} is {_shown(value, decode)}. {allowed}", keyed(path, key)
    return None


def _shown(value: msgspec.Raw, decode: Any) -> str:
    """A value in few words."""
    try:
        plain = decode(value)
    except (msgspec.DecodeError, RecursionError):
        return "a number out of range, or nothing that can be read"
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, str):
        return f"the text {shortened(plain)}"
    if isinstance(plain, (int, float)):
        return "a number out of range"
    kinds = {list: "a list", dict: "an object", bytes: "bytes"}
    return next((words for kind, words in kinds.items() if isinstance(plain, kind)), "no number")


def _key_before_break(message: str, body: bytes) -> str:
    """The key of the value at which JSON broke off; empty where that cannot be told."""
    at = _BYTE.search(message)
    if at is None:
        return ""
    found = _KEY_BEFORE.search(body[max(0, int(at[1]) - _KEY_BYTES) : int(at[1])])
    try:
        return "" if found is None else shortened(msgspec.json.decode(b'"' + found[1] + b'"', type=str))
    except msgspec.DecodeError:
        return ""
