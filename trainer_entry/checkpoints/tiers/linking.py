"""The same content under a second name without a second copy: reflink, hard link, or a plain copy where neither works.

A hard link shares the file itself, and verl opens its files for writing in place (``torch.save`` truncates), so a save
into a directory whose files are linked elsewhere would ruin the other name too. :func:`break_links` takes those files
away before the save. Whoever links looks afterwards whether the manifest is still the one that was there before: a save
takes that away first, so either the link is seen by ``break_links``, or the linker sees that the manifest is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Literal

from trainer_entry.checkpoints.files import opened_directory, safe_parts
from trainer_entry.checkpoints.layout import MANIFEST_NAME, OURS_PREFIX
from trainer_entry.checkpoints.problems import CheckpointError

Way = Literal["reflink", "link"]

_FICLONE = 0x40049409
_NOT_HERE = {
    errno.EXDEV,
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EACCES,
}


def link_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Way | None:
    """Make ``target`` share the content of ``source``; None where the file system cannot, and nothing was made.

    Raises OSError for everything else (a full disk, a target that exists).
    """
    if _reflink(source, target):
        return "reflink"
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return None
        raise
    return "link"


def link_checkpoint(source: Path, target: Path) -> Way | None:
    """Link a whole checkpoint directory, manifest last, into ``target``, which must not exist.

    None where the file system cannot; nothing is left then. Raises CheckpointError where a save took the manifest away
    meanwhile or a file is gone, and OSError.
    """
    before = _manifest_identity(source)
    way: Way | None = None
    with opened_directory(source):
        pass  # refuses a symbolic link in place of the directory
    target.mkdir(parents=True, mode=0o700)
    try:
        for folder, directories, names in os.walk(source):
            below = Path(folder).relative_to(source)
            for name in directories:
                (target / below / name).mkdir(mode=0o700)
            for name in names:
                if folder == os.fspath(source) and name == MANIFEST_NAME:
                    continue
                if not stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode):
                    raise CheckpointError(f"{below / name} in {source} is not a regular file.")
                if name.startswith((OURS_PREFIX, "." + OURS_PREFIX)) and folder == os.fspath(source):
                    continue
                way = link_file(os.path.join(folder, name), target / below / name)
                if way is None:
                    remove_tree(target)
                    return None
        # The manifest is never written in place, so a link to it stays what it is.
        if way is not None and link_file(source / MANIFEST_NAME, target / MANIFEST_NAME) is None:
            way = None
        if _manifest_identity(source) != before:
            raise CheckpointError(f"{source} was saved again while it was linked.")
    except FileNotFoundError as error:
        remove_tree(target)
        raise CheckpointError(f"{source} was removed or saved again while it was linked.") from error
    except BaseException:
        remove_tree(target)
        raise
    if way is None:
        remove_tree(target)
    return way


def break_links(directory: str | os.PathLike[str]) -> int:
    """Before a save into ``directory``: take away its files that have a second name, so that the save makes new ones.

    Call it after the manifest was discarded. Returns how many were taken away; raises OSError.
    """
    broken = 0
    for folder, _, names, descriptor in os.fwalk(directory, onerror=None):
        for name in names:
            if name.startswith((OURS_PREFIX, "." + OURS_PREFIX)) and folder == os.fspath(directory):
                continue
            facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
                os.unlink(name, dir_fd=descriptor)
                broken += 1
    return broken


def remove_tree(directory: str | os.PathLike[str]) -> None:
    """Delete a directory of ours, following no link; what is gone already is no error. Raises OSError."""
    import shutil

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def inside(path: str, parts: str) -> Path:
    """``path`` joined with a relative path that was checked. Raises CheckpointError where it is no plain one."""
    checked = safe_parts(parts)
    if checked is None:
        raise CheckpointError(f"{parts[:200]!r} is not a plain path.")
    return Path(path, *checked)


def _reflink(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    try:
        origin = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES):
            return False
        raise
    try:
        clone = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(clone, _FICLONE, origin)
        except OSError as error:
            os.unlink(target)
            if error.errno in _NOT_HERE:
                return False
            raise
        finally:
            os.close(clone)
    finally:
        os.close(origin)
    return True


def _manifest_identity(directory: Path) -> tuple[int, int, int]:
    try:
        facts = os.lstat(directory / MANIFEST_NAME)
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory} has no manifest, so it is not known what is in it.") from error
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
