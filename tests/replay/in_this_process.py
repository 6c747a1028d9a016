"""``verl-sentinel replay`` without a process of its own, for tests that run it hundreds of times."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from replay_process import Answer

from exporter.cli.replay import main


def answered(*arguments: str | Path, output: str = "json") -> Answer:
    """What the command answers. An exception that it does not catch is one of the test's."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["--output", output, *map(str, arguments)])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return Answer(code, out.getvalue(), err.getvalue())
