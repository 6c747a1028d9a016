"""Critical Xid events of a GPU are two series of it; a sender that does not tell of them has none."""

from __future__ import annotations

import pytest
from exporter_scene import Scene
from pages import exposition, samples

from exporter.protocol import GpuReading
from exporter.service.admission import Refused

Shown = dict[str, tuple[float | None, float | None]]


def shown(scene: Scene) -> Shown:
    """Events and newest code, by the GPU's index."""
    page = samples(exposition(scene).render().body.decode())
    where = {index: (("index", index), ("node", "n"), ("run", "r"), ("uuid", f"GPU-{index}")) for index in ("0", "1")}
    return {
        index: (page.get(("verl_gpu_xid_errors_total", labels)), page.get(("verl_gpu_last_xid", labels)))
        for index, labels in where.items()
    }


def read(scene: Scene, index: int, **values: int) -> None:
    scene.push(sender="gpu", role="gpu", gpus=[GpuReading(node="n", index=index, uuid=f"GPU-{index}", **values)])


def test_events_are_shown_of_the_gpus_that_report_them(scene: Scene) -> None:
    scene.step(1)
    read(scene, 0, xid_errors=0, last_xid=0)
    read(scene, 1)
    assert shown(scene) == {"0": (0, 0), "1": (None, None)}
    read(scene, 0, xid_errors=2, last_xid=79)
    assert shown(scene) == {"0": (2, 79), "1": (None, None)}


def test_a_number_that_is_none_is_refused(scene: Scene) -> None:
    scene.step(1)
    for values in ({"xid_errors": -1}, {"last_xid": 2**60}):
        with pytest.raises(Refused, match="out of range"):
            read(scene, 0, **values)
