"""What the tests of the push client share: a run, its settings, and clients that are closed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.protocol import Run
from trainer_entry.push import PushClient
from trainer_entry.settings import Settings

RUN = Run(run_id="run", attempt=1)


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., PushClient]]:
    """Make a client that pushes to a URL, with its state below ``tmp_path``."""
    clients: list[PushClient] = []

    def make(url: str, role: Any = "trainer", **options: Any) -> PushClient:
        settings = Settings(
            url=url,
            token=options.pop("token", ""),
            token_file=options.pop("token_file", None),
            state_dir=options.pop("state_dir", tmp_path),
        )
        options.setdefault("report", lambda sentence: None)
        client = PushClient(settings, options.pop("run", RUN), role, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close(timeout=0.1)
