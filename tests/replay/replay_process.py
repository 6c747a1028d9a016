"""``verl-sentinel replay`` as a process, and what it answered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from past_files import PROGRAM


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Every line of standard output, which has to be a JSON object."""
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.out.splitlines()]

    @property
    def pages(self) -> list[dict[str, Any]]:
        return [verdict for verdict in self.verdicts if verdict["severity"] == "critical"]


Replaying = Callable[..., Answer]


def replayed(*arguments: str | Path, output: str = "json") -> Answer:
    done = subprocess.run(
        [*PROGRAM, "replay", "--output", output, *map(str, arguments)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "300"},
        timeout=300,
        check=False,
    )
    err = done.stderr.decode()
    assert "Traceback" not in err, err
    return Answer(done.returncode, done.stdout.decode(), err)
