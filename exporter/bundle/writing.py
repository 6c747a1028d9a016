"""Putting an export into its directory without taking anything away from anybody. Called by :mod:`exporter.cli.export`.

First everything is compared, then all is written or nothing. A file that somebody changed stays as it is where the
export has nothing new for it; where it has, or where a file is not the export's at all, the export refuses.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from exporter.bundle import manifest as manifests
from exporter.bundle.bundle import Bundle, part_of
from exporter.bundle.manifest import Manifest, hash_of

_MOST_BYTES = 16 * 1024 * 1024


class CannotWrite(Exception):
    """The directory will not do; the message is a sentence."""


@dataclass(slots=True)
class Plan:
    """What an export would do, each a list of paths below the directory."""

    folder: Path
    parts: tuple[str, ...]
    before: Manifest
    write: dict[str, bytes] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Changed by hand, and the export has nothing new for them."""
    edited: list[str] = field(default_factory=list)
    """Changed by hand, and the export has something new."""
    foreign: list[str] = field(default_factory=list)
    """In the way, and never written by an export."""
    remove: list[str] = field(default_factory=list)
    """Written by an export before, and in none now."""
    left: list[str] = field(default_factory=list)
    """The same, but changed by hand: they stay."""
    wanted: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    @property
    def in_the_way(self) -> list[str]:
        return sorted(self.edited + self.foreign)


def plan(folder: Path, bundle: Bundle, force: bool = False) -> Plan:
    """Compare.

    Args:
        folder: where to write; need not exist.
        bundle: what to write.
        force: whether files that are in the way are overwritten.

    Raises:
        CannotWrite: where the directory cannot be used.
    """
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is no directory.")
    try:
        before = manifests.read(folder)
    except manifests.Unusable as error:
        if not force:
            raise CannotWrite(str(error)) from None
        before = Manifest()
    made = Plan(folder, bundle.parts, before)
    for path, text in bundle.files.items():
        content = text.encode()
        made.wanted[path] = content
        made.modes[path] = 0o755 if bundle.executable(path) else 0o644
        _compare(made, path, content, force)
    for path in sorted(set(before.hashes) - set(bundle.files)):
        there = _there(folder, path) if part_of(path) in bundle.parts and _inside(path) else None
        if there is not None:
            (made.remove if before.ours(path, there) else made.left).append(path)
    return made


def _compare(made: Plan, path: str, content: bytes, force: bool) -> None:
    there = _there(made.folder, path)
    if there is None:
        made.new.append(path)
    elif there == content:
        made.same.append(path)
        return
    elif made.before.ours(path, there):
        made.changed.append(path)
    elif path not in made.before.hashes:
        made.foreign.append(path)
    elif hash_of(content) in made.before.hashes[path] and not force:
        made.kept.append(path)
        return
    else:
        made.edited.append(path)
    if there is None or force or made.before.ours(path, there):
        made.write[path] = content


def _inside(path: str) -> bool:
    """A manifest may be changed by hand too: nothing outside of the directory is ever touched."""
    return not path.startswith("/") and ".." not in path.split("/")


def _there(folder: Path, path: str) -> bytes | None:
    """What lies at a path; ``None`` for nothing. No link is followed on the way: it may lead anywhere."""
    at = folder
    for name in path.split("/"):
        at = at / name
        if at.is_symlink():
            raise CannotWrite(f"{at} is a link: an export neither follows nor replaces one. Move it away.")
    try:
        if at.is_dir():
            raise CannotWrite(f"{at} is a folder, and a file is to be written there. Move it away.")
        with at.open("rb") as file:
            return file.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CannotWrite(f"{at} cannot be read: {error.strerror}.") from None


def carry_out(made: Plan, version: str, command: str) -> None:
    """Write what was planned.

    Raises:
        CannotWrite: where something is in the way, or the disk does not take it.
    """
    if made.in_the_way and not set(made.in_the_way) <= set(made.write):
        raise CannotWrite("files are in the way")
    hashes = dict(made.before.hashes)
    for path in made.remove + made.left:
        hashes.pop(path, None)
    for path, content in made.wanted.items():
        hashes[path] = (hash_of(content),)
    after = Manifest(hashes, version, command)
    if not made.write and not made.remove and after.text() == made.before.text():
        return
    try:
        made.folder.mkdir(parents=True, exist_ok=True)
        _put(made.folder / manifests.NAME, made.before.going_on(made.write).text().encode(), 0o644)
        for path, content in made.write.items():
            target = made.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _put(target, content, made.modes[path])
        for path in made.remove:
            (made.folder / path).unlink(missing_ok=True)
            _clear(made.folder, path)
        _put(made.folder / manifests.NAME, after.text().encode(), 0o644)
    except OSError as error:
        name = error.filename or made.folder
        raise CannotWrite(f"{name} cannot be written: {error.strerror}. Export again when that is mended.") from None


def _put(path: Path, content: bytes, mode: int) -> None:
    """A file, whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode & ~_umask())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _umask() -> int:
    # It can be read by setting it only; this program has one thread.
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def _clear(folder: Path, path: str) -> None:
    """Folders in which nothing is left."""
    for parent in (folder / path).parents:
        if parent == folder:
            break
        with contextlib.suppress(OSError):
            parent.rmdir()


def differences(made: Plan) -> Iterator[str]:
    """Lines of a unified diff: from what is there to what would be."""
    for path in sorted(set(made.wanted) - set(made.same) - set(made.kept)):
        yield from _diff(path, _there(made.folder, path), made.wanted[path])
    for path in made.remove:
        yield from _diff(path, _there(made.folder, path), None)


def _diff(path: str, old: bytes | None, new: bytes | None) -> Iterator[str]:
    before, after = ((one or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True) for one in (old, new))
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    for line in difflib.unified_diff(before, after, names[0], names[1]):
        yield line.rstrip("\r\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
