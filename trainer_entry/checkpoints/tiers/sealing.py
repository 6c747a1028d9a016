"""Compress and encrypt one file for the archive, and back: zstd inside age, as any zstd and age program reads it.

The compressed and encrypted file is written to a local folder first, since an upload that goes on where it stopped
needs the same bytes again, and age never makes the same twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.pace import Pace, Stopped
from trainer_entry.checkpoints.tiers.stores import Content

_MISSING = "Archives need {name}, which is missing; install verl-sentinel[backup]."


def recipients_of(lines: Sequence[str]) -> list[Any]:
    """age recipients (``age1…``, ``ssh-…``). Raises CheckpointError for one that is none, or without pyrage."""
    pyrage = _pyrage()
    found = []
    for line in lines:
        try:
            kind = pyrage.ssh.Recipient if line.startswith("ssh-") else pyrage.x25519.Recipient
            found.append(kind.from_str(line))
        except Exception as error:
            raise CheckpointError(f"{line[:40]!r} is no age recipient: {error}.") from error
    return found


def identities_of(path: str | os.PathLike[str]) -> list[Any]:
    """The identities of an age key file or an SSH private key. Raises CheckpointError; no secret is in its words."""
    pyrage = _pyrage()
    try:
        body = Path(path).read_bytes()[: 1 << 20]
    except OSError as error:
        raise CheckpointError(f"The identity file {os.fspath(path)} cannot be read: {error.strerror}.") from error
    try:
        if b"PRIVATE KEY-----" in body:
            return [pyrage.ssh.Identity.from_buffer(body)]
        lines = [line.strip() for line in body.decode("utf-8", "replace").splitlines()]
        found = [pyrage.x25519.Identity.from_str(line) for line in lines if line and not line.startswith("#")]
    except Exception:  # noqa: BLE001 - pyrage's own words may hold the secret
        raise CheckpointError(
            f"{os.fspath(path)} is no age identity file (AGE-SECRET-KEY-1…) or SSH private key."
        ) from None
    if not found:
        raise CheckpointError(f"{os.fspath(path)} holds no age identity (AGE-SECRET-KEY-1…).")
    return found


def seal(content: Content, target: Path, recipients: list[Any], level: int, pace: Pace) -> Content:
    """Write ``target``: the content compressed, then encrypted. Returns what it is. Raises StoreError of kind
    ``source`` where the file is not what its manifest says, CheckpointError, OSError, Stopped.
    """
    zstd = _zstd()
    compressor = zstd.ZstdCompressor(level=level)

    def compressed() -> Iterator[bytes]:
        for chunk in content.chunks(pace):
            yield compressor.compress(chunk)
        yield compressor.flush()

    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = target.with_name(target.name + ".tmp")
    reader = _Reader(compressed())
    with open(temporary, "wb", opener=_private) as file:
        writer = _Hashing(file)
        _run(reader, lambda: _pyrage().encrypt_io(reader, writer, recipients))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
    return Content(os.fspath(target), writer.count, writer.digest.hexdigest())


def unseal(chunks: Iterator[bytes], target: Path, identities: list[Any], limit: int) -> tuple[int, str]:
    """Decrypt and decompress into ``target``; returns size in bytes and SHA-256 in hex of what was written.

    Raises CheckpointError (another key, damaged, more than ``limit`` bytes), OSError, and what ``chunks`` raises.
    """
    zstd = _zstd()
    pyrage = _pyrage()
    reader = _Reader(chunks)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(target, "wb", opener=_private) as file:
        hashing = _Hashing(file)
        writer = _Decompressing(zstd.ZstdDecompressor(), hashing, zstd.ZstdError, limit)
        try:
            _run(reader, lambda: pyrage.decrypt_io(reader, writer, identities))
        except (pyrage.DecryptError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise CheckpointError(
                f"It cannot be decrypted: {error}. Is the identity one of its recipients?", "not_loadable"
            ) from error
        if writer.error is not None or not writer.finished:
            raise CheckpointError(f"It cannot be decompressed: {writer.error or 'it ends too early'}.", "not_loadable")
        file.flush()
        os.fsync(file.fileno())
    return hashing.count, hashing.digest.hexdigest()


class _Reader(io.RawIOBase):
    """An iterator of chunks as a readable file; what the iterator raised is kept, for pyrage makes its own of it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""
        self.error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        try:
            while not self._rest:
                self._rest = next(self._chunks)
        except StopIteration:
            return b""
        except BaseException as error:
            self.error = error
            raise
        if size < 0 or size >= len(self._rest):
            taken, self._rest = self._rest, b""
        else:
            taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


class _Hashing:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.count = 0

    def write(self, data: bytes) -> int:
        body = bytes(data)
        self._file.write(body)
        self.digest.update(body)
        self.count += len(body)
        return len(body)

    def flush(self) -> None:
        self._file.flush()


class _Decompressing:
    """Bounded in memory: a small input may become very large, so it is asked for in pieces."""

    def __init__(self, decompressor: Any, target: _Hashing, kind: type[Exception], limit: int) -> None:
        self._decompressor = decompressor
        self._target = target
        self._kind = kind
        self._limit = limit
        self.error: Exception | None = None

    @property
    def finished(self) -> bool:
        return bool(self._decompressor.eof)

    def write(self, data: bytes) -> int:
        body = bytes(data)
        if self.error is not None or (self.finished and body):
            self.error = self.error or ValueError("there is more behind its end")
            return len(body)
        try:
            self._target.write(self._decompressor.decompress(body, 1 << 22))
            while not self._decompressor.eof and not self._decompressor.needs_input and self.error is None:
                self._target.write(self._decompressor.decompress(b"", 1 << 22))
                if self._target.count > self._limit:
                    self.error = ValueError(f"it holds more than the {self._limit} bytes that it should")
        except self._kind as error:
            self.error = error
        return len(body)

    def flush(self) -> None:
        self._target.flush()


def _run(reader: _Reader, call: Callable[[], object]) -> None:
    """Run pyrage over the reader; what the reader itself raised (a stop, a changed source) wins over pyrage's words."""
    try:
        call()
    except BaseException:
        if reader.error is not None:
            raise reader.error from None
        raise
    if isinstance(reader.error, Stopped):
        raise reader.error


def _pyrage() -> Any:
    try:
        return importlib.import_module("pyrage")
    except ImportError as error:
        raise CheckpointError(_MISSING.format(name="pyrage (age)")) from error


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):  # the first is Python's own from 3.14 on
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise CheckpointError(_MISSING.format(name="backports.zstd"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
