"""Where the exporter's time goes, by stage of a push. Used by ``python -m bench.ingest --profile``.

py-spy looks at all threads of the running process from outside, a hundred times a second, so nothing in the exporter is
changed or slowed for it. A sample belongs to the innermost function that one of the stages knows; a thread that waits
for the disk or for the interpreter's lock counts there, too.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from demo.processes import StartError

STAGES = (
    ("decode", ("decode_batch", "exporter/app/decompress")),
    ("check of bounds", ("exporter/service/admission.py",)),
    (
        "journal",
        (
            "exporter/service/journal",
            "exporter/service/recorder",
            "exporter/service/history",
            "exporter/service/entries",
            "exporter/service/sequences",
            "exporter/service/snapshot",
        ),
    ),
    ("detectors", ("exporter/detectors/",)),
    (
        "signals and state",
        (
            "exporter/signals",
            "exporter/service/state",
            "exporter/service/watch",
            "exporter/service/recent",
            "exporter/service/goodput",
            "exporter/service/phases",
            "exporter/incidents",
            "exporter/recovery/",
            "exporter/service/recovery_link",
            "exporter/service/core",
        ),
    ),
    ("answer", ("exporter/app/answers", "settled", "settle")),
    ("HTTP", ("uvicorn/", "litestar/", "exporter/app/", "h11/", "httptools/", "starlette/")),
    ("event loop", ("asyncio/", "uvloop/")),
)
"""Name of the stage, and what its functions have in their description, ``function (file:line)``."""


WAITING = "_worker (concurrent/futures/thread.py"
"""A thread of the pool without work: it waits in a lock, which from outside looks like work."""


@dataclass
class Profile:
    """Samples by stage, and by function."""

    what: str
    stages: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    def add(self, folded: str) -> None:
        """One line of folded stacks: ``outer;inner count``."""
        stack, _, times = folded.rpartition(" ")
        frames = stack.split(";")
        if frames[-1].startswith(WAITING):
            return
        self.stages[_stage(frames)] += int(times)
        self.functions[frames[-1].rpartition(":")[0] or frames[-1]] += int(times)

    def table(self, functions: int = 25) -> str:
        """Shares in per cent, the largest first."""
        total = max(sum(self.stages.values()), 1)
        lines = [f"Where the exporter's time goes, {self.what} ({total} samples):"]
        lines += [f"  {100 * count / total:5.1f} %  {name}" for name, count in self.stages.most_common()]
        lines += ["By function:"]
        lines += [f"  {100 * count / total:5.1f} %  {name})" for name, count in self.functions.most_common(functions)]
        return "\n".join(lines)


def _stage(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, marks in STAGES:
            if any(mark in frame for mark in marks):
                return name
    return "other"


@contextlib.contextmanager
def profiled(pid: int, what: str, seconds: float) -> Iterator[Profile]:
    """Sample a process for ``seconds`` from now; the profile is there when the block is left.

    Raises :class:`StartError` where py-spy is not there or may not look at the process.
    """
    found = Profile(what)
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        out = Path(folder) / "stacks"
        program = Path(sys.executable).with_name("py-spy")
        argv = [str(program), "record", "--duration", str(max(1, round(seconds))), "--format", "raw"]
        try:
            spy = subprocess.Popen(
                [*argv, "--output", str(out), "--pid", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise StartError(
                f"py-spy could not be started ({error}): --profile needs it, from the package py-spy."
            ) from None
        try:
            yield found
        finally:
            said = spy.communicate()[0].decode(errors="replace")
        if not out.is_file():
            raise StartError(f"py-spy has sampled nothing; it said: {said.strip()}")
        for line in out.read_text().splitlines():
            found.add(line)
