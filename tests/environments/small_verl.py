"""A verl that only loads plugins, as an unpacked package of any version: what environments are built from in tests."""

from __future__ import annotations

from pathlib import Path

_INIT = """
import importlib.metadata
__version__ = "{version}"
for entry in importlib.metadata.entry_points(group="verl.plugins"):
    entry.load()
"""


def unpacked(folder: Path, version: str, *, trainer: str = "") -> Path:
    """Write it into ``folder``; ``trainer`` is the text of ``verl/trainer/main_ppo.py``."""
    (folder / "verl" / "trainer").mkdir(parents=True)
    (folder / "verl" / "__init__.py").write_text(_INIT.format(version=version))
    (folder / "verl" / "trainer" / "__init__.py").touch()
    (folder / "verl" / "trainer" / "main_ppo.py").write_text(trainer)
    metadata = folder / f"verl-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
    (metadata / "RECORD").touch()
    return folder
