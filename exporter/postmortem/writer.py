"""Sees to it that every recovery that has ended has its post-mortem, also after a restart. Made by the app, asked at
each tick.

What is gathered is gathered at once, while the steps are remembered; the writing is a process of its own, one at a
time, so that no push waits for it. A record that changes afterwards (somebody acknowledged it, or it was followed by
another) is written again, with the steps of the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import shutil
import sqlite3
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from exporter.postmortem.material import MOST_AUDIT_LINES, Material, MaterialUnreadable, decode, encode, gather
from exporter.postmortem.writing import MATERIAL_NAME, PICTURE_NAME, TEXT_NAME, replace
from exporter.recovery.record import Recovery
from exporter.service.core import Core

log = logging.getLogger("exporter.postmortem")

FOLDER_NAME: Final = "postmortems"
STAMP_NAME: Final = "stamp"
FILES: Final = {TEXT_NAME: "text/markdown; charset=utf-8", PICTURE_NAME: "image/png"}
"""What may be read of one."""
LOOKED_AT: Final = 200
"""Newest recoveries that are looked at: after a restart, and when the store has changed."""
MOST_KEPT: Final = 500
"""Post-mortems; the oldest go. The record and the audit log stay."""
WRITE_SECONDS: Final = 180.0
MOST_TRIES: Final = 3
TRY_AGAIN_SECONDS: Final = 60.0
"""From a failure to the next try, unless the store changes before: a disk that is full is so for a while."""
MOST_FILE_BYTES: Final = 32 * 1024 * 1024
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class PostmortemWriter:
    """One exporter's.

    Args:
        core: read on the thread that changes it.
        data_dir: of the exporter.
        clock: Unix seconds.
    """

    def __init__(self, core: Core, data_dir: Path, clock: Callable[[], float]) -> None:
        self._core = core
        self.folder = data_dir / FOLDER_NAME
        self._clock = clock
        self._changes = -1
        self._stamps: dict[str, str] = {}
        """Of each recovery whose post-mortem is as its record is."""
        self._tries: dict[str, int] = {}
        self._failed_at: float | None = None
        """Something could not be written then, and nothing was queued since."""
        self._waiting: deque[Recovery] = deque()
        self._working: asyncio.Task[None] | None = None

    def look(self) -> None:
        """See what has ended or changed, and begin to write where nothing is being written. Called on the event loop,
        once a second; cheap while nothing has changed."""
        if self._working is not None and self._working.done():
            self._working = None
        try:
            changes = self._core.engine.changes
            if changes != self._changes or self._tries_again():
                self._note(self._core.engine.recoveries(LOOKED_AT))
                self._changes, self._failed_at = changes, None
        except sqlite3.Error:
            return  # told by the recovery link; looked at again
        if self._working is None and self._waiting:
            self._working = asyncio.create_task(self._work(), name="postmortem")

    async def close(self) -> None:
        """Stop writing; what was not written is written after the next start."""
        if self._working is not None:
            self._working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._working

    def text(self, recovery_id: str) -> bytes | None:
        """The Markdown; None where it is not there, or not yet."""
        return self.file(recovery_id, TEXT_NAME)

    def file(self, recovery_id: str, name: str) -> bytes | None:
        """One file of a post-mortem; None for any other name."""
        if name not in FILES or not _ID.fullmatch(recovery_id):
            return None
        try:
            with (self.folder / recovery_id / name).open("rb") as file:
                return file.read(MOST_FILE_BYTES)
        except OSError:
            return None

    def has(self, recovery_id: str) -> bool:
        """Whether there is one to show."""
        return bool(_ID.fullmatch(recovery_id)) and (self.folder / recovery_id / TEXT_NAME).is_file()

    def _tries_again(self) -> bool:
        """A clock that was set back makes nothing wait longer."""
        since = None if self._failed_at is None else self._clock() - self._failed_at
        return since is not None and not 0.0 <= since < TRY_AGAIN_SECONDS

    def _note(self, newest: list[Recovery]) -> None:
        waiting = {one.id for one in self._waiting}
        for it in reversed(newest):
            if it.active or it.stage == "observed" or not _ID.fullmatch(it.id) or it.id in waiting:
                continue
            if self._stamps.get(it.id) != stamp_of(it) and self._tries.get(it.id, 0) < MOST_TRIES:
                self._waiting.append(it)

    async def _work(self) -> None:
        while self._waiting:
            it = self._waiting.popleft()
            try:
                await self._write(it)
            except (OSError, sqlite3.Error, MaterialUnreadable, TimeoutError, RuntimeError) as error:
                self._tries[it.id] = self._tries.get(it.id, 0) + 1
                self._failed_at = self._clock()
                log.warning(
                    "The post-mortem of recovery %s could not be written: %s", it.id, error or "it took too long"
                )
        await asyncio.to_thread(self._trim)

    async def _write(self, it: Recovery) -> None:
        folder, stamp = self.folder / it.id, stamp_of(it)
        if await asyncio.to_thread(_stamped, folder) == stamp:
            self._stamps[it.id] = stamp
            return
        before = await asyncio.to_thread(_before, folder)
        # From here to the gathering nothing is awaited: what is gathered is of one moment.
        engine = self._core.engine
        material = gather(
            it,
            engine.history(it.run_id),
            engine.audit(MOST_AUDIT_LINES, recovery_id=it.id),
            self._core.runs.get(it.run_id),
            self._clock(),
            before,
        )
        await asyncio.to_thread(_keep, folder, material)
        await _in_a_process(folder)
        await asyncio.to_thread(replace, folder / STAMP_NAME, stamp.encode())
        self._stamps[it.id] = stamp
        self._tries.pop(it.id, None)

    def _trim(self) -> None:
        with contextlib.suppress(OSError):
            known = [(one.stat().st_mtime, one) for one in self.folder.iterdir() if _ID.fullmatch(one.name)]
            for _, one in sorted(known, reverse=True)[MOST_KEPT:]:
                shutil.rmtree(one, ignore_errors=True)


def stamp_of(recovery: Recovery) -> str:
    """Changes with the record."""
    return hashlib.sha256(msgspec.json.encode(recovery)).hexdigest()


def _stamped(folder: Path) -> str:
    try:
        return (folder / STAMP_NAME).read_text(encoding="ascii") if (folder / TEXT_NAME).is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _before(folder: Path) -> Material | None:
    """What was gathered the first time; what cannot be read is gathered again."""
    try:
        return decode((folder / MATERIAL_NAME).read_bytes())
    except (OSError, MaterialUnreadable):
        return None


def _keep(folder: Path, material: Material) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(folder / MATERIAL_NAME, encode(material))


async def _in_a_process(folder: Path) -> None:
    """Raises ``RuntimeError`` with what it said where it failed, ``TimeoutError`` where it lasts too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "exporter.postmortem",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), WRITE_SECONDS)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(said.decode("utf-8", "replace").strip()[-500:] or f"exit code {process.returncode}")
