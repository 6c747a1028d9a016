"""A real Alertmanager with the configuration of ``rules/``: only addresses, intervals and files are filled in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml
from fake_services import FakeMail, FakeService, wait_for

from demo.client import answers
from demo.processes import Child, free_port

RULES = Path(__file__).resolve().parents[2] / "rules"
PROGRAM = shutil.which("prometheus-alertmanager")
PASSWORD, ROUTING_KEY, TOKEN = "the-password-of-the-mailbox", "the-routing-key", "a-token-of-scope-alert"
NEVER = [{"years": ["1970"]}]
ALWAYS = [{"years": ["1970:9999"]}]


class Stage:
    """Alertmanager and what it sends to.

    Args:
        folder: for configuration and data.
        exporter: base URL of the exporter that takes webhooks.
        muted: whether it is outside of office hours now; None: the clock of ``zone`` says so.
        zone: time zone of the machine.
        one_route: whether people hear of everything by one route, which waits until it is all there.
    """

    def __init__(
        self, folder: Path, exporter: str, *, muted: bool | None = False, zone: str = "UTC", one_route: bool = False
    ) -> None:
        assert PROGRAM is not None
        self.services = FakeService()
        self.services.answers["/wecom/gettoken"] = {"errcode": 0, "access_token": "access"}
        self.mail = FakeMail()
        port = free_port(frozenset())
        self.url = f"http://127.0.0.1:{port}"
        for name, text in {
            "slack": f"{self.services.url}/slack",
            "smtp": PASSWORD,
            "pagerduty": ROUTING_KEY,
            "alert": TOKEN,
        }.items():
            (folder / name).write_text(text)
        config = filled_in(folder, self.services.url, self.mail.port, exporter, muted=muted)
        if one_route:
            config["route"] = {key: value for key, value in config["route"].items() if key != "routes"}
            config["inhibit_rules"] = []
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config, allow_unicode=True))
        self._child = Child(
            "Alertmanager",
            [
                PROGRAM,
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.external-url=https://alertmanager.test/am",
                "--web.route-prefix=/",
                "--cluster.listen-address=",
                "--log.level=debug",
            ],
            folder / "alertmanager.log",
            {**os.environ, "TZ": zone},
        )
        self._log = folder / "alertmanager.log"

    def __enter__(self) -> Stage:
        self.services.__enter__()
        self.mail.__enter__()
        self._child.start()
        wait_for("Alertmanager is ready", lambda: answers(f"{self.url}/-/ready"))
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()
        self.mail.__exit__()
        self.services.__exit__()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def post(self, *alerts: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30):
            pass

    def inhibited(self, **labels: str) -> bool:
        """Whether all alerts with these labels are there and silenced by another."""
        filters = "&".join(
            "filter=" + urllib.parse.quote(f"{name}={json.dumps(value)}") for name, value in labels.items()
        )
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts?{filters}", timeout=30) as answer:
            found = json.load(answer)
        return bool(found) and all(alert["status"]["inhibitedBy"] for alert in found)


def filled_in(folder: Path, services: str, smtp_port: int, exporter: str, *, muted: bool | None) -> dict[str, Any]:
    """``rules/alertmanager.yml`` with this machine's addresses, and with everything at ``people``."""
    config: dict[str, Any] = yaml.safe_load((RULES / "alertmanager.yml").read_text())
    config["templates"] = [str(RULES / pattern) for pattern in config["templates"]]
    receivers = {receiver["name"]: receiver for receiver in config["receivers"]}
    for receiver in receivers.values():
        for hook in receiver.get("webhook_configs", ()):
            hook["url"] = hook["url"].replace("http://127.0.0.1:9464", exporter)
            hook["http_config"]["authorization"]["credentials_file"] = str(folder / "alert")
        for slack in receiver.get("slack_configs", ()):
            slack["api_url_file"] = str(folder / "slack")
        for email in receiver.get("email_configs", ()):
            email |= {
                "smarthost": f"127.0.0.1:{smtp_port}",
                "require_tls": False,
                "auth_password_file": str(folder / "smtp"),
            }
        for pagerduty in receiver.get("pagerduty_configs", ()):
            pagerduty |= {"routing_key_file": str(folder / "pagerduty"), "url": f"{services}/pagerduty"}
        for wechat in receiver.get("wechat_configs", ()):
            wechat["api_url"] = f"{services}/wecom/"
    for name in ("slack", "email", "pagerduty", "wecom-app"):
        receivers["people"] |= {key: value for key, value in receivers[name].items() if key != "name"}
    receivers["dead-mans-switch"]["webhook_configs"] = [{"url": f"{services}/switch"}]
    for interval in config["time_intervals"]:
        if muted is not None:
            interval["time_intervals"] = ALWAYS if muted else NEVER
        elif interval["name"] == "weekends":  # which day the tests are run on is not their matter
            interval["time_intervals"] = NEVER
    for route in routes_of(config["route"]):
        route.update({"group_interval": "1s"} | ({"group_wait": "1s"} if "group_wait" in route else {}))
    return config


def routes_of(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The route and all below it."""
    yield route
    for below in route.get("routes", ()):
        yield from routes_of(below)


def alert(name: str, severity: str, run: str = "", *, ended: bool = False, **more: str) -> dict[str, Any]:
    """An alert as the rules make it: ``more`` are labels, and annotations by their name."""
    labels = {"alertname": name, "severity": severity, **({"run": run} if run else {})}
    annotations = {
        "summary": f"Run {run}: grad_norm is NaN or infinite" if run else f"{name}: not as it should be",
        "action": "Roll back to the newest verified checkpoint.",
        "description": "Newest step 128. Loss 3.5. Gradient norm +Inf.",
        "dashboard_url": f"http://127.0.0.1:3000/d/verl-run?var-run={urllib.parse.quote_plus(run)}",
        "runbook_url": f"http://127.0.0.1:9464/runbooks/{name}.md",
        **({"console_url": f"http://127.0.0.1:9464/console/run?id={urllib.parse.quote_plus(run)}"} if run else {}),
        **({"findings": "2 in all: grad_norm since step 120 (non_finite)."} if run else {}),
    }
    for key, value in more.items():
        (annotations if key in ("summary", "action", "description", "findings") or key.endswith("_url") else labels)[
            key
        ] = value
    now = datetime.now(timezone.utc)
    times = {"startsAt": (now - timedelta(minutes=5)).isoformat()}
    times |= {"endsAt": (now - timedelta(seconds=1)).isoformat()} if ended else {}
    return {"labels": labels, "annotations": annotations, **times}


@contextlib.contextmanager
def stage(
    folder: Path, exporter: str, *, muted: bool | None = False, zone: str = "UTC", one_route: bool = False
) -> Iterator[Stage]:
    folder.mkdir(parents=True, exist_ok=True)
    with Stage(folder, exporter, muted=muted, zone=zone, one_route=one_route) as found:
        yield found
