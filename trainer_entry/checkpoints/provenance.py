"""What a manifest says of the run that saved: versions, the code's commit, the model's name, the position in the data.

Called by the plugin's manifest thread, beside training. Everything here is found out as far as it can be, and is empty
where it cannot; nothing raises for what the machine does not have.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from exporter.protocol import Scalar

GIT_SECONDS = 10.0
MAX_DATA_BYTES = 64 * 1024 * 1024
"""A larger data position (a data set that keeps its whole state in it) is not read."""

_MODEL_KEYS = ("actor_rollout_ref.model.path", "model.path", "model.partial_pretrain")
_NO_NAMES = frozenset(
    {"", "model", "models", "hf", "huggingface", "checkpoint", "final", "latest", "actor", "snapshots"}
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}\Z")
_HUB = re.compile(r"models--(.+)\Z")


def torch_versions() -> tuple[str, str]:
    """Of torch, and of the CUDA that it was built for (empty for the CPU build); torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
        return str(getattr(torch, "__version__", "")), str(cuda or "")
    try:
        return importlib.metadata.version("torch"), ""
    except importlib.metadata.PackageNotFoundError:
        return "", ""


def git_state(directory: str) -> tuple[str, bool | None]:
    """The commit checked out in a directory, and whether tracked files differ from it; ``("", None)`` without git."""
    commit = _git(directory, "rev-parse", "--verify", "HEAD").strip()
    if not _COMMIT.match(commit):
        return "", None
    try:
        changed = _git_output(directory, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return commit, None
    return commit, bool(changed.strip())


def model_name(config: Mapping[str, Scalar]) -> str:
    """A short name of the model that a flat configuration trains; empty where it names none.

    >>> model_name({"actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B"}), model_name({"model.path": "/toy/model"})
    ('Qwen2.5-7B', 'toy-model')
    >>> model_name({"model.path": "/hub/models--Qwen--Qwen2-7B/snapshots/0f3a9c1be2"})
    'Qwen2-7B'
    """
    path = next((str(config[key]) for key in _MODEL_KEYS if config.get(key)), "")
    words = [word for word in path.split("/") if word]
    for word in words:
        if hub := _HUB.match(word):
            return _slug(hub[1].split("--")[-1])
    while len(words) > 1 and (words[-1].lower() in _NO_NAMES or words[-1].startswith("global_step_")):
        if words[-1].lower() == "model":
            return _slug("-".join(words[-2:]))
        words.pop()
    return _slug(words[-1]) if words else ""


def data_position(directory: str, step: int, batches_per_epoch: int | None = None) -> dict[str, Scalar]:
    """How far in the data a checkpoint is, from its ``data.pt`` (SFT: ``data_0.pt``).

    ``epoch`` (from 0), ``batches`` handed out in it, of ``batches_per_epoch`` where that is known, and ``samples``.
    A file that torch would not read safely, or a large one, is named but not read.
    """
    name = next((n for n in ("data.pt", "data_0.pt") if os.path.isfile(os.path.join(directory, n))), "")
    if not name:
        return {}
    found: dict[str, Scalar] = {"file": name}
    if batches_per_epoch:
        found["batches_per_epoch"] = batches_per_epoch
        # verl counts one batch a step, from step 1, and looks at an epoch's end only at the next step.
        found["epoch"] = max(0, step - 1) // batches_per_epoch
    path = os.path.join(directory, name)
    torch = sys.modules.get("torch")
    if torch is None or os.path.getsize(path) > MAX_DATA_BYTES:
        return found
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - a data set may put anything of its own in there, which is then not looked at
        return found
    batches, samples, finished = _progress(state)
    for key, value in (("batches", batches), ("samples", samples), ("epoch_finished", finished)):
        if value is not None:
            found[key] = value
    return found


def _progress(state: Any) -> tuple[int | None, int | None, bool | None]:
    """Batches and samples handed out in this epoch, and whether it is over, of a StatefulDataLoader's state."""
    if not isinstance(state, dict):
        return None, None, None
    main: Any = state
    batches = state.get("_num_yielded")
    snapshot = state.get("_snapshot")
    if isinstance(snapshot, dict):  # with worker processes: a snapshot, and how many batches since
        main = snapshot.get("_main_snapshot")
        since, at = state.get("_steps_since_snapshot"), snapshot.get("_snapshot_step")
        batches = since + at if isinstance(since, int) and isinstance(at, int) else None
    sampler = main.get("_sampler_iter_state") if isinstance(main, dict) else None
    samples = sampler.get("samples_yielded") if isinstance(sampler, dict) else None
    finished = state.get("_iterator_finished")
    return (
        batches if isinstance(batches, int) else None,
        samples if isinstance(samples, int) else None,
        finished if isinstance(finished, bool) else None,
    )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64]


def _git(directory: str, *words: str) -> str:
    try:
        return _git_output(directory, *words)
    except (OSError, subprocess.SubprocessError):
        return ""


def _git_output(directory: str, *words: str) -> str:
    """Raises OSError without the program or directory, SubprocessError where it fails or takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # No lock: somebody may be committing there. No prompt, no file-system monitor of the user's.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-C", directory, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        timeout=GIT_SECONDS,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")
