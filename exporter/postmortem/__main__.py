"""``python -m exporter.postmortem FOLDER``: write the post-mortem whose material is in the folder.

Started by the exporter, at low priority; exit code 1 with a sentence where it cannot.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from exporter.postmortem.material import MaterialUnreadable
from exporter.postmortem.writing import write

NICE = 10


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m exporter.postmortem FOLDER", file=sys.stderr)
        return 2
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        write(Path(arguments[0]))
    except MaterialUnreadable as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The post-mortem cannot be written: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
