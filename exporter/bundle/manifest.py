"""What an export wrote last time: ``verl-sentinel-export.json`` in its directory.

Called by :mod:`exporter.bundle.writing`.

It has a hash of every file, so that the next export knows its own from what somebody wrote or changed by hand. It is
written before the files, with what each was and what it is going to be, and after them: an export that is broken off in
between still knows its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NAME: Final = "verl-sentinel-export.json"
_MOST_BYTES: Final = 4 * 1024 * 1024


class Unusable(ValueError):
    """A manifest that cannot be used; the message is a sentence."""


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(slots=True)
class Manifest:
    """Hashes by path: one each, and two while an export is going on."""

    hashes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    version: str = ""
    command: str = ""
    """With which it can be made anew."""

    def ours(self, path: str, content: bytes) -> bool:
        """Whether a file is as an export wrote it."""
        return hash_of(content) in self.hashes.get(path, ())

    def text(self) -> str:
        files = {path: list(hashes) for path, hashes in sorted(self.hashes.items())}
        data = {"made_by": "verl-sentinel export", "version": self.version, "command": self.command, "sha256": files}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def going_on(self, written: Mapping[str, bytes]) -> Manifest:
        """With what is about to be written beside what is there."""
        hashes = dict(self.hashes)
        for path, content in written.items():
            hashes[path] = tuple(dict.fromkeys((*hashes.get(path, ()), hash_of(content))))
        return Manifest(hashes, self.version, self.command)


def read(folder: Path) -> Manifest:
    """The manifest of a directory; an empty one where there is none.

    Raises:
        Unusable: where there is one that cannot be read.
    """
    path = folder / NAME
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return Manifest()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}.") from None
    try:
        data: Any = json.loads(content) if len(content) <= _MOST_BYTES else None
        hashes = {str(name): tuple(map(str, _list(found))) for name, found in data["sha256"].items()}
        return Manifest(hashes, str(data["version"]), str(data["command"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Unusable(
            f"{path} is not what an export wrote, so nothing says which files are its own. Restore it, or move it away "
            "and look at what --diff says before you use --force."
        ) from None


def _list(found: Any) -> Collection[Any]:
    if not isinstance(found, list):
        raise TypeError
    return found
