"""Which format and which coding a scraper gets, by its Accept and Accept-Encoding headers (RFC 9110, 12.5)."""

from __future__ import annotations

from collections.abc import Iterator

OPENMETRICS_VERSIONS = ("", "1.0.0", "0.0.1")
"""Versions that a scraper may name and be given ours for; one that names another has a format that we do not write."""


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is asked for, at least as much as plain text; what says nothing of either gets plain text.

    >>> wants_openmetrics("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    True
    >>> wants_openmetrics("text/plain;q=0.8, application/openmetrics-text;q=0.3"), wants_openmetrics("*/*")
    (False, False)
    """
    openmetrics, plain, any_text, anything = 0.0, None, None, None
    for kind, quality, parameters in _preferences(accept):
        if kind == "application/openmetrics-text":
            if parameters.get("version", "") in OPENMETRICS_VERSIONS:
                openmetrics = max(openmetrics, quality)
        elif kind == "text/plain":
            # Of the plain formats a scraper may name several versions; the best liked speaks for them.
            plain = max(plain or 0.0, quality)
        elif kind == "text/*":
            any_text = quality
        elif kind == "*/*":
            anything = quality
    other = next((q for q in (plain, any_text, anything) if q is not None), 0.0)
    return openmetrics > 0 and openmetrics >= other


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a gzipped body is welcome, and no less than a plain one.

    >>> takes_gzip("gzip, deflate"), takes_gzip("gzip;q=0, *"), takes_gzip("identity, gzip;q=0.5"), takes_gzip("")
    (True, False, False, False)
    """
    gzip = identity = anything = None
    for coding, quality, _ in _preferences(accept_encoding):
        if coding in ("gzip", "x-gzip"):
            gzip = quality
        elif coding == "identity":
            identity = quality
        elif coding == "*":
            anything = quality
    found = gzip if gzip is not None else (anything or 0.0)
    return found > 0 and found >= (identity or 0.0)


def _preferences(header: str) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Each entry of a header as its name in lower case, its quality and its other parameters."""
    for entry in header.split(","):
        name, *given = (part.strip() for part in entry.split(";"))
        parameters = {
            key.strip().lower(): value.strip().strip('"') for key, _, value in (p.partition("=") for p in given)
        }
        quality = _quality(parameters.pop("q", "1"))
        if name:
            yield name.lower(), quality, parameters


def _quality(text: str) -> float:
    """A quality from 0 to 1; one that cannot be read counts as 0, so that the plain form is sent."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
