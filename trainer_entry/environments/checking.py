"""Does an environment work: the verl it claims, our plugin in it, the trainer's modules, and a checkpoint that loads.

Each question is asked in a process of that environment's interpreter. Called before a trainer is stopped for it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer_entry.environments.places import Environment, VersionError, variables

IMPORT_SECONDS = 300.0
LOAD_SECONDS = 1800.0

_VERSION = """
import importlib.metadata as m
try:
    print(m.version("verl"))
except m.PackageNotFoundError:
    print("")
"""

_IMPORT = """
import importlib, json, sys
import verl
plugin = "trainer_entry.plugin" in sys.modules
found = {"version": getattr(verl, "__version__", ""), "file": verl.__file__, "plugin": plugin}
try:
    importlib.import_module(sys.argv[1])
    found["trainer"] = ""
except BaseException as error:
    found["trainer"] = f"{type(error).__name__}: {error}"[:400]
print("\\n" + json.dumps(found))
"""


def installed_version(python: str) -> str:
    """The version of the verl distribution that an interpreter sees; empty where it has none. Raises VersionError."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VERL_SENTINEL_URL")}
    lines = _ask([python, "-c", _VERSION], environ, 60.0).strip().splitlines()
    return lines[-1].strip() if lines else ""


def check(
    environment: Environment,
    *,
    trainer_module: str,
    checkpoint: Path | None,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Raises VersionError with the first thing that does not work."""
    asked = {**environ, **variables(environment, environ), "VERL_SENTINEL_URL": "http://127.0.0.1:9"}
    asked.pop("PYTHONHOME", None)
    said = _ask([environment.python, "-c", _IMPORT, trainer_module], asked, IMPORT_SECONDS)
    try:
        found = json.loads(said.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise VersionError(f"{environment.python} cannot import verl.") from error
    if not found.get("plugin"):
        raise VersionError(f"{environment.python} imports verl without our plugin; install verl-sentinel there.")
    if found.get("trainer"):
        raise VersionError(f"{environment.python} cannot import {trainer_module}: {found['trainer']}")
    if not _same_version(str(found.get("version", "")), environment.verl_version):
        raise VersionError(
            f"{environment.python} imports verl {found.get('version') or '(no version)'} from {found.get('file')}, not "
            f"{environment.verl_version}; something, such as PYTHONPATH, goes before it."
        )
    say(f"verl {environment.verl_version} with our plugin is what {environment.python} imports")
    if checkpoint is not None:
        words = [environment.python, "-m", "trainer_entry.cli", "checkpoints", "verify", "--urgent", "--depth", "load"]
        _ask([*words, str(checkpoint)], asked | {"VERL_SENTINEL_URL": "off"}, LOAD_SECONDS, what=f"{checkpoint}")
        say(f"{checkpoint} loads there")


def trainer_module(argv: list[str]) -> str:
    """The module of verl that the command line of a trainer comes to.

    >>> trainer_module(["torchrun", "-m", "trainer_entry.main_sft"]), trainer_module(["python", "-m", "x"])
    ('verl.trainer.sft_trainer', 'verl.trainer.main_ppo')
    """
    return "verl.trainer.sft_trainer" if any("sft" in word for word in argv[1:6]) else "verl.trainer.main_ppo"


def _same_version(found: str, wanted: str) -> bool:
    return found == wanted or found.split("+", 1)[0] == wanted.split("+", 1)[0]


def _ask(words: list[str], environ: Mapping[str, str], seconds: float, what: str = "") -> str:
    subject = f"{what}, asked of {words[0]}," if what else words[0]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise VersionError(f"{subject} did not answer within {seconds:g} s.") from error
    except OSError as error:
        raise VersionError(f"{words[0]} cannot be run: {error.strerror}.") from error
    if done.returncode < 0:
        raise VersionError(f"{subject} was killed by signal {-done.returncode}.", -done.returncode)
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise VersionError(f"{subject} failed: {lines[-1][:500] if lines else f'code {done.returncode}'}")
    return done.stdout
