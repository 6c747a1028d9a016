"""Any other file system that fsspec knows (gs://, az://, memory:// …): whole files, each proven by reading it back.

A file that is there and reads back right is not sent again, so an interrupted copy goes on with the file it was at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.policy import Place
from trainer_entry.checkpoints.tiers.stores.base import CHUNK_BYTES, Content, Entry, Sent, StoreError, proven


class OtherStore:
    """``files`` is an fsspec file system."""

    def __init__(self, place: Place, files: Any) -> None:
        self.place = place.url.rstrip("/")
        self._files = files
        self._root = str(files._strip_protocol(self.place)).rstrip("/")

    def folders(self, prefix: str) -> list[str]:
        """See Store."""
        try:
            found = self._files.ls(self._path(prefix), detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._told(error, prefix) from error
        return sorted(str(e["name"]).rstrip("/").rpartition("/")[2] for e in found if e.get("type") == "directory")

    def entries(self, prefix: str) -> list[Entry]:
        """See Store."""
        try:
            found = self._files.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._told(error, prefix) from error
        cut = len(self._root) + 1
        return sorted((Entry(str(name)[cut:], int(e["size"]), 0.0) for name, e in found.items()), key=lambda e: e.key)

    def read(self, key: str, limit: int) -> bytes:
        """See Store."""
        body = b""
        for chunk in self.chunks(key, Pace()):
            body += chunk
            if len(body) > limit:
                raise StoreError(f"{key} at {self.place} is larger than {limit} bytes.")
        return body

    def chunks(self, key: str, pace: Pace) -> Iterator[bytes]:
        """See Store."""
        try:
            with self._files.open(self._path(key), "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    pace.took(len(chunk))
                    yield chunk
        except Exception as error:
            raise self._told(error, key) from error

    def write(self, key: str, body: bytes) -> None:
        """See Store."""
        try:
            self._files.pipe_file(self._path(key), body)
        except Exception as error:
            raise self._told(error, key) from error

    def send(self, key: str, content: Content, pace: Pace, *, share: bool = False) -> Sent:
        """See Store."""
        try:
            self.prove(key, content.size, content.sha256, "", pace)
            return Sent(0, "read back")
        except StoreError as error:
            if error.kind not in ("missing", "lies"):
                raise
        try:
            with self._files.open(self._path(key), "wb") as file:
                for chunk in content.chunks(pace):
                    file.write(chunk)
        except Exception as error:
            raise self._told(error, key) from error
        self.prove(key, content.size, content.sha256, "", pace)
        return Sent(content.size, "read back")

    def prove(self, key: str, size: int, sha256: str, checksum: str, pace: Pace) -> None:
        """See Store."""
        proven(self.place, key, size, sha256, self.chunks(key, pace))

    def discard(self, key: str) -> None:
        """See Store."""
        try:
            self._files.rm_file(self._path(key))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._told(error, key) from error

    def remove(self, prefix: str) -> int:
        """See Store."""
        entries = sorted(self.entries(prefix), key=lambda entry: not entry.key.endswith("verl_sentinel_copy.json"))
        try:
            for entry in entries:
                self._files.rm_file(self._path(entry.key))
        except Exception as error:
            raise self._told(error, prefix) from error
        return sum(entry.size for entry in entries)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _told(self, error: Exception, key: str) -> StoreError:
        if isinstance(error, StoreError | Stopped):
            raise error
        where = f"{key} at {self.place}" if key else self.place
        said = " ".join(str(error).split())[:300]
        if isinstance(error, FileNotFoundError):
            return StoreError(f"There is no {where}.", "missing")
        if isinstance(error, PermissionError):
            return StoreError(f"{where} refused us: {said}. Check the credentials in the environment.", "refused")
        if isinstance(error, ConnectionError | TimeoutError):
            return StoreError(f"{where} cannot be reached: {said}.", "unreachable")
        return StoreError(f"{where} failed: {type(error).__name__}: {said}.")
