"""Checks of detector options: one sentence that names the detector, the option, the value and what was expected.

Called by every detector's constructor, and by whoever looks a name up (a detector, an option, a preset). All raise
``ValueError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches


def at_least(detector: str, option: str, value: float, least: float, *, whole: bool = False) -> None:
    """Refuse what is no finite number, is below ``least``, or is no whole number where one is needed."""
    kind = "a whole number" if whole else "a number"
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if isinstance(value, bool) or not right or not math.isfinite(value) or value < least:
        raise ValueError(f"detector {detector}: {option} is {value!r}: it must be {kind} of at least {least:g}")


def more_than(detector: str, option: str, value: float, bound: float) -> None:
    """Refuse what is no finite number or not above ``bound``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= bound:
        raise ValueError(f"detector {detector}: {option} is {value!r}: it must be a number above {bound:g}")


def at_most(detector: str, option: str, value: float, most: float, meaning: str) -> None:
    """Refuse a number above ``most``; ``meaning`` names the bound (another option, say)."""
    if value > most:
        raise ValueError(f"detector {detector}: {option} is {value!r}: it must not be above {meaning} ({most:g})")


def finite(detector: str, option: str, value: float) -> None:
    """Refuse what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"detector {detector}: {option} is {value!r}: it must be a number")


def one_of(detector: str, option: str, value: object, known: Iterable[str]) -> None:
    """Refuse what is none of the words that are known, with the nearest one that is."""
    names = list(known)
    if value not in names:
        raise ValueError(f"detector {detector}: {option} is {value!r}: {nearest(value, names)}")


def unknown_name(what: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not known, with the nearest one that is.

    >>> print(unknown_name("detector", "non_finit", ["non_finite", "surge"]))
    unknown detector 'non_finit': did you mean 'non_finite'? Known: non_finite, surge
    """
    return ValueError(f"unknown {what} {name!r}: {nearest(name, known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the nearest right one, where one is near, and all of them.

    >>> nearest("Stays", ["stays", "warmup"]), nearest(3, ["stays"])
    ("did you mean 'stays'? Known: stays, warmup", 'Known: stays')
    """
    names = list(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}Known: {', '.join(names)}"
