"""What the tests of the containers share: the compose file, and a container's files laid out in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yml"


def compose_file() -> dict[str, Any]:
    """The file as it stands, without values for its variables."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def binds(service: dict[str, Any]) -> list[tuple[Path, str]]:
    """Files and folders of the repository that a service sees, and where."""
    mounts = [mount.split(":") for mount in service["volumes"]]
    return [((COMPOSE / source).resolve(), target) for source, target, *_ in mounts if source.startswith(".")]


def secret_targets(service: dict[str, Any]) -> dict[str, str]:
    """Where a service finds each secret."""
    long = [one if isinstance(one, dict) else {"source": one} for one in service.get("secrets", [])]
    return {one["source"]: one.get("target", f"/run/secrets/{one['source']}") for one in long}


def laid_out(service: dict[str, Any], secrets: Path, root: Path) -> Path:
    """Put all that a container mounts where it would find it, below ``root``; paths in files lead there, too."""
    sources = [(source, target) for source, target in binds(service) if source != COMPOSE / "secrets" / "notify"]
    sources += [(secrets / name, target) for name, target in secret_targets(service).items()]
    for source, target in sources:
        there = root / target.removeprefix("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, there)
        else:
            shutil.copy(source, there)
    for file in root.rglob("*.y*ml"):
        text = file.read_text(encoding="utf-8")
        for folder in ("/etc/", "/run/", "/var/"):
            text = text.replace(f" {folder}", f" {root}{folder}")
        file.write_text(text, encoding="utf-8")
    return root


def secrets_in(folder: Path) -> Path:
    """A copy of what ``make-secrets.sh`` needs in ``folder``, and what it wrote: ``.env`` and ``secrets``."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(COMPOSE / "make-secrets.sh", folder)
    done = make_secrets(folder)
    assert done.returncode == 0, done.stderr
    return folder / "secrets"


def make_secrets(
    folder: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the copy in ``folder``."""
    return subprocess.run(
        [str(folder / "make-secrets.sh"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def variables(env_file: Path) -> dict[str, str]:
    """What an ``.env`` file sets."""
    lines = [line for line in env_file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
