"""The writer of post-mortems where its folder cannot be written for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from postmortem_scene import START, recovery

from exporter.postmortem import writer as writing
from exporter.postmortem.material import Material
from exporter.postmortem.writer import FOLDER_NAME, MOST_TRIES, TRY_AGAIN_SECONDS, PostmortemWriter


class Scene:
    """An engine in which nothing changes any more, and a clock that only the test moves."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        engine = SimpleNamespace(
            changes=7, recoveries=lambda _: [recovery()], history=lambda _: [recovery()], audit=lambda *_, **__: []
        )
        core: Any = SimpleNamespace(engine=engine, runs={})
        self.writer = PostmortemWriter(core, folder, lambda: self.now)

    async def look(self) -> None:
        """One look, and all the work that it begins."""
        self.writer.look()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """Stands where the folder is to be made, so that nothing can be written into it."""
    path = tmp_path / FOLDER_NAME
    path.write_text("")
    return path


def test_one_that_could_not_be_written_is_tried_again_although_no_record_changes(blocked: Path) -> None:
    scene = Scene(blocked.parent)

    async def play() -> None:
        await scene.look()
        blocked.unlink()
        await scene.look()
        assert not scene.writer.has("r1"), "not at once: what was wrong lasts a while"
        scene.now += TRY_AGAIN_SECONDS
        await scene.look()

    asyncio.run(play())
    assert scene.writer.has("r1")


def test_it_is_tried_no_more_often_than_it_says(blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, tries = Scene(blocked.parent), list[Path]()
    keep = writing._keep

    def counted(folder: Path, material: Material) -> None:
        tries.append(folder)
        keep(folder, material)

    monkeypatch.setattr(writing, "_keep", counted)

    async def play() -> None:
        for _ in range(MOST_TRIES + 3):
            await scene.look()
            scene.now += TRY_AGAIN_SECONDS

    asyncio.run(play())
    assert len(tries) == MOST_TRIES
