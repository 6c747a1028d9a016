"""The fast trainer's weights, as files that torch loads: written and read without importing it, which takes seconds."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

MODEL = "actor/model_world_size_1_rank_0.pt"


def write(path: Path, **content: Any) -> None:
    """What ``torch.save`` makes of a dictionary without tensors. The same content gives the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in (("data.pkl", pickle.dumps(content, protocol=2)), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}"), body)


def read(path: Path) -> dict[str, Any]:
    """What :func:`write` wrote; of a trainer of this suite, so that it may be unpickled. Raises OSError, ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:
            found: dict[str, Any] = pickle.loads(archive.read(f"{path.stem}/data.pkl"))
    except (zipfile.BadZipFile, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is not what this trainer writes: {error}") from error
    return found
