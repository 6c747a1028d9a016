"""All dashboards, in the order in which they link to one another. Called by ``python -m grafana``; needs the SDK."""

from __future__ import annotations

from collections.abc import Mapping

from grafana import exporter_itself, fleet, gpus, gray_release, incidents, performance, run
from grafana.boards import to_json


def written() -> Mapping[str, str]:
    """The JSON of every dashboard by its uid, as it is checked in."""
    boards = [module.board() for module in (fleet, run, performance, gpus, incidents, gray_release, exporter_itself)]
    return {board.uid: to_json(board, boards) for board in boards}
