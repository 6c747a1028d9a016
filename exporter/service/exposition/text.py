"""Text of samples and of whole pages, classic (0.0.4) and OpenMetrics (1.0). Used by the rest of the package.

Both formats spell a sample in the same way; they differ in the lines that begin a family and in the last line. So a
sample is made once, and the format is chosen when the page is put together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from exporter.service.exposition.families import FAMILIES, Family

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

UNITS = ("seconds", "bytes", "ratio", "watts", "celsius")

_json = msgspec.json.Encoder()


def number(value: float) -> str:
    """A value as both formats spell it, with as many digits as give back the same float.

    >>> number(3), number(0.1), number(-math.inf), number(math.nan)
    ('3', '0.1', '-Inf', 'NaN')
    """
    text = _json.encode(value).decode()
    return text if text != "null" else _not_finite(value)


def numbers(values: Sequence[float]) -> list[str]:
    """:func:`number` of each.

    A scrape is little else than this, and JSON's encoder writes a float in a tenth of the time that ``repr`` takes.

    >>> numbers([1, math.inf, 2.5])
    ['1', '+Inf', '2.5']
    """
    encoded = _json.encode(values)
    if b"null" in encoded:
        return [number(value) for value in values]
    return encoded[1:-1].decode().split(",") if values else []


def _not_finite(value: float) -> str:
    """JSON has no word for these."""
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def escaped(value: str) -> str:
    r"""A label's value between its quotes.

    >>> print(escaped('a "b"'))
    a \"b\"
    """
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def label_set(names: Sequence[str], values: Iterable[str]) -> str:
    """The labels of a sample, as they stand between its name and its value; with the blank behind them.

    >>> label_set(("run", "phase"), ("a", "gen"))
    '{run="a",phase="gen"} '
    """
    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}} " if pairs else " "


def bound(value: float) -> str:
    """The upper bound of a bucket, as its label spells it.

    >>> bound(0.25), bound(7200.0), bound(math.inf)
    ('0.25', '7200.0', '+Inf')
    """
    return "+Inf" if value == math.inf else repr(float(value))


def histogram(family: Family, labels: str, bounds: Iterable[float], counts: Sequence[int], total: float) -> str:
    """All lines of one histogram: its buckets, which add up, its count and its sum.

    ``labels`` is a :func:`label_set`; ``counts`` are those of the single buckets, one more than there are bounds.
    """
    before = f"{family.name}_bucket{labels[:-2]}," if labels != " " else f"{family.name}_bucket{{"
    lines, running = [], 0
    for value, count in zip((*bounds, math.inf), counts, strict=True):
        running += count
        lines.append(f'{before}le="{bound(value)}"}} {running}\n')
    lines.append(f"{family.name}_count{labels}{running}\n{family.name}_sum{labels}{number(total)}\n")
    return "".join(lines)


def summary(family: Family, labels: str, count: int, total: float) -> str:
    """Both lines of one summary; ``labels`` is a :func:`label_set`."""
    return f"{family.name}_count{labels}{count}\n{family.name}_sum{labels}{number(total)}\n"


class Page:
    """The lines of one scrape by family; what has no line is left out."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[] for _ in FAMILIES]
        """By :attr:`Family.order`."""
        self._settled: list[list[bytes]] = [[] for _ in FAMILIES]

    def settle(self) -> None:
        """Put together the lines so far, so that less is left for the end."""
        for lines, settled in zip(self.lines, self._settled, strict=True):
            if lines:
                # A lone surrogate, which UTF-8 cannot have, must not cost the whole page.
                settled.append("".join(lines).encode("utf-8", "replace"))
                lines.clear()

    def put(self, family: Family, value: float, *values: str) -> None:
        """One sample of a family that is no histogram and no summary; ``values`` of its labels, in their order."""
        self.lines[family.order].append(f"{family.sample}{label_set(family.labels, values)}{number(value)}\n")

    def summary(self, family: Family, count: int, total: float, *values: str) -> None:
        self.lines[family.order].append(summary(family, label_set(family.labels, values), count, total))

    def histogram(self, family: Family, bounds: Iterable[float], counts: Sequence[int], total: float) -> None:
        """A histogram without labels of its own."""
        self.lines[family.order].append(histogram(family, label_set((), ()), bounds, counts, total))

    def body(self, *, openmetrics: bool) -> bytes:
        """The whole page."""
        self.settle()
        parts: list[bytes] = []
        for begin, settled in zip(_OPENMETRICS_BEGINS if openmetrics else _CLASSIC_BEGINS, self._settled, strict=True):
            if settled:
                parts.append(begin)
                parts.extend(settled)
        if openmetrics:
            parts.append(b"# EOF\n")
        return b"".join(parts)


def _begin(family: Family, *, openmetrics: bool) -> str:
    """The lines before the samples of a family."""
    text = family.text.replace("\\", "\\\\").replace("\n", "\\n")
    if not openmetrics:
        name = family.sample if family.kind in ("counter", "info") else family.name
        kind = "gauge" if family.kind == "info" else family.kind
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    text = text.replace('"', '\\"')
    unit = next((f"# UNIT {family.name} {unit}\n" for unit in UNITS if family.name.endswith(f"_{unit}")), "")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n{unit}"


_CLASSIC_BEGINS = [_begin(family, openmetrics=False).encode() for family in FAMILIES]
_OPENMETRICS_BEGINS = [_begin(family, openmetrics=True).encode() for family in FAMILIES]
