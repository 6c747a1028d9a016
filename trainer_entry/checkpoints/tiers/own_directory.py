"""Retention in the run's own directory, which verl forgets at a restart: its list of what it saved is in memory only.

Called by the keeper after a save, and by ``checkpoints prune``. A directory goes only if it is ours: it has a manifest,
a mark of ours, or a record that one of our saves into it never finished and files that show it. A save that was whole,
and whose trainer died before its files were hashed, is finished first. Not touched are what is being saved, what a
recovery holds or an attempt was told to start from, what verl's tracker names, what somebody's own start went behind,
and the newest that verifies in full.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from exporter.protocol import CheckpointChecked, CheckpointPruned
from trainer_entry.checkpoints.atomic import write_json_atomically
from trainer_entry.checkpoints.files import opened_directory
from trainer_entry.checkpoints.holding import held
from trainer_entry.checkpoints.layout import MANIFEST_NAME, OURS_PREFIX, step_directories, tracker_step
from trainer_entry.checkpoints.manifest import Manifest, read_manifest
from trainer_entry.checkpoints.marks import ABANDONED_NAME, by_words
from trainer_entry.checkpoints.problems import CheckpointError
from trainer_entry.checkpoints.saving import Saves, no_save_begins, saves
from trainer_entry.checkpoints.tiers.jobs import Report
from trainer_entry.checkpoints.tiers.linking import remove_tree
from trainer_entry.checkpoints.tiers.policy import OwnDirectory
from trainer_entry.checkpoints.tiers.pruning import Decision
from trainer_entry.checkpoints.unfinished import finish_unhashed
from trainer_entry.checkpoints.verification import Verification, verify

_HALF = frozenset({"missing_shard", "missing_data", "missing_file", "truncated"})
"""Problems of a save that never came to its end. One that is whole and has no manifest may be good: a save in the
background (``async_save``), or one whose trainer died before its files were hashed."""
_KEY = "trainer.max_actor_ckpt_to_keep"
_DOOMED = "." + OURS_PREFIX + "pruned_"


def prune_own(
    root: str | os.PathLike[str],
    own: OwnDirectory,
    state_dir: str | os.PathLike[str],
    needed: Collection[str],
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> tuple[list[Decision], list[Report]]:
    """Apply retention to the directory. ``needed`` are absolute paths that something still waits for.

    Raises CheckpointError (unreadable directory), OSError.
    """
    moment = time.time() if now is None else now
    known = saves(state_dir)
    if not dry_run:
        _sweep_doomed(Path(root))
    found = step_directories(root)
    if not dry_run:
        _finish([path for _, path in found if os.path.abspath(path) in known.unfinished])
    reports: list[Report] = []
    keep = own.last if own.last is not None else _configured(found)
    decisions: list[tuple[Path, Decision]] = []
    newer = 0
    for step, path in found:
        delete, reason, counts = _judge(path, keep, newer, known, own, moment)
        newer += counts
        protected = _protected(path, step, known, needed, tracker_step(root)) if delete else ""
        decisions.append((path, _decided(root, step, path, delete and not protected, protected or reason)))
    if any(decision.delete and _is_candidate(path) for path, decision in decisions):
        good = _last_good([path for _, path in found], reports)
        for index, (path, decision) in enumerate(decisions):
            if decision.delete and _is_candidate(path) and (good is None or path == good):
                why = "it is the last good one" if good else "no checkpoint verifies in full, so none is deleted"
                decisions[index] = (path, _decided(root, decision.step, path, False, why))
    for path, decision in decisions:
        if decision.delete and not dry_run and _remove(path, state_dir):
            reports.append(
                CheckpointPruned(
                    time=time.time(),
                    step=decision.step,
                    name=path.name,
                    bytes=decision.bytes,
                    reason=decision.reason[:1000],
                )
            )
    return [decision for _, decision in decisions], reports


def _judge(
    path: Path, keep: int | None, newer: int, known: Saves, own: OwnDirectory, now: float
) -> tuple[bool, str, bool]:
    """Whether it would go, why, and whether it counts as one that is kept."""
    absolute = os.path.abspath(path)
    if path.is_symlink():
        return False, "a symbolic link, so not ours", False
    if (mark := path / ABANDONED_NAME).exists():
        if by_words(path):
            return False, "a start that somebody asked for went behind it, so it is theirs to delete", False
        age = now - mark.stat().st_mtime
        if age > own.left_behind_seconds:
            return True, f"a rollback left it behind {age / 3600:.1f} hours ago", False
        return False, "a rollback left it behind a short while ago; a person may want to look at it", False
    result = verify(path, "sizes", noted=False)
    if result.ok:
        if keep is None:
            return False, "there is no limit (no keep_last in the policy, no trainer.max_actor_ckpt_to_keep)", True
        if newer < keep:
            return False, f"it is among the newest {keep}", True
        return True, f"{newer} newer ones are there, and {keep} are kept", False
    if absolute in known.under_way:
        return False, "it is being saved", False
    if result.problem == "retention" and (path / MANIFEST_NAME).exists():
        return True, "verl's own retention removed its shards and left the rest", False
    if absolute in known.unfinished and not (path / MANIFEST_NAME).exists() and result.problem in _HALF:
        return True, f"its save was never finished: {result.reason}", False
    if result.problem in ("being_written", "being_hashed"):
        return False, result.reason, False
    if (path / MANIFEST_NAME).exists():
        return False, f"it does not verify, so a person should look at it: {result.reason}", False
    return False, f"not known to be ours: {result.reason}", False


def _finish(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError, CheckpointError):
            finish_unhashed(path)


def _protected(path: Path, step: int, known: Saves, needed: Collection[str], tracked: int | None) -> str:
    absolute = os.path.abspath(path)
    if (hold := held(path)) is not None:
        return f"{hold.holder} holds it: {hold.reason or 'no reason given'}"
    if absolute in known.under_way:
        return "it is being saved"
    if absolute in needed:
        return "a copy of it waits, or a start from it"
    # A mark of a rollback moves the tracker, so a tracker that names a marked one was set by hand since.
    return "verl's tracker names it" if tracked == step else ""


def _is_candidate(path: Path) -> bool:
    """Whether it could be a rollback target at all; deleting one that could not takes nothing from anybody."""
    return (path / MANIFEST_NAME).exists() and not (path / ABANDONED_NAME).exists()


def _last_good(newest_first: list[Path], reports: list[Report]) -> Path | None:
    for path in newest_first:
        if not _is_candidate(path) or path.is_symlink():
            continue
        if _unchanged_since_verified(path):
            return path
        result = verify(path, "content")
        reports.append(checked(result))
        if result.ok:
            _remember(path)
            return path
    return None


def checked(result: Verification) -> CheckpointChecked:
    """The report of a check of a checkpoint's content, in its own place."""
    return CheckpointChecked(
        time=time.time(),
        step=result.step,
        depth="content",
        ok=result.ok,
        name=result.path.name,
        seconds=result.seconds,
        reason=result.reason[:1000],
    )


def _configured(newest_first: list[tuple[int, Path]]) -> int | None:
    """What verl was told to keep, by the newest manifest that can be read; None where it keeps all."""
    for step, path in newest_first:
        manifest = _manifest(path, step)
        if manifest is not None and manifest.config:
            value = manifest.config.get(_KEY)
            return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None
    return None


def _manifest(path: Path, step: int) -> Manifest | None:
    try:
        with opened_directory(path) as root:
            return read_manifest(root, step)
    except (OSError, CheckpointError):
        return None


class _Signature(msgspec.Struct, frozen=True):
    """Of every file: path, inode, size in bytes, and the times of its last change, in nanoseconds."""

    files: list[tuple[str, int, int, int, int]]


_SIGNATURE_NAME = OURS_PREFIX + "unchanged.json"


def _unchanged_since_verified(path: Path) -> bool:
    """Whether no file was touched since this verified it in full, so that terabytes are not hashed after each save."""
    try:
        known = msgspec.json.decode((path / _SIGNATURE_NAME).read_bytes(), type=_Signature)
        return known == _signature(path)
    except (OSError, msgspec.DecodeError):
        return False


def _remember(path: Path) -> None:
    with contextlib.suppress(OSError):
        write_json_atomically(path / _SIGNATURE_NAME, _signature(path))


def _signature(path: Path) -> _Signature:
    files = []
    for folder, _, names in os.walk(path):
        for name in names:
            if (
                folder == os.fspath(path)
                and name.startswith((OURS_PREFIX, "." + OURS_PREFIX))
                and name != MANIFEST_NAME
            ):
                continue
            full = os.path.join(folder, name)
            facts = os.lstat(full)
            files.append(
                (os.path.relpath(full, path), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            )
    return _Signature(sorted(files))


def _decided(root: str | os.PathLike[str], step: int, path: Path, delete: bool, reason: str) -> Decision:
    size = 0
    if delete:
        for folder, _, names in os.walk(path):
            size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return Decision(os.fspath(root), path.name, step, delete, reason, size)


def _remove(path: Path, state_dir: str | os.PathLike[str]) -> bool:
    """Rename first, so that nobody ever finds it half there, then delete. False where a save or hold came first."""
    doomed = path.with_name(f"{_DOOMED}{path.name}_{os.getpid()}")
    with no_save_begins(state_dir) as now:
        if os.path.abspath(path) in now.under_way or held(path) is not None:
            return False
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            return False  # verl's own retention was faster
    remove_tree(doomed)
    return True


def _sweep_doomed(root: Path) -> None:
    """Delete what a killed run of this left renamed."""
    with contextlib.suppress(OSError):
        for path in root.glob(_DOOMED + "global_step_*"):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
