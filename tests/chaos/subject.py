"""One run of a world: its supervisor, its folders, its faults, and the witness that watches it.

Made by :mod:`tests.chaos.world`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos import versions
from tests.chaos.programs import Program
from tests.chaos.witness import Witness, found_by

HERE = Path(__file__).resolve().parent


class Run:
    """One run.

    Args:
        out: the world's folder.
        urls: the exporter's address for the ``trainer`` and for the ``supervisor``, each over a wire of its own.
        token: file with a token of scope push.
        words: more options of the trainer.
        environment: of everything in this world.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        *,
        urls: Mapping[str, str],
        token: Path,
        words: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        folder = out / name
        self.evidence, self.state, self.checkpoints = folder / "evidence", folder / "state", folder / "checkpoints"
        self.evidence.mkdir(parents=True)
        database = out / "exporter" / "recovery.sqlite3"
        self.witness = Witness(name, self.evidence, self.checkpoints, self.state, database)
        self.environment = versions.place(out / "cache")
        """Of the other version of verl, once it is being built."""
        self.faults: list[dict[str, Any]] = []
        all_words = {
            "trainer.default_local_dir": str(self.checkpoints),
            "trainer.project_name": "chaos",
            "trainer.experiment_name": name,
            "+chaos.evidence": str(self.evidence),
            "+chaos.url": urls["trainer"],
            **words,
        }
        self.env = {
            **environment,
            "VERL_SENTINEL_TOKEN_FILE": str(token),
            "VERL_SENTINEL_PYTHON": sys.executable,
            "XDG_CACHE_HOME": str(out / "cache"),
            **versions.wheels(out / "wheels"),
        }
        self.supervisor = Program(
            f"supervisor of {name}",
            [
                *(sys.executable, "-m", "trainer_entry.cli", "run", "--state-dir", str(self.state)),
                *("--run-id", name, "--url", urls["supervisor"]),
                *("--wait-for-command-seconds", "60", "--clean-stop-seconds", "5", "--rollback-clean-seconds", "3"),
                *("--term-seconds", "2", "--kill-seconds", "5", "--"),
                *(sys.executable, str(HERE / "fast_trainer.py")),
                *(f"{key}={value}" for key, value in all_words.items()),
            ],
            out / "logs" / f"supervisor-{name}.log",
            self.env,
        )

    def pids_of(self, victim: str) -> list[int]:
        """Live processes of the run by what they are: ``trainer``, ``worker``, ``attempt``, ``script``, ``tool``."""
        if victim == "trainer":
            return [one["pid"] for one in self.witness.trainers()]
        if victim == "worker":
            return self.witness.workers()
        words = {
            "attempt": b"trainer_entry.supervisor.attempt",
            "script": b"/rules/rollback/",
            "tool": b"\0environments\0",
        }
        return found_by(words[victim], os.fsencode(self.state))

    def inject(self, kind: str, *attempts: int) -> None:
        """From now on, the trainer has this fault in these attempts."""
        self.faults.append({"kind": kind, "attempts": list(attempts or (1,))})
        self._write_faults()

    def heal(self) -> None:
        """The cause of the faults is gone; weights that are spoilt stay so."""
        self.faults.clear()
        self._write_faults()

    def _write_faults(self) -> None:
        temporary = self.evidence / "faults.tmp"
        temporary.write_text(json.dumps(self.faults))
        temporary.replace(self.evidence / "faults.json")

    def steps(self, attempt: int) -> list[dict[str, Any]]:
        return [step for step in self.witness.lines("steps.jsonl") if step["attempt"] == attempt]
