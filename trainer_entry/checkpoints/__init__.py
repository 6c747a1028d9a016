"""Checkpoints as rollback targets: complete, written down in a manifest, and verified.

verl considers any ``global_step_N`` directory that exists a checkpoint. Here one is a rollback target only if a
manifest with the size and hash of every file, written last and atomically, still matches. The plugin writes manifests
after each save; the supervisor, the command line and the rollback scripts read them.
"""

from trainer_entry.checkpoints.choosing import Choice, list_checkpoints, newest_verified, tracker_problem
from trainer_entry.checkpoints.depths import DEPTHS, Depth
from trainer_entry.checkpoints.files import ManifestCancelled
from trainer_entry.checkpoints.layout import MANIFEST_NAME, TRACKER_NAME, step_directories, step_of, tracker_step
from trainer_entry.checkpoints.manifest import FileEntry, Manifest, Origin, fingerprint_of
from trainer_entry.checkpoints.marks import ABANDONED_NAME, mark_abandoned, point_tracker
from trainer_entry.checkpoints.priority import idle_priority
from trainer_entry.checkpoints.problems import CheckpointError, Problem
from trainer_entry.checkpoints.record import Verified, verified
from trainer_entry.checkpoints.verification import Verification, verify
from trainer_entry.checkpoints.writing import discard_manifest, write_manifest

__all__ = [
    "ABANDONED_NAME",
    "DEPTHS",
    "MANIFEST_NAME",
    "TRACKER_NAME",
    "CheckpointError",
    "Choice",
    "Depth",
    "FileEntry",
    "Manifest",
    "ManifestCancelled",
    "Origin",
    "Problem",
    "Verification",
    "Verified",
    "discard_manifest",
    "fingerprint_of",
    "idle_priority",
    "list_checkpoints",
    "mark_abandoned",
    "newest_verified",
    "point_tracker",
    "step_directories",
    "step_of",
    "tracker_problem",
    "tracker_step",
    "verified",
    "verify",
    "write_manifest",
]
