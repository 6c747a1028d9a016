"""Makes the variables of the trainer side reach every process of a run. Used by the drop-in entry points.

Processes on this machine inherit the environment; Ray workers on other nodes get only what ``ray.init`` is told. So
``ray.init`` is wrapped for the time of the run: verl prints its own arguments for it, and a token must not be in that
line. Ray in turn writes what it is told into its logs, which others on the machine may read, so the token is told only
where a cluster is joined: a cluster that is started here inherits it. Several nodes are better given a token file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from trainer_entry.settings import CHANGES, DEFAULT_URL, STATE_DIR, TOKEN, URL, VARIABLES, asked_for, read_settings

EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"
PLUGIN = "trainer_entry.plugin"
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def set_defaults(environ: MutableMapping[str, str]) -> None:
    """Ask for the plugin, before verl is imported. Raises ``SettingsError`` where a variable cannot be used.

    verl 0.8 and older know no entry points for plugins: there the module is named in ``VERL_USE_EXTERNAL_MODULES``.
    """
    environ.setdefault(URL, DEFAULT_URL)
    read_settings(environ)
    if asked_for(environ) and _needs_external_module():
        modules = [name for name in environ.get(EXTERNAL_MODULES, "").split(",") if name]
        if PLUGIN not in modules:
            environ[EXTERNAL_MODULES] = ",".join([PLUGIN, *modules])


def set_identity(environ: MutableMapping[str, str], trainer: Mapping[str, Any]) -> None:
    """Fix the run's identity and state directory, from verl's ``trainer`` section, for all processes to come."""
    settings = read_settings(environ)
    if settings is None:
        return
    settings = settings.with_run(
        str(trainer.get("project_name") or ""),
        str(trainer.get("experiment_name") or ""),
        str(trainer.get("default_local_dir") or ""),
    )
    environ["VERL_SENTINEL_RUN_ID"] = settings.run_id
    environ["VERL_SENTINEL_ATTEMPT"] = str(settings.attempt)
    environ[STATE_DIR] = str(settings.state_dir)


def to_hand_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a Ray worker on another node needs, where they are set here.

    What ``ray job submit`` brought already is left out: Ray refuses a variable that is given twice.
    """
    if not asked_for(environ):
        return {}
    names = [*VARIABLES, *((EXTERNAL_MODULES,) if PLUGIN in environ.get(EXTERNAL_MODULES, "") else ())]
    try:
        job = json.loads(environ.get(RAY_JOB, "") or "{}")
        brought = job.get("runtime_env", {}).get("env_vars", {})
    except (ValueError, AttributeError):
        brought = {}
    return {name: environ[name] for name in names if environ.get(name) and name not in brought}


@contextlib.contextmanager
def handed_on_by_ray(environ: Mapping[str, str]) -> Iterator[None]:
    """While this is open, ``ray.init`` adds the variables to the runtime environment; what the user gave wins."""
    import ray

    original = ray.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        variables = to_hand_on(environ)
        starts = _starts_a_cluster(args, kwargs) if variables else False
        if TOKEN in variables and starts:
            del variables[TOKEN]
        if variables:
            given = dict(kwargs.get("runtime_env") or {})
            given["env_vars"] = {**variables, **(given.get("env_vars") or {})}
            if _another_version(environ) and not starts:
                # A cluster that is joined starts its workers with an interpreter of its own, which has the old verl.
                given.setdefault("py_executable", sys.executable)
            kwargs["runtime_env"] = given
        return original(*args, **kwargs)

    ray.init = init
    try:
        yield
    finally:
        ray.init = original


def _another_version(environ: Mapping[str, str]) -> bool:
    """Whether a rollback has put the run into another environment, which all its workers must run in."""
    try:
        changes = json.loads(environ.get(CHANGES, "") or "{}")
    except ValueError:
        return False
    return isinstance(changes, dict) and bool(changes.get("verl_version"))


def _starts_a_cluster(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``ray.init`` with these arguments would start a cluster of this process's own; False if not known."""
    try:
        from ray._private import services

        address = kwargs.get("address", args[0] if args else None)
        return services.canonicalize_bootstrap_address(address, kwargs.get("_temp_dir")) is None
    except Exception:  # noqa: BLE001 - a part of Ray that is not public: where it changed, workers still get the token
        return False


def _needs_external_module() -> bool:
    try:
        major, minor = importlib.metadata.version("verl").split(".")[:2]
        return (int(major), int(minor)) < (0, 9)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
