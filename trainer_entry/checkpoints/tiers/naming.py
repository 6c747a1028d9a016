"""How a copy is called, what lies in it, and the record that is written last. Used by everything that copies.

``<place>/<run>/<model>-step<N>-<hash8>/global_step_N/…`` holds the files as verl wrote them (an archive: compressed and
encrypted, with ``.zst.age`` behind the name), so that a plain copy in a local folder is itself a checkpoint that verl
can resume from. ``verl_sentinel_started.json`` is written first and ``verl_sentinel_copy.json`` last.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from exporter.protocol import Tier
from trainer_entry.checkpoints.files import MAX_FILES, safe_parts
from trainer_entry.checkpoints.manifest import Manifest, fingerprint_of
from trainer_entry.checkpoints.problems import CheckpointError

COPY_NAME = "verl_sentinel_copy.json"
STARTED_NAME = "verl_sentinel_started.json"
SEALED = ".zst.age"
FORMAT = 1
MAX_RECORD_BYTES = 64 * 1024 * 1024

_NAME = re.compile(r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-step(?P<step>0|[1-9][0-9]{0,17})-(?P<hash>[0-9a-f]{8})")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a copy: its key below the copy, size in bytes, SHA-256 in hex of what lies there.

    ``checksum`` is what the store itself reported for it (S3: base64, with ``-N`` for N parts), or empty.
    """

    key: str
    size: int
    sha256: str
    checksum: str = ""


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``verl_sentinel_copy.json``. ``encoding`` tells how the objects hold the files; ``verified``: how each was proven
    to have arrived. ``bytes`` is the checkpoint's size, ``stored_bytes`` what lies at the place.
    """

    format: int
    name: str
    run_id: str
    tier: Tier
    step: int
    model: str
    fingerprint: str
    made_at: float
    saved_at: float = 0.0
    """When the checkpoint's manifest was written: of two branches of a run, the newer one has the later."""
    objects: list[StoredObject]
    encoding: Literal["plain", "zstd+age"] = "plain"
    verified: Literal["store", "read back", "mixed"] = "read back"
    bytes: int = 0
    stored_bytes: int = 0
    reason: str = ""
    loss: float | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """``verl_sentinel_started.json``: this half copy is ours, begun at ``time`` (Unix seconds)."""

    run_id: str
    name: str
    tier: Tier
    time: float


def copy_name(manifest: Manifest) -> str:
    """``<model>-step<N>-<hash8>`` of a checkpoint with this manifest.

    >>> copy_name(Manifest(format=1, step=40, files=[]))
    'model-step40-e3b0c442'
    """
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", manifest.model).strip("-._")[:100]
    return f"{model or 'model'}-step{manifest.step}-{fingerprint_of(manifest.files)[:8]}"


def step_of_name(name: str) -> int | None:
    """The step of a copy's name, or None where it is not the name of a copy.

    >>> step_of_name("Qwen2.5-7B-step40-e3b0c442"), step_of_name("../x-step40-e3b0c442")
    (40, None)
    """
    match = _NAME.fullmatch(name)
    return int(match["step"]) if match else None


def is_run_folder(name: str) -> bool:
    """Whether it could be the folder of a run in a place."""
    return _RUN.fullmatch(name) is not None


def decode_record(body: bytes, name: str) -> CopyRecord:
    """Check a copy's record as found at a place, which may hold anything. Raises CheckpointError with a sentence."""
    try:
        record = msgspec.json.decode(body, type=CopyRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"The {COPY_NAME} of {name} is malformed: {error}.") from error
    if record.format != FORMAT:
        raise CheckpointError(f"The {COPY_NAME} of {name} has format {record.format}; this version reads {FORMAT}.")
    if record.name != name or step_of_name(name) != record.step:
        raise CheckpointError(f"The {COPY_NAME} of {name} is of {record.name[:100]!r}, step {record.step}.")
    if len(record.objects) > MAX_FILES:
        raise CheckpointError(f"The {COPY_NAME} of {name} lists more than {MAX_FILES} objects.")
    seen: set[str] = set()
    prefix = f"global_step_{record.step}/"
    for stored in record.objects:
        plain = safe_parts(stored.key) is not None and stored.key.startswith(prefix) and stored.key not in seen
        if not plain or stored.size < 0 or (record.encoding != "plain") != stored.key.endswith(SEALED):
            raise CheckpointError(f"The {COPY_NAME} of {name} lists an unusable object: {stored.key[:200]!r}.")
        seen.add(stored.key)
    return record
