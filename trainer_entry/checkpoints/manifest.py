"""The manifest of a checkpoint: what a save left on the disk, and what the run was when it was made.

Written last and atomically by :mod:`trainer_entry.checkpoints.writing`; read here as hostile input by whoever verifies,
lists or copies. Format 2 is what is written; format 1, of earlier versions, has files, step and world sizes only.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable

import msgspec

from exporter.protocol import Number, Scalar
from trainer_entry.checkpoints.atomic import read_small, write_json_atomically
from trainer_entry.checkpoints.files import MAX_FILES, safe_parts
from trainer_entry.checkpoints.layout import MANIFEST_NAME, completeness
from trainer_entry.checkpoints.problems import CheckpointError

__all__ = [
    "FORMAT",
    "MAX_MANIFEST_BYTES",
    "FileEntry",
    "Manifest",
    "fingerprint_of",
    "read_manifest",
    "read_small",
    "sealed",
    "write_json_atomically",
]

FORMAT = 2
READABLE = (1, 2)
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
MAX_CONFIG = 10_000
"""Settings, metrics and facts about the data, each, that a manifest may hold."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: path relative to the checkpoint directory with ``/``, size in bytes, SHA-256 in lower-case hex."""

    path: str
    size: int
    sha256: str


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a save knows of itself when verl returns from it: all of a manifest but the files and the metrics.

    What could not be found out is empty.
    """

    run_id: str = ""
    attempt: int = 0
    """Which start of the run saved it; 0 where that is not known."""
    trainer: str = ""
    """``ppo_v1``, ``ppo_legacy``, ``sft``."""
    verl_version: str = ""
    torch_version: str = ""
    cuda_version: str = ""
    """That torch was built for; empty for the CPU build."""
    config: dict[str, Scalar] = {}
    """The resolved configuration, flat, without secrets."""
    config_hash: str = ""
    git_commit: str = ""
    """Of the trainer's working directory; empty where it is no git repository."""
    git_dirty: bool | None = None
    """Whether tracked files differed from that commit."""
    data_position: dict[str, Scalar] = {}
    """How far in the data: ``epoch`` from 0, ``batches`` of ``batches_per_epoch`` in it, ``samples``."""
    model: str = ""
    """Short name of the model that is trained: letters, digits, ``.``, ``_``, ``-``."""


class Manifest(Origin, frozen=True, kw_only=True):
    """What a checkpoint was when verl had saved it. ``world_sizes`` maps component (``.`` for SFT) to its ranks."""

    format: int
    step: int
    files: list[FileEntry]
    world_sizes: dict[str, int] = {}
    metrics: dict[str, Number] = {}
    """As verl logged them, of ``metrics_step``: the step itself, or the newest before it that was logged in time."""
    metrics_step: int | None = None
    fingerprint: str = ""
    """See :func:`fingerprint_of`."""
    written_at: float = 0.0
    """Unix seconds, for a person."""
    seal: str = ""
    """SHA-256 over all other fields: an edit by hand shows. It keeps no forger away."""

    @property
    def bytes(self) -> int:
        """Sum of all sizes."""
        return sum(entry.size for entry in self.files)


def fingerprint_of(files: Iterable[FileEntry]) -> str:
    """SHA-256, in hex, over names, sizes and hashes of all files: the same content has the same.

    >>> a = FileEntry(path="a", size=1, sha256="0"); b = FileEntry(path="b", size=1, sha256="1")
    >>> fingerprint_of([a, b]) == fingerprint_of([b, a]) != fingerprint_of([a])
    True
    """
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path):
        digest.update(f"{entry.path}\0{entry.size}\0{entry.sha256}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with its seal."""
    body = msgspec.json.decode(msgspec.json.encode(manifest))
    return msgspec.structs.replace(manifest, seal=_seal_of(body))


def read_manifest(root: int, step: int) -> Manifest:
    """Read and check the manifest of an opened checkpoint directory, which is of ``step``.

    Raises CheckpointError for whatever is wrong with it, FileNotFoundError where there is none, OSError.
    """
    try:
        body = read_small(root, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CheckpointError(f"Its {MANIFEST_NAME} is a symbolic link.", "link", MANIFEST_NAME) from error
        raise
    try:
        raw = msgspec.json.decode(body)
        manifest = msgspec.convert(raw, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise CheckpointError(f"Its {MANIFEST_NAME} is malformed: {error}.", "manifest_malformed") from error
    if manifest.format not in READABLE:
        raise CheckpointError(
            f"Its manifest has format {manifest.format}; this version reads formats 1 to {FORMAT}.", "manifest_format"
        )
    if manifest.step != step:
        raise CheckpointError(
            f"Its manifest is of step {manifest.step}, but the directory is of step {step}.", "manifest_other_step"
        )
    _check_files(manifest)
    if max(len(manifest.config), len(manifest.metrics), len(manifest.data_position)) > MAX_CONFIG:
        raise CheckpointError(f"Its manifest holds more than {MAX_CONFIG} settings or metrics.", "manifest_malformed")
    if manifest.format > 1:
        _check_seal(raw, manifest)
    complete = completeness((entry.path for entry in manifest.files), manifest.world_sizes)
    if complete.problem:
        raise CheckpointError(f"It is incomplete: {complete.problem}.", complete.code)
    return manifest


def _check_files(manifest: Manifest) -> None:
    if len(manifest.files) > MAX_FILES:
        raise CheckpointError(
            f"Its manifest lists {len(manifest.files)} files, more than the {MAX_FILES} allowed.", "manifest_malformed"
        )
    seen: set[str] = set()
    for entry in manifest.files:
        if safe_parts(entry.path) is None or entry.path in seen:
            raise CheckpointError(
                f"Its manifest lists a path that is not a plain one below it: {entry.path[:200]!r}.",
                "manifest_malformed",
            )
        seen.add(entry.path)


def _check_seal(raw: object, manifest: Manifest) -> None:
    if not isinstance(raw, dict) or _seal_of(raw) != manifest.seal:
        raise CheckpointError(
            f"Its {MANIFEST_NAME} was changed after it was written: it does not match its own seal.", "manifest_edited"
        )
    if fingerprint_of(manifest.files) != manifest.fingerprint:
        raise CheckpointError(
            f"Its {MANIFEST_NAME} was changed after it was written: its fingerprint is not that of its files.",
            "manifest_edited",
        )


def _seal_of(document: dict[str, object]) -> str:
    """Over the document, not the type: a field that a newer version added counts too."""
    counted = {key: value for key, value in document.items() if key != "seal"}
    return hashlib.sha256(msgspec.json.encode(counted, order="sorted")).hexdigest()
