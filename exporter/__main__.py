"""``python -m exporter``: the same as ``verl-sentinel serve``; a command of ``verl-sentinel`` may be named instead."""

from __future__ import annotations

import sys

from exporter.cli import COMMANDS, main

if __name__ == "__main__":
    if not (sys.argv[1:] and (sys.argv[1] in COMMANDS or sys.argv[1] in ("--help", "-h"))):
        sys.argv.insert(1, "serve")
    main()
