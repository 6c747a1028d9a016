"""``up`` and ``down``: start what does not run, end what was started here and nothing else. Called by ``__main__``.

Both can be repeated at any time, also after a program was killed or the machine was started anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from compose.local import services as parts
from compose.local.answers import is_free, text_of
from compose.local.service import Service, StackError, running, stop, was_started
from compose.local.services import PORTS, Settings
from trainer_entry.supervisor.processes import send

START_SECONDS = 120.0
"""A busy machine takes seconds to start a program, and longer to read a long journal; more than this is a fault."""
RELOAD_SECONDS = 30.0
STOP_SECONDS = 60.0

_RELOADED = re.compile(
    r"^(?:prometheus|alertmanager)_config_last_reload_success_timestamp_seconds (\S+)$", re.MULTILINE
)
_SUCCESSFUL = re.compile(r"^(?:prometheus|alertmanager)_config_last_reload_successful (\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Up:
    """What a stack is after ``up``: each program with what was done about it, and what is worth a sentence."""

    settings: Settings
    done: list[tuple[Service, str]]
    notes: list[str]


def up(asked: Settings, given_ports: Mapping[str, int]) -> Up:
    """Start every program that is there and does not run, and wait until all are ready.

    Args:
        asked: ``ports`` are not looked at.
        given_ports: those that were asked for; the others stay as they were, or are the usual ones.

    Raises :class:`StackError`; what has been started by then goes on.
    """
    with _locked(asked.folder):
        settings = replace(asked, ports=_ports(asked.folder, given_ports))
        there = parts.programs()
        all_services = parts.services(settings, there)
        alive = {service.key for service in all_services if service.process() is not None}
        _refuse_taken_ports([service for service in all_services if service.key not in alive])
        parts.write_tokens(settings)
        notes = _write_configurations(settings, there, alive)
        notes += [note for key, note in parts.WITHOUT.items() if key not in there]
        (settings.folder / "stack.json").write_text(
            json.dumps({"ports": dict(settings.ports)}) + "\n", encoding="utf-8"
        )
        for service in all_services:
            if service.key not in alive:
                service.start()
        for service in all_services:
            service.wait_until_ready(START_SECONDS)
        done = []
        for service in all_services:
            process = service.process()
            what = "started" if service.key not in alive else "runs already"
            if service.key in alive and service.key in ("prometheus", "alertmanager"):
                _reload(service)
                what = "runs already, has read its configuration anew"
            done.append((service, f"{what}, process {process.pid if process else '?'}"))
        return Up(settings=settings, done=done, notes=notes)


def down(folder: Path) -> list[str]:
    """End what was started here, the last first; a line for each program. Raises :class:`StackError`."""
    if not folder.is_dir():
        return []
    with _locked(folder):
        lines = []
        for key in reversed(list(PORTS)):
            if not was_started(folder, key):
                continue
            process = running(folder, key)
            how = stop(folder, key, STOP_SECONDS)
            lines.append(
                {
                    "ended": f"{key}: ended (process {process.pid if process else '?'})",
                    "killed": f"{key}: did not end in {STOP_SECONDS:.0f} s and was killed",
                    "gone": f"{key}: had ended before; its log is {folder / 'logs' / f'{key}.log'}",
                }[how]
            )
        return lines


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise StackError(f"The folder {folder} cannot be used: {error.strerror}. Another: make up STACK=…") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(f"Another `make up` or `make down` is at work on {folder}; wait for it to end.") from None
        yield


def _ports(folder: Path, given: Mapping[str, int]) -> dict[str, int]:
    """The port of each program. They stay as they are while one runs, because the others know it by its port."""
    before: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((folder / "stack.json").read_text(encoding="utf-8"))["ports"]
        before = {key: int(found[key]) for key in PORTS if key in found}
    busy = [key for key in PORTS if running(folder, key)]
    for key, port in given.items():
        if busy and before.get(key, PORTS[key]) != port:
            raise StackError(
                f"The stack in {folder} runs with port {before.get(key, PORTS[key])} for {key}, and {port} was asked "
                "for. To change it: make down, then make up again."
            )
    ports = {**PORTS, **before, **given}
    for key, port in ports.items():
        twice = next((other for other in ports if other != key and ports[other] == port), None)
        if twice:
            raise StackError(
                f"{_variable(key)} and {_variable(twice)} are both {port}: each program needs its own port."
            )
    return ports


def _refuse_taken_ports(starting: list[Service]) -> None:
    taken = [service for service in starting if not is_free(service.port)]
    if taken:
        which = "; ".join(f"port {service.port}, where {service.name} would listen" for service in taken)
        example = " ".join(f"{_variable(service.key)}={_other(service.port)}" for service in taken)
        raise StackError(
            f"Taken on 127.0.0.1 by a program that is not of this stack: {which}. Nothing was started. "
            f"End that program, or choose another port: make up {example}"
        )


def _variable(key: str) -> str:
    return f"{key.upper()}_PORT"


def _other(port: int) -> int:
    return port + 10_000 if port < 50_000 else port - 10_000


def _write_configurations(settings: Settings, there: Mapping[str, str], alive: set[str]) -> list[str]:
    """Write them all; the exporter's not while it runs, for it reads it at its start only, and then a note says so."""
    notes = []
    parts.write_rules_and_dashboards(settings, there)
    for key, config in parts.configurations(settings, there).items():
        path, text = parts.configuration_file(settings, key), parts.text(config)
        if key == "exporter" and key in alive:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                notes.append(
                    "The exporter runs on with the configuration that it was started with, which is another than was "
                    "asked for now. To change it: make down, then make up again."
                )
        else:
            path.write_text(text, encoding="utf-8")
    return notes


def _reload(service: Service) -> None:
    """Have it read its configuration and rules anew; raises :class:`StackError` where it does not take them."""
    process = service.process()
    failed_before = _value(service, _SUCCESSFUL) == 0.0
    asked = time.time()
    if process is None or not send(process, signal.SIGHUP):
        raise StackError(f"{service.name} ended meanwhile. The end of {service.log}:\n{service.last_output()}")
    deadline = time.monotonic() + RELOAD_SECONDS
    while (_value(service, _RELOADED) or 0.0) < asked:
        refused = _value(service, _SUCCESSFUL) == 0.0 and not failed_before
        if refused or time.monotonic() > deadline:
            raise StackError(
                f"{service.name} goes on with what it read before, for it does not take the new configuration or "
                f"rules. The end of {service.log}:\n{service.last_output()}"
            )
        time.sleep(0.1)


def _value(service: Service, pattern: re.Pattern[str]) -> float | None:
    found = pattern.search(text_of(f"{service.url}/metrics") or "")
    return float(found[1]) if found else None
