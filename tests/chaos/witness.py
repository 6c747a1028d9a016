"""An observer with its own eyes: ``/proc``, files, the kernel's locks. It asks none of our programs how it is.

It looks all the time, and keeps what it saw and every breach of an invariant (``docs/chaos.md``). The audit log and the
recoveries are read from the exporter's database, read-only, because a file cannot gloss over itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos import weights
from trainer_entry.checkpoints import verify

LOOK_SECONDS = 0.1
AUDIT_SECONDS = 1.0
"""The audit log is read less often: each reading is a transaction in a database that the exporter is writing to."""
_MANIFEST = "verl_sentinel_manifest.json"


class Witness:
    """Watches one run from before its start to after its end. ``breaches`` are sentences, each told once."""

    def __init__(self, run_id: str, evidence: Path, checkpoints: Path, state: Path, database: Path) -> None:
        self.run_id = run_id
        self.breaches: list[str] = []
        self.damaged_on_purpose = False
        """The scenario itself damages checkpoints, so that none may be restored, and none can be lost."""
        self._evidence, self._checkpoints, self._state = evidence, checkpoints, state
        self._database = database
        self._good: dict[int, str] = {}
        """Step: hash over the files of a checkpoint that had a manifest and weights that are numbers."""
        self._first_good_at: float | None = None
        self._audit: dict[int, str] = {}
        self._audit_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"witness {run_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Look a last time, and judge what can be judged only now."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(30)
        self._look()
        self._judge_checkpoints()
        self._judge_audit()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Evidence that the trainers left; a line that is being written is left out."""
        try:
            text = (self._evidence / name).read_text()
        except FileNotFoundError:
            return []
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def trainers(self) -> list[dict[str, Any]]:
        """Starts whose process lives."""
        return [start for start in self.lines("starts.jsonl") if alive(start["pid"], b"fast_trainer")]

    def workers(self) -> list[int]:
        return [start["worker"] for start in self.lines("starts.jsonl") if alive(start["worker"], b"worker.lock")]

    def recoveries(self) -> list[dict[str, Any]]:
        """Every recovery of the run, the oldest first, as the exporter has written it down."""
        rows = self._query("SELECT record FROM recoveries WHERE run_id = ? ORDER BY number", (self.run_id,))
        return [json.loads(row[0]) for row in rows]

    def commands(self) -> list[dict[str, Any]]:
        """What the supervisor has written down of each command, the oldest first; ``age``: seconds since it did."""
        found = []
        for path in self._state.glob("commands/*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append({**json.loads(path.read_text()), "age": time.time() - path.stat().st_mtime})
        return sorted(found, key=lambda record: record.get("accepted_at", 0.0))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self._look_at_trainers()
        self._look_at_checkpoints()
        if self._ended.is_set() or time.monotonic() - self._audit_at > AUDIT_SECONDS:
            self._look_at_audit()
            self._audit_at = time.monotonic()

    def _breach(self, sentence: str) -> None:
        if sentence not in self.breaches:
            self.breaches.append(sentence)

    def _look_at_trainers(self) -> None:
        """Never two trainers on one run, never a start from scratch, each command carried out at most once."""
        for overlap in self.lines("overlaps.jsonl"):
            self._breach(f"two {overlap['what']}s at once: attempt {overlap['attempt']} found another alive")
        living = {start["attempt"] for start in self.trainers()}
        if len(living) > 1:
            self._breach(f"two trainers at once: attempts {sorted(living)}")
        starts = self.lines("starts.jsonl")
        for start in starts:
            first = self._first_good_at
            if start["from"] == 0 and first is not None and start["at"] > first and start["attempt"] > 1:
                self._breach(f"attempt {start['attempt']} started from scratch")
            if start["attempt"] > 1 and start["ruined"]:
                self._breach(f"attempt {start['attempt']} was restored from a spoilt checkpoint, step {start['from']}")
            wanted = start.get("changes", {}).get("verl_version", "")
            if wanted and start["version"] != wanted:
                self._breach(f"attempt {start['attempt']} was to run on verl {wanted}, and runs on {start['version']}")
        ran = Counter(start["attempt"] for start in starts)
        for attempt, times in ran.items():
            if times > 1:
                self._breach(f"attempt {attempt} ran {times} times")
        asked: Counter[str] = Counter()
        for attempt in ran:
            with contextlib.suppress(OSError, ValueError):
                asked[json.loads((self._state / f"attempts/{attempt}/request.json").read_text())["command_id"]] += 1
        for command, times in asked.items():
            if command and times > 1:
                self._breach(f"command {command} was carried out {times} times")

    def _look_at_checkpoints(self) -> None:
        if not self._checkpoints.is_dir():
            return
        for directory in self._checkpoints.glob("global_step_*"):
            step = int(directory.name.rpartition("_")[2])
            if step in self._good or not (directory / _MANIFEST).exists():
                continue
            with contextlib.suppress(OSError, ValueError):
                if not _ruined(directory):
                    self._good[step] = _hash(directory)
                    if self._first_good_at is None:
                        self._first_good_at = time.monotonic()

    def _judge_checkpoints(self) -> None:
        """Those up to where the run was taken back to, or up to the onset, are there as they were, and verify."""
        if self.damaged_on_purpose:
            return
        restored = [start["from"] for start in self.lines("starts.jsonl") if start["attempt"] > 1]
        bad = [step["step"] for step in self.lines("steps.jsonl") if step["ruined"]]
        limit = min([*restored, *(step - 1 for step in bad)], default=None)
        for step, known in sorted(self._good.items()):
            if limit is not None and step > limit:
                continue
            directory = self._checkpoints / f"global_step_{step}"
            # The newest may be being overwritten, or not be finished, when the trainer is ended with the scenario.
            if limit is None and step == max(self._good):
                continue
            if not directory.exists():
                self._breach(f"the good checkpoint of step {step} is gone")
            elif _hash(directory) != known:
                self._breach(f"the good checkpoint of step {step} was changed")
            elif not (verification := verify(directory)).ok:
                self._breach(f"the good checkpoint of step {step} does not verify: {verification.reason}")

    def _look_at_audit(self) -> None:
        """Append-only: every line that was ever seen is still there, as it was."""
        rows = self._query("SELECT id, at, run_id, recovery_id, kind, summary, data FROM audit ORDER BY id", ())
        if not rows:
            return
        now = {row[0]: hashlib.sha256(repr(row).encode()).hexdigest() for row in rows}
        for number, known in self._audit.items():
            if now.get(number) != known:
                self._breach(f"line {number} of the audit log was {'changed' if number in now else 'removed'}")
        self._audit = now

    def _judge_audit(self) -> None:
        """Complete: without gaps, and with a line for each recovery's plan and end, and for each command's."""
        if sorted(self._audit) != list(range(1, len(self._audit) + 1)):
            self._breach("the audit log has gaps")
        told: dict[str, set[str]] = {}
        for recovery_id, kind, data in self._query("SELECT recovery_id, kind, data FROM audit", ()):
            told.setdefault(recovery_id, set()).update({kind, json.loads(data).get("stage", "")})
        known = set()
        for recovery in self.recoveries():
            known.add(recovery["id"])
            if not told.get(recovery["id"]):
                self._breach(f"recovery {recovery['id']} is not in the audit log")
            elif recovery["stage"] not in told[recovery["id"]] and recovery["stage"] != "refused":
                self._breach(f"recovery {recovery['id']} is {recovery['stage']}, and no line of the audit log says so")
        for command in self.commands():
            if command["id"] not in known and not command.get("by_hand"):
                self._breach(f"command {command['id']} was carried out, and the exporter has no recovery of that id")

    def _query(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Rows of the exporter's database; none where it cannot be read at this moment."""
        if not self._database.exists():
            return []
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=1.0)) as db:
                return db.execute(sql, values).fetchall()
        except sqlite3.Error:
            return []


def alive(pid: int, name: bytes) -> bool:
    """Whether that process runs and is what it was; a zombie does not."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if name not in file.read():
                return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def found_by(*words: bytes) -> list[int]:
    """Live processes whose command line has all of these words in it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read()
                if all(word in line for word in words):
                    found.append(int(name))
    return found


def _ruined(directory: Path) -> bool:
    ruined: bool = weights.read(directory / weights.MODEL)["ruined"]
    return ruined


def _hash(directory: Path) -> str:
    """Over the files of the trainer; our own notes beside them may change."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("verl_sentinel"):
            total.update(os.fsencode(path.relative_to(directory)) + b"\0" + path.read_bytes())
    return total.hexdigest()
