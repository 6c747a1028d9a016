"""The recovery policy of the demo: the whole ladder, climbed without a pause. Written as a file, and checked as one.

Called by :mod:`demo.stack`, which names the file in the exporter's configuration, and by :mod:`bench.recovery`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import yaml

from demo.processes import StartError
from demo.scenarios import RATE, WARM_UP
from exporter.recovery.policy import RecoveryPolicy

FILE = "policy.yaml"
BRANCH = "prod-stable"
CONFIGURATION = "config.yaml"
STABLE = {RATE: 0.0001, WARM_UP: 0}
"""What the branch says: the rate at which the toy learns, at once."""

CHECK_SECONDS = 60.0


def policy(
    *, mode: Literal["observe", "approve", "auto"], direct: bool, repository: Path | None, **more: Any
) -> dict[str, Any]:
    """The policy as its file has it. ``repository``: where the last configuration that ran well lies, if anywhere."""
    triggers = [{"detectors": list(trigger.detectors)} for trigger in RecoveryPolicy().triggers]
    config: dict[str, Any] = {"source": "manifest"}
    if repository is not None:
        git = {"repository": str(repository), "branch": BRANCH, "file": CONFIGURATION}
        config = {"source": "git", "git": git, "allow": [RATE, WARM_UP]}
    return {
        "mode": mode,
        "trigger": "direct" if direct else "alertmanager",
        # A process that fills the host's memory is no fault of what it has learned: save, and go on in a fresh one.
        "triggers": [
            *triggers,
            {"detectors": ["memory"], "signals": ["run_memory"], "action": "restart", "agreement": 1},
        ],
        "ladder": ["checkpoint", "config", "version", "infra"],
        "config": config,
        "cooldown_seconds": 5,
        "climb_seconds": 0,
        "success_steps": 5,
        "no_progress_steps": 60,
        "budget_per_day": 6,
        **more,
    }


def write_policy(folder: Path, content: dict[str, Any]) -> Path:
    """Write the file into ``folder`` and have ``verl-sentinel policy check`` look at it.

    Raises :class:`StartError` with what it says where it finds fault with it.
    """
    path = folder / FILE
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "policy", "check", str(path)],
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise StartError(f"verl-sentinel policy check refuses {path}:\n{done.stdout}{done.stderr}".strip())
    return path


def stable_repository(folder: Path) -> Path:
    """A git repository in ``folder`` whose branch ``prod-stable`` has a configuration that is known to run well.

    Raises :class:`StartError` where git is not there.
    """
    folder.mkdir(parents=True)
    nested: dict[str, Any] = {}
    for key, value in STABLE.items():
        place = nested
        *inner, last = key.split(".")
        for name in inner:
            place = place.setdefault(name, {})
        place[last] = value
    (folder / CONFIGURATION).write_text(yaml.safe_dump(nested))
    who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false")
    for words in (
        ("init", "--quiet", f"--initial-branch={BRANCH}"),
        ("add", CONFIGURATION),
        (*who, "commit", "--quiet", "--message=The configuration that runs well"),
    ):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
            )
        except OSError as error:
            raise StartError(f"git is needed for the branch {BRANCH}, and cannot be run: {error.strerror}.") from error
        if done.returncode != 0:
            raise StartError(f"git {words[0]} in {folder} failed: {done.stderr.strip()}")
    return folder
