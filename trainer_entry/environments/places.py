"""Where environments lie, which are complete, and what a process needs to run in one. For the supervisor and the CLI.

``<directory>/verl-X.Y.Z/verl_sentinel_environment.json`` is written last, so an environment without it is half-built.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainer_entry.changes.rules import VERSION

RECORD_NAME = "verl_sentinel_environment.json"
BUILDING_NAME = "verl_sentinel_building.json"
DIRECTORY = "VERL_SENTINEL_ENVIRONMENTS"
FORMAT = 1


class VersionError(Exception):
    """An environment cannot be used or built; the message is a sentence that says why and what to do.

    ``signal`` ended the program that was asked, if not 0: of the environment nothing is known; try again.
    """

    def __init__(self, sentence: str, signal: int = 0) -> None:
        super().__init__(sentence)
        self.signal = signal


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """``verl_sentinel_environment.json``. ``path`` is the virtual environment, ``python`` its interpreter."""

    format: int = FORMAT
    verl_version: str
    path: str
    python: str
    layered_over: list[str] = []
    """The folders of packages of the interpreter that it was built from; empty for one that a person registered."""
    source: str = ""
    """Where verl was installed from."""
    created_at: float = 0.0


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``VERL_SENTINEL_ENVIRONMENTS``, else in the user's cache, else a private folder in tmp."""
    if given := environ.get(DIRECTORY, ""):
        return Path(os.path.abspath(given))
    base = environ.get("XDG_CACHE_HOME", "")
    if not base:
        home = os.path.expanduser("~")
        base = os.path.join(home, ".cache") if os.path.isdir(home) and os.access(home, os.W_OK) else ""
    if base:
        return Path(base) / "verl-sentinel" / "environments"
    return Path(tempfile.gettempdir()) / f"verl-sentinel-{os.getuid()}" / "environments"


def place_of(directory: Path, version: str) -> Path:
    """The folder of a version. Raises VersionError for what is no version."""
    if len(version) > 40 or not VERSION.fullmatch(version):
        raise VersionError(f"{version[:80]!r} is no version of verl; expected something like 0.9.1.")
    return directory / f"verl-{version}"


def find(directory: Path, version: str) -> Environment:
    """The complete environment of a version. Raises VersionError where there is none that could be used."""
    place = place_of(directory, version)
    found = read(place)
    build = f"verl-sentinel-train environments build {version}"
    if found is None:
        half = " is half-built; build it again" if place.exists() else " does not exist; build it"
        raise VersionError(f"The environment {place}{half} with: {build}")
    if found.verl_version != version:
        raise VersionError(f"The environment {place} says that it holds verl {found.verl_version}, not {version}.")
    if not os.access(found.python, os.X_OK):
        raise VersionError(f"The interpreter {found.python} of the environment {place} is gone; build it with: {build}")
    if gone := [folder for folder in found.layered_over if not os.path.isdir(folder)]:
        raise VersionError(f"The environment {place} is layered over {gone[0]}, which is gone; build it with: {build}")
    return found


def read(place: Path) -> Environment | None:
    """The record of a complete environment; None where there is none, or it is damaged."""
    try:
        with (place / RECORD_NAME).open("rb") as file:
            found = msgspec.json.decode(file.read(1 << 20), type=Environment)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.format == FORMAT and os.path.isabs(found.python) else None


def environments(directory: Path) -> list[tuple[Path, Environment | None]]:
    """All that lie in the directory, with None for one that is half-built."""
    try:
        places = sorted(path for path in directory.iterdir() if path.name.startswith("verl-") and path.is_dir())
    except OSError:
        return []
    return [(place, read(place)) for place in places]


def variables(environment: Environment, environ: Mapping[str, str]) -> dict[str, str]:
    """What changes in the environment variables of a process that is to run in it.

    verl 0.8 and older know no entry points for plugins, so ours is named there.
    """
    bin_folder = os.path.dirname(environment.python)
    path = environ.get("PATH", os.defpath)
    changed = {"PATH": f"{bin_folder}{os.pathsep}{path}", "VIRTUAL_ENV": environment.path}
    numbers = [int(part) for part in environment.verl_version.split(".")[:2] if part.isdecimal()]
    if numbers < [0, 9]:
        name, plugin = "VERL_USE_EXTERNAL_MODULES", "trainer_entry.plugin"
        modules = [each for each in environ.get(name, "").split(",") if each]
        changed[name] = ",".join(modules if plugin in modules else [plugin, *modules])
    return changed
