"""Makes the files of one post-mortem out of its material. In a process of its own: :mod:`exporter.postmortem.writer`.

Whole or not at all: each file is written beside its place and then moved there, the text last.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Final

import msgspec

from exporter.postmortem.material import Material, decode
from exporter.postmortem.plots import Plot, plot_of
from exporter.postmortem.text import document

MATERIAL_NAME: Final = "material.msgpack"
TEXT_NAME: Final = "postmortem.md"
PICTURE_NAME: Final = "signals.png"
KEY_NAME: Final = "signals.key"
SOON: Final = "The picture is being drawn."
NO_MATPLOTLIB: Final = (
    "There is no picture: matplotlib is not installed with the exporter. pip install 'verl-sentinel[plot]' brings it."
)
NO_STEPS: Final = "There is no picture: no steps of the run were remembered when this was written."


def write(folder: Path) -> None:
    """Read the material in ``folder`` and write text and picture beside it, the text at once and again with its
    picture. Raises ``OSError``, and :class:`exporter.postmortem.material.MaterialUnreadable`."""
    material = decode((folder / MATERIAL_NAME).read_bytes())
    plot = plot_of(material)
    without = _why_not(plot)
    drawn = not without and _is_drawn(folder, plot)
    _write_text(folder, material, [PICTURE_NAME] if drawn else [], without or SOON)
    if without or drawn:
        return
    # Late: it takes a second or ten, depending on what else the machine does.
    from exporter.postmortem.picture import draw

    partial = folder / f"{PICTURE_NAME}.partial"
    draw(plot, partial)
    os.replace(partial, folder / PICTURE_NAME)
    replace(folder / KEY_NAME, _key(plot))
    _write_text(folder, material, [PICTURE_NAME], "")


def _write_text(folder: Path, material: Material, pictures: list[str], without: str) -> None:
    replace(folder / TEXT_NAME, document(material, pictures, without).encode("utf-8", "replace"))


def _why_not(plot: Plot) -> str:
    if not plot.panels:
        return NO_STEPS
    return NO_MATPLOTLIB if importlib.util.find_spec("matplotlib") is None else ""


def _is_drawn(folder: Path, plot: Plot) -> bool:
    """Whether the picture that is there is of the same: a record that changes seldom changes its picture."""
    try:
        return (folder / PICTURE_NAME).is_file() and (folder / KEY_NAME).read_bytes() == _key(plot)
    except OSError:
        return False


def _key(plot: Plot) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(plot)).hexdigest().encode()


def replace(path: Path, body: bytes) -> None:
    """Write a file whole or not at all. Raises ``OSError``."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(body)
    os.replace(partial, path)
