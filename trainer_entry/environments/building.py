"""Build an environment for another verl version: a virtual environment layered over the current packages.

It sees everything that the current interpreter sees (torch, ray, ours), and has a verl of its own in front. Called by
the command line; safe to be killed at any point and to be run twice at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer_entry.environments.checking import installed_version
from trainer_entry.environments.places import (
    BUILDING_NAME,
    RECORD_NAME,
    Environment,
    VersionError,
    find,
    place_of,
    read,
)
from trainer_entry.supervisor.state import StateError, write_record

PIP_SECONDS = 1800.0
LAYER_NAME = "verl_sentinel_layer.pth"


def build(
    directory: Path,
    version: str,
    *,
    source: Path | None = None,
    extra: tuple[str, ...] = (),
    say: Callable[[str], None],
) -> Environment:
    """The environment of that version, built if it is not complete already. Raises VersionError.

    ``source`` is a wheel, a folder of wheels, a folder with an installed or unpacked verl, or a source tree; without it
    pip's index is asked. ``extra`` are further requirements, which get no dependencies of theirs either.
    """
    place = place_of(directory, version)
    with _locked(place):
        with contextlib.suppress(VersionError):
            found = find(directory, version)
            say(f"the environment {place} is complete already")
            return found
        _clear(place)
        say(f"building {place} over the packages of {sys.executable}")
        _mark(place, version)
        python = _make(place)
        where = _install(python, place, version, source, extra, say)
        there = installed_version(python)
        if there != version:
            raise VersionError(f"{where} brought verl {there or 'without a version'}, not {version}.")
        made = Environment(
            verl_version=version,
            path=str(place),
            python=python,
            layered_over=_package_folders(),
            source=where,
            created_at=time.time(),
        )
        _record(place, made)
        say(f"the environment {place} is complete: verl {version}")
        return made


def register(directory: Path, version: str, path: Path) -> Environment:
    """Have a ready environment used for a version, by its folder or its interpreter. Raises VersionError."""
    python = path if path.is_file() else path / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise VersionError(f"There is no interpreter {python}; give the folder of a virtual environment.")
    python = Path(os.path.abspath(python))
    there = installed_version(str(python))
    if there != version:
        raise VersionError(f"{python} has verl {there or '(none)'}, not {version}.")
    place = place_of(directory, version)
    with _locked(place):
        if (known := read(place)) is not None and known.layered_over:
            raise VersionError(f"{place} was built here already; remove that folder to have another one used.")
        _clear(place)
        made = Environment(
            verl_version=version,
            path=str(python.parent.parent),
            python=str(python),
            source="registered",
            created_at=time.time(),
        )
        _mark(place, version)
        _record(place, made)
    return made


def _make(place: Path) -> str:
    done = _run([sys.executable, "-m", "venv", "--without-pip", str(place)], 120.0)
    if done.returncode != 0:
        raise VersionError(f"The virtual environment {place} cannot be made: {_last(done)}")
    python = place / "bin" / "python"
    packages = _own_packages(place)
    # A line that begins with "import" is run at start: the folders come after the environment's own, with their own
    # .pth files, so that editable installs are seen too.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in _package_folders()]
    (packages / LAYER_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(python)


def _install(
    python: str, place: Path, version: str, source: Path | None, extra: tuple[str, ...], say: Callable[[str], None]
) -> str:
    """Install verl; returns where it came from."""
    quiet = ["--no-deps", "--ignore-installed", "--no-warn-script-location", "--disable-pip-version-check", "--quiet"]
    wanted, where, options = f"verl=={version}", "the package index", []
    if source is not None:
        where = os.path.abspath(source)
        if source.is_dir() and _unpacked(source) is not None:
            _copy(source, _own_packages(place))
            wanted = ""
        elif source.is_dir() and list(source.glob("*.whl")):
            options = ["--no-index", "--find-links", where]
        elif source.exists():
            wanted = where
        else:
            raise VersionError(f"{source} does not exist.")
    words = [*([wanted] if wanted else []), *extra]
    if not words:
        return where
    say(f"installing {' '.join(words)} from {where}")
    done = _run([*_pip(python), *quiet, *options, *words], PIP_SECONDS)
    if done.returncode != 0:
        raise VersionError(f"verl {version} cannot be installed from {where}: {_last(done)}")
    return where


def _pip(python: str) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [python, "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", python]
    raise VersionError(f"There is neither pip for {sys.executable} nor uv, to install verl with.")


def _unpacked(folder: Path) -> Path | None:
    """The metadata of a verl that lies unpacked in the folder, as in site-packages; None where there is none."""
    if not (folder / "verl" / "__init__.py").is_file():
        return None
    return next(iter(sorted(folder.glob("verl-*.dist-info"))), None)


def _copy(source: Path, packages: Path) -> None:
    metadata = _unpacked(source)
    assert metadata is not None  # asked before
    try:
        for folder in (source / "verl", metadata):
            shutil.copytree(
                folder, packages / folder.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
    except (OSError, shutil.Error) as error:
        raise VersionError(f"verl cannot be copied from {source}: {str(error)[:300]}.") from error


def _package_folders() -> list[str]:
    """Where the current interpreter has its packages, in its order."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [folder for folder in dict.fromkeys(os.path.abspath(each) for each in found) if os.path.isdir(folder)]


def _own_packages(place: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return place / "lib" / version / "site-packages"


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(place.parent / f".{place.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise VersionError(f"The folder {place.parent} cannot be used: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(place: Path) -> None:
    """Remove what was half-built, and nothing that is not ours."""
    if not place.exists() and not place.is_symlink():
        return
    ours = (place / BUILDING_NAME).is_file() or (place / RECORD_NAME).is_file()
    if place.is_symlink() or (not ours and any(place.iterdir())):
        raise VersionError(f"{place} was not built here; move it away, or register what is in it.")
    shutil.rmtree(place)


def _mark(place: Path, version: str) -> None:
    try:
        place.mkdir(mode=0o700)
        (place / BUILDING_NAME).write_text(json.dumps({"verl_version": version, "since": time.time()}))
    except OSError as error:
        raise VersionError(f"The folder {place} cannot be made: {error.strerror}.") from error


def _record(place: Path, made: Environment) -> None:
    try:
        write_record(place / RECORD_NAME, made)
    except StateError as error:
        raise VersionError(str(error)) from error


def _run(words: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV", "VERL_SENTINEL_URL")}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environ,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise VersionError(f"{words[0]} was not done within {seconds:g} s.") from error
    except OSError as error:
        raise VersionError(f"{words[0]} cannot be run: {error.strerror}.") from error
    if done.returncode < 0:
        raise VersionError(f"{' '.join(words[:4])} was killed by signal {-done.returncode}.", -done.returncode)
    return done


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1][:500] if errors else f"it ended with code {done.returncode}"
