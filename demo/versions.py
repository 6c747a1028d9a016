"""Two versions of verl side by side: the one that is installed, and a newer one that is broken on purpose.

Called by :mod:`demo.run` for the scenario ``bad_version``. The newer one is a copy of the installed verl with another
version number, in which one line has another sign: an advantage is divided by a spread that is next to nothing. Both
get an environment of their own, built by ``verl-sentinel-train environments build``; what is installed stays as it is.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.processes import StartError

BUILD_SECONDS = 300.0
BROKEN_FILE = "verl/trainer/ppo/core_algos.py"
RIGHT = "(scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)"
WRONG = "(scores[i] - id2mean[index[i]]) / (id2std[index[i]] * epsilon)"


@dataclass(frozen=True)
class Versions:
    """The two, by their numbers and interpreters."""

    directory: Path
    """Of the environments, as ``VERL_SENTINEL_ENVIRONMENTS`` names it."""
    present: str
    newer: str
    newer_python: str


def side_by_side(folder: Path) -> Versions:
    """Build both in ``folder``. Raises :class:`StartError` with a sentence where that cannot be done."""
    try:
        installed = importlib.metadata.distribution("verl")
    except importlib.metadata.PackageNotFoundError:
        raise StartError(f"verl is not installed for {sys.executable}.") from None
    present = installed.version
    packages = Path(str(installed.locate_file("")))
    newer = after(present)
    copy = broken_copy(packages, present, newer, folder / f"verl-{newer}")
    directory = folder / "environments"
    _build(directory, present, packages)
    return Versions(directory, present, newer, _build(directory, newer, copy))


def after(version: str) -> str:
    """The version number that follows.

    >>> after("0.9.1"), after("0.10.0.dev3")
    ('0.9.2', '0.10.1')
    """
    numbers = [part for part in version.split(".") if part.isdecimal()][:3]
    return ".".join([*numbers[:-1], str(int(numbers[-1]) + 1)])


def broken_copy(packages: Path, present: str, newer: str, folder: Path) -> Path:
    """Copy verl from ``packages`` into ``folder`` as the version ``newer``, with the one line changed.

    Raises :class:`StartError` where this verl has no such line.
    """
    leave = shutil.ignore_patterns("__pycache__", "*.pyc")
    metadata = folder / f"verl-{newer}.dist-info"
    try:
        shutil.copytree(packages / "verl", folder / "verl", ignore=leave)
        shutil.copytree(packages / f"verl-{present}.dist-info", metadata, ignore=leave)
        (folder / "verl" / "version" / "version").write_text(f"{newer}\n")
        told = metadata / "METADATA"
        told.write_text(told.read_text().replace(f"\nVersion: {present}\n", f"\nVersion: {newer}\n", 1))
        source = folder / BROKEN_FILE
        text = source.read_text()
        if text.count(RIGHT) != 1:
            raise StartError(f"verl {present} has another {BROKEN_FILE} than this scenario breaks.")
        source.write_text(text.replace(RIGHT, WRONG))
    except OSError as error:
        raise StartError(f"The newer verl cannot be made in {folder}: {error}.") from error
    return folder


def _build(directory: Path, version: str, source: Path) -> str:
    """The interpreter of the environment."""
    words = ["environments", "build", version, "--from", str(source), "--environments-dir", str(directory)]
    done = subprocess.run(
        [sys.executable, "-m", "trainer_entry.cli", *words],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise StartError(f"The environment of verl {version} was not built: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip().splitlines()[-1]
