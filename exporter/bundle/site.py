"""What a site says of itself: addresses, intervals, labels. Made by :mod:`exporter.cli.export` from its options.

Every value ends up in YAML, JSON and Go templates. What would mean something else there is refused with a sentence;
what is left is written with quotes around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from exporter.bundle.metrics import exported
from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA, base_url

DEFAULT_EXPORTER: Final = DEFAULT_CONSOLE
DEFAULT_PROMETHEUS: Final = "http://127.0.0.1:9090"
DEFAULT_ALERTMANAGER: Final = "http://127.0.0.1:9093"
DEFAULT_JOB: Final = "verl-sentinel"
DEFAULT_TOKEN_FILE: Final = "/etc/verl-sentinel/alert-token"
DEFAULT_INTERVAL: Final = "5s"

PARTS: Final = ("rules", "alertmanager", "dashboards", "compose")
PRESETS: Final = ("manual",)

LONGEST_SCRAPE: Final = 120.0
"""Prometheus forgets a series five minutes after its last sample, and one scrape in a row may fail."""
LONGEST_EVALUATION: Final = 300.0

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}")
_UID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OWN: Final = frozenset({"alertname", "severity", "action"})
"""Labels by which alerts are told apart and routed."""


class SiteError(ValueError):
    """A value that cannot be filled in; the message is a sentence with the option's name."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site. Make it with :func:`site`, which looks at every value."""

    scrape_interval: str = DEFAULT_INTERVAL
    evaluation_interval: str = ""
    """Empty: that of the scrapes, and the groups of rules say none."""
    labels: dict[str, str] = field(default_factory=dict)
    """On every alert; ``cluster`` also on whatever leaves Prometheus."""
    exporter: str = DEFAULT_EXPORTER
    """As Prometheus and Alertmanager reach it."""
    console: str = DEFAULT_CONSOLE
    """As a person's browser reaches it."""
    grafana: str = DEFAULT_GRAFANA
    runbooks: str = f"{DEFAULT_CONSOLE}/runbooks"
    prometheus: str = DEFAULT_PROMETHEUS
    alertmanagers: tuple[str, ...] = (DEFAULT_ALERTMANAGER,)
    remote_write: str = ""
    presets: tuple[str, ...] = ()
    datasource: str = ""
    """Uid of the data source that the dashboards begin with; empty for Grafana's default of that type."""
    job: str = DEFAULT_JOB
    token_file: str = DEFAULT_TOKEN_FILE
    image: str = ""
    """Of the exporter, in the compose file."""

    @property
    def evaluated_every(self) -> str:
        return self.evaluation_interval or self.scrape_interval


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it. Raises ``ValueError`` for what is none.

    >>> seconds("15s"), seconds("1m30s"), seconds("500ms")
    (15.0, 90.0, 0.5)
    """
    if not re.fullmatch(r"(\d{1,6}(ms|s|m|h))+", duration):
        raise ValueError(duration)
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", duration))


def interval(given: str, option: str, longest: float) -> str:
    """An interval that Prometheus takes and that the rules can live with."""
    try:
        length = seconds(given)
    except ValueError:
        raise SiteError(f"{option} {given!r} is no duration as Prometheus writes it, such as 15s or 1m.") from None
    if not 0.5 <= length <= longest:
        raise SiteError(f"{option} {given} is out of bounds: 500ms to {longest:.0f}s.")
    return given


def address(given: str, option: str) -> str:
    """A base address, without a slash at its end."""
    try:
        url = base_url(given, option)
    except ValueError as error:
        raise SiteError(f"{error}.") from None
    if set(url) & set("$,;*!()"):
        raise SiteError(f"{option} is {given!r}: a character in it would mean something else where it is filled in.")
    return url


def host_and_port(url: str) -> str:
    """What Prometheus calls a target.

    >>> host_and_port("https://sentinel.example.org/verl"), host_and_port("http://[::1]:9464")
    ('sentinel.example.org:443', '[::1]:9464')
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def labels(given: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` each."""
    found: dict[str, str] = {}
    taken = _OWN.union(*exported().values()) - {"team", "cluster"}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not _NAME.fullmatch(name) or name.startswith("__"):
            raise SiteError(
                f"--label {pair[:100]!r}: NAME=VALUE is expected, the name of letters, digits and underscores."
            )
        if name in taken:
            raise SiteError(
                f"--label {name}: alerts have a label of that name already, which says what they are about."
            )
        if name in found:
            raise SiteError(f"--label {name} is given twice.")
        if not value.strip() or len(value) > 200 or not value.isprintable():
            raise SiteError(f"--label {name}: its value has to be printable, in one line, with 1 to 200 characters.")
        if "{{" in value or "}}" in value or "$" in value:
            raise SiteError(
                f"--label {name}={value}: Prometheus would read double braces and $ as a template or a variable."
            )
        found[name] = value
    return found


def path(given: str, option: str) -> str:
    if not given.strip() or not given.isprintable() or len(given) > 1000:
        raise SiteError(f"{option} {given[:100]!r}: a path in one line of printable characters is expected.")
    return given


def word(given: str, option: str, pattern: re.Pattern[str], example: str) -> str:
    if not pattern.fullmatch(given):
        raise SiteError(f"{option} {given[:100]!r} will not do: letters, digits and some marks, such as {example}.")
    return given


def site(
    *,
    scrape_interval: str = DEFAULT_INTERVAL,
    evaluation_interval: str = "",
    label: Iterable[str] = (),
    exporter_url: str = DEFAULT_EXPORTER,
    console_url: str = "",
    grafana_url: str = DEFAULT_GRAFANA,
    runbook_url: str = "",
    prometheus_url: str = DEFAULT_PROMETHEUS,
    alertmanager_url: Iterable[str] = (),
    remote_write_url: str = "",
    preset: Iterable[str] = (),
    datasource: str = "",
    job: str = DEFAULT_JOB,
    alert_token_file: str = DEFAULT_TOKEN_FILE,
    image: str = "",
) -> Site:
    """A site of the options of ``verl-sentinel export``. Raises :class:`SiteError`."""
    exporter = address(exporter_url, "--exporter-url")
    console = address(console_url, "--console-url") if console_url else exporter
    presets = tuple(sorted(set(preset)))
    for one in presets:
        if one not in PRESETS:
            raise SiteError(f"--preset {one!r} is not known: {', '.join(PRESETS)}.")
    managers = tuple(dict.fromkeys(address(one, "--alertmanager-url") for one in alertmanager_url))
    if len({(urlsplit(one).scheme, urlsplit(one).path) for one in managers}) > 1:
        raise SiteError("--alertmanager-url: all of them have to have the same scheme and the same path.")
    return Site(
        scrape_interval=interval(scrape_interval, "--scrape-interval", LONGEST_SCRAPE),
        evaluation_interval=interval(evaluation_interval, "--evaluation-interval", LONGEST_EVALUATION)
        if evaluation_interval
        else "",
        labels=labels(label),
        exporter=exporter,
        console=console,
        grafana=address(grafana_url, "--grafana-url"),
        runbooks=address(runbook_url, "--runbook-url") if runbook_url else f"{console}/runbooks",
        prometheus=address(prometheus_url, "--prometheus-url"),
        alertmanagers=managers or (DEFAULT_ALERTMANAGER,),
        remote_write=address(remote_write_url, "--remote-write-url") if remote_write_url else "",
        presets=presets,
        datasource=word(datasource, "--datasource", _UID, "prometheus") if datasource else "",
        job=word(job, "--job", _JOB, DEFAULT_JOB),
        token_file=path(alert_token_file, "--alert-token-file"),
        image=word(image, "--image", re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,250}"), "registry.example.org/verl:1")
        if image
        else "",
    )
