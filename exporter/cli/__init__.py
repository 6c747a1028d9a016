"""``verl-sentinel``: run the exporter, and look at one that runs, or at a run that is past. Called by
:mod:`exporter.__main__`.
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point of the program.

    ``replay`` parses its own arguments: it is run over many files in a row and in pipelines, and what parses those of
    the other commands takes longer to load than all that it needs.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a run's name shows its code instead of ending the program.
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["replay"]:
        from exporter.cli.replay import main as replay

        sys.exit(replay(sys.argv[2:]))
    from exporter.cli.program import app

    app(prog_name="verl-sentinel")
