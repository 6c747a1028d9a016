"""Verify one checkpoint against its manifest. Called by the chooser, the supervisor and the command line."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trainer_entry.checkpoints.files import MAX_FILES, file_facts, opened_directory, safe_parts
from trainer_entry.checkpoints.layout import MANIFEST_NAME, CheckpointError, completeness, step_of
from trainer_entry.checkpoints.manifest import ABANDONED_NAME, FORMAT, MAX_MANIFEST_BYTES, Manifest, read_small

Depth = Literal["sizes", "content"]
"""``sizes`` compares names and sizes (milliseconds); ``content`` hashes every byte, which a rollback target needs."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a checkpoint may be restored. ``reason`` is a sentence, empty when ``ok``."""

    ok: bool
    path: Path
    step: int
    depth: Depth
    reason: str = ""
    manifest: Manifest | None = None
    seconds: float = 0.0


def verify(directory: str | os.PathLike[str], depth: Depth = "content") -> Verification:
    """Compare a checkpoint with its manifest; never raises for what is on the disk, but says it in ``reason``."""
    path = Path(os.path.abspath(directory))
    step = step_of(path)
    started = time.monotonic()
    if step is None:
        return Verification(False, path, -1, depth, f"{path} is not named global_step_N.")
    try:
        with opened_directory(path) as root:
            manifest = _read_manifest(root, step)
            _compare(root, manifest, depth)
    except CheckpointError as error:
        return Verification(False, path, step, depth, str(error), None, time.monotonic() - started)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}."
        return Verification(False, path, step, depth, reason, None, time.monotonic() - started)
    return Verification(True, path, step, depth, "", manifest, time.monotonic() - started)


def _read_manifest(root: int, step: int) -> Manifest:
    if _exists(root, ABANDONED_NAME):
        raise CheckpointError(_abandoned(root))
    try:
        body = read_small(root, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(
            f"It has no {MANIFEST_NAME}: the save was not finished, or was made without verl-sentinel."
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CheckpointError(f"Its {MANIFEST_NAME} is a symbolic link.") from error
        raise
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"Its {MANIFEST_NAME} is malformed: {error}.") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"Its manifest has format {manifest.format}; this version reads format {FORMAT}.")
    if manifest.step != step:
        raise CheckpointError(f"Its manifest is of step {manifest.step}, but the directory is of step {step}.")
    if len(manifest.files) > MAX_FILES:
        raise CheckpointError(f"Its manifest lists {len(manifest.files)} files, more than the {MAX_FILES} allowed.")
    seen: set[str] = set()
    for entry in manifest.files:
        if safe_parts(entry.path) is None or entry.path in seen:
            raise CheckpointError(f"Its manifest lists a path that is not a plain one below it: {entry.path[:200]!r}.")
        seen.add(entry.path)
    complete = completeness(seen, manifest.world_sizes)
    if complete.problem:
        raise CheckpointError(f"It is incomplete: {complete.problem}.")
    return manifest


def _compare(root: int, manifest: Manifest, depth: Depth) -> None:
    # All sizes first: a truncated file is then found without hashing the others.
    for entry in manifest.files:
        parts = entry.path.split("/")
        try:
            size = file_facts(root, parts, hashed=False).size
        except FileNotFoundError:
            raise CheckpointError(f"The file {entry.path} is missing.") from None
        except NotADirectoryError:
            raise CheckpointError(f"The file {entry.path} lies behind a symbolic link, or a file in its way.") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CheckpointError(f"The file {entry.path} is, or lies behind, a symbolic link.") from error
            raise CheckpointError(f"The file {entry.path} cannot be read: {error.strerror}.") from error
        if size < entry.size:
            raise CheckpointError(f"The file {entry.path} is truncated: {size} of {entry.size} bytes.")
        if size > entry.size:
            raise CheckpointError(f"The file {entry.path} has {size} bytes, {size - entry.size} more than were saved.")
    if depth == "sizes":
        return
    for entry in manifest.files:
        if file_facts(root, entry.path.split("/"), hashed=True).sha256 != entry.sha256:
            raise CheckpointError(f"The content of {entry.path} is not what was saved (its SHA-256 differs).")


def _exists(root: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _abandoned(root: int) -> str:
    target = "an older step"
    try:
        record = msgspec.json.decode(read_small(root, ABANDONED_NAME, 1 << 20))
        if isinstance(record, dict) and isinstance(record.get("rolled_back_to"), int):
            target = f"step {record['rolled_back_to']}"
    except (OSError, CheckpointError, msgspec.DecodeError):
        pass  # the mark alone counts; what it says is only for the sentence
    return f"It was left behind by a rollback to {target} (delete {ABANDONED_NAME} in it to allow it again)."
