"""The file that ``--executor-settings`` names, checked. YAML, or JSON where YAML cannot be read on this machine.

Ray: ``address``, ``token_file``, ``ca_file``, ``runtime_env``, ``entrypoint_num_cpus``, ``entrypoint_num_gpus``,
``entrypoint_memory``, ``entrypoint_resources``, ``entrypoint_label_selector``, ``poll_seconds``.
Slurm: ``sbatch`` (a list of words), ``requeue``, ``poll_seconds``. All of them may be left out. docs/executors.md tells
what each is for.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainer_entry.executors.interface import ExecutorError

MAX_BYTES = 256 * 1024
DEFAULT_ADDRESS = "http://127.0.0.1:8265"

_OURS_IN_SBATCH = {
    "-J": "the job's name",
    "--job-name": "the job's name",
    "-o": "where its output goes",
    "--output": "where its output goes",
    "-e": "where its output goes",
    "--error": "where its output goes",
    "--open-mode": "how its output is written",
    "--parsable": "the form of the answer",
    "-D": "its folder",
    "--chdir": "its folder",
    "--wrap": "what it runs",
    "-a": "that it is one job",
    "--array": "that it is one job",
    "-W": "that sbatch comes back at once",
    "--wait": "that sbatch comes back at once",
    "--requeue": "whether Slurm may start it again; say requeue: true in the settings",
    "--no-requeue": "whether Slurm may start it again; say requeue: false in the settings",
    "-H": "when it may start",
    "--hold": "when it may start",
    "--test-only": "that a job is submitted",
    "-Q": "what sbatch says",
    "--quiet": "what sbatch says",
    "-M": "the cluster; start the supervisor where that cluster is the default",
    "--clusters": "the cluster; start the supervisor where that cluster is the default",
    "--cluster": "the cluster; start the supervisor where that cluster is the default",
}


@dataclass(frozen=True, slots=True)
class RaySettings:
    """``token_file`` empty: as Ray itself finds its token, or none. ``options`` go to ``submit_job`` as they are."""

    address: str = DEFAULT_ADDRESS
    token_file: str = ""
    ca_file: str = ""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    poll_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """``sbatch`` are further words for sbatch; ``requeue``: use the run's earlier job again, see docs/executors.md."""

    sbatch: tuple[str, ...] = ()
    requeue: bool = False
    poll_seconds: float = 5.0


def read_ray(path: str) -> RaySettings:
    """Read and check; the defaults for an empty path. Raises ExecutorError."""
    given = _Given(path, _content(path))
    options: dict[str, Any] = {}
    for key in ("entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory"):
        value = given.take(key, (int, float), "a number from 0")
        if value is not None:
            if not (math.isfinite(value) and value >= 0):
                raise given.wrong(key, value, "a number from 0")
            options[key] = value
    for key, what in (("entrypoint_resources", (int, float)), ("entrypoint_label_selector", (str,))):
        value = given.take(key, (dict,), "names with values")
        if value is not None:
            if not all(isinstance(k, str) and isinstance(v, what) for k, v in value.items()):
                raise given.wrong(key, value, "names with values")
            options[key] = value
    made = RaySettings(
        address=_address(given),
        token_file=given.file("token_file"),
        ca_file=given.file("ca_file"),
        runtime_env=_runtime_env(given),
        options=options,
        poll_seconds=given.poll_seconds(1.0),
    )
    given.nothing_left()
    return made


def read_slurm(path: str) -> SlurmSettings:
    """Read and check; the defaults for an empty path. Raises ExecutorError."""
    given = _Given(path, _content(path))
    words = given.take("sbatch", (list,), "a list of words, such as [--partition=gpu, --gpus=8]") or []
    if not all(isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in words):
        raise given.wrong("sbatch", words, "a list of words, such as [--partition=gpu, --gpus=8]")
    for word in map(str, words):
        if "\0" in word or "\n" in word:
            raise given.wrong("sbatch", word, "words of one line")
        option = word.split("=", 1)[0] if word.startswith("--") else word[:2]
        if option in _OURS_IN_SBATCH:
            raise ExecutorError(f"{path}: sbatch: {option} is set here: it is {_OURS_IN_SBATCH[option]}.")
        if word == "--" or option == "--export-file":
            raise ExecutorError(f"{path}: sbatch: {word!r} cannot be used here.")
    made = SlurmSettings(
        sbatch=tuple(map(str, words)),
        requeue=bool(given.take("requeue", (bool,), "true or false")),
        poll_seconds=given.poll_seconds(5.0),
    )
    given.nothing_left()
    return made


class _Given:
    """What stands in the file, taken out key by key."""

    def __init__(self, path: str, content: dict[str, Any]) -> None:
        self.path = path
        self._left = dict(content)
        self._asked: list[str] = []

    def take(self, key: str, kinds: tuple[type, ...], expected: str) -> Any:
        self._asked.append(key)
        value = self._left.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, value, expected)
        return value

    def file(self, key: str) -> str:
        """An absolute path; one that is not absolute is beside the settings file."""
        value = self.take(key, (str,), "the path of a file")
        if not value:
            return ""
        path = Path(os.path.expanduser(value))
        return str(path if path.is_absolute() else Path(self.path).parent / path)

    def poll_seconds(self, default: float) -> float:
        value = self.take("poll_seconds", (int, float), "seconds from 0.1 to 60")
        if value is None:
            return default
        if not 0.1 <= value <= 60:
            raise self.wrong("poll_seconds", value, "seconds from 0.1 to 60")
        return float(value)

    def wrong(self, key: str, value: object, expected: str) -> ExecutorError:
        return ExecutorError(f"{self.path}: {key} is {_short(value)}; expected {expected}.")

    def nothing_left(self) -> None:
        for key in self._left:
            close = difflib.get_close_matches(str(key), self._asked, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(self._asked)}."
            raise ExecutorError(f"{self.path}: {_short(key)} is no setting of this executor; {hint}")


def _content(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ExecutorError(f"{path} is larger than {MAX_BYTES} bytes, so it is no settings file.")
        text = body.decode()
    except OSError as error:
        raise ExecutorError(f"The executor's settings {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ExecutorError(f"{path} is not UTF-8.") from error
    content = _parse(path, text)
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ExecutorError(
            f"{path} holds {_short(content)}; expected keys and values, such as address: http://…:8265."
        )
    return content


def _parse(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if path.endswith(".json"):
            raise ExecutorError(f"{path} is not JSON.") from None
    try:
        import yaml
    except ImportError:
        raise ExecutorError(
            f"{path} is not JSON, and YAML cannot be read here: install pyyaml, or write it as JSON."
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        raise ExecutorError(f"{path} is not YAML{line}.") from None


def _address(given: _Given) -> str:
    value: str | None = given.take("address", (str,), f"the dashboard's base URL, such as {DEFAULT_ADDRESS}")
    if value is None:
        return DEFAULT_ADDRESS
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        secret = "@" in parts.netloc
    except ValueError:
        usable = secret = False
    if secret:
        raise ExecutorError(f"{given.path}: address holds a user name or password; name a token_file instead.")
    if not usable:
        raise given.wrong("address", value, f"the dashboard's base URL, such as {DEFAULT_ADDRESS}")
    return value.rstrip("/")


def _runtime_env(given: _Given) -> dict[str, Any]:
    value: dict[str, Any] = given.take("runtime_env", (dict,), "Ray's runtime environment: keys and values") or {}
    variables = value.get("env_vars", {})
    if not isinstance(variables, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in variables.items()
    ):
        raise given.wrong("runtime_env", "with other env_vars", "env_vars to be names with texts as values")
    for name in variables:
        if re.search(r"TOKEN$|SECRET|PASSWORD|API_KEY", name, re.IGNORECASE):
            raise ExecutorError(
                f"{given.path}: runtime_env.env_vars: {name} looks like a secret, and Ray shows the variables of a job "
                "to whoever may look at its dashboard; put it into a file that the machines of the cluster can read."
            )
    working_dir = value.get("working_dir")
    if isinstance(working_dir, str) and working_dir and "://" not in working_dir:
        path = Path(os.path.expanduser(working_dir))
        value = {**value, "working_dir": str(path if path.is_absolute() else Path(given.path).parent / path)}
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
