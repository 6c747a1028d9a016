"""What ``verl-sentinel check`` says of a directory: a sentence for each fault. Made by all lints of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault."""

    file: str
    """Its path below the directory; the directory itself is ``.``."""
    line: int
    """From 1; 0 where it is of the file as a whole."""
    check: str
    """What found it, a word by which findings can be counted."""
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.sentence}" if self.line else f"{self.file}: {self.sentence}"


@dataclass(slots=True)
class Report:
    """All that was found, and all that was looked at."""

    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sentences about programs that are needed and are not there."""
    notes: list[str] = field(default_factory=list)
    """What was not looked at, and why that is no fault."""
    looked_at: dict[str, int] = field(default_factory=dict)
    """What was looked at, by its plural."""

    def add(self, file: str, line: int, check: str, sentence: str) -> None:
        self.findings.append(Finding(file, line, check, sentence))

    def saw(self, what: str, count: int = 1) -> None:
        self.looked_at[what] = self.looked_at.get(what, 0) + count

    def sorted(self) -> list[Finding]:
        """By file and line, each only once."""
        return sorted(set(self.findings))

    def as_json(self) -> dict[str, Any]:
        return {
            "findings": [asdict(one) for one in self.sorted()],
            "missing": self.missing,
            "notes": self.notes,
            "looked_at": self.looked_at,
        }


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in a sentence, the first of them where there are many.

    >>> listed(["a", "b"]), listed("abcd", most=2)
    ('a, b', 'a, b and 2 more')
    """
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is probably misspelt, with a space before it; empty where nothing is near.

    >>> nearest("verl_los", ["verl_loss", "up"])
    '; did you mean verl_loss?'
    """
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""
