"""What the templates of an alert's annotations ask for: queries and labels. Called by :mod:`exporter.bundle.rules`.

The templates are Go's. Only what the rules use of them is understood: strings that are handed to ``query``, with or
without ``printf``, and the labels behind ``$labels.`` or ``.Labels.``.
"""

from __future__ import annotations

import re
from typing import Final

_ACTION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_STRING: Final = re.compile(r'`([^`]*)`|"((?:[^"\\]|\\.)*)"')
_LABEL: Final = re.compile(r"\$labels\.(\w+)|\$?\.Labels\.(\w+)")
_VERB: Final = re.compile(r"%[-+# 0-9.]*[a-zA-Z]")


def queries(text: str) -> list[str]:
    """Expressions that a template sends, with some value for each verb of ``printf``.

    >>> queries("{{ with printf `verl_loss{run=%q}` .Labels.run | query }}{{ . | first | value }}{{ end }}")
    ['verl_loss{run="x"}']
    >>> queries('{{ query "up" | len }} and {{ printf "%.2f" $value }}')
    ['up']
    """
    found: list[str] = []
    for action in _ACTION.findall(text):
        if not re.search(r"\bquery\b", action):
            continue
        string = _STRING.search(action)
        if string:
            raw, quoted = string.groups()
            expression = raw if raw is not None else re.sub(r"\\(.)", r"\1", quoted)
            formatted = "printf" in action[: string.start()]
            found.append(_VERB.sub(_sample, expression) if formatted else expression)
    return found


def _sample(verb: re.Match[str]) -> str:
    kind = verb.group()[-1]
    return '"x"' if kind == "q" else "1" if kind in "dfge" else "x"


def labels(text: str) -> set[str]:
    """Labels of the alert that a template uses, by the names.

    >>> sorted(labels("{{ $labels.run }} {{ .Labels.signal }} {{ with $x }}{{ $labels.team }}{{ end }} $labels.no"))
    ['run', 'signal', 'team']
    """
    inside = " ".join(_ACTION.findall(text))
    # Labels of what a query gave are another matter: inside of range and with, .Labels is that sample's.
    return {dollar or dot for dollar, dot in _LABEL.findall(inside) if dollar or not re.search(r"\brange\b", inside)}
