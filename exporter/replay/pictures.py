"""Where the pictures of a replay go, and whether they can: asked before a step is read. Called by the command."""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exporter.replay.charts import Chart, Charts

FORMS: Final = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
"""By the suffix of the file."""
NAME_CHARACTERS: Final = 80
"""Of a run in the name of its picture."""
PACKED_OR_LOG: Final = (".gz", ".jsonl", ".json", ".csv", ".log", ".txt")


class PictureImpossible(Exception):
    """The text is a sentence."""


def check(target: Path) -> None:
    """Raises :class:`PictureImpossible` where no picture can be written there."""
    if target.suffix.lower() not in FORMS:
        ends = f"ends in {target.suffix}" if target.suffix else "has no suffix"
        raise PictureImpossible(f"--plot {target} {ends}: a picture is written as .png, .svg or .pdf.")
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureImpossible("--plot needs matplotlib, which is not installed: pip install 'verl-sentinel[plot]'.")
    if target.is_dir():
        raise PictureImpossible(f"--plot {target} is a folder: name a file in it.")
    if not target.parent.is_dir():
        raise PictureImpossible(f"--plot {target} cannot be written: there is no folder {target.parent}.")
    try:
        # A picture is written beside its place and then moved there, so what counts is the folder.
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise PictureImpossible(f"--plot {target} cannot be written: {error.strerror or error}.") from None


def write(charts: Charts, target: Path) -> Iterator[Path]:
    """Draw every run; the files, as they are written. Raises :class:`PictureImpossible`.

    One run is drawn into ``target``. Of several each has a file beside it, with a name of its own before the suffix.
    """
    every = list(charts)
    if len(every) == 1:
        yield _drawn(every[0], target)
        return
    taken: set[str] = set()
    several = {chart.path for chart in every if chart.run}
    for chart in every:
        name = _stem(chart.path) + (f"-{chart.run}" if chart.path in several else "")
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:NAME_CHARACTERS].strip("._") or "run"
        number = 1
        while (unique := name if number == 1 else f"{name}-{number}") in taken:
            number += 1
        taken.add(unique)
        yield _drawn(chart, target.with_name(f"{target.stem}-{unique}{target.suffix}"))


def _stem(path: Path) -> str:
    name = path.resolve().name
    while name.lower().endswith(PACKED_OR_LOG):
        name = name[: name.rindex(".")]
    return name


def _drawn(chart: Chart, target: Path) -> Path:
    from exporter.replay.picture import draw

    form = FORMS[target.suffix.lower()]
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(suffix=target.suffix, prefix=f".{target.stem[:40]}-", dir=target.parent)
        os.close(handle)
        draw(chart, Path(name), form)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        raise PictureImpossible(f"The picture {target} cannot be written: {error.strerror or error}.") from None
    finally:
        if name and os.path.exists(name):
            os.unlink(name)
    return target


def _umask() -> int:
    """Of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
