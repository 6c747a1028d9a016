"""The interface of a store, and what it raises. Keys are relative paths with ``/`` below the store's place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.tiers.pace import Pace

Kind = Literal["missing", "refused", "unreachable", "full", "lies", "source", "other"]
"""``missing``: no such object or bucket; ``refused``: credentials or rights; ``lies``: what lies there is not what was
sent; ``source``: the fault is in what was to be sent.
"""

CHUNK_BYTES = 4 * 1024 * 1024


class StoreError(CheckpointError):
    """A store did not do what it was asked; the message is a sentence that names the place."""

    def __init__(self, sentence: str, kind: Kind = "other") -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Content:
    """A local file to be sent: size in bytes and SHA-256 in hex are what its manifest says."""

    path: str
    size: int
    sha256: str

    def chunks(self, pace: Pace, length: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Its bytes. Raises StoreError where the file is gone, is no longer what the manifest says, or is a link."""
        digest = hashlib.sha256()
        count = 0
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}.", "source") from error
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while chunk := _read(file, length):
                digest.update(chunk)
                count += len(chunk)
                pace.took(len(chunk))
                yield chunk
        if count != self.size or digest.hexdigest() != self.sha256:
            raise StoreError(f"{self.path} is not what its manifest says: it has changed since.", "source")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object: size in bytes, and when it was last written in Unix seconds (0 where the store does not say)."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Sent:
    """An object that is there and proven: ``proof`` says how, ``checksum`` is the store's own word, if it has one.

    ``sent_bytes`` is what this call had to send or write for it: 0 for what was there already.
    """

    sent_bytes: int
    proof: Literal["store", "read back"]
    checksum: str = ""


class Store(Protocol):
    """A place. All methods raise StoreError with a sentence, and Stopped where the pace says so."""

    place: str
    """Its URL, for a person, without anything secret."""

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders right below ``prefix`` ("" for the place itself); none where it does not exist."""

    def entries(self, prefix: str) -> list[Entry]:
        """All objects at any depth below ``prefix``, sorted by key."""

    def read(self, key: str, limit: int) -> bytes:
        """A small object. Raises StoreError (missing; larger than ``limit`` bytes)."""

    def chunks(self, key: str, pace: Pace) -> Iterator[bytes]:
        """An object's bytes."""

    def write(self, key: str, body: bytes) -> None:
        """Write a small object, atomically."""

    def send(self, key: str, content: Content, pace: Pace, *, share: bool = False) -> Sent:
        """Make the object be there with that content, going on from what an earlier call sent, and prove it.

        ``share`` allows a reflink or hard link, where the store can.
        """

    def prove(self, key: str, size: int, sha256: str, checksum: str, pace: Pace) -> None:
        """Prove that an object still is what it was. Raises StoreError of kind ``missing`` or ``lies``."""

    def discard(self, key: str) -> None:
        """Delete one small object; none is no error."""

    def remove(self, prefix: str) -> int:
        """Delete everything below a folder, what unfinished uploads left too; returns bytes of the objects deleted."""


def proven(place: str, key: str, size: int, sha256: str, chunks: Iterator[bytes]) -> None:
    """Read everything back and compare. Raises StoreError of kind ``lies``."""
    digest = hashlib.sha256()
    count = 0
    for chunk in chunks:
        digest.update(chunk)
        count += len(chunk)
    if count != size:
        raise StoreError(f"{key} at {place} has {count} bytes when read back, not {size}.", "lies")
    if digest.hexdigest() != sha256:
        raise StoreError(f"{key} at {place} differs when read back: its SHA-256 is not that of what was sent.", "lies")


def _read(file: object, length: int) -> bytes:
    """Exactly ``length`` bytes, fewer only at the end, so that parts have the same borders at every attempt."""
    parts: list[bytes] = []
    left = length
    while left and (piece := file.read(left)):  # type: ignore[attr-defined]
        parts.append(piece)
        left -= len(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)
