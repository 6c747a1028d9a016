"""Configurations that somebody keeps on a branch of a git repository, such as ``prod-stable``. Read by a thread of the
app's, shown to recovery by the link: no decision waits for a disk.

Only what is committed is read, with ``git cat-file`` and without a shell. Nothing is fetched: a clone that is to follow
another repository is kept up to date by whoever keeps it. What does not work is kept as a sentence, and the last
configuration that could be read is dropped with it: a decision must not rest on what may be out of date.
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from exporter.protocol import Scalar
from exporter.recovery.facts import StableConfig
from exporter.service.known import CONFIG_CHARACTERS, bounded, cut

log = logging.getLogger("exporter.stable_config")

Source = tuple[str, str, str]
"""Repository, branch, file."""

REFRESH_SECONDS: Final = 60.0
GIT_SECONDS: Final = 10.0
MOST_BYTES: Final = 1024 * 1024
MOST_DEPTH: Final = 30
MOST_SETTINGS: Final = 20_000
_NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
"""``1e-6`` is a number to Hydra and a text to YAML 1.1."""
_WORD: Final = re.compile(r"\s*(?:\+\+|\+)?(?P<key>[A-Za-z_][A-Za-z0-9_.]*)=(?P<value>.*)", re.DOTALL)


class Unreadable(Exception):
    """There is no such configuration; the text is the end of a sentence."""


class StableConfigs:
    """The newest of each source. :meth:`refresh` blocks and belongs into a thread; :meth:`of` does not."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._known: dict[Source, StableConfig] = {
            source: StableConfig(error="it has not been read yet") for source in sources
        }

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, source: Source) -> StableConfig:
        """What was read last."""
        return self._known.get(source, StableConfig(error="the policy did not name it when the exporter started"))

    def refresh(self) -> None:
        """Read every source once. Never raises."""
        for source in self._known:
            found = read(source)
            if found.error and found.error != self._known[source].error:
                log.warning("The configuration on %s of %s cannot be used: %s.", source[1], source[0], found.error)
            self._known[source] = found


def read(source: Source) -> StableConfig:
    """The configuration as it is committed now, or why there is none."""
    repository, branch, file = source
    try:
        commit = (
            _git(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}").decode().strip()
        )
        size = _git(repository, "cat-file", "-s", f"{commit}:{file}").decode().strip()
        if not size.isdecimal() or int(size) > MOST_BYTES:
            raise Unreadable(f"it has {size} bytes, and at most {MOST_BYTES} are read")
        body = _git(repository, "cat-file", "blob", f"{commit}:{file}")
        settings = bounded(dict(parse(body.decode())))
    except UnicodeDecodeError:
        return StableConfig(error=f"{file} on {branch} is not UTF-8")
    except Unreadable as error:
        return StableConfig(error=cut(f"{file} on {branch} of {repository}: {error}"))
    except ValueError as error:  # an integer in hexadecimal may have more digits than Python writes out
        return StableConfig(error=cut(f"{file} on {branch} of {repository}: a value that cannot be used: {error}"))
    if not settings:
        return StableConfig(error=f"{file} on {branch} of {repository} has no setting")
    return StableConfig(settings=settings, origin=f"{file} on {branch} of {repository} ({commit[:12]})")


def _git(repository: str, *words: str) -> bytes:
    """The output of git, as far as it is read. Raises :class:`Unreadable`."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C"}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}
    try:
        with subprocess.Popen(
            ["git", "-C", repository, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as git:
            try:
                out, err = git.communicate(timeout=GIT_SECONDS)
            except subprocess.TimeoutExpired:
                git.kill()
                raise Unreadable(f"git did not answer within {GIT_SECONDS:g} s") from None
    except OSError as error:
        raise Unreadable(f"git cannot be run ({error.strerror or error})") from None
    if git.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        raise Unreadable(said[-1] if said else f"there is no such {'branch' if words[0] == 'rev-parse' else 'file'}")
    return out


def parse(text: str) -> Iterator[tuple[str, Scalar]]:
    """Settings with dotted keys, out of YAML, JSON, or Hydra words one a line. Raises :class:`Unreadable`.

    >>> dict(parse("actor: {optim: {lr: 1e-6}}")), dict(parse("++actor.optim.lr=2e-6"))
    ({'actor.optim.lr': 1e-06}, {'actor.optim.lr': 2e-06})
    """
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"it is neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    if isinstance(loaded, str):
        loaded = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if isinstance(loaded, list):
        yield from _words(loaded)
    elif isinstance(loaded, dict):
        yield from _counted(_flat(loaded, "", 0))
    elif loaded is not None:
        raise Unreadable("it is no configuration")


def _words(words: list[Any]) -> Iterator[tuple[str, Scalar]]:
    for number, word in enumerate(words[:MOST_SETTINGS], 1):
        match = _WORD.fullmatch(word) if isinstance(word, str) else None
        if match is None:
            raise Unreadable(f"entry {number} is no setting of the form key=value")
        try:
            value = yaml.safe_load(match["value"])
        except (yaml.YAMLError, ValueError, RecursionError):
            value = match["value"]
        if isinstance(value, (dict, list)):
            continue  # no rung changes a whole section
        yield match["key"], _scalar(value)


def _flat(section: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Every setting and every section: aliases can make a short file into one that nobody could walk through."""
    if depth > MOST_DEPTH:
        raise Unreadable(f"it is nested more than {MOST_DEPTH} deep")
    for name, value in section.items():
        key = f"{prefix}{name}"
        yield key, value
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.", depth + 1)


def _counted(found: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Scalar]]:
    left = CONFIG_CHARACTERS
    for number, (key, value) in enumerate(found):
        left -= len(key)
        if number >= MOST_SETTINGS or left < 0:
            raise Unreadable("it has more settings than are read")
        if not isinstance(value, (dict, list)):
            yield key, _scalar(value)


def _scalar(value: Any) -> Scalar:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value.strip()) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
