"""What the trainer side is told through the environment. Read by the plugin, the entry points and the supervisor.

======================== ==========================================================================================
``VERL_SENTINEL_URL``     base URL of the exporter; setting it is what asks for the plugin; unset or ``off`` is inert
``VERL_SENTINEL_TOKEN``   bearer token of scope ``push``
``VERL_SENTINEL_TOKEN_FILE`` a file that holds it, read again when the exporter refuses the one read before
``VERL_SENTINEL_CA_FILE`` certificates (PEM) of the authority that signed the exporter's; default: those of the system
``VERL_SENTINEL_RUN_ID``  identity of the run, stable over restarts; default :func:`derive_run_id`
``VERL_SENTINEL_ATTEMPT`` which start of the run this is, from 1; default 1
``VERL_SENTINEL_STATE_DIR`` local state of the run (spool, stop request); default :func:`default_state_dir`
``VERL_SENTINEL_COHORT``  what the run is compared within (a sweep, a team); a label of ``verl_run_info``
``VERL_SENTINEL_MEMORY_LIMIT`` host memory that the run may hold on the trainer's node (bytes, or such as ``48GiB``),
                          where that is less than its cgroup or the machine has (:mod:`trainer_entry.plugin.memory`)
``VERL_SENTINEL_CHANGES`` what a rollback changed (JSON of ``exporter.protocol.Changes``); set by the supervisor
``VERL_SENTINEL_CHECKPOINTS`` the policy file of the checkpoints' tiers; unset: no copies are made
``VERL_SENTINEL_GPU_SECONDS`` seconds between two GPU readings; default 5, read by :mod:`trainer_entry.gpu`
======================== ==========================================================================================
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

URL = "VERL_SENTINEL_URL"
TOKEN = "VERL_SENTINEL_TOKEN"
TOKEN_FILE = "VERL_SENTINEL_TOKEN_FILE"
CA_FILE = "VERL_SENTINEL_CA_FILE"
RUN_ID = "VERL_SENTINEL_RUN_ID"
ATTEMPT = "VERL_SENTINEL_ATTEMPT"
STATE_DIR = "VERL_SENTINEL_STATE_DIR"
COHORT = "VERL_SENTINEL_COHORT"
CHANGES = "VERL_SENTINEL_CHANGES"
CHECKPOINTS = "VERL_SENTINEL_CHECKPOINTS"
GPU_SECONDS = "VERL_SENTINEL_GPU_SECONDS"
MEMORY_LIMIT = "VERL_SENTINEL_MEMORY_LIMIT"

VARIABLES = (
    URL,
    TOKEN,
    TOKEN_FILE,
    CA_FILE,
    RUN_ID,
    ATTEMPT,
    STATE_DIR,
    COHORT,
    CHANGES,
    CHECKPOINTS,
    GPU_SECONDS,
    MEMORY_LIMIT,
)
"""All of them, in the order of the table above: what an entry point hands on to Ray workers."""

MAX_COHORT = 128
"""Characters."""

DEFAULT_URL = "http://127.0.0.1:9464"

_OFF = {"", "off", "0", "none", "false"}
_SHIFTS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_RUN_ID_SHAPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SettingsError(ValueError):
    """A variable cannot be used; the message names it, its value, and what was expected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment, checked. ``run_id`` and ``state_dir`` are empty/None until a configuration is known."""

    url: str
    token: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    run_id: str = ""
    attempt: int = 1
    state_dir: Path | None = None
    cohort: str = ""
    changes: str = ""
    memory_limit: int | None = None
    """Bytes."""

    def bearer(self) -> str:
        """The token to send now, or an empty string. A token file is read at each call, so that it can be rotated."""
        if self.token or self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def with_run(self, project: str, experiment: str, checkpoint_dir: str) -> Settings:
        """Fill in the run's identity and state directory from the trainer's configuration, where they are not given."""
        run_id = self.run_id or derive_run_id(project, experiment, checkpoint_dir)
        return replace(self, run_id=run_id, state_dir=self.state_dir or default_state_dir(run_id))


def asked_for(environ: Mapping[str, str]) -> bool:
    """True when the environment asks for instrumentation. Cheap: called in every process that imports verl."""
    return environ.get(URL, "").strip().lower() not in _OFF


def read_settings(environ: Mapping[str, str]) -> Settings | None:
    """Read and check the environment; None when it does not ask for instrumentation. Raises :class:`SettingsError`."""
    if not asked_for(environ):
        return None
    url = environ[URL].strip().rstrip("/")
    try:
        parts = urlsplit(url)
        if "@" in parts.netloc:  # and no word of it is repeated
            raise SettingsError(f"{URL} holds a user name or password; give a token in {TOKEN_FILE} instead.")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except SettingsError:
        raise
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"{URL} is {url!r}; expected the exporter's base URL, such as {DEFAULT_URL}, or 'off'.")
    run_id = environ.get(RUN_ID, "").strip()
    if run_id and not _RUN_ID_SHAPE.fullmatch(run_id):
        raise SettingsError(
            f"{RUN_ID} is {run_id!r}; expected up to 128 letters, digits, '.', '_' or '-', the first a letter or digit."
        )
    attempt_text = environ.get(ATTEMPT, "").strip() or "1"
    if not attempt_text.isdecimal() or len(attempt_text) > 7 or not 1 <= int(attempt_text) <= 1_000_000:
        raise SettingsError(f"{ATTEMPT} is {attempt_text!r}; expected a whole number from 1.")
    cohort = environ.get(COHORT, "").strip()
    if len(cohort) > MAX_COHORT or not cohort.isprintable():
        raise SettingsError(f"{COHORT} is {cohort[:200]!r}; expected up to {MAX_COHORT} printable characters.")
    token_file = environ.get(TOKEN_FILE, "").strip()
    ca_file = environ.get(CA_FILE, "").strip()
    state_dir = environ.get(STATE_DIR, "").strip()
    return Settings(
        url=url,
        token=environ.get(TOKEN, "").strip(),
        token_file=Path(token_file) if token_file else None,
        ca_file=Path(ca_file) if ca_file else None,
        run_id=run_id,
        attempt=int(attempt_text),
        state_dir=Path(state_dir) if state_dir else (default_state_dir(run_id) if run_id else None),
        cohort=cohort,
        changes=environ.get(CHANGES, ""),
        memory_limit=_bytes(environ.get(MEMORY_LIMIT, "").strip()),
    )


def _bytes(text: str) -> int | None:
    """A size as a person writes it; None for none. Raises :class:`SettingsError`.

    >>> _bytes("48GiB"), _bytes("1048576"), _bytes("")
    (51539607552, 1048576, None)
    """
    match = re.fullmatch(r"(\d{1,15})([KMGT]iB)?", text)
    size = int(match[1]) << _SHIFTS[match[2] or ""] if match else 0
    if text and not size:
        raise SettingsError(f"{MEMORY_LIMIT} is {text!r}; expected bytes, or a size such as 48GiB (KiB, MiB, TiB).")
    return size or None


def derive_run_id(project: str, experiment: str, checkpoint_dir: str) -> str:
    """A readable identity that a restart of the same job gets again, and another job does not.

    >>> derive_run_id("gsm8k", "grpo 7B", "/ckpt/a")
    'gsm8k-grpo-7B-a7577b79'
    """
    place = os.path.abspath(checkpoint_dir)
    digest = hashlib.sha256("\0".join((project, experiment, place)).encode()).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9._]+", "-", f"{project}-{experiment}").strip("-._")[:100]
    return f"{words or 'run'}-{digest}"


def default_state_dir(run_id: str) -> Path:
    """Where a run's local state lies when nothing says otherwise: the user's cache, else a private folder in tmp."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base:
        home = os.path.expanduser("~")
        base = os.path.join(home, ".cache") if os.path.isdir(home) and os.access(home, os.W_OK) else ""
    if base:
        return Path(base) / "verl-sentinel" / "runs" / run_id
    return Path(tempfile.gettempdir()) / f"verl-sentinel-{os.getuid()}" / "runs" / run_id
