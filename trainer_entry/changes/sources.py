"""Configurations that ran healthy, from where they are kept: the manifest of a checkpoint, or a branch of a repository.

Called by the command line for ``--from-manifest`` and ``--from-git``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from exporter.protocol import Scalar
from trainer_entry.changes.configuration import MAX_BYTES, scalars
from trainer_entry.changes.rules import ChangeError, parse_setting
from trainer_entry.checkpoints import MANIFEST_NAME
from trainer_entry.configuration import MAX_KEPT_TEXT, flatten

GIT_SECONDS = 120.0
_COMMENT = re.compile(r"(^|\s)#.*")


def from_manifest(checkpoint: Path) -> dict[str, Scalar]:
    """The configuration that the checkpoint was saved under. Raises ChangeError where its manifest has none."""
    path = checkpoint / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES * 8 + 1)
        manifest = json.loads(body)
    except OSError as error:
        raise ChangeError(f"The manifest {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ChangeError(f"The manifest {path} is damaged: {error}.") from error
    found = manifest.get("config") if isinstance(manifest, dict) else None
    if not isinstance(found, dict) or not found:
        raise ChangeError(
            f"The manifest {path} holds no configuration; it was written by an older version. "
            "Give the settings with --set, or a file with --from-git."
        )
    return scalars(found)


def from_git(repository: str, branch: str, file: str) -> dict[str, Scalar]:
    """The configuration in ``file`` at the tip of ``branch``. Raises ChangeError.

    ``repository`` is a clone on this machine, or an address that git can fetch from. The file is YAML or JSON, as
    verl's own, or lines of ``key=value`` overrides.
    """
    if branch.startswith("-") or repository.startswith("-") or not branch or not repository:
        raise ChangeError("The repository and the branch cannot begin with a dash, or be empty.")
    name = Path(file)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise ChangeError(f"{file!r} is no path inside the repository.")
    if os.path.isdir(repository):
        text = _git(["-C", repository, "show", "--no-textconv", f"{branch}:{name.as_posix()}"], repository)
    else:
        with tempfile.TemporaryDirectory(prefix="verl-sentinel-git-") as folder:
            _git(
                ["clone", "--quiet", "--bare", "--depth=1", "--single-branch", "--branch", branch, repository, folder],
                repository,
            )
            text = _git(["-C", folder, "show", "--no-textconv", f"HEAD:{name.as_posix()}"], repository)
    return parsed(text, file)


def parsed(text: str, name: str) -> dict[str, Scalar]:
    """A configuration file's content, flat. Raises ChangeError."""
    if name.endswith((".yaml", ".yml", ".json")):
        found = _loaded(text, name)
        if not isinstance(found, Mapping) or not found:
            raise ChangeError(f"{name} is no configuration: it holds no keys with values.")
        return flatten({str(key): value for key, value in found.items()}, MAX_KEPT_TEXT)
    settings: dict[str, Scalar] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", line).strip().removesuffix("\\").strip()
        if not words:
            continue
        try:
            key, value = parse_setting(words)
        except ChangeError as error:
            raise ChangeError(f"Line {number} of {name}: {error}") from error
        settings[key] = value[1:-1] if isinstance(value, str) and value[:1] == value[-1:] == "'" else value
    if not settings:
        raise ChangeError(f"{name} holds no key=value line.")
    return settings


def _loaded(text: str, name: str) -> object:
    try:
        if name.endswith(".json"):
            return json.loads(text)
        import yaml
    except (ValueError, RecursionError) as error:
        raise ChangeError(f"{name} is no JSON: {error}.") from error
    except ImportError as error:
        raise ChangeError("PyYAML is missing, which verl brings; install it with: pip install pyyaml") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ChangeError(f"{name} is no YAML: {' '.join(str(error).split())[:300]}.") from error


def _git(words: list[str], repository: str) -> str:
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *words],
            capture_output=True,
            env=environ,
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise ChangeError("git is not installed here.") from error
    except subprocess.TimeoutExpired as error:
        raise ChangeError(f"git did not get the configuration from {repository} within {GIT_SECONDS:g} s.") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChangeError(f"git cannot get the configuration from {repository}: {said[-1] if said else 'it failed'}.")
    if len(done.stdout) > MAX_BYTES:
        raise ChangeError(f"The configuration in {repository} is larger than {MAX_BYTES} bytes.")
    return done.stdout.decode("utf-8", "replace")
