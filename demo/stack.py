"""Exporter, Prometheus and Alertmanager for the demo: on loopback, on ports that are free, with tokens of their own.

Called by :mod:`demo.run`. The rules and routes are the ones that ship in ``rules/``; only addresses, intervals and the
token file are filled in.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from compose import configuration
from compose.configuration import RULES, Addresses
from demo.client import answers, watches
from demo.policy import policy, write_policy
from demo.processes import Child, StartError, free_port

SCRAPE_SECONDS = 1
EVALUATION_SECONDS = SCRAPE_SECONDS
DETECTORS: Mapping[str, Mapping[str, Any]] = {"stalled_phase": {"floor_seconds": 12.0}}
"""A toy's generation takes a second; a real one's takes minutes, and the default floor is made for that."""

KEEP_ALL_SECONDS = 86_400.0
"""What a snapshot covers leaves the journal, so the next snapshot is put off beyond the end of the run."""

SCOPES = ("push", "alert", "operate")
START_SECONDS = 60.0
"""A busy two-core machine needs seconds to start a Python service; more than this is a fault."""


class Stack:
    """The watching side of the loop.

    Args:
        out: folder for configuration, data and logs.
        observe: only watch. No alerts, no recovery, and the journal keeps every entry.
        mode: whether a recovery waits for a person; not looked at where it only watches.
        repository: a git repository with the configuration that the config rung goes back to, if there is one.
        recovery: what the recovery policy has otherwise than :func:`demo.policy.policy` says.
    """

    def __init__(
        self,
        out: Path,
        *,
        observe: bool = False,
        mode: Literal["auto", "approve"] = "auto",
        repository: Path | None = None,
        recovery: Mapping[str, Any] | None = None,
    ) -> None:
        self.out = out
        self._observe = observe
        self._mode: Literal["observe", "auto", "approve"] = "observe" if observe else mode
        self._repository, self._recovery = repository, dict(recovery or {})
        self.tokens = {scope: out / "tokens" / scope for scope in SCOPES}
        ports = _free_ports(3)
        self.exporter_url = f"http://127.0.0.1:{ports[0]}"
        self.prometheus_url = f"http://127.0.0.1:{ports[1]}"
        self.alertmanager_url = f"http://127.0.0.1:{ports[2]}"
        self._programs = {name: shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")}
        self.children: list[Child] = []

    @property
    def missing_programs(self) -> list[str]:
        """Programs that are not on this machine; without one of them the loop uses the exporter's own fast path."""
        return [name for name, path in self._programs.items() if path is None]

    @property
    def fast_path(self) -> bool:
        return self._observe or bool(self.missing_programs)

    def token(self, scope: str) -> str:
        return self.tokens[scope].read_text().strip()

    def start(self) -> None:
        """Write the configuration and start everything; raises :class:`StartError` with a sentence."""
        self._write_tokens()
        self._write_addresses()
        exporter = self._exporter()
        programs = [] if self.fast_path else [self._alertmanager(), self._prometheus()]
        for child in (exporter, *programs):
            self.children.append(child)
            child.start()
        exporter.wait_until(lambda: answers(f"{self.exporter_url}/readyz"), START_SECONDS, "it was ready")
        for child, url in zip(programs, (self.alertmanager_url, self.prometheus_url), strict=False):
            child.wait_until(lambda url=url: answers(f"{url}/-/ready"), START_SECONDS, "it was ready")  # type: ignore[misc]

    def wait_until_watching(self) -> None:
        """Wait until Prometheus scrapes the exporter and knows its Alertmanager; :class:`StartError` if it never does.

        Prometheus takes up to five seconds after it is ready to look at its own configuration's targets. A run that
        starts meanwhile need not wait: nothing is lost by it, a page only comes later.
        """
        self.children[-1].wait_until(
            lambda: watches(self.prometheus_url, _host(self.exporter_url)), START_SECONDS, "it watched the exporter"
        )

    def stop(self) -> None:
        """End what was started, in reverse order."""
        for child in reversed(self.children):
            child.stop()

    def dead(self) -> str:
        """A sentence about the first child that ended by itself, empty where all run."""
        for child in self.children:
            if not child.running():
                return f"{child.name} ended with code {child.exit_code()}:\n{child.last_output()}"
        return ""

    def _write_tokens(self) -> None:
        folder = self.out / "tokens"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for path in self.tokens.values():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24) + "\n")

    def _write_addresses(self) -> None:
        """For programs that look on: ``stack.json``."""
        addresses = {"exporter": self.exporter_url, "tokens": {scope: str(file) for scope, file in self.tokens.items()}}
        if not self.fast_path:
            addresses |= {"prometheus": self.prometheus_url, "alertmanager": self.alertmanager_url}
        (self.out / "stack.json").write_text(json.dumps(addresses, indent=2) + "\n")

    def _exporter(self) -> Child:
        config: dict[str, Any] = {
            "listen": self.exporter_url.removeprefix("http://"),
            "data_dir": str(self.out / "exporter"),
            "tokens": {scope: [{"file": str(path)}] for scope, path in self.tokens.items()},
            "detectors": {name: dict(options) for name, options in DETECTORS.items()},
            "links": {"console": self.exporter_url},
            "recovery": {"policy_file": str(self._policy())},
        }
        if self._observe:
            config["retention"] = {"snapshot_seconds": KEEP_ALL_SECONDS}
        path = self.out / "exporter.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return Child(
            "the exporter",
            [sys.executable, "-m", "exporter", "--config", str(path)],
            self.out / "logs" / "exporter.log",
        )

    def _policy(self) -> Path:
        content = policy(mode=self._mode, direct=self.fast_path, repository=self._repository, **self._recovery)
        return write_policy(self.out, content)

    @property
    def _addresses(self) -> Addresses:
        return Addresses(
            exporter=_host(self.exporter_url),
            prometheus=_host(self.prometheus_url),
            alertmanager=_host(self.alertmanager_url),
        )

    def _prometheus(self) -> Child:
        rules = self.out / "rules"
        configuration.write_rules(rules, console=self.exporter_url)
        config = configuration.prometheus(self._addresses, str(rules), seconds=SCRAPE_SECONDS)
        path = self.out / "prometheus.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return Child(
            "Prometheus",
            [
                str(self._programs["prometheus"]),
                f"--config.file={path}",
                f"--storage.tsdb.path={self.out / 'prometheus'}",
                f"--web.listen-address={_host(self.prometheus_url)}",
            ],
            self.out / "logs" / "prometheus.log",
        )

    def _alertmanager(self) -> Child:
        config = configuration.alertmanager(
            self._addresses, templates=str(RULES / "templates"), token_file=str(self.tokens["alert"])
        )
        path = self.out / "alertmanager.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return Child(
            "Alertmanager",
            [
                str(self._programs["prometheus-alertmanager"]),
                f"--config.file={path}",
                f"--storage.path={self.out / 'alertmanager'}",
                f"--web.listen-address={_host(self.alertmanager_url)}",
                # No cluster of Alertmanagers: the gossip port would be one more to be free.
                "--cluster.listen-address=",
            ],
            self.out / "logs" / "alertmanager.log",
        )


def _host(url: str) -> str:
    return url.removeprefix("http://")


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port(frozenset(ports)))
    return ports


def environment_of_trainer(stack: Stack, base: dict[str, str]) -> dict[str, str]:
    """What the supervisor and the trainer need to find the exporter."""
    return {
        **base,
        "VERL_SENTINEL_URL": stack.exporter_url,
        "VERL_SENTINEL_TOKEN_FILE": str(stack.tokens["push"]),
        "VERL_SENTINEL_PYTHON": sys.executable,
        # Loopback only; a proxy of the user's must not see it.
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1"])),
        "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy", ""), "127.0.0.1"])),
    }


__all__ = ["Stack", "StartError", "environment_of_trainer"]
