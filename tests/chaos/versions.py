"""Another version of verl for the third rung: a stand-in in a wheel, which pip finds as it would find verl's own.

It is what the checks of an environment ask for: the distribution ``verl`` with that version, which loads its plugins
and has the trainer's module. It trains nothing, as :mod:`tests.chaos.fast_trainer`, which asks which one it runs on.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path

GOOD = "0.9.0"
"""The version on which the fault ``version`` does not show."""
_FILES = {
    "verl/__init__.py": f'''
"""A stand-in for verl."""
import importlib.metadata
__version__ = "{GOOD}"
for plugin in importlib.metadata.entry_points(group="verl.plugins"):
    plugin.load()
''',
    "verl/trainer/__init__.py": "",
    "verl/trainer/main_ppo.py": "",
    f"verl-{GOOD}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: verl\nVersion: {GOOD}\n",
    f"verl-{GOOD}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: chaos\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def wheels(folder: Path) -> dict[str, str]:
    """Write the wheel into the folder; the variables with which pip, or uv, looks there and nowhere else."""
    folder.mkdir(parents=True, exist_ok=True)
    record = f"verl-{GOOD}.dist-info/RECORD"
    with zipfile.ZipFile(folder / f"verl-{GOOD}-py3-none-any.whl", "w") as wheel:
        for name, text in _FILES.items():
            wheel.writestr(name, text)
        wheel.writestr(record, "".join(f"{name},,\n" for name in (*_FILES, record)))
    found = str(folder)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": found, "UV_NO_INDEX": "1", "UV_FIND_LINKS": found}


def running() -> str:
    """The verl of this interpreter; empty where it has none."""
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return ""


def place(cache: Path) -> Path:
    """Where the environment of that version is built, below the cache of the supervisor's user."""
    return cache / "verl-sentinel" / "environments" / f"verl-{GOOD}"
