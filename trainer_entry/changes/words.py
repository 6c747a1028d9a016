"""The trainer's command line with changes in it: Hydra words, the interpreter of another environment.

Words only, never a shell string. Called by the supervisor for each attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from exporter.protocol import Changes, Scalar
from trainer_entry.changes.rules import ChangeError

OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][A-Za-z0-9_.]*)(=(?P<value>.*))?", re.DOTALL)
_PYTHON = re.compile(r"python([0-9](\.[0-9]{1,2})?)?")
_SIMPLE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE_QUOTE = re.compile(r"(\\+)('|\Z)")


def with_settings(argv: Sequence[str], changes: Changes) -> list[str]:
    """The words with the changed settings in place of whatever they said of those keys. Raises ChangeError.

    ``++`` sets a key whether the configuration has it or not. A key that is taken out is set first, so that taking it
    out cannot fail (Hydra takes out neither what is not there nor what is null); one that the words themselves had
    added (``+key=…``) is simply not added.

    >>> with_settings(["python", "-m", "x", "optim.lr=1e-3", "+a.b=1"], Changes(settings={"optim.lr": 1e-6}))
    ['python', '-m', 'x', '+a.b=1', '++optim.lr=1e-06']
    >>> with_settings(["python", "optim.lr=1e-3", "+a.b=1"], Changes(removed=["optim.lr", "a.b"]))
    ['python', '++optim.lr=0', '~optim.lr']
    """
    changed = {*changes.settings, *changes.removed}
    kept, added_by_words = [], set()
    for place, word in enumerate(argv):
        key, sign = _key(word) if place else ("", "")
        if key in changed:
            if sign == "+":
                added_by_words.add(key)
        else:
            kept.append(word)
    kept += [f"++{key}={hydra_value(value)}" for key, value in changes.settings.items()]
    for key in changes.removed:
        if key not in added_by_words:
            kept += [f"++{key}=0", f"~{key}"]
    return kept


def hydra_value(value: Scalar) -> str:
    """A value as Hydra's grammar reads it back. Raises ChangeError for what cannot be said.

    Texts are always quoted. A flat configuration spells lists and mappings as JSON; such a text is one again.

    >>> hydra_value("it's"), hydra_value('["console", 1]'), hydra_value(None), hydra_value(True)
    ("'it\\\\'s'", "['console',1]", 'null', 'true')
    """
    if isinstance(value, str):
        if value[:1] in ("[", "{"):
            try:
                return _nested(json.loads(value))
            except (ValueError, RecursionError):
                pass
        return _quoted(value)
    return json.dumps(value)


def with_interpreter(argv: Sequence[str], python: str) -> list[str]:
    """The words run by that interpreter, where the first is a Python or torchrun; else as they are.

    A launcher script finds the environment's ``python`` on the PATH that goes with it.

    >>> with_interpreter(["/usr/bin/python3.11", "-m", "x"], "/e/bin/python")
    ['/e/bin/python', '-m', 'x']
    >>> with_interpreter(["torchrun", "--nproc_per_node=2", "-m", "x"], "/e/bin/python")
    ['/e/bin/python', '-m', 'torch.distributed.run', '--nproc_per_node=2', '-m', 'x']
    """
    program = argv[0].rsplit("/", 1)[-1]
    if _PYTHON.fullmatch(program):
        return [python, *argv[1:]]
    if program == "torchrun":
        return [python, "-m", "torch.distributed.run", *argv[1:]]
    return list(argv)


def _key(word: str) -> tuple[str, str]:
    match = OVERRIDE.fullmatch(word)
    if match is None or (match["value"] is None and match["sign"] != "~"):
        return "", ""
    return match["key"], match["sign"] or ""


def _quoted(text: str) -> str:
    """In single quotes. A backslash counts for Hydra only before a quote."""
    if not text.isprintable() or "${" in text:
        raise ChangeError(f"Hydra cannot be given the text {text[:80]!r}: it holds '${{' or a control character.")
    doubled = _BEFORE_QUOTE.sub(lambda match: match[1] * 2 + match[2], text)
    return "'" + doubled.replace("'", "\\'") + "'"


def _nested(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_nested(each) for each in value) + "]"
    if isinstance(value, dict):
        pairs = []
        for key, each in value.items():
            if not _SIMPLE_KEY.fullmatch(key):
                raise ChangeError(f"Hydra cannot be given a mapping with the key {key[:80]!r}.")
            pairs.append(f"{key}:{_nested(each)}")
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, str):
        return _quoted(value)
    return json.dumps(value)
