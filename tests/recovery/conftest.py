"""Scenes: an engine on a file of its own, and a run that has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recovery_scene import Scene

from exporter.recovery.policy import RecoveryPolicy


@pytest.fixture
def scene_with(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**policy: object) -> Scene:
        settings: dict[str, object] = {"mode": "auto", "cooldown_seconds": 60.0, "no_progress_steps": 0, **policy}
        scene = Scene(tmp_path / f"recovery-{len(made)}.sqlite", RecoveryPolicy(**settings))  # type: ignore[arg-type]
        made.append(scene)
        return scene

    yield make
    for scene in made:
        scene.store.close()


@pytest.fixture
def scene(scene_with: Callable[..., Scene]) -> Scene:
    """Mode ``auto``, cooldown 60 s, margin 1, success after 3 healthy steps, no guard of progress; failure of attempt 1
    at step 50."""
    return scene_with()
