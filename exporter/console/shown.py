"""How numbers, times and sizes are spelled for a person, in each language. The filters of the templates.

Written with babel where the language matters. Every spelling of a number that repeats is made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

from babel.dates import format_datetime
from babel.numbers import format_decimal, format_percent
from babel.units import format_unit
from markupsafe import Markup, escape

from exporter.console.languages import N_

_STEPS: Final = ((86_400, "day", 3600, "hour"), (3600, "hour", 60, "minute"), (60, "minute", 1, "second"))
_PREFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
AGO: Final = N_("%(time)s ago")
DASH: Final = "–"
"""For what is not known."""


class Shown:
    """The filters of one language.

    Args:
        language: of the catalogue, such as ``zh``.
        gettext: gives its texts.
    """

    def __init__(self, language: str, gettext: Callable[[str], str]) -> None:
        self._locale = {"zh": "zh_Hans_CN"}.get(language, language)
        self._between = "" if language == "zh" else " "
        self._gettext = gettext
        self._units = lru_cache(2048)(self._unit)
        self._decimals = lru_cache(4096)(self._decimal)

    def filters(self) -> dict[str, Callable[..., Any]]:
        """By the name that templates use."""
        return {
            "number": self.number,
            "integer": self.integer,
            "percent": self.percent,
            "seconds": self.seconds,
            "ago": self.ago,
            "when": self.when,
            "amount": self.amount,
            "tick": self.tick,
        }

    def number(self, value: float | None) -> str:
        """Four digits that say something; what is no number by its name."""
        if value is None:
            return DASH
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
        size = abs(value)
        if size >= 1000:
            return self._decimals(round(value) if size < 1e12 else value)
        if size and size < 1e-3:
            mantissa, _, exponent = f"{value:.3g}".partition("e")
            return f"{mantissa}e{int(exponent)}" if exponent else mantissa
        return f"{value:.4g}"

    def integer(self, value: float | None) -> str:
        return DASH if value is None or not math.isfinite(value) else self._decimals(int(value))

    def percent(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return DASH
        return str(format_percent(value, format="#,##0.#%", locale=self._locale))

    def seconds(self, value: float | None) -> str:
        """A duration in its two largest units."""
        if value is None or not math.isfinite(value):
            return DASH
        if value < 0:
            value = 0.0
        if value < 1:
            return self._units(round(value, 2), "second") if value >= 0.005 else self._units(0, "second")
        if value < 10:
            return self._units(round(value, 1), "second")
        whole = round(value)
        for size, name, smaller_size, smaller in _STEPS:
            if whole >= size:
                large, rest = divmod(whole, size)
                small = rest // smaller_size
                parts = [self._units(large, name), *([self._units(small, smaller)] if small and large < 100 else [])]
                return self._between.join(parts)
        return self._units(whole, "second")

    def ago(self, value: float | None) -> str:
        """An age in seconds."""
        return DASH if value is None else self._gettext(AGO) % {"time": self.seconds(value)}

    def when(self, value: float | None) -> Markup:
        """Unix seconds, in UTC; the browser's script shows it in the time zone of who looks."""
        moment = _moment(value)
        if moment is None:
            return Markup(DASH)
        text = format_datetime(moment, "yyyy-MM-dd HH:mm:ss", locale=self._locale)
        return Markup('<time datetime="{}">{} UTC</time>').format(moment.strftime("%Y-%m-%dT%H:%M:%SZ"), escape(text))

    def amount(self, value: float | None) -> str:
        """Bytes with a binary prefix."""
        if value is None or not math.isfinite(value):
            return DASH
        return self._prefixed(value, ".1f")

    def _prefixed(self, value: float, spelling: str) -> str:
        for prefix in _PREFIXES:
            if abs(value) < 1024 or prefix == _PREFIXES[-1]:
                break
            value /= 1024
        return f"{value:.0f} B" if not prefix else f"{value:{spelling}} {prefix}B"

    def tick(self, value: float, unit: str = "") -> str:
        """A number at the side of a drawing, in nine characters at most."""
        if unit == "bytes":
            return self._prefixed(value, ".4g")
        if abs(value) < 1e6 or not math.isfinite(value):
            return self.number(value)
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        digits = mantissa.rstrip("0").rstrip(".") if abs(value) < 1e10 else f"{float(mantissa):.3g}"
        return f"{digits}e{int(exponent)}"

    def _unit(self, value: float, name: str) -> str:
        return str(format_unit(value, f"duration-{name}", length="narrow", locale=self._locale))

    def _decimal(self, value: float) -> str:
        return str(format_decimal(value, locale=self._locale))


def _moment(value: float | None) -> datetime | None:
    try:
        return None if not value else datetime.fromtimestamp(value, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
