"""Makes the files of one post-mortem out of its material. In a process of its own: :mod:`exporter.postmortem.writer`.

Whole or not at all: each file is written beside its place and then moved there, the text last.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final

from exporter.postmortem.material import Material, decode
from exporter.postmortem.plots import plot_of
from exporter.postmortem.text import document

MATERIAL_NAME: Final = "material.msgpack"
TEXT_NAME: Final = "postmortem.md"
PICTURE_NAME: Final = "signals.png"
NO_MATPLOTLIB: Final = (
    "There is no picture: matplotlib is not installed with the exporter. pip install 'verl-sentinel[plot]' brings it."
)
NO_STEPS: Final = "There is no picture: no steps of the run were remembered when this was written."


def write(folder: Path) -> None:
    """Read the material in ``folder`` and write text and picture beside it. Raises ``OSError``, and
    :class:`exporter.postmortem.material.MaterialUnreadable`."""
    material = decode((folder / MATERIAL_NAME).read_bytes())
    pictures, without = _pictures(folder, material)
    replace(folder / TEXT_NAME, document(material, pictures, without).encode("utf-8", "replace"))


def _pictures(folder: Path, material: Material) -> tuple[list[str], str]:
    plot = plot_of(material)
    if not plot.panels:
        return [], NO_STEPS
    if importlib.util.find_spec("matplotlib") is None:
        return [], NO_MATPLOTLIB
    from exporter.postmortem.picture import draw

    partial = folder / f"{PICTURE_NAME}.partial"
    draw(plot, partial)
    os.replace(partial, folder / PICTURE_NAME)
    return [PICTURE_NAME], ""


def replace(path: Path, body: bytes) -> None:
    """Write a file whole or not at all. Raises ``OSError``."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(body)
    os.replace(partial, path)
