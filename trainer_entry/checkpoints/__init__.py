"""Checkpoints as rollback targets: complete, written down in a manifest, and verified.

verl considers any ``global_step_N`` directory that exists a checkpoint. Here one is a rollback target only if a
manifest with the size and hash of every file, written last and atomically, still matches. The plugin writes manifests
after each save; the supervisor, the command line and the rollback script read them.
"""

from trainer_entry.checkpoints.choosing import Choice, list_checkpoints, newest_verified, verify
from trainer_entry.checkpoints.layout import (
    MANIFEST_NAME,
    TRACKER_NAME,
    CheckpointError,
    step_directories,
    step_of,
    tracker_step,
)
from trainer_entry.checkpoints.manifest import (
    ABANDONED_NAME,
    Manifest,
    ManifestCancelled,
    background_priority,
    discard_manifest,
    mark_abandoned,
    point_tracker,
    write_manifest,
)
from trainer_entry.checkpoints.verification import Depth, Verification

__all__ = [
    "ABANDONED_NAME",
    "MANIFEST_NAME",
    "TRACKER_NAME",
    "CheckpointError",
    "Choice",
    "Depth",
    "Manifest",
    "ManifestCancelled",
    "Verification",
    "background_priority",
    "discard_manifest",
    "list_checkpoints",
    "mark_abandoned",
    "newest_verified",
    "point_tracker",
    "step_directories",
    "step_of",
    "tracker_step",
    "verify",
    "write_manifest",
]
