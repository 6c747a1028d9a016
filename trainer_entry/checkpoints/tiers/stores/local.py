"""A local folder as a store. An interrupted file goes on where it stopped, after what is there was compared."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainer_entry.checkpoints.tiers.linking import inside, link_file
from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.stores.base import CHUNK_BYTES, Content, Entry, Sent, StoreError, proven

PART = ".part"


class LocalStore:
    """Files below ``root``, which is made when the first is written."""

    def __init__(self, root: str) -> None:
        self.place = root
        self._root = root

    def folders(self, prefix: str) -> list[str]:
        """See Store."""
        try:
            with os.scandir(self._path(prefix)) as found:
                return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._told(error, prefix) from error

    def entries(self, prefix: str) -> list[Entry]:
        """See Store. Symbolic links are none of ours, and are left out."""
        found: list[Entry] = []
        for folder, _, names in os.walk(self._path(prefix)):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    facts = os.lstat(path)
                    if not os.path.islink(path):
                        found.append(Entry(os.path.relpath(path, self._root), facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda entry: entry.key)

    def read(self, key: str, limit: int) -> bytes:
        """See Store."""
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                body = file.read(limit + 1)
        except OSError as error:
            raise self._told(error, key) from error
        if len(body) > limit:
            raise StoreError(f"{key} in {self.place} is larger than {limit} bytes.")
        return body

    def chunks(self, key: str, pace: Pace) -> Iterator[bytes]:
        """See Store. The page cache is asked to let go first, so that what is read comes from the disk, as far as the
        system allows.
        """
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._told(error, key) from error
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            _forget(descriptor)
            try:
                while chunk := file.read(CHUNK_BYTES):
                    pace.took(len(chunk))
                    yield chunk
            except OSError as error:
                raise self._told(error, key) from error
            finally:
                _forget(descriptor)

    def write(self, key: str, body: bytes) -> None:
        """See Store."""
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._told(error, key) from error

    def send(self, key: str, content: Content, pace: Pace, *, share: bool = False) -> Sent:
        """See Store. Proven by reading the file back from the disk."""
        path = self._path(key)
        part = path.with_name(path.name + PART)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sent = 0
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(part).st_nlink > 1:  # linked by an attempt that was killed: never to be written to
                    part.unlink()
            if not path.exists():
                shared = share and not part.exists() and link_file(content.path, part) is not None
                sent = 0 if shared else self._append(part, content, pace)
                try:
                    proven(self.place, key, content.size, content.sha256, self.chunks(key + PART, pace))
                except StoreError as error:
                    if shared and error.kind == "lies":  # it is the very file, so the fault is in the source
                        raise StoreError(f"{content.path} is not what its manifest says.", "source") from error
                    raise
                os.replace(part, path)
                _sync(path.parent)
                return Sent(sent, "read back")
            try:
                proven(self.place, key, content.size, content.sha256, self.chunks(key, pace))
            except StoreError:
                path.unlink()  # it is half, or has rotted; the record of this copy is not there yet, so it is nobody's
                return self.send(key, content, pace, share=share)
            return Sent(0, "read back")
        except StoreError as error:
            if error.kind in ("lies", "source"):
                with contextlib.suppress(OSError):
                    part.unlink()
            raise
        except OSError as error:
            raise self._told(error, key) from error

    def prove(self, key: str, size: int, sha256: str, checksum: str, pace: Pace) -> None:
        """See Store."""
        proven(self.place, key, size, sha256, self.chunks(key, pace))

    def discard(self, key: str) -> None:
        """See Store."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise self._told(error, key) from error

    def remove(self, prefix: str) -> int:
        """See Store."""
        size = sum(entry.size for entry in self.entries(prefix))
        path = self._path(prefix)
        if path == Path(self._root):
            raise StoreError(f"{self.place} itself is never deleted.")
        try:
            # The record goes first: whoever comes between finds a half copy, not one with files missing.
            for name in ("verl_sentinel_copy.json",):
                with contextlib.suppress(FileNotFoundError):
                    (path / name).unlink()
            shutil.rmtree(path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._told(error, prefix) from error
        return size

    def _append(self, part: Path, content: Content, pace: Pace) -> int:
        """Write what is missing of ``part``; what an earlier attempt wrote is compared with the source, chunk by chunk,
        and written again from the first difference on. Returns the bytes written.
        """
        written = 0
        self._room(part, content.size)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            comparing = os.fstat(descriptor).st_size > 0
            offset = 0
            for chunk in content.chunks(pace):
                if comparing:
                    comparing = os.pread(descriptor, len(chunk), offset) == chunk
                if not comparing:
                    view = memoryview(chunk)
                    file.seek(offset)
                    while view:
                        view = view[file.write(view) :]
                    written += len(chunk)
                offset += len(chunk)
            file.truncate(content.size)
            os.fsync(descriptor)
        return written

    def _room(self, part: Path, size: int) -> None:
        """Refuse before the disk is full rather than after: the trainer may write to the same one."""
        facts = os.statvfs(part.parent)
        there = part.stat().st_size if part.exists() else 0
        free = facts.f_bavail * facts.f_frsize
        if size - there > free - min(free // 50, 1 << 30):
            raise StoreError(
                f"There is no room at {self.place}: {size - there} bytes are needed, {free} are free.", "full"
            )

    def _path(self, key: str) -> Path:
        return inside(self._root, key) if key else Path(self._root)

    def _told(self, error: OSError, key: str) -> StoreError:
        where = f"{key} in {self.place}" if key else self.place
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError(f"{where} cannot be written: the disk is full.", "full")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreError(f"{where} cannot be used: {error.strerror}.", "refused")
        if isinstance(error, FileNotFoundError):
            return StoreError(f"There is no {where}.", "missing")
        return StoreError(f"{where} cannot be used: {error.strerror}.")


def _forget(descriptor: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
