"""What a command tells a person, and how it ends with a sentence. Called by every command but ``serve``.

Without what parses command lines, so that a command that starts without it can use this.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from exporter.cli.showing import clean


def tell(sentence: str) -> None:
    """Tell the person who started this, or the log of whatever did."""
    print(clean(sentence), file=sys.stderr, flush=True)


def stop(sentence: str, code: int) -> NoReturn:
    """End the program."""
    tell(f"verl-sentinel: {sentence}")
    raise SystemExit(code)
