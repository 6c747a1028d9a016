"""Reading a checkpoint's files as hostile input, and hashing them. Called by the manifest's writer and by verify.

Every path is opened component by component below the checkpoint directory, without following symbolic links, so that
nothing a manifest or a planted link says can make us read outside it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol

from trainer_entry.checkpoints.layout import OURS_PREFIX
from trainer_entry.checkpoints.problems import CheckpointError

BUFFER_BYTES = 4 * 1024 * 1024
"""Large enough that hashlib releases the GIL for nearly all of the time (it does above 2 KiB)."""

MAX_FILES = 200_000
MAX_READERS = 8
"""Files that are hashed at once where somebody waits for it; more readers than cores gain nothing."""

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call, from any thread."""


class Cancel(Protocol):
    """The one method of ``threading.Event`` that is used."""

    def is_set(self) -> bool: ...


class ManifestCancelled(CheckpointError):
    """Hashing was given up because the caller asked for it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Size in bytes, the SHA-256 in hex (empty where it was not asked for), and the time of the last change in ns."""

    size: int
    sha256: str
    changed_ns: int = 0


def safe_parts(path: str) -> list[str] | None:
    """Split a relative path of a manifest, or None where it is not a plain path below the directory.

    >>> safe_parts("actor/model.pt"), safe_parts("../x"), safe_parts("/etc/passwd"), safe_parts("a//b")
    (['actor', 'model.pt'], None, None, None)
    """
    parts = path.split("/")
    if not path or "\0" in path or len(path) > 4096 or any(part in ("", ".", "..") for part in parts):
        return None
    return parts


@contextlib.contextmanager
def opened_directory(directory: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of the checkpoint directory. Raises CheckpointError where it is a link or no directory."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(directory):
            raise CheckpointError(f"{os.fspath(directory)} is a symbolic link, not a directory.", "link") from error
        raise CheckpointError(f"{os.fspath(directory)} cannot be opened: {error.strerror}.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_file(root: int, parts: list[str]) -> Iterator[int]:
    """A descriptor of one regular file below ``root``. Raises OSError as ``open`` does, and CheckpointError."""
    current = root
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            if current != root:
                os.close(current)
            current = deeper
        # Non-blocking, so that a planted FIFO cannot hold us up before its type is known.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(parts[-1], flags, dir_fd=current)
    finally:
        if current != root:
            os.close(current)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            path = "/".join(parts)
            raise CheckpointError(f"{path} is not a regular file.", "unreadable", path)
        yield descriptor
    finally:
        os.close(descriptor)


def file_facts(
    root: int,
    parts: list[str],
    *,
    hashed: bool,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
    flushed: bool = False,
) -> Facts:
    """Size, and hash if asked for, of one regular file below ``root``; ``flushed``: and see that it is on the disk.

    Raises OSError as ``open`` does (FileNotFoundError where it is missing, ELOOP where it is a link), CheckpointError
    where it is no regular file or changed while it was read, ManifestCancelled.
    """
    path = "/".join(parts)
    with opened_file(root, parts) as descriptor:
        before = os.fstat(descriptor)
        if not hashed:
            return Facts(before.st_size, "", before.st_mtime_ns)
        digest = hashlib.sha256()
        view = memoryview(bytearray(min(BUFFER_BYTES, max(1, before.st_size))))
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            while count := file.readinto(view):
                digest.update(view[:count])
                if progress is not None:
                    progress(count)
                if cancel is not None and cancel.is_set():
                    raise ManifestCancelled(f"Hashing was cancelled at {path}.", "unfinished", path)
        if flushed:
            _flush(descriptor)
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CheckpointError(f"{path} changed while it was read.", "changed", path)
    return Facts(before.st_size, digest.hexdigest(), before.st_mtime_ns)


def hash_all(
    root: int, paths: Iterable[tuple[str, int]], progress: Progress | None = None
) -> dict[str, Facts | Exception]:
    """Hash many files at once, largest first: path and expected size in, facts or what was raised out.

    For whoever waits; beside training, files are hashed one after the other in a process of its own.
    """
    largest_first = sorted(paths, key=lambda item: -item[1])
    found: dict[str, Facts | Exception] = {}
    workers = max(1, min(MAX_READERS, len(largest_first), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(workers, thread_name_prefix="verl-sentinel-hash") as pool:
        waiting = {
            pool.submit(file_facts, root, path.split("/"), hashed=True, progress=progress): path
            for path, _ in largest_first
        }
        for future in as_completed(waiting):
            error = future.exception()
            if error is not None and not isinstance(error, (OSError, CheckpointError)):
                raise error
            found[waiting[future]] = future.result() if error is None else error
    return found


def tree_files(root: int) -> list[str]:
    """All regular files below ``root`` but our own, sorted. Raises CheckpointError for links and devices."""
    found: list[str] = []

    def refuse(error: OSError) -> None:
        raise error

    for base, directories, names, descriptor in os.fwalk(".", dir_fd=root, onerror=refuse):
        folder = base[2:] if base.startswith("./") else ""
        for name in directories + names:
            path = f"{folder}/{name}" if folder else name
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) or (not folder and name.startswith((OURS_PREFIX, "." + OURS_PREFIX))):
                continue
            if stat.S_ISLNK(mode):
                raise CheckpointError(f"{path} is a symbolic link.", "link", path)
            if not stat.S_ISREG(mode):
                raise CheckpointError(f"{path} is neither a file nor a directory.", "unreadable", path)
            found.append(path)
            if len(found) > MAX_FILES:
                raise CheckpointError(f"There are more than {MAX_FILES} files in it.")
    return sorted(found)


def _flush(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EBADF):  # a file system without it
            raise
