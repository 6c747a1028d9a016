"""What an expression asks for: metrics that there are, and labels that they have. Called by the lints of this package.

Labels are followed through the expression. Where those of a part cannot be known nothing is said of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as promql

from exporter.bundle.findings import listed, nearest
from exporter.bundle.metrics import Known, Labels

LONGEST: Final = 4000
"""Characters of an expression."""
MOST_OPERATORS: Final = 250
"""In one expression, brackets among them. The parser's time and stack grow with how deep they are nested."""

FILLER: Final = "x"
"""Stands for a variable within strings."""

MARKER: Final = "verl_any_value"
"""Stands for a variable outside of strings and brackets, where a number does not fit."""

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?:\.[\w.]+)?(?::[^{}]*)?\}|\$(\w+)|\[\[(\w+)(?::[^\]]*)?\]\]")

_BUILT_IN = """
    __rate_interval __interval __interval_ms __range __range_s __range_ms __from __to __dashboard __org __user __name
    __all_variables __url_time_range timeFilter __timeFilter __timezone __auto __value __field __data __series __cell
    """
BUILT_IN: Final = frozenset(_BUILT_IN.split())
"""Variables that Grafana itself gives."""

_STRING: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`")
_OPERATOR: Final = re.compile(r"[-+*/%^<>(\[{]|==|\b(?:and|or|unless|atan2)\b")
_SETS: Final = frozenset({"and", "unless", "or"})
_KEEPS_ONE: Final = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_OF_COUNTERS: Final = frozenset({"rate", "irate", "increase", "resets"})
_OF_GAUGES: Final = frozenset({"delta", "idelta", "deriv", "predict_linear", "holt_winters"})
_NO_LABELS: Final = frozenset({"vector", "scalar", "time", "pi"})


def variables(text: str) -> set[str]:
    """Names of the Grafana variables in a text.

    >>> sorted(variables('rate(x{run=~"${run:regex}", node="$node"}[$__rate_interval])'))
    ['__rate_interval', 'node', 'run']
    """
    return {next(name for name in found if name) for found in _VARIABLE.findall(text)}


def filled(expression: str, otherwise: str = "1") -> str:
    """An expression of a dashboard as Prometheus might be sent it: each variable has some value of the right form.

    >>> filled('topk($n, rate(x{run=~"$run"}[$__rate_interval]))')
    'topk(1, rate(x{run=~"x"}[5m]))'
    """
    parts: list[str] = []
    quote, brackets, at = "", 0, 0
    while at < len(expression):
        character = expression[at]
        variable = _VARIABLE.match(expression, at) if character in "$[" else None
        if variable:
            name = next(name for name in variable.groups() if name)
            parts.append(FILLER if quote else _value(name, brackets > 0, otherwise))
            at = variable.end()
            continue
        if quote:
            if character == "\\" and quote != "`":
                parts.append(expression[at : at + 2])
                at += 2
                continue
            quote = "" if character == quote else quote
        elif character in "\"'`":
            quote = character
        else:
            brackets += (character == "[") - (character == "]")
        parts.append(character)
        at += 1
    return "".join(parts)


def _value(name: str, in_brackets: bool, otherwise: str) -> str:
    if name.endswith(("_ms", "_s")) and name.startswith("__"):
        return "300s" if in_brackets else "300"
    return "5m" if in_brackets or name in ("__interval", "__range", "__rate_interval") else otherwise


class Unusable(ValueError):
    """An expression that nothing can be said of; the message is a clause."""


def parsed(expression: str) -> Any:
    """The expression's tree. Raises :class:`Unusable`."""
    if len(expression) > LONGEST:
        raise Unusable(f"is longer than {LONGEST} characters")
    if len(_OPERATOR.findall(_STRING.sub('""', expression))) > MOST_OPERATORS:
        raise Unusable(f"has more than {MOST_OPERATORS} operators and brackets")
    try:
        return promql.parse(expression)
    except ValueError as error:
        raise Unusable(f"cannot be parsed: {' '.join(str(error).split())[:200]}") from None


def parsed_of_dashboard(expression: str) -> Any:
    """The same of one with Grafana's variables, which may stand for numbers or for names."""
    try:
        return parsed(filled(expression))
    except Unusable:
        if not variables(expression):
            raise
        return parsed(filled(expression, MARKER))


class Asked:
    """Follows one expression.

    Args:
        known: the metrics that there are.
        say: takes a sentence for each fault.
    """

    def __init__(self, known: Known, say: Callable[[str], None]) -> None:
        self._known = known
        self._say = say

    def labels(self, node: Any) -> Labels:
        """Labels that the result may have. Says on the way what is wrong."""
        kind = type(node).__name__
        if kind == "VectorSelector":
            return self._selector(node)
        if kind == "MatrixSelector":
            return self._selector(node.vector_selector)
        if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
            return self.labels(node.expr)
        if kind == "AggregateExpr":
            return self._aggregate(node)
        if kind == "Call":
            return self._call(node)
        if kind == "BinaryExpr":
            return self._binary(node)
        return frozenset()

    def _selector(self, node: Any) -> Labels:
        groups = [list(node.matchers.matchers), *(list(group) for group in getattr(node.matchers, "or_matchers", []))]
        matchers = [matcher for group in groups for matcher in group]
        name = node.name or next((m.value for m in matchers if m.name == "__name__" and _op(m) == "Equal"), None)
        if name is None:
            for matcher in matchers:
                if matcher.name == "__name__" and _op(matcher) == "Re" and not self._known.matching(matcher.value):
                    self._say(f"No metric has a name like {matcher.value}.")
            return None
        if name == MARKER:
            return None
        if name not in self._known:
            self._say(
                f"{name} is exported by nobody: not by the exporter, by Prometheus or Alertmanager, nor recorded by a "
                f"rule here{nearest(name, self._known.names)}."
            )
            return None
        labels = self._known.labels(name)
        self._are_there([m.name for m in matchers if m.name != "__name__"], labels, name)
        for matcher in matchers:
            self._has_value(name, matcher)
        return labels

    def _has_value(self, name: str, matcher: Any) -> None:
        known = self._known.values(name, matcher.name)
        # Where a variable of a dashboard or a verb of a template stood, any value may come.
        if known is None or not matcher.value or FILLER in matcher.value:
            return
        asked = Matcher(name, matcher.value, _op(matcher) in ("Re", "NotRe"))
        if not asked.any_of(known):
            hint = nearest(matcher.value, sorted(known))
            self._say(
                f"{matcher.name} of {name} is never {matcher.value}: it is one of {listed(sorted(known), 30)}{hint}."
            )

    def _are_there(self, wanted: list[str], labels: Labels, what: str) -> None:
        if labels is None:
            return
        for label in wanted:
            if label not in labels and label not in (MARKER, "__name__"):
                has = f"it has {listed(sorted(labels), most=12)}" if labels else "it has none"
                self._say(f"{what} has no label {label}: {has}{nearest(label, sorted(labels))}.")

    def _aggregate(self, node: Any) -> Labels:
        inner = self.labels(node.expr)
        if node.param is not None:
            self.labels(node.param)
        op = str(node.op)
        named = list(node.modifier.labels) if node.modifier else []
        by = node.modifier is not None and str(node.modifier.type).endswith("By")
        self._are_there(named, inner, f"What {op} {'by' if by else 'without'} ({', '.join(named)}) is made of")
        if op in _KEEPS_ONE:
            return inner
        kept: Labels
        if by:
            kept = None if MARKER in named else frozenset(named) if inner is None else frozenset(named) & inner
        elif node.modifier is None:
            kept = frozenset()
        else:
            kept = None if inner is None else inner - frozenset(named)
        if op == "count_values" and kept is not None:
            kept |= {str(node.param.val)} if hasattr(node.param, "val") else frozenset()
        return kept

    def _call(self, node: Any) -> Labels:
        name, args = node.func.name, list(node.args)
        inner = [self.labels(arg) for arg in args if type(arg).__name__ not in ("StringLiteral", "NumberLiteral")]
        strings = [arg.val for arg in args if type(arg).__name__ == "StringLiteral"]
        first = inner[0] if inner else frozenset()
        self._suits(name, args)
        if name in _NO_LABELS:
            return frozenset()
        if name in ("absent", "absent_over_time"):
            return _equal(args[0]) if args else frozenset()
        if name == "label_replace" and len(strings) == 4:
            self._are_there([strings[2]] if strings[2] else [], first, "What label_replace works on")
            return None if first is None else first | {strings[0]}
        if name == "label_join" and len(strings) >= 2:
            self._are_there(strings[2:], first, "What label_join works on")
            return None if first is None else first | {strings[0]}
        if name == "histogram_quantile":
            last = inner[-1] if inner else None
            self._are_there(["le"], last, "What histogram_quantile works on")
            return None if last is None else last - {"le"}
        if name == "info":
            return None
        return inner[-1] if inner else frozenset()

    def _suits(self, function: str, args: list[Any]) -> None:
        """Functions of counters are for counters: of a gauge they take each fall for a restart."""
        wanted = "counter" if function in _OF_COUNTERS else "gauge" if function in _OF_GAUGES else None
        for arg in args if wanted else []:
            name = getattr(getattr(arg, "vector_selector", None), "name", None) or ""
            if self._known.kind(name) not in (None, wanted):
                self._say(f"{function} is for a {wanted}, and {name} is a {self._known.kind(name)}.")

    def _binary(self, node: Any) -> Labels:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        op, modifier = str(node.op), node.modifier
        if _number(node.lhs):
            return right
        if _number(node.rhs):
            return left
        matching = modifier.matching if modifier else None
        named = list(matching.labels) if matching else []
        # The sides of "or" need not be alike: with "on" it only says what is the same.
        for side, where in ((left, "left"), (right, "right")):
            on = matching is not None and str(matching.type).endswith("Include")
            if on and side != frozenset():
                self._are_there(named, side, f"The {where} side of {op} on ({', '.join(named)})")
        if op == "or":
            return None if left is None or right is None else left | right
        if op in _SETS:
            return left
        card = str(modifier.card) if modifier else ""
        brought = list(modifier.group_labels or []) if modifier else []
        if "ManyToOne" in card or "OneToMany" in card:
            many, one = (left, right) if "ManyToOne" in card else (right, left)
            self._are_there(
                brought, one, f"The side that group_{'left' if many is left else 'right'} takes labels from"
            )
            return None if many is None else many | frozenset(brought)
        if matching is None or left is None:
            return left
        return frozenset(named) & left if str(matching.type).endswith("Include") else left - frozenset(named)


def _op(matcher: Any) -> str:
    return str(matcher.op).rpartition(".")[2]


def _number(node: Any) -> bool:
    kind = type(node).__name__
    if kind in ("ParenExpr", "UnaryExpr"):
        return _number(node.expr)
    if kind == "BinaryExpr":
        return _number(node.lhs) and _number(node.rhs)
    return kind == "NumberLiteral" or (kind == "Call" and node.func.name in ("scalar", "time", "pi"))


def _equal(node: Any) -> Labels:
    """Labels that ``absent`` gives its result: those of the matchers that name one value."""
    if type(node).__name__ == "MatrixSelector":
        node = node.vector_selector
    if type(node).__name__ != "VectorSelector":
        return frozenset()
    return frozenset(m.name for m in node.matchers.matchers if _op(m) == "Equal" and m.name != "__name__")


def selectors(node: Any) -> list[Any]:
    """All selectors of an expression, with the range that each is asked over: ``(selector, seconds or None)``."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        return [(node, None)]
    if kind == "MatrixSelector":
        return [(node.vector_selector, node.range.total_seconds())]
    if kind == "Call":
        return [one for arg in node.args for one in selectors(arg)]
    if kind == "BinaryExpr":
        return selectors(node.lhs) + selectors(node.rhs)
    if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr", "AggregateExpr"):
        return selectors(node.expr)
    return []


@dataclass(frozen=True, slots=True)
class Matcher:
    """What a selector asks of one label."""

    metric: str
    value: str
    as_pattern: bool

    def any_of(self, known: Collection[str]) -> bool:
        """Whether it takes one of these; each of the alternatives of a pattern has to."""
        if not self.as_pattern:
            return self.value in known
        try:
            return all(any(re.fullmatch(one, name) for name in known) for one in alternatives(self.value))
        except re.error:
            return True  # Go's patterns differ from Python's in places


def matchers(expression: str, label: str) -> list[Matcher]:
    """What an expression asks of a label, where it asks for some value; nothing of one that cannot be parsed."""
    try:
        node = parsed(expression)
    except Unusable:
        return []
    return [
        Matcher(selector.name or "", matcher.value, _op(matcher) == "Re")
        for selector, _ in selectors(node)
        for matcher in selector.matchers.matchers
        if matcher.name == label and _op(matcher) in ("Equal", "Re") and matcher.value
    ]


def alternatives(pattern: str) -> list[str]:
    """The parts of a pattern between its outermost bars.

    >>> alternatives("A|B(x|y)|C.*")
    ['A', 'B(x|y)', 'C.*']
    """
    parts, depth = [""], 0
    for character in pattern:
        depth += (character in "([") - (character in ")]")
        if character == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
